"""Time that launches of a tunable took between two reports, by size class. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from retuned.runtime.tunables.records import canonical
from retuned.runtime_client.tunables import (
    SizeClassReport,
    StepCounts,
    TunableProcess,
    TunableReport,
)
from retuned.stages.hypothesis import UsedClass

Gain = Callable[[TunableReport, SizeClassReport], float]
_LEAST_STEPS = 8
"""Fewest steps from which launches of a step are known."""
_LONGEST = 1 << 20
"""Largest length of a geometry that is believed."""
_FASTEST_BYTES_PER_S = 8e12
"""Memory bandwidth of the fastest GPUs of 2026: no kernel reads its inputs in less time."""


def used_classes(
    definition: str,
    before: TunableProcess,
    now: TunableProcess,
    *,
    gain: Gain = lambda _report, _asked: 1.0,
) -> list[UsedClass]:
    """Return what the launches between two reports of one process took, by size class.

    Launches are more than were counted where the runtime counts in a share of the time only. It
    does not count replays of graphs: they follow from the steps of that size. A step has as many
    launches as steps of sizes without a graph, or as were captured: some sizes have two graphs.
    Their time is that of eager launches of the same class, or the time in which the fastest memory
    would deliver what they read.

    Parameters
    ----------
    gain
        Expected time of the server's choice over that of the best configuration.
    """
    report = now.tunables[definition]
    old = before.tunables.get(definition)
    counted = {canonical(each.axes): each for each in old.asked} if old is not None else {}
    found, scale = [], now.counted.scale_since(before.counted)
    each_step = _launches_a_step(report, old, before.steps, now.steps, scale=scale)
    for each in report.asked:
        was = counted.get(canonical(each.axes))
        eager = each.launches - each.captured - (was.launches - was.captured if was else 0)
        replays = _replays(each, before.steps, now.steps, each_step=each_step)
        launches = max(0.0, scale * eager + replays)
        mean_us = each.timed_us / each.timed if each.timed else 0.0
        if report.family == "attention" and each.captured:
            sequences = each.axes.get("sequences", 0)
            mean_us = max(mean_us, _reading_us(report, now, sequences=sequences))
        elif report.family == "moe" and each.captured:
            tokens = each.axes.get("tokens", 0)
            mean_us = max(mean_us, _weights_us(report.geometry, tokens=tokens))
        found.append(
            UsedClass(
                axes=each.axes,
                launches=launches,
                time_us=launches * mean_us,
                gain_ratio=gain(report, each),
                ready=each.ready,
                how=each.how,
                idle=0 if each.captured else each.idle - (was.idle if was else 0),
            )
        )
    return found


def _launches_a_step(
    report: TunableReport,
    old: TunableReport | None,
    before: StepCounts,
    now: StepCounts,
    *,
    scale: float,
) -> float | None:
    """Return how many launches a step has, from steps of sizes that no graph has; None without."""
    since = {canonical(each.axes): each.launches for each in old.asked} if old is not None else {}
    in_graphs = {_size_of(each) for each in report.asked if each.captured}
    launches: dict[int, float] = defaultdict(float)
    for each in report.asked:
        size = _size_of(each)
        if size is not None and size not in in_graphs:
            launches[size] += scale * (each.launches - since.get(canonical(each.axes), 0))
    steps = {size: _steps_since(before, now, size=size)[0] for size in launches}
    known = [size for size, count in steps.items() if count > 0]
    count = sum(steps[size] for size in known)
    if count < _LEAST_STEPS:
        return None
    return sum(launches[size] for size in known) / count


def _size_of(asked: SizeClassReport) -> int | None:
    """Return the upper end of the batch sizes of a class, in tokens."""
    return asked.axes.get("rows", asked.axes.get("tokens"))


def _steps_since(before: StepCounts, now: StepCounts, *, size: int) -> tuple[int, int]:
    """Return the steps of a size between two reports, and those of decode alone."""
    every, decode = now.sizes.get(str(size), (0, 0))
    every_before, decode_before = before.sizes.get(str(size), (0, 0))
    return every - every_before, decode - decode_before


def _replays(
    asked: SizeClassReport, before: StepCounts, now: StepCounts, *, each_step: float | None
) -> float:
    """Estimate the launches in replays of graphs that were captured in a size class."""
    size = _size_of(asked)
    if not asked.captured or not asked.sizes or size is None:
        return 0.0
    every, decode = _steps_since(before, now, size=size)
    steps = {None: every, 0: every - decode}.get(asked.axes.get("decode"), decode)
    captured = asked.captured / len(asked.sizes)
    return max(0, steps) * (captured if each_step is None else min(captured, each_step))


def _reading_us(report: TunableReport, process: TunableProcess, *, sequences: int) -> float:
    """Return the least time to read the keys and values of recent decode steps, microseconds."""
    alike = [
        sum(step.keys)
        for step in process.steps.recent
        if step.keys
        and all(each == 1 for each in step.queries)
        and sequences < 2 * len(step.queries) <= 2 * sequences
    ]
    heads, size = (_number(report.geometry.get(name)) for name in ("kv_heads", "head_size"))
    if not alike:
        return 0.0
    width = 1 if "8" in str(report.geometry.get("kv_dtype")) else 2
    read_bytes = 2 * width * heads * size * sum(alike) / len(alike)
    return 1e6 * read_bytes / _FASTEST_BYTES_PER_S


def _weights_us(geometry: Mapping[str, object], *, tokens: int) -> float:
    """Return the least time to read the weights that even routes choose, microseconds.

    Two products with a gate: three matrices of N times K an expert.
    """
    experts, width, hidden, top_k = (
        _number(geometry.get(name)) for name in ("E", "N", "K", "top_k")
    )
    if not (0 < top_k <= experts):
        return 0.0
    chosen = experts * (1.0 - (1.0 - top_k / experts) ** max(tokens, 0))
    dtype = str(geometry.get("dtype"))
    weight_bytes = 0.5 if "int4" in dtype else 1.0 if "8" in dtype else 2.0
    return 1e6 * chosen * 3 * width * hidden * weight_bytes / _FASTEST_BYTES_PER_S


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value <= _LONGEST else 0
