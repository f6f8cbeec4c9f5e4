"""Patterns of known computations, and the catalog's structures for them. Data.

A pattern describes what an untrusted kernel may compute. Gated activations have two forms: gate and
up as two tensors, or as the halves of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Wide = npt.NDArray[np.float64]
Arrays = Mapping[str, Wide]
Numbers = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One source structure for a pattern, one program per row or per part of a row."""

    structure: str
    function: str
    grid: str
    """Number of programs, over ``{M}``, the lengths by symbol, and BLOCK."""
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    name: str
    inputs: Mapping[str, tuple[str, ...]]
    """Role -> symbols of its shape; M is the variable one. ``2*I`` is twice the length of I."""
    outputs: Mapping[str, tuple[str, ...]]
    """Role -> symbols; the first has the element type of the first input."""
    optional: frozenset[str]
    """Optional outputs: a kernel has all of them, or none."""
    numbers: Mapping[str, float | None]
    """Role of a real argument -> value if it is absent; None if it is required."""
    compute: Callable[[Arrays, Numbers], dict[str, Wide]]
    reference: str
    """The computation as text of a reference: ``{role}`` for names and numbers."""
    returns: Mapping[str, str]
    source: str
    arguments: tuple[str, ...]
    """Arguments of every function except BLOCK: roles, symbols, or expressions over them."""
    row: str
    """Symbol of a row's length, which BLOCK divides."""
    shapes: tuple[Shape, ...]
    alike: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Activation:
    """Activation of the gate before the multiplication."""

    name: str
    of: Callable[[Wide, Numbers], Wide]
    text: tuple[str, ...]
    numbers: tuple[str, ...] = ()


def _silu(gate: Wide, numbers: Numbers) -> Wide:
    scaled = gate * numbers["scale"]
    return scaled / (1.0 + np.exp(-scaled))


def _gelu(gate: Wide, _: Numbers) -> Wide:
    inner: Wide = np.sqrt(2.0 / np.pi) * (gate + 0.044715 * gate**3)
    return 0.5 * gate * (1.0 + np.tanh(inner))


_ACTIVATIONS = (
    _Activation(
        name="silu_mul",
        of=_silu,
        text=("scaled = gate * {scale}", "activated = scaled / (1.0 + np.exp(-scaled))"),
        numbers=("scale",),
    ),
    _Activation(
        name="gelu_mul",
        of=_gelu,
        text=(
            "inner = np.sqrt(2.0 / np.pi) * (gate + 0.044715 * gate**3)",
            "activated = 0.5 * gate * (1.0 + np.tanh(inner))",
        ),
    ),
)
_APART = {"gate": ("M", "I"), "up": ("M", "I")}
_TOGETHER = {"both": ("M", "2*I")}


def _pattern(activation: _Activation, *, packed: bool) -> Pattern:
    def compute(arrays: Arrays, numbers: Numbers) -> dict[str, Wide]:
        if packed:
            gate, up = np.split(arrays["both"], 2, axis=-1)
        else:
            gate, up = arrays["gate"], arrays["up"]
        with np.errstate(all="ignore"):
            return {"y": activation.of(gate, numbers) * up}

    read = (
        "gate, up = np.split({both}.astype(np.float64), 2, axis=-1)"
        if packed
        else "gate, up = {gate}.astype(np.float64), {up}.astype(np.float64)"
    )
    lines = (read, *activation.text, "y = activated * up", "return {returns}")
    inputs = _TOGETHER if packed else _APART
    places = ("both", "both + {I}") if packed else ("gate", "up")
    return Pattern(
        name=f"{activation.name}_packed" if packed else activation.name,
        inputs=inputs,
        outputs={"y": ("M", "I")},
        optional=frozenset(),
        numbers=dict.fromkeys(activation.numbers, 1.0),
        compute=compute,
        reference=(
            f"import numpy as np\n\n\ndef run({', '.join(f'{{{role}}}' for role in inputs)}):\n"
            "    with np.errstate(all='ignore'):\n" + "".join(f"        {line}\n" for line in lines)
        ),
        returns={"y": "y"},
        source=f"triton_fit_{activation.name}.py",
        arguments=(*places, "y", *activation.numbers, "I", "2*I" if packed else "I"),
        row="I",
        shapes=(
            Shape(
                structure="tiles",
                function=f"{activation.name}_tiles",
                grid="{M} * cdiv({I}, BLOCK)",
                whole=False,
            ),
        ),
    )


GATED: tuple[Pattern, ...] = tuple(
    _pattern(activation, packed=packed) for activation in _ACTIVATIONS for packed in (False, True)
)


def _rmsnorm(arrays: Arrays, numbers: Numbers) -> dict[str, Wide]:
    with np.errstate(all="ignore"):
        x = arrays["x"]
        factor = 1.0 / np.sqrt(np.mean(x * x, axis=-1) + numbers["eps"])
        y = x * factor[:, None] * (arrays["weight"] + numbers["offset"])
        return {"y": y, "factor": factor}


RMSNORM = Pattern(
    name="rmsnorm",
    inputs={"x": ("M", "H"), "weight": ("H",)},
    outputs={"y": ("M", "H"), "factor": ("M",)},
    optional=frozenset({"factor"}),
    numbers={"eps": None, "offset": 0.0},
    compute=_rmsnorm,
    reference=(
        "import numpy as np\n\n\ndef run({x}, {weight}):\n"
        "    with np.errstate(all='ignore'):\n"
        "        wide = {x}.astype(np.float64)\n"
        "        factor = 1.0 / np.sqrt(np.mean(wide * wide, axis=-1) + {eps})\n"
        "        y = wide * factor[:, None] * ({weight}.astype(np.float64) + {offset})\n"
        "        return {returns}\n"
    ),
    returns={"y": "y", "factor": "factor"},
    source="triton_fit_rmsnorm.py",
    arguments=("x", "weight", "y", "factor", "eps", "offset", "H", "LEAVES"),
    row="H",
    shapes=(
        Shape(structure="rows", function="rmsnorm_whole", grid="{M}", whole=True),
        Shape(structure="blocks", function="rmsnorm_twice", grid="{M}", whole=False),
    ),
)


def _softmax(arrays: Arrays, numbers: Numbers) -> dict[str, Wide]:
    with np.errstate(all="ignore"):
        x = arrays["x"] * numbers["scale"]
        weight = np.exp(x - np.max(x, axis=-1, keepdims=True))
        return {"y": weight / np.sum(weight, axis=-1, keepdims=True)}


def _layernorm(arrays: Arrays, numbers: Numbers) -> dict[str, Wide]:
    with np.errstate(all="ignore"):
        x = arrays["x"]
        mean = np.mean(x, axis=-1)
        left = x - mean[:, None]
        factor = 1.0 / np.sqrt(np.mean(left * left, axis=-1) + numbers["eps"])
        y = left * factor[:, None] * arrays["weight"] + arrays["bias"]
        return {"y": y, "mean": mean, "factor": factor}


def _add_rmsnorm(arrays: Arrays, numbers: Numbers) -> dict[str, Wide]:
    with np.errstate(all="ignore"):
        summed = arrays["x"] + arrays["residual"]
        return {
            **_rmsnorm({"x": summed, "weight": arrays["weight"]}, numbers),
            "summed": summed,
        }


SOFTMAX = Pattern(
    name="softmax",
    inputs={"x": ("M", "N")},
    outputs={"y": ("M", "N")},
    optional=frozenset(),
    numbers={"scale": 1.0},
    compute=_softmax,
    reference=(
        "import numpy as np\n\n\ndef run({x}):\n"
        "    with np.errstate(all='ignore'):\n"
        "        wide = {x}.astype(np.float64) * {scale}\n"
        "        weight = np.exp(wide - np.max(wide, axis=-1, keepdims=True))\n"
        "        y = weight / np.sum(weight, axis=-1, keepdims=True)\n"
        "        return {returns}\n"
    ),
    returns={"y": "y"},
    source="triton_fit_softmax.py",
    arguments=("x", "y", "scale", "N"),
    row="N",
    shapes=(
        Shape(structure="whole", function="softmax_held", grid="{M}", whole=True),
        Shape(structure="online", function="softmax_streamed", grid="{M}", whole=False),
    ),
)
LAYERNORM = Pattern(
    name="layernorm",
    inputs={"x": ("M", "H"), "weight": ("H",), "bias": ("H",)},
    outputs={"y": ("M", "H"), "mean": ("M",), "factor": ("M",)},
    optional=frozenset({"mean", "factor"}),
    numbers={"eps": None},
    compute=_layernorm,
    reference=(
        "import numpy as np\n\n\ndef run({x}, {weight}, {bias}):\n"
        "    with np.errstate(all='ignore'):\n"
        "        wide = {x}.astype(np.float64)\n"
        "        mean = np.mean(wide, axis=-1)\n"
        "        left = wide - mean[:, None]\n"
        "        factor = 1.0 / np.sqrt(np.mean(left * left, axis=-1) + {eps})\n"
        "        gain, shift = {weight}.astype(np.float64), {bias}.astype(np.float64)\n"
        "        y = left * factor[:, None] * gain + shift\n"
        "        return {returns}\n"
    ),
    returns={"y": "y", "mean": "mean", "factor": "factor"},
    source="triton_fit_layernorm.py",
    arguments=("x", "weight", "bias", "y", "mean", "factor", "eps", "H", "LEAVES"),
    row="H",
    shapes=(
        Shape(structure="rows", function="layernorm_whole", grid="{M}", whole=True),
        Shape(structure="blocks", function="layernorm_thrice", grid="{M}", whole=False),
    ),
)
ADD_RMSNORM = Pattern(
    name="add_rmsnorm",
    inputs={"x": ("M", "H"), "residual": ("M", "H"), "weight": ("H",)},
    outputs={"y": ("M", "H"), "summed": ("M", "H"), "factor": ("M",)},
    optional=frozenset({"factor"}),
    numbers={"eps": None, "offset": 0.0},
    compute=_add_rmsnorm,
    reference=(
        "import numpy as np\n\n\ndef run({x}, {residual}, {weight}):\n"
        "    with np.errstate(all='ignore'):\n"
        "        summed = {x}.astype(np.float64) + {residual}.astype(np.float64)\n"
        "        factor = 1.0 / np.sqrt(np.mean(summed * summed, axis=-1) + {eps})\n"
        "        y = summed * factor[:, None] * ({weight}.astype(np.float64) + {offset})\n"
        "        return {returns}\n"
    ),
    returns={"y": "y", "summed": "summed", "factor": "factor"},
    source="triton_fit_add_rmsnorm.py",
    arguments=(
        *("x", "residual", "weight", "y", "summed", "factor", "eps", "offset", "H", "LEAVES"),
    ),
    row="H",
    shapes=(
        Shape(structure="rows", function="add_rmsnorm_whole", grid="{M}", whole=True),
        Shape(structure="blocks", function="add_rmsnorm_twice", grid="{M}", whole=False),
    ),
    alike=("x", "residual"),
)
PATTERNS: tuple[Pattern, ...] = (RMSNORM, *GATED, SOFTMAX, LAYERNORM, ADD_RMSNORM)
