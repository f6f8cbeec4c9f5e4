"""A cluster in memory for the state machines: pods, sidecars, people, a clock, and crashes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import yaml
from tests.operators import examples

from retuned.api.proposal import PodState, RolloutStatus, proposal_spec
from retuned.api.target import Quarantined
from retuned.contract import Digest
from retuned.control import (
    Activate,
    Deactivate,
    MeasuredFact,
    PodFact,
    PolicyFact,
    Quarantine,
    RolloutFacts,
    RolloutStep,
    order_for,
)
from retuned.control import proposal as proposals
from retuned.stages import gate
from retuned.stages.gate import DecisionKind, StopPolicy
from retuned.stages.swap import SwapKind
from retuned.stages.watch import WatchAction, WatchReport
from retuned_operator.schema import PolicyObject, SwapDecision, SwapProposal, TuningTarget, read

ORIGINAL = examples.BASELINE
"""Digest of what the server came with."""
POLICY = """
apiVersion: retuned.dev/v1alpha1
kind: KernelTuningPolicy
spec:
  mode: Enforce
  validation: {minSpeedup: 1.05, confidence: 0.99}
  gates:
  - name: two
    approvals:
      required: 2
      from: [{group: gpu}, {group: sre}]
      distinctGroups: true
      ttl: 48h
  windows:
  - {kind: allow, schedule: "0 1 * * *", duration: 6h, timeZone: Europe/Berlin, overrun: Finish}
  - {kind: deny, schedule: "0 3 * * SUN", duration: 2h, timeZone: Europe/Berlin, overrun: Finish}
  rollout:
    canary: {pods: 1, bake: 5m}
    waves: ["50%", "100%"]
    maxConcurrentSwaps: 2
    minHealthyPercent: 60
    minInterval: 1m
    analysis: {interval: 1m, inconclusiveLimit: 2}
    autoRollback: {quarantine: 2d}
    postPromotionWatch: 10m
  breakGlass: {enabled: true, group: leads, maxPods: 1}
"""
GROUPS = {"ada": ("gpu",), "ben": ("sre",), "eve": ("gpu", "sre"), "lea": ("leads",)}
_BERLIN = ZoneInfo("Europe/Berlin")


def _spans(now: datetime, hour: int, length: int) -> list[tuple[int, bool]]:
    """Return weekday and whether `now` is inside, for spans that begin today and yesterday."""
    today = now.astimezone(_BERLIN).date()
    found = []
    for day in (today, today - timedelta(days=1)):
        start = datetime(day.year, day.month, day.day, hour, tzinfo=_BERLIN).astimezone(UTC)
        found.append((day.weekday(), start <= now < start + timedelta(hours=length)))
    return found


def is_denied(now: datetime) -> bool:
    """Say it again without cron: Sundays, two hours from three o'clock."""
    return any(inside and weekday == 6 for weekday, inside in _spans(now, 3, 2))


def window_is_open(now: datetime) -> bool:
    """Say it again without cron: six hours from one o'clock, and not denied."""
    return any(inside for _, inside in _spans(now, 1, 6)) and not is_denied(now)


@dataclass
class Pod:
    """One server with its sidecar."""

    name: str
    uid: str
    ready: bool = True
    active: Digest | None = None
    epoch: int = 0
    report: str = "keep"
    """keep, wait, rollback or none."""
    tripped: str = ""
    carried_out: list[int] = field(default_factory=list)

    def fact(self) -> PodFact:
        report = None
        if self.report != "none":
            report = WatchReport(action=WatchAction(self.report), reason="shadow-mismatch")
        return PodFact(
            name=self.name,
            uid=self.uid,
            ready=self.ready,
            active=self.active,
            epoch=self.epoch,
            newest_epoch=self.epoch,
            tripped=self.tripped,
            report=report,
        )


class World:
    """Everything that is observed, and what is written."""

    def __init__(self, now: datetime, *, pods: int = 4) -> None:
        self.now = now
        self.leading = True
        self.readable = True
        self.checked = True
        """Whether the evidence of proposals can be checked."""
        self.policy_generation = 1
        self._policy = yaml.safe_load(POLICY)
        self._read: gate.KernelTuningPolicy | None = None
        self.target = read(TuningTarget, examples.a_target(environment=examples.WORLD, pods=pods))
        self.pods = {f"u{n}": Pod(name=f"chat-{n}", uid=f"u{n}") for n in range(pods)}
        self.proposals: dict[str, SwapProposal] = {}
        self.decisions: list[SwapDecision] = []
        self.freezes: list[gate.TuningFreeze] = []
        self.pages = 0
        self.live_proof = MeasuredFact()
        self._count = 0

    # what people and the outside do

    def metadata(self, name: str) -> dict[str, Any]:
        self._count += 1
        stamp = self.now.isoformat().replace("+00:00", "Z")
        return {
            "name": name,
            "namespace": "serving",
            "uid": f"{name}-{self._count}",
            "generation": 1,
            "creationTimestamp": stamp,
        }

    def live(self) -> Digest:
        entries = self.target.status.active_kernels
        return entries[0].digest if entries else ORIGINAL

    def propose(self, artifact: Digest, *, requested_by: str = "retuned") -> str:
        name = f"swp-{self._count + 1}"
        record = examples.a_proposal(
            artifact=artifact,
            requested_by=requested_by,
            created_at=self.now,
            expires_at=self.now + timedelta(days=3),
        )
        spec = proposal_spec(record, target="chat", gpu_model="MI300X", experiment="exp-1")
        spec = spec.model_copy(update={"baseline_digest": self.live()})
        body = examples.an_object("SwapProposal", name, spec) | {"metadata": self.metadata(name)}
        self.proposals[name] = read(SwapProposal, body)
        return name

    def policy(self) -> PolicyFact:
        if self._read is None:
            body = self._policy | {"metadata": {"name": "prod", "namespace": "serving"}}
            self._read = read(PolicyObject, body).stage_policy()
        return PolicyFact(policy=self._read, generation=self.policy_generation)

    def change_policy(self, **spec: Any) -> None:
        self._policy["spec"] |= spec
        self.policy_generation += 1
        self._read = None

    def say(
        self,
        name: str,
        user: str,
        kind: DecisionKind = DecisionKind.APPROVE,
        *,
        uid: str | None = None,
        digest: Digest | None = None,
        generation: int | None = None,
    ) -> None:
        proposal = self.proposals[name]
        fact = self.policy()
        spec = {
            "proposalRef": {"name": name, "uid": uid or proposal.metadata.uid},
            "digest": digest or proposal.spec.artifact.digest,
            "decision": str(kind),
            "user": user,
            "groups": list(GROUPS.get(user, ())),
            "comment": "because",
            "policyGeneration": self.policy_generation if generation is None else generation,
            "policyDigest": fact.policy.digest,
        }
        body = examples.an_object("SwapDecision", "swd", spec)
        body["metadata"] = self.metadata(f"swd-{self._count}")
        self.decisions.append(read(SwapDecision, body))

    def abort(self, name: str) -> None:
        resource = self.proposals[name]
        abort = resource.spec.abort.model_copy(update={"requested": True})
        spec = resource.spec.model_copy(update={"abort": abort})
        self.proposals[name] = resource.model_copy(update={"spec": spec})

    def freeze(self, policy: StopPolicy, *, hours: int | None = None) -> None:
        self._count += 1
        until = None if hours is None else self.now + timedelta(hours=hours)
        self.freezes.append(
            gate.TuningFreeze(
                id=f"f{self._count}", stop_policy=policy, until=until, user="ada", at=self.now
            )
        )

    def frozen(self) -> bool:
        return any(each.until is None or self.now < each.until for each in self.freezes)

    def replace_pod(self, uid: str) -> None:
        old = self.pods.pop(uid)
        self._count += 1
        new = f"u-{self._count}"
        self.pods[new] = Pod(name=old.name, uid=new)

    # what the operator and the sidecars do

    def facts(self, name: str) -> RolloutFacts:
        others = tuple(each for key, each in self.proposals.items() if key != name)
        return RolloutFacts(
            live_proof=self.live_proof,
            target=self.target,
            pods=tuple(pod.fact() for pod in self.pods.values()),
            policies=(self.policy(),) if self.readable else None,
            decisions=tuple(self.decisions),
            freezes=tuple(self.freezes),
            others=others,
            live_baseline=self.live(),
            evidence_checked=self.checked,
            leading=self.leading,
        )

    def reconcile(self, name: str, *, dies_after: int = 99) -> RolloutStep:
        """Do one step; `dies_after` counts the writes that are done before the operator dies."""
        step = proposals.step(self.proposals[name], self.facts(name), now=self.now)
        if dies_after == 0:
            return step
        resource = self.proposals[name]
        self.proposals[name] = resource.model_copy(update={"status": step.status})
        for action in step.actions[: dies_after - 1]:
            self._act(action)
        return step

    def _act(self, action: object) -> None:
        status = self.target.status
        if isinstance(action, Activate):
            entries = tuple(e for e in status.active_kernels if e.kernel != action.entry.kernel)
            update: dict[str, object] = {"active_kernels": (*entries, action.entry)}
        elif isinstance(action, Deactivate):
            kept = tuple(e for e in status.active_kernels if e.kernel != action.kernel)
            update = {"active_kernels": kept}
        elif isinstance(action, Quarantine):
            entry: Quarantined = action.entry
            rest = tuple(q for q in status.quarantine if q.digest != entry.digest)
            update = {"quarantine": (*rest, entry)}
        else:
            self.pages += 1
            return
        self.target = self.target.model_copy(update={"status": status.model_copy(update=update)})

    def sidecar(self, uid: str) -> None:
        """Let one sidecar ask for its order and carry it out."""
        pod = self.pods[uid]
        best: tuple[int, Digest | None] | None = None
        for entry in self.target.status.active_kernels:
            best = (entry.epoch, entry.digest)
        for resource in self.proposals.values():
            rollout: RolloutStatus | None = resource.status.rollout
            for told in rollout.pods if rollout else ():
                if told.uid == uid and (best is None or told.epoch > best[0]):
                    order = order_for(resource, told)
                    assert (order.kind is SwapKind.ROLLBACK) == (told.wants is PodState.BACK)
                    best = (order.epoch, order.artifact)
        if best is not None and best[0] > pod.epoch:
            assert best[0] not in pod.carried_out, "an epoch is carried out once"
            pod.carried_out.append(best[0])
            pod.epoch, pod.active, pod.tripped = best[0], best[1], ""

    def settle(self, *, rounds: int = 400, minutes: int = 1) -> None:
        """Let time pass with everybody at work."""
        for _ in range(rounds):
            before = (dict(self.proposals), self.target)
            for uid in list(self.pods):
                self.sidecar(uid)
            for name in list(self.proposals):
                self.reconcile(name)
            if before == (dict(self.proposals), self.target) and not any(
                each.status.phase.is_under_way or each.status.phase.is_going_back
                for each in self.proposals.values()
            ):
                return
            self.now += timedelta(minutes=minutes)


def with_facts(facts: RolloutFacts, **changes: Any) -> RolloutFacts:
    return replace(facts, **changes)
