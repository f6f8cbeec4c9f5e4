"""y = exp(x) / sum(exp(x)) over the last axis, in float64."""

import numpy as np
import numpy.typing as npt


def run(x: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.float64]]:
    """x[M,N] to y[M,N]."""
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        weights = np.exp(wide - wide.max(axis=-1, keepdims=True))
        return {"y": weights / weights.sum(axis=-1, keepdims=True)}
