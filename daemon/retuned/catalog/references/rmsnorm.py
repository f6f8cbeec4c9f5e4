"""y = x / sqrt(mean(x^2) + 1e-6) * weight, in float64."""

import numpy as np
import numpy.typing as npt


def run(
    x: npt.NDArray[np.float32], weight: npt.NDArray[np.float32]
) -> dict[str, npt.NDArray[np.float64]]:
    """x[M,H] and weight[H] to y[M,H]."""
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        mean = np.mean(wide * wide, axis=-1, keepdims=True)
        return {"y": wide / np.sqrt(mean + 1e-6) * weight.astype(np.float64)}
