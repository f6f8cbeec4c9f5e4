"""A mixture of experts: y = sum over slots of weight * (silu(gate) * up) @ w_down[expert]^T.

In float64. `ids` names the expert of each of a token's slots; one that is none of the experts adds
nothing: it is another machine's.
"""

from typing import Any

import numpy as np
import numpy.typing as npt


def run(
    x: npt.NDArray[Any],
    w_up: npt.NDArray[Any],
    w_down: npt.NDArray[Any],
    ids: npt.NDArray[np.int32],
    weight: npt.NDArray[np.float32],
) -> dict[str, npt.NDArray[np.float64]]:
    """x[M,K], w_up[E,2F,K] (gate, then up), w_down[E,K,F], ids and weight[M,T] to y[M,K]."""
    out = np.zeros(x.shape)
    with np.errstate(all="ignore"):
        for expert in range(w_up.shape[0]):
            tokens, slots = np.nonzero(ids == expert)
            if tokens.size == 0:
                continue
            both = x[tokens].astype(np.float64) @ w_up[expert].astype(np.float64).T
            gate, up = np.split(both, 2, axis=-1)
            hidden = gate / (1.0 + np.exp(-gate)) * up
            product = hidden @ w_down[expert].astype(np.float64).T
            gain = weight[tokens, slots].astype(np.float64)
            np.add.at(out, tokens, product * gain[:, None])
    return {"y": out}
