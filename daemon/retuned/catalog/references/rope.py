"""Rotary positions: each pair (i, i + D/2) of a head is turned by the angle of its position."""

import numpy as np
import numpy.typing as npt


def run(
    positions: npt.NDArray[np.int64],
    q: npt.NDArray[np.float32],
    k: npt.NDArray[np.float32],
    cache: npt.NDArray[np.float32],
) -> dict[str, npt.NDArray[np.float64]]:
    """positions[M], q[M,Q,D], k[M,K,D], cache[P,D] (cosines, sines) to q_out and k_out."""
    half = cache.shape[1] // 2
    angles = cache.astype(np.float64)[positions][:, None, :]
    cosine, sine = angles[..., :half], angles[..., half:]

    def turned(heads: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        low, high = np.split(heads.astype(np.float64), 2, axis=-1)
        return np.concatenate([low * cosine - high * sine, high * cosine + low * sine], axis=-1)

    with np.errstate(all="ignore"):
        return {"q_out": turned(q), "k_out": turned(k)}
