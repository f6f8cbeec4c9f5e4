"""What a pod is to have follows from the custom resources alone, and is the same after a crash."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.operators.examples import ARTIFACT, NOW, a_swap, a_target

from retuned.api.agent import as_orders
from retuned.api.proposal import PodOrder, PodState, RolloutStatus, SwapProposalStatus
from retuned.api.target import ActiveKernel, TargetMode
from retuned.stages.swap import SwapKind
from retuned_operator.agent_api import desired_orders
from retuned_operator.schema import ProposalPhase, SwapProposal, TuningTarget, read


def told(uid: str, wants: PodState, epoch: int) -> PodOrder:
    return PodOrder(name=f"pod-{uid}", uid=uid, wants=wants, epoch=epoch, since=NOW)


def proposal(*pods: PodOrder, phase: ProposalPhase = ProposalPhase.CANARY) -> SwapProposal:
    resource = read(SwapProposal, a_swap())
    rollout = RolloutStatus(started_at=NOW, wave_started_at=NOW, last_swap_at=NOW, pods=tuple(pods))
    status = SwapProposalStatus(phase=phase, rollout=rollout if pods else None)
    return resource.model_copy(update={"status": status})


def target(*, mode: TargetMode = TargetMode.SWAP, **status: Any) -> TuningTarget:
    found = read(TuningTarget, a_target())
    spec = found.spec.model_copy(update={"mode": mode})
    kept = found.status.model_copy(update={"active_kernels": (), **status})
    return found.model_copy(update={"spec": spec, "status": kept})


def entry(resource: SwapProposal, *, epoch: int = 4) -> ActiveKernel:
    return ActiveKernel(
        kernel=resource.spec.kernel,
        digest=ARTIFACT,
        epoch=epoch,
        proposal=resource.metadata.name,
        since=NOW + timedelta(hours=1),
    )


def test_a_pod_has_what_its_own_rollout_tells_it_and_others_have_nothing() -> None:
    resource = proposal(told("u-0", PodState.SWAP, 2))
    (order,) = desired_orders("pod-u-0", "u-0", target=target(), proposals=[resource])
    assert (order.artifact, order.epoch, order.kind) == (ARTIFACT, 2, SwapKind.SWAP)
    assert order.target == target().full_name
    assert desired_orders("pod-u-1", "u-1", target=target(), proposals=[resource]) == ()


def test_the_same_is_said_again_and_names_the_same_set() -> None:
    resource = proposal(told("u-0", PodState.SWAP, 2))
    sets = [
        as_orders(desired_orders("pod-u-0", "u-0", target=target(), proposals=[resource]))
        for _ in range(2)
    ]
    assert sets[0] == sets[1]


def test_a_way_back_stays_told_after_its_proposal_has_ended() -> None:
    resource = proposal(told("u-0", PodState.BACK, 3), phase=ProposalPhase.ROLLED_BACK)
    (order,) = desired_orders("pod-u-0", "u-0", target=target(), proposals=[resource])
    assert (order.kind, order.artifact, order.epoch) == (SwapKind.ROLLBACK, None, 3)


def test_of_two_proposals_for_a_slot_the_newest_order_counts() -> None:
    former = proposal(told("u-0", PodState.BACK, 3), phase=ProposalPhase.ROLLED_BACK)
    newer = proposal(told("u-0", PodState.SWAP, 4))
    for order_of_listing in ([former, newer], [newer, former]):
        (order,) = desired_orders("n", "u-0", target=target(), proposals=order_of_listing)
        assert order.epoch == 4


def test_a_pod_that_comes_late_gets_what_was_promoted() -> None:
    resource = proposal(told("u-0", PodState.SWAP, 4), phase=ProposalPhase.PROMOTED)
    promoted = target(active_kernels=(entry(resource),))
    (order,) = desired_orders("new", "u-9", target=promoted, proposals=[resource])
    assert (order.artifact, order.epoch) == (ARTIFACT, 4)


def test_a_pod_that_comes_late_gets_nothing_that_is_still_being_proven() -> None:
    resource = proposal(told("u-0", PodState.SWAP, 4), phase=ProposalPhase.WATCHING)
    assert desired_orders("new", "u-9", target=target(), proposals=[resource]) == ()
    early = target(active_kernels=(entry(resource),))
    assert desired_orders("new", "u-9", target=early, proposals=[resource]) == ()


def test_a_target_that_is_only_observed_swaps_nothing_into_new_pods() -> None:
    resource = proposal(told("u-0", PodState.SWAP, 4), phase=ProposalPhase.PROMOTED)
    observed = target(mode=TargetMode.OBSERVE, active_kernels=(entry(resource),))
    assert desired_orders("new", "u-9", target=observed, proposals=[resource]) == ()


def test_a_proposal_for_another_target_says_nothing_here() -> None:
    resource = proposal(told("u-0", PodState.SWAP, 2))
    elsewhere = target()
    metadata = elsewhere.metadata.model_copy(update={"name": "another"})
    elsewhere = elsewhere.model_copy(update={"metadata": metadata})
    assert desired_orders("n", "u-0", target=elsewhere, proposals=[resource]) == ()
