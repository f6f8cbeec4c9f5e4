from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming
from tests.operators.security import violations
from tests.operators.test_manifests import SIDECAR, server_pod

from retuned.settings import Settings
from retuned.stages.gate.values import parse_quantity
from retuned_operator.manifests import NotInjected, inject
from retuned_operator.manifests.injection import SITE
from retuned_operator.manifests.settings import SidecarSettings


def container(pod: Any, name: str) -> dict[str, Any]:
    spec = pod["spec"]
    found: dict[str, Any] = next(
        each
        for each in [*spec.get("initContainers", ()), *spec["containers"]]
        if each["name"] == name
    )
    return found


def environment(pod: Any, name: str) -> dict[str, Any]:
    return {each["name"]: each.get("value") for each in container(pod, name)["env"]}


def applied(pod: dict[str, Any], patch: Any) -> dict[str, Any]:
    """Apply a JSON patch of ``add`` operations, as the API server would."""
    out: Any = copy.deepcopy(pod)
    for operation in patch:
        assert operation["op"] == "add"
        *path, last = operation["path"].strip("/").split("/")
        node = out
        for part in path:
            node = node[int(part)] if isinstance(node, list) else node[part]
        node[last] = operation["value"]
    return dict(out)


def test_the_patch_makes_of_a_pod_what_it_becomes() -> None:
    pod = server_pod()
    before = copy.deepcopy(pod)
    result = inject(pod, settings=SIDECAR)
    assert pod == before
    assert applied(pod, result.patch) == result.pod


def test_the_sidecar_is_a_native_one_that_starts_first_and_holds_nothing_up() -> None:
    pod = inject(server_pod(initContainers=[{"name": "own"}]), settings=SIDECAR).pod
    names = [each["name"] for each in pod["spec"]["initContainers"]]
    assert names == ["retuned-runtime", "retuned", "own"]
    sidecar = container(pod, "retuned")
    assert sidecar["restartPolicy"] == "Always"
    assert not {"readinessProbe", "startupProbe", "livenessProbe"} & set(sidecar)


def test_the_servers_own_path_stays_behind_ours() -> None:
    pod = inject(server_pod(), settings=SIDECAR).pod
    assert environment(pod, "server")["PYTHONPATH"] == f"{SITE}:/app"
    assert environment(pod, "server")["A"] == "1"


def test_the_path_of_the_image_is_kept_where_it_is_named() -> None:
    bare = server_pod()
    bare["spec"]["containers"][0]["env"] = []
    assert environment(inject(bare, settings=SIDECAR).pod, "server")["PYTHONPATH"] == SITE
    bare["metadata"]["annotations"]["retuned.dev/pythonpath"] = "/image"
    path = environment(inject(bare, settings=SIDECAR).pod, "server")["PYTHONPATH"]
    assert path == f"{SITE}:/image"


def test_what_the_server_sets_itself_wins() -> None:
    pod = server_pod()
    pod["spec"]["containers"][0]["env"].append({"name": "RETUNED_SOCKET_DIR", "value": "/mine"})
    assert environment(inject(pod, settings=SIDECAR).pod, "server")["RETUNED_SOCKET_DIR"] == "/mine"


def test_the_runtime_lets_the_sidecars_user_connect_whoever_the_server_is() -> None:
    for user in (None, 0, 1000):
        pod = server_pod()
        if user is not None:
            pod["spec"]["securityContext"] = {"runAsUser": user}
        pod = dict(inject(pod, settings=SIDECAR).pod)
        assert environment(pod, "server")["RETUNED_ALLOWED_UIDS"] == "65532"
        assert container(pod, "retuned")["securityContext"]["runAsUser"] == 65532


def test_our_containers_meet_the_restricted_standard_with_a_read_only_root() -> None:
    pod = inject(server_pod(), settings=SIDECAR).pod
    assert violations(pod["spec"], only={"retuned", "retuned-runtime"}) == []
    for name in ("retuned", "retuned-runtime"):
        assert container(pod, name)["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_server_gets_no_token_and_its_security_context_stays() -> None:
    pod = server_pod()
    pod["spec"]["containers"][0]["securityContext"] = {"readOnlyRootFilesystem": True}
    pod = dict(inject(pod, settings=SIDECAR).pod)
    server = container(pod, "server")
    assert server["securityContext"] == {"readOnlyRootFilesystem": True}
    assert "retuned-token" not in [each["name"] for each in server["volumeMounts"]]
    runtime = next(each for each in server["volumeMounts"] if each["name"] == "retuned-runtime")
    assert runtime["readOnly"] is True


def test_the_token_is_for_our_audience_alone_and_a_missing_authority_stops_no_server() -> None:
    pod = inject(server_pod(), settings=SIDECAR).pod
    volume = next(each for each in pod["spec"]["volumes"] if each["name"] == "retuned-token")
    token, authority = volume["projected"]["sources"]
    assert token["serviceAccountToken"]["audience"] == "retuned.dev"
    assert authority["configMap"]["optional"] is True


def test_every_folder_has_a_limit() -> None:
    pod = inject(server_pod(), settings=SIDECAR).pod
    for volume in pod["spec"]["volumes"]:
        assert "projected" in volume or volume["emptyDir"]["sizeLimit"]
    # past it the kubelet evicts the server: the sidecar, which empties the folder, has to be first
    (traces,) = (each for each in pod["spec"]["volumes"] if each["name"] == "retuned-traces")
    limit = parse_quantity(traces["emptyDir"]["sizeLimit"])
    assert isinstance(limit, int)
    assert limit >= 8 * Settings.model_fields["max_folder_bytes"].default


def test_once_is_enough() -> None:
    once = inject(server_pod(), settings=SIDECAR)
    twice = inject(once.pod, settings=SIDECAR)
    assert twice.reason is NotInjected.ALREADY_THERE
    assert twice.patch == ()
    assert twice.pod == once.pod


def with_annotations(**said: str) -> dict[str, Any]:
    pod = server_pod()
    pod["metadata"]["annotations"] = {f"retuned.dev/{k}": v for k, v in said.items()}
    return pod


def path_from_elsewhere() -> dict[str, Any]:
    pod = server_pod()
    pod["spec"]["containers"][0]["env"] = [{"name": "PYTHONPATH", "valueFrom": {}}]
    return pod


REFUSED = [
    (with_annotations(), NotInjected.NOT_ASKED),
    (with_annotations(inject="false"), NotInjected.NOT_ASKED),
    (with_annotations(inject="yes please"), NotInjected.NOT_ASKED),
    (with_annotations(inject="true", container="other"), NotInjected.NO_CONTAINER),
    (server_pod(containers=[{"name": "a"}, {"name": "b"}]), NotInjected.NO_CONTAINER),
    (server_pod(containers=[]), NotInjected.NO_CONTAINER),
    (server_pod(volumes=[{"name": "retuned-token"}]), NotInjected.NAME_TAKEN),
    (server_pod(initContainers=[{"name": "retuned-runtime"}]), NotInjected.NAME_TAKEN),
    (path_from_elsewhere(), NotInjected.PYTHONPATH_ELSEWHERE),
    (server_pod(containers=None), NotInjected.NOT_A_POD),
    (server_pod(containers=["server"]), NotInjected.NOT_A_POD),
    (server_pod(containers=[{"name": "a", "env": {"A": "1"}}]), NotInjected.NOT_A_POD),
    ({"metadata": ["x"], "spec": {"containers": []}}, NotInjected.NOT_A_POD),
    ({}, NotInjected.NOT_A_POD),
]


@pytest.mark.parametrize(("pod", "reason"), REFUSED)
def test_a_pod_that_cannot_take_it_is_left_as_it_is(
    pod: dict[str, Any], reason: NotInjected
) -> None:
    result = inject(pod, settings=SIDECAR)
    assert result.reason is reason
    assert result.patch == ()
    assert result.pod is pod
    assert result.detail


def test_the_container_that_serves_can_be_named_among_several() -> None:
    pod = with_annotations(inject="true", container="b")
    pod["spec"]["containers"] = [{"name": "a"}, {"name": "b"}]
    pod = dict(inject(pod, settings=SIDECAR).pod)
    assert "env" not in container(pod, "a")
    assert environment(pod, "b")["PYTHONPATH"] == SITE


def test_by_hand_no_annotation_is_needed_but_a_no_is_a_no() -> None:
    assert inject(with_annotations(), settings=SIDECAR, always=True).reason is None
    refused = inject(with_annotations(inject="false"), settings=SIDECAR, always=True)
    assert refused.reason is NotInjected.NOT_ASKED


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=12,
)
names = st.sampled_from(["metadata", "spec", "containers", "env", "volumes", "name", "labels"])
strange = st.recursive(
    json_values,
    lambda inner: st.dictionaries(names, inner, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=30,
)


@given(st.dictionaries(names, strange, max_size=4))
def test_no_pod_makes_it_raise(pod: dict[str, Any]) -> None:
    result = inject(pod, settings=SIDECAR, always=True)
    json.dumps(result.pod)


@given(strange, strange, strange)
def test_no_field_of_a_container_makes_it_raise(env: Any, mounts: Any, volumes: Any) -> None:
    pod = server_pod(volumes=volumes)
    pod["spec"]["containers"][0] |= {"env": env, "volumeMounts": mounts}
    inject(pod, settings=SIDECAR)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"agent_url": "http://x"}, "'http://x'"),
        ({"user_id": 0}, "root"),
        ({"token_s": 60}, "600 to 86400"),
        ({"window_s": 0}, "1 to 86400"),
        ({"settle_s": -1}, "0 to 3600"),
        ({"baseline_windows": 0}, "1 to 10000 windows"),
        ({"profile_every_s": -1}, "profiler"),
        ({"profile_milliseconds": 4}, "5 to 5000"),
        ({"detector": "eager"}, "'eager'"),
    ],
)
def test_settings_that_would_be_unsafe_are_refused(wrong: dict[str, Any], named: str) -> None:
    with raises_naming(ValueError, named):
        SidecarSettings(**{"image": "i", "agent_url": "https://x"} | wrong)


def limited(**more: Any) -> dict[str, Any]:
    return {"name": "a", "resources": {"limits": {"cpu": "8", "memory": "64Gi"} | more}}


def test_a_pod_whose_containers_all_have_limits_keeps_its_class() -> None:
    pod = inject(server_pod(containers=[limited()]), settings=SIDECAR).pod
    for name in ("retuned", "retuned-runtime"):
        resources = container(pod, name)["resources"]
        assert resources["requests"] == resources["limits"]
    other = server_pod(containers=[limited()], initContainers=[{"name": "b"}])
    resources = container(inject(other, settings=SIDECAR).pod, "retuned")["resources"]
    assert resources["requests"] != resources["limits"]


def mounting(path: str) -> dict[str, Any]:
    mounts = [{"name": "own", "mountPath": path}]
    return server_pod(containers=[{"name": "server", "volumeMounts": mounts}])


UNFIT = [
    (server_pod(os={"name": "windows"}), NotInjected.WINDOWS),
    (server_pod(nodeSelector={"kubernetes.io/os": "windows"}), NotInjected.WINDOWS),
    (server_pod(resources={"limits": {"cpu": "8"}}), NotInjected.POD_RESOURCES),
    (mounting("/retuned/traces"), NotInjected.MOUNT_TAKEN),
    (mounting("/retuned//sockets/"), NotInjected.MOUNT_TAKEN),
]


@pytest.mark.parametrize(("pod", "reason"), UNFIT)
def test_a_pod_that_would_not_start_with_it_is_left_as_it_is(
    pod: dict[str, Any], reason: NotInjected
) -> None:
    result = inject(pod, settings=SIDECAR)
    assert (result.reason, result.patch) == (reason, ())
    assert result.pod is pod
    assert reason.is_trouble


def test_a_kubelets_own_pod_is_left_as_it_is() -> None:
    pod = server_pod()
    pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "abc"
    assert inject(pod, settings=SIDECAR).reason is NotInjected.STATIC


@given(strange, strange, strange)
def test_nothing_about_system_nodes_or_resources_makes_it_raise(
    system: Any, nodes: Any, resources: Any
) -> None:
    pod = server_pod(os=system, nodeSelector=nodes)
    pod["spec"]["containers"][0]["resources"] = resources
    inject(pod, settings=SIDECAR)
