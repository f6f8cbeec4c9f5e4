"""A window of a pod is kept with the one that the same pod told before it."""

from __future__ import annotations

import pytest
from tests.operators.program.test_ledger import Pod, ledger, pod

from retuned.api.agent import DriftPost, PodRef, ProfileReport
from retuned.clock import FakeClock
from retuned.review.records import Window
from retuned.stages.drift import DriftAction, DriftReport
from retuned.stages.profile import WorkloadProfile
from retuned_operator.agent_api.ports import PodRecord, Receipt
from retuned_operator.store.experiments import StoreLedger
from retuned_operator.store.kernels import CatalogKernels
from retuned_operator.store.reports import DRIFT
from retuned_operator.store.review import StoredReviews

__all__ = ["Pod", "ledger", "pod"]


def tell(ledger: StoreLedger, uid: str, number: int) -> None:
    """Let a pod tell a window and that it drifted; the number is its start in seconds."""
    start_ns = number * 10**9
    who = PodRecord(namespace="serving", name=uid, uid=uid, target="serving/chat")
    ref = PodRef(namespace="serving", name=uid, uid=uid)
    profile = WorkloadProfile(
        window_start_ns=start_ns, window_ns=10**9, observed_ns=10**9, stats=(), counted=True
    )
    report = DriftReport(
        detected=True,
        action=DriftAction.RETUNE,
        reasons=(),
        distance=0.2,
        window_start_ns=start_ns,
        sentence="new",
    )
    for said in (
        ProfileReport(pod=ref, target="serving/chat", id=f"w{number}", profile=profile),
        DriftPost(pod=ref, target="serving/chat", id=f"w{number}", report=report),
    ):
        ledger.take(Receipt(pod=who, at=FakeClock().now()), said)


def shown(ledger: StoreLedger) -> dict[int, Window]:
    """Return what the page has of each drift, by its start in seconds."""
    shelf = StoredReviews(ledger._store, ledger._notary, kernels=CatalogKernels())
    found = [shelf.window(key) for key in ledger._store.ids(DRIFT)]
    return {each.line.report.window_start_ns // 10**9: each for each in found if each is not None}


def test_the_window_before_is_of_the_same_pod(ledger: StoreLedger) -> None:
    for uid, number in (("one", 1), ("two", 2), ("one", 3), ("one", 3), ("two", 4)):
        tell(ledger, uid, number)  # the third is told again, as after an answer that was lost
    windows = shown(ledger)
    befores = {
        number: each.before.window_start_ns // 10**9 if each.before else None
        for number, each in windows.items()
    }
    assert befores == {1: None, 2: None, 3: 1, 4: 2}
    assert all(each.profile is not None for each in windows.values())


def test_a_name_of_a_window_that_is_gone_or_none_shows_none(
    ledger: StoreLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for before in ("serving/chat/gone", 7, None):
        monkeypatch.setattr(ledger._inbox._newest, "before", lambda _pod, _id, said=before: said)
        number = 5 if before is None else 6 if before == 7 else 8
        tell(ledger, "one", number)
        assert shown(ledger)[number].before is None
