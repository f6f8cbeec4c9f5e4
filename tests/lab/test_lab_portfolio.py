"""The lab asks its generators in turns, and a kill between two turns forgets none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_naming

from retuned import catalog
from retuned.contract import Definition, Solution, Workload
from retuned.errors import HarnessError, MissingDependency, TemporaryError
from retuned.experiment.local import LocalLab
from retuned.lab.generators.fixed import GivenGenerator
from retuned.lab.languages.cpu_cpp import cpu_environment
from retuned.lab.resources import LabSettings
from retuned.lab.session import Session
from retuned.ports import Finding, Generator
from retuned.stages.experiment import Budget, ExperimentPlan, TurnOutcome

NAME = "rmsnorm_h64"
ENTRY = catalog.get(NAME)


def plan(*generators: str, id: str = "sha256:" + "7" * 64) -> ExperimentPlan:
    return ExperimentPlan(
        id=id,
        hypothesis="h",
        definition=NAME,
        workloads=(Workload(definition=NAME, axes={"M": 16}),),
        incumbent=ENTRY.incumbent.digest,
        generators=generators,
        budget=Budget(max_candidates=8, max_seconds=120.0, finalists=1),
        environment=cpu_environment().digest,
    )


def candidates() -> list[Solution]:
    points = [
        ENTRY.solution(space.name, params)
        for space in ENTRY.spaces
        for params in space.starts({"M": 16})
    ]
    others = {each.digest: each for each in points if each.digest != ENTRY.incumbent.digest}
    return list(others.values())[:2]


class Broken:
    """Raises what nobody expects."""

    name = "broken"

    def propose(
        self,
        definition: Definition,
        workloads: Sequence[Workload],
        *,
        history: Sequence[Finding],
        count: int,
    ) -> Sequence[Solution]:
        raise ZeroDivisionError("its own mistake")


def unavailable(_plan: ExperimentPlan) -> Generator:
    raise MissingDependency("needs a package: pip install it")


def lab(root: Path) -> LocalLab:
    generators: dict[str, Callable[[ExperimentPlan], Generator]] = {
        "given": lambda _plan: GivenGenerator(candidates()),
        "broken": lambda _plan: Broken(),
        "absent": unavailable,
    }
    return LocalLab(
        root,
        subjects=catalog.get,
        solutions={ENTRY.incumbent.digest: ENTRY.incumbent}.get,
        generators=generators,
        lab=LabSettings(search_s=0.1, final_s=0.3),
    )


def test_generators_that_fail_end_no_experiment_and_every_turn_is_recorded(tmp_path: Path) -> None:
    here = lab(tmp_path)
    wanted = plan("broken", "absent", "given")
    found = list(here.run(wanted, known={}))
    assert {each.solution.digest for each in found} == {each.digest for each in candidates()}
    turns = here.turns(wanted.id)
    assert [turn.number for turn in turns] == list(range(1, len(turns) + 1))
    outcomes = {turn.generator: turn.outcome for turn in turns[:2]}
    assert outcomes == {"broken": TurnOutcome.FAILED, "absent": TurnOutcome.FAILED}
    tried = [turn for turn in turns if turn.outcome is TurnOutcome.TRIED]
    assert [turn.tried for turn in tried] == [2]
    assert tried[0].seconds > 0.0
    assert turns[-1].outcome is TurnOutcome.EXHAUSTED


def test_a_lab_that_was_ready_late_tries_one_candidate_all_the_same(tmp_path: Path) -> None:
    budget = Budget(max_candidates=8, max_seconds=1e-6, finalists=1)
    late = plan("given").model_copy(update={"budget": budget})
    (found,) = lab(tmp_path).run(late, known={})
    assert found.solution.digest == candidates()[0].digest
    assert list(lab(tmp_path / "again").run(late, known={found.solution.digest: found})) == []


class Rests(GivenGenerator):
    """Cannot answer the first time."""

    def __init__(self) -> None:
        super().__init__(candidates()[:1])
        self.asked = 0

    def propose(self, *args: Any, **words: Any) -> Sequence[Solution]:
        self.asked += 1
        if self.asked == 1:
            raise TemporaryError("busy", delay_s=0.05)
        return super().propose(*args, **words)


def test_a_search_waits_a_moment_for_the_only_generator_that_has_something(
    tmp_path: Path,
) -> None:
    here = LocalLab(
        tmp_path,
        subjects=catalog.get,
        solutions={ENTRY.incumbent.digest: ENTRY.incumbent}.get,
        generators={"model": lambda _plan: Rests()},
        lab=LabSettings(search_s=0.02, final_s=0.1),
    )
    found = list(here.run(plan("model"), known={}))
    assert {each.solution.digest for each in found} == {candidates()[0].digest}


def test_where_every_generator_fails_nothing_may_be_concluded(tmp_path: Path) -> None:
    with raises_naming(
        HarnessError, "broken: ", "ZeroDivisionError", "absent: ", "MissingDependency"
    ):
        list(lab(tmp_path).run(plan("broken", "absent"), known={}))


class Killed(BaseException):
    """kill -9: nothing may catch it."""


def test_turns_survive_a_kill_and_are_not_taken_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = plan("given", "broken", id="sha256:" + "8" * 64)
    decide = Session.decide

    def killed(self: Session, *args: Any, **kwargs: Any) -> Iterator[Finding]:
        raise Killed

    monkeypatch.setattr(Session, "decide", killed)
    with pytest.raises(Killed):
        list(lab(tmp_path).run(wanted, known={}))
    before = lab(tmp_path).turns(wanted.id)
    monkeypatch.setattr(Session, "decide", decide)
    list(lab(tmp_path).run(wanted, known={}))
    after = lab(tmp_path).turns(wanted.id)
    assert after[: len(before)] == before
    proposed = [digest for turn in after for digest in turn.proposed]
    assert len(set(proposed)) == len(proposed)
    assert [turn.outcome for turn in before if turn.generator == "broken"] == [TurnOutcome.FAILED]


def test_a_plan_that_nobody_ran_has_no_turns(tmp_path: Path) -> None:
    assert lab(tmp_path).turns("sha256:" + "9" * 64) == ()
