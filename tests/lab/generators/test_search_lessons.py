"""Failures steer: out of memory means smaller, wrong means another structure."""

from __future__ import annotations

import math

from retuned import catalog
from retuned.contract import Solution, Workload
from retuned.lab.generators import SearchGenerator
from retuned.lab.generators.search_heuristics import learn
from retuned.lab.generators.spaces import Grid
from retuned.ports import Finding
from retuned.stages.verdict import Interval, Reason, Status, Verdict

ENTRY = catalog.get("linear_w8_n512_k512")
WORKLOADS = [Workload(definition=ENTRY.definition.name, axes={"M": 64})]


def finding(solution: Solution, reason: Reason, *, ratio: float | None = None) -> Finding:
    speedup = None
    if ratio is not None:
        speedup = Interval(lower=ratio, point=ratio, upper=ratio, confidence=0.95)
    verdict = Verdict(
        status=Status.REJECT,
        reason=reason,
        gate="G4",
        candidate=solution.digest,
        incumbent=ENTRY.incumbent.digest,
        speedup=speedup,
    )
    return Finding(solution=solution, verdict=verdict, seconds=0.1)


def everything(generator: SearchGenerator, history: list[Finding]) -> list[Solution]:
    return list(generator.propose(ENTRY.definition, WORKLOADS, history=history, count=5000))


def test_what_holds_no_less_than_a_point_that_ran_out_is_not_tried() -> None:
    panels = {"P": 32, "TILE": 4, "CHUNK": 64, "VEC": 64, "THREADS": 1}
    tried = ENTRY.solution("panels", panels)
    grid = Grid(ENTRY, cores=1)
    lessons = learn([finding(tried, Reason.OUT_OF_MEMORY)], grid)

    def allowed(**changes: int) -> bool:
        point = grid.point("panels", {**panels, **changes})
        assert point is not None
        return lessons.allow(point)

    assert not allowed()
    assert not allowed(TILE=6)
    assert not allowed(CHUNK=128)
    assert allowed(TILE=2)
    assert allowed(P=16, TILE=8)
    assert allowed(VEC=32)  # another width is another story
    generator = SearchGenerator(ENTRY, cores=1, seed=0, structures=("panels",))
    left = everything(generator, [finding(tried, Reason.OUT_OF_MEMORY)])
    assert left
    for each in left:
        sizes = [int(each.params[name]) for name in ("P", "TILE", "CHUNK")]
        same = each.params["VEC"] == 64
        assert not (same and sizes[0] >= 32 and sizes[1] >= 4 and sizes[2] >= 64)


def test_a_structure_of_which_everything_was_wrong_is_left_alone() -> None:
    grid = Grid(ENTRY, cores=1, structures=("panels",))
    wrong = [grid.solution(point) for point in sorted(grid.points)[:2]]
    history = [finding(each, Reason.WRONG_OUTPUT) for each in wrong]
    generator = SearchGenerator(ENTRY, cores=1, seed=0)
    assert "panels" not in {each.structure for each in everything(generator, history)}
    assert learn(history[:1], grid).hopeless == frozenset()


def test_one_that_worked_saves_its_structure_and_the_incumbent_s_is_never_given_up() -> None:
    grid = Grid(ENTRY, cores=1)
    panels = [grid.solution(p) for p in sorted(grid.points) if p.structure == "panels"][:3]
    mixed = [finding(each, Reason.WRONG_OUTPUT) for each in panels[:2]]
    mixed.append(finding(panels[2], Reason.SLOWER, ratio=0.5))
    assert learn(mixed, grid).hopeless == frozenset()
    dots = [grid.solution(p) for p in sorted(grid.points) if p.structure == "row-dots"][:4]
    assert ENTRY.incumbent.structure == "row-dots"
    assert learn([finding(d, Reason.WRONG_OUTPUT) for d in dots], grid).hopeless == frozenset()


def test_findings_of_an_earlier_experiment_are_known_and_not_tried_again() -> None:
    fresh = SearchGenerator(ENTRY, cores=1, seed=0)
    first = list(fresh.propose(ENTRY.definition, WORKLOADS, history=[], count=6))
    earlier = [finding(each, Reason.SLOWER, ratio=0.9) for each in first]
    taught = SearchGenerator(ENTRY, cores=1, seed=0, earlier=earlier)
    following = list(taught.propose(ENTRY.definition, WORKLOADS, history=[], count=6))
    assert not {each.digest for each in first} & {each.digest for each in following}
    as_history = list(fresh.propose(ENTRY.definition, WORKLOADS, history=earlier, count=6))
    assert [each.digest for each in following] == [each.digest for each in as_history]


def test_the_search_goes_where_the_measured_points_lead() -> None:
    generator = SearchGenerator(ENTRY, cores=1, seed=1, structures=("packed-panels",))
    history: list[Finding] = []
    for _ in range(10):
        for each in generator.propose(ENTRY.definition, WORKLOADS, history=history, count=4):
            # TILE 6 with P 32 is best, alone in its corner
            off = abs(math.log2(int(each.params["TILE"]) / 6))
            off += abs(math.log2(int(each.params["P"]) / 32))
            history.append(finding(each, Reason.LOST_SEARCH, ratio=1.5 * math.exp(-0.4 * off)))
    params = [f.solution.params for f in history]
    good = [each for each in params if each["TILE"] == 6 and each["P"] == 32]
    assert len(good) >= 8  # of twelve among more than two hundred points
