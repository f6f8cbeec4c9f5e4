"""The review page's words on a real API server: impersonation, roles, admission and the audit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.operators.examples import ARTIFACT, a_decision, a_swap
from tests.operators.kubectl.conftest import POLICY
from tests.plane.control_plane import ControlPlane
from tests.plane.servers import eventually

from retuned.adapters.clock import SystemClock
from retuned.contract import Digest
from retuned.errors import Refused
from retuned.web.ports import Seen
from retuned.web.records import Act, Person
from retuned_operator.crds import PolicyObject, read
from retuned_operator.manifests import decision_policy, people_roles
from retuned_operator.manifests.roles import reviewing_rules, speaking_rules
from retuned_operator.review.deciding import ClusterDeciding
from retuned_operator.review.sight import Sight
from retuned_operator.runtime.client import Api, connect
from retuned_operator.runtime.errors import ApiError, Forbidden
from retuned_operator.runtime.resources import DECISIONS, POLICIES, PROPOSALS, SECRETS, Obj

pytestmark = pytest.mark.plane

PLACE = "reviewing"
ADA = Person(user="ada", groups=("gpu-platform",))
EVE = Person(user="eve", groups=("interns",))
GROUPS = ("gpu-platform", "interns")
BOUND = {"gpu-platform": "retuned-approver", "interns": "retuned-viewer"}
RBAC = "rbac.authorization.k8s.io"


def binding(name: str, role: str, subject: dict[str, str]) -> Obj:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, **subject}],
    }


def rules() -> list[Obj]:
    """The operator's page with the rights that the chart gives it, and people with theirs."""
    page: Obj = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "reviewing-page"},
        "rules": [*reviewing_rules(), *speaking_rules(("ada", "eve"), GROUPS)],
    }
    people = [
        binding(f"reviewing-{group}", role, {"kind": "Group", "name": group})
        for group, role in BOUND.items()
    ]
    operator = binding("reviewing-page", "reviewing-page", {"kind": "User", "name": "page"})
    return [*people_roles(), page, operator, *people, *decision_policy()]


@pytest.fixture(scope="module")
def api(plane: ControlPlane, admin: Path) -> Iterator[Api]:
    """Return the administrator's view of a cluster with our rules and roles."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLACE}}
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": [namespace, *rules()]})
    force = ("--server-side", "--force-conflicts")
    plane.kubectl("apply", *force, "-f", "-", kubeconfig=admin, given=given)
    found = connect(admin)
    proposal(found, "swp-1")
    eventually(lambda: is_enforced(found))  # an API server compiles admission policies a bit later
    yield found
    found.close()
    gone = [namespace, *decision_policy()]
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": gone})
    plane.kubectl("delete", "--wait=false", "-f", "-", kubeconfig=admin, given=given)


def is_enforced(api: Api) -> bool:
    """Whether the API server refuses a word in another's name by now."""
    body = a_decision(user="somebody-else", groups=[])
    body["metadata"] = {"name": "not-mine", "namespace": PLACE}
    try:
        api.create(DECISIONS, body)
    except ApiError as error:
        return "nobody decides in another's name" in str(error)
    api.delete(DECISIONS, "not-mine", namespace=PLACE)
    return False


@pytest.fixture
def page(plane: ControlPlane, api: Api) -> Iterator[Api]:
    """Return the API server as the operator sees it, without the right to write a decision."""
    found = connect(plane.kubeconfig("page", groups=()))
    yield found
    found.close()


def proposal(api: Api, name: str, **spec: Any) -> tuple[str, Digest]:
    """Make a proposal that waits under a policy; return its key and the policy's digest."""
    about = {"metadata": {"name": "prod", "namespace": PLACE}, "spec": POLICY}
    policy = read(PolicyObject, api.apply(POLICIES, about))
    expires = (datetime.now(UTC) + timedelta(hours=20)).isoformat()
    body = a_swap(expiresAt=expires, **spec) | {"metadata": {"name": name, "namespace": PLACE}}
    api.create(PROPOSALS, body)
    digest = policy.stage_policy().digest
    gate = {
        "state": "waiting",
        "reason": "missing-approvals",
        "name": "two",
        "policy": f"{PLACE}/prod",
        "policyGeneration": policy.metadata.generation,
        "policyDigest": digest,
        "required": 2,
        "missing": 2,
        "missingFrom": ["group gpu-platform", "group sre-oncall"],
    }
    status = {"phase": "AwaitingApproval", "gate": gate}
    api.patch_status(PROPOSALS, name, status=status, namespace=PLACE)
    return f"{PLACE}/{name}", digest


def said(api: Api, name: str) -> list[Obj]:
    found = api.list(DECISIONS, namespace=PLACE).items
    return [each["spec"] for each in found if each["spec"]["proposalRef"]["name"] == name]


def test_a_word_is_written_as_the_person_and_the_admission_policy_agrees(
    api: Api, page: Api
) -> None:
    key, policy = proposal(api, "swp-yes")
    deciding = ClusterDeciding(page, clock=SystemClock())
    deciding.decide(
        ADA, key, Act.APPROVE, seen=Seen(artifact=ARTIFACT, policy=policy), comment="looks right"
    )
    (word,) = said(api, "swp-yes")
    assert (word["user"], word["groups"]) == ("ada", ["gpu-platform"])
    assert (word["decision"], word["channel"]) == ("Approve", "review-page")


def test_who_may_only_look_and_who_asked_are_refused_by_the_cluster_itself(
    api: Api, page: Api
) -> None:
    key, policy = proposal(api, "swp-no", requestedBy="ada")
    deciding, seen = (
        ClusterDeciding(page, clock=SystemClock()),
        Seen(artifact=ARTIFACT, policy=policy),
    )
    with pytest.raises(Refused, match="may not create swapdecisions"):
        deciding.decide(EVE, key, Act.APPROVE, seen=seen, comment="let me")
    with pytest.raises(Refused, match="whoever asked for a swap does not approve it"):
        deciding.decide(ADA, key, Act.APPROVE, seen=seen, comment="mine")
    assert said(api, "swp-no") == []


def test_the_page_may_speak_for_nobody_else_and_say_nothing_itself(api: Api, page: Api) -> None:
    key, policy = proposal(api, "swp-else")
    deciding, seen = (
        ClusterDeciding(page, clock=SystemClock()),
        Seen(artifact=ARTIFACT, policy=policy),
    )
    for who in (
        Person(user="mallory", groups=("gpu-platform",)),
        Person(user="ada", groups=("sre-oncall",)),
        Person(user="ada", groups=("system:masters",)),
    ):
        with pytest.raises(Refused):
            deciding.decide(who, key, Act.REJECT, seen=seen, comment="x")
    with pytest.raises(Forbidden):
        page.create(DECISIONS, {"metadata": {"name": "own", "namespace": PLACE}, "spec": {}})
    with pytest.raises(Forbidden):
        page.acting_as("ada", ("gpu-platform",)).list(SECRETS, namespace=PLACE)
    assert said(api, "swp-else") == []


def test_what_somebody_may_see_is_what_the_cluster_lets_them_list(api: Api, page: Api) -> None:
    sight = Sight(page, clock=SystemClock())
    assert sight.sees(EVE, PLACE)
    assert sight.namespaces(ADA, (PLACE, "default")) == {PLACE, "default"}
    assert not sight.sees(Person(user="mallory"), PLACE)
