"""summed = x + residual; y = summed / sqrt(mean(summed^2) + 1e-6) * weight, in float64."""

import numpy as np
import numpy.typing as npt


def run(
    x: npt.NDArray[np.float32], residual: npt.NDArray[np.float32], weight: npt.NDArray[np.float32]
) -> dict[str, npt.NDArray[np.float64]]:
    """x[M,H], residual[M,H] and weight[H] to y[M,H] and summed[M,H]."""
    with np.errstate(all="ignore"):
        summed = x.astype(np.float64) + residual.astype(np.float64)
        mean = np.mean(summed * summed, axis=-1, keepdims=True)
        y = summed / np.sqrt(mean + 1e-6) * weight.astype(np.float64)
        return {"y": y, "summed": summed}
