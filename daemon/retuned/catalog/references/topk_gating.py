"""Softmax of the largest K logits of a row, and their indices; of equals the lowest index first."""

import numpy as np
import numpy.typing as npt

CHOSEN = 8


def run(
    logits: npt.NDArray[np.float32], chosen: int = CHOSEN
) -> dict[str, npt.NDArray[np.float64]]:
    """logits[M,E] to weights[M,K] and ids[M,K], the latter whole numbers; K is CHOSEN."""
    wide = logits.astype(np.float64)
    # A stable sort keeps equals in the order of their indices.
    ids = np.argsort(-wide, axis=-1, kind="stable")[:, :chosen]
    best = np.take_along_axis(wide, ids, axis=-1)
    with np.errstate(all="ignore"):
        weights = np.exp(best - best[:, :1])
        return {
            "weights": weights / weights.sum(axis=-1, keepdims=True),
            "ids": ids.astype(np.float64),
        }
