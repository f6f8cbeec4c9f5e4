"""Steps that only decode, captured once for each batch size and replayed: without Python between.

A GPU runs such a step in less time than Python needs to launch its kernels one by one. So the
demo's server on a GPU captures them into graphs, as vLLM and SGLang do, and a smaller batch is
padded to the next captured size. Attention over the caches of all sequences is one launch here;
its lengths are read on the device, because a graph replays with the arguments of its capture.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from retuned.demo.operators import Tensor

Attention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""q[M,H,D], keys[R,H,D], values[R,H,D], bases[M], lengths[M] -> [M,H,D].

Sequence i sees the rows `bases[i]` to `bases[i] + lengths[i]`.
"""
Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Returns a function that repeats the device's work of the one it is given."""
SIZES = (1, 2, 4, 8, 16)
_WARM_UPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How steps that only decode run."""

    attention: Attention
    """For one new token of each sequence."""
    capture: Capture
    """Makes a step repeatable."""
    sizes: tuple[int, ...] = SIZES
    """Batch sizes to capture, ascending."""


class CapturedSteps:
    """One captured step for each batch size.

    Parameters
    ----------
    compute
        The step: [3, M] tokens, positions, and first rows of the caches -> [2, M] next tokens, and
        1 where all probabilities are finite.
    decoding
        How it is captured.
    spare
        First row of a cache that belongs to no sequence, for padding.
    device
        Where inputs and outputs are.
    """

    def __init__(
        self,
        compute: Callable[[Tensor], Tensor],
        *,
        decoding: Decoding,
        spare: int,
        device: torch.device,
    ) -> None:
        self._sizes, self._spare = decoding.sizes, spare
        self._steps = {
            size: _Step(compute, decoding.capture, size=size, spare=spare, device=device)
            for size in reversed(decoding.sizes)  # the largest first: the others use its memory
        }

    def takes(self, sequences: int) -> bool:
        """Whether a batch of so many sequences has a captured step."""
        return 0 < sequences <= self._sizes[-1]

    def run(self, tokens: Sequence[int], places: Sequence[int], bases: Sequence[int]) -> list[int]:
        """Run a step of one token for each sequence; return the next tokens.

        Raises
        ------
        FloatingPointError
            If a probability of a sequence is not finite.
        """
        size = self._sizes[bisect_left(self._sizes, len(tokens))]
        padding = size - len(tokens)
        rows = [
            [*tokens, *[0] * padding],
            [*places, *[0] * padding],
            [*bases, *[self._spare] * padding],
        ]
        found, finite = self._steps[size].run(rows)
        if not all(finite[: len(tokens)]):
            raise FloatingPointError("the model's probabilities are not finite")
        return found[: len(tokens)]


class _Step:
    """A step of one batch size, with the tensors that its capture reads and writes."""

    def __init__(
        self,
        compute: Callable[[Tensor], Tensor],
        capture: Capture,
        *,
        size: int,
        spare: int,
        device: torch.device,
    ) -> None:
        idle = [[0] * size, [0] * size, [spare] * size]
        self._inputs = torch.tensor(idle, device=device)
        self._outputs = torch.zeros((2, size), dtype=torch.int64, device=device)

        def once() -> None:
            self._outputs.copy_(compute(self._inputs))

        self._replay = capture(once)

    def run(self, rows: list[list[int]]) -> tuple[list[int], list[int]]:
        self._inputs.copy_(torch.tensor(rows))
        self._replay()
        found, finite = self._outputs.tolist()
        return found, finite


def gpu_decoding() -> Decoding:
    """Return decoding in CUDA or HIP graphs; HIP graphs have not run on hardware."""
    from retuned.demo.decode_attention import decode_attention

    return Decoding(attention=decode_attention, capture=capture_graph)


def capture_graph(run: Callable[[], None]) -> Callable[[], None]:
    """Capture what a function launches on the GPU; return the graph's replay."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # kernels are compiled and loaded outside a capture
        for _ in range(_WARM_UPS):
            run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay() -> None:
        graph.replay()

    return replay
