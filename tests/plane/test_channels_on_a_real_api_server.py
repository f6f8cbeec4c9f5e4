"""Channels' words on a real API server: as the mapped person, under roles and admission."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.notify.heard import listening
from tests.notify.test_arrivals import Http
from tests.operators.program.test_channelling import (
    SLACK_PEOPLE,
    alert,
    hearing,
    look,
    press,
    settings_of,
    tell,
)
from tests.plane.control_plane import ControlPlane
from tests.plane.reviewing import OPERATOR, Place, reviewed, watched
from tests.plane.servers import eventually, refusal

from retuned.clock import SystemClock
from retuned.notify.slack import APPROVE
from retuned.telemetry import Exporter
from retuned.telemetry.prometheus import FakeTelemetry
from retuned_operator.controllers.caches import StoreCaches
from retuned_operator.kube.resources import FREEZES, Obj
from retuned_operator.notifications import ClusterChannels

pytestmark = pytest.mark.plane

LEAD = {"user": "grace", "groups": ["sre-leads"]}
"""Somebody who may break glass and, in this group alone, not approve."""


class There:
    """One cluster, and a Slack workspace at the other end."""

    def __init__(
        self, place: Place, caches: StoreCaches, channels: ClusterChannels, took: list[Any]
    ) -> None:
        self.place, self.caches, self.channels = place, caches, channels
        self.http: Http = hearing(channels)
        self._took = took

    def asked(self, name: str) -> Any:
        """Let a proposal wait and be told; return the message with the buttons."""
        key = self.place.proposal(name)
        self.place.brought(name, self.caches)
        look(self.channels)
        told = [each.body for each in self._took if b'"blocks"' in each.raw]
        (message,) = [each for each in told if key in json.dumps(each)]
        return message

    def press(self, message: Any, user: str) -> None:
        """Press *Approve* as somebody; that it was heard is all that Slack is answered."""
        answer = press(SystemClock(), self.http, message, user=user, action=APPROVE)
        assert answer.status_code == 200

    def freezes(self) -> list[Obj]:
        """Return what the operator has stopped for an alert, as its copies have it."""
        found = [each["spec"] for each in self.caches.list(FREEZES) or ()]
        return [each for each in found if each["user"] == OPERATOR]


@pytest.fixture(scope="module")
def there(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[There]:
    folder = tmp_path_factory.mktemp("channels")
    with (
        listening() as ear,
        reviewed(plane, "telling") as place,
        watched(place) as caches,
    ):
        channels = ClusterChannels(
            settings_of(folder, ear, slackPeople=SLACK_PEOPLE | {"U0LEAD": LEAD}),
            api=place.page,
            own=place.page,
            caches=caches,
            clock=SystemClock(),
            telemetry=FakeTelemetry(exporter=Exporter.OPERATOR),
            leads=lambda: True,
        )
        yield There(place, caches, channels, ear.took)
        channels.stop()


def test_a_yes_in_slack_is_the_mapped_persons_and_the_audit_log_has_both_names(
    there: There, plane: ControlPlane
) -> None:
    there.press(there.asked("swp-slack"), "U0ADA")
    (word,) = there.place.said("swp-slack")
    assert (word["user"], word["groups"], word["channel"]) == ("ada", ["gpu-platform"], "slack")
    assert (word["decision"], word["comment"]) == ("Approve", "by Slack user U0ADA")

    def names() -> list[tuple[str, str]]:
        return [
            (line["user"]["username"], line["impersonatedUser"]["username"])
            for line in plane.audited()
            if (line["verb"], line["objectRef"].get("namespace")) == ("create", there.place.name)
            and line["objectRef"]["resource"] == "swapdecisions"
            and line.get("responseStatus", {}).get("code") == 201
            and "impersonatedUser" in line
        ]

    eventually(lambda: (OPERATOR, "ada") in names())


@pytest.mark.parametrize(
    ("name", "user", "why"),
    [
        (
            "swp-viewer",
            "U0EVE",
            "you may not create swapdecisions in namespace telling; "
            "ask for the ClusterRole retuned-approver",
        ),
        (
            "swp-verb",
            "U0LEAD",
            "the cluster's policy refuses: approving needs the verb approve on this SwapProposal; "
            "the ClusterRole retuned-approver gives it",
        ),
    ],
    ids=["no-role", "no-verb"],
)
def test_who_may_not_approve_is_told_what_is_missing_and_nothing_is_written(
    there: There, name: str, user: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    there.press(there.asked(name), user)
    assert f"Not taken: {why}" in caplog.text
    assert there.place.said(name) == []


def test_an_alert_stops_tuning_in_the_operators_own_name_and_its_end_lets_it_go(
    there: There,
) -> None:
    latency = {"retuned_pause": "true", "target": f"{there.place.name}/chat"}
    assert tell(there.http, alert(**latency)) == 200
    (sign,) = eventually(there.freezes)
    assert sign["scope"]["targets"] == [f"{there.place.name}/chat"]
    assert "p99 is over a second" in sign["reason"]
    assert tell(there.http, alert("resolved", **latency)) == 200
    eventually(lambda: not there.freezes())


def test_the_operator_stops_nothing_in_a_persons_name(there: There) -> None:
    theirs = {"metadata": {"name": "not-mine"}, "spec": {"user": "ada", "reason": "release"}}
    error = refusal(lambda: there.place.page.create(FREEZES, theirs))
    assert "freezes in another's name" in str(error)
