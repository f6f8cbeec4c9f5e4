"""What pods say wakes who decides, where there is something new to decide on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from retuned.api.agent import (
    BlockedOrder,
    LevelsState,
    OrderDone,
    Outcome,
    PodOverhead,
    PodProof,
    PodRef,
    ProofPost,
    SlotWatch,
    WatchPost,
)
from retuned.stages.watch import WatchAction, WatchReport
from retuned.stages.watch.proof import Phase, ProofClaim, ProofReason, Verdict
from retuned_operator.agent_api import PodRecord, Receipt, Reports
from retuned_operator.agent_api.ports import Said
from retuned_operator.agent_api.reports import FRESH

TARGET = "serving/chat"
AT = datetime(2026, 1, 5, tzinfo=UTC)
REF = PodRef(namespace="serving", name="chat-0", uid="u-0")
CLEAN = WatchReport(action=WatchAction.KEEP, reason="clean", detail="300 clean checks")


class Archive:
    """An inbox that keeps nothing."""

    def take(self, receipt: Receipt, said: Said) -> None:
        return None


class Hearing:
    """An operator that hears one pod."""

    def __init__(self) -> None:
        self.woken = 0
        self.now = AT
        self.reports = Reports(Archive(), changed=self._wake)

    def _wake(self, target: str) -> None:
        assert target == TARGET
        self.woken += 1

    def hear(self, said: Said, *, uid: str = "u-0", after_s: float = 10.0) -> int:
        """Hear it some seconds later; return how often somebody was woken by it."""
        before, self.now = self.woken, self.now + timedelta(seconds=after_s)
        pod = PodRecord(namespace="serving", name="chat-0", uid=uid, target=TARGET)
        self.reports.take(Receipt(pod=pod, at=self.now), said)
        return self.woken - before


def post(*slots: SlotWatch, held: tuple[BlockedOrder, ...] = ()) -> WatchPost:
    return WatchPost(pod=REF, target=TARGET, at=AT, slots=slots, held=held)


def slot(*, epoch: int = 2, report: WatchReport | None = CLEAN) -> SlotWatch:
    return SlotWatch(
        definition="gemm", active=None, epoch=epoch, newest_epoch=epoch, proposal="p", report=report
    )


def test_slots_that_stand_as_they_stood_wake_nobody() -> None:
    hearing = Hearing()
    assert hearing.hear(post(slot())) == 1
    more = CLEAN.model_copy(update={"detail": "301 clean checks"})
    assert hearing.hear(post(slot(report=more))) == 0
    said = hearing.reports.of("u-0")
    assert said is not None
    assert said.watched_at == hearing.now, "it is kept all the same"


def test_whatever_decisions_read_wakes_them() -> None:
    hearing = Hearing()
    hearing.hear(post(slot()))
    harm = WatchReport(action=WatchAction.ROLLBACK, reason="shadow-mismatch", detail="3 differ")
    held = BlockedOrder(
        order="o", proposal="p", definition="gemm", epoch=3, final=False, reason="slow"
    )
    done = OrderDone(
        pod=REF, target=TARGET, order="o", proposal="p", definition="gemm", epoch=3,
        outcome=Outcome.DONE, at=AT,
    )  # fmt: skip
    for said in (
        post(slot(epoch=3)),
        post(slot(epoch=3, report=harm)),
        post(slot(epoch=3, report=None)),
        post(slot(epoch=3, report=None), held=(held,)),
        post(held=(held.model_copy(update={"final": True}),)),
        done,
        done,
    ):
        assert hearing.hear(said) == 1, said


def test_a_pod_that_was_silent_or_is_another_one_by_now_is_news() -> None:
    hearing = Hearing()
    hearing.hear(post(slot()))
    assert hearing.hear(post(slot()), after_s=FRESH.total_seconds() + 1.0) == 1
    assert hearing.hear(post(slot()), uid="u-1") == 1


def test_what_a_pod_reports_of_its_metrics_engine_and_measurements_is_news() -> None:
    hearing = Hearing()
    told = ProofPost(pod=REF, target=TARGET)
    claim = ProofClaim(verdict=Verdict.HELPS, reason=ProofReason.FASTER, pairs=())
    day = PodProof(
        order="o", proposal="p", definition="gemm", epoch=3, phase=Phase.DONE, pairs=0, claim=claim
    )  # fmt: skip
    hearing.hear(told)
    assert hearing.hear(told) == 0
    cost = PodOverhead(at=AT, claim=claim)
    for update in (
        {"levels": LevelsState.READ},
        {"engine": "vllm 0.33.0"},
        {"days": (day,)},
        {"trials": (day,)},
        {"overhead": cost},
        {"overhead": cost.model_copy(update={"at": AT + timedelta(days=1)})},
    ):
        told = told.model_copy(update=update)
        assert hearing.hear(told) == 1, update
        assert hearing.hear(told) == 0
