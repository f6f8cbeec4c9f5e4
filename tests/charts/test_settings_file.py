"""The ConfigMap with the operator's settings is read as the records that make pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.charts.rendering import CHART, CI, ROOT, Helm, values_of

from retuned import catalog
from retuned.api.target import Vendor
from retuned_operator.manifests import (
    Endpoint,
    JobRequest,
    JobSettings,
    SidecarSettings,
    inject,
    job_objects,
)
from retuned_operator.notify_settings import channel_settings
from retuned_operator.review.settings import review_settings
from retuned_operator.schema import JobRole
from retuned_operator.settings import CONFIG, Settings, load_settings
from retuned_operator.store.kernels import learn

FULL = values_of(CHART / "ci" / "full-values.yaml")


def object_of(helm: Helm, values: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    (found,) = (
        each
        for each in helm.objects(values)
        if (each["kind"], each["metadata"]["name"]) == (kind, name)
    )
    return found


class Reader:
    """The operator's own settings, read in the place of its pod."""

    def __init__(self, helm: Helm, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._helm, self._folder, self._patch = helm, folder, patch

    def __call__(self, values: dict[str, Any]) -> Settings:
        """Return what the operator reads with these values."""
        body = object_of(self._helm, values, "ConfigMap", "retuned-settings")
        path = self._folder / "operator.yaml"
        path.write_text(body["data"]["operator.yaml"], "utf-8")
        template = object_of(self._helm, values, "Deployment", "retuned-operator")["spec"][
            "template"
        ]
        (container,) = template["spec"]["containers"]
        for each in container["env"]:
            name = each["name"]
            at = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            self._patch.setenv(name, {"metadata.name": "pod-1", "metadata.namespace": "retuned",
                                      None: each.get("value")}[at])  # fmt: skip
            if name == CONFIG:
                assert each["value"] == "/etc/retuned/operator.yaml"
        self._patch.setenv(CONFIG, str(path))
        return load_settings()


@pytest.fixture
def reader(helm: Helm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    return Reader(helm, tmp_path, monkeypatch)


@pytest.mark.parametrize("path", CI, ids=lambda path: path.stem)
def test_the_operator_understands_every_example(reader: Reader, path: Path) -> None:
    found = reader(values_of(path))
    assert (found.pod_name, found.pod_namespace) == ("pod-1", "retuned")
    assert found.job_settings().image
    assert found.sidecar_settings().agent_url.startswith("https://")


def test_ports_and_folders_are_those_of_the_pod(helm: Helm, reader: Reader) -> None:
    values = {"certManager": {"enabled": True}, "operator": {"ports": {"agent": 8444}}}
    found = reader(values)
    template = object_of(helm, values, "Deployment", "retuned-operator")["spec"]["template"]
    (container,) = template["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {
        "agent": found.agent_port,
        "webhook": found.webhook_port,
        "metrics": found.metrics_port,
    }
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert {str(found.state_dir), str(found.tls_dir)} <= mounts


def test_there_is_no_webhook_and_no_mounted_certificate_unless_chosen(reader: Reader) -> None:
    found = reader({"webhook": {"enabled": False}})
    assert (found.webhook_port, found.tls_dir) == (None, None)


def test_default_values_are_the_defaults_of_the_records(reader: Reader) -> None:
    found = reader({})
    jobs = found.job_settings()
    assert jobs == JobSettings(image="retuned/experiment:0.1.0", namespace="retuned-experiments")
    assert found.sidecar_settings() == SidecarSettings(
        image="retuned/sidecar:0.1.0", agent_url="https://retuned-agent.retuned.svc:8443"
    )


def test_every_value_is_carried_over(reader: Reader) -> None:
    found = reader(FULL)
    jobs = found.job_settings()
    assert jobs.endpoint == Endpoint(
        cidr="203.0.113.7/32",
        port=8443,
        url="https://models.example.org:8443/v1",
        model="name-of-the-model",
        prompt_usd_per_mtok=1.5,
        completion_usd_per_mtok=6.0,
        max_tokens=200_000,
        max_usd=1.0,
        max_usd_per_day=4.5,
        variants=9,
        max_s=600,
    )
    assert jobs.asks_model
    assert jobs.device_groups[Vendor.AMD] == (44, 1000680000)
    assert (jobs.queue, jobs.endpoint_secret) == ("experiments", "model-key")
    assert (jobs.runtime_class, jobs.pull_secrets) == ("kata", ("registry-key",))
    assert jobs.tolerations == tuple(FULL["experiments"]["tolerations"])
    assert jobs.image == "registry.example.org/tuning/retuned/experiment:0.1.0"
    sidecar = found.sidecar_settings()
    assert sidecar.trusted_keys == "ab" * 32
    assert (sidecar.window_s, sidecar.settle_s, sidecar.baseline_windows) == (600, 45, 144)
    assert (sidecar.profile_every_s, sidecar.profile_milliseconds) == (120, 50)
    assert sidecar.detector == "demo"
    assert sidecar.metrics_address == "0.0.0.0"
    assert (found.namespaces, found.environment) == (("serving", "chat"), "prod")
    assert found.prometheus_url == "http://prometheus.observability.svc:9090"
    assert (found.log_level, found.log_format, sidecar.log_format) == ("debug", "json", "json")


def test_users_of_large_numbers_stay_whole_numbers(reader: Reader) -> None:
    found = reader(values_of(CHART / "ci" / "openshift-values.yaml"))
    assert found.job_settings().user_id == 1000680000
    assert found.sidecar_settings().user_id == 1000690000


@pytest.mark.parametrize("vendor", ["amd", "nvidia"])
def test_every_model_of_an_example_gets_its_pod(reader: Reader, vendor: str) -> None:
    values = values_of(CHART / "ci" / f"{vendor}-values.yaml")
    jobs = reader(values).job_settings()
    assert values["experiments"]["gpuModels"]
    for model in values["experiments"]["gpuModels"]:
        request = JobRequest(
            role=JobRole.SEARCH, experiment="e", experiment_uid="u",
            experiment_namespace="serving", attempt=1, task="{}", vendor=Vendor(vendor),
            model=model, deadline_s=60,
        )  # fmt: skip
        _, job = job_objects(request, jobs)
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["limits"][f"{vendor}.com/gpu"] == "1"


def test_pods_with_the_sidecar_may_reach_the_agent_api(helm: Helm, reader: Reader) -> None:
    pod = {
        "metadata": {"annotations": {"retuned.dev/inject": "true"}},
        "spec": {"containers": [{"name": "server", "image": "vllm:1"}]},
    }
    labels = inject(pod, settings=reader({}).sidecar_settings()).pod["metadata"]["labels"]
    (policy,) = (
        each
        for each in helm.objects({})
        if each["kind"] == "NetworkPolicy" and each["metadata"]["name"] == "retuned-operator"
    )
    first = policy["spec"]["ingress"][0]
    assert first["ports"] == [{"protocol": "TCP", "port": "agent"}]
    assert first["from"][0]["podSelector"]["matchLabels"].items() <= labels.items()


KERNELS = ROOT / "docs" / "examples" / "scale_bias"


def test_definitions_in_the_values_are_those_that_the_operator_learns(
    helm: Helm, reader: Reader, tmp_path: Path
) -> None:
    values = {"definitions": {"files": {each.name: each.read_text("utf-8")
                                        for each in KERNELS.iterdir()}}}  # fmt: skip
    place, volume = mounted(helm, values)
    assert place == {"name": "definitions", "readOnly": True,
                     "mountPath": str(reader(values).definitions_dir)}  # fmt: skip
    data = object_of(helm, values, "ConfigMap", volume["configMap"]["name"])["data"]
    for name, text in data.items():
        (tmp_path / name).write_text(text, "utf-8")
    try:
        assert learn(tmp_path).names == ("scale_bias_h1024",)
    finally:
        catalog.forget()


@pytest.mark.parametrize(
    ("chosen", "volume"),
    [
        ({"configMap": "kernels"}, {"configMap": {"name": "kernels"}}),
        ({"existingClaim": "kernels"},
         {"persistentVolumeClaim": {"claimName": "kernels", "readOnly": True}}),
    ],
)  # fmt: skip
def test_definitions_may_lie_in_what_is_there_already(
    helm: Helm, reader: Reader, chosen: dict[str, str], volume: dict[str, Any]
) -> None:
    place, found = mounted(helm, {"definitions": chosen})
    assert found == {"name": "definitions", **volume}
    assert place["mountPath"] == str(reader({"definitions": chosen}).definitions_dir)
    assert place["readOnly"]


def test_there_are_no_definitions_unless_named_and_other_files_make_another_pod(
    helm: Helm, reader: Reader
) -> None:
    assert reader({}).definitions_dir is None
    seen = set()
    for text in ("name: a", "name: b"):
        values = {"definitions": {"files": {"a.yaml": text}}}
        pod = object_of(helm, values, "Deployment", "retuned-operator")["spec"]["template"]
        seen.add(pod["metadata"]["annotations"]["retuned.dev/definitions"])
    assert len(seen) == 2


def mounted(helm: Helm, values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return where definitions are mounted, and what is."""
    pod = object_of(helm, values, "Deployment", "retuned-operator")["spec"]["template"]["spec"]
    (place,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "definitions")
    (volume,) = (each for each in pod["volumes"] if each["name"] == "definitions")
    return place, volume


def test_there_are_no_channels_unless_chosen(reader: Reader) -> None:
    settings = reader({})
    assert (settings.channels, settings.channels_port) == ({}, None)


def test_channels_are_those_of_the_values_and_secrets_are_files(reader: Reader) -> None:
    settings = reader(values_of(CHART / "ci" / "channels-values.yaml"))
    assert settings.channels_port == 8446
    channels = channel_settings(settings.channels)
    assert channels.slack_users == {
        "U012AB3CD": "ada@example.com",
        "U045EF6GH": "grace@example.com",
    }
    assert channels.slack_people["U045EF6GH"].groups == ("sre-oncall", "gpu-platform")
    assert channels.slack_token == "/etc/retuned-channels/slack-token"
    assert channels.alertmanager_url == "http://alertmanager.monitoring:9093"
    assert channels.alertmanager_webhook_token.endswith("/alertmanager-webhook-token")
    assert channels.review_url == "https://tuning.example.com"


def test_traces_go_from_operator_and_sidecars_unless_those_are_left_out(reader: Reader) -> None:
    url = "http://collector.observability:4318/v1/traces"
    both = reader({"tracing": {"url": url}})
    assert (both.traces_url, both.sidecar_settings().traces_url) == (url, url)
    alone = reader({"tracing": {"url": url, "sidecars": False}})
    assert (alone.traces_url, alone.sidecar_settings().traces_url) == (url, "")


def test_there_is_no_review_page_unless_chosen(reader: Reader) -> None:
    assert reader({}).review_port is None


def test_the_review_page_believes_whom_the_values_name(reader: Reader) -> None:
    settings = reader(values_of(CHART / "ci" / "review-values.yaml"))
    assert settings.review_port == 8445
    review = review_settings(settings.review)
    assert review.hosts == ("tuning.example.com",)
    assert str(review.secret_file) == "/etc/retuned-review/secret"
    assert review.proxy_addresses == ("10.0.3.0/24",)
    assert (review.user_header, review.groups_header) == ("X-Forwarded-Email", "X-Forwarded-Groups")
    assert review.groups == ("gpu-platform", "sre-oncall")
    assert review.gpu_hour_usd == 2.5
