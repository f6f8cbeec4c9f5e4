"""Channels of the operator: what is said of a cluster's proposals, and what words there do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from tests.expect import raises_naming
from tests.fakeapi.access import Identity
from tests.fakeapi.server import FakeApi
from tests.notify.heard import Ear, listening
from tests.notify.test_arrivals import SECRET, TEAM, Http, pressed
from tests.operators.kubectl.conftest import PEOPLE, ROLES, Cluster
from tests.operators.review.conftest import ACCOUNT, Looking

from retuned.clock import FakeClock
from retuned.errors import TemporaryError, UsageError
from retuned.notify.sender import Sender
from retuned.notify.slack import APPROVE, REJECT, signature_of
from retuned.ports import Clock
from retuned.telemetry import Exporter
from retuned.telemetry.prometheus import FakeTelemetry
from retuned_operator.kube.resources import DECISIONS, EVENTS, FREEZES, PROPOSALS, Obj
from retuned_operator.manifests.roles import (
    pausing_rules,
    reviewing_rules,
    speaking_rules,
    watching_rules,
)
from retuned_operator.notifications import ClusterChannels, place_of
from retuned_operator.notify_settings import ChannelSettings, channel_settings
from retuned_operator.proposal_notifier import ProposalNotifier

KEY = "serving/swp-0123456789abcdef0123"
TOKEN = "alerts-token"
SLACK_PEOPLE = {
    "U0ADA": {"user": "ada", "groups": ["gpu-platform"]},
    "U0EVE": {"user": "eve", "groups": ["interns"]},
}


def settings_of(folder: Path, ear: Ear, **changes: Any) -> ChannelSettings:
    """Return channels that tell an ear, with their secrets in a folder."""
    secrets = {"hook": ear.url, "signing": SECRET, "hooked": "a-webhook-secret", "alerts": TOKEN}
    for name, text in secrets.items():
        (folder / name).write_text(text)
    given = {
        "slackWebhook": str(folder / "hook"),
        "slackSigningSecret": str(folder / "signing"),
        "slackTeam": TEAM,
        "slackPeople": SLACK_PEOPLE,
        "webhookSecret": str(folder / "hooked"),
        "webhookUrl": ear.url,
        "alertmanagerWebhookToken": str(folder / "alerts"),
        "reviewUrl": "https://tuning.example.com/",
    }
    return channel_settings(given | changes)


def hearing(channels: ClusterChannels) -> Http:
    """Begin without a thread: the test calls `look`."""

    def start(self: Any, notices: Any, *, every_s: float) -> None:
        self.notices = notices

    with patch.object(Sender, "start", start):
        app = channels.start()
    assert app is not None
    return Http(app)


class Site:
    """A fake cluster with people, an ear, and operators that come and go over one state."""

    def __init__(self, folder: Path, ear: Ear, fake: FakeApi) -> None:
        self.folder, self.ear, self.fake = folder, ear, fake
        self.cluster = Cluster(fake, folder)
        self.clock = FakeClock(datetime.now(UTC))
        self.telemetry = FakeTelemetry(exporter=Exporter.OPERATOR)
        self.leads = True
        self.started: list[ClusterChannels] = []

    def settings(self, **changes: Any) -> ChannelSettings:
        return settings_of(self.folder, self.ear, **changes)

    def channels(self, **changes: Any) -> ClusterChannels:
        """Return an operator's channels that nobody has begun."""
        return ClusterChannels(
            self.settings(**changes),
            api=self.fake.api("operator"),
            own=self.fake.api("operator"),
            caches=Looking(self.fake),
            clock=self.clock,
            telemetry=self.telemetry,
            leads=lambda: self.leads,
        )

    def begun(self) -> tuple[ClusterChannels, Http]:
        """Let an operator lead."""
        channels = self.channels()
        self.started.append(channels)
        return channels, hearing(channels)

    def ended(self, channels: ClusterChannels) -> None:
        channels.stop()
        self.started.remove(channels)

    def move(self, phase: str, *, name: str = KEY.partition("/")[2], **status: Any) -> None:
        api = self.fake.api()
        body = api.get(PROPOSALS, name, namespace="serving")
        now = self.clock.now().isoformat().replace("+00:00", "Z")
        before = body["status"]["phase"]
        step = {"from": before, "to": phase, "at": now, "by": "retuned"}
        api.patch_status(
            PROPOSALS,
            name,
            status={
                **body["status"],
                "phase": phase,
                "history": [*body["status"].get("history", ()), step],
                **status,
            },
            namespace="serving",
        )

    def decisions(self) -> list[Obj]:
        return list(self.fake.api().list(DECISIONS, namespace="serving").items)

    def freezes(self) -> list[Obj]:
        return list(self.fake.api().list(FREEZES).items)


def look(channels: ClusterChannels) -> None:
    sender: Any = channels._sender
    sender.run_pass(sender.notices)


def said(ear: Ear, word: str) -> list[Any]:
    return [took.body for took in ear.took if word in took.raw.decode()]


def press(clock: Clock, http: Http, message: Any, *, user: str, action: str) -> httpx.Response:
    """Press a button of a message, as Slack tells it."""
    buttons = message["blocks"][-1]["elements"]
    (value,) = [each["value"] for each in buttons if each["action_id"] == action]
    body = pressed(value=json.loads(value), user=user, action=action, reply="")
    stamp = str(int(clock.now().timestamp()))
    headers = {
        "x-slack-request-timestamp": stamp,
        "x-slack-signature": signature_of(body, secret=SECRET, timestamp=stamp),
    }
    return http.post("/slack", content=body, headers=headers)


def alert(status: str = "firing", **labels: str) -> dict[str, Any]:
    return {
        "status": status,
        "labels": {"alertname": "Latency", **labels},
        "annotations": {"summary": "p99 is over a second"},
        "startsAt": "2026-03-03T00:30:00Z",
        "fingerprint": "0123abcd",
    }


def tell(http: Http, *alerts: dict[str, Any], token: str = TOKEN) -> int:
    body = {"version": "4", "status": "firing", "groupKey": "g", "alerts": list(alerts)}
    headers = {"authorization": f"Bearer {token}"}
    return http.post("/alertmanager", json=body, headers=headers).status_code


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with listening() as ear, FakeApi(namespaces=("default", "serving")) as fake:
        for name, groups in PEOPLE.items():
            fake.access.add(name, Identity(name=name, groups=(*groups, "system:authenticated")))
            fake.access.bind(name, ROLES["retuned-viewer"], namespace="serving")
        fake.access.bind("ada", ROLES["retuned-approver"], namespace="serving")
        fake.access.add("operator", Identity(name=ACCOUNT, groups=("system:authenticated",)))
        spoken_for = sorted({group for each in SLACK_PEOPLE.values() for group in each["groups"]})
        users = sorted(str(each["user"]) for each in SLACK_PEOPLE.values())
        rules = [*reviewing_rules(), *watching_rules(), *speaking_rules(users, spoken_for)]
        fake.access.bind(ACCOUNT, [*rules, *pausing_rules()])
        made = Site(tmp_path, ear, fake)
        yield made
        for channels in list(made.started):
            channels.stop()


def test_a_proposal_is_told_once_settled_and_told_to_run_with_links_and_commands(
    site: Site,
) -> None:
    site.cluster.proposal(site.cluster.policy())
    channels, _ = site.begun()
    for _ in range(3):
        look(channels)
    (message,) = said(site.ear, '"blocks"')
    (incident,) = said(site.ear, '"standing": "open"')
    assert incident["subject"] == KEY
    assert incident["review_url"] == f"https://tuning.example.com/proposals/{KEY}"
    assert f"kubectl retuned approve {KEY} --digest sha256:" in json.dumps(message)
    assert "group gpu-platform or group sre-oncall" in incident["summary"]
    site.move("Watching")
    for _ in range(3):
        look(channels)
    (resolved,) = said(site.ear, '"standing": "close"')
    assert resolved["subject"] == KEY
    assert len(said(site.ear, '"blocks"')) == 3, "asked, settled, swapped in"
    site.move("RollingBack")
    site.move("RolledBack", reason="shadow-mismatch")
    look(channels)
    assert "Rolled back (shadow-mismatch" in site.ear.took[-1].raw.decode()
    assert "critical" not in site.ear.took[-1].raw.decode()


@pytest.mark.parametrize("reason", ["sentinel-slower", "attribution-slower"])
def test_a_kept_swap_that_a_measurement_takes_back_pages(site: Site, reason: str) -> None:
    site.cluster.proposal(None, phase="Promoted")
    channels, _ = site.begun()
    look(channels)
    site.move("RollingBack", reason=reason)
    site.move("RolledBack", reason=reason)
    look(channels)
    words = f"Rolled back ({reason}".encode()
    told = [each.raw for each in site.ear.took if words in each.raw]
    assert any(b"critical" in each for each in told)


def test_a_way_back_that_fails_is_an_incident_of_its_own_that_ends_with_it(site: Site) -> None:
    site.cluster.proposal(None, phase="RollbackFailed", status={"reason": "pod-silent"})
    channels, _ = site.begun()
    look(channels)
    (incident,) = said(site.ear, '"standing": "open"')
    assert incident["subject"] == f"{KEY}/rollback"
    assert incident["severity"] == "critical"
    site.move("RolledBack")
    look(channels)
    (resolved,) = said(site.ear, '"standing": "close"')
    assert resolved["subject"] == f"{KEY}/rollback"


def test_an_incident_whose_proposal_is_deleted_ends(site: Site) -> None:
    site.cluster.proposal(site.cluster.policy())
    channels, _ = site.begun()
    look(channels)
    site.fake.api().delete(PROPOSALS, KEY.partition("/")[2], namespace="serving")
    look(channels)
    (resolved,) = said(site.ear, '"standing": "close"')
    assert "the proposal is gone" in resolved["summary"]


def test_what_is_not_known_of_the_cluster_closes_nothing(site: Site) -> None:
    site.cluster.proposal(site.cluster.policy())
    channels, _ = site.begun()
    look(channels)

    class Silent(Looking):
        def knows(self, _: object) -> bool:
            return False

        def by(self, *_: object) -> None:  # type: ignore[override]
            return None

        def get(self, *_: object) -> None:
            return None

    sender = channels._sender
    assert sender is not None
    notifier = ProposalNotifier(Silent(site.fake), sender, place=place_of(""))
    assert list(notifier.notices(site.clock.now())) == []
    assert sender.opened() == [KEY]


def test_the_next_leader_sends_what_was_not_sent_and_repeats_the_rest_once(site: Site) -> None:
    site.cluster.proposal(site.cluster.policy())
    site.ear.answers = [(503, {}, b"")] * 1
    first, _ = site.begun()
    look(first)  # one channel refuses, the other one takes it
    assert len(site.ear.took) == 2
    site.leads = False
    site.clock.advance(60.0)
    look(first)
    assert len(site.ear.took) == 2, "who does not lead says nothing"
    site.ended(first)
    site.leads = True
    second, _ = site.begun()
    for _ in range(3):
        look(second)
    assert len(said(site.ear, '"blocks"')) + len(said(site.ear, '"standing": "open"')) == 4
    sent = site.telemetry.total("retuned_channel_messages_total", outcome="sent")
    assert (len(site.ear.took), sent) == (4, 3.0), "one was refused, one is repeated"


def test_a_word_in_slack_is_written_in_the_persons_own_name(site: Site) -> None:
    site.cluster.proposal(site.cluster.policy())
    channels, http = site.begun()
    look(channels)
    (message,) = said(site.ear, '"blocks"')
    assert press(site.clock, http, message, user="U0ADA", action=APPROVE).status_code == 200
    (word,) = site.decisions()
    assert (word["spec"]["user"], word["spec"]["channel"]) == ("ada", "slack")
    assert word["spec"]["groups"] == ["gpu-platform"]
    assert word["spec"]["decision"] == "Approve"
    assert word["spec"]["comment"] == "by Slack user U0ADA"


def test_whom_the_api_server_does_not_let_decide_and_who_is_nobody_decide_nothing(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    site.cluster.proposal(site.cluster.policy())
    channels, http = site.begun()
    look(channels)
    (message,) = said(site.ear, '"blocks"')
    assert press(site.clock, http, message, user="U0EVE", action=REJECT).status_code == 200
    assert "Not taken" in caplog.text
    assert press(site.clock, http, message, user="U0NOBODY", action=APPROVE).status_code == 403
    assert site.decisions() == []


def test_an_old_message_decides_nothing(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    site.cluster.proposal(site.cluster.policy())
    channels, http = site.begun()
    look(channels)
    (message,) = said(site.ear, '"blocks"')
    site.move("Superseded")
    press(site.clock, http, message, user="U0ADA", action=APPROVE)
    assert site.decisions() == []
    assert "Not taken" in caplog.text


def test_an_alert_stops_tuning_and_lets_it_go_and_leaves_stop_signs_of_people_alone(
    site: Site,
) -> None:
    site.cluster.proposal(site.cluster.policy())
    _, http = site.begun()
    assert tell(http, alert(retuned_pause="true", target="serving/chat")) == 200
    (sign,) = site.freezes()
    assert sign["spec"]["user"] == ACCOUNT
    assert sign["spec"]["scope"]["targets"] == ["serving/chat"]
    ends = datetime.fromisoformat(sign["spec"]["until"])
    assert ends - site.clock.now() == timedelta(hours=6)
    assert tell(http, alert(retuned_pause="true", target="serving/chat")) == 200
    assert len(site.freezes()) == 1
    theirs = {
        "apiVersion": "retuned.dev/v1alpha1",
        "kind": "TuningFreeze",
        "metadata": {"name": sign["metadata"]["name"] + "-copy"},
        "spec": {"user": "ada", "reason": "release"},
    }
    site.fake.make(FREEZES, theirs)
    assert tell(http, alert("resolved", retuned_pause="true", target="serving/chat")) == 200
    assert [each["spec"]["user"] for each in site.freezes()] == ["ada"]
    assert tell(http, alert(retuned_pause="true"), token="another") == 401


def test_an_alert_on_a_proposal_stands_beside_it_once(site: Site) -> None:
    site.cluster.proposal(site.cluster.policy())
    _, http = site.begun()
    mine = {"exported_namespace": "serving", "proposal": KEY.partition("/")[2]}
    for _ in range(2):
        assert tell(http, alert(**mine)) == 200
    assert tell(http, alert("resolved", **mine)) == 200
    events = [each["reason"] for each in site.fake.api().list(EVENTS).items]
    assert sorted(events) == ["AlertFiring", "AlertResolved"]
    assert site.decisions() == []


def test_an_api_server_that_is_away_lets_slack_say_it_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.cluster.proposal(site.cluster.policy())
    channels, http = site.begun()
    look(channels)
    (message,) = said(site.ear, '"blocks"')

    def away(*_: object, **__: object) -> None:
        raise TemporaryError("away", delay_s=1.0)

    monkeypatch.setattr("retuned_operator.review.decisions.ClusterDeciding.decide", away)
    assert press(site.clock, http, message, user="U0ADA", action=APPROVE).status_code == 503
    assert site.telemetry.total("retuned_channel_arrivals_total", outcome="again") == 1.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"slackTeam": ""}, "slack_team"),
        ({"slackPeople": {"U1": {"user": "system:admin"}}}, "system:"),
        ({"slackPeople": {"u1": {"user": "ada"}}}, "slackPeople"),
        ({"webhookUrl": ""}, "webhook_secret"),
        ({"pagerDuty": "x"}, "pagerDuty"),
        ({"alertmanagerPauseSeconds": 5}, "alertmanagerPauseSeconds"),
    ],
)
def test_settings_that_are_wrong_or_half_are_refused_by_name(
    site: Site, given: dict[str, Any], said: str
) -> None:
    with raises_naming(UsageError, said):
        site.channels(**given)
