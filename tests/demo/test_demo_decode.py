"""Captured decode steps: they answer as steps that are not captured, padding included."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.expect import raises_naming

torch = pytest.importorskip("torch", reason="the demo's model needs PyTorch")


from retuned.demo.batches import Chunk  # noqa: E402
from retuned.demo.decode import Decoding  # noqa: E402
from retuned.demo.model import Cache, DecoderModel  # noqa: E402
from retuned.demo.operators import Tensor, plain_operators  # noqa: E402
from retuned.demo.shapes import SHAPES  # noqa: E402

TINY = SHAPES["tiny"]
PROMPTS = [[(7 * n + k) % TINY.vocab for n in range(3 + 5 * k)] for k in range(5)]


def _attention(q: Tensor, keys: Tensor, values: Tensor, bases: Tensor, lengths: Tensor) -> Tensor:
    one = plain_operators().attention
    rows = [slice(base, base + n) for base, n in zip(bases, lengths, strict=True)]
    return torch.cat([one(q[i : i + 1], keys[at], values[at]) for i, at in enumerate(rows)])


class Captures:
    """Repeats by a new run, as a graph repeats; counts the runs of each step."""

    def __init__(self) -> None:
        self.replays = 0

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        run()

        def replay() -> None:
            self.replays += 1
            run()

        return replay


def _answers(model: DecoderModel, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    caches: list[Cache] = [model.new_cache() for _ in prompts]
    answers = [
        model.forward([Chunk(prompt, cache, True)])
        for prompt, cache in zip(prompts, caches, strict=True)
    ]
    for _ in range(count):
        chunks = [Chunk(a[-1:], cache, True) for a, cache in zip(answers, caches, strict=True)]
        for answer, token in zip(answers, model.forward(chunks), strict=True):
            answer.append(token)
    return answers


@pytest.mark.parametrize("sequences", [1, 2, 3, 4])
def test_a_captured_step_answers_as_one_that_is_not(sequences: int) -> None:
    captures = Captures()
    decoding = Decoding(attention=_attention, capture=captures, sizes=(1, 2, 4))
    captured = DecoderModel(TINY, plain_operators(), max_sequences=4, decoding=decoding)
    plain = DecoderModel(TINY, plain_operators(), max_sequences=4)
    expected = _answers(plain, PROMPTS[:sequences], 9)
    assert len({token for answer in expected for token in answer}) > 3
    assert _answers(captured, PROMPTS[:sequences], 9) == expected
    assert captures.replays == 9


def test_a_batch_beyond_the_largest_capture_is_not_captured() -> None:
    captures = Captures()
    decoding = Decoding(attention=_attention, capture=captures, sizes=(1, 2, 4))
    captured = DecoderModel(TINY, plain_operators(), max_sequences=8, decoding=decoding)
    plain = DecoderModel(TINY, plain_operators(), max_sequences=8)
    assert _answers(captured, PROMPTS, 4) == _answers(plain, PROMPTS, 4)
    assert captures.replays == 0


def test_captured_probabilities_that_are_not_finite_are_never_sampled() -> None:
    factor = [1.0]

    def silu_mul(x: Tensor) -> Tensor:
        return plain_operators().silu_mul(x) * factor[0]

    decoding = Decoding(attention=_attention, capture=Captures(), sizes=(1, 2))
    operators = replace(plain_operators(), silu_mul=silu_mul)
    model = DecoderModel(TINY, operators, max_sequences=2, decoding=decoding)
    cache = model.new_cache()
    model.forward([Chunk([1, 2, 3], cache, True)])
    factor[0] = float("nan")
    with raises_naming(FloatingPointError, "probabilities"):
        model.forward([Chunk([4], cache, True)])


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_triton_attention_is_that_of_pytorch() -> None:
    """In a process of its own: Triton reads at its import whether it interprets."""
    script = """
import torch
from retuned.demo.decode_attention import decode_attention
from tests.demo.test_demo_decode import _attention

torch.manual_seed(0)
q, keys, values = (torch.randn(n, 2, 32) for n in (5, 600, 600))
bases, lengths = torch.tensor([0, 100, 300, 599, 7]), torch.tensor([1, 65, 300, 1, 64])
found = decode_attention(q, keys, values, bases, lengths)
torch.testing.assert_close(found, _attention(q, keys, values, bases, lengths))
assert not torch.allclose(found, _attention(q, keys, values, bases, lengths.clamp(max=63)))
print("equal")
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "equal", done.stderr
