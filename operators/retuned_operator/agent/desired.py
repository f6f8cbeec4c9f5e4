"""What a pod is to have: the newest order of each slot, from proposals and their target. Pure.

It follows from the custom resources alone. So the same is said again after a crash of either side,
and a pod that comes late gets what was promoted before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from retuned.stages.swap import Spread, SwapKind, SwapOrder
from retuned_operator.crds.proposal import SwapProposal
from retuned_operator.crds.proposal_status import PodOrder, PodState, ProposalPhase
from retuned_operator.crds.target import TargetMode, TuningTarget
from retuned_operator.machine.orders import order_for


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
        Every proposal for that target, whatever its phase: ways back stay told.
    spread
        How a swap spreads over the launches of a server.
    """
    found: dict[str, SwapOrder] = {}
    mine = [each for each in proposals if each.target == target.full_name]
    for resource in mine:
        rollout = resource.status.rollout
        told = next((t for t in rollout.pods if t.uid == uid), None) if rollout else None
        if told is not None:
            _keep(found, order_for(resource, told, spread=spread(resource)))
    if target.spec.mode is TargetMode.SWAP:
        for order in _promoted(name, uid, target, mine):
            _keep(found, order)
    return tuple(found[slot] for slot in sorted(found))


def _promoted(
    name: str, uid: str, target: TuningTarget, proposals: Sequence[SwapProposal]
) -> list[SwapOrder]:
    """Return what every pod ought to run, for one that no rollout has told."""
    by_name = {each.metadata.name: each for each in proposals}
    orders = []
    for entry in target.status.active_kernels:
        resource = by_name.get(entry.proposal)
        if resource is None or resource.status.rollout is None:
            continue  # nobody knows any more what it carries out; the original serves
        if resource.status.phase is not ProposalPhase.PROMOTED:
            continue
        told = PodOrder(
            name=name, uid=uid, wants=PodState.SWAP, epoch=entry.epoch, since=entry.since
        )
        if all(each.uid != uid for each in resource.status.rollout.pods):
            orders.append(order_for(resource, told))
    return orders


def _keep(found: dict[str, SwapOrder], order: SwapOrder) -> None:
    """Keep the newest of a slot; a way back where two have one epoch."""
    known = found.get(order.definition)
    if known is None or _rank(known) < _rank(order):
        found[order.definition] = order


def _rank(order: SwapOrder) -> tuple[int, bool]:
    return order.epoch, order.kind is SwapKind.ROLLBACK
