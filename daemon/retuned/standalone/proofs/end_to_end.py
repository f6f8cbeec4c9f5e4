"""Gate G7 on one machine: a swap is switched off and on in the running server, and measured.

It runs beside the watch, on a separate thread, because the watch must never wait for it. Each pass
is stored immediately: after a restart, the daemon continues with the stored pairs. The slot is
always switched on again; a daemon that was killed does so when it starts again. The first pass runs
with the swap on and is not compared: it warms the server, and proves engagement.

Also the share of the server's GPU time that some shapes take in the present profile.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from retuned.errors import RetunedError, TemporaryError, UnreadableInput
from retuned.ports import Event, Stored
from retuned.stages.gate import EndToEndRule
from retuned.stages.profile import WorkloadProfile, merge
from retuned.stages.proposal import Proposal
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.stages.watch import (
    Block,
    Consequence,
    EndToEndOutcome,
    EndToEndReason,
    EndToEndReport,
    ServerResponse,
    consequence,
    judge_end_to_end,
    not_measured,
    order_of,
    predicted_gain,
    summarise,
)
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.records import UNDER_WAY, committed, say
from retuned.standalone.tunables import tuned_files
from retuned.store.envelopes import seal

_WINDOWS = 3
"""Windows that are the present profile."""


def present_share(ctx: Context, proposal: Proposal) -> float:
    """Return the share of GPU time of a proposal's shapes in the newest windows before its swap.

    After the swap the share is smaller because the kernel is faster: that says nothing of what it
    saves. Where no window shows the kernel, it is the share that the proposal was written with.
    """
    order = ctx.store.events(id=proposal.id)
    swapped = next((event.at for event in order if event.what == "swapped"), None)
    windows = [
        stored
        for stored in ctx.store.list(RecordKind.WINDOW, limit=4 * _WINDOWS)
        if swapped is None or stored.created_at <= swapped
    ]
    profiles = [found for found in map(_profile, (w.body for w in windows)) if found is not None]
    if not profiles:
        return proposal.share
    profile = merge(profiles[-_WINDOWS:])
    mine = 0
    for stat in profile.stats:
        signature = stat.signature
        named = ctx.catalog.recognise(signature.kernel, signature.dims, signature.dtypes)
        if named is not None and named[0] == proposal.definition:
            mine += stat.gpu_time_ns if proposal.guard.allows(named[1]) else 0
    return min(1.0, mine / profile.gpu_time_ns) if mine else proposal.share


def _profile(body: Mapping[str, Any]) -> WorkloadProfile | None:
    try:
        return WorkloadProfile.model_validate(body["profile"])
    except (KeyError, ValidationError):
        return None


log = logging.getLogger(__name__)

MEASURING = "measuring"
"""Phase of a record that is not decided."""
_ANSWERS: TypeAdapter[tuple[ServerResponse, ...]] = TypeAdapter(tuple[ServerResponse, ...])
_BLOCKS: TypeAdapter[tuple[Block, ...]] = TypeAdapter(tuple[Block, ...])


def measure(ctx: Context, stop: threading.Event) -> None:
    """Measure one swap that must prove itself, until it is decided or `stop` is set."""
    switch_on(ctx)
    for kept in committed(ctx.store).values():
        order = kept.order
        if stop.is_set() or ctx.end_to_end is None:
            return
        if _is_due(ctx, order):
            try:
                _measure(ctx, order, stop)
            finally:
                switch_on(ctx)


def follows(ctx: Context, proposal: Proposal) -> tuple[Consequence, str, str]:
    """Return what gate G7 means for a swap under way, with its reason and a sentence."""
    try:
        rule = rule_for(ctx, proposal.definition)
    except (RetunedError, OSError) as error:
        log.warning("%s waits for a policy that can be read: %s", proposal.definition, error)
        return Consequence.WAIT, "", ""
    report = _report_of(ctx, proposal.id)
    if report is None and tuned_files.is_fixed(ctx, proposal.id):
        report = not_measured(EndToEndReason.NOT_SWITCHABLE, "", predicted=0.0)
    if report is None and ctx.end_to_end is None:
        report = not_measured(EndToEndReason.NO_ENDPOINT, "", predicted=0.0)
    reason = "" if report is None else f"end-to-end-{report.reason}"
    return consequence(report, rule), reason, "" if report is None else report.detail


def rule_for(ctx: Context, definition: str) -> EndToEndRule:
    """Return the policy's rule; without one, the swap is measured where that is possible.

    Raises
    ------
    RetunedError, OSError
        If no policy can be read.
    """
    limits = ctx.policy_limits(definition)
    return limits.end_to_end if limits is not None else EndToEndRule.WHEN_POSSIBLE


def switch_on(ctx: Context) -> bool:
    """Switch every swap on that was switched off to measure it; return whether all are on."""
    done = True
    for stored in ctx.store.list(RecordKind.END_TO_END, phase=MEASURING):
        definition = str(stored.body["definition"])
        try:
            if any(s.bypassed for s in ctx.swapper.slots() if s.definition == definition):
                ctx.swapper.bypass(definition, on=False)
        except RetunedError as error:
            log.warning("%s could not be switched on again: %s", definition, error)
            done = False
    return done


def _is_due(ctx: Context, order: SwapOrder) -> bool:
    stored = ctx.store.get(RecordKind.PROPOSAL, order.proposal)
    if order.kind is not SwapKind.SWAP or stored is None or stored.phase not in UNDER_WAY:
        return False
    if tuned_files.is_fixed(ctx, order.proposal):
        return False
    try:
        if rule_for(ctx, order.definition) is EndToEndRule.OFF:
            return False
    except (RetunedError, OSError) as error:
        log.warning("%s is not measured, no policy can be read: %s", order.definition, error)
        return False
    record = ctx.store.get(RecordKind.END_TO_END, order.proposal)
    return (record is None or record.phase == MEASURING) and _runs_everywhere(ctx, order)


def _runs_everywhere(ctx: Context, order: SwapOrder) -> bool:
    """Whether all launches run an order: a canary of a few would not keep its promise."""
    if not order.canary:
        return True
    try:
        samples = ctx.swapper.samples()
    except TemporaryError as error:
        log.info("%s is not measured now: %s", order.definition, error)
        return False
    return all(s.fraction >= 1.0 for s in samples if s.definition == order.definition)


def _measure(ctx: Context, order: SwapOrder, stop: threading.Event) -> None:
    record = _record(ctx, order)
    body = dict(record.body)
    predicted = float(body["predicted"])
    try:
        report = _passes(ctx, order, body, stop)
    except TemporaryError as error:
        log.info("%s is not measured now: %s", order.definition, error)
        if not _is_late(ctx, body):
            return  # tried again at the next look
        report = not_measured(EndToEndReason.NO_ANSWER, str(error), predicted=predicted)
    if report is not None and switch_on(ctx):  # an ended record is looked at no more
        _finish(ctx, order, body, report)


def _record(ctx: Context, order: SwapOrder) -> Stored:
    """Return the record of a swap; a new one if the stored one is of another order."""
    known = ctx.store.get(RecordKind.END_TO_END, order.proposal)
    if known is not None and known.body["order"] == order.id:
        return known
    stored = ctx.store.get(RecordKind.PROPOSAL, order.proposal)
    assert stored is not None, "it is watched"
    proposal = Proposal.model_validate(stored.body)
    share = present_share(ctx, proposal)
    body: dict[str, Any] = {
        "order": order.id,
        "definition": order.definition,
        "artifact": order.artifact,
        "share": share,
        "predicted": predicted_gain(share, proposal.speedup.point),
        "began_at": ctx.clock.now().isoformat(),
        "first": None,
        "blocks": [],
    }
    if not ctx.store.add(RecordKind.END_TO_END, order.proposal, body, phase=MEASURING):
        _keep(ctx, order.proposal, body)
    made = ctx.store.get(RecordKind.END_TO_END, order.proposal)
    assert made is not None, "it was just written"
    return made


def _passes(
    ctx: Context, order: SwapOrder, body: dict[str, Any], stop: threading.Event
) -> EndToEndReport | None:
    """Make passes until that is decided; None where it is left for another time."""
    blocks = list(_BLOCKS.validate_python(body["blocks"]))
    blocks = blocks[: len(blocks) // 2 * 2]  # the other half of a pair is long ago
    first = _known(ctx, body)
    if first is None:
        first = _first(ctx, order)
        if first is None:
            return None
        blocks, body["blocks"] = [], []  # what they were compared with, if any, is lost
        body["first"] = ctx.store.put_blob(_ANSWERS.dump_json(first))
        _keep(ctx, order.proposal, body)
    settings, predicted = ctx.settings.end_to_end, float(body["predicted"])
    while True:
        report = judge_end_to_end(blocks, predicted=predicted, settings=settings)
        if report is not None:
            return report
        if _is_late(ctx, body):
            detail = f"{len(blocks) // 2} pairs of passes in the time there was"
            return not_measured(
                EndToEndReason.OUT_OF_TIME, detail, predicted=predicted, pairs=len(blocks) // 2
            )
        block = _block(ctx, order, first, number=len(blocks))
        if block is None or stop.is_set():
            return None
        blocks.append(block)
        body["blocks"] = [each.model_dump(mode="json") for each in blocks]
        _keep(ctx, order.proposal, body)


def _known(ctx: Context, body: Mapping[str, Any]) -> tuple[ServerResponse, ...] | None:
    """Return the stored answers of the original; None if it must be measured."""
    if body["first"] is None:
        return None
    try:
        return _ANSWERS.validate_json(ctx.store.get_blob(str(body["first"])))
    except (UnreadableInput, ValidationError) as error:
        log.warning("the answers of the original are lost, it is measured again: %s", error)
        return None


def _first(ctx: Context, order: SwapOrder) -> tuple[ServerResponse, ...] | None:
    """Warm the server up with the swap on; then return what the original answers."""
    assert ctx.end_to_end is not None, "nothing is measured without an endpoint"
    if not _switched(ctx, order, off=False):
        return None
    ctx.end_to_end.serve()
    if not _switched(ctx, order, off=True):
        return None
    return ctx.end_to_end.serve().answers


def _block(
    ctx: Context, order: SwapOrder, first: Sequence[ServerResponse], *, number: int
) -> Block | None:
    """Make one pass; None where the swap is not, or no longer, what is to be measured."""
    assert ctx.end_to_end is not None, "nothing is measured without an endpoint"
    state = order_of(number // 2)[number % 2]
    if not _switched(ctx, order, off=state == "off"):
        return None
    served = ctx.end_to_end.serve()
    if not _stands(ctx, order, off=state == "off") or len(served.answers) != len(first):
        return None
    return summarise(state, first, served)


def _switched(ctx: Context, order: SwapOrder, *, off: bool) -> bool:
    stored = ctx.store.get(RecordKind.PROPOSAL, order.proposal)
    if stored is None or stored.phase not in UNDER_WAY:
        return False
    ctx.swapper.bypass(order.definition, on=off)
    return _stands(ctx, order, off=off)


def _stands(ctx: Context, order: SwapOrder, *, off: bool) -> bool:
    """Whether the server has this very order, switched as it must be, and has not rolled back."""
    return any(
        (slot.definition, slot.active, slot.epoch)
        == (order.definition, order.artifact, order.epoch)
        and slot.bypassed is off
        and not slot.tripped
        for slot in ctx.swapper.slots()
    )


def _is_late(ctx: Context, body: Mapping[str, Any]) -> bool:
    began = datetime.fromisoformat(str(body["began_at"]))
    return ctx.clock.now() - began > ctx.settings.end_to_end_time


def _keep(ctx: Context, proposal: str, body: Mapping[str, Any]) -> None:
    ctx.store.advance(RecordKind.END_TO_END, proposal, expect=MEASURING, to=MEASURING, body=body)


def _finish(ctx: Context, order: SwapOrder, body: dict[str, Any], report: EndToEndReport) -> None:
    """Keep the answer with its signed evidence; what failed teaches something."""
    body["report"] = report.model_dump(mode="json")
    payload = json.dumps({"gate": "G7", "proposal": order.proposal, **body}, sort_keys=True)
    body["evidence"] = ctx.store.put_blob(seal(payload.encode(), notary=ctx.notary))
    with ctx.store.transaction():
        if not ctx.store.advance(
            RecordKind.END_TO_END,
            order.proposal,
            expect=MEASURING,
            to=str(report.outcome),
            body=body,
        ):
            return
        say(
            ctx,
            order.proposal,
            f"end-to-end-{report.outcome}",
            reason=str(report.reason),
            detail=report.detail,
            evidence=body["evidence"],
            slot=order.definition,
        )
        if report.outcome is EndToEndOutcome.FAIL:
            _teach(ctx, order, report)
    ctx.telemetry.count(
        "retuned_end_to_end_total", outcome=str(report.outcome), reason=str(report.reason)
    )
    log.info("%s end to end: %s, %s", order.definition, report.outcome, report.detail)


def _teach(ctx: Context, order: SwapOrder, report: EndToEndReport) -> None:
    """Write the lesson beside the experiment: what was faster alone was not so in the server."""
    stored = ctx.store.get(RecordKind.PROPOSAL, order.proposal)
    assert stored is not None, "it is watched"
    ctx.store.record(
        Event(
            at=ctx.clock.now(),
            kind=RecordKind.EXPERIMENT,
            id=str(stored.body["experiment"]),
            what="end-to-end-lesson",
            who="retuned",
            detail={
                "definition": order.definition,
                "candidate": order.artifact,
                "reason": str(report.reason),
                "predicted": report.predicted,
                "measured": None if report.gain is None else report.gain.point,
            },
        )
    )


def _report_of(ctx: Context, proposal: str) -> EndToEndReport | None:
    record = ctx.store.get(RecordKind.END_TO_END, proposal)
    if record is None or record.phase == MEASURING:
        return None
    return EndToEndReport.model_validate(record.body["report"])
