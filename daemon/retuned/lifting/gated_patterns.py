"""Gated activations as patterns: gate and up as two tensors, or as the halves of one. Data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from retuned.lifting.pattern import Arrays, Numbers, Pattern, Shape, Wide


@dataclass(frozen=True, slots=True, kw_only=True)
class _Activation:
    """What becomes of the gate before it is multiplied."""

    name: str
    """Operator of the catalog."""
    of: Callable[[Wide, Numbers], Wide]
    """In float64."""
    text: tuple[str, ...]
    """The same of ``gate``, as lines of a reference that end in ``activated``."""
    numbers: tuple[str, ...] = ()
    """Real arguments; each is 1 where a kernel has none."""


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
