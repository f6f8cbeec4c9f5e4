"""Sizes of the demo's models; without torch, for those who only ask about them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of the model."""

    layers: int
    """Decoder layers."""
    hidden: int
    """Width of the residual stream; heads times head_dim."""
    heads: int
    """Attention heads."""
    intermediate: int
    """Width inside the feed-forward part."""
    vocab: int
    """Tokens known."""
    max_tokens: int
    """Longest sequence, prompt and answer together."""

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads

    def linears(self) -> dict[str, tuple[int, int]]:
        """(N, K) of every linear."""
        return {
            "qkv": (3 * self.hidden, self.hidden),
            "out": (self.hidden, self.hidden),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
            "lm_head": (self.vocab, self.hidden),
        }


SHAPES = {
    "demo": ModelShape(
        layers=4, hidden=512, heads=8, intermediate=1408, vocab=2048, max_tokens=512
    ),
    "gpu": ModelShape(
        layers=16, hidden=2048, heads=16, intermediate=5632, vocab=8192, max_tokens=2048
    ),
    "tiny": ModelShape(layers=2, hidden=64, heads=2, intermediate=96, vocab=128, max_tokens=512),
}
"""Models by name: the demo's, its larger form for a GPU, and one for tests.

The larger one has 0.8 GB of weights and 9 GB of caches for 16 sequences.
"""
