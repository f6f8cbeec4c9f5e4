"""An experiment that is killed pays no candidate twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from retuned import catalog
from retuned.contract import Solution, Workload
from retuned.experiment.local import LocalLab
from retuned.lab.examiner import Examiner
from retuned.lab.generators.fixed import GivenGenerator
from retuned.lab.journal import Note, Notebook
from retuned.lab.languages.cpu_cpp import cpu_environment
from retuned.lab.resources import LabSettings
from retuned.lab.session import Session
from retuned.ports import Finding
from retuned.stages.experiment import Budget, ExperimentPlan
from retuned.stages.verdict import Status

NAME = "rmsnorm_h64"
ENTRY = catalog.get(NAME)
PLAN = ExperimentPlan(
    id="sha256:" + "1" * 64,
    hypothesis="h",
    definition=NAME,
    workloads=(Workload(definition=NAME, axes={"M": 16}),),
    incumbent=ENTRY.incumbent.digest,
    generators=("given",),
    budget=Budget(max_candidates=8, max_seconds=240.0, finalists=1),
    environment=cpu_environment().digest,
)


class Killed(BaseException):
    """kill -9: nothing may catch it."""


def candidates() -> list[Solution]:
    points = [
        ENTRY.solution(space.name, params)
        for space in ENTRY.spaces
        for params in space.starts({"M": 16})
    ]
    others = {each.digest: each for each in points if each.digest != ENTRY.incumbent.digest}
    return list(others.values())[:2]


def lab(root: Path) -> LocalLab:
    return LocalLab(
        root,
        subjects=catalog.get,
        solutions={ENTRY.incumbent.digest: ENTRY.incumbent}.get,
        generators={"given": lambda _plan: GivenGenerator(candidates())},
        lab=LabSettings(search_s=0.1, final_s=0.3),
    )


def note(solution: Solution) -> Note:
    return Note(solution=solution, checks=(), interval=None, spent_s=1.5)


def test_candidates_that_passed_the_search_before_a_kill_are_not_searched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []
    search, decide = Examiner.search, Session.decide

    def counted(self: Examiner, variant: Any) -> Any:
        searched.append(variant.digest)
        return search(self, variant)

    def killed(self: Session, *args: Any, **kwargs: Any) -> Iterator[Finding]:
        raise Killed

    monkeypatch.setattr(Examiner, "search", counted)
    monkeypatch.setattr(Session, "decide", killed)
    with pytest.raises(Killed):
        list(lab(tmp_path).run(PLAN, known={}))
    assert set(searched) == {each.digest for each in candidates()}

    searched.clear()
    monkeypatch.setattr(Session, "decide", decide)
    found = list(lab(tmp_path).run(PLAN, known={}))
    assert searched == []
    assert {each.solution.digest for each in found} == {each.digest for each in candidates()}
    assert not any((tmp_path / "notes").iterdir()), "a plan at its end leaves no notes"


@pytest.mark.parametrize("failing", [False, True])
def test_the_artifact_of_a_winner_is_built_where_it_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: bool
) -> None:
    def decided(_: Session, contenders: list[Any], **__: Any) -> Iterator[Any]:
        for solution, status in zip(candidates(), (Status.PROMOTE, Status.REJECT), strict=True):
            yield SimpleNamespace(solution=solution, verdict=SimpleNamespace(status=status))

    monkeypatch.setattr(Session, "decide", decided)
    here = lab(tmp_path)
    if failing:
        (tmp_path / "artifacts").write_text("no folder")
    found = list(here.run(PLAN, known={}))
    assert len(found) == 2, "what cannot be built is built when it is ordered"
    if not failing:
        (built,) = (tmp_path / "artifacts").iterdir()
        assert built.name == found[0].solution.digest.removeprefix("sha256:")
        assert here.build(found[0].solution) == built


def test_notes_come_back_as_they_were_written(tmp_path: Path) -> None:
    written = [note(each) for each in candidates()]
    for each in written:
        Notebook(tmp_path / "n").write(each)
    read = list(Notebook(tmp_path / "n").read())
    assert sorted(each.solution.digest for each in read) == sorted(
        each.solution.digest for each in written
    )
    assert read[0].spent_s == 1.5


def test_a_damaged_note_is_paid_again_and_the_others_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = candidates()
    book = Notebook(tmp_path / "n")
    book.write(note(first))
    book.write(note(second))
    (tmp_path / "n" / f"{first.digest.removeprefix('sha256:')}.json").write_text("{")
    assert [each.solution.digest for each in book.read()] == [second.digest]
    assert "unreadable" in caplog.text


def test_without_notes_there_is_nothing_to_resume(tmp_path: Path) -> None:
    assert list(Notebook(tmp_path / "absent").read()) == []
