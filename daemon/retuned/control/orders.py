"""Orders of pods, derived from the status of a proposal, and their progress. Pure.

The status records which pod must have which variant, under which epoch; the order follows from it.
So the agent API can send the same order repeatedly, and a restarted operator sends the same orders.
The newest order of each slot of a pod comes from the proposals and their target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from retuned.api.proposal import PodOrder, PodState, ProposalPhase, RolloutStatus, SwapProposal
from retuned.api.target import ActiveKernel, TargetMode, TuningTarget
from retuned.control.facts import HeldFact, PodFact
from retuned.stages.swap import (
    SlotFacts,
    Spread,
    SwapKind,
    SwapOrder,
    is_carried_out,
    is_overtaken,
    order_rollback,
    order_swap,
)
from retuned.stages.watch.proof import Arm

OUT_OF_EPOCH = "out-of-epoch"
"""A sidecar's code for an order that came after a later one; it is reissued with a new epoch."""


def order_for(resource: SwapProposal, told: PodOrder, *, spread: Spread | None = None) -> SwapOrder:
    """Return the order of one pod.

    Parameters
    ----------
    resource
        The proposal; its status has a rollout.
    told
        The pod's entry in that rollout.
    spread
        How the swap spreads over the launches of the pod's server; all launches by default.

    Raises
    ------
    ValueError
        If the proposal has no rollout, or does not come from an API server.
    """
    rollout = resource.status.rollout
    if rollout is None:
        raise ValueError(f"{resource.metadata.name} has no rollout, so nothing is ordered")
    back = told.wants is PodState.BACK
    forward = order_swap(
        resource.stage_proposal(),
        epoch=told.epoch - 1 if back else told.epoch,
        previous=rollout.previous.digest if rollout.previous else None,
        previous_guard=rollout.previous.guard if rollout.previous else None,
        spread=spread,
    )
    return order_rollback(forward, epoch=told.epoch) if back else forward


def replica_order(resource: SwapProposal, uid: str, *, target: TuningTarget) -> SwapOrder | None:
    """Return the order to swap of a canary replica; None for every other pod.

    Parameters
    ----------
    resource
        The proposal; its status names the replicas of each pair.
    uid
        The pod.
    target
        Its TuningTarget, whose active variant is the previous one.
    """
    kept = resource.status.replicas
    if kept is None or kept.verdict or resource.status.phase is not ProposalPhase.PROVING:
        return None
    if all((uid, Arm.ON) not in zip(pair.uids, pair.runs, strict=True) for pair in kept.open):
        return None
    kernel = resource.spec.kernel
    entry = next((e for e in target.status.active_kernels if e.kernel == kernel), None)
    return order_swap(
        resource.stage_proposal(),
        epoch=2 if entry is None else entry.epoch + 1,
        previous=entry.digest if entry is not None else None,
        previous_guard=entry.guard if entry is not None else None,
    )


def slot_of(pod: PodFact, kernel: str) -> SlotFacts:
    """Return a pod's report as facts of stage 9."""
    return SlotFacts(
        definition=kernel,
        active=pod.active,
        epoch=pod.epoch,
        newest_epoch=pod.newest_epoch,
        tripped=pod.tripped,
    )


def observed(
    resource: SwapProposal, rollout: RolloutStatus, pods: Sequence[PodFact], *, now: datetime
) -> RolloutStatus:
    """Return the rollout with the pods' state: done, gone, or to be reissued with a later epoch."""
    facts = {pod.uid: pod for pod in pods}
    present = [told for told in rollout.pods if told.uid in facts]
    later = next_epoch(rollout, pods)
    current = resource.model_copy(
        update={"status": resource.status.model_copy(update={"rollout": rollout})}
    )
    found = []
    update: dict[str, object]
    for told in present:
        slot = slot_of(facts[told.uid], resource.spec.kernel)
        order, held = order_for(current, told), held_of(facts[told.uid], told)
        if _serves_original(told, slot):
            update = {"done": True, "held": ""}
        elif is_overtaken(order, [slot]):
            update = {"epoch": later, "since": now, "done": False, "held": ""}
        elif is_carried_out(order, slot):
            update = {"done": True, "held": ""}
        elif held is not None and held.final and held.reason == OUT_OF_EPOCH:
            # its sidecar has a later order than its server reports; it gets no extra time for that
            update = {"epoch": later, "done": False, "held": OUT_OF_EPOCH}
        else:
            update = {"done": False, "held": held.reason if held is not None else ""}
            if told.done:  # its server restarted: the time to commit begins again
                update["since"] = now
        found.append(told.model_copy(update=update))
    return rollout.model_copy(update={"pods": tuple(found)})


def recalled(rollout: RolloutStatus, pods: Iterable[PodFact]) -> RolloutStatus:
    """Return the rollout without the swaps that no process has committed.

    If a pod commits such an order in spite of that, its node agent rolls it back: no control plane
    names it any more.
    """
    facts = {pod.uid: pod for pod in pods}
    kept = tuple(
        told
        for told in rollout.pods
        if told.wants is not PodState.SWAP or told.done or _may_have(facts.get(told.uid), told)
    )
    return rollout.model_copy(update={"pods": kept})


def _may_have(pod: PodFact | None, told: PodOrder) -> bool:
    return pod is not None and max(pod.epoch, pod.newest_epoch) >= told.epoch


def _serves_original(told: PodOrder, slot: SlotFacts) -> bool:
    """Whether a pod restored the original where the previous variant was unavailable."""
    return told.wants is PodState.BACK and slot.active is None and slot.epoch >= told.epoch


def held_of(pod: PodFact, told: PodOrder) -> HeldFact | None:
    """Return why a pod has not committed its order; None if it gives no reason."""
    return pod.held if pod.held is not None and pod.held.epoch == told.epoch else None


def next_epoch(rollout: RolloutStatus | None, pods: Iterable[PodFact]) -> int:
    """Return an epoch that every pod accepts, at least 2: a rollback needs one before it."""
    told = rollout.pods if rollout else ()
    before = rollout.previous.epoch if rollout and rollout.previous else 1
    before = max(before, rollout.last_epoch if rollout else 0)
    seen = [max(pod.epoch, pod.newest_epoch) for pod in pods]
    return 1 + max([before, *(each.epoch for each in told), *seen])


def tell(
    rollout: RolloutStatus,
    pods: Iterable[PodFact],
    *,
    wants: PodState,
    epoch: int,
    now: datetime,
) -> RolloutStatus:
    """Return the rollout with new orders for some pods."""
    new = {
        pod.uid: PodOrder(
            name=pod.name, uid=pod.uid, wants=wants, epoch=epoch, since=now, ends=pod.ends
        )
        for pod in pods
    }
    if not new:
        return rollout
    kept = [told for told in rollout.pods if told.uid not in new]
    last = max(rollout.last_epoch, epoch)
    update: dict[str, object] = {"pods": (*kept, *new.values()), "last_epoch": last}
    if wants is PodState.SWAP:
        update["last_swap_at"] = now
    return rollout.model_copy(update=update)


def active_entry(resource: SwapProposal, rollout: RolloutStatus, *, now: datetime) -> ActiveKernel:
    """Return the variant that every pod must run once the proposal is promoted."""
    return ActiveKernel(
        kernel=resource.spec.kernel,
        digest=resource.spec.artifact.digest,
        guard=resource.spec.guard,
        epoch=max((told.epoch for told in rollout.pods), default=1),
        proposal=resource.metadata.name,
        since=now,
    )


def desired_orders(
    name: str,
    uid: str,
    *,
    target: TuningTarget,
    proposals: Sequence[SwapProposal],
    spread: Callable[[SwapProposal], Spread | None] = lambda _: None,
) -> tuple[SwapOrder, ...]:
    """Return the orders of one pod, by slot.

    Parameters
    ----------
    name, uid
        The pod.
    target
        Its TuningTarget.
    proposals
        Every proposal for that target, whatever its phase: rollbacks are still sent.
    spread
        How a swap spreads over the launches of a server.
    """
    found: dict[str, SwapOrder] = {}
    mine = [each for each in proposals if each.target == target.full_name]
    for resource in mine:
        canary = replica_order(resource, uid, target=target)
        if canary is not None:
            _keep(found, canary)
        rollout = resource.status.rollout
        told = next((t for t in rollout.pods if t.uid == uid), None) if rollout else None
        if told is not None:
            _keep(found, order_for(resource, told, spread=spread(resource)))
    if target.spec.mode is TargetMode.SWAP:
        for order in _promoted(name, uid, target, mine):
            _keep(found, order)
    return tuple(found[slot] for slot in sorted(found))


def awaits_commit(resource: SwapProposal) -> bool:
    """Whether some pod has an order to swap that it has not committed."""
    rollout = resource.status.rollout
    told = rollout.pods if rollout is not None else ()
    return any(each.wants is PodState.SWAP and not each.done for each in told)


def _promoted(
    name: str, uid: str, target: TuningTarget, proposals: Sequence[SwapProposal]
) -> list[SwapOrder]:
    """Return the active variants for a pod without an order from a rollout."""
    by_name = {each.metadata.name: each for each in proposals}
    orders = []
    for entry in target.status.active_kernels:
        resource = by_name.get(entry.proposal)
        if resource is None or resource.status.rollout is None:
            continue  # its order is unknown by now; the original serves
        if resource.status.phase is not ProposalPhase.PROMOTED:
            continue
        told = PodOrder(
            name=name, uid=uid, wants=PodState.SWAP, epoch=entry.epoch, since=entry.since
        )
        if all(each.uid != uid for each in resource.status.rollout.pods):
            orders.append(order_for(resource, told))
    return orders


def _keep(found: dict[str, SwapOrder], order: SwapOrder) -> None:
    """Keep the newest of a slot; the rollback if two have one epoch."""
    known = found.get(order.definition)
    if known is None or _rank(known) < _rank(order):
        found[order.definition] = order


def _rank(order: SwapOrder) -> tuple[int, bool]:
    return order.epoch, order.kind is SwapKind.ROLLBACK
