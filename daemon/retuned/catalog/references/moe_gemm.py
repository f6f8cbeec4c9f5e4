"""Grouped product of a mixture of experts: y[route] = (x[token] @ w[expert]^T) * weight[route].

In float64. `order` lists the routes, expert by expert; `ends` says where each expert's routes end.
A route is a token's place in [M, T].
"""

from typing import Any

import numpy as np
import numpy.typing as npt


def run(
    x: npt.NDArray[Any],
    w: npt.NDArray[Any],
    order: npt.NDArray[np.int32],
    ends: npt.NDArray[np.int32],
    weight: npt.NDArray[np.float32],
) -> dict[str, npt.NDArray[np.float64]]:
    """x[M,K], w[E,N,K], order[M,T], ends[E] and weight[M,T] to y[M,T,N]."""
    tokens, slots = order.shape
    routes, gain = order.reshape(-1), weight.reshape(-1).astype(np.float64)
    out = np.zeros((tokens * slots, w.shape[1]))
    start = 0
    with np.errstate(all="ignore"):
        for expert, end in enumerate(ends.tolist()):
            mine = routes[start:end]
            product = x[mine // slots].astype(np.float64) @ w[expert].astype(np.float64).T
            out[mine] = product * gain[mine, None]
            start = end
    return {"y": out.reshape(tokens, slots, -1)}
