"""The ConfigMap with the operator's settings is read as the records that make pods."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from tests.charts.rendering import CHART, Helm, values_of

from retuned.errors import UnreadableInput
from retuned_operator.crds import JobRole
from retuned_operator.crds.target import Vendor
from retuned_operator.manifests import (
    Endpoint,
    JobRequest,
    JobSettings,
    SidecarSettings,
    inject,
    job_objects,
)
from retuned_operator.manifests.job_data import job_settings
from retuned_operator.manifests.settings_data import sidecar_settings

FULL = values_of(CHART / "ci" / "full-values.yaml")


def file_of(helm: Helm, values: dict[str, Any]) -> dict[str, Any]:
    (found,) = (
        each for each in helm.objects(values) if each["metadata"]["name"] == "retuned-settings"
    )
    read: dict[str, Any] = yaml.safe_load(found["data"]["operator.yaml"])
    return read


def jobs_of(helm: Helm, values: dict[str, Any]) -> JobSettings:
    return job_settings(file_of(helm, values)["jobs"], where="operator.yaml")


def sidecar_of(helm: Helm, values: dict[str, Any]) -> SidecarSettings:
    return sidecar_settings(file_of(helm, values)["sidecar"], where="operator.yaml")


def test_default_values_are_the_defaults_of_the_records(helm: Helm) -> None:
    jobs = jobs_of(helm, {})
    assert jobs == JobSettings(image="retuned/experiment:0.1.0", namespace="retuned-experiments")
    assert sidecar_of(helm, {}) == SidecarSettings(
        image="retuned/sidecar:0.1.0", agent_url="https://retuned-agent.retuned.svc:8443"
    )


def test_every_value_is_carried_over(helm: Helm) -> None:
    jobs, read = jobs_of(helm, FULL), file_of(helm, FULL)
    assert jobs.endpoint == Endpoint(cidr="203.0.113.7/32", port=8443)
    assert jobs.device_groups[Vendor.AMD] == (44, 1000680000)
    assert (jobs.queue, jobs.claim, jobs.endpoint_secret) == ("experiments", "results", "model-key")
    assert (jobs.runtime_class, jobs.pull_secrets) == ("kata", ("registry-key",))
    assert jobs.tolerations == tuple(FULL["experiments"]["tolerations"])
    assert jobs.image == "registry.example.org/tuning/retuned/experiment:0.1.0"
    assert sidecar_of(helm, FULL).trusted_keys == "ab" * 32
    assert (read["namespaces"], read["environment"]) == (["serving", "chat"], "prod")
    assert read["prometheusUrl"] == "http://prometheus.observability.svc:9090"


def test_users_of_large_numbers_stay_whole_numbers(helm: Helm) -> None:
    values = values_of(CHART / "ci" / "openshift-values.yaml")
    assert jobs_of(helm, values).user_id == 1000680000
    assert sidecar_of(helm, values).user_id == 1000690000


@pytest.mark.parametrize("vendor", ["amd", "nvidia"])
def test_every_model_of_an_example_gets_its_pod(helm: Helm, vendor: str) -> None:
    values = values_of(CHART / "ci" / f"{vendor}-values.yaml")
    jobs = jobs_of(helm, values)
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


def test_pods_with_the_sidecar_may_reach_the_agent_api(helm: Helm) -> None:
    pod = {
        "metadata": {"annotations": {"retuned.dev/inject": "true"}},
        "spec": {"containers": [{"name": "server", "image": "vllm:1"}]},
    }
    labels = inject(pod, settings=sidecar_of(helm, {})).pod["metadata"]["labels"]
    (policy,) = (
        each
        for each in helm.objects({})
        if each["kind"] == "NetworkPolicy" and each["metadata"]["name"] == "retuned-operator"
    )
    first = policy["spec"]["ingress"][0]
    assert first["ports"] == [{"protocol": "TCP", "port": "agent"}]
    assert first["from"][0]["podSelector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "expected a mapping"),
        ({}, "image: Field required"),
        ({"image": "i", "keep_s": 1}, "unknown setting 'keep_s'"),
        ({"image": "i", "priorityClas": ""}, "did you mean priorityClass"),
        ({"image": "i", "userId": 0}, "root"),
        ({"image": "i", "keepSeconds": "soon"}, "keepSeconds"),
        ({"image": "i", "gpuResources": {"intel": "x"}}, "gpuResources"),
        ({"image": "i", "endpoint": {"cidr": "x", "prot": 1}}, "did you mean port"),
        ({"image": "i", "sizes": {"compile": {"cpus": "1"}}}, "did you mean cpu"),
        ({"image": "i", "sizes": [1]}, "expected a mapping"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_by_name(data: object, said: str) -> None:
    with pytest.raises(UnreadableInput, match=said) as caught:
        job_settings(data, where="operator.yaml")
    assert caught.value.code == "settings-invalid"


def test_a_size_that_is_left_out_is_as_usual() -> None:
    sizes = {"compile": {"cpu": "8", "memory": "8Gi", "work": "8Gi"}}
    found = job_settings({"image": "i", "sizes": sizes}, where="here").sizes
    assert set(found) == set(JobRole)
    assert found[JobRole.COMPILE].cpu == "8"
