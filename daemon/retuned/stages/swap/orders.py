"""The orders of stage 9: swaps and their ways back, and which are still to be driven.

Pure; the loading is the runtime's. Orders are carried out at least once and work exactly once: each
has an epoch, a runtime does an epoch once, and `reconcile` compares what ought to be in force with
what the runtimes say is.

How a swap spreads over the launches of a server, and what its checks may cost: records.
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
    """One step of a canary: a fraction, and what it takes to leave it."""

    fraction: float = Field(ge=0.0, le=1.0)
    """Share of launches that run the artifact; 0 serves the incumbent and shadows the artifact."""
    min_checks: int = Field(default=300, ge=1)
    """Clean checks at this step, of each shape bucket."""
    min_s: float = Field(default=60.0, ge=0.0)
    """Shortest time at this step, seconds."""
    patience_s: float = Field(default=3600.0, ge=0.0)
    """From here on buckets without enough checks are left out of the guard, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a swap spreads over the launches of a server; fields as those of `SwapOrder`."""

    canary: tuple[CanaryStep, ...] = ()
    """Steps."""
    shadow_later: tuple[tuple[float, int], ...] = ()
    """Rates of checks by age."""
    shadow_share: float = 1.0
    """Most time of checks."""
    noise: tuple[IncumbentNoise, ...] = ()
    """How far it may be from the incumbent, by shape bucket."""
    lease_s: float = 0.0
    """Time without a daemon, seconds."""
    orphan: Literal["hold", "rollback"] = "hold"
    """What an orphan does."""


def spread_by(
    limits: PolicyLimits,
    *,
    shadow_later: tuple[tuple[float, int], ...] = (),
    evidence: Evidence | None = None,
) -> Spread:
    """Return how a policy lets a swap spread.

    Parameters
    ----------
    limits
        Of the policy that decides about the kernel.
    shadow_later
        Rates of checks by age.
    evidence
        What the judge read of the artifact; has the incumbent's noise.
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
    """A rollback is a swap whose target is what ran before."""

    SWAP = "swap"
    ROLLBACK = "rollback"


class SwapOrder(Record):
    """One epoch of one slot; carrying it out twice is the same as once."""

    id: str
    """Digest of proposal, kind and epoch."""
    kind: SwapKind
    """Forward or back."""
    proposal: str
    """Proposal it carries out."""
    target: str
    """Server."""
    definition: Name
    """Slot."""
    artifact: Digest | None
    """What to activate; None means the original code that the server came with."""
    previous: Digest | None
    """What was active before: the way back; None means the original."""
    previous_guard: Guard | None = None
    """Shapes `previous` was for; None where it is not known or `previous` is the original."""
    guard: Guard
    """Shapes the artifact is for; all else stays with the original."""
    epoch: int = Field(ge=1)
    """Grows with every order to a target; the runtime refuses an older one."""
    shadow_every: int = Field(default=50, ge=1)
    """One launch in so many is checked against the incumbent."""
    shadow_tolerance: float = Field(default=1e-3, gt=0.0, le=1.0)
    """Largest difference from the incumbent that is allowed, as a share of its output's RMS."""
    shadow_later: tuple[tuple[float, int], ...] = ()
    """(From this age of a shape bucket in seconds, one launch in so many), rising ages."""
    shadow_share: float = Field(default=1.0, gt=0.0, le=1.0)
    """Most time of checks over time passed; 1 holds nothing back."""
    shadow_noise: tuple[IncumbentNoise, ...] = Field(default=(), max_length=256)
    """How far it may be from the incumbent by the incumbent's own noise, where that is known."""
    canary: tuple[CanaryStep, ...] = ()
    """Steps on the way to all launches; none swaps all at once."""
    lease_s: float = Field(default=0.0, ge=0.0, le=1e9)
    """After so long without a daemon an unfinished canary is an orphan; 0 is never, seconds."""
    orphan: Literal["hold", "rollback"] = "hold"
    """What an orphan does: keeps its fraction, or goes back by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """What one server process says about one slot."""

    definition: str
    """Name of the definition, also the slot's name."""
    active: Digest | None
    """Artifact in use; None is the original."""
    epoch: int
    """Last order carried out; 0 before the first and after a restart."""
    newest_epoch: int = 0
    """Last order that any process carried out; 0 says no more than `epoch`."""
    tripped: str = ""
    """Why the runtime took the order back by itself; empty if it did not."""


def order_swap(
    proposal: Proposal,
    *,
    epoch: int,
    previous: Digest | None = None,
    previous_guard: Guard | None = None,
    shadow_every: int = 50,
    shadow_tolerance: float = 1e-3,
    spread: Spread | None = None,
) -> SwapOrder:
    """Turn an approved proposal into the order that carries it out.

    Parameters
    ----------
    proposal
        Approved by the gate; the caller has checked that.
    epoch
        One more than any order to this target so far, see `next_epoch`.
    previous, previous_guard
        What is in force in the slot now and for which shapes; None is the original.
    shadow_every
        One swapped launch in so many is checked against the incumbent.
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
        shadow_every=shadow_every,
        shadow_tolerance=shadow_tolerance,
        shadow_later=spread.shadow_later,
        shadow_share=spread.shadow_share,
        shadow_noise=spread.noise,
        canary=spread.canary,
        lease_s=spread.lease_s,
        orphan=spread.orphan,
    )


def order_rollback(order: SwapOrder, *, epoch: int, to_original: bool = False) -> SwapOrder:
    """Return the order that undoes `order`: what was active before becomes active again.

    Where an artifact was active before but its shapes are not known, the way back ends at the
    original: an artifact without its guard could meet shapes nobody proved it on. So does a way
    back that is told `to_original`, because what was active before cannot be had again.

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
    """Return the orders still to be driven into one server, oldest first.

    Of `desired` only the newest order of each slot counts: what it replaced need not be repeated.
    It is driven where a process of the server has not reached its epoch, which covers a crash of
    either side at any point. A slot at the order's epoch is done even if its artifact is not
    active: then the runtime has taken itself back and swapping again would undo that. A slot nobody
    reports is left alone until its server is back, see `unopened`.

    Parameters
    ----------
    desired
        Every order ever written to this server, or the newest of each slot.
    states
        What the server says; several entries for one slot where it has several processes.

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
    """Return facts of slots that a server does not have because no order has opened them yet.

    The slot of a live kernel comes with the first variant that is prepared for it, and goes with
    the process. To the others `reconcile` would wait for ever.

    Parameters
    ----------
    orders
        The newest of each slot.
    states
        What the server says now; one that does not answer is not asked about.
    opens
        Whether an order's artifact opens its slot; asked only of slots that nobody reports.

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
    """Whether a slot stands where the order put it, or took that very order back by itself.

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
    """Whether a process would refuse the order: it has done a later one, or another of its epoch.

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
        raise ValueError(f"epoch {order.epoch} is issued again later, not at {epoch}")
    id = _order_id(order.proposal, kind=order.kind, epoch=epoch)
    return order.model_copy(update={"id": id, "epoch": epoch})


def to_original(order: SwapOrder, *, epoch: int) -> SwapOrder:
    """Return the way back that cannot fail: in place of a rollback whose artifact is not to be had.

    Raises
    ------
    ValueError
        If `epoch` is not after the order's.
    """
    return reissue(order, epoch=epoch).model_copy(update={"artifact": None, "guard": Guard()})


def next_epoch(orders: Sequence[SwapOrder], states: Sequence[SlotFacts]) -> int:
    """Return an epoch that every process will accept, even if the orders' history was lost.

    Examples
    --------
    >>> next_epoch([], [SlotFacts(definition="d", active=None, epoch=6)])
    7
    """
    carried_out = (max(state.epoch, state.newest_epoch) for state in states)
    return 1 + max((*(order.epoch for order in orders), *carried_out), default=0)


def _order_id(proposal: str, *, kind: SwapKind, epoch: int) -> str:
    return digest_of({"proposal": proposal, "kind": str(kind), "epoch": epoch})
