"""A sidecar speaks for its own pod, while its token and its pod last, and for nobody else."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.expect import raises_naming
from tests.operators.agent_api.agent_world import (
    OTHER,
    POD,
    TARGET,
    AgentWorld,
    an_order,
    artifact_files,
    token_of,
)
from tests.plane.pki import Authority

from retuned.api.agent import VERSION, Hello, PodRef
from retuned.contract import Digest
from retuned.errors import Refused, TemporaryError
from retuned.sidecar.operator_api import OperatorApi
from retuned_operator.agent_api.authentication import Unknown, caller_of

FIRST: Digest = "sha256:" + "1" * 64


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AgentWorld]:
    found = AgentWorld(tmp_path)
    yield found
    found.close()


def ask(world: AgentWorld, token: str | None, *, path: str = "/v1/orders") -> httpx.Response:
    context = ssl.create_default_context(cafile=str(world.authority.certificate))
    headers = {"authorization": f"Bearer {token}"} if token is not None else {}
    with httpx.Client(verify=context, trust_env=False, timeout=30.0) as client:
        return client.get(world.url + path, headers=headers)


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def hello(pod: PodRef) -> Hello:
    return Hello(
        pod=pod, target=TARGET, version=VERSION, release="1", at=datetime(2026, 1, 5, tzinfo=UTC)
    )


def test_no_token_and_nonsense_are_nobody(world: AgentWorld) -> None:
    assert code(ask(world, None)) == (401, "token-missing")
    assert code(ask(world, "nonsense")) == (401, "token-refused")
    assert code(ask(world, "x" * 20_000)) == (401, "token-refused")


def test_a_token_for_another_audience_is_nobody(world: AgentWorld) -> None:
    token = token_of(POD, audience="https://kubernetes.default.svc")
    assert code(ask(world, token)) == (401, "token-refused")


def test_an_answer_for_another_audience_is_not_believed() -> None:
    user = {"username": "system:serviceaccount:serving:chat"}
    said: dict[str, Any] = {"status": {"authenticated": True, "audiences": ["vault"], "user": user}}
    assert caller_of(said, audience="retuned.dev") is Unknown.WRONG_AUDIENCE
    said["status"]["audiences"] = "retuned.dev"  # a text is no list
    assert caller_of(said, audience="retuned.dev") is Unknown.WRONG_AUDIENCE


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"authenticated": "yes"},
        {"authenticated": True, "audiences": ["retuned.dev"]},
        {"authenticated": True, "audiences": ["retuned.dev"], "user": {"username": "ada"}},
        {
            "authenticated": True,
            "audiences": ["retuned.dev"],
            "user": {"username": "system:serviceaccount:serving:chat", "extra": {}},
        },
        {
            "authenticated": True,
            "audiences": ["retuned.dev"],
            "user": {
                "username": "ada",
                "extra": {
                    "authentication.kubernetes.io/pod-name": ["chat-0"],
                    "authentication.kubernetes.io/pod-uid": ["u-0"],
                },
            },
        },
        {
            "authenticated": True,
            "audiences": ["retuned.dev"],
            "user": {
                "username": "system:serviceaccount:serving:chat",
                "extra": {
                    "authentication.kubernetes.io/pod-name": ["chat-0", "chat-1"],
                    "authentication.kubernetes.io/pod-uid": ["u-0"],
                },
            },
        },
        {"authenticated": True, "error": "expired", "audiences": ["retuned.dev"]},
    ],
)
def test_whoever_is_not_bound_to_one_pod_is_nobody(status: dict[str, object]) -> None:
    assert isinstance(caller_of({"status": status}, audience="retuned.dev"), Unknown)


def test_another_pods_token_gets_that_pods_orders_only(world: AgentWorld) -> None:
    world.order(an_order(FIRST))
    assert world.client(POD).orders(after=0, wait_s=0.0).orders == (an_order(FIRST),)
    assert world.client(OTHER).orders(after=0, wait_s=0.0).orders == ()


def test_another_pods_token_cannot_speak_for_this_pod(world: AgentWorld) -> None:
    with pytest.raises(Refused) as refused:
        world.client(OTHER).hello(hello(POD))
    assert refused.value.code == "not-your-pod"
    assert world.inbox.taken == []


def test_another_pods_token_gets_no_artifact_of_this_pod(world: AgentWorld, tmp_path: Path) -> None:
    world.order(an_order(FIRST))
    world.fleet.artifacts[FIRST] = artifact_files(FIRST)
    with pytest.raises(Refused) as refused:
        world.client(OTHER).artifact(FIRST, folder=tmp_path)
    assert refused.value.code == "artifact-unknown"


def test_a_token_that_has_ended_is_nobody_although_it_was_believed_just_now(
    world: AgentWorld,
) -> None:
    ends_at = world.clock.now().timestamp() + 20.0
    client = world.client(token=token_of(POD, ends_at=ends_at))
    client.orders(after=0, wait_s=0.0)
    world.clock.advance(19.0)
    client.orders(after=0, wait_s=0.0)
    assert world.tokens.asked == 1
    world.clock.advance(2.0)
    with pytest.raises(TemporaryError) as refused:
        client.orders(after=0, wait_s=0.0)
    assert refused.value.code == "token-refused", "the kubelet writes a new one"


def test_the_api_servers_word_is_kept_for_a_minute_and_no_longer(world: AgentWorld) -> None:
    client = world.client()
    for _ in range(5):
        client.orders(after=0, wait_s=0.0)
    assert world.tokens.asked == 1
    world.clock.advance(61.0)
    client.orders(after=0, wait_s=0.0)
    assert world.tokens.asked == 2


def test_a_token_that_is_refused_is_asked_for_seldom(world: AgentWorld) -> None:
    for _ in range(5):
        ask(world, "a.b.c")
    assert world.tokens.asked == 1
    world.clock.advance(6.0)
    ask(world, "a.b.c")
    assert world.tokens.asked == 2


def test_without_the_api_server_nobody_is_believed(world: AgentWorld) -> None:
    world.tokens.away = True
    with pytest.raises(TemporaryError):
        world.client().hello(hello(POD))
    assert world.inbox.taken == []
    world.tokens.away = False
    world.client().hello(hello(POD))
    assert len(world.inbox.taken) == 1


def test_a_pod_that_is_gone_or_replaced_is_refused_at_once(world: AgentWorld) -> None:
    client = world.client()
    client.orders(after=0, wait_s=0.0)
    record = world.fleet.pods["chat-0"]
    world.fleet.pods["chat-0"] = replace(record, uid="u-9")
    with pytest.raises(Refused) as refused:
        client.orders(after=0, wait_s=0.0)
    assert refused.value.code == "pod-replaced"
    del world.fleet.pods["chat-0"]
    with pytest.raises(Refused) as refused:
        client.orders(after=0, wait_s=0.0)
    assert refused.value.code == "pod-unknown"


def test_a_pod_that_no_target_selects_is_refused(world: AgentWorld) -> None:
    world.fleet.pods["chat-0"] = replace(world.fleet.pods["chat-0"], target="")
    with pytest.raises(Refused) as refused:
        world.client().hello(hello(POD))
    assert refused.value.code == "no-target"


def test_a_token_of_another_namespaces_pod_of_that_name_is_refused(world: AgentWorld) -> None:
    stranger = PodRef(namespace="elsewhere", name="chat-0", uid="u-0")
    with pytest.raises(Refused) as refused:
        world.client(stranger).orders(after=0, wait_s=0.0)
    assert refused.value.code == "pod-unknown"


def test_a_certificate_of_another_authority_is_not_talked_to(
    world: AgentWorld, tmp_path: Path
) -> None:

    token = tmp_path / "token"
    token.write_text(token_of(POD))
    stranger = Authority(tmp_path / "stranger")
    client = OperatorApi(world.url, token_file=token, ca_file=stranger.certificate)
    with raises_naming(TemporaryError, "/v1/hello", "CERTIFICATE_VERIFY_FAILED"):
        client.hello(hello(POD))
    client.close()
    assert world.tokens.asked == 0, "the token was not sent"


def test_whether_it_lives_is_told_to_anybody(world: AgentWorld) -> None:
    response = ask(world, None, path="/healthz")
    assert (response.status_code, response.text) == (200, "ok\n")
