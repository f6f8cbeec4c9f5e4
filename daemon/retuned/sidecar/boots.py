"""The boot of a canary replica: measured once, when its server holds what the operator planned.

`retuned.node.boots` records the window. A boot is measured once in the life of a pod. A sidecar
that restarts reports a complete window again; one that was interrupted reports the boot as failed,
because steps are missing. The operator checks the window and decides what follows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from retuned.api.agent import BootOrder, BootPhase, PodBoot
from retuned.errors import CandidateError, TemporaryError
from retuned.node.boots import record_boot
from retuned.ports import ObservedSteps, Stored
from retuned.sidecar import live_proofs
from retuned.sidecar.context import Context
from retuned.stages.swap import SwapKind
from retuned.stages.watch.proof import Arm, BootSettings, BootWindow

log = logging.getLogger(__name__)

BOOT = "boot"
"""Record of the boot of this pod: recording -> done or failed; by proposal and replica."""
_PIECE_S = 1.0
"""Longest sleep in which a stop is not seen, seconds."""
_FIRST_LOOK_S = 1.0
"""Length of the look that finds the first step, seconds."""
_UNKNOWN = "no-answer"
INTERRUPTED = "interrupted"
"""Reason code: the sidecar ended within the window."""
NOT_IN_FORCE = "swap-not-in-force"
"""Reason code: the server does not run what the operator planned."""
RESTARTED = "server-restarted"
"""Reason code: the server is another process than at the first step."""
WITHDRAWN = "boot-withdrawn"
"""Reason code: the operator does not ask for the boot any more."""


def measure(ctx: Context, stop: threading.Event) -> None:
    """Measure the boot that the operator asks for, if the server holds what it must; else wait."""
    asked = ctx.standing.boot
    if asked is None or stop.is_set():
        return
    record = ctx.store.get(BOOT, _id(asked))
    if record is not None:
        if record.phase == BootPhase.RECORDING:  # of an earlier life: this thread records alone
            _fail(ctx, asked, INTERRUPTED)
        return
    ctx.standing.boot_waits = _waits(ctx, asked)
    if ctx.standing.boot_waits or stop.is_set():
        return
    assert ctx.standing.boot_instance is not None, "the first step was seen"
    began_s, instance = ctx.standing.boot_began_s, ctx.standing.boot_instance
    ctx.store.add(BOOT, _id(asked), {"began_s": began_s}, phase=str(BootPhase.RECORDING))
    ctx.standing.news.set()
    try:
        window = _recorded(ctx, asked, stop, began_s=began_s, instance=instance)
    except CandidateError as error:
        _fail(ctx, asked, error.reason)
    except TemporaryError as error:
        if not stop.is_set():  # else the next life finds it interrupted
            log.warning("the boot of %s is not measured: %s", asked.replica, error)
            _fail(ctx, asked, _UNKNOWN)
    else:
        _end(ctx, asked, BootPhase.DONE, {"window": window.model_dump(mode="json")})


def reported(ctx: Context) -> PodBoot | None:
    """Return what is known of the boot that the operator asks for; None if it asks for none."""
    asked = ctx.standing.boot
    if asked is None:
        return None
    record = ctx.store.get(BOOT, _id(asked))
    phase, reason, window = BootPhase.WAITING, ctx.standing.boot_waits, None
    if record is not None:
        phase, reason = BootPhase(record.phase), str(record.body.get("reason", ""))
        window = _window(record)
    if phase is BootPhase.DONE and window is None:
        phase, reason = BootPhase.FAILED, INTERRUPTED
    return PodBoot(
        proposal=asked.proposal,
        definition=asked.definition,
        replica=asked.replica,
        phase=phase,
        reason=reason,
        window=window,
    )


def _id(asked: BootOrder) -> str:
    return f"{asked.proposal}/{asked.replica}"


def _window(record: Stored) -> BootWindow | None:
    """Return the window of a record; None without one, and of one of another release."""
    found = record.body.get("window")
    if found is None:
        return None
    try:
        return BootWindow.model_validate(found)
    except ValidationError as error:
        log.warning("the boot %s cannot be read: %s", record.id, error)
        return None


def _waits(ctx: Context, asked: BootOrder) -> str:
    """Return what the boot waits for, a reason code; empty if its window may begin.

    The first step counts as the begin of the boot, also if the swap comes later: both replicas of a
    pair are compared by the time at which their servers began to work.
    """
    memory = ctx.standing
    if ctx.step_observer is None or ctx.live_steps is None:
        return "steps-unknown"
    if memory.boot_instance is None:
        try:
            seen = ctx.step_observer.observe(_FIRST_LOOK_S)
        except CandidateError as error:
            return error.reason
        except TemporaryError:
            return "server-starting"
        memory.boot_instance, memory.boot_began_s = seen.instance, ctx.clock.now().timestamp()
    if not ctx.environment:
        return "environment-unknown"
    return "" if _holds(ctx, asked) else NOT_IN_FORCE


def _holds(ctx: Context, asked: BootOrder) -> bool:
    """Whether the server runs what the operator planned: the swap's order, or none of its orders.

    Raises
    ------
    TemporaryError
        If the server does not answer.
    """
    mine = [
        kept.order
        for kept in live_proofs.in_force(ctx)
        if (kept.order.definition, kept.order.proposal) == (asked.definition, asked.proposal)
    ]
    if asked.arm is Arm.OFF:
        return not mine
    (order,) = mine or (None,)
    if order is None or order.id != asked.order or order.kind is not SwapKind.SWAP:
        return False
    slots = [slot for slot in ctx.swapper.slots() if slot.definition == asked.definition]
    return bool(slots) and all(
        slot.active == order.artifact and slot.epoch == order.epoch for slot in slots
    )


def _recorded(
    ctx: Context, asked: BootOrder, stop: threading.Event, *, began_s: float, instance: str
) -> BootWindow:
    environment = ctx.environment
    assert ctx.live_steps is not None, "its steps were seen"
    return record_boot(
        _Watched(ctx, asked, stop, instance=instance),
        replica=asked.replica,
        boot=f"{ctx.pod.uid}/{instance or 'server'}",
        environment=environment,
        arm=asked.arm,
        began_s=began_s,
        settings=BootSettings(leave_out_s=asked.leave_out_s, window_s=asked.window_s),
        sleep=_until_stopped(ctx.live_steps.wait, stop),
    )


def _until_stopped(
    wait: Callable[[float], object], stop: threading.Event
) -> Callable[[float], None]:
    """Return a sleep that ends early when the sidecar stops: ten minutes are left out of a boot."""

    def sleep(seconds: float) -> None:
        left_s = seconds
        while left_s > 0.0 and not stop.is_set():
            wait(min(_PIECE_S, left_s))
            left_s -= _PIECE_S

    return sleep


class _Watched:
    """Observes steps as long as the boot is the one that was planned; see `StepObserver`.

    Before and after each look it checks that the operator still asks, that the server is the same
    process, and that it holds what it must.
    """

    def __init__(
        self, ctx: Context, asked: BootOrder, stop: threading.Event, *, instance: str
    ) -> None:
        self._ctx, self._asked, self._stop, self._instance = ctx, asked, stop, instance
        observer = ctx.step_observer
        assert observer is not None, "the first step was seen"
        self._observer = observer

    def observe(self, seconds: float) -> ObservedSteps:
        self._check()
        seen = self._observer.observe(seconds)
        if seen.instance != self._instance:
            raise CandidateError(RESTARTED, detail=f"{self._instance}, then {seen.instance}")
        self._check()
        return seen

    def _check(self) -> None:
        if self._stop.is_set():
            raise TemporaryError("the sidecar stops", delay_s=1.0)
        if self._ctx.standing.boot != self._asked:
            raise CandidateError(WITHDRAWN, detail=self._asked.replica)
        if not _holds(self._ctx, self._asked):
            raise CandidateError(NOT_IN_FORCE, detail=self._asked.order or "the original")


def _fail(ctx: Context, asked: BootOrder, reason: str) -> None:
    log.info("the boot of %s leads to nothing: %s", asked.replica, reason)
    _end(ctx, asked, BootPhase.FAILED, {"reason": reason})


def _end(ctx: Context, asked: BootOrder, phase: BootPhase, body: Mapping[str, Any]) -> None:
    expect = str(BootPhase.RECORDING)
    ctx.store.advance(BOOT, _id(asked), expect=expect, to=str(phase), body=body)
    ctx.standing.news.set()
