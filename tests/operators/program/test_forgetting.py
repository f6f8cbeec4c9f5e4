"""A store of pods' windows grows no further, and pages of drift keep theirs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from retuned.api.agent import DriftPost, PodRef, ProfileReport
from retuned.clock import FakeClock
from retuned.stages.drift import DriftAction, DriftReport
from retuned.stages.profile import WorkloadProfile
from retuned.store.keys import Ed25519Notary
from retuned.store.sqlite import SqliteStore
from retuned_operator.agent_api.ports import PodRecord, Receipt
from retuned_operator.cleanup import KEPT, forget_windows
from retuned_operator.store.experiments import StoreLedger
from retuned_operator.store.kernels import CatalogKernels
from retuned_operator.store.reports import DRIFT, PROFILE
from retuned_operator.store.results import ResultFolder
from retuned_operator.store.review import StoredReviews

_POD = PodRecord(namespace="serving", name="chat-0", uid="uid-0", target="serving/chat")
_REF = PodRef(namespace="serving", name="chat-0", uid="uid-0")


class Told:
    """An operator's ledger that one pod tells a window every five minutes."""

    def __init__(self, folder: Path, store: SqliteStore, clock: FakeClock) -> None:
        self.store, self.clock = store, clock
        self.notary = Ed25519Notary(folder / "keys")
        results = ResultFolder(folder / "results")
        self.ledger = StoreLedger(store, self.notary, artifacts=folder / "code", results=results)

    def window(self, number: int, action: DriftAction) -> None:
        """Let the pod tell its window of this number, and what it thinks of it."""
        self.clock.advance(300.0)
        profile = WorkloadProfile(
            window_start_ns=number, window_ns=1, observed_ns=1, stats=(), counted=True
        )
        report = DriftReport(
            detected=action is DriftAction.RETUNE,
            action=action,
            reasons=(),
            distance=0.2,
            window_start_ns=number,
            sentence="new",
        )
        id, target = f"w{number}", "serving/chat"
        for said in (
            ProfileReport(pod=_REF, target=target, id=id, profile=profile),
            DriftPost(pod=_REF, target=target, id=id, report=report),
        ):
            self.ledger.take(Receipt(pod=_POD, at=self.clock.now()), said)

    def kept(self, kind: str) -> list[int]:
        """Return the windows of which there is something, by their numbers."""
        inside = "profile" if kind == PROFILE else "report"
        return [each.body[inside]["window_start_ns"] for each in self.store.list(kind)]

    def forget(self) -> int:
        return forget_windows(self.store, now=self.clock.now())


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    clock = FakeClock()
    with closing(SqliteStore(tmp_path / "state", clock=clock)) as store:
        yield Told(tmp_path, store, clock)


def test_after_a_day_windows_go_but_those_of_drift_and_the_ones_before(told: Told) -> None:
    for number in range(1, 9):
        told.window(number, DriftAction.RETUNE if number == 4 else DriftAction.NONE)
    assert told.forget() == 0
    told.clock.advance(KEPT.total_seconds() - 600.0)
    assert told.forget() == 3
    assert told.kept(PROFILE) == [3, 4, 6, 7, 8]
    assert told.kept(DRIFT) == [4, 6, 7, 8]


def test_the_page_of_an_old_drift_still_shows_both_windows(told: Told) -> None:
    for number in range(1, 4):
        told.window(number, DriftAction.RETUNE if number == 2 else DriftAction.NONE)
    told.clock.advance(10 * KEPT.total_seconds())
    told.forget()
    (key,) = told.store.ids(DRIFT)
    page = StoredReviews(told.store, told.notary, kernels=CatalogKernels()).window(key)
    assert page is not None
    assert page.profile is not None
    assert page.before is not None
    assert (page.before.window_start_ns, page.profile.window_start_ns) == (1, 2)


def test_a_drift_that_is_still_to_be_answered_has_its_windows_after_a_sweep(told: Told) -> None:
    told.window(1, DriftAction.RETUNE)
    told.window(2, DriftAction.NONE)
    told.forget()
    (drifted,) = told.ledger.drifts("serving/chat")
    assert [each.window_start_ns for each in drifted.windows] == [2]


def test_a_store_that_is_told_for_six_days_stays_as_large_as_after_two_days(told: Told) -> None:
    sizes = []
    for day in range(6):
        for number in range(12):
            told.window(100 * day + number, DriftAction.NONE)
            told.clock.advance(KEPT.total_seconds() / 12 - 300.0)
        told.forget()
        sizes.append(len(told.kept(PROFILE)))
    assert sizes[1:] == [sizes[1]] * 5
