"""Per-token quantisation: q = x / scale, scale = max(|x|) / LARGEST over the row, in float64.

NaN values are left out of the maximum. An infinite value makes its row's scale infinite, and its
own q NaN. q is not rounded here: the nearest number of its type is the exact answer.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

LARGEST = 448.0
LEAST = 1e-10


def run(x: npt.NDArray[Any], largest: float = LARGEST) -> dict[str, npt.NDArray[np.float64]]:
    """x[M,H] to q[M,H] and scale[M]."""
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        peak = np.fmax.reduce(np.abs(wide), axis=-1, initial=0.0)
        scale = np.maximum(peak / largest, LEAST)
        return {"q": wide / scale[:, None], "scale": scale}
