"""y = x @ (wq * scale)^T, in float64."""

import numpy as np
import numpy.typing as npt


def run(
    x: npt.NDArray[np.float32], wq: npt.NDArray[np.int8], scale: npt.NDArray[np.float32]
) -> dict[str, npt.NDArray[np.float64]]:
    """x[M,K], wq[N,K] int8 and scale[N] to y[M,N]."""
    with np.errstate(all="ignore"):
        product = x.astype(np.float64) @ wq.astype(np.float64).T
        return {"y": product * scale.astype(np.float64)}
