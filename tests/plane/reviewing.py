"""A namespace of the real control plane where people decide on swaps, with roles and admission."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.operators.examples import a_decision, a_swap, a_target
from tests.operators.kube.running import in_thread
from tests.operators.kubectl.conftest import PEOPLE, POLICY
from tests.operators.review.conftest import GROUPS
from tests.plane.control_plane import ControlPlane
from tests.plane.servers import eventually, real_api, refusal

from retuned.contract import Digest
from retuned.control import gate_facts
from retuned.control.facts import PolicyFact, RolloutFacts
from retuned_operator.controllers.caches import INDICES, StoreCaches
from retuned_operator.kube.client import Api
from retuned_operator.kube.manager import Manager, ManagerSettings
from retuned_operator.kube.resources import (
    ACCESS_REVIEWS,
    DECISIONS,
    FREEZES,
    PODS,
    POLICIES,
    PROPOSALS,
    TARGETS,
    Obj,
)
from retuned_operator.manifests import decision_policy, freeze_policy, people_roles
from retuned_operator.manifests.roles import (
    pausing_rules,
    reviewing_rules,
    speaking_rules,
    watching_rules,
)
from retuned_operator.registry import WATCHED
from retuned_operator.schema import PolicyObject, SwapDecision, SwapProposal, TuningTarget, read
from retuned_operator.schema.objects import write

BOUND = {
    "gpu-platform": "retuned-approver",
    "sre-oncall": "retuned-approver",
    "sre-leads": "retuned-break-glass",
    "interns": "retuned-viewer",
}
OPERATOR = "a-program"
"""The operator's account; it is not of ``system:``, because it comes with a certificate here."""
RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One namespace, as the administrator and the operator see it."""

    name: str
    api: Api
    """Of who may do all."""
    page: Api
    """Of the operator, without the right to write a decision of its own."""

    def proposal(self, name: str, *, phase: str = "AwaitingApproval", **spec: Any) -> str:
        """Make a proposal that stands so, under the policy; return its key."""
        expires = (datetime.now(UTC) + timedelta(hours=20)).isoformat()
        body = a_swap(**{"expiresAt": expires, **spec}) | {"metadata": self._metadata(name)}
        self.api.create(PROPOSALS, body)
        history = [{"from": "Pending", "to": phase, "at": _stamp(), "by": "retuned"}]
        self._stand(name, phase=phase, history=history)
        self.judge(name)
        eventually(lambda: admission_knows(self.api, name, namespace=self.name))
        return f"{self.name}/{name}"

    def digest(self) -> Digest:
        """Return the digest of the policy in force."""
        return self._policy().stage_policy().digest

    def judge(self, name: str) -> str:
        """Ask the gate and keep what it says, as the operator does at its next look."""
        found = read(SwapProposal, self.api.get(PROPOSALS, name, namespace=self.name))
        policy = self._policy()
        stage = PolicyFact(policy=policy.stage_policy(), generation=policy.metadata.generation)
        words = self.api.list(DECISIONS, namespace=self.name).items
        facts = RolloutFacts(
            target=read(TuningTarget, self.api.get(TARGETS, "chat", namespace=self.name)),
            policies=(stage,),
            decisions=tuple(read(SwapDecision, each) for each in words),
        )
        asked = gate_facts.ask(found, facts, now=datetime.now(UTC))
        assert asked is not None, "nothing is missing"
        self._stand(name, gate=write(gate_facts.gate_status(asked)))
        return asked.answer.state.value

    def said(self, name: str) -> list[Obj]:
        """Return what people said about a proposal."""
        found = self.api.list(DECISIONS, namespace=self.name).items
        return [each["spec"] for each in found if each["spec"]["proposalRef"]["name"] == name]

    def brought(self, name: str, caches: StoreCaches) -> None:
        """Wait until the watch has brought a proposal as it stands."""
        now = _version(self.api.get(PROPOSALS, name, namespace=self.name))
        eventually(lambda: _version(caches.get(PROPOSALS, f"{self.name}/{name}")) == now)

    def _stand(self, name: str, **status: Any) -> None:
        before = self.api.get(PROPOSALS, name, namespace=self.name).get("status", {})
        self.api.patch_status(PROPOSALS, name, status=before | status, namespace=self.name)

    def _policy(self) -> PolicyObject:
        return read(PolicyObject, self.api.get(POLICIES, "prod", namespace=self.name))

    def _metadata(self, name: str) -> Obj:
        return {"name": name, "namespace": self.name}

    def _furnish(self) -> None:
        self.api.apply(POLICIES, {"metadata": self._metadata("prod"), "spec": POLICY})
        self.api.apply(TARGETS, {"metadata": self._metadata("chat"), "spec": a_target()["spec"]})
        self.proposal("swp-first")  # without any the policy has nothing to be about
        eventually(lambda: freezes_are_judged(self.api))
        eventually(lambda: rights_are_known(self.api, BOUND))
        eventually(lambda: refusal(lambda: self.page.list(PROPOSALS, namespace=self.name)) is None)


def admission_knows(api: Api, name: str, *, namespace: str) -> bool:
    """Whether admission judges words about a proposal by now: it is compiled a bit later than it is
    made, and reads a cache, behind which it takes any word about what it does not know."""
    body = a_decision(
        user="admin", groups=[], decision="Reject", proposalRef={"name": name, "uid": "another"}
    )
    metadata = {"name": f"early-{name}", "namespace": namespace}
    error = refusal(lambda: api.create(DECISIONS, body | {"metadata": metadata}))
    if error is None:
        api.delete(DECISIONS, metadata["name"], namespace=namespace)
    return "has been replaced" in str(error)


def freezes_are_judged(api: Api) -> bool:
    """Whether admission refuses a freeze in another's name by now."""
    name = f"early-{uuid.uuid4().hex[:10]}"
    freeze = {"metadata": {"name": name}, "spec": {"user": "somebody-else", "reason": "early"}}
    error = refusal(lambda: api.create(FREEZES, freeze))
    if error is None:
        api.delete(FREEZES, name)
    return "freezes in another's name" in str(error)


def rights_are_known(api: Api, groups: Iterable[str]) -> bool:
    """Whether the authorizer knows of the roles of groups by now: it reads caches, too."""
    asked = {"group": PROPOSALS.group, "resource": PROPOSALS.plural, "verb": "get"}
    specs = [{"user": "any", "groups": [each], "resourceAttributes": asked} for each in groups]
    return all(api.create(ACCESS_REVIEWS, {"spec": each})["status"]["allowed"] for each in specs)


@contextmanager
def reviewed(plane: ControlPlane, name: str) -> Iterator[Place]:
    """Make a namespace with our roles and rules, the chart's rights for the operator, and people.

    The admission policies hold in this namespace alone and under names of its own, so that no other
    file's tests meet them, and none of theirs is taken for these.
    """
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    rules = list(admission(name))
    bodies = [namespace, *people_roles(), *_rights(name), *rules]
    admin, force = plane.admin(), ("--server-side", "--force-conflicts")
    plane.kubectl("apply", *force, "-f", "-", kubeconfig=admin, given=listed(bodies))
    place = Place(name=name, api=real_api(plane), page=real_api(plane, user=OPERATOR))
    try:
        place._furnish()
        yield place
    finally:
        place.page.close()
        place.api.close()
        gone = listed([namespace, *rules])
        plane.kubectl("delete", "--wait=false", "-f", "-", kubeconfig=admin, given=gone)


@contextmanager
def watched(place: Place) -> Iterator[StoreCaches]:
    """Keep copies of the namespace by watches, as the operator does."""
    manager = Manager(place.page, settings=ManagerSettings(stale_s=3600.0))
    stores = {
        kind: manager.store(
            kind, namespaces=(place.name,) if kind.namespaced else (), indices=INDICES.get(kind)
        )
        for kind in (*WATCHED, PODS)
    }
    with in_thread(manager.run):
        eventually(manager.is_synced)
        yield StoreCaches(stores, current=manager.is_current)


def _rights(name: str) -> Iterator[Obj]:
    rules = [*reviewing_rules(), *watching_rules(), *pausing_rules()]
    yield {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": f"{name}-page"},
        "rules": [*rules, *speaking_rules(tuple(PEOPLE), GROUPS)],
    }
    yield binding(f"{name}-page", f"{name}-page", {"kind": "User", "name": OPERATOR})
    for group, role in BOUND.items():
        yield binding(f"{name}-{group}", role, {"kind": "Group", "name": group})


def binding(name: str, role: str, subject: dict[str, str]) -> Obj:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, **subject}],
    }


def admission(name: str) -> Iterator[Obj]:
    for body in (*decision_policy(), *freeze_policy()):
        own: Obj = json.loads(json.dumps(body))
        own["metadata"]["name"] = f"{name}-{body['metadata']['name']}"
        if "policyName" in own["spec"]:
            own["spec"]["policyName"] = f"{name}-{own['spec']['policyName']}"
            labels = {"kubernetes.io/metadata.name": name}
            own["spec"]["matchResources"] = {"namespaceSelector": {"matchLabels": labels}}
        yield own


def listed(bodies: list[Obj]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies})


def _version(body: Obj | None) -> str:
    return str(body["metadata"]["resourceVersion"]) if body is not None else ""


def _stamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
