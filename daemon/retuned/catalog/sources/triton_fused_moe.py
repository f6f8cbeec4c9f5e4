"""A whole mixture of experts in tiles: sort routes, two grouped products, combine.

Routes of one expert share its weights. One program per expert finds where its routes lie in the
order by expert, always the same way. Then tiles of that order are multiplied; there are as many
programs as there could be tiles, and those that find none end immediately. The activation is a
separate launch, as in servers, or the end of the first product. Each token adds up its slots in
their order. A route to no expert of this machine has no place in the order, and adds nothing.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def fused_moe_sort(ids, order, ends, M, T: tl.constexpr, BLOCK_R: tl.constexpr):
    expert = tl.program_id(0)
    routes = M * T
    smaller = tl.zeros((BLOCK_R,), dtype=tl.int32)
    for first in range(0, routes, BLOCK_R):
        at = first + tl.arange(0, BLOCK_R)
        chosen = tl.load(ids + at, mask=at < routes, other=-1)
        smaller += ((chosen >= 0) & (chosen < expert)).to(tl.int32)
    place = tl.sum(smaller, axis=0)
    for first in range(0, routes, BLOCK_R):
        at = first + tl.arange(0, BLOCK_R)
        mine = tl.load(ids + at, mask=at < routes, other=-1) == expert
        one = mine.to(tl.int32)
        tl.store(order + place + tl.cumsum(one, axis=0) - one, at, mask=mine)
        place += tl.sum(one, axis=0)
    tl.store(ends + expert, place)


@triton.jit
def tile_of(ends, tile, E: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return a tile's expert, its first place, and where the expert's places end."""
    experts = tl.arange(0, BLOCK_E)
    end = tl.load(ends + experts, mask=experts < E, other=0)
    start = tl.load(ends + experts - 1, mask=(experts > 0) & (experts < E), other=0)
    tiles = tl.where(experts < E, (end - start + BLOCK_M - 1) // BLOCK_M, 0)
    before = tl.cumsum(tiles, axis=0) - tiles
    mine = (before <= tile) & (tile < before + tiles)
    expert = tl.sum(tl.where(mine, experts, 0), axis=0)
    first = tl.sum(tl.where(mine, start + (tile - before) * BLOCK_M, 0), axis=0)
    last = tl.sum(tl.where(mine, end, 0), axis=0)
    return expert, first, last


@triton.jit
def product(
    rows,
    columns,
    DEPTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Return rows[BLOCK_M, DEPTH] @ columns[BLOCK_N, DEPTH]^T, given where each of them starts."""
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for depth in range(0, DEPTH, BLOCK_K):
        at = depth + tl.arange(0, BLOCK_K)
        if DEPTH % BLOCK_K == 0:
            part = tl.load(rows[:, None] + at[None, :])
            weights = tl.load(columns[None, :] + at[:, None])
        else:
            part = tl.load(rows[:, None] + at[None, :], mask=(at < DEPTH)[None, :], other=0.0)
            weights = tl.load(columns[None, :] + at[:, None], mask=(at < DEPTH)[:, None], other=0.0)
        total = tl.dot(part, weights, total)
    return total


@triton.jit
def fused_moe_up(
    x,
    w_up,
    order,
    ends,
    both,
    E: tl.constexpr,
    T: tl.constexpr,
    W: tl.constexpr,
    K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    wide = tl.cdiv(W, BLOCK_N)
    program = tl.program_id(0)
    expert, first, last = tile_of(ends, program // wide, E, BLOCK_E, BLOCK_M)
    if last > first:
        place = first + tl.arange(0, BLOCK_M)
        columns = (program % wide) * BLOCK_N + tl.arange(0, BLOCK_N)
        token = tl.load(order + place, mask=place < last, other=0) // T
        total = product(
            x + token.to(tl.int64) * K,
            w_up + (expert.to(tl.int64) * W + columns % W) * K,
            K,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
        )
        inside = (place < last)[:, None] & (columns < W)[None, :]
        target = place[:, None].to(tl.int64) * W + columns[None, :]
        tl.store(both + target, total.to(tl.bfloat16), mask=inside)


@triton.jit
def fused_moe_activate(
    both, hidden, M, T: tl.constexpr, F: tl.constexpr, W: tl.constexpr, BLOCK_A: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * BLOCK_A + tl.arange(0, BLOCK_A)
    inside = at < M.to(tl.int64) * T * F
    source = (at // F) * W + at % F
    gate = tl.load(both + source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + source + F, mask=inside, other=0.0).to(tl.float32)
    tl.store(hidden + at, (gate * tl.sigmoid(gate) * up).to(tl.bfloat16), mask=inside)


@triton.jit
def fused_moe_gated(
    x,
    w_up,
    order,
    ends,
    hidden,
    E: tl.constexpr,
    T: tl.constexpr,
    F: tl.constexpr,
    W: tl.constexpr,
    K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    wide = tl.cdiv(F, BLOCK_N)
    program = tl.program_id(0)
    expert, first, last = tile_of(ends, program // wide, E, BLOCK_E, BLOCK_M)
    if last > first:
        place = first + tl.arange(0, BLOCK_M)
        columns = (program % wide) * BLOCK_N + tl.arange(0, BLOCK_N)
        token = tl.load(order + place, mask=place < last, other=0) // T
        rows = x + token.to(tl.int64) * K
        weights = w_up + (expert.to(tl.int64) * W + columns % F) * K
        gate = product(rows, weights, K, BLOCK_M, BLOCK_N, BLOCK_K)
        up = product(rows, weights + F * K, K, BLOCK_M, BLOCK_N, BLOCK_K)
        inside = (place < last)[:, None] & (columns < F)[None, :]
        target = place[:, None].to(tl.int64) * F + columns[None, :]
        tl.store(hidden + target, (gate * tl.sigmoid(gate) * up).to(tl.bfloat16), mask=inside)


@triton.jit
def fused_moe_down(
    hidden,
    w_down,
    order,
    ends,
    weight,
    parts,
    E: tl.constexpr,
    F: tl.constexpr,
    K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    wide = tl.cdiv(K, BLOCK_N)
    program = tl.program_id(0)
    expert, first, last = tile_of(ends, program // wide, E, BLOCK_E, BLOCK_M)
    if last > first:
        place = first + tl.arange(0, BLOCK_M)
        columns = (program % wide) * BLOCK_N + tl.arange(0, BLOCK_N)
        route = tl.load(order + place, mask=place < last, other=0)
        # Places past the last are read from it again and never stored.
        total = product(
            hidden + tl.minimum(place, last - 1).to(tl.int64) * F,
            w_down + (expert.to(tl.int64) * K + columns % K) * F,
            F,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
        )
        gain = tl.load(weight + route, mask=place < last, other=0.0)
        inside = (place < last)[:, None] & (columns < K)[None, :]
        target = route[:, None].to(tl.int64) * K + columns[None, :]
        tl.store(parts + target, (total * gain[:, None]).to(tl.bfloat16), mask=inside)


@triton.jit
def fused_moe_combine(
    parts, ids, y, E: tl.constexpr, T: tl.constexpr, K: tl.constexpr, BLOCK_C: tl.constexpr
):
    wide = tl.cdiv(K, BLOCK_C)
    program = tl.program_id(0)
    token = (program // wide).to(tl.int64)
    columns = (program % wide) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros((BLOCK_C,), dtype=tl.float32)
    for slot in range(0, T):
        route = token * T + slot
        expert = tl.load(ids + route)
        here = tl.where((expert >= 0) & (expert < E), K, 0)
        part = tl.load(parts + route * K + columns, mask=columns < here, other=0.0)
        total += part.to(tl.float32)
    tl.store(y + token * K + columns, total.to(tl.bfloat16), mask=columns < K)
