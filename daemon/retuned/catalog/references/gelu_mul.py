"""y = gelu(gate) * up with gelu(g) = g * (1 + tanh(sqrt(2/pi) * (g + 0.044715 g^3))) / 2."""

import numpy as np
import numpy.typing as npt


def run(x: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.float64]]:
    """x[M,2I], gate then up, to y[M,I]."""
    with np.errstate(all="ignore"):
        gate, up = np.split(x.astype(np.float64), 2, axis=-1)
        inner = np.sqrt(2.0 / np.pi) * (gate + 0.044715 * gate * gate * gate)
        # (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), without the cancellation far below zero.
        return {"y": gate / (1.0 + np.exp(-2.0 * inner)) * up}
