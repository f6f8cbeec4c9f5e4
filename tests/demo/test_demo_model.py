"""The decoder: chunks, batches and recycled caches must not show in its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.expect import raises_naming

torch = pytest.importorskip("torch", reason="the demo's model needs PyTorch")


from retuned.demo.batches import Chunk, EngineLimits, Progress  # noqa: E402
from retuned.demo.engine import Engine  # noqa: E402
from retuned.demo.model import Cache, DecoderModel  # noqa: E402
from retuned.demo.operators import Operators, Tensor, plain_operators  # noqa: E402
from retuned.demo.shapes import SHAPES  # noqa: E402

TINY = SHAPES["tiny"]


def _model(operators: Operators | None = None, *, sequences: int = 8) -> DecoderModel:
    return DecoderModel(TINY, operators or plain_operators(), max_sequences=sequences)


def _greedy(model: DecoderModel, prompt: Sequence[int], count: int, *, chunk: int) -> list[int]:
    cache = model.new_cache()
    for start in range(0, len(prompt), chunk):
        part = prompt[start : start + chunk]
        answer = model.forward([Chunk(part, cache, start + chunk >= len(prompt))])
    while len(answer) < count:
        answer += model.forward([Chunk(answer[-1:], cache, True)])
    return answer


def test_a_prompt_in_chunks_answers_as_in_one_piece() -> None:
    model, prompt = _model(), [(7 * n) % TINY.vocab for n in range(50)]
    whole = _greedy(model, prompt, 12, chunk=50)
    assert len(set(whole)) > 1, "an answer that never changes would prove nothing"
    for chunk in (1, 7, 49):
        assert _greedy(model, prompt, 12, chunk=chunk) == whole


def test_every_earlier_token_matters() -> None:
    model = _model()
    prompt = [(11 * n) % TINY.vocab for n in range(20)]
    other = [prompt[0] + 1, *prompt[1:]]
    assert _greedy(model, prompt, 12, chunk=64) != _greedy(model, other, 12, chunk=64)


def test_an_engine_answers_as_if_each_request_were_alone() -> None:
    requests = [([n * 5 % 128, n * 3 % 128, *range(n)], 3 + n % 5) for n in range(14)]
    alone = [_greedy(_model(), prompt, count, chunk=64) for prompt, count in requests]
    answers: dict[int, list[int]] = {}

    def deliver(news: Sequence[Progress]) -> None:
        for item in news:
            assert item.token is not None
            answers.setdefault(item.id, []).append(item.token)

    limits = EngineLimits(token_budget=16, max_running=4)
    engine: Engine[Cache] = Engine(_model(sequences=4), limits=limits, deliver=deliver)
    ids = [engine.submit(prompt, max_tokens=count) for prompt, count in requests]
    while engine.step() is not None:
        pass
    assert [answers[id] for id in ids] == alone


def test_the_same_seed_gives_the_same_model() -> None:
    assert _greedy(_model(), [1, 2, 3], 8, chunk=8) == _greedy(_model(), [1, 2, 3], 8, chunk=8)


def test_probabilities_that_are_not_finite_are_never_sampled() -> None:
    def broken(x: Tensor) -> Tensor:
        return x.chunk(2, dim=-1)[0] * float("nan")

    model = _model(replace(plain_operators(), silu_mul=broken))
    with raises_naming(FloatingPointError, "probabilities"):
        model.forward([Chunk([1, 2], model.new_cache(), True)])


def test_a_sequence_longer_than_its_cache_is_refused_before_anything_is_written() -> None:
    model = _model()
    cache = model.new_cache()
    with raises_naming(ValueError, "513", "512"):
        model.forward([Chunk([1] * 513, cache, True)])
    assert cache.used == 0


def test_more_caches_than_places_are_refused() -> None:
    model = _model(sequences=1)
    model.new_cache()
    with raises_naming(ValueError, "max_sequences"):
        model.new_cache()


def test_operators_get_contiguous_tensors_in_the_catalogs_order() -> None:
    plain, seen = plain_operators(), set()

    def watched(name: str) -> object:
        def call(*tensors: Tensor) -> Tensor:
            assert all(tensor.is_contiguous() for tensor in tensors), name
            seen.add((name, tuple(str(t.dtype) for t in tensors), tuple(t.dim() for t in tensors)))
            return getattr(plain, name)(*tensors)

        return call

    names = ("linear_w8", "rmsnorm", "silu_mul", "attention", "softmax")
    model = _model(Operators(**{name: watched(name) for name in names}))  # type: ignore[arg-type]
    a, b = model.new_cache(), model.new_cache()
    model.forward([Chunk([1, 2, 3], a, True), Chunk([4], b, True)])
    f32 = "torch.float32"
    assert seen == {
        ("linear_w8", (f32, "torch.int8", f32), (2, 2, 1)),
        ("rmsnorm", (f32, f32), (2, 1)),
        ("silu_mul", (f32,), (2,)),
        ("attention", (f32, f32, f32), (3, 3, 3)),
        ("softmax", (f32,), (2,)),
    }
