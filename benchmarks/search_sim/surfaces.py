"""A surface: every point of a kernel's spaces with its time, measured or made up."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retuned import catalog
from retuned.contract import (
    AxisVar,
    Definition,
    DType,
    Language,
    Solution,
    SourceFile,
    TensorSpec,
    Workload,
)
from retuned.lab.generators.spaces import Grid, Params, Point, Tunable

KINDS = ("ridge", "cliff", "rugged", "sparse", "words")
"""What synthetic surfaces are hard by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """What a search meets."""

    name: str
    kind: str
    """``recorded`` or one of `KINDS`."""
    part: str
    """``tuning`` or ``held-out``."""
    tunable: Tunable
    axes: Mapping[str, int]
    times_us: Mapping[Point, float | None]
    """True time of every point; None where it cannot be built."""
    noise: float
    """Standard deviation of one measured log ratio."""

    @property
    def best_us(self) -> float:
        """The exhaustive best."""
        return min(took for took in self.times_us.values() if took is not None)

    @property
    def incumbent_us(self) -> float:
        """Time of the incumbent."""
        incumbent = self.tunable.incumbent
        point = Grid(self.tunable, cores=1).point(incumbent.structure, incumbent.params)
        assert point is not None, "incumbents are on their grid"
        took = self.times_us[point]
        assert took is not None, "incumbents can be built"
        return took

    @property
    def workloads(self) -> list[Workload]:
        """The one shape."""
        return [Workload(definition=self.tunable.definition.name, axes=dict(self.axes))]


def recorded(body: Mapping[str, Any], *, guesses: bool, tuning: Sequence[str]) -> list[Surface]:
    """Return the surfaces of a recording, one a shape; those whose name is in `tuning` are that."""
    entry = catalog.get(str(body["definition"]))
    tunable = entry if guesses else _without_guesses(entry)
    grid = Grid(tunable, cores=1)
    found = []
    for label in next(iter(body["points"]))["median_us"]:
        times: dict[Point, float | None] = {}
        for each in body["points"]:
            point = grid.point(each["structure"], each["params"])
            if point is not None:
                times[point] = float(each["median_us"][label])
        name = f"{body['definition']} {label}"
        found.append(
            Surface(
                name=name + ("" if guesses else ", no guesses"),
                kind="recorded",
                part="tuning" if body["definition"] in tuning else "held-out",
                tunable=tunable,
                axes=_axes(label, entry.definition),
                times_us=times,
                noise=0.01,
            )
        )
    return [surface for surface in found if len(surface.times_us) >= 0.95 * len(grid.points)]


def _axes(label: str, definition: Definition) -> dict[str, int]:
    """Read lengths as ``64`` or as ``T=64 S=256``."""
    if "=" not in label:
        return dict.fromkeys(definition.variable_axes, int(label))
    pairs = (part.partition("=") for part in label.split())
    return {name: int(length) for name, _, length in pairs}


def _without_guesses(entry: catalog.KernelEntry) -> catalog.KernelEntry:
    spaces = tuple(
        dataclasses.replace(space, starts=lambda _axes: (), rank=lambda _axes: 0)
        for space in entry.spaces
    )
    return dataclasses.replace(entry, spaces=spaces)


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpSpace:
    """One structure of a synthetic kernel."""

    name: str
    params: Mapping[str, tuple[int | str, ...]]
    starts: Callable[[Mapping[str, int]], tuple[Params, ...]] = lambda _axes: ()
    rank: Callable[[Mapping[str, int]], int] = lambda _axes: 0

    def constraints(self, params: Params, definition: Definition) -> bool:
        """Whether the point is in the space."""
        del definition
        return all(value in self.params[name] for name, value in params.items())


@dataclass(frozen=True, slots=True)
class MadeUp:
    """A synthetic kernel: nothing of it is ever compiled."""

    spaces: tuple[MadeUpSpace, ...]
    incumbent_at: tuple[str, Params]
    definition: Definition = field(
        default_factory=lambda: Definition(
            name="synthetic",
            op_type="synthetic",
            axes={"M": AxisVar()},
            inputs={"x": TensorSpec(shape=("M",), dtype=DType.FLOAT32)},
            outputs={"y": TensorSpec(shape=("M",), dtype=DType.FLOAT32)},
            reference="",
        )
    )

    @property
    def incumbent(self) -> Solution:
        """Variant that the others are measured against."""
        return self.solution(*self.incumbent_at)

    def solution(self, structure: str, params: Params) -> Solution:
        """Return the variant at one point."""
        return Solution(
            name="synthetic",
            definition="synthetic",
            language=Language.CPU_CPP,
            entry="kernel",
            sources=(SourceFile(path="kernel.cpp", content="none"),),
            structure=structure,
            params=dict(params),
        )


def synthetic(kind: str, seed: int, *, part: str) -> Surface:
    """Make a surface up; the same kind and seed are the same surface."""
    chance = random.Random(f"{kind}:{seed}")
    spaces = tuple(_space(kind, f"s{number}", chance) for number in range(chance.randint(1, 2)))
    laws = {space.name: _Law(kind, space, chance) for space in spaces}
    times: dict[Point, float | None] = {}
    for space in spaces:
        sizes = [range(len(choices)) for choices in space.params.values()]
        for places in itertools.product(*sizes):
            times[Point(space.name, places)] = laws[space.name].time_us(places)
    built = sorted(
        (point for point, took in times.items() if took is not None),
        key=lambda point: (times[point], point),
    )
    # The incumbent is as good as a carefully written kernel: better than three in four points.
    incumbent = built[len(built) // 4]
    params = next(space.params for space in spaces if space.name == incumbent.structure)
    at = {n: c[i] for (n, c), i in zip(params.items(), incumbent.places, strict=True)}
    return Surface(
        name=f"{kind} {seed}",
        kind=kind,
        part=part,
        tunable=MadeUp(spaces, (incumbent.structure, at)),
        axes={"M": 64},
        times_us=times,
        noise=0.01,
    )


def _space(kind: str, name: str, chance: random.Random) -> MadeUpSpace:
    count = 4 if kind != "sparse" else 5
    params: dict[str, tuple[int | str, ...]] = {}
    for number in range(count):
        if kind == "words" and number < 2:
            params[f"W{number}"] = tuple(chance.sample(["ab", "cd", "ef", "gh", "ij"], 4))
            continue
        size = chance.randint(2, 5) if kind != "sparse" else chance.randint(2, 3)
        label = f"BLOCK_{'MNKHQR'[number]}" if number < 3 else f"OPTION{number}"
        first = chance.choice([1, 2, 16])
        params[label] = tuple(first << step for step in range(size))
    return MadeUpSpace(name=name, params=params)


class _Law:
    """How one structure's time follows from the places of its parameters."""

    def __init__(self, kind: str, space: MadeUpSpace, chance: random.Random) -> None:
        self._kind = kind
        self._seed = f"{kind}:{space.name}:{chance.random()}"
        self._sizes = [len(choices) for choices in space.params.values()]
        axes = range(len(self._sizes))
        strength = {"sparse": 0.0}.get(kind, 0.08)
        self._bends = [
            chance.uniform(0.0, strength) if kind != "sparse" or axis > 1 else 0.25 for axis in axes
        ]
        self._best = [chance.uniform(0, size - 1) for size in self._sizes]
        words = [name.startswith("W") for name in space.params]
        self._words = [
            [chance.gauss(0.0, 0.2) for _ in range(size)] if word else []
            for size, word in zip(self._sizes, words, strict=True)
        ]
        self._pairs = [
            (a, b, chance.uniform(0.05, 0.25), chance.uniform(0.0, 1.0))
            for a, b in itertools.combinations(axes, 2)
            if chance.random() < {"ridge": 0.8, "cliff": 0.4}.get(kind, 0.3)
        ]
        reach = sum(size - 1 for size in self._sizes[:3])
        self._spills = chance.uniform(0.5, 0.75) * reach
        self._bursts = self._spills + chance.uniform(0.1, 0.2) * reach
        self._base = math.log(100.0) + chance.gauss(0.0, 0.15)

    def time_us(self, places: Sequence[int]) -> float | None:
        """Return the time; None where the point cannot be built."""
        total = self._base
        for place, best, bend, words in zip(
            places, self._best, self._bends, self._words, strict=True
        ):
            total += words[place] if words else bend * (place - best) ** 2
        for a, b, strength, tilt in self._pairs:
            wanted = self._best[a] + tilt * self._best[b]
            total += strength * abs(places[a] + tilt * places[b] - wanted)
        held = sum(places[:3])
        if self._kind == "cliff":
            if held > self._bursts:
                return None
            if held > self._spills:
                total += math.log(3.0)
            total -= 0.12 * held  # larger is better until it spills
        if self._kind == "rugged":
            total += random.Random(f"{self._seed}:{tuple(places)}").gauss(0.0, 0.06)
        return math.exp(total)
