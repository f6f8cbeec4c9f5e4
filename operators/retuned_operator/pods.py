"""What the agent API asks the operator: pods, what they are to have, artifacts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from retuned.api.agent import AlarmOrder, BootOrder, OverheadOrder, ProofOrder
from retuned.contract import Digest
from retuned.control.attributions import alarm_orders
from retuned.control.canary import boot_order
from retuned.control.orders import desired_orders
from retuned.control.own_overhead import overhead_order
from retuned.control.sentinels import all_orders
from retuned.control.step_spans import last_span
from retuned.errors import TemporaryError, UnreadableInput
from retuned.stages.swap import SwapOrder
from retuned_operator.agent_api import PodRecord
from retuned_operator.controllers import objects
from retuned_operator.controllers.accelerators import gpus_of
from retuned_operator.controllers.ports import BY_SELECTOR, BY_TARGET, Caches
from retuned_operator.kube.resources import PODS, PROPOSALS, TARGETS, Obj
from retuned_operator.schema import SwapProposal, TuningTarget, read

_AGAIN_S = 5.0


class CachedFleet:
    """The `Fleet` over caches and store.

    Parameters
    ----------
    caches
        The cluster.
    artifact
        Files of an artifact by digest; None if it is not stored.
    key
        Public key that artifacts are signed with, hex.
    gpu_resources
        Names of the resources that are accelerators.
    """

    def __init__(
        self,
        caches: Caches,
        *,
        artifact: Callable[[Digest], Mapping[str, bytes] | None],
        key: Callable[[], str],
        gpu_resources: Collection[str] = (),
    ) -> None:
        self._caches = caches
        self._gpu_resources = frozenset(gpu_resources)
        self._artifact = artifact
        self._key = key

    def pod(self, namespace: str, name: str) -> PodRecord | None:
        """Return a pod that exists now, with the target that selects it; see `Fleet.pod`."""
        body = self._caches.get(PODS, f"{namespace}/{name}")
        if body is None:
            return None
        targets = targets_of(self._caches, body)
        if not targets and not self._surely_none(body):
            text = f"whether a target selects {namespace}/{name} is not known now"
            raise TemporaryError(text, delay_s=_AGAIN_S)
        uid = str(body["metadata"].get("uid", ""))
        target = targets[0] if targets else ""
        gpus = gpus_of(body, self._gpu_resources)
        return PodRecord(
            namespace=namespace,
            name=name,
            uid=uid,
            target=target,
            gpus=gpus,
            replica=objects.is_replica(body),
        )

    def _surely_none(self, pod: Mapping[str, object]) -> bool:
        """Whether it is certain that no target selects a pod; its swaps are then rolled back."""
        if not self._caches.knows(TARGETS):
            return False
        _, faults = objects.all_of(TuningTarget, _candidates(self._caches, pod))
        return not faults

    def orders(self, pod: PodRecord) -> Sequence[SwapOrder]:
        """Return what a pod is to have; see `Fleet.orders`."""
        target, found = self._target(pod), self._proposals(pod)
        return desired_orders(pod.name, pod.uid, target=target, proposals=found)

    def proofs(self, pod: PodRecord) -> Sequence[ProofOrder]:
        """Return the swaps that a pod is to prove; see `Fleet.proofs`."""
        return all_orders(pod.uid, self._proposals(pod))

    def alarms(self, pod: PodRecord) -> Sequence[AlarmOrder]:
        """Return the swaps that a pod may try off at an alarm; see `Fleet.alarms`."""
        return alarm_orders(pod.uid, self._proposals(pod))

    def overhead(self, pod: PodRecord) -> OverheadOrder | None:
        """Return what a pod is to do about Retuned's own cost; see `Fleet.overhead`."""
        return overhead_order(pod.uid, self._target(pod).status.own_overhead)

    def boot(self, pod: PodRecord) -> BootOrder | None:
        """Return what a canary replica is to measure; see `Fleet.boot`."""
        return boot_order(pod.uid, self._proposals(pod), target=self._target(pod))

    def _target(self, pod: PodRecord) -> TuningTarget:
        body = self._caches.get(TARGETS, pod.target)
        if body is None or not self._caches.knows(TARGETS):
            raise TemporaryError(f"{pod.target} is not known now", delay_s=_AGAIN_S)
        return read(TuningTarget, body)

    def _proposals(self, pod: PodRecord) -> Sequence[SwapProposal]:
        bodies = self._caches.by(PROPOSALS, BY_TARGET, pod.target)
        if bodies is None:
            raise TemporaryError(f"{pod.target} is not known now", delay_s=_AGAIN_S)
        found, faults = objects.all_of(SwapProposal, bodies)
        if faults:
            raise TemporaryError(f"{pod.target}: {faults[0]}", delay_s=_AGAIN_S)
        return found

    def traces(self, pod: PodRecord, orders: Sequence[SwapOrder]) -> Mapping[str, str]:
        """Return the spans that orders go on from, by order, where traces are on."""
        if not orders:
            return {}
        found, _ = objects.all_of(
            SwapProposal, self._caches.by(PROPOSALS, BY_TARGET, pod.target) or ()
        )
        known = {each.stage_proposal().id: last_span(each) for each in found if last_span(each)}
        return {each.id: known[each.proposal] for each in orders if each.proposal in known}

    def artifact(self, digest: Digest) -> Mapping[str, bytes] | None:
        """Return the files of an artifact; see `Fleet.artifact`."""
        return self._artifact(digest)

    def key(self) -> str:
        """Return the public key that artifacts are signed with."""
        return self._key()


def targets_of(caches: Caches, pod: Mapping[str, object]) -> tuple[str, ...]:
    """Return the targets that select a pod, ``namespace/name``, in the order of names."""
    found = []
    for body in _candidates(caches, pod):
        try:
            target = read(TuningTarget, body)
        except UnreadableInput:
            continue
        if objects.selected(pod, target.spec.selector.match_labels):
            found.append(target.full_name)
    return tuple(sorted(found))


def _candidates(caches: Caches, pod: Mapping[str, object]) -> list[Obj]:
    """Return the targets whose first label a pod carries: few, however many there are."""
    return [
        body
        for word in objects.label_words(pod)
        for body in caches.by(TARGETS, BY_SELECTOR, word) or ()
    ]
