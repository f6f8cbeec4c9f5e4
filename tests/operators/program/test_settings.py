from __future__ import annotations

from pathlib import Path
from typing import Any

import pydantic
import pytest
from tests.expect import raises_naming

from retuned.api.target import Vendor
from retuned.errors import UsageError
from retuned_operator.schema import JobRole
from retuned_operator.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("RETUNED_OPERATOR_"):
            monkeypatch.delenv(name)


def written(folder: Path, text: str) -> Path:
    path = folder / "operator.yaml"
    path.write_text(text)
    return path


def test_the_charts_file_is_read_in_its_own_words(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
namespaces: [serving]
prometheusUrl: http://prometheus:9090
allowServiceAccounts: false
jobs:
  image: lab@sha256:0
  namespace: lab
  gpuResources: {amd: amd.com/gpu}
  gpuModels: {MI300X: {amd.com/gpu.product-name: x}}
  deviceGroups: {amd: [109]}
  sizes:
    search: {cpu: "4", memory: 16Gi, work: 8Gi}
  keepSeconds: 60
  endpoint: null
sidecar: {image: sidecar, agentUrl: https://retuned-agent.retuned.svc:8443, tokenSeconds: 600}
""",
    )
    settings = load_settings(file)
    jobs = settings.job_settings()
    assert settings.namespaces == ("serving",)
    assert settings.prometheus_url == "http://prometheus:9090"
    assert jobs.device_groups[Vendor.AMD] == (109,)
    assert jobs.sizes[JobRole.SEARCH].cpu == "4"
    assert jobs.keep_s == 60
    assert settings.sidecar_settings().token_s == 600


def test_the_environment_is_stronger_than_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, "prometheusUrl: http://one\nlog_level: error\n")
    monkeypatch.setenv("RETUNED_OPERATOR_PROMETHEUS_URL", "http://two")
    monkeypatch.setenv("RETUNED_OPERATOR_METRICS_PORT", "9999")
    settings = load_settings(file)
    assert (settings.prometheus_url, settings.metrics_port) == ("http://two", 9999)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense: 1\n", "nonsense"),
        ("- a\n", "`setting: value`"),
        ("metrics_port: 99999\n", "metrics_port"),
    ],
)
def test_what_is_not_known_is_refused_by_its_name(tmp_path: Path, text: str, said: str) -> None:
    with raises_naming(UsageError, said):
        load_settings(written(tmp_path, text))


def test_a_variable_that_nobody_reads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETUNED_OPERATOR_METRIC_PORT", "1")
    with raises_naming(UsageError, "RETUNED_OPERATOR_METRIC_PORT"):
        load_settings()


def test_unknown_and_wrong_values_of_pods_are_refused(tmp_path: Path) -> None:
    settings = load_settings(written(tmp_path, "jobs: {image: lab, userId: 0}\n"))
    with raises_naming(UsageError, "jobs", "root"):
        settings.job_settings()
    settings = load_settings(written(tmp_path, "sidecar: {image: a, agentUri: https://x}\n"))
    with raises_naming(UsageError, "sidecar.agentUri", "agent_url"):
        settings.sidecar_settings()


def test_nothing_at_all_is_a_complete_setting() -> None:
    assert load_settings().model_dump() == Settings().model_dump()


def test_what_reads_the_settings_of_pods_is_made_once_however_often_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[object] = []
    whole = pydantic.TypeAdapter.__init__

    def counted(self: Any, of: Any, **more: Any) -> None:
        made.append(of)
        whole(self, of, **more)

    monkeypatch.setattr(pydantic.TypeAdapter, "__init__", counted)
    settings = Settings(sidecar={"image": "sidecar", "agentUrl": "https://retuned:8443"})
    assert settings.job_settings() == settings.job_settings()
    assert settings.sidecar_settings() == settings.sidecar_settings()
    assert made == []
    pydantic.TypeAdapter(int)
    assert made == [int]
