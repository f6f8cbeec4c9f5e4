"""Requests: what an answer means, and what no answer means."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from benchmarks.operator_relay import Relay
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client.configuration import Configuration
from tests.expect import raises_code, raises_naming
from tests.fakeapi.access import Identity
from tests.fakeapi.faults import Fault
from tests.fakeapi.server import FakeApi

from retuned.errors import TemporaryError, UsageError
from retuned_operator.kube import responses, transport
from retuned_operator.kube.client import Api
from retuned_operator.kube.errors import (
    MAX_DELAY_S,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Unauthorized,
    Unavailable,
    answered,
)
from retuned_operator.kube.kubeconfig import configuration_of
from retuned_operator.kube.resources import CONFIG_MAPS, DECISIONS, FREEZES, PODS
from retuned_operator.kube.transport import Timeouts, Transport

SHORT = Timeouts(connect_s=5.0, answer_s=0.3, watch_s=20.0, stall_s=0.3)
NOTES = {"metadata": {"name": "notes", "namespace": "default"}, "data": {"a": "1"}}
Look = Callable[[Api], object]


def get(api: Api) -> object:
    return api.list(CONFIG_MAPS, namespace="default")


def test_a_server_that_has_too_much_to_do_says_when_to_come_again(fake: FakeApi) -> None:
    fake.faults.add(Fault(status=429, retry_after="7"))
    with pytest.raises(Unavailable) as caught:
        get(fake.api())
    assert caught.value.delay_s == 7.0
    assert caught.value.status == 429
    assert isinstance(caught.value, TemporaryError)
    get(fake.api())


@pytest.mark.parametrize("after", ["soon", "nan", "-3", "1e9", ""])
def test_nobody_makes_the_operator_wait_for_ever(fake: FakeApi, after: str) -> None:
    fake.faults.add(Fault(status=503, retry_after=after))
    with pytest.raises(Unavailable) as caught:
        get(fake.api())
    assert 0.0 <= caught.value.delay_s <= MAX_DELAY_S


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408])
def test_a_server_that_fails_may_answer_later(fake: FakeApi, status: int) -> None:
    fake.faults.add(Fault(status=status))
    with pytest.raises(Unavailable):
        get(fake.api())


def test_an_answer_that_does_not_come_in_time_is_none(fake: FakeApi) -> None:
    fake.faults.add(Fault(latency_s=600.0))  # longer than a test may take
    api = fake.api(timeouts=SHORT)
    with raises_code(Unavailable, "api-unavailable", "ReadTimeoutError"):
        get(api)
    get(fake.api())


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_write_without_an_answer_may_have_been_done_and_is_not_tried_again(
    fake: FakeApi, when: str
) -> None:
    fake.faults.add(Fault(verb="create", drop=when))
    api = fake.api()
    with pytest.raises(Unavailable):
        api.create(CONFIG_MAPS, NOTES)
    assert len(fake.faults.seen("create")) == 1
    done = [each["metadata"]["name"] for each in api.list(CONFIG_MAPS).items]
    assert done == (["notes"] if when == "after" else [])
    assert api.create_once(CONFIG_MAPS, NOTES)["data"] == {"a": "1"}


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with FakeApi() as fake:
        url, api = fake.url, fake.api()
    with raises_code(Unavailable, "api-unavailable", "GET /api/v1/namespaces/default/configmaps"):
        get(api)
    assert url.startswith("http://127.0.0.1:")


def test_a_watch_that_says_nothing_for_too_long_is_over(fake: FakeApi) -> None:
    fake.faults.add(Fault(verb="watch", stall=True))
    api = fake.api(timeouts=SHORT)
    version = api.list(CONFIG_MAPS).version
    with (
        raises_code(Unavailable, "api-unavailable", "ReadTimeoutError"),
        api.watch(CONFIG_MAPS, version=version) as watch,
    ):
        list(watch)


def test_after_one_silence_no_other_request_waits_on_a_connection_that_fell_silent_too(
    fake: FakeApi,
) -> None:
    patience = Timeouts(connect_s=5.0, answer_s=600.0, watch_s=20.0, stall_s=0.5)
    with Relay(urlsplit(fake.url).port or 0) as relay:
        configuration = Configuration(host=f"http://127.0.0.1:{relay.port}")
        configuration.api_key["BearerToken"] = "Bearer admin"
        api = Api(Transport(configuration, timeouts=patience))
        version = api.list(CONFIG_MAPS).version
        with api.watch(CONFIG_MAPS, version=version) as watch:
            get(api)  # it leaves a connection that nobody uses
            relay.freeze()
            with raises_code(Unavailable, "api-unavailable", "ReadTimeoutError"):
                list(watch)
        with api.watch(CONFIG_MAPS, version=version):  # takes the place of the one before
            get(api)  # a silent one would be waited on for longer than a test may take
        api.close()


def test_a_list_that_changes_too_much_meanwhile_is_had_at_once(fake: FakeApi) -> None:
    for n in range(4):
        fake.make(CONFIG_MAPS, {"metadata": {"name": f"n{n}", "namespace": "default"}})
    api = fake.api()
    pages = api.pages(CONFIG_MAPS, limit=3)
    assert len(next(pages).items) == 3
    fake.expire()
    with pytest.raises(Gone):
        next(pages)
    assert len(api.list(CONFIG_MAPS).items) == 4


def test_an_answer_that_is_too_large_or_no_json_is_none(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.make(CONFIG_MAPS, {**NOTES, "data": {"a": "x" * 10_000}})
    monkeypatch.setattr(responses, "MAX_ANSWER_BYTES", 5_000)
    with raises_code(Unavailable, "api-unavailable", "too large"):
        get(fake.api())
    monkeypatch.undo()
    monkeypatch.setattr(transport, "json_of", lambda _: None)
    with raises_code(Unavailable, "api-unavailable", "JSON"):
        get(fake.api())


POD = {
    "metadata": {"name": "one", "namespace": "default"},
    "spec": {"containers": [{"name": "runner"}]},
}
LOG = b"line\n" * 1_000


def logs(api: Api, *, limit_bytes: int = 100_000, within_s: float = 30.0) -> bytes:
    return api.logs(
        "default", "one", container="runner", limit_bytes=limit_bytes, within_s=within_s
    )


def test_a_log_is_text_and_no_longer_than_was_asked_for(fake: FakeApi) -> None:
    fake.make(PODS, POD)
    fake.logs["default", "one", "runner"] = LOG
    assert logs(fake.api()) == LOG
    assert logs(fake.api(), limit_bytes=12) == LOG[:12]
    fake.logs["default", "one", "runner"] = b""
    assert logs(fake.api()) == b""


def test_a_server_that_sends_more_of_a_log_than_it_was_asked_for_is_not_listened_to(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.make(PODS, POD)
    fake.logs["default", "one", "runner"] = LOG
    api = fake.api()
    text = api._transport.text
    monkeypatch.setattr(
        api._transport, "text", lambda path, **more: text(path, **{**more, "query": CONTAINER})
    )
    with raises_code(Unavailable, "api-unavailable", "pods/one/log", "too large"):
        logs(api, limit_bytes=12)


CONTAINER = {"container": "runner"}


def test_a_log_that_does_not_end_in_time_is_none(fake: FakeApi) -> None:
    fake.make(PODS, POD)
    fake.logs["default", "one", "runner"] = LOG
    with raises_code(Unavailable, "api-unavailable", "pods/one/log", "-1 s"):
        logs(fake.api(), within_s=-1.0)


def test_logs_of_what_is_not_there_and_of_others_are_errors_of_their_kind(fake: FakeApi) -> None:
    fake.access.add("nobody", Identity(name="nobody"))
    with pytest.raises(NotFound):
        logs(fake.api())
    fake.make(PODS, POD)
    with pytest.raises(Invalid):
        logs(fake.api())
    with pytest.raises(Forbidden):
        logs(fake.api("nobody"))
    fake.faults.add(Fault(status=503))
    with pytest.raises(Unavailable):
        logs(fake.api())


def test_an_event_that_is_too_large_ends_the_watch(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = fake.api()
    version = api.list(CONFIG_MAPS).version
    fake.make(CONFIG_MAPS, {**NOTES, "data": {"a": "x" * 1_000_000}})
    monkeypatch.setattr(responses, "MAX_EVENT_BYTES", 5_000)
    with (
        raises_code(Unavailable, "api-unavailable", "event"),
        api.watch(CONFIG_MAPS, version=version) as watch,
    ):
        list(watch)


def test_a_write_that_the_guard_forbids_never_leaves(fake: FakeApi) -> None:
    def refuse() -> None:
        raise Conflict("not now")

    api = fake.api().guarded(refuse)
    writes: tuple[Look, ...] = (
        lambda api: api.create(CONFIG_MAPS, NOTES),
        lambda api: api.create_once(CONFIG_MAPS, NOTES),
        lambda api: api.apply(CONFIG_MAPS, NOTES),
        lambda api: api.patch(CONFIG_MAPS, "notes", change={}, namespace="default"),
        lambda api: api.patch_status(DECISIONS, "one", status={}, namespace="default"),
        lambda api: api.replace(CONFIG_MAPS, NOTES),
        lambda api: api.delete(CONFIG_MAPS, "notes", namespace="default"),
    )
    for write in writes:
        with raises_code(Conflict, "conflict", "not now"):
            write(api)
    assert fake.faults.seen() == []
    get(api)


def test_a_path_cannot_be_left_by_a_name() -> None:
    assert (
        PODS.path(namespace="a/../b", name="..%2f") == "/api/v1/namespaces/a%2F..%2Fb/pods/..%252f"
    )
    with raises_naming(ValueError, "pods", "'chat-0'"):
        PODS.path(name="chat-0")
    with raises_naming(ValueError, "tuningfreezes", "'serving'"):
        FREEZES.path(namespace="serving", name="stop")


def test_a_kubeconfig_that_is_none_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    absent, strange = tmp_path / "absent", tmp_path / "strange"
    with raises_naming(UsageError, str(absent)):
        configuration_of(absent)
    for content in (b"just words", b"\xff\xfe\x00"):
        strange.write_bytes(content)
        with raises_naming(UsageError, str(strange)):
            configuration_of(strange)
    strange.write_text("apiVersion: v1\nkind: Config\ncontexts: []\n", "utf-8")
    with raises_naming(UsageError, str(strange), "none"):
        configuration_of(strange, context="none")


def test_a_token_that_is_renewed_is_used_and_one_that_cannot_be_read_is_no_crash(
    fake: FakeApi,
) -> None:
    tokens = ["admin", "another"]

    def renew(configuration: Configuration) -> None:
        if not tokens:
            raise OSError("the token's file is gone")
        configuration.api_key["BearerToken"] = f"Bearer {tokens.pop(0)}"

    configuration = Configuration(host=fake.url)
    configuration.api_key["BearerToken"] = "Bearer old"
    configuration.refresh_api_key_hook = renew
    api = Api(Transport(configuration, timeouts=Timeouts()))
    get(api)
    with pytest.raises(Unauthorized):
        get(api)
    with raises_code(Unavailable, "api-unavailable", "token", "OSError") as caught:
        get(api)
    assert "Bearer" not in str(caught.value)
    api.close()


@given(
    status=st.integers(100, 599),
    body=st.one_of(
        st.none(),
        st.lists(st.integers()),
        st.dictionaries(
            st.sampled_from(("message", "reason", "details", "code")),
            st.one_of(st.none(), st.text(), st.integers(), st.dictionaries(st.text(), st.text())),
        ),
    ),
    after=st.text(max_size=10),
)
def test_whatever_is_answered_means_an_error_that_can_be_shown(
    status: int, body: object, after: str
) -> None:
    error = answered("get it", status=status, body=body, retry_after=after)
    assert isinstance(error, ApiError)
    assert str(error).isprintable()
    assert len(str(error)) < 3000
    assert (status == 404) == isinstance(error, NotFound)
    if isinstance(error, Unavailable):
        assert 0.0 <= error.delay_s <= MAX_DELAY_S
