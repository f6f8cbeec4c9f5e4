"""What strangers' kernels may turn out to compute, and the catalog's structures for it. Data."""

from __future__ import annotations

import numpy as np

from retuned.lifting.gated_patterns import GATED
from retuned.lifting.pattern import Arrays, Numbers, Pattern, Shape, Wide


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
