"""Rotary positions: all heads of a token in one program, its angles read once."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def rope_token(
    positions,
    q,
    k,
    cache,
    q_out,
    k_out,
    Q: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < D // 2
    start = tl.load(positions + row) * D
    cosine = tl.load(cache + start + at, mask=inside, other=0.0).to(tl.float32)[None, :]
    sine = tl.load(cache + start + D // 2 + at, mask=inside, other=0.0).to(tl.float32)[None, :]
    head = tl.arange(0, QUERIES)
    keep = (head < Q)[:, None] & inside[None, :]
    place = (row * Q + head)[:, None] * D + at[None, :]
    low = tl.load(q + place, mask=keep, other=0.0).to(tl.float32)
    high = tl.load(q + place + D // 2, mask=keep, other=0.0).to(tl.float32)
    tl.store(q_out + place, low * cosine - high * sine, mask=keep)
    tl.store(q_out + place + D // 2, high * cosine + low * sine, mask=keep)
    head = tl.arange(0, KEYS)
    keep = (head < K)[:, None] & inside[None, :]
    place = (row * K + head)[:, None] * D + at[None, :]
    low = tl.load(k + place, mask=keep, other=0.0).to(tl.float32)
    high = tl.load(k + place + D // 2, mask=keep, other=0.0).to(tl.float32)
    tl.store(k_out + place, low * cosine - high * sine, mask=keep)
    tl.store(k_out + place + D // 2, high * cosine + low * sine, mask=keep)
