"""What sets the pace of the server's steps, observed now and then, and what that predicts.

It also asks, once a day, what Retuned itself adds to a step.

A few seconds of steps are recorded while something may be swapped or a lesson is in force. They
show whether the GPU or the host sets the pace, and which server a lesson is about.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from datetime import timedelta

from pydantic import AwareDatetime, Field, ValidationError

from retuned.contract import Record
from retuned.errors import RetunedError
from retuned.ports import Store
from retuned.stages.gate import LiveProof, LiveProofMode
from retuned.stages.proposal import Proposal, Refusal, RefusalReason, ServerKey
from retuned.stages.watch import own_overhead, proof
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.records import BEFORE_SWAP, UNDER_WAY, committed, proposals
from retuned.standalone.tunables.records import environment_of

log = logging.getLogger(__name__)

SERVER = "server"
"""Id of the record of looks."""
_LOOK_S = 5.0
"""Length of a look."""
_EVERY = timedelta(minutes=10)
_SOON = timedelta(seconds=30)
"""Until the next look while there are too few steps for a prediction: steps may take 100 ms."""
_LOOKS = 6
"""Looks that are kept; together they predict."""
_RECENT = timedelta(hours=2)
"""An older look says nothing about the server now."""
_WANTED = (
    (RecordKind.HYPOTHESIS, ("open", "testing")),
    (RecordKind.EXPERIMENT, ("running", "won", "deferred")),
    (RecordKind.PROPOSAL, (*BEFORE_SWAP, *UNDER_WAY)),
    (RecordKind.LESSON, ("holds",)),
)


class PaceLook(Record):
    """Steps of the server in a few seconds."""

    at: AwareDatetime
    engine: str = Field(default="", max_length=200)
    pace: proof.Pace


class PaceLooks(Record):
    """The newest looks, oldest first."""

    looks: tuple[PaceLook, ...] = ()


def observe(ctx: Context) -> None:
    """Look at the server's steps if it is time to, and predict open proposals again."""
    if ctx.step_observer is None or not _is_due(ctx):
        return
    try:
        seen = ctx.step_observer.observe(_LOOK_S)
    except RetunedError as error:
        log.info("steps of the server are not known: %s", error)
        return
    pace = proof.Pace().after(proof.columns_of(seen.steps))
    look = PaceLook(at=ctx.clock.now(), engine=seen.engine, pace=pace)
    kept = PaceLooks(looks=(*_looks(ctx.store), look)[-_LOOKS:])
    body = kept.model_dump(mode="json")
    if not ctx.store.add(RecordKind.PACE, SERVER, body, phase="current"):
        ctx.store.advance(RecordKind.PACE, SERVER, expect="current", to="current", body=body)
    for _, proposal in proposals(ctx, BEFORE_SWAP):
        try:
            keep_forecast(ctx, proposal)
        except (RetunedError, OSError) as error:  # such as a policy that cannot be read
            log.error("%s keeps its former prediction: %s", proposal.definition, error)


def measure_own_overhead(ctx: Context, stop: threading.Event) -> None:
    """Measure now and then what Retuned costs the server, while no swap needs its wrappers."""
    if ctx.own_overhead is not None:
        ctx.own_overhead.keep_up(stop, wanted=lambda: _undisturbed(ctx))


def _undisturbed(ctx: Context) -> bool:
    if any(kept.order.artifact is not None for kept in committed(ctx.store).values()):
        return False
    return not proposals(ctx, UNDER_WAY) and _may_measure(ctx)


def _may_measure(ctx: Context) -> bool:
    """Whether the policies let the wrappers leave; False while one cannot be read."""
    try:
        return own_overhead.is_allowed(ctx.policies(), ctx.labels)
    except (RetunedError, OSError):
        return False


def _proofs_are_off(ctx: Context) -> bool:
    """Whether no policy measures anything in live traffic, or none can be read."""
    try:
        policies = ctx.policies()
    except (RetunedError, OSError):
        return True
    modes = {policy.spec.live_proof.mode for policy in policies} or {LiveProof().mode}
    return modes == {LiveProofMode.OFF}


def _is_due(ctx: Context) -> bool:
    looks = _looks(ctx.store)
    recent = _recent(ctx)
    few = len(recent) < _LOOKS and sum(look.pace.seen for look in recent) < proof.LEAST_STEPS
    if looks and ctx.clock.now() - looks[-1].at < (_SOON if few else _EVERY):
        return False
    if not any(ctx.store.ids(kind, phase=p) for kind, phases in _WANTED for p in phases):
        return False
    return not _proofs_are_off(ctx)


def _looks(store: Store) -> tuple[PaceLook, ...]:
    stored = store.get(RecordKind.PACE, SERVER)
    if stored is None:
        return ()
    try:
        return PaceLooks.model_validate(stored.body).looks
    except ValidationError as error:
        log.warning("looks at the server's steps begin again: %s", error)
        return ()


def _recent(ctx: Context) -> list[PaceLook]:
    return [look for look in _looks(ctx.store) if ctx.clock.now() - look.at <= _RECENT]


def _together(looks: Iterable[PaceLook]) -> proof.Pace | None:
    total = None
    for look in looks:
        total = look.pace if total is None else total.joined(look.pace)
    return total


def key_of(ctx: Context, definition: str, *, pace: proof.Pace | None = None) -> ServerKey:
    """Return the server as lessons know it.

    Parameters
    ----------
    pace
        Steps to describe it by; by default, or where GPU time is unknown, those of recent looks.
    """
    looks = _recent(ctx)
    if pace is None or not pace.steps:
        pace = _together(looks) or proof.Pace()
    return ServerKey(
        environment=environment_of(ctx, definition),
        engine=looks[-1].engine if looks else "",
        graphs=2 * pace.in_graphs > pace.steps if pace.steps else None,
        busy_ratio=pace.busy_ratio,
    )


def forecast(ctx: Context, definition: str, *, share: float, speedup: float) -> proof.Forecast:
    """Predict what a swap gives a step of the server, or name why that is unknown.

    Parameters
    ----------
    share
        Share of GPU time of the swapped shapes, 0 to 1.
    speedup
        Time of the incumbent over that of the variant.
    """
    limits = ctx.policy_limits(definition)
    rule = LiveProof() if limits is None else limits.live_proof
    pace = _together(_recent(ctx))
    return proof.forecast(share, speedup, pace=pace, min_effect=rule.min_effect)


def refusal(ctx: Context, definition: str, *, share: float, speedup: float) -> Refusal | None:
    """Return why a swap cannot gain, where the policy requires a gain; None if it may."""
    limits = ctx.policy_limits(definition)
    if limits is None or limits.live_proof.mode is not LiveProofMode.REQUIRED:
        return None
    found = forecast(ctx, definition, share=share, speedup=speedup)
    if not found.host_bound:
        return None
    return Refusal(
        reason=RefusalReason.HOST_BOUND,
        detail=(
            f"host-bound: the server cannot gain from this; the GPU sets the pace of "
            f"{found.pace.gpu_bound} of {found.pace.clear} steps"
        ),
    )


def keep_forecast(ctx: Context, proposal: Proposal) -> None:
    """Keep the prediction for a proposal beside it, with what it was computed from."""
    found = forecast(ctx, proposal.definition, share=proposal.share, speedup=proposal.speedup.point)
    body = found.model_dump(mode="json")
    if not ctx.store.add(RecordKind.FORECAST, proposal.id, body, phase="current"):
        ctx.store.advance(
            RecordKind.FORECAST, proposal.id, expect="current", to="current", body=body
        )


def forecast_of(store: Store, proposal: str) -> proof.Forecast | None:
    """Return the prediction that was kept for a proposal; None without one."""
    stored = store.get(RecordKind.FORECAST, proposal)
    if stored is None:
        return None
    try:
        return proof.Forecast.model_validate(stored.body)
    except ValidationError as error:
        log.warning("the prediction for %s cannot be understood: %s", proposal, error)
        return None
