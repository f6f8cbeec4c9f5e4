"""Reports to the operator: hello, windows, drift, status of slots, outcomes of orders.

Windows, drift and outcomes wait in the spool, so that none is lost while the operator is away. The
status of slots is current when it is sent, and never stored.
"""

from __future__ import annotations

import logging

from pydantic import ValidationError

from retuned.api.agent import (
    MAX_COUNTED,
    MAX_PROCESSES,
    MAX_SLOTS,
    VERSION,
    DriftPost,
    Hello,
    OrderDone,
    ProcessEnvironment,
    ProfileReport,
    SlotWatch,
    WatchPost,
    environment_digest,
    older,
    skew_s,
)
from retuned.errors import Refused, TemporaryError
from retuned.node import metrics, windows
from retuned.node.context import DRIFT, WINDOW
from retuned.node.order_context import ORDER
from retuned.node.order_store import held_orders, judged
from retuned.ports import SlotState, Stored
from retuned.sidecar.context import SELF, Context
from retuned.sidecar.store import TOLD
from retuned.stages.drift import DriftReport
from retuned.stages.profile import Counts, WorkloadProfile
from retuned.stages.verdict import ServerEnvironment
from retuned.stages.watch import WatchSample

log = logging.getLogger(__name__)

_ABOUT_US = frozenset(
    {
        "no-target",
        "not-pod-bound",
        "not-your-pod",
        "not-your-target",
        "pod-replaced",
        "pod-unknown",
        "redirected",
    }
)
"""Refusals of the sender, which are temporary: the report stays. Others drop the report."""
_SKEW_S = 60.0


def say_hello(ctx: Context) -> None:
    """Say who is here, if it is time; learn the target and the key.

    Raises
    ------
    TemporaryError, Refused, UnreadableInput
        As `Operator.hello`.
    """
    now_s = ctx.clock.monotonic_s()
    if now_s - ctx.standing.hello_at_s < ctx.settings.hello_s:
        return
    environments = _environments(ctx)
    said = Hello(
        pod=ctx.pod,
        target=ctx.hinted,
        version=VERSION,
        release=ctx.release,
        at=ctx.clock.now(),
        environments=environments,
        spool=len(ctx.spool),
        lost=ctx.spool.lost,
    )
    answer = ctx.operator.hello(said)
    ctx.believed.shown(answer.key)
    _learn_target(ctx, answer.target)
    ahead_s = skew_s(said, now=answer.at)
    if abs(ahead_s) > _SKEW_S:  # nothing depends on it; people compare times
        log.warning("this pod's clock is %.0f s ahead of the operator's", ahead_s)
    ctx.telemetry.gauge("retuned_clock_skew_seconds", ahead_s)
    ctx.standing.version = min(VERSION, answer.version)
    ctx.standing.processes = len(environments)
    if environments:  # until the server answers, each pass repeats the hello
        ctx.standing.hello_at_s = now_s


def queue_reports(ctx: Context) -> int:
    """Put windows and drift that are new into the spool; return how many."""
    if not ctx.target:
        return 0  # the target is not known yet
    queued, told = 0, set(ctx.store.ids(TOLD))
    for kind in (WINDOW, DRIFT):
        for id in ctx.store.ids(kind):
            if f"{kind} {id}" not in told:
                stored = ctx.store.get(kind, id)
                if stored is not None and stored.phase != windows.HELD:  # an alarm may wait
                    queued += _queue(ctx, stored)
    return queued


def tell_slots(ctx: Context) -> None:
    """Send the current status of slots.

    Raises
    ------
    TemporaryError
        If the server or the operator does not answer.
    Refused, UnreadableInput
        As `Operator.post`.
    """
    if not ctx.target:
        return
    slots = ctx.swapper.slots()
    samples = {sample.definition: sample for sample in ctx.swapper.samples()}
    metrics.slots(ctx.telemetry, tuple(samples.values()))
    said = tuple(_slot(ctx, slot, samples.get(slot.definition)) for slot in slots)
    at, held = ctx.clock.now(), held_orders(ctx)
    post = WatchPost(pod=ctx.pod, target=ctx.target, at=at, slots=said, held=held)
    if ctx.operator.post(post).unheard:  # it is another one: it waits for that to judge evidence
        ctx.standing.hello_at_s = float("-inf")


def flush(ctx: Context, *, most_windows: int | None = None) -> int:
    """Send the reports of the spool until one fails; return how many were sent.

    Windows come last, and may be many after a failure: newer reports of other kinds pass them.

    Parameters
    ----------
    most_windows
        Most windows to send; None sends all.

    Raises
    ------
    TemporaryError, Refused
        As `Operator.post`; reports that were not sent stay.
    """
    told = windows = 0
    ctx.telemetry.gauge("retuned_spool_reports", len(ctx.spool))
    for waiting in ctx.spool.waiting():
        report = waiting.report
        if isinstance(report, ProfileReport):
            if windows == most_windows or ctx.standing.news.is_set():
                break
            windows += 1
        try:
            _say(ctx, report)
        except Refused as error:
            if is_about_us(error):
                raise
            log.error("a report is refused for good: %s", error)
        ctx.spool.told(waiting)
        told += 1
    return told


def _say(ctx: Context, report: ProfileReport | DriftPost | OrderDone) -> None:
    """Tell a report as the operator understands it; an older one may have come back meanwhile."""
    found_in = _found_in(ctx, report)
    if isinstance(report, OrderDone):
        ctx.operator.done(report, traceparent=found_in)
        return
    said = older(report, version=ctx.standing.version)
    try:
        ctx.operator.post(said, traceparent=found_in)
    except Refused as error:
        least = older(report, version=1)
        if error.code != "body-invalid" or said == least:
            raise
        ctx.standing.version = 1
        ctx.operator.post(least, traceparent=found_in)


def _found_in(ctx: Context, report: ProfileReport | DriftPost | OrderDone) -> str:
    """Return the span that found the content of a report; empty if it is not stored any more."""
    if isinstance(report, OrderDone):
        stored = ctx.store.get(ORDER, report.order)
    else:
        stored = ctx.store.get(DRIFT if isinstance(report, DriftPost) else WINDOW, report.id)
    return "" if stored is None else stored.traceparent


def is_about_us(error: Refused) -> bool:
    """Whether a refusal is about the sender, which is temporary, and not about the report."""
    return error.code in _ABOUT_US or error.code.startswith("status-")


def _queue(ctx: Context, stored: Stored) -> bool:
    """Put one record into the spool, then remember that: a crash in between queues it twice."""
    try:
        report = _report(ctx, stored)
    except ValidationError as error:
        log.error("%s %s is not reported: %d faults", stored.kind, stored.id, error.error_count())
        report = None
    if report is not None:
        ctx.spool.add(report, key=f"{stored.kind} {stored.id}")
    ctx.store.add(TOLD, f"{stored.kind} {stored.id}", {}, phase="final")
    return report is not None


def _report(ctx: Context, stored: Stored) -> ProfileReport | DriftPost | None:
    if stored.kind == WINDOW:
        profile = WorkloadProfile.model_validate(stored.body["profile"])
        return ProfileReport(
            pod=ctx.pod,
            target=ctx.target,
            id=stored.id,
            profile=profile,
            counts=_counted(stored.body.get("counts", {})),
            gpus_traced=len(stored.body.get("devices", ())),
            gpus=ctx.standing.gpus,
        )
    report = DriftReport.model_validate(stored.body)
    if not report.detected:
        return None
    gpus = ctx.standing.gpus
    return DriftPost(pod=ctx.pod, target=ctx.target, id=stored.id, report=report, gpus=gpus)


def _counted(counts: Counts) -> dict[str, dict[str, int]]:
    """Return the counts of slots within the limits of a report: the most frequent launches."""
    return {
        slot: dict(sorted(each.items(), key=lambda one: (-one[1], one[0]))[:MAX_COUNTED])
        for slot, each in sorted(counts.items())[:MAX_SLOTS]
    }


def _slot(ctx: Context, slot: SlotState, sample: WatchSample | None) -> SlotWatch:
    proposal, report = judged(ctx, slot.definition)
    return SlotWatch(
        definition=slot.definition,
        active=slot.active,
        epoch=slot.epoch,
        newest_epoch=max(slot.newest_epoch, slot.epoch),
        tripped=slot.tripped[:300],
        proposal=proposal,
        sample=sample,
        report=report,
    )


def process_environment(facts: ServerEnvironment) -> ProcessEnvironment:
    """Return what a process runs on as the agent API has it."""
    return ProcessEnvironment(
        process=facts.process,
        cpu=facts.cpu,
        device=facts.device,
        device_name=facts.device_name,
        driver=facts.driver,
        runtime=facts.runtime,
        torch=facts.torch,
        triton=facts.triton,
        numerics=dict(facts.numerics),
    )


def _environments(ctx: Context) -> tuple[ProcessEnvironment, ...]:
    try:
        found = ctx.swapper.environments()
    except TemporaryError as error:
        log.info("the server does not report its environment: %s", error)
        return ()
    said = tuple(process_environment(each) for each in found[:MAX_PROCESSES])
    ctx.standing.environment = environment_digest(said) or ""
    return said


def _learn_target(ctx: Context, target: str) -> None:
    body = {"target": target}
    if ctx.store.add(SELF, "target", body, phase="current"):
        log.info("this pod serves %s", target)
    elif ctx.target != target:
        log.warning("this pod serves %s now", target)
        ctx.store.advance(SELF, "target", expect="current", to="current", body=body)
        ctx.standing.revision = 0
