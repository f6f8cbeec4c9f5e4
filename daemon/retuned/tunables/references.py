"""Rows of a launch's output in float64, by PyTorch, from the inputs of a case.

The server's own choice and a candidate are both compared with them: two configurations of one
kernel can be wrong in the same way. Only some rows are computed, one after another, so that memory
stays small beside a server. It runs in the server's environment.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_ATTENTION_ROWS, _EXPERT_ROWS = 16, 4
_CHUNK_ROWS = 1024
"""Rows of a weight that are widened to float64 at once."""
_CHANGES_RESULT = (
    "alibi_slopes",
    "kv_quant_mode",
    "mm_prefix_range",
    "output_scale",
    "qq_bias",
    "rswa_prefix_lens",
    "sinks",
)
"""Arguments of vLLM's attention with an effect that is not written here."""


class Rows(NamedTuple):
    """Rows of the first output of a case."""

    at: list[int]
    values: Any
    """float64, ``[len(at), ...]``."""


class Weights(NamedTuple):
    """Both matrices of a layer of experts."""

    first: Any
    """``[experts, 2 * width, hidden]``: gate, then up."""
    second: Any
    """``[experts, hidden, width]``."""
    scales: tuple[float, float] = (1.0, 1.0)
    """What the elements of each are multiplied by."""


def _sampled(count: int, *, most: int, seed: int) -> list[int]:
    """Return the last row and others at random, ascending."""
    if not count:
        return []
    others = random.Random(seed).sample(range(count - 1), min(count, most) - 1)
    return sorted([*others, count - 1])


def attention_rows(torch: Any, call: Mapping[str, Any], *, seed: int) -> Rows | None:  # noqa: ANN401
    """Return rows of causal attention over paged keys and values.

    None for a call without rows, or with an argument whose effect is not written here.

    Parameters
    ----------
    call
        Arguments of vLLM's ``unified_attention``: ``q`` ``[rows, heads, head]``; ``k`` and ``v``
        ``[pages, block, heads, head]``; ``window_size`` ``(left, right)``, -1 for no window.
    """
    changed = any(_is_set(call.get(name)) for name in _CHANGES_RESULT)
    if changed or not call["causal"] or call.get("chunk_lookback", -1) != -1:
        return None
    starts, lengths = call["cu_seqlens_q"].tolist(), call["seqused_k"].tolist()
    rows = _sampled(starts[-1], most=_ATTENTION_ROWS, seed=seed)
    found = []
    for row in rows:
        sequence = next(n for n in range(len(lengths)) if row < starts[n + 1])
        end = lengths[sequence] - (starts[sequence + 1] - row) + 1
        found.append(_attended(torch, call, row, sequence=sequence, end=end))
    return Rows(rows, torch.stack(found)) if found else None


def _is_set(value: Any) -> bool:  # noqa: ANN401 - an argument of any type
    return value is not None and (hasattr(value, "shape") or bool(value))


def _attended(
    torch: Any,  # noqa: ANN401
    call: Mapping[str, Any],
    row: int,
    *,
    sequence: int,
    end: int,
) -> Any:  # noqa: ANN401
    """Return one row of attention, ``[heads, head]``; it sees the keys before `end`."""
    q, block = call["q"], call["k"].shape[1]
    left = call["window_size"][0]
    begin = max(0, end - 1 - left) if left >= 0 else 0
    pages = call["block_table"][sequence, begin // block : -(-end // block)].long()
    seen = slice(begin % block, begin % block + end - begin)
    group = q.shape[1] // call["k"].shape[2]
    heads = []
    for head in range(call["k"].shape[2]):
        keys, values = (call[name][pages, :, head].flatten(0, 1)[seen] for name in ("k", "v"))
        own = q[row, head * group : (head + 1) * group].double()
        scores = own @ keys.double().T * call["softmax_scale"]
        if call["softcap"]:
            scores = call["softcap"] * torch.tanh(scores / call["softcap"])
        heads.append(scores.softmax(-1) @ values.double())
    return torch.cat(heads)


def expert_rows(
    torch: Any,  # noqa: ANN401
    hidden: Any,  # noqa: ANN401
    weights: Weights,
    *,
    chosen: Any,  # noqa: ANN401
    shares: Any,  # noqa: ANN401
    seed: int,
) -> Rows:
    """Return rows of a layer of experts with SiLU.

    Parameters
    ----------
    hidden
        ``[tokens, hidden]``.
    chosen, shares
        ``[tokens, top_k]``: experts of each token, and their part of the sum.
    """
    rows = _sampled(hidden.shape[0], most=_EXPERT_ROWS, seed=seed)
    found = []
    for row in rows:
        token = hidden[row].double()
        whole = torch.zeros_like(token)
        for expert, share in zip(chosen[row].tolist(), shares[row].tolist(), strict=True):
            both = _product(torch, weights.first[expert], token) * weights.scales[0]
            gate, up = both.chunk(2)
            inner = torch.nn.functional.silu(gate) * up
            whole += share * weights.scales[1] * _product(torch, weights.second[expert], inner)
        found.append(whole)
    return Rows(rows, torch.stack(found))


def _product(torch: Any, matrix: Any, vector: Any) -> Any:  # noqa: ANN401
    parts: Sequence[Any] = matrix.split(_CHUNK_ROWS)
    return torch.cat([each.double() @ vector for each in parts])


def distance(found: Any, rows: Rows) -> float:  # noqa: ANN401 - a tensor
    """Return how far an output lies from these rows, by norm; NaN if it is not finite there."""
    gap = found[rows.at].double() - rows.values
    return float(gap.norm() / rows.values.norm().clamp_min(1e-30))
