"""A Hugging Face Llama with random weights and Liger's kernels, as the demo's engine drives it.

Keys and values lie in one static pool, a row per sequence. A decode step runs the rows 0 to B - 1,
B being the smallest bucket that holds every sequence in the batch, so that its shape is one of a
few and it can be captured: one graph per bucket. Rows that decode nothing in a step write into the
pool's last column, which no sequence attends to. Prefill runs sequence by sequence, eagerly.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import bisect
import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from retuned.demo.batches import Chunk
from retuned.demo.shapes import ModelShape

Tensor = Any

SHAPES: Mapping[str, ModelShape] = {
    "gpu": ModelShape(
        layers=20, hidden=2048, heads=16, intermediate=5632, vocab=32000, max_tokens=767
    ),
    "tiny": ModelShape(layers=2, hidden=64, heads=2, intermediate=96, vocab=512, max_tokens=127),
}
"""Sizes by name: 1.16 billion parameters, and one for tests. One column of the pool is spare."""
BUCKETS = (1, 2, 4, 8, 16)
"""Rows of a decode step."""


@dataclass(slots=True)
class Row:
    """One sequence's row of the pool, recycled."""

    number: int
    """Of the row."""
    used: int = 0
    """Tokens in it."""

    def clear(self) -> None:
        """Forget the sequence."""
        self.used = 0


def build(shape: ModelShape, *, seed: int, device: str) -> Any:  # noqa: ANN401 - LlamaForCausalLM
    """Return the model: Liger's kernels, weights that the seed gives, bfloat16 on a GPU."""
    liger = importlib.import_module("liger_kernel.transformers")
    llama = importlib.import_module("transformers.models.llama")

    liger.apply_liger_kernel_to_llama(
        rope=True, cross_entropy=False, fused_linear_cross_entropy=False, rms_norm=True, swiglu=True
    )
    config = llama.LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.max_tokens + 1,
        attn_implementation="sdpa",
    )
    torch.manual_seed(seed)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = llama.modeling_llama.LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    model.requires_grad_(False).eval()
    generator = torch.Generator(device).manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator, device=device, dtype=torch.float32)
        scale = 0.1 if "norm" in name else weight.shape[-1] ** -0.5
        weight.copy_(noise * scale + (1.0 if "norm" in name else 0.0))
    return model


class _Pool:
    """Stands where Hugging Face's attention expects a cache: stores, and returns what to attend."""

    def __init__(self, shape: ModelShape, *, rows: int, like: Tensor) -> None:
        size = (rows, shape.heads, shape.max_tokens + 1, shape.head_dim)
        self.keys = [like.new_zeros(size) for _ in range(shape.layers)]
        self.values = [like.new_zeros(size) for _ in range(shape.layers)]
        self.store: Callable[[Tensor, Tensor], Tensor] = lambda pool, new: new

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys and values, [B, heads, n, width]."""
        return self.store(self.keys[layer], keys), self.store(self.values[layer], values)


class LiveModel:
    """The model behind the engine.

    Parameters
    ----------
    shape
        Sizes.
    max_sequences
        Rows of the pool, at most the largest bucket.
    seed
        Of the weights.
    device
        ``cuda``, or ``cpu`` for a dry run under Triton's interpreter.
    graphs
        Decode by replaying captured graphs.
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        max_sequences: int = 16,
        seed: int = 0,
        device: str = "cuda",
        graphs: bool = False,
    ) -> None:
        self.shape = shape
        self.device = device
        self._net = build(shape, seed=seed, device=device)
        self._buckets = [b for b in BUCKETS if b < max_sequences] + [max_sequences]
        self._numbers = iter(reversed(range(max_sequences)))
        self._pool = _Pool(shape, rows=max_sequences, like=self._net.lm_head.weight)
        self._columns = torch.arange(shape.max_tokens + 1, device=device)
        self._rows = torch.arange(max_sequences, device=device)
        self._graphs: dict[int, tuple[Any, Tensor, Tensor]] = {}
        self._ids = torch.zeros(max_sequences, dtype=torch.long, device=device)
        self._at = torch.full((max_sequences,), shape.max_tokens, device=device)
        self.steps: dict[int, int] = dict.fromkeys(self._buckets, 0)
        """Decode steps by bucket."""
        with torch.inference_mode():
            self._warm_up()
            if graphs:
                self.capture()

    @property
    def captured(self) -> list[int]:
        """Buckets that are replayed from graphs."""
        return sorted(self._graphs)

    # --- what the engine calls --------------------------------------------------------------------

    def new_cache(self) -> Row:
        """Return an empty row; the engine takes the last one first, which is row 0."""
        number = next(self._numbers, None)
        if number is None:
            raise ValueError("more rows than max_sequences; give the model a larger number")
        return Row(number)

    def forward(self, chunks: Sequence[Chunk[Row]]) -> list[int]:
        """Advance every chunk's sequence and return one token per chunk that asks for it.

        Raises
        ------
        FloatingPointError
            If a logit is not finite.
        ValueError
            If a sequence would outgrow its row.
        """
        for chunk in chunks:
            if chunk.cache.used + len(chunk.tokens) > self.shape.max_tokens:
                raise ValueError(f"a sequence outgrows the {self.shape.max_tokens} of its row")
        decoding = [c for c in chunks if len(c.tokens) == 1 and c.cache.used and c.sample]
        found: dict[int, Tensor] = {}
        with torch.inference_mode():
            if decoding:
                logits = self._decode(decoding)
                found = {c.cache.number: logits[c.cache.number] for c in decoding}
            for chunk in chunks:
                if chunk.cache.number not in found:
                    last = self._prefill(chunk)
                    if chunk.sample:
                        found[chunk.cache.number] = last
            for chunk in chunks:
                chunk.cache.used += len(chunk.tokens)
            wanted = [found[chunk.cache.number] for chunk in chunks if chunk.sample]
            return _tokens(wanted)

    def gaps(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """Return, for each token of an answer, how far its logit is below the largest one.

        The answer is taken as given, so that one near tie does not spoil what comes after it.
        """
        text = [*prompt, *tokens[:-1]]
        with torch.inference_mode(), self._storing(lambda _, new: new):
            ids = torch.tensor([text], device=self.device)
            at = torch.arange(len(text), device=self.device)
            mask = (self._columns[: len(text)] <= at[:, None])[None, None]
            hidden = self._run(ids, at[None], mask)[0, len(prompt) - 1 :]
            logits = self._net.lm_head(hidden).float()
            said = logits.gather(1, torch.tensor(tokens, device=self.device)[:, None])
            found: list[float] = (logits.max(-1, keepdim=True).values - said)[:, 0].tolist()
            return found

    # --- steps ------------------------------------------------------------------------------------

    def _decode(self, chunks: Sequence[Chunk[Row]]) -> Tensor:
        most = 1 + max(chunk.cache.number for chunk in chunks)
        bucket = self._buckets[bisect.bisect_left(self._buckets, most)]
        ids, at = [0] * bucket, [self.shape.max_tokens] * bucket
        for chunk in chunks:
            ids[chunk.cache.number] = chunk.tokens[0]
            at[chunk.cache.number] = chunk.cache.used
        self._ids[:bucket].copy_(torch.tensor(ids))
        self._at[:bucket].copy_(torch.tensor(at))
        self.steps[bucket] += 1
        captured = self._graphs.get(bucket)
        if captured is None:
            return self._rows_step(bucket)
        captured[0].replay()
        return captured[1]

    def _rows_step(self, bucket: int) -> Tensor:
        """One token for each of the first rows; reads and writes static tensors only."""
        ids, at, rows = self._ids[:bucket], self._at[:bucket], self._rows[:bucket]

        def store(pool: Tensor, new: Tensor) -> Tensor:
            pool[rows, :, at] = new[:, :, 0]
            return pool[:bucket]

        mask = (self._columns <= at[:, None])[:, None, None]
        with self._storing(store):
            return self._net.lm_head(self._run(ids[:, None], at[:, None], mask)[:, -1])

    def _prefill(self, chunk: Chunk[Row]) -> Tensor:
        row, start = chunk.cache.number, chunk.cache.used
        stop = start + len(chunk.tokens)

        def store(pool: Tensor, new: Tensor) -> Tensor:
            pool[row, :, start:stop] = new[0]
            return pool[row : row + 1, :, :stop]

        at = torch.arange(start, stop, device=self.device)
        mask = (self._columns[:stop] <= at[:, None])[None, None]
        ids = torch.tensor([list(chunk.tokens)], device=self.device)
        with self._storing(store):
            return self._net.lm_head(self._run(ids, at[None], mask)[0, -1])

    def _run(self, ids: Tensor, at: Tensor, mask: Tensor) -> Tensor:
        return self._net.model(
            input_ids=ids,
            position_ids=at,
            attention_mask=mask,
            past_key_values=self._pool,
            use_cache=True,
        ).last_hidden_state

    @contextmanager
    def _storing(self, store: Callable[[Tensor, Tensor], Tensor]) -> Any:  # noqa: ANN401
        self._pool.store = store
        try:
            yield
        finally:
            self._pool.store = lambda pool, new: new

    # --- before serving ---------------------------------------------------------------------------

    def _warm_up(self) -> None:
        """Launch every kind of step: Triton compiles before requests come."""
        for length in (1, 3, 32):
            self._prefill(Chunk([1] * length, Row(0), True))
        for bucket in self._buckets:
            self._rows_step(bucket)

    def capture(self) -> None:
        """Capture a decode step per bucket, the largest first: they share one memory pool."""
        memory = torch.cuda.graph_pool_handle()
        for bucket in reversed(self._buckets):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self._rows_step(bucket)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=memory):
                logits = self._rows_step(bucket)
            self._graphs[bucket] = (graph, logits, memory)


def _tokens(logits: Sequence[Tensor]) -> list[int]:
    if not logits:
        return []
    best = torch.stack(list(logits)).float().max(-1)
    if not bool(torch.isfinite(best.values).all()):
        raise FloatingPointError("the model's logits are not finite")
    found: list[int] = best.indices.tolist()
    return found
