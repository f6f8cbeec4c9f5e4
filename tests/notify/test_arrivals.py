"""What arrives: only what is proven, new and understood does anything, and as the person it is."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import ASGIApp
from tests.notify.heard import ARTIFACT, ID, NOW, gate, proposal

from retuned.clock import FakeClock
from retuned.errors import Refused, UnreadableInput
from retuned.notify import inbound, slack
from retuned.notify.http import Answer
from retuned.notify.inbound import Arrivals, UsedTokens
from retuned.notify.messages import Call
from retuned.notify.settings import Incoming
from retuned.notify.slack import APPROVE, REJECT, signature_of
from retuned.standalone.notifications import LocalWords
from retuned.store.approvals import Approvals
from retuned.store.sqlite import SqliteStore
from retuned.telemetry.prometheus import FakeTelemetry

SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
TEAM = "T1DC2JH3J"
REPLY = "https://hooks.slack.com/actions/T1DC2JH3J/1/abc"
TOKEN = "a-token-of-alertmanager"


class Http:
    """Asks an application, one request at a time."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                return await client.request(method, path, **more)

        return asyncio.run(ask())

    def post(self, path: str, **more: Any) -> httpx.Response:
        return self.request("POST", path, **more)

    def get(self, path: str) -> httpx.Response:
        return self.request("GET", path)


class Site:
    """The listening side over a real store."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock(NOW)
        self.store = SqliteStore(folder, clock=self.clock)
        self.used = UsedTokens(since=NOW - timedelta(minutes=10))
        self.replies: list[tuple[str, dict[str, Any]]] = []
        one = proposal()
        self.store.add("proposal", one.id, one.model_dump(mode="json"), phase="AwaitingApproval")
        judged = gate(one, policy_digest="sha256:" + "11" * 32).model_dump(mode="json")
        self.store.add("gate", one.id, judged, phase="current")
        words = LocalWords(
            self.store,
            clock=self.clock,
            replays=self.used,
            group_map={"user:nobody": "sre-oncall"},
            pause=timedelta(hours=6),
        )
        incoming = Incoming(
            signing_secret=lambda: SECRET,
            team=TEAM,
            users={"U2CERLKJA": "nobody", "U0ROOT": "root", "U0GONE": "no-such-user-here"},
            alert_token=lambda: TOKEN,
        )
        self.telemetry = FakeTelemetry()
        arrivals = Arrivals(
            words,
            incoming,
            replays=self.used,
            clock=self.clock,
            telemetry=self.telemetry,
            reply=self._reply,
        )
        self.http = Http(arrivals.app())

    def _reply(self, url: str, call: Call) -> Answer:
        self.replies.append((url, json.loads(call.body)))
        return Answer(taken=True)

    def press(self, **changes: Any) -> httpx.Response:
        return self.send(pressed(**changes))

    def send(
        self,
        body: bytes,
        *,
        at_s: int | None = None,
        secret: str = SECRET,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        stamp = str(int(self.clock.now().timestamp()) if at_s is None else at_s)
        signed = {
            "x-slack-request-timestamp": stamp,
            "x-slack-signature": signature_of(body, secret=secret, timestamp=stamp),
            "content-type": "application/x-www-form-urlencoded",
        }
        return self.http.post("/slack", content=body, headers=signed | (headers or {}))

    def alert(self, *alerts: dict[str, Any], token: str = TOKEN) -> httpx.Response:
        body = {"version": "4", "status": "firing", "groupKey": "g", "alerts": list(alerts)}
        return self.http.post(
            "/alertmanager", json=body, headers={"authorization": f"Bearer {token}"}
        )

    def decisions(self) -> list[tuple[str, str, str]]:
        said = Approvals(self.store).decisions(ID)
        return [(word.decision.value, word.user, word.channel) for word in said]


def pressed(
    *,
    user: str = "U2CERLKJA",
    team: str = TEAM,
    home: str = TEAM,
    action: str = APPROVE,
    value: object = None,
    count: int = 1,
    reply: str = REPLY,
    **more: object,
) -> bytes:
    said = {"proposal": ID, "digest": ARTIFACT} if value is None else value
    payload = {
        "type": "block_actions",
        "team": {"id": team, "domain": "ours"},
        "user": {"id": user, "username": "root", "name": "admin", "team_id": home},
        "response_url": reply,
        "actions": [{"action_id": action, "block_id": "retuned", "value": json.dumps(said)}]
        * count,
        **more,
    }
    return urlencode({"payload": json.dumps(payload)}).encode()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.store.close()


def test_the_signature_is_the_one_that_slack_documents() -> None:
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id="
        b"G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-"
        b"collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F3977"
        b"00885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10"
        b"d2c447fce8b6703c"
    )
    assert signature_of(body, secret=SECRET, timestamp="1531420618") == (
        "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    )


def test_a_mapped_person_approves_as_their_own_user_and_is_told(site: Site) -> None:
    assert site.press().status_code == 200
    assert site.decisions() == [("Approve", "nobody", "slack")]
    (decision,) = Approvals(site.store).decisions(ID)
    assert "sre-oncall" in decision.groups, "groups are this machine's, not Slack's"
    assert decision.digest == ARTIFACT
    ((url, said),) = site.replies
    assert url == REPLY
    assert said["response_type"] == "ephemeral"
    assert said["text"].startswith("Approved as nobody")


def test_a_rejection_is_a_word_like_any_other(site: Site) -> None:
    assert site.press(action=REJECT).status_code == 200
    assert site.decisions() == [("Reject", "nobody", "slack")]


def test_the_same_request_is_heard_once(site: Site) -> None:
    body = pressed()
    assert [site.send(body).status_code for _ in range(2)] == [200, 409]
    assert len(site.decisions()) == 1


def test_a_request_from_before_the_start_is_refused(site: Site) -> None:
    site.used.since = NOW + timedelta(seconds=1)
    assert site.press().json()["code"] == "too-old"
    assert site.decisions() == []


@pytest.mark.parametrize("off_s", [-301, 301, -86_400, 86_400])
def test_what_is_not_of_now_is_refused_even_if_signed(site: Site, off_s: int) -> None:
    at_s = int(NOW.timestamp()) + off_s
    answer = site.send(pressed(), at_s=at_s)
    assert (answer.status_code, answer.json()["code"]) == (401, "too-old")
    assert site.decisions() == []


@pytest.mark.parametrize("off_s", [-300, 0, 300])
def test_clocks_may_differ_by_five_minutes(site: Site, off_s: int) -> None:
    assert site.send(pressed(), at_s=int(NOW.timestamp()) + off_s).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"x-slack-signature": ""},
        {"x-slack-signature": "v0=" + "0" * 64},
        {"x-slack-signature": "v1=" + "0" * 64},
        {"x-slack-request-timestamp": ""},
        {"x-slack-request-timestamp": "1e9"},
        {"x-slack-request-timestamp": "-1"},
        {"x-slack-request-timestamp": "9" * 400},
    ],
)
def test_what_is_not_signed_is_refused(site: Site, headers: dict[str, str]) -> None:
    assert site.send(pressed(), headers=headers).status_code == 401
    assert site.send(pressed(), secret="another").status_code == 401
    assert site.decisions() == []


def test_a_changed_body_is_refused(site: Site) -> None:
    body = pressed()
    stamp = str(int(NOW.timestamp()))
    headers = {
        "x-slack-request-timestamp": stamp,
        "x-slack-signature": signature_of(body, secret=SECRET, timestamp=stamp),
    }
    changed = body.replace(b"retuned-approve", b"retuned-reject1")
    assert site.http.post("/slack", content=changed, headers=headers).status_code == 401


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"user": "U0STRANGER"}, "user-unknown"),
        ({"team": "T0OTHER"}, "other-workspace"),
        ({"home": "T0OTHER"}, "other-workspace"),
        ({"count": 2}, "not-understood"),
        ({"count": 0}, "not-understood"),
        ({"type": "view_submission"}, "not-understood"),
        ({"value": {"proposal": ID}}, "not-understood"),
        ({"value": {"proposal": ID, "digest": ARTIFACT, "as": "BreakGlass"}}, "not-understood"),
        ({"value": [1]}, "not-understood"),
        ({"user": None}, "user-unknown"),
    ],
)  # fmt: skip
def test_what_is_not_ours_decides_nothing(site: Site, changes: Any, code: str) -> None:
    answer = site.press(**changes)
    assert answer.json()["code"] == code
    assert answer.status_code in (400, 403)
    assert site.decisions() == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"user": "U0ROOT"}, "root does not identify"),
        ({"user": "U0GONE"}, "not a user of this machine"),
        ({"value": {"proposal": ID, "digest": "sha256:" + "ee" * 32}}, "another artifact"),
        ({"value": {"proposal": "other", "digest": ARTIFACT}}, "does not exist any more"),
    ],
)
def test_a_word_that_would_be_none_is_refused_and_the_person_is_told(
    site: Site, changes: Any, said: str
) -> None:
    assert site.press(**changes).status_code == 200
    assert said in site.replies[0][1]["text"]
    assert site.decisions() == []


def test_what_has_ended_is_not_approved_by_an_old_message(site: Site) -> None:
    site.store.advance("proposal", ID, expect="AwaitingApproval", to="Expired")
    site.press()
    assert "Expired" in site.replies[0][1]["text"]
    assert site.decisions() == []


def test_the_button_that_opens_a_page_decides_nothing(site: Site) -> None:
    assert site.press(action="retuned-review").status_code == 200
    assert site.decisions() == []


@pytest.mark.parametrize(
    "reply",
    ["http://hooks.slack.com/x", "https://evil.example/x", "https://hooks.slack.com@evil.example/",
     "https://hooks.slack.com:8443/x", "https://u@hooks.slack.com/x", "https://[", "", "x" * 5000],
)  # fmt: skip
def test_answers_go_to_slack_and_nowhere_else(site: Site, reply: str) -> None:
    assert site.press(reply=reply).status_code == 200
    assert site.replies == []


def test_reading_decides_nothing(site: Site) -> None:
    for path in ("/slack", "/alertmanager"):
        for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"):
            assert site.http.request(method, path).status_code == 405
    assert site.http.get("/healthz").text == "ok\n"
    assert site.decisions() == []


def test_a_body_without_end_is_cut(site: Site) -> None:
    assert site.send(b"payload=" + b"x" * 100_000).status_code == 413


@given(st.binary(max_size=400))
def test_no_bytes_of_a_stranger_break_the_reader(body: bytes) -> None:
    with pytest.raises(Refused):
        slack.read(body, team=TEAM, users={})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda each: (
            st.lists(each, max_size=4)
            | st.dictionaries(
                st.sampled_from(["type", "team", "user", "id", "actions", "value", "x"]), each
            )
        ),
    )
)
def test_no_payload_of_a_stranger_is_a_word(payload: Any) -> None:
    body = urlencode({"payload": json.dumps(payload)}).encode()
    with pytest.raises(Refused):
        slack.read(body, team=TEAM, users={"U1": "ada"})


# --- Alertmanager ---------------------------------------------------------------------------------


def firing(**changes: Any) -> dict[str, Any]:
    return {
        "status": "firing",
        "labels": {
            "alertname": "LatencyHigh",
            "retuned_pause": "true",
            **changes.pop("labels", {}),
        },
        "annotations": {"summary": "p99 is above its objective\nnow"},
        "startsAt": (NOW - timedelta(minutes=1)).isoformat(),
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus/graph",
        "fingerprint": "c0ffee0123456789",
        **changes,
    }


def test_an_alert_stops_tuning_and_its_end_lets_it_go_on(site: Site) -> None:
    assert site.alert(firing()).status_code == 200
    (freeze,) = Approvals(site.store).freezes(now=NOW)
    assert freeze.user == "alertmanager"
    assert freeze.reason == "p99 is above its objective now"
    assert freeze.until == NOW + timedelta(hours=6)
    assert site.alert(firing(status="resolved")).status_code == 200
    assert Approvals(site.store).freezes(now=NOW) == ()
    assert site.decisions() == [], "an alert decides nothing"


def test_an_alert_that_is_said_again_goes_on_stopping_without_a_gap(site: Site) -> None:
    for _ in range(6):  # Alertmanager's own repeat_interval: four hours
        assert site.alert(firing()).status_code == 200
        for _ in range(4):
            assert Approvals(site.store).freezes(now=site.clock.now())
            site.clock.advance(3600.0)
    site.alert(firing(status="resolved"))
    assert Approvals(site.store).freezes(now=site.clock.now()) == ()


def test_an_alert_of_one_target_stops_that_one(site: Site) -> None:
    site.alert(firing(labels={"target": "chat", "kernel": "linear_w8"}))
    (freeze,) = Approvals(site.store).freezes(now=NOW)
    assert freeze.scope.covers(target="chat", kernel="linear_w8")
    assert not freeze.scope.covers(target="other", kernel="linear_w8")


def test_an_alert_without_the_label_stops_nothing(site: Site) -> None:
    for value in ("false", "True", "", "1"):
        site.alert(firing(labels={"retuned_pause": value}))
    assert Approvals(site.store).freezes(now=NOW) == ()


def test_an_alert_about_a_proposal_is_written_down_once(site: Site) -> None:
    for _ in range(3):
        site.alert(firing(labels={"proposal": ID, "retuned_pause": "no"}))
    site.alert(firing(labels={"proposal": "unknown"}))
    lines = [event for event in site.store.events(id=ID) if event.who == "alertmanager"]
    assert [(line.what, line.detail["alert"]) for line in lines] == [
        ("alert-firing", "LatencyHigh")
    ]


@pytest.mark.parametrize("token", ["", "another", TOKEN + "x", TOKEN[:-1]])
def test_who_does_not_know_the_token_is_not_heard(site: Site, token: str) -> None:
    assert site.alert(firing(), token=token).status_code == 401
    assert Approvals(site.store).freezes(now=NOW) == ()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b"[" * 50_000, b'{"version": "3", "alerts": []}', b'{"version": "4"}',
        json.dumps({"version": "4", "alerts": [firing(status="x")]}).encode(),
        json.dumps({"version": "4", "alerts": [firing(fingerprint="../x")]}).encode(),
        json.dumps({"version": "4", "alerts": [firing(startsAt="yesterday")]}).encode(),
        json.dumps({"version": "4", "alerts": [firing()] * 201}).encode(),
    ],
)  # fmt: skip
def test_what_is_no_webhook_of_version_4_is_refused(body: bytes) -> None:
    with pytest.raises(UnreadableInput):
        inbound.read(body)


def test_no_secret_gets_into_a_log(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    site.press()
    site.press(user="U0STRANGER")
    site.send(pressed(), secret="another")
    site.alert(firing())
    site.alert(firing(), token="wrong")
    for secret in (SECRET, TOKEN, "v0=", REPLY):
        assert secret not in caplog.text


def test_what_comes_is_counted_by_whether_it_was_taken(site: Site) -> None:
    assert site.press().status_code == 200
    assert site.send(pressed(), secret="another").status_code == 401

    def counted(outcome: str) -> float:
        labels = {"channel": "slack", "outcome": outcome}
        return site.telemetry.total("retuned_channel_arrivals_total", **labels)

    assert (counted("taken"), counted("refused"), counted("again")) == (1.0, 1.0, 0.0)
