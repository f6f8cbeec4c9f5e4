"""y = silu(gate) * up, in float64."""

import numpy as np
import numpy.typing as npt


def run(x: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.float64]]:
    """x[M,2I], gate then up, to y[M,I]."""
    with np.errstate(all="ignore"):
        gate, up = np.split(x.astype(np.float64), 2, axis=-1)
        return {"y": gate / (1.0 + np.exp(-gate)) * up}
