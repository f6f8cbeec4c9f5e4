"""Attention of one new token of each sequence over that sequence's cache, in Triton."""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 64


def decode_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bases: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """Attend in one launch.

    Parameters
    ----------
    q
        [M, H, D] float32, contiguous; D is a power of two.
    keys, values
        [R, H, D], the rows of all caches.
    bases, lengths
        [M] int64: first row of each sequence, and how many it sees.

    Returns
    -------
    torch.Tensor
        [M, H, D].
    """
    sequences, heads, width = q.shape
    output = torch.empty_like(q)
    _kernel[(sequences, heads)](
        q, keys, values, output, bases, lengths, width**-0.5, heads, D=width, BLOCK=_BLOCK
    )
    return output


@triton.jit
def _kernel(
    q, keys, values, output, bases, lengths, scale, heads, D: tl.constexpr, BLOCK: tl.constexpr
):
    sequence, head = tl.program_id(0), tl.program_id(1)
    width = tl.arange(0, D)
    place = (sequence * heads + head) * D + width
    query = tl.load(q + place) * scale
    base, length = tl.load(bases + sequence), tl.load(lengths + sequence)
    peak = tl.full([1], -float("inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    mixed = tl.zeros([D], tl.float32)
    for start in range(0, length, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        seen = rows < length
        at = ((base + rows)[:, None] * heads + head) * D + width[None, :]
        scores = tl.sum(tl.load(keys + at, mask=seen[:, None], other=0.0) * query[None, :], axis=1)
        scores = tl.where(seen, scores, -float("inf"))
        highest = tl.maximum(peak, tl.max(scores, axis=0))
        weights = tl.exp(scores - highest)
        kept = tl.exp(peak - highest)
        read = tl.load(values + at, mask=seen[:, None], other=0.0)
        mixed = mixed * kept + tl.sum(weights[:, None] * read, axis=0)
        total = total * kept + tl.sum(weights, axis=0)
        peak = highest
    tl.store(output + place, mixed / total)
