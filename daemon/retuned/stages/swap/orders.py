"""Orders of stage 9: swaps and rollbacks, and which are still to be delivered. Pure.

The runtime loads. Orders are delivered at least once and take effect exactly once: each has an
epoch, and a runtime commits an epoch once. `reconcile` compares the wanted orders with the state
that the runtimes report. `Spread` records how a swap spreads over the launches of a server, and
what its checks may cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pydantic import Field

from retuned.contract import Digest, Guard, Name, Record, digest_of
from retuned.stages.gate import PolicyLimits
from retuned.stages.gate.limits import Orphan
from retuned.stages.proposal import Proposal
from retuned.stages.verdict import Evidence, IncumbentNoise


class CanaryStep(Record):
    """One step of a canary: a fraction, and the conditions to leave it."""

    fraction: float = Field(ge=0.0, le=1.0)
    """Share of launches that run the artifact; 0 serves the incumbent and shadows the artifact."""
    min_checks: int = Field(default=300, ge=1)
    """Clean checks at this step, of each shape bucket."""
    min_s: float = Field(default=60.0, ge=0.0)
    """Shortest time at this step, seconds."""
    patience_s: float = Field(default=3600.0, ge=0.0)
    """After this time, seconds, buckets without enough checks are left out of the guard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a swap spreads over the launches of a server; fields as those of `SwapOrder`."""

    canary: tuple[CanaryStep, ...] = ()
    shadow_later: tuple[tuple[float, int], ...] = ()
    shadow_share: float = 1.0
    noise: tuple[IncumbentNoise, ...] = ()
    lease_s: float = 0.0
    orphan: Literal["hold", "rollback"] = "hold"
    shadow_every: int = 50


def spread_by(
    limits: PolicyLimits,
    *,
    shadow_every: int = 50,
    shadow_later: tuple[tuple[float, int], ...] = (),
    evidence: Evidence | None = None,
) -> Spread:
    """Return how a policy lets a swap spread.

    Parameters
    ----------
    limits
        Of the policy that decides about the kernel.
    shadow_every
        One swapped launch in so many is checked against the incumbent.
    shadow_later
        Rates of checks by age.
    evidence
        The judge's input for the artifact; contains the incumbent's noise.
    """
    canary = limits.canary
    steps = [
        CanaryStep(
            fraction=step.fraction,
            min_checks=step.min_checks,
            min_s=step.min_seconds,
            patience_s=step.patience.total_seconds(),
        )
        for step in canary.steps
    ]
    if canary.shadow_first:
        first = steps[0] if steps else CanaryStep(fraction=1.0)
        steps.insert(0, first.model_copy(update={"fraction": 0.0}))
    return Spread(
        canary=tuple(steps),
        shadow_every=shadow_every,
        shadow_later=shadow_later,
        shadow_share=limits.shadow_share,
        noise=_noise(evidence) if evidence is not None else (),
        lease_s=canary.lease.total_seconds() if steps else 0.0,
        orphan="rollback" if canary.orphan is Orphan.ROLLBACK else "hold",
    )


def _noise(evidence: Evidence) -> tuple[IncumbentNoise, ...]:
    """Return the largest of each bucket, over all checks."""
    found: dict[tuple[int, ...], IncumbentNoise] = {}
    for each in (noise for check in evidence.checks for noise in check.incumbent_noise):
        known = found.get(each.bucket)
        if known is None or known.rms < each.rms:
            found[each.bucket] = each
    return tuple(found.values())


class SwapKind(StrEnum):
    """A rollback is a swap to the previous variant or the original."""

    SWAP = "swap"
    ROLLBACK = "rollback"


class SwapOrder(Record):
    """One epoch of one slot; a repeated commit has no further effect."""

    id: str
    """Digest of proposal, kind and epoch."""
    kind: SwapKind
    """Swap or rollback."""
    proposal: str
    target: str
    definition: Name
    """Name of the slot."""
    artifact: Digest | None
    """Artifact to activate; None means the original that the server came with."""
    previous: Digest | None
    """Artifact that was active before, for a rollback; None means the original."""
    previous_guard: Guard | None = None
    """Guard of `previous`; None if unknown or `previous` is the original."""
    guard: Guard
    """Shapes that run the artifact; all others run the original."""
    epoch: int = Field(ge=1)
    """Grows with every order to a target; the runtime refuses an older one."""
    shadow_every: int = Field(default=50, ge=1)
    """One launch in so many is checked against the incumbent."""
    shadow_tolerance: float = Field(default=1e-3, gt=0.0, le=1.0)
    """Largest difference from the incumbent that is allowed, as a share of its output's RMS."""
    shadow_later: tuple[tuple[float, int], ...] = ()
    """(From this age of a shape bucket in seconds, one launch in so many), rising ages."""
    shadow_share: float = Field(default=1.0, gt=0.0, le=1.0)
    """Most time of checks over elapsed time; 1 means no limit."""
    shadow_noise: tuple[IncumbentNoise, ...] = Field(default=(), max_length=256)
    """Allowed difference from the incumbent by the incumbent's own noise, if known."""
    canary: tuple[CanaryStep, ...] = ()
    """Steps before all launches; an empty tuple swaps all immediately."""
    lease_s: float = Field(default=0.0, ge=0.0, le=1e9)
    """After this time without a daemon, seconds, an unfinished canary is an orphan; 0 means never.
    """
    orphan: Literal["hold", "rollback"] = "hold"
    """What an orphan does: keep its fraction, or roll back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """State of one slot in one server process, as the process reports it."""

    definition: str
    """Name of the definition and of the slot."""
    active: Digest | None
    """Artifact in use; None is the original."""
    epoch: int
    """Last committed order; 0 before the first and after a restart."""
    newest_epoch: int = 0
    """Last order that any process committed; 0 adds nothing to `epoch`."""
    tripped: str = ""
    """Why the runtime's circuit breaker stopped the order; empty if it did not."""


def order_swap(
    proposal: Proposal,
    *,
    epoch: int,
    previous: Digest | None = None,
    previous_guard: Guard | None = None,
    shadow_tolerance: float = 1e-3,
    spread: Spread | None = None,
) -> SwapOrder:
    """Make the order for an approved proposal.

    Parameters
    ----------
    proposal
        Approved by the gate; the caller has checked that.
    epoch
        One more than any order to this target so far, see `next_epoch`.
    previous, previous_guard
        Active artifact of the slot and its guard; None is the original.
    shadow_tolerance
        Allowed difference, as a share of the RMS of the incumbent's output.
    spread
        How the swap spreads over launches, and what checks may cost; all at once by default.
    """
    spread = spread or Spread()
    return SwapOrder(
        id=_order_id(proposal.id, kind=SwapKind.SWAP, epoch=epoch),
        kind=SwapKind.SWAP,
        proposal=proposal.id,
        target=proposal.target,
        definition=proposal.definition,
        artifact=proposal.artifact,
        previous=previous,
        previous_guard=previous_guard if previous is not None else None,
        guard=proposal.guard,
        epoch=epoch,
        shadow_every=spread.shadow_every,
        shadow_tolerance=shadow_tolerance,
        shadow_later=spread.shadow_later,
        shadow_share=spread.shadow_share,
        shadow_noise=spread.noise,
        canary=spread.canary,
        lease_s=spread.lease_s,
        orphan=spread.orphan,
    )


def order_rollback(order: SwapOrder, *, epoch: int, to_original: bool = False) -> SwapOrder:
    """Return the rollback of `order`: the previously active artifact becomes active again.

    If an artifact was active before but its guard is unknown, the rollback activates the original:
    an artifact without its guard could run shapes that it was never validated on. `to_original`
    does the same, for a previous artifact that is no longer available.

    Examples
    --------
    >>> forward = SwapOrder(id="x", kind="swap", proposal="p", target="t", definition="d",
    ...     artifact="sha256:" + "a" * 64, previous=None, guard=Guard(), epoch=4)
    >>> back = order_rollback(forward, epoch=5)
    >>> back.kind, back.artifact, back.previous == forward.artifact, back.epoch
    (<SwapKind.ROLLBACK: 'rollback'>, None, True, 5)

    Raises
    ------
    ValueError
        If `epoch` is not after the order's: the runtime would refuse it.
    """
    if epoch <= order.epoch:
        raise ValueError(f"a rollback of epoch {order.epoch} needs a later epoch, got {epoch}")
    known = not to_original and order.previous is not None and order.previous_guard is not None
    return SwapOrder(
        id=_order_id(order.proposal, kind=SwapKind.ROLLBACK, epoch=epoch),
        kind=SwapKind.ROLLBACK,
        proposal=order.proposal,
        target=order.target,
        definition=order.definition,
        artifact=order.previous if known else None,
        previous=order.artifact,
        previous_guard=order.guard,
        guard=order.previous_guard if known and order.previous_guard is not None else Guard(),
        epoch=epoch,
        shadow_every=order.shadow_every,
        shadow_tolerance=order.shadow_tolerance,
        shadow_later=order.shadow_later,
        shadow_share=order.shadow_share,
    )


def reconcile(desired: Sequence[SwapOrder], states: Sequence[SlotFacts]) -> tuple[SwapOrder, ...]:
    """Return the orders still to be delivered to one server, oldest first.

    Of `desired` only the newest order of each slot counts; older ones need not be repeated. It is
    delivered if a process of the server has not reached its epoch, which covers a crash of either
    side at any point. A slot at the order's epoch is done even if its artifact is not active: then
    the circuit breaker stopped the order, and a second swap would undo that. An unreported slot is
    skipped until its server returns, see `unopened`.

    Parameters
    ----------
    desired
        Every order ever written to this server, or the newest of each slot.
    states
        Reported state of the server; several entries for one slot if it has several processes.

    Examples
    --------
    >>> order = SwapOrder(id="x", kind="swap", proposal="p", target="t", definition="d",
    ...     artifact="sha256:" + "a" * 64, previous=None, guard=Guard(), epoch=4)
    >>> [o.id for o in reconcile([order], [SlotFacts(definition="d", active=None, epoch=0)])]
    ['x']
    >>> reconcile([order], [SlotFacts(definition="d", active=order.artifact, epoch=4)])
    ()
    """
    reached: dict[str, int] = {}
    for state in states:
        reached[state.definition] = min(state.epoch, reached.get(state.definition, state.epoch))
    newest: dict[str, SwapOrder] = {}
    for order in desired:
        known = newest.get(order.definition)
        if known is None or order.epoch > known.epoch:
            newest[order.definition] = order
    due = [o for o in newest.values() if reached.get(o.definition, o.epoch) < o.epoch]
    return tuple(sorted(due, key=lambda order: order.epoch))


def unopened(
    orders: Sequence[SwapOrder], states: Sequence[SlotFacts], *, opens: Callable[[SwapOrder], bool]
) -> tuple[SlotFacts, ...]:
    """Return facts of slots that a server lacks because no order has opened them yet.

    The slot of a live kernel appears with the first variant prepared for it, and disappears with
    the process. `reconcile` would wait for such slots without limit.

    Parameters
    ----------
    orders
        The newest of each slot.
    states
        Reported state of the server; not for a server that does not answer.
    opens
        Whether an order's artifact opens its slot; called only for unreported slots.

    Examples
    --------
    >>> order = SwapOrder(id="x", kind="swap", proposal="p", target="t", definition="d",
    ...     artifact="sha256:" + "a" * 64, previous=None, guard=Guard(), epoch=4)
    >>> [(fact.definition, fact.epoch) for fact in unopened([order], [], opens=lambda _: True)]
    [('d', 0)]
    >>> unopened([order], [SlotFacts(definition="d", active=None, epoch=4)], opens=lambda _: True)
    ()
    """
    reported = {state.definition for state in states}
    missing = [o for o in orders if o.definition not in reported and o.artifact is not None]
    return tuple(
        SlotFacts(definition=order.definition, active=None, epoch=0)
        for order in missing
        if opens(order)
    )


def is_carried_out(order: SwapOrder, fact: SlotFacts) -> bool:
    """Whether a slot has the state that the order wants, or its circuit breaker tripped.

    The epoch alone proves nothing: a daemon that lost its state counts from one again.

    Examples
    --------
    >>> order = SwapOrder(id="x", kind="swap", proposal="p", target="t", definition="d",
    ...     artifact="sha256:" + "a" * 64, previous=None, guard=Guard(), epoch=4)
    >>> is_carried_out(order, SlotFacts(definition="d", active=None, epoch=4))
    False
    >>> is_carried_out(order, SlotFacts(definition="d", active=None, epoch=4, tripped="errors"))
    True
    """
    same = fact.active == order.artifact or fact.tripped != ""
    return fact.definition == order.definition and fact.epoch == order.epoch and same


def is_overtaken(order: SwapOrder, states: Sequence[SlotFacts]) -> bool:
    """Whether a process would refuse the order: it committed a later one, or another of its epoch.

    Examples
    --------
    >>> order = SwapOrder(id="x", kind="rollback", proposal="p", target="t", definition="d",
    ...     artifact=None, previous=None, guard=Guard(), epoch=4)
    >>> is_overtaken(order, [SlotFacts(definition="d", active=None, epoch=3, newest_epoch=9)])
    True
    >>> is_overtaken(order, [SlotFacts(definition="d", active=None, epoch=4)])
    False
    """
    mine = [state for state in states if state.definition == order.definition]
    return any(
        max(state.epoch, state.newest_epoch) > order.epoch
        or (state.epoch == order.epoch and not is_carried_out(order, state))
        for state in mine
    )


def reissue(order: SwapOrder, *, epoch: int) -> SwapOrder:
    """Return the same order under a later epoch.

    Raises
    ------
    ValueError
        If `epoch` is not after the order's.
    """
    if epoch <= order.epoch:
        raise ValueError(f"epoch {order.epoch} must be reissued at a later epoch, not at {epoch}")
    id = _order_id(order.proposal, kind=order.kind, epoch=epoch)
    return order.model_copy(update={"id": id, "epoch": epoch})


def to_original(order: SwapOrder, *, epoch: int) -> SwapOrder:
    """Return the rollback to the original, for a rollback whose artifact is unavailable.

    Raises
    ------
    ValueError
        If `epoch` is not after the order's.
    """
    return reissue(order, epoch=epoch).model_copy(update={"artifact": None, "guard": Guard()})


def next_epoch(orders: Sequence[SwapOrder], states: Sequence[SlotFacts]) -> int:
    """Return an epoch that every process accepts, even if the orders' history was lost.

    Examples
    --------
    >>> next_epoch([], [SlotFacts(definition="d", active=None, epoch=6)])
    7
    """
    carried_out = (max(state.epoch, state.newest_epoch) for state in states)
    return 1 + max((*(order.epoch for order in orders), *carried_out), default=0)


def _order_id(proposal: str, *, kind: SwapKind, epoch: int) -> str:
    return digest_of({"proposal": proposal, "kind": str(kind), "epoch": epoch})
