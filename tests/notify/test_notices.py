"""What is said of a proposal, and the form that each channel gives it."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.notify.heard import ARTIFACT, ID, NOW, PLACE, asked, closed, gate, proposal

from retuned.notify import alertmanager, messages, slack, webhook
from retuned.notify.messages import Event, Notice, Severity, Standing
from retuned.report.proposal_text import meaning
from retuned.stages.gate import GateReason, GateState
from retuned.text import clean

NASTY = "gemm<!channel>\n*bold* <http://evil.example|click> \x1b[31m\u202e & @here"


def test_a_person_learns_what_how_much_how_sure_until_when_and_what_to_type() -> None:
    notice = asked()
    assert meaning(proposal()) in notice.summary
    assert "2 approvals of group sre-oncall" in notice.summary
    assert "2026-03-03 12:00 UTC" in notice.summary
    facts = dict(notice.facts)
    assert {"kernel", "speedup", "saves", "risk", "shapes", "evidence", "gate"} <= set(facts)
    assert notice.approve_command == f"retuned approve abababababab --digest {ARTIFACT}"
    assert notice.review_url.endswith("ab" * 32)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": GateState.APPROVED, "reason": GateReason.QUORUM, "missing": 0},
        {"state": GateState.FROZEN, "reason": GateReason.FROZEN},
        {"state": GateState.SCHEDULED, "reason": GateReason.WINDOW_CLOSED},
        {"missing": 0, "reason": GateReason.NO_POLICY},
    ],
)
def test_nobody_is_asked_while_the_gate_waits_for_something_else(changes: dict[str, Any]) -> None:
    one = proposal()
    assert messages.awaiting(one, gate(one, **changes), place=PLACE, round=0, now=NOW) is None


def test_when_most_of_the_time_is_over_it_is_said_once_more_and_louder() -> None:
    first, late = asked(), asked(now=NOW + timedelta(hours=23))
    assert (first.event, late.event) == (Event.AWAITING, Event.EXPIRING)
    assert late.severity is Severity.WARNING
    assert first.key != late.key
    assert first.subject == late.subject
    one = proposal()
    after = NOW + timedelta(hours=25)
    assert messages.awaiting(one, gate(one), place=PLACE, round=0, now=after) is None


def test_every_channel_says_the_same_sentence() -> None:
    notice = asked()
    calls = [
        slack.message(notice, buttons=True),
        alertmanager.alert(notice, keep=timedelta(minutes=10), now=NOW),
        webhook.request(notice),
    ]
    for call in calls:
        assert call is not None
        said = json.loads(call.body)
        assert notice.summary in json.dumps(said, ensure_ascii=False).replace("&gt;", ">")


@given(st.text(min_size=1, max_size=400))
def test_no_name_breaks_any_form(name: str) -> None:
    notice = asked(target=name)
    assert clean(notice.target) == notice.target
    assert "\n" not in notice.target
    for call in (
        slack.message(notice, buttons=True),
        alertmanager.alert(notice, keep=timedelta(minutes=10), now=NOW),
        webhook.request(notice),
    ):
        assert call is not None
        json.loads(call.body)


def test_slack_finds_no_markup_in_names_and_its_limits_are_kept() -> None:
    notice = asked(target=NASTY, risk_reasons=("x" * 5000,))
    body = json.loads(slack.message(notice, buttons=True, channel="C012").body)
    assert "<" not in body["text"]
    assert body["mrkdwn"] is False

    def texts(value: Any) -> list[dict[str, Any]]:
        if isinstance(value, list):
            return [found for each in value for found in texts(each)]
        if not isinstance(value, dict):
            return []
        own = [value] if value.get("type") in ("plain_text", "mrkdwn") else []
        return own + [found for each in value.values() for found in texts(each)]

    for each in texts(body["blocks"]):
        assert each["type"] == "plain_text"
        assert "\x1b" not in each["text"]
        assert "\u202e" not in each["text"]
    header, section, fields, *_ = body["blocks"]
    assert len(header["text"]["text"]) <= 150
    assert len(section["text"]["text"]) <= 3000
    assert 1 <= len(fields["fields"]) <= 10
    assert all(len(field["text"]) <= 2000 for field in fields["fields"])
    buttons = body["blocks"][-1]["elements"]
    assert all(len(button.get("value", "")) <= 2000 for button in buttons)
    assert {"proposal": ID, "digest": ARTIFACT} in [
        json.loads(button["value"]) for button in buttons if "value" in button
    ]


def test_without_mapped_people_slack_offers_no_word() -> None:
    body = json.loads(slack.message(asked(), buttons=False).body)
    (review,) = body["blocks"][-1]["elements"]
    assert "value" not in review
    ended = json.loads(slack.message(closed(), buttons=True).body)
    assert slack.APPROVE not in json.dumps(ended)


def test_a_way_back_that_fails_is_an_incident_of_its_own_and_presses() -> None:
    failed = messages.rollback_failed(proposal(), why="gone", place=PLACE, round=0, now=NOW)
    done = messages.rollback_done(proposal(), phase="rolled-back", place=PLACE, round=0, now=NOW)
    assert failed.severity is Severity.CRITICAL
    assert failed.subject == done.subject != ID
    assert (failed.standing, done.standing) == (Standing.OPEN, Standing.CLOSE)


def test_alertmanager_gets_one_alert_that_ends_when_it_is_settled() -> None:
    opened = alertmanager.alert(asked(), keep=timedelta(minutes=10), now=NOW)
    late = alertmanager.alert(
        asked(now=NOW + timedelta(hours=23)), keep=timedelta(minutes=10), now=NOW
    )
    ended = alertmanager.alert(closed(), keep=timedelta(minutes=10), now=NOW + timedelta(minutes=1))
    assert opened is not None
    assert late is not None
    assert ended is not None
    (first,), (louder,), (last,) = (json.loads(call.body) for call in (opened, late, ended))
    assert first["labels"] == louder["labels"] == last["labels"], "labels are what makes it one"
    assert first["endsAt"] > first["startsAt"]
    ended_at = datetime.fromisoformat(last["endsAt"])
    assert ended_at < NOW + timedelta(minutes=1), "past by a clock that is behind, too"
    assert last["startsAt"] <= last["endsAt"]
    told = messages.swapped(proposal(), place=PLACE, now=NOW)
    assert alertmanager.alert(told, keep=timedelta(minutes=10), now=NOW) is None


def test_a_webhook_is_signed_over_time_and_body() -> None:
    call = webhook.request(asked())
    headers = dict(webhook.signed(call.body, secret=b"key", now_s=1000))
    assert re.fullmatch(r"v1=[0-9a-f]{64}", headers[webhook.SIGNATURE])
    other = dict(webhook.signed(call.body, secret=b"key", now_s=1001))
    assert other[webhook.SIGNATURE] != headers[webhook.SIGNATURE]
    body = json.loads(call.body)
    assert body["version"] == 1
    known = {name: value for name, value in body.items() if name not in ("version", "facts")}
    assert Notice.model_validate(known).proposal == ID
    assert ("idempotency-key", asked().key) in call.headers
