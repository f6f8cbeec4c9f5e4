"""The judge on simulated clocks: real decisions over times drawn from a noise model or a recording.

Only the clock is simulated. Looks, statistics, settling and verdict are the product's own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from retuned.contract import Workload
from retuned.lab.evidence import adjusted_p_values, final_timing, gather, p_value
from retuned.lab.examiner import Timed
from retuned.lab.resources import LabSettings
from retuned.lab.statistics import ShapeSamples
from retuned.stages.verdict import Check, Evidence, JudgeSettings, Verdict, is_settled, judge

Floats = npt.NDArray[np.float64]
RECORDED = Path(__file__).resolve().parents[1] / "data" / "judge" / "clone_times.json"
PASSED = tuple(Check(gate=f"G{number}") for number in range(7))
CANDIDATE, INCUMBENT = "sha256:" + "c" * 64, "sha256:" + "d" * 64
BASE_US = 100.0


class Noise(Protocol):
    """What a clock adds to a time."""

    def pairs(self, random: np.random.Generator, count: int) -> Floats:
        """Return factors of `count` neighbouring pairs of equal launches, two columns."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Modelled:
    """A clock that drifts slowly (AR(1)), jitters, and is interrupted now and then."""

    drift: float = 0.015
    """Standard deviation of the drift, relative."""
    memory: float = 0.98
    """Correlation of neighbouring launches."""
    jitter: float = 0.005
    """Standard deviation of each launch, relative."""
    spikes: float = 0.01
    """Share of launches that are interrupted."""
    spike: float = 0.5
    """Mean length of an interruption, relative."""

    def pairs(self, random: np.random.Generator, count: int) -> Floats:
        """See `Noise.pairs`; pairs come from ABBA units."""
        calls = 4 * -(-count // 2)
        drift = self._drift(random, calls)
        hit = random.random(calls) < self.spikes
        spikes = np.where(hit, random.exponential(self.spike, calls), 0.0)
        factors = np.exp(drift + random.normal(0.0, self.jitter, calls)) * (1.0 + spikes)
        units = factors.reshape(-1, 4)
        outer, inner = units[:, [0, 3]], units[:, [1, 2]]
        flip = random.random((len(units), 1)) < 0.5  # by chance the other side comes first
        first, second = np.where(flip, inner, outer), np.where(flip, outer, inner)
        return np.stack([first.ravel(), second.ravel()], axis=1)[:count]

    def _drift(self, random: np.random.Generator, calls: int) -> Floats:
        """Draw the slow part, in runs short enough that powers of its memory stay exact."""
        steps = random.normal(0.0, self.drift * math.sqrt(1 - self.memory**2), calls)
        value, parts = float(random.normal(0.0, self.drift)), []
        for start in range(0, calls, 256):
            taken = steps[start : start + 256]
            fade = self.memory ** np.arange(1, len(taken) + 1)
            parts.append(fade * (value + np.cumsum(taken / fade)))
            value = float(parts[-1][-1])
        return np.concatenate(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Pairs of identical kernels as this project's lab timed them, replayed from random places."""

    series: tuple[Floats, ...]
    """Per shape: incumbent and clone, in the order in which they were timed, relative."""

    def pairs(self, random: np.random.Generator, count: int) -> Floats:
        """See `Noise.pairs`."""
        chosen = self.series[int(random.integers(len(self.series)))]
        start = int(random.integers(len(chosen)))
        taken = np.take(chosen, range(start, start + count), axis=0, mode="wrap")
        flip = random.random(count) < 0.5  # which of two identical kernels is which
        taken[flip] = taken[flip][:, ::-1]
        return taken


def recorded(path: Path = RECORDED) -> Recorded:
    """Read a recording."""
    body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    series = [np.array(row["pairs_us"], dtype=np.float64) for row in body["shapes"]]
    return Recorded(series=tuple(pairs / np.median(pairs) for pairs in series))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is true of one shape."""

    speedup: float
    """Incumbent over candidate."""
    base_us: float = BASE_US
    """Time of the incumbent."""
    weight: float = 1.0
    """Launches per second."""
    placement: float = 0.0
    """Standard deviation of what a process adds to the log ratio, by where its code lies."""
    floor_us: float = 0.0
    """What physics allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """How one finalist ended."""

    verdict: Verdict
    """The judge's answer."""
    looks: int
    """How often it was looked at."""


def simulate(
    random: np.random.Generator,
    shapes: Sequence[Shape],
    *,
    noise: Noise,
    units: int = 6,
    lab: LabSettings | None = None,
    settings: JudgeSettings | None = None,
    finalists: int = 1,
) -> Simulated:
    """Measure a finalist until it is settled or processes are used up, and judge it.

    Parameters
    ----------
    units
        ABBA units per block of the candidate; clones get a third of them, as in the lab.
    finalists
        How many there are: their chances of a mistake add up.
    """
    (answer,) = tournament(
        random, [shapes], noise=noise, units=units, lab=lab, settings=settings, others=finalists - 1
    )
    return answer


def tournament(
    random: np.random.Generator,
    finalists: Sequence[Sequence[Shape]],
    *,
    noise: Noise,
    units: int = 6,
    lab: LabSettings | None = None,
    settings: JudgeSettings | None = None,
    others: int = 0,
) -> list[Simulated]:
    """Measure several finalists and judge them together, as one experiment does."""
    lab, settings = lab or LabSettings(), settings or JudgeSettings()
    count = len(finalists) + others
    timed = [
        _measure(random, shapes, noise=noise, units=units, lab=lab, settings=settings, count=count)
        for shapes in finalists
    ]
    adjusted = adjusted_p_values(timed, settings)
    return [
        Simulated(
            verdict=_judged(each, shapes, adjusted_p=p, count=count, settings=settings),
            looks=each.looks,
        )
        for each, shapes, p in zip(timed, finalists, adjusted, strict=True)
    ]


def _measure(
    random: np.random.Generator,
    shapes: Sequence[Shape],
    *,
    noise: Noise,
    units: int,
    lab: LabSettings,
    settings: JudgeSettings,
    count: int,
) -> Timed:
    blocks = -(-lab.final_blocks // lab.processes)
    rows: list[tuple[list[Floats], list[Floats]]] = [([], []) for _ in shapes]
    owners: list[int] = []
    timed, looks = Timed(checks=PASSED[-1:]), 0
    for process in range(max(lab.processes, lab.most_processes)):
        owners += [process] * blocks
        placed = random.normal(size=2)  # all shapes of a process run the same code
        for shape, (candidate, clone) in zip(shapes, rows, strict=True):
            luck = np.exp(shape.placement * placed)
            for _ in range(blocks):
                drawn = shape.base_us * noise.pairs(random, 2 * (units + max(1, units // 3)))
                drawn[: 2 * units, 1] /= shape.speedup * luck[0]
                drawn[2 * units :, 1] /= luck[1]
                candidate.append(drawn[: 2 * units])
                clone.append(drawn[2 * units :])
        if process + 1 < lab.processes:
            continue
        looks += 1
        timed = Timed(
            checks=PASSED[-1:],
            samples=tuple(_samples(s, row[0], owners) for s, row in zip(shapes, rows, strict=True)),
            clones=tuple(_samples(s, row[1], owners) for s, row in zip(shapes, rows, strict=True)),
            shapes=tuple(range(len(shapes))),
            processes=process + 1,
            looks=looks,
        )
        adjusted = min(1.0, count * p_value(timed, settings))
        if is_settled(
            _evidence(timed, shapes, adjusted_p=adjusted, count=count, settings=settings), settings
        ):
            break
    return timed


def _samples(shape: Shape, blocks: Sequence[Floats], owners: Sequence[int]) -> ShapeSamples:
    pairs = np.concatenate(blocks)
    return ShapeSamples(
        weight=shape.weight,
        incumbent_us=pairs[:, 0],
        candidate_us=pairs[:, 1],
        block=np.repeat(np.arange(len(blocks)), [len(block) for block in blocks]),
        process=np.array(owners),
    )


def _evidence(
    timed: Timed,
    shapes: Sequence[Shape],
    *,
    adjusted_p: float,
    count: int,
    settings: JudgeSettings,
) -> Evidence:
    lengths = [2 ** (3 * index + 1) for index in range(len(shapes))]
    floors = dict(zip(lengths, (shape.floor_us for shape in shapes), strict=True))
    timing = final_timing(
        timed,
        workloads=[
            Workload(definition="toy", axes={"M": length}, weight=shape.weight)
            for length, shape in zip(lengths, shapes, strict=True)
        ],
        floor=lambda axes: floors[axes["M"]],
        adjusted_p=adjusted_p,
        finalists=count,
        settings=settings,
    )
    return gather(CANDIDATE, INCUMBENT, checks=PASSED, finalist=True, timing=timing)


def _judged(
    timed: Timed,
    shapes: Sequence[Shape],
    *,
    adjusted_p: float,
    count: int,
    settings: JudgeSettings,
) -> Verdict:
    evidence = _evidence(timed, shapes, adjusted_p=adjusted_p, count=count, settings=settings)
    return judge(evidence, settings)
