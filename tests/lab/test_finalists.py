"""An experiment that is interrupted is one experiment: its finalists are one family."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming
from tests.lab.test_lab_notebook import ENTRY, PLAN, Killed, candidates
from tests.standalone.proofs import raw

from retuned import catalog
from retuned.contract import Digest
from retuned.errors import HarnessError
from retuned.experiment.local import LocalLab
from retuned.lab.evidence import samples_from
from retuned.lab.evidence_check import wrong_with_plan, wrong_with_raw
from retuned.lab.examiner import Examiner, Timed
from retuned.lab.generators.fixed import GivenGenerator
from retuned.lab.harness.variant import Variant
from retuned.lab.journal import Ended, FinalNote, Notebook, notebook_name
from retuned.lab.resources import LabSettings
from retuned.lab.session import choose, family_of
from retuned.lab.statistics import holm
from retuned.ports import Finding
from retuned.stages.verdict import Check, EvidenceDocument, Interval, Reason, Status

TWO = PLAN.model_copy(update={"budget": PLAN.budget.model_copy(update={"finalists": 2})})
FAST = Interval(lower=1.8, point=2.0, upper=2.2, confidence=0.95)


def digest(number: int) -> Digest:
    return f"sha256:{number:064x}"


def ended(p_value: float) -> Ended:
    return Ended(p_value=p_value, checks=())


# --- the decision -------------------------------------------------------------------------------


@given(
    earlier=st.lists(
        st.tuples(st.integers(1, 4), st.none() | st.floats(0.0, 1.0)), min_size=0, max_size=4
    ),
    p_value=st.floats(0.0, 1.0),
)
def test_no_interruption_ever_makes_a_win_easier(
    earlier: list[tuple[int, float | None]], p_value: float
) -> None:
    notes = {
        digest(n): FinalNote(
            candidate=digest(n), begun=begun, ended=None if p is None else ended(p)
        )
        for n, (begun, p) in enumerate(earlier)
    }
    family = family_of(notes, judged=(), now=(digest(99),))
    (adjusted,) = family.adjusted([p_value])
    tried = [1.0 if p is None else p for _, p in earlier]
    assert adjusted >= holm([*tried, p_value])[-1] >= p_value
    assert family.size(1) == 1 + sum(begun for begun, _ in earlier)


def test_a_finalist_whose_note_is_lost_still_counts() -> None:
    assert family_of({}, judged=(digest(1), digest(2)), now=(digest(3),)).size(1) == 3


def test_a_finalist_taken_up_again_counts_once() -> None:
    notes = {digest(1): FinalNote(candidate=digest(1), begun=1, ended=ended(0.001))}
    assert family_of(notes, judged=(), now=(digest(1),)).size(1) == 1


def test_once_one_was_judged_only_those_chosen_then_go_on() -> None:
    notes = {digest(2): FinalNote(candidate=digest(2))}
    results = [(digest(1), FAST), (digest(2), FAST)]
    assert choose(results, notes=notes, judged=(digest(7),), count=3) == (digest(2),)


def test_a_damaged_record_of_a_finalist_stops_the_experiment(tmp_path: Path) -> None:
    book = Notebook(tmp_path)
    book.write_final(FinalNote(candidate=digest(1), begun=1))
    (path,) = tmp_path.glob("*.final")
    path.write_text("{")
    with raises_naming(HarnessError, str(path), "FinalNote"):
        book.finals()


# --- the lab --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.fixture
def root(tmp_path: Path, objects: Path) -> Path:
    """A lab's folder; what is compiled is compiled once for all tests."""
    (tmp_path / "compiled").symlink_to(objects)
    return tmp_path


def lab(root: Path) -> LocalLab:
    return LocalLab(
        root,
        subjects=catalog.get,
        solutions={ENTRY.incumbent.digest: ENTRY.incumbent}.get,
        generators={"given": lambda _plan: GivenGenerator(candidates())},
        lab=LabSettings(search_s=0.02, final_s=0.1),
    )


def fast_timing(speedup: float = 2.0) -> Timed:
    kept = raw(PLAN.workloads, speedup)
    return Timed(
        checks=(Check(gate="G5"), Check(gate="G6", detail="held out")),
        samples=tuple(map(samples_from, kept.candidate)),
        clones=tuple(map(samples_from, kept.clone)),
        shapes=(0,),
        processes=2,
        commitment=digest(5),
    )


Final = Callable[[int], Timed]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[Final], list[Digest]]:
    """Let gate G5 find everybody fast, and gate G6 give what a function says, by its number."""
    right = (Check(gate="G3"), Check(gate="G4"))
    monkeypatch.setattr(Examiner, "correct", lambda _self, _variant: right)
    monkeypatch.setattr(Examiner, "search", lambda _self, _variant: fast_timing())
    done: list[Digest] = []

    def script(answer: Final) -> list[Digest]:
        def final(_self: Examiner, variant: Variant, **_words: Any) -> Timed:
            done.append(variant.digest)
            return answer(len(done))

        monkeypatch.setattr(Examiner, "final", final)
        return done

    return script


def document(root: Path, finding: Finding) -> EvidenceDocument:
    named = str(finding.verdict.evidence).removeprefix("sha256:")
    text = (root / "evidence" / f"{named}.json").read_text()
    return EvidenceDocument.model_validate(json.loads(text))


def killed_at(number: int) -> Final:
    def answer(count: int) -> Timed:
        if count == number:
            raise Killed
        return fast_timing()

    return answer


def test_a_finalist_measured_before_a_kill_is_judged_as_it_was_and_the_kill_is_counted(
    root: Path, measured: Callable[[Final], list[Digest]]
) -> None:
    done = measured(killed_at(2))
    with pytest.raises(Killed):
        list(lab(root).run(TWO, known={}))
    found = list(lab(root).run(TWO, known={}))
    first, second = done[0], done[1]
    assert done == [first, second, second], "who was measured is not measured again"
    assert [f.verdict.status for f in found] == [Status.PROMOTE, Status.PROMOTE]
    for each in found:
        written = document(root, each)
        assert written.finalists == 3
        assert wrong_with_raw(written) is None
        assert wrong_with_plan(written, TWO) is None
        timing = written.evidence.timing
        assert timing is not None
        assert timing.groups[0].p_value > 1.5 * bare_p()


def bare_p() -> float:
    from retuned.lab.evidence import p_value
    from retuned.stages.verdict import JudgeSettings

    return p_value(fast_timing(), JudgeSettings())


def test_a_win_that_was_stored_before_a_kill_counts_against_those_after_it(
    root: Path, measured: Callable[[Final], list[Digest]]
) -> None:
    done = measured(lambda _count: fast_timing())
    run = lab(root).run(TWO, known={})
    first = next(run)
    run.close()  # type: ignore[attr-defined]
    assert first.verdict.status is Status.PROMOTE
    assert len(done) == 2
    (second,) = lab(root).run(TWO, known={first.solution.digest: first})
    assert len(done) == 2, "both were measured before"
    assert document(root, second).finalists == document(root, first).finalists == 2


def test_without_notes_nobody_is_chosen_once_one_was_judged(
    root: Path, measured: Callable[[Final], list[Digest]]
) -> None:
    done = measured(lambda _count: fast_timing())
    run = lab(root).run(TWO, known={})
    first = next(run)
    run.close()  # type: ignore[attr-defined]
    for path in (root / "notes" / notebook_name(TWO.id)).glob("*.final"):
        path.unlink()
    (second,) = lab(root).run(TWO, known={first.solution.digest: first})
    assert len(done) == 2
    assert second.verdict.status is Status.REJECT


def test_a_lab_that_breaks_at_the_second_finalist_does_not_lose_the_first_win(
    root: Path, measured: Callable[[Final], list[Digest]]
) -> None:
    def breaks(count: int) -> Timed:
        if count == 2:
            raise HarnessError("the incumbent itself fails")
        return fast_timing()

    done = measured(breaks)
    found = {f.solution.digest: f.verdict for f in lab(root).run(TWO, known={})}
    assert found[done[0]].status is Status.PROMOTE
    assert (found[done[1]].status, found[done[1]].reason) == (
        Status.AMBIGUOUS,
        Reason.HARNESS_FAILED,
    )


def test_a_lab_that_breaks_at_the_first_finalist_concludes_nothing(
    root: Path, measured: Callable[[Final], list[Digest]]
) -> None:
    def breaks(_count: int) -> Timed:
        raise HarnessError("the incumbent itself fails")

    measured(breaks)
    with pytest.raises(HarnessError):
        list(lab(root).run(TWO, known={}))
