"""y = x @ w^T, in float64."""

from typing import Any

import numpy as np
import numpy.typing as npt


def run(x: npt.NDArray[Any], w: npt.NDArray[Any]) -> dict[str, npt.NDArray[np.float64]]:
    """x[M,K] and w[N,K] to y[M,N]."""
    with np.errstate(all="ignore"):
        return {"y": x.astype(np.float64) @ w.astype(np.float64).T}
