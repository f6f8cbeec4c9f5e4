"""Rotary positions: some heads of one token a program, of queries and keys in one line."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def rope_heads(
    positions,
    q,
    k,
    cache,
    q_out,
    k_out,
    Q: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    blocks = tl.cdiv(Q + K, HEADS)
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64)
    head = (program % blocks) * HEADS + tl.arange(0, HEADS)
    at = tl.arange(0, BLOCK)
    inside = at < D // 2
    start = tl.load(positions + row) * D
    cosine = tl.load(cache + start + at, mask=inside, other=0.0).to(tl.float32)[None, :]
    sine = tl.load(cache + start + D // 2 + at, mask=inside, other=0.0).to(tl.float32)[None, :]
    of_q = (head < Q)[:, None] & inside[None, :]
    of_k = ((head >= Q) & (head < Q + K))[:, None] & inside[None, :]
    in_q = (row * Q + head)[:, None] * D + at[None, :]
    in_k = (row * K + head - Q)[:, None] * D + at[None, :]
    low_q = tl.load(q + in_q, mask=of_q, other=0.0).to(tl.float32)
    low_k = tl.load(k + in_k, mask=of_k, other=0.0).to(tl.float32)
    high_q = tl.load(q + in_q + D // 2, mask=of_q, other=0.0).to(tl.float32)
    high_k = tl.load(k + in_k + D // 2, mask=of_k, other=0.0).to(tl.float32)
    low = tl.where(of_q, low_q, low_k)
    high = tl.where(of_q, high_q, high_k)
    first = low * cosine - high * sine
    second = high * cosine + low * sine
    tl.store(q_out + in_q, first, mask=of_q)
    tl.store(k_out + in_k, first, mask=of_k)
    tl.store(q_out + in_q + D // 2, second, mask=of_q)
    tl.store(k_out + in_k + D // 2, second, mask=of_k)
