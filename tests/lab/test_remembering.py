"""What an earlier experiment rejected is not measured again, unless what it rests on changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.lab.test_lab_notebook import ENTRY, NAME, PLAN, candidates

from retuned import catalog
from retuned.contract import Digest, Solution, Workload
from retuned.errors import CompileFailed
from retuned.experiment.local import LocalLab
from retuned.experiment.messages import EarlierRecord
from retuned.lab.examiner import Examiner
from retuned.lab.generators.fixed import GivenGenerator
from retuned.lab.generators.transfer import Earlier
from retuned.lab.harness.checks import failed_check
from retuned.lab.rejected_cache import definition_digest, remembered, sameness
from retuned.lab.resources import LabSettings
from retuned.ports import Finding
from retuned.stages.verdict import Reason, Status, Verdict

HERE = definition_digest(ENTRY.definition)
BAD = candidates()[0]
OTHER: Digest = "sha256:" + "e" * 64


def earlier(reason: Reason, *, status: Status = Status.REJECT, **changes: Any) -> Earlier:
    verdict = Verdict(
        status=status,
        reason=reason,
        gate="G4",
        candidate=BAD.digest,
        incumbent=changes.pop("incumbent", PLAN.incumbent),
    )
    finding = Finding(
        solution=changes.pop("solution", BAD),
        verdict=verdict,
        seconds=3.0,
        definition=changes.pop("definition", HERE),
    )
    values: dict[str, Any] = {
        "finding": finding,
        "environment": PLAN.environment,
        "workloads": PLAN.workloads,
    }
    return Earlier(**(values | changes))


def holds(each: Earlier, **changes: Any) -> bool:
    return bool(remembered([each], PLAN.model_copy(update=changes), definition=HERE))


@pytest.mark.parametrize(
    "reason",
    [Reason.WRONG_OUTPUT, Reason.COMPILE_FAILED, Reason.CRASHED, Reason.OVER_LIMIT, Reason.SLOWER],
)
def test_a_rejection_holds_while_nothing_that_it_rests_on_has_changed(reason: Reason) -> None:
    assert holds(earlier(reason))
    assert not holds(earlier(reason, environment=OTHER))
    assert not holds(earlier(reason, definition=OTHER))
    assert not holds(earlier(reason, definition=None)), "nobody wrote down what it was tried on"
    assert not holds(earlier(reason, workloads=(Workload(definition=NAME, axes={"M": 999}),)))


@pytest.mark.parametrize("reason", [Reason.WRONG_OUTPUT, Reason.SLOWER, Reason.LOST_SEARCH])
def test_what_was_said_beside_another_incumbent_is_asked_again(reason: Reason) -> None:
    assert not holds(earlier(reason), incumbent=OTHER)


def test_what_does_not_compile_beside_one_incumbent_does_not_beside_another() -> None:
    assert holds(earlier(Reason.COMPILE_FAILED), incumbent=OTHER)


def mix(*weights: float) -> tuple[Workload, ...]:
    return tuple(
        Workload(definition=NAME, axes={"M": 2 ** (4 + n)}, weight=weight)
        for n, weight in enumerate(weights)
    )


def test_who_was_slow_is_tried_again_once_the_mix_has_moved() -> None:
    slow, wrong = (
        earlier(reason, workloads=mix(90.0, 10.0)) for reason in (Reason.SLOWER, Reason.CRASHED)
    )
    assert holds(slow, workloads=mix(9.1, 1.0))
    assert not holds(slow, workloads=mix(50.0, 50.0))
    assert not holds(slow, workloads=mix(90.0, 10.0, 10.0))
    assert holds(wrong, workloads=mix(50.0, 50.0, 10.0))


@pytest.mark.parametrize("reason", [Reason.TIMED_OUT, Reason.CLOCKS_DISAGREE, Reason.OUT_OF_MEMORY])
def test_what_the_machine_may_have_caused_is_tried_again(reason: Reason) -> None:
    assert not holds(earlier(reason))


def test_ambiguity_and_wins_are_measured_anew() -> None:
    assert not holds(earlier(Reason.WITHIN_NOISE, status=Status.AMBIGUOUS))
    assert not holds(earlier(Reason.HARNESS_FAILED, status=Status.AMBIGUOUS))


def rewritten(content: str, **changes: Any) -> Solution:
    source = BAD.sources[0].model_copy(update={"content": content})
    return BAD.model_copy(update={"sources": (source, *BAD.sources[1:]), "name": "again"} | changes)


def test_comments_layout_and_names_make_no_other_candidate_and_parameters_do() -> None:
    text = BAD.sources[0].content
    assert sameness(rewritten("// mine\n" + text.replace("\n", "\n\n  "))) == sameness(BAD)
    assert sameness(rewritten(text + "\nint other;")) != sameness(BAD)
    params = {name: 7 for name in BAD.params} or {"X": 1}
    assert sameness(rewritten(text, params=params)) != sameness(BAD)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ('const char* a = "/* no comment */";', 'const char* a = "";'),
        ('const char* a = "// x";', 'const char* a = "// y";'),
        ("int a; /* one */ int b;", "int a;"),
    ],
)
def test_text_that_only_looks_like_a_comment_is_kept(one: str, two: str) -> None:
    assert sameness(rewritten(one)) != sameness(rewritten(two))


def lab(root: Path, *known: Earlier) -> LocalLab:
    return LocalLab(
        root,
        subjects=catalog.get,
        solutions={ENTRY.incumbent.digest: ENTRY.incumbent}.get,
        generators={"given": lambda _plan: GivenGenerator(candidates())},
        lab=LabSettings(search_s=0.02, final_s=0.1),
        earlier=known,
    )


@pytest.mark.parametrize("changed", [False, True])
def test_a_later_experiment_does_not_pay_for_what_was_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    tried: list[Digest] = []

    def admit(_self: Examiner, solution: Solution) -> Any:
        tried.append(solution.digest)
        return None, (failed_check("G2", CompileFailed("compile-failed", detail="a test")),)

    monkeypatch.setattr(Examiner, "admit", admit)
    wrong = earlier(Reason.WRONG_OUTPUT, environment=OTHER if changed else PLAN.environment)
    here = lab(tmp_path, EarlierRecord.wrap(wrong).restore())
    found = list(here.run(PLAN, known={}))
    first, second = (each.digest for each in candidates())
    assert tried == ([first, second] if changed else [second])
    assert {each.solution.digest for each in found} == set(tried)
    assert all(each.definition == HERE for each in found)
    if not changed:
        (turn, *_) = here.turns(PLAN.id)
        assert turn.proposed == (first, second), "whoever proposed it learns that it was rejected"
        assert turn.tried == 2
