"""One new position per sequence over its keys in pages, in float64."""

from typing import Any

import numpy as np
import numpy.typing as npt


def run(
    q: npt.NDArray[Any],
    k: npt.NDArray[Any],
    v: npt.NDArray[Any],
    table: npt.NDArray[np.int32],
    seen: npt.NDArray[np.int32],
) -> dict[str, npt.NDArray[np.float64]]:
    """q[B,H,D], k and v[C,P,G,D], table[B,W] and seen[B] to out[B,H,D]."""
    sequences, heads, width = q.shape
    _, page, groups, _ = k.shape
    out = np.empty(q.shape, dtype=np.float64)
    query = q.astype(np.float64).reshape(sequences, groups, heads // groups, width)
    with np.errstate(all="ignore"):
        for b in range(sequences):
            length = int(seen[b])
            pages = table[b, : -(-length // page)]
            # Only what is seen is looked at: the rest of a page may hold anything.
            key, value = (
                cache[pages].astype(np.float64).reshape(-1, groups, width)[:length]
                for cache in (k, v)
            )
            scores = np.einsum("gid,sgd->gis", query[b], key) / np.sqrt(width)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            out[b] = np.einsum("gis,sgd->gid", weights, value).reshape(heads, width)
    return {"out": out}
