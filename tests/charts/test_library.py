"""The library chart makes the pod that the webhook makes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.charts.rendering import LIBRARY, Helm, Refused
from tests.expect import raises_naming
from tests.operators.versions import VERSIONS

from retuned_operator.manifests import SidecarSettings, inject

SIDECAR = SidecarSettings(
    image="registry.example/sidecar:1", agent_url="https://retuned-agent.retuned.svc:8443"
)
VALUES = {"image": SIDECAR.image, "agentUrl": SIDECAR.agent_url}
Pod = dict[str, Any]


@pytest.fixture(scope="module")
def server_chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a stranger's chart that puts the sidecar into its pod by our template."""
    chart = tmp_path_factory.mktemp("chart") / "server"
    (chart / "templates").mkdir(parents=True)
    about = {
        "apiVersion": "v2",
        "name": "server",
        "version": "1.0.0",
        "dependencies": [{"name": "retuned-lib", "version": "0.1.0"}],
    }
    (chart / "Chart.yaml").write_text(yaml.safe_dump(about), "utf-8")
    (chart / "templates" / "pod.yaml").write_text(
        '{{ include "retuned-lib.inject" (dict "pod" .Values.pod "settings" .Values.retuned) }}\n',
        "utf-8",
    )
    copied = chart / "charts" / "retuned-lib"
    for path in sorted(LIBRARY.rglob("*")):
        if path.is_file():
            target = copied / path.relative_to(LIBRARY)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return chart


def by_template(helm: Helm, chart: Path, pod: Pod, **more: Any) -> Pod:
    files = helm.files({"pod": pod, "retuned": VALUES | more}, chart=chart)
    found: Pod = yaml.safe_load(files["server/templates/pod.yaml"])
    return found


def pod(*, annotations: dict[str, str] | None = None, **spec: Any) -> Pod:
    said = {"retuned.dev/inject": "true"} | (annotations or {})
    server = {"name": "server", "image": "vllm:1"}
    return {"metadata": {"annotations": said}, "spec": {"containers": [server], **spec}}


def with_server(**changes: Any) -> Pod:
    body = pod()
    body["spec"]["containers"][0] |= changes
    return body


PODS: dict[str, Pod] = {
    "plain": pod(),
    "own-path": with_server(env=[{"name": "PYTHONPATH", "value": "/app"}]),
    "path-of-the-image": pod(annotations={"retuned.dev/pythonpath": "/opt/image"}),
    "own-environment": with_server(
        env=[{"name": "RETUNED_TRACE_DIR", "value": "/mine"}, {"name": "A", "value": ""}]
    ),
    "own-volumes": with_server(volumeMounts=[{"name": "cache", "mountPath": "/cache"}]),
    "named-target": pod(annotations={"retuned.dev/target": "chat"}),
    "named-metrics": pod(
        annotations={"retuned.dev/server-metrics-url": "http://127.0.0.1:30000/m"}
    ),
    "several": pod(
        annotations={"retuned.dev/container": "second"},
        containers=[{"name": "first", "image": "a"}, {"name": "second", "image": "b"}],
        initContainers=[{"name": "fetch", "image": "c"}],
        volumes=[{"name": "cache", "emptyDir": {}}],
    ),
    "refused-by-annotation": pod(annotations={"retuned.dev/inject": "false"}),
    "already-there": pod(initContainers=[{"name": "retuned", "image": "x"}]),
    "with-labels": pod() | {"metadata": {"labels": {"app": "vllm"}, "annotations": {}}},
}


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_the_one_that_the_webhook_makes(helm: Helm, server_chart: Path, name: str) -> None:
    wanted = inject(copy.deepcopy(PODS[name]), settings=SIDECAR, always=True).pod
    assert by_template(helm, server_chart, PODS[name]) == wanted


@pytest.mark.parametrize("name", PODS)
def test_doing_it_twice_is_doing_it_once(helm: Helm, server_chart: Path, name: str) -> None:
    once = by_template(helm, server_chart, PODS[name])
    assert by_template(helm, server_chart, once) == once


def test_every_setting_is_the_records(helm: Helm, server_chart: Path) -> None:
    chosen = SidecarSettings(
        image=SIDECAR.image,
        agent_url=SIDECAR.agent_url,
        pull_policy="Always",
        ca_config_map="own-ca",
        audience="example.org",
        token_s=7200,
        user_id=1000690000,
        trusted_keys="ab,cd",
        cpu="50m",
        cpu_limit="1",
        memory="256Mi",
        artifacts="4Gi",
        window_s=60,
        settle_s=15,
        baseline_windows=12,
        profile_every_s=0,
        profile_milliseconds=20,
        detector="demo",
        metrics_address="0.0.0.0",
    )
    found = by_template(
        helm, server_chart, pod(), pullPolicy="Always", caConfigMap="own-ca",
        audience="example.org", tokenSeconds=7200, userId=1000690000, trustedKeys="ab,cd",
        cpu="50m", cpuLimit="1", memory="256Mi", artifacts="4Gi",
        windowSeconds=60, settleSeconds=15, baselineWindows=12, detector="demo",
        profileEverySeconds=0, profileMilliseconds=20,
        metricsAddress="0.0.0.0",
    )  # fmt: skip
    assert found == inject(pod(), settings=chosen).pod


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (pod(volumes=[{"name": "retuned-state", "emptyDir": {}}]), "volume retuned-state"),
        (pod(initContainers=[{"name": "retuned-runtime"}]), "container retuned-runtime"),
        (pod(containers=[{"name": "a"}, {"name": "b"}]), "retuned.dev/container"),
        (pod(annotations={"retuned.dev/container": "nosuch"}), "retuned.dev/container"),
        (
            with_server(env=[{"name": "PYTHONPATH", "valueFrom": {"fieldRef": {}}}]),
            "PYTHONPATH",
        ),
    ],
)
def test_what_the_webhook_leaves_alone_is_an_error_here(
    helm: Helm, server_chart: Path, body: Pod, said: str
) -> None:
    assert inject(body, settings=SIDECAR).reason is not None
    with raises_naming(Refused, said):
        by_template(helm, server_chart, body)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"agentUrl": "http://x"}, "settings.agentUrl"),
        ({"image": ""}, "settings.image"),
        ({"userId": 0}, "settings.userId"),
    ],
)
def test_settings_that_no_sidecar_can_have_are_refused(
    helm: Helm, server_chart: Path, changes: dict[str, Any], said: str
) -> None:
    with raises_naming(Refused, said):
        by_template(helm, server_chart, pod(), **changes)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_pod_is_valid(helm: Helm, server_chart: Path, version: str) -> None:
    body = by_template(helm, server_chart, pod())
    body |= {"apiVersion": "v1", "kind": "Pod", "metadata": body["metadata"] | {"name": "server"}}
    kubernetes_validate.validate(body, version, strict=True)


def _names() -> st.SearchStrategy[str]:
    return st.from_regex(r"[A-Z]{1,3}|PYTHONPATH|RETUNED_TRACE_DIR", fullmatch=True)


def _environments() -> Iterator[Any]:
    plain = st.fixed_dictionaries({"name": _names(), "value": st.sampled_from(["", "/a", "x y"])})
    yield st.lists(plain, max_size=4, unique_by=lambda each: each["name"])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(env=next(_environments()), target=st.sampled_from(["", "chat", "Größe"]))
def test_any_environment_becomes_what_the_webhook_makes_of_it(
    helm: Helm, server_chart: Path, env: list[dict[str, str]], target: str
) -> None:
    body = pod(annotations={"retuned.dev/target": target} if target else {})
    if env:
        body["spec"]["containers"][0]["env"] = env
    wanted = inject(copy.deepcopy(body), settings=SIDECAR).pod
    assert by_template(helm, server_chart, body) == wanted
