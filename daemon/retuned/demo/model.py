"""A small decoder language model with seeded random weights, weight-only int8.

Its text means nothing; its kernels, shapes and memory traffic are those of a real decoder. One
`forward` takes chunks of many sequences: their tokens run as one [M, hidden] activation through
every linear, norm and activation, while attention runs per sequence over that sequence's cache.
With `decoding` set, steps that only decode are captured and replayed (`decode`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from retuned.demo.batches import Chunk
from retuned.demo.decode import CapturedSteps, Decoding
from retuned.demo.operators import Operators, Tensor
from retuned.demo.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class _Linear:
    weight: Tensor
    """[N, K] int8."""
    scale: Tensor
    """[N] float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    attention_norm: Tensor
    qkv: _Linear
    out: _Linear
    feed_forward_norm: Tensor
    gate_up: _Linear
    down: _Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """One step's chunks, side by side."""

    tokens: Tensor
    """[M] token ids."""
    places: Tensor
    """[M] position of each token in its sequence."""
    rows: Tensor
    """[M] row of each token in the pools."""
    lengths: tuple[int, ...]
    """Tokens per chunk; their sum is M."""
    ranges: tuple[tuple[int, int], ...]
    """Per chunk: first row in the pools, and tokens in the cache after this step."""
    last: tuple[int, ...]
    """Rows of the batch after which a token is sampled."""


@dataclass(slots=True)
class Cache:
    """Keys and values of one sequence: a fixed range of the model's pools, recycled."""

    base: int
    """First row of the range in every pool."""
    used: int = 0
    """Tokens in it."""

    def clear(self) -> None:
        """Forget the sequence; memory is kept."""
        self.used = 0


class DecoderModel:
    """The model; deterministic for a seed.

    Parameters
    ----------
    shape
        Sizes.
    operators
        What computes.
    max_sequences
        Caches that the pools hold.
    seed
        Of the random weights; the same seed gives other weights on another kind of device.
    device
        Where weights, caches and activations are.
    decoding
        How steps that only decode are captured; None runs them as all others.
    """

    def __init__(
        self,
        shape: ModelShape,
        operators: Operators,
        *,
        max_sequences: int = 16,
        seed: int = 0,
        device: str = "cpu",
        decoding: Decoding | None = None,
    ) -> None:
        self.shape = shape
        self._ops = operators
        self._device = torch.device(device)
        self._bases = iter(range(0, max_sequences * shape.max_tokens, shape.max_tokens))
        spare = max_sequences * shape.max_tokens
        sizes = (spare + 1, shape.heads, shape.head_dim)
        self._pools = [(self._zeros(sizes), self._zeros(sizes)) for _ in range(shape.layers)]
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._embedding = self._normal(shape.vocab, shape.hidden)
        self._position = self._normal(shape.max_tokens, shape.hidden)
        self._layers = tuple(self._layer() for _ in range(shape.layers))
        self._final_norm = self._gain()
        self._lm_head = self._linear("lm_head")
        self._captured: CapturedSteps | None = None
        if decoding is not None:
            with torch.inference_mode():
                self._captured = CapturedSteps(
                    lambda inputs: self._decode(inputs, decoding),
                    decoding=decoding,
                    spare=spare,
                    device=self._device,
                )

    def new_cache(self) -> Cache:
        """Return an empty cache for one sequence.

        Raises
        ------
        ValueError
            If all ranges of the pools are given out.
        """
        base = next(self._bases, None)
        if base is None:
            raise ValueError("more caches than max_sequences; give the model a larger number")
        return Cache(base)

    def forward(self, chunks: Sequence[Chunk[Cache]]) -> list[int]:
        """Advance every chunk's sequence and return one token per chunk that asks for it.

        Raises
        ------
        FloatingPointError
            If a probability is not finite: some kernel is broken, and its tokens must not be sent.
        ValueError
            If a sequence would outgrow its cache.
        """
        for chunk in chunks:
            stop = chunk.cache.used + len(chunk.tokens)
            if stop > self.shape.max_tokens:
                limit = self.shape.max_tokens
                raise ValueError(f"a sequence of {stop} tokens; the model holds {limit}")
        with torch.inference_mode():
            only_decodes = all(len(chunk.tokens) == 1 and chunk.sample for chunk in chunks)
            captured = self._captured
            if captured is not None and only_decodes and captured.takes(len(chunks)):
                tokens = captured.run(
                    [chunk.tokens[0] for chunk in chunks],
                    [chunk.cache.used for chunk in chunks],
                    [chunk.cache.base for chunk in chunks],
                )
            else:
                tokens = self._forward(self._batch(chunks))
        for chunk in chunks:
            chunk.cache.used += len(chunk.tokens)
        return tokens

    def _forward(self, batch: _Batch) -> list[int]:
        x = self._embedding[batch.tokens] + self._position[batch.places]
        for layer, pools in zip(self._layers, self._pools, strict=True):
            x = self._run_layer(layer, x, partial(self._attend, batch=batch, pools=pools))
        return self._sample(x, batch)

    def _decode(self, inputs: Tensor, decoding: Decoding) -> Tensor:
        """Return next tokens and whether their probabilities are finite; see `CapturedSteps`.

        Nothing here waits for the device, and no size depends on its data.
        """
        tokens, places, bases = inputs.unbind(0)
        rows, lengths = bases + places, places + 1

        def attend(qkv: Tensor, pools: tuple[Tensor, Tensor]) -> Tensor:
            queries = self._remember(qkv, rows, pools)
            mixed = decoding.attention(queries.contiguous(), *pools, bases, lengths)
            return mixed.view(-1, self.shape.hidden)

        x = self._embedding[tokens] + self._position[places]
        for layer, pools in zip(self._layers, self._pools, strict=True):
            x = self._run_layer(layer, x, partial(attend, pools=pools))
        probabilities = self._probabilities(x)
        finite = torch.isfinite(probabilities).all(-1)
        return torch.stack([probabilities.argmax(-1), finite.to(torch.int64)])

    def _batch(self, chunks: Sequence[Chunk[Cache]]) -> _Batch:
        tokens: list[int] = []
        places: list[int] = []
        rows: list[int] = []
        ranges: list[tuple[int, int]] = []
        last: list[int] = []
        for chunk in chunks:
            base, start = chunk.cache.base, chunk.cache.used
            stop = start + len(chunk.tokens)
            tokens.extend(chunk.tokens)
            places.extend(range(start, stop))
            rows.extend(range(base + start, base + stop))
            ranges.append((base, stop))
            if chunk.sample:
                last.append(len(tokens) - 1)
        return _Batch(
            tokens=torch.tensor(tokens, device=self._device),
            places=torch.tensor(places, device=self._device),
            rows=torch.tensor(rows, device=self._device),
            lengths=tuple(len(chunk.tokens) for chunk in chunks),
            ranges=tuple(ranges),
            last=tuple(last),
        )

    def _run_layer(self, layer: _Layer, x: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        ops = self._ops
        normed = ops.rmsnorm(x, layer.attention_norm)
        qkv = ops.linear_w8(normed, layer.qkv.weight, layer.qkv.scale)
        mixed = attend(qkv)
        x = x + ops.linear_w8(mixed, layer.out.weight, layer.out.scale)
        normed = ops.rmsnorm(x, layer.feed_forward_norm)
        gate_up = ops.linear_w8(normed, layer.gate_up.weight, layer.gate_up.scale)
        return x + ops.linear_w8(ops.silu_mul(gate_up), layer.down.weight, layer.down.scale)

    def _attend(self, qkv: Tensor, batch: _Batch, pools: tuple[Tensor, Tensor]) -> Tensor:
        """Write the new keys and values, then attend sequence by sequence.

        Views are made with one operator each: every operator costs a profiler some 20 us.
        """
        heads, width, hidden = self.shape.heads, self.shape.head_dim, self.shape.hidden
        queries = self._remember(qkv, batch.rows, pools)
        mixed = []
        parts = queries.contiguous().split_with_sizes(batch.lengths)
        for part, (base, total) in zip(parts, batch.ranges, strict=True):
            sizes, strides, offset = (total, heads, width), (hidden, width, 1), base * hidden
            seen_keys = torch.as_strided(pools[0], sizes, strides, offset)
            seen_values = torch.as_strided(pools[1], sizes, strides, offset)
            mixed.append(self._ops.attention(part, seen_keys, seen_values))
        return torch.cat(mixed).view(-1, hidden)

    def _remember(self, qkv: Tensor, rows: Tensor, pools: tuple[Tensor, Tensor]) -> Tensor:
        """Write the new keys and values into the pools; return the queries, [M, H, D]."""
        heads, width = self.shape.heads, self.shape.head_dim
        queries, keys, values = qkv.view(-1, 3, heads, width).unbind(1)
        pools[0].index_copy_(0, rows, keys)
        pools[1].index_copy_(0, rows, values)
        return queries

    def _sample(self, x: Tensor, batch: _Batch) -> list[int]:
        if not batch.last:
            return []
        probabilities = self._probabilities(x[list(batch.last)])
        if not bool(torch.isfinite(probabilities).all()):
            raise FloatingPointError("the model's probabilities are not finite")
        tokens: list[int] = probabilities.argmax(-1).tolist()
        return tokens

    def _probabilities(self, x: Tensor) -> Tensor:
        normed = self._ops.rmsnorm(x, self._final_norm)
        logits = self._ops.linear_w8(normed, self._lm_head.weight, self._lm_head.scale)
        return self._ops.softmax(logits)

    def _layer(self) -> _Layer:
        return _Layer(
            attention_norm=self._gain(),
            qkv=self._linear("qkv"),
            out=self._linear("out"),
            feed_forward_norm=self._gain(),
            gate_up=self._linear("gate_up"),
            down=self._linear("down"),
        )

    def _linear(self, name: str) -> _Linear:
        rows, depth = self.shape.linears()[name]
        weight = torch.randint(
            -127, 128, (rows, depth), generator=self._generator, device=self._device
        )
        # Uniform int8 has a deviation of 73: this scale keeps a normed input at unit variance.
        scale = (1 + 0.1 * self._normal(rows)) * (1.0 / (73.0 * depth**0.5))
        return _Linear(weight.to(torch.int8), scale)

    def _gain(self) -> Tensor:
        return 1 + 0.1 * self._normal(self.shape.hidden)

    def _normal(self, *sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=self._generator, device=self._device)

    def _zeros(self, sizes: tuple[int, ...]) -> Tensor:
        return torch.zeros(sizes, device=self._device)
