"""The chart, rendered with each of its example values: what anybody may rely on."""

from __future__ import annotations

import copy
import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from tests.charts.rendering import CHART, CI, Helm, Refused, values_of
from tests.dashboards.panels import dashboards
from tests.dashboards.rules import alerts
from tests.operators.security import violations
from tests.operators.structural import invalid
from tests.operators.versions import VERSIONS

from retuned_operator.manifests.sidecar import METRICS
from retuned_operator.schema import KINDS, schema_of
from retuned_operator.uninstall import PATIENCE

by_name = pytest.mark.parametrize("path", CI, ids=lambda path: path.stem)
_OTHERS = ("cert-manager.io/", "monitoring.coreos.com/", "retuned.dev/", "apiextensions.k8s.io/")
FULL = values_of(CHART / "ci" / "full-values.yaml")


def only(found: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    (one,) = (
        each
        for each in found
        if each["kind"] == kind and (not name or each["metadata"]["name"] == name)
    )
    return one


def pods(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        each["spec"] if each["kind"] == "Pod" else each["spec"]["template"]["spec"]
        for each in found
        if each["kind"] in ("Pod", "Deployment", "Job")
    ]


def test_there_is_an_example_for_each_kind_of_cluster() -> None:
    names = {path.stem.removesuffix("-values") for path in CI}
    assert names >= {"minimal", "full", "amd", "nvidia", "cert-manager", "openshift"}
    assert all(path.read_text("utf-8").startswith("# ") for path in CI)


@by_name
def test_helm_finds_no_fault(helm: Helm, path: Path) -> None:
    faults = [each["error"] for each in helm.lint(values_of(path)) if each["severity"] > 1]
    if "1.29" in path.name:  # what it needs is old on the newer ones, which is why it is there
        faults = [each for each in faults if "deprecated in v1.31+" not in each]
    assert faults == []


@by_name
def test_every_object_is_valid_in_every_version_that_it_is_for(helm: Helm, path: Path) -> None:
    versions = ["1.29"] if "1.29" in path.name else list(VERSIONS)
    for body in helm.objects(values_of(path)):
        for version in versions:
            validate(json.dumps(body), version)


@cache  # most objects are the same in most examples
def validate(text: str, version: str) -> None:
    body = json.loads(text)
    if body["apiVersion"].startswith(_OTHERS):
        return
    newer = body["apiVersion"].endswith("/v1") and "AdmissionPolicy" in body["kind"]
    if newer and version == "1.29":
        return  # the example for 1.29 has them as v1beta1
    kubernetes_validate.validate(body, version, strict=True)


@by_name
def test_every_policy_fits_the_custom_resource(helm: Helm, path: Path) -> None:
    (kind,) = (each for each in KINDS if each.kind == "KernelTuningPolicy")
    values = values_of(path)
    found = [each for each in helm.objects(values) if each["kind"] == "KernelTuningPolicy"]
    assert len(found) == len(values.get("policies", ()))
    for body in found:
        assert invalid(body, schema_of(kind)) == []


@by_name
def test_no_two_objects_have_one_name_and_all_say_whose_they_are(helm: Helm, path: Path) -> None:
    found = helm.objects(values_of(path))
    names = Counter(
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        for each in found
    )
    assert [name for name, count in names.items() if count > 1] == []
    for each in found:
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["app.kubernetes.io/instance"] == "retuned"
        assert labels["app.kubernetes.io/component"]


@by_name
def test_every_pod_meets_the_restricted_standard(helm: Helm, path: Path) -> None:
    found = pods(helm.objects(values_of(path)))
    assert found
    for spec in found:
        assert violations(spec) == []
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"]["limits"]["memory"]
            assert container["resources"]["requests"]["cpu"]
        for volume in spec["volumes"]:
            if "emptyDir" in volume:
                assert volume["emptyDir"]["sizeLimit"]


@by_name
def test_the_same_values_give_the_same_text(helm: Helm, path: Path) -> None:
    assert helm.files(values_of(path)) == helm.files(values_of(path))


@by_name
def test_an_upgrade_changes_no_selector_and_no_name(helm: Helm, path: Path) -> None:
    before = helm.objects(values_of(path))
    values = copy.deepcopy(values_of(path)) | {
        "commonLabels": {"new": "label"},
        "commonAnnotations": {"new": "annotation"},
    }
    values["operator"] = values.get("operator", {}) | {
        "podLabels": {"more": "of them"},
        "image": {"repository": "other/operator", "tag": "9.9.9"},
    }
    after = helm.objects(values, is_upgrade=True)
    assert [fixed(each) for each in after] == [fixed(each) for each in before]


def fixed(body: dict[str, Any]) -> tuple[Any, ...]:
    """Return what can never change, or what other objects are found by."""
    spec = body.get("spec", {})
    return (
        body["kind"],
        body["metadata"].get("namespace"),
        body["metadata"]["name"],
        spec.get("selector"),
        spec.get("podSelector"),
        body.get("roleRef"),
    )


@by_name
def test_what_selects_the_operator_finds_its_pods_and_not_the_tests(helm: Helm, path: Path) -> None:
    found = helm.objects(values_of(path))
    template = only(found, "Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [
        each["spec"].get("selector", {}).get("matchLabels", each["spec"].get("selector"))
        for each in found
        if each["kind"] in ("Service", "PodDisruptionBudget", "PodMonitor", "Deployment")
        and each["metadata"]["name"] != "retuned-sidecars"  # it finds pods by the port's name
    ]
    assert len(selectors) >= 2
    for selector in selectors:
        assert selector.items() <= template.items()
        for each in found:
            if each["kind"] == "Pod":
                assert not selector.items() <= each["metadata"]["labels"].items()


def test_swaps_are_rolled_back_by_the_operators_rights_before_anything_is_deleted(
    helm: Helm,
) -> None:
    found = helm.objects(FULL)
    job, operator = only(found, "Job"), only(found, "Deployment")["spec"]["template"]["spec"]
    annotations, pod = job["metadata"]["annotations"], job["spec"]["template"]["spec"]
    assert annotations["helm.sh/hook"] == "pre-delete"
    others = [each["metadata"].get("annotations", {}) for each in found if each is not job]
    weights = [
        int(each.get("helm.sh/hook-weight", 0))
        for each in others
        if each.get("helm.sh/hook") == "pre-delete"
    ]
    assert int(annotations["helm.sh/hook-weight"]) < min([0, *weights])
    assert pod["containers"][0]["command"] == ["retuned-operator", "rollback-all"]
    assert pod["containers"][0]["image"] == operator["containers"][0]["image"]
    assert pod["serviceAccountName"] == operator["serviceAccountName"]
    assert job["spec"]["activeDeadlineSeconds"] > PATIENCE.total_seconds()


@by_name
def test_the_notes_say_how_to_go_on(helm: Helm, path: Path) -> None:
    notes = helm.files(values_of(path))["retuned/templates/NOTES.txt"]
    assert "kubectl -n retuned rollout status deployment/retuned-operator" in notes


def test_the_notes_warn_of_what_is_switched_off(helm: Helm) -> None:
    off = {
        "admissionPolicies": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "store": {"persistent": False},
    }
    assert helm.files({})["retuned/templates/NOTES.txt"].count("WARNING") == 0
    assert "experiments.gpuModels is empty" in helm.files({})["retuned/templates/NOTES.txt"]
    assert helm.files(off)["retuned/templates/NOTES.txt"].count("WARNING") == 3


def test_an_uninstall_keeps_the_definitions_and_the_audit_record(helm: Helm) -> None:
    kept = {
        each["metadata"]["name"]
        for each in helm.objects({})
        if each["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
    }
    assert kept == {*(kind.full_name for kind in KINDS), "retuned-store"}
    claim = only(helm.objects({"store": {"keep": False}}), "PersistentVolumeClaim")
    assert "annotations" not in claim["metadata"]


def test_names_follow_the_release_and_stay_short(helm: Helm) -> None:
    found = helm.objects({}, name="a" * 50, namespace="x")
    assert only(found, "Deployment")["metadata"]["name"] == "a" * 40 + "-operator"
    other = helm.objects({"fullnameOverride": "tuner"})
    assert only(other, "Deployment")["metadata"]["name"] == "tuner-operator"
    assert all(len(each["metadata"]["name"]) <= 63 for each in found)


def test_an_image_is_named_by_digest_before_tag_and_below_the_registry(helm: Helm) -> None:
    def image(values: dict[str, Any]) -> str:
        spec = only(helm.objects(values), "Deployment")["spec"]["template"]["spec"]
        found: str = spec["containers"][0]["image"]
        return found

    assert image({}) == "retuned/operator:0.1.0"
    registry = {"image": {"registry": "r.example/x/"}}
    tagged = registry | {"operator": {"image": {"tag": "7"}}}
    assert image(tagged) == "r.example/x/retuned/operator:7"
    digest = "sha256:" + "a" * 64
    fixed = registry | {"operator": {"image": {"tag": "7", "digest": digest}}}
    assert image(fixed) == f"r.example/x/retuned/operator@{digest}"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"operatr": {}}, "operatr"),
        ({"operator": {"replica": 2}}, "replica"),
        ({"operator": {"replicas": "2"}}, "/operator/replicas"),
        ({"operator": {"image": {"digest": "latest"}}}, "/operator/image/digest"),
        ({"experiments": {"userId": 0}}, "/experiments/userId"),
        ({"sidecar": {"userId": 0}}, "/sidecar/userId"),
        ({"sidecar": {"tokenSeconds": 60}}, "/sidecar/tokenSeconds"),
        ({"agent": {"url": "http://agent"}}, "/agent/url"),
        ({"webhook": {"failurePolicy": "Fail"}}, "failurePolicy"),
        ({"experiments": {"priorityClass": {"value": 1000}}}, "value"),
        ({"experiments": {"endpoint": {"cidr": "everywhere"}}}, "/experiments/endpoint/cidr"),
        ({"policies": [{"name": "p"}]}, "/policies/0"),
        ({"policies": [{"name": "p", "spec": {"mod": "Enforce"}}]}, "mod"),
        ({"policies": [{"name": "p", "spec": {"gates": [{"nme": "x"}]}}]}, "nme"),
        ({"policies": [{"name": "p", "spec": {"validation": {"minSpeedup": -1}}}]}, "minSpeedup"),
        ({"operator": {"replicas": 2}}, "store.accessMode: ReadWriteMany"),
        ({"experiments": {"kueue": {"enabled": True}}}, "experiments.kueue.localQueue"),
        ({"experiments": {"endpoint": {"secret": "key"}}}, "experiments.endpoint.cidr"),
        (
            {"scope": {"namespaces": ["a"]}, "experiments": {"namespace": "a"}},
            "experiments.namespace",
        ),
        ({"policies": [{"name": "p", "shipped": "nosuch"}]}, "policies/ has no nosuch"),
        ({"policies": [{"name": "p", "shipped": "observe-only"}] * 2}, "is there twice"),
        ({"monitoring": {"prometheusRule": {"reviewUrl": "example.org"}}}, "reviewUrl"),
        ({"operator": {"serviceAccount": {"create": False}}}, "operator.serviceAccount.name"),
        ({"definitions": {"files": {"../a.yaml": "a"}}}, "'../a.yaml'"),
        ({"definitions": {"files": {"a.yaml": {"name": "a"}}}}, "/definitions/files/a.yaml"),
        ({"definitions": {"files": {"a.yaml": "a"}, "configMap": "b"}}, "one folder is read"),
        ({"channels": {"webhook": {"secretKey": "k"}}}, "channels.secret"),
        (
            {"channels": {"secret": "s", "slack": {"signingSecretKey": "k", "team": "T1"}}},
            "channels.slack",
        ),
        (
            {"channels": {"slack": {"people": {"U1": {"user": "system:admin"}}}}},
            "/channels/slack/people/U1/user",
        ),
        (
            {"canaryReplicas": {"enabled": True}, "admissionPolicies": {"enabled": False}},
            "canaryReplicas.enabled",
        ),
        ({"tracing": {"url": "collector:4318"}}, "/tracing/url"),
        ({"review": {"enabled": True}}, "review.hosts"),
        ({"review": {"enabled": True, "hosts": ["t.example"]}}, "review.proxy.secret"),
        ({"review": {"hosts": ["https://t.example"]}}, "/review/hosts/0"),
        ({"review": {"speaksFor": {"groups": ["system:masters"]}}}, "/review/speaksFor/groups/0"),
        ({"review": {"proxy": {"addresses": ["anywhere"]}}}, "/review/proxy/addresses/0"),
    ],
)
def test_values_that_cannot_be_meant_are_refused_by_their_name(
    helm: Helm, values: dict[str, Any], said: str
) -> None:
    with pytest.raises(Refused) as caught:
        helm.files(values)
    assert said in str(caught.value)


class TestTheOperator:
    def test_gives_up_its_volume_before_the_next_one_starts(self, helm: Helm) -> None:
        spec = only(helm.objects({}), "Deployment")["spec"]
        assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
        assert only(helm.objects(FULL), "Deployment")["spec"]["strategy"]["type"] == "RollingUpdate"

    def test_never_holds_up_the_drain_of_a_node(self, helm: Helm) -> None:
        spec = only(helm.objects({}), "PodDisruptionBudget")["spec"]
        assert spec["maxUnavailable"] >= 1
        assert "minAvailable" not in spec

    def test_starts_again_when_its_settings_change_and_not_otherwise(self, helm: Helm) -> None:
        def digest(values: dict[str, Any]) -> str:
            template = only(helm.objects(values), "Deployment")["spec"]["template"]
            found: str = template["metadata"]["annotations"]["retuned.dev/settings"]
            return found

        assert digest({}) == digest({"monitoring": {"podMonitor": {"enabled": True}}})
        assert digest({}) != digest({"sidecar": {"memory": "256Mi"}})

    def test_answers_every_probe_on_a_port_that_it_has(self, helm: Helm) -> None:
        (container,) = only(helm.objects({}), "Deployment")["spec"]["template"]["spec"][
            "containers"
        ]
        ports = {each["name"] for each in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] in ports

    def test_has_a_user_unless_the_cluster_chooses_one(self, helm: Helm) -> None:
        def context(values: dict[str, Any]) -> dict[str, Any]:
            spec = only(helm.objects(values), "Deployment")["spec"]["template"]["spec"]
            found: dict[str, Any] = spec["securityContext"]
            return found

        assert context({})["runAsUser"] == context({})["fsGroup"] == 65532
        assert not {"runAsUser", "fsGroup"} & set(context({"operator": {"userId": None}}))

    def test_is_reached_by_every_service_on_a_port_that_it_has(self, helm: Helm) -> None:
        found = helm.objects({})
        spec = only(found, "Deployment")["spec"]["template"]["spec"]
        ports = {each["name"] for each in spec["containers"][0]["ports"]}
        services = [each for each in found if each["kind"] == "Service"]
        assert len(services) == 2
        for service in services:
            assert {each["targetPort"] for each in service["spec"]["ports"]} <= ports


class TestTheWebhook:
    def test_never_keeps_a_pod_from_starting(self, helm: Helm) -> None:
        (hook,) = only(helm.objects(FULL), "MutatingWebhookConfiguration")["webhooks"]
        assert hook["failurePolicy"] == "Ignore"
        assert hook["timeoutSeconds"] <= 5
        assert hook["sideEffects"] == "None"

    def test_is_asked_only_for_pods_that_ask_for_it(self, helm: Helm) -> None:
        (hook,) = only(helm.objects({}), "MutatingWebhookConfiguration")["webhooks"]
        (condition,) = hook["matchConditions"]
        assert "retuned.dev/inject" in condition["expression"]
        (outside,) = hook["namespaceSelector"]["matchExpressions"]
        assert outside["operator"] == "NotIn"
        assert {"kube-system", "retuned", "retuned-experiments"} <= set(outside["values"])

    def test_looks_at_the_namespaces_with_servers_alone(self, helm: Helm) -> None:
        (hook,) = only(helm.objects(FULL), "MutatingWebhookConfiguration")["webhooks"]
        inside = [
            each["values"]
            for each in hook["namespaceSelector"]["matchExpressions"]
            if each["operator"] == "In"
        ]
        assert inside == [["serving", "chat"]]
        assert hook["namespaceSelector"]["matchLabels"] == {"example.org/tuned": "yes"}

    def test_takes_the_certificate_of_whoever_makes_it(self, helm: Helm) -> None:
        own = helm.objects({})
        assert only(own, "Secret", "retuned-webhook-cert").get("data") is None
        assert "caBundle" not in str(only(own, "MutatingWebhookConfiguration"))
        managed = helm.objects({"certManager": {"enabled": True}})
        assert not [each for each in managed if each["kind"] == "Secret"]
        certificate = only(managed, "Certificate", "retuned-webhook")
        assert certificate["spec"]["secretName"] == "retuned-webhook-cert"
        hook = only(managed, "MutatingWebhookConfiguration")
        name = f"retuned/{certificate['metadata']['name']}"
        assert hook["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == name
        host = hook["webhooks"][0]["clientConfig"]["service"]["name"]
        assert f"{host}.retuned.svc" in certificate["spec"]["dnsNames"]

    def test_is_signed_by_an_authority_that_outlives_its_certificate(self, helm: Helm) -> None:
        own = helm.objects({"certManager": {"enabled": True}})
        authority = only(own, "Certificate", "retuned-authority")["spec"]
        signed = only(own, "Certificate", "retuned-webhook")["spec"]
        assert authority["isCA"] is True
        assert hours(authority["renewBefore"]) > hours(signed["duration"])
        issuer = only(own, "Issuer", signed["issuerRef"]["name"])
        assert issuer["spec"] == {"ca": {"secretName": authority["secretName"]}}
        given = helm.objects(values_of(CHART / "ci" / "cert-manager-values.yaml"))
        assert only(given, "Certificate")["spec"]["issuerRef"]["name"] == "internal"
        assert not [each for each in given if each["kind"] == "Issuer"]


def hours(duration: str) -> int:
    return int(duration.removesuffix("h"))


class TestWhatMonitors:
    def test_is_off_unless_asked_for(self, helm: Helm) -> None:
        kinds = {each["kind"] for each in helm.objects({})}
        assert not kinds & {"PodMonitor", "PrometheusRule"}

    def test_reads_the_port_that_the_network_lets_it(self, helm: Helm) -> None:
        found = helm.objects(FULL)
        monitor = only(found, "PodMonitor", "retuned-operator")
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        policy = only(found, "NetworkPolicy", "retuned-operator")
        where = [
            each["from"]
            for each in policy["spec"]["ingress"]
            if endpoint["port"] in {port["port"] for port in each["ports"]}
        ]
        labels = {"kubernetes.io/metadata.name": "observability"}
        assert where == [[{"namespaceSelector": {"matchLabels": labels}}]]

    def test_keeps_the_labels_of_what_it_reads(self, helm: Helm) -> None:
        monitor = only(helm.objects(FULL), "PodMonitor", "retuned-operator")
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["honorLabels"] is True

    def test_reads_sidecars_once_they_let_it_in(self, helm: Helm) -> None:
        closed = {**FULL, "sidecar": {**FULL["sidecar"], "metricsAddress": "127.0.0.1"}}
        assert only(helm.objects(closed), "PodMonitor")["metadata"]["name"] == "retuned-operator"
        monitors = {
            each["metadata"]["name"]: each["spec"]
            for each in helm.objects(FULL)
            if each["kind"] == "PodMonitor"
        }
        assert set(monitors) == {"retuned-operator", "retuned-sidecars"}
        (endpoint,) = monitors["retuned-sidecars"]["podMetricsEndpoints"]
        assert endpoint["port"] == METRICS

    def test_gets_the_alerts_that_ship_and_those_that_are_given(self, helm: Helm) -> None:
        groups = only(helm.objects(FULL), "PrometheusRule")["spec"]["groups"]
        assert "ours" in {group["name"] for group in groups}
        shipped = {each.name for each in alerts()}
        assert shipped < {rule["alert"] for group in groups for rule in group["rules"]}

    def test_gets_every_dashboard_as_grafana_reads_it(self, helm: Helm) -> None:
        shown = {
            name: json.loads(text)
            for each in helm.objects(FULL)
            if each["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
            for name, text in each["data"].items()
        }
        assert shown == {f"{name}.json": body for name, body in dashboards()}

    def test_alerts_link_only_to_addresses_that_were_given(self, helm: Helm) -> None:
        rules = {"enabled": True, "reviewUrl": "https://retuned.example.com"}
        found = helm.objects({"monitoring": {"prometheusRule": rules}})
        groups = only(found, "PrometheusRule")["spec"]["groups"]
        for rule in (rule for group in groups for rule in group["rules"]):
            assert "runbook_url" not in rule["annotations"]
            assert "dashboard_url" not in rule["annotations"]
        (waiting,) = (
            rule
            for group in groups
            for rule in group["rules"]
            if rule["alert"] == "RetunedSwapAwaitingApproval"
        )
        url = waiting["annotations"]["review_url"]
        assert url.startswith("https://retuned.example.com/proposals/{{ with")
        assert ".invalid" not in str(groups)
        assert "kubectl retuned approve" in waiting["annotations"]["approve_command"]


def test_the_kubernetes_that_is_too_old_is_refused() -> None:
    text = (CHART / "Chart.yaml").read_text("utf-8")
    assert 'kubeVersion: ">=1.29.0-0"' in text
