"""y = sum over blocks of 128 of (x_b @ w_b^T) * x_scale_b * w_scale_b, in float64."""

from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 128


def run(
    x: npt.NDArray[Any],
    w: npt.NDArray[Any],
    x_scale: npt.NDArray[np.float32],
    w_scale: npt.NDArray[np.float32],
) -> dict[str, npt.NDArray[np.float64]]:
    """x[M,K], w[N,K], x_scale[M,K/128] and w_scale[N/128,K/128], rounded up, to y[M,N]."""
    rows, depth = x.shape
    columns = w.shape[0]
    wide_x, wide_w = x.astype(np.float64), w.astype(np.float64)
    by_row = x_scale.astype(np.float64)
    by_column = np.repeat(w_scale.astype(np.float64), BLOCK, axis=0)[:columns]
    total = np.zeros((rows, columns))
    with np.errstate(all="ignore"):
        for block in range(-(-depth // BLOCK)):
            part = slice(block * BLOCK, (block + 1) * BLOCK)
            product = wide_x[:, part] @ wide_w[:, part].T
            total += product * by_row[:, block, None] * by_column[None, :, block]
    return {"y": total}
