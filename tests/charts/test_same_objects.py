"""What Helm renders is what the operator's own functions return: nothing is written twice."""

from __future__ import annotations

from typing import Any

import pytest
from tests.charts.rendering import CHART, CI, Helm, values_of

from retuned_operator.manifests import (
    Endpoint,
    decision_policy,
    experiment_namespace,
    freeze_policy,
    limit_range,
    network_policies,
    operator_roles,
    people_roles,
    priority_class,
    quota,
)
from retuned_operator.manifests.admission import replica_policy
from retuned_operator.manifests.roles import pausing_rules, speaking_rules
from retuned_operator.schema import KINDS, definition_of

FULL = values_of(CHART / "ci" / "full-values.yaml")
Body = dict[str, Any]


def place(body: Body) -> tuple[str, str | None, str]:
    return body["kind"], body["metadata"].get("namespace"), body["metadata"]["name"]


def same(helm: Helm, values: Body, *wanted: Body) -> None:
    """Whether each object is rendered, but for labels and annotations of the release."""
    rendered = {place(body): body for body in helm.objects(values)}
    for body in wanted:
        found = rendered[place(body)]
        assert without_metadata(found) == without_metadata(body)
        own = {
            name: value
            for name, value in body["metadata"].get("labels", {}).items()
            if name != "app.kubernetes.io/managed-by"
        }
        if body["kind"] not in ("Role", "RoleBinding", "ClusterRoleBinding"):
            assert own.items() <= found["metadata"]["labels"].items()


def without_metadata(body: Body) -> Body:
    return {name: value for name, value in body.items() if name != "metadata"}


def test_definitions_of_custom_resources(helm: Helm) -> None:
    same(helm, {}, *(definition_of(kind) for kind in KINDS))


@pytest.mark.parametrize("watched", [[], ["serving"], ["serving", "chat"]])
def test_rights_of_the_operator(helm: Helm, watched: list[str]) -> None:
    roles = operator_roles(
        "retuned-operator", namespace="retuned", watched=watched, experiments="retuned-experiments"
    )
    values = {"scope": {"namespaces": watched}}
    same(helm, values, *roles)
    kinds = ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")
    found = [each for each in helm.objects(values) if each["kind"] in kinds]
    assert len(found) == len(roles) + len(people_roles())


@pytest.mark.parametrize("watched", [[], ["serving"]])
def test_rights_and_bounds_of_canary_replicas(helm: Helm, watched: list[str]) -> None:
    values = {"scope": {"namespaces": watched}, "canaryReplicas": {"enabled": True}}
    roles = operator_roles(
        "retuned-operator",
        namespace="retuned",
        watched=watched,
        experiments="retuned-experiments",
        replicas=True,
    )
    same(helm, values, *roles, *replica_policy("retuned-operator", namespace="retuned"))
    names = {each["metadata"]["name"] for each in helm.objects({})}
    assert "retuned-canary-replicas" not in names


def test_roles_of_people(helm: Helm) -> None:
    same(helm, {}, *people_roles())


@pytest.mark.parametrize("programs", [False, True])
def test_admission_policies(helm: Helm, programs: bool) -> None:
    values = {"admissionPolicies": {"allowServiceAccounts": programs}}
    same(helm, values, *decision_policy(allow_service_accounts=programs), *freeze_policy())


def test_walls_around_experiments(helm: Helm) -> None:
    where = "retuned-experiments"
    same(
        helm,
        {},
        experiment_namespace(where),
        priority_class("retuned-experiment"),
        quota(
            where,
            priority="retuned-experiment",
            gpu_resources=["amd.com/gpu", "nvidia.com/gpu"],
            max_gpus=2,
        ),
        limit_range(where, max_cpu="16", max_memory="64Gi", max_storage="32Gi"),
        *network_policies(where, endpoint=None),
    )
    same(
        helm,
        FULL,
        priority_class("retuned-experiment", may_scale_up=True),
        quota(
            where,
            priority="retuned-experiment",
            gpu_resources=["amd.com/gpu", "nvidia.com/gpu"],
            max_gpus=4,
            max_pods=16,
        ),
        *network_policies(where, endpoint=Endpoint(cidr="203.0.113.7/32", port=8443)),
    )


def test_limits_of_a_namespace_that_experiments_share_with_servers_are_not_ours(helm: Helm) -> None:
    kinds = [each["kind"] for each in helm.objects({"experiments": {"namespace": "retuned"}})]
    assert "LimitRange" not in kinds
    assert "ResourceQuota" in kinds


def test_no_way_out_is_rendered_where_none_is_given(helm: Helm) -> None:
    names = {
        each["metadata"]["name"] for each in helm.objects({}) if each["kind"] == "NetworkPolicy"
    }
    assert names == {"retuned-experiments-closed", "retuned-operator"}


class TestRightsThatAreRendered:
    """On the rendered objects, because those are what a cluster gets."""

    @pytest.mark.parametrize("path", CI, ids=lambda path: path.stem)
    def test_are_without_wildcards_exec_and_foreign_secrets(self, helm: Helm, path: Any) -> None:
        for role in helm.objects(values_of(path)):
            for rule in role.get("rules") or ():
                if "verbs" not in rule:
                    continue  # an admission policy's
                said = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
                assert not any("*" in each for each in said)
                forbidden = {"pods/exec", "pods/attach", "pods/portforward", "nodes", "deployments"}
                assert not forbidden & set(rule["resources"])
                assert not {"escalate", "bind"} & set(rule["verbs"])
                if "impersonate" in rule["verbs"]:  # page and Slack speak for people who are named
                    assert role["metadata"]["name"] in ("retuned-review", "retuned-channels")
                    assert rule["resourceNames"]
                if "secrets" in rule["resources"]:
                    assert rule["resourceNames"] == ["retuned-webhook-cert"]
                    assert "list" not in rule["verbs"]

    def test_reach_pods_of_the_named_namespaces_alone(self, helm: Helm) -> None:
        wide = [
            rule
            for role in helm.objects(FULL)
            if role["kind"] == "ClusterRole" and role["metadata"]["name"] == "retuned-operator"
            for rule in role["rules"]
        ]
        assert wide
        assert not any("pods" in rule["resources"] for rule in wide)

    def test_speak_for_those_alone_who_are_named(self, helm: Helm) -> None:
        values = values_of(CHART / "ci" / "review-values.yaml")
        (role,) = (
            each
            for each in helm.objects(values)
            if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", "retuned-review")
        )
        speaks = values["review"]["speaksFor"]
        assert role["rules"] == speaking_rules(speaks["users"], speaks["groups"])
        nobody = values | {"review": values["review"] | {"speaksFor": {}}}
        assert not [
            each
            for each in helm.objects(nobody)
            if each["kind"] == "ClusterRole" and each["metadata"]["name"] == "retuned-review"
        ]

    def test_of_channels_are_for_who_is_mapped_and_for_stop_signs_where_alerts_are_heard(
        self, helm: Helm
    ) -> None:
        values = values_of(CHART / "ci" / "channels-values.yaml")

        def rules(changed: dict[str, Any]) -> list[dict[str, Any]]:
            return [
                rule
                for each in helm.objects(changed)
                if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", "retuned-channels")
                for rule in each["rules"]
            ]

        people = values["channels"]["slack"]["people"].values()
        users = sorted(each["user"] for each in people)
        groups = sorted({group for each in people for group in each["groups"]})
        assert rules(values) == [*speaking_rules(users, groups), *pausing_rules()]
        channels = values["channels"]
        unheard = channels | {"alertmanager": {}}
        assert rules(values | {"channels": unheard}) == speaking_rules(users, groups)
        silent = channels | {"slack": channels["slack"] | {"signingSecretKey": ""}}
        assert rules(values | {"channels": silent}) == pausing_rules()

    def test_let_nobody_approve_who_is_not_bound_to_it(self, helm: Helm) -> None:
        can_approve = {
            role["metadata"]["name"]
            for role in helm.objects({})
            for rule in role.get("rules") or ()
            if "approve" in rule.get("verbs", ())
        }
        assert can_approve == {"retuned-approver"}
        bound = {
            each["roleRef"]["name"]
            for each in helm.objects({})
            if each["kind"].endswith("Binding") and "roleRef" in each
        }
        assert not any(name.startswith("retuned-approver") for name in bound)

    def test_and_the_tests_pod_has_none(self, helm: Helm) -> None:
        (pod,) = (each for each in helm.objects({}) if each["kind"] == "Pod")
        assert pod["spec"]["automountServiceAccountToken"] is False
