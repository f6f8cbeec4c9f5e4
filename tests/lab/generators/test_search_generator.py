"""The search, replayed over a recorded exhaustive measurement: no clock, no compiler."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from benchmarks.uniform import RandomGenerator
from tests.expect import raises_naming

from retuned import catalog
from retuned.catalog import KernelEntry
from retuned.contract import Solution, Workload
from retuned.errors import UsageError
from retuned.lab.generators import SearchGenerator
from retuned.lab.generators.spaces import Grid
from retuned.ports import Finding, Generator
from retuned.stages.verdict import Interval, Reason, ShapeResult, Status, Verdict

RECORDED = Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "linear_w8_space.json"
Key = tuple[str, tuple[tuple[str, int | str], ...]]
Make = Callable[[KernelEntry, int], Generator]


@cache
def recorded() -> dict[str, Any]:
    return dict(json.loads(RECORDED.read_text()))


def key_of(structure: str, params: Mapping[str, int | str]) -> Key:
    return structure, tuple(sorted(params.items()))


@cache
def times_us(rows: int) -> dict[Key, float]:
    return {
        key_of(point["structure"], point["params"]): point["median_us"][str(rows)]
        for point in recorded()["points"]
    }


def entry_of_the_record() -> KernelEntry:
    return catalog.get(recorded()["definition"])


def without_guesses(entry: KernelEntry) -> KernelEntry:
    """The same spaces with nothing known beforehand: starts in the middle, structures by name."""
    spaces = tuple(
        dataclasses.replace(space, starts=lambda _axes: (), rank=lambda _axes: 0)
        for space in entry.spaces
    )
    return dataclasses.replace(entry, spaces=spaces)


def finding(
    solution: Solution, incumbent: Solution, *, took_us: float | None, incumbent_us: float = 1.0
) -> Finding:
    shapes: tuple[ShapeResult, ...] = ()
    if took_us is not None:
        ratio = incumbent_us / took_us
        interval = Interval(lower=ratio, point=ratio, upper=ratio, confidence=0.99)
        shapes = (
            ShapeResult(
                axes={"M": 1},
                weight=1.0,
                incumbent_us=incumbent_us,
                candidate_us=took_us,
                speedup=interval,
            ),
        )
    verdict = Verdict(
        status=Status.REJECT,
        reason=Reason.LOST_SEARCH if shapes else Reason.COMPILE_FAILED,
        gate="G5",
        candidate=solution.digest,
        incumbent=incumbent.digest,
        shapes=shapes,
    )
    return Finding(solution=solution, verdict=verdict, seconds=0.1)


def replay(
    generator: Generator, entry: KernelEntry, *, rows: int, evaluations: int, batch: int = 1
) -> float:
    """Best recorded time found, as a share of the exhaustive best: 1 is the best itself."""
    times = times_us(rows)
    workloads = [Workload(definition=entry.definition.name, axes={"M": rows})]
    base = times[key_of(entry.incumbent.structure, entry.incumbent.params)]
    history: list[Finding] = []
    while len(history) < evaluations:
        proposed = generator.propose(
            entry.definition,
            workloads,
            history=history,
            count=min(batch, evaluations - len(history)),
        )
        if not proposed:
            break
        for solution in proposed:
            took = times[key_of(solution.structure, solution.params)]
            history.append(finding(solution, entry.incumbent, took_us=took, incumbent_us=base))
    best = min(times[key_of(f.solution.structure, f.solution.params)] for f in history)
    return min(times.values()) / best


def search(entry: KernelEntry, seed: int) -> Generator:
    return SearchGenerator(entry, cores=1, seed=seed)


def chance(entry: KernelEntry, seed: int) -> Generator:
    return RandomGenerator(entry, cores=1, seed=seed)


def test_the_record_holds_every_point_that_one_core_can_use() -> None:
    entry = entry_of_the_record()
    grid = Grid(entry, cores=1)
    assert len(grid.points) == len(recorded()["points"])
    assert {key_of(p.structure, grid.params(p)) for p in grid.points} == set(times_us(64))


@pytest.mark.parametrize("rows", [64, 256])
@pytest.mark.parametrize("batch", [1, 4])
def test_a_tenth_of_the_evaluations_finds_98_percent_of_the_best(rows: int, batch: int) -> None:
    entry = entry_of_the_record()
    allowed = len(times_us(rows)) // 10
    shares = [
        replay(search(entry, seed), entry, rows=rows, evaluations=allowed, batch=batch)
        for seed in range(5)
    ]
    assert min(shares) >= 0.98


@pytest.mark.parametrize("rows", [64, 256])
def test_without_first_guesses_it_still_finds_98_percent_and_beats_chance(rows: int) -> None:
    entry = without_guesses(entry_of_the_record())
    allowed = len(times_us(rows)) // 10

    def median_share(make: Make) -> float:
        return statistics.median(
            replay(make(entry, seed), entry, rows=rows, evaluations=allowed) for seed in range(9)
        )

    found = median_share(search)
    assert found >= 0.98
    assert found > median_share(chance)


@pytest.mark.parametrize("rows", [64, 256])
def test_the_first_five_proposals_already_beat_the_incumbent(rows: int) -> None:
    entry = entry_of_the_record()
    base = times_us(rows)[key_of(entry.incumbent.structure, entry.incumbent.params)]
    share = replay(search(entry, 0), entry, rows=rows, evaluations=5)
    assert min(times_us(rows).values()) / share < base / 1.1


def propose(
    generator: Generator, entry: KernelEntry, *, history: Sequence[Finding] = (), count: int = 8
) -> list[Solution]:
    workloads = [Workload(definition=entry.definition.name, axes={"M": 64})]
    return list(generator.propose(entry.definition, workloads, history=history, count=count))


@pytest.mark.parametrize("make", [search, chance])
def test_the_same_seed_and_history_give_the_same_proposals(make: Make) -> None:
    entry = catalog.get("linear_w8_n512_k512")
    first = propose(make(entry, 7), entry, count=40)
    again = propose(make(entry, 7), entry, count=40)
    assert [s.digest for s in first] == [s.digest for s in again]
    assert len({s.digest for s in first}) == 40


@pytest.mark.parametrize("make", [search, chance])
def test_nothing_is_proposed_twice_and_an_exhausted_space_ends_the_search(make: Make) -> None:
    entry = catalog.get("rmsnorm_h64")
    generator = make(entry, 3)
    history: list[Finding] = []
    while proposed := propose(generator, entry, history=history, count=5):
        history += [finding(s, entry.incumbent, took_us=1.0) for s in proposed]
    digests = [f.solution.digest for f in history]
    assert len(set(digests)) == len(digests)
    assert entry.incumbent.digest not in digests
    assert len(digests) == len(Grid(entry, cores=1).points) - 1


@pytest.mark.parametrize("make", [search, chance])
def test_no_variant_uses_more_threads_than_there_are_cores(make: Make) -> None:
    entry = catalog.get("silu_mul_i64")
    assert all(s.params["THREADS"] == 1 for s in propose(make(entry, 0), entry, count=99))
    both = propose(SearchGenerator(entry, cores=2, seed=0), entry, count=99)
    assert {s.params["THREADS"] for s in both} == {1, 2}


def test_panels_that_do_not_divide_the_outputs_are_never_proposed() -> None:
    entry = catalog.get("linear_w8_n48_k64")
    packed = SearchGenerator(entry, cores=1, seed=0, structures=("packed-panels",))
    assert {s.params["P"] for s in propose(packed, entry, count=500)} == {16}


def test_first_guesses_follow_the_shapes() -> None:
    entry = catalog.get("linear_w8_n512_k512")
    generator = SearchGenerator(entry, cores=1, seed=0)

    def first(*lengths: tuple[int, float]) -> str:
        workloads = [
            Workload(definition=entry.definition.name, axes={"M": rows}, weight=weight)
            for rows, weight in lengths
        ]
        return generator.propose(entry.definition, workloads, history=[], count=1)[0].structure

    assert first((256, 1.0)) == "packed-panels"
    # at M = 1 the first guess of row-dots is the incumbent itself, which is not proposed again
    assert first((1, 1.0)) == "packed-panels"
    assert first((1, 100.0), (256, 10.0)) == "packed-panels"


def test_a_structure_that_cannot_be_built_gets_no_second_guess() -> None:
    entry = catalog.get("linear_w8_n512_k512")
    generator = SearchGenerator(entry, cores=1, seed=0)
    firsts = propose(generator, entry, count=3)
    assert len({s.structure for s in firsts}) == 3
    history = [
        finding(s, entry.incumbent, took_us=0.5 if s.structure == "panels" else None)
        for s in firsts
    ]
    following = propose(generator, entry, history=history, count=2)
    assert {s.structure for s in following} == {"panels"}


def test_a_restricted_search_stays_in_its_structures() -> None:
    entry = catalog.get("linear_w8_n512_k512")
    generator = SearchGenerator(entry, cores=1, seed=0, structures=("panels",))
    assert {s.structure for s in propose(generator, entry, count=30)} == {"panels"}
    with raises_naming(UsageError, "linear_w8_n512_k512", "['magic']", "'packed-panels'"):
        SearchGenerator(entry, cores=1, seed=0, structures=("magic",))


@pytest.mark.parametrize("make", [search, chance])
def test_another_definition_is_refused(make: Make) -> None:
    generator = make(catalog.get("rmsnorm_h64"), 0)
    with raises_naming(UsageError, "rmsnorm_h64", "rmsnorm_h65"):
        propose(generator, catalog.get("rmsnorm_h65"))


def test_a_search_without_workloads_is_refused() -> None:
    entry = catalog.get("rmsnorm_h64")
    with raises_naming(UsageError, "rmsnorm_h64", "workload"):
        search(entry, 0).propose(entry.definition, [], history=[], count=1)
