"""GPU time of a call, without the host's: many calls in one graph, over tensors that rotate.

A graph holds `launches` calls over several sets of tensors, so that large tensors come from memory
and small ones from the cache, as behind the kernel that wrote them. The device is kept busy before
each replay until the host is ahead.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[[Sequence[torch.Tensor]], object]
"""One launch, given one set of tensors."""

_ROTATED_BYTES = 160 << 20
"""Three times the cache of an H100."""
_MOST_SETS = 32
_LEAST_SETS = 3
_LAUNCHES = 32
_LEAD_CYCLES = 120_000


def sets_for(size_bytes: int) -> int:
    """Return how many sets of tensors rotate."""
    return max(_LEAST_SETS, min(_MOST_SETS, math.ceil(_ROTATED_BYTES / max(size_bytes, 1))))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A graph of calls."""

    graph: Any
    """``torch.cuda.CUDAGraph``."""
    launches: int
    """Calls in it."""
    kept: tuple[Any, ...]
    """What must live as long."""

    def replay_us(self) -> float:
        """Microseconds of one call, from one replay."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_LEAD_CYCLES)
        start.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / self.launches


def record(call: Call, sets: Sequence[Sequence[torch.Tensor]], stream: Any) -> Recorded:  # noqa: ANN401
    """Record calls over the sets; the first call of all runs before, to warm up."""
    launches = max(len(sets), min(_LAUNCHES, len(sets) * math.ceil(_LAUNCHES / len(sets))))
    graph = torch.cuda.CUDAGraph()
    kept = []
    with torch.cuda.stream(stream):
        call(sets[0])
        stream.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            kept = [call(sets[turn % len(sets)]) for turn in range(launches)]
        finally:
            graph.capture_end()
    recorded = Recorded(graph, launches, tuple(kept))
    recorded.replay_us()
    return recorded


def quick_us(recorded: Recorded, *, replays: int = 5) -> float:
    """Return the median of a few replays."""
    return statistics.median(recorded.replay_us() for _ in range(replays))


def interleaved_us(
    sides: Mapping[str, Recorded], *, blocks: int, seed: int
) -> dict[str, list[float]]:
    """Replay every side once a block, in an order that changes by chance."""
    chance = random.Random(seed)
    names = list(sides)
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(blocks):
        chance.shuffle(names)
        for name in names:
            found[name].append(sides[name].replay_us())
    return found


def ratio_interval(
    slow: Sequence[float], fast: Sequence[float], *, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Return low, median and high of ``slow / fast`` over blocks: the sign test's interval."""
    ratios = sorted(a / b for a, b in zip(slow, fast, strict=True))
    count = len(ratios)
    below, tail = 0, 0.0
    while True:  # the most ratios that may be left off at each end
        tail += math.comb(count, below) * 0.5**count
        if tail > (1.0 - confidence) / 2.0 or below >= count // 2:
            break
        below += 1
    off = max(below - 1, 0)
    return ratios[off], statistics.median(ratios), ratios[count - 1 - off]
