"""A person's word: only from the form, only about what was shown, and the gate counts it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.review.conftest import HOST, TWO_PEOPLE, Browser, Site9476, policy

from retuned.stages.gate import DecisionKind, Mode
from retuned.stages.proposal import Proposal
from retuned.standalone.review_source import key_of
from retuned.store.approvals import Approvals


def words(site: Site9476, one: Proposal) -> list[tuple[str, str, str]]:
    found = Approvals(site.store).decisions(one.id)
    return [(each.user, each.decision.value, each.comment) for each in found]


def test_an_approval_is_a_record_bound_to_what_was_shown_and_the_gate_counts_it(
    site: Site9476,
) -> None:
    one = site.propose()
    browser = site.browser("ada", "gpu-platform")
    answer = browser.say(one, "approve", comment=" looks right ")
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        f"/proposals/{key_of(one.id)}#said",
    )
    (word,) = Approvals(site.store).decisions(one.id)
    assert (word.user, word.groups, word.comment) == ("ada", ("gpu-platform",), "looks right")
    assert (word.channel, word.digest) == ("review-page", one.artifact)
    assert word.policy_digest == site.policy.digest
    assert site.judge(one) == "approved"
    text = browser.get(f"/proposals/{key_of(one.id)}").text
    assert "<strong>Approved</strong> by ada" in text
    assert "looks right" in text


def test_two_people_of_two_groups_are_needed_where_the_policy_says_so(site: Site9476) -> None:
    site.policy = TWO_PEOPLE
    one = site.propose()
    ada = site.browser("ada", "gpu-platform")
    assert ada.say(one, "approve").status_code == 303
    assert site.judge(one) == "waiting"
    text = ada.get(f"/proposals/{key_of(one.id)}").text
    assert "1 of 2" in text
    assert "group sre-oncall" in text
    assert ada.say(one, "approve", comment="again").status_code == 303
    assert site.judge(one) == "waiting", "one person is one person"
    alan = site.browser("alan", "gpu-platform")
    assert "you are not a member" in alan.get(f"/proposals/{key_of(one.id)}").text
    grace = site.browser("grace", "sre-oncall")
    assert grace.say(one, "approve").status_code == 303
    assert site.judge(one) == "approved"


def test_one_rejection_ends_it_whoever_agreed(site: Site9476) -> None:
    one = site.propose()
    site.browser("ada").say(one, "approve")
    assert site.browser("grace").say(one, "reject", comment="not today").status_code == 303
    assert site.judge(one) == "rejected"
    assert words(site, one)[1] == ("grace", "Reject", "not today")


def test_a_rollback_and_an_abort_ask_the_daemon_once_and_nobody_else(site: Site9476) -> None:
    one = site.propose(phase="Promoted")
    browser = site.browser("ada")
    for _ in range(2):
        assert browser.say(one, "rollback", comment="wrong answers").status_code == 303
    (asked,) = site.store.list("request", phase="new")
    assert asked.body == {
        "what": "rollback",
        "target": one.id,
        "who": "ada",
        "at": asked.body["at"],
        "reason": "wrong answers",
    }
    assert browser.say(one, "abort").status_code == 303
    assert len(site.store.list("request", phase="new")) == 2
    assert "rollback asked by ada" in browser.get("/in-force").text


def test_breaking_the_glass_needs_a_reason(site: Site9476) -> None:
    one = site.propose()
    browser = site.browser("lea", "sre-leads")
    answer = browser.say(one, "break-glass")
    assert answer.status_code == 422
    assert "needs a reason" in answer.text
    assert words(site, one) == []
    assert browser.say(one, "break-glass", comment="outage").status_code == 303
    assert Approvals(site.store).decisions(one.id)[0].decision is DecisionKind.BREAK_GLASS


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"origin": "http://evil.example"}, "other-site"),
        ({"origin": "null"}, "other-site"),
        ({"origin": f"https://{HOST}"}, "other-site"),
        ({"sec-fetch-site": "cross-site"}, "other-site"),
        ({"sec-fetch-site": "same-site"}, "other-site"),
    ],
)
def test_a_form_of_another_site_decides_nothing(
    site: Site9476, headers: dict[str, str], why: str
) -> None:
    one = site.propose()
    answer = site.browser("ada").say(one, "approve", headers=headers)
    assert answer.status_code == 403
    assert why in answer.text
    assert "Nothing was decided" in answer.text
    assert words(site, one) == []


def test_a_form_without_any_origin_decides_nothing(site: Site9476) -> None:
    one = site.propose()
    browser = site.browser("ada")
    path = f"/proposals/{key_of(one.id)}"
    fields = browser.form(browser.get(path)) | {"act": "approve"}
    assert browser.http.post(path, data=fields).status_code == 403
    assert words(site, one) == []


@pytest.mark.parametrize("field", ["token", "artifact", "policy"])
def test_a_token_is_for_one_artifact_under_one_policy(site: Site9476, field: str) -> None:
    one = site.propose()
    changed = "v1.1772452800.x" if field == "token" else "sha256:" + "7" * 64
    browser = site.browser("ada")
    path = f"/proposals/{key_of(one.id)}"
    fields = browser.form(browser.get(path)) | {"act": "approve", field: changed}
    answer = browser.post(path, fields)
    assert answer.status_code == 409
    assert "not-what-was-shown" in answer.text
    assert words(site, one) == []


def test_a_token_of_another_person_browser_or_proposal_is_no_use(site: Site9476) -> None:
    one, two = site.propose(), site.propose(target="other")
    eve = site.browser("eve")
    stolen = eve.form(eve.get(f"/proposals/{key_of(one.id)}")) | {"act": "approve"}
    ada = site.browser("ada")
    ada.get(f"/proposals/{key_of(one.id)}")
    assert ada.post(f"/proposals/{key_of(one.id)}", stolen).status_code == 409
    assert eve.post(f"/proposals/{key_of(one.id)}", stolen).status_code == 409, "ada sits there"
    site.browser("eve")
    other = Browser(site)
    assert other.post(f"/proposals/{key_of(one.id)}", stolen).status_code == 409, "no session"
    assert eve.post(f"/proposals/{key_of(two.id)}", stolen).status_code == 409
    assert words(site, one) + words(site, two) == []


def test_a_page_of_yesterday_decides_nothing(site: Site9476) -> None:
    one = site.propose()
    browser = site.browser("ada")
    path = f"/proposals/{key_of(one.id)}"
    fields = browser.form(browser.get(path)) | {"act": "approve"}
    site.clock.advance(timedelta(hours=9).total_seconds())
    answer = browser.post(path, fields)
    assert (answer.status_code, "form-too-old" in answer.text) == (409, True)
    assert words(site, one) == []


def test_an_expired_proposal_is_not_approved_by_a_page_that_was_open(site: Site9476) -> None:
    one = site.propose(expires_at=site.clock.now() + timedelta(minutes=5))
    browser = site.browser("ada")
    path = f"/proposals/{key_of(one.id)}"
    fields = browser.form(browser.get(path)) | {"act": "approve"}
    site.clock.advance(600)
    answer = browser.post(path, fields)
    assert answer.status_code == 410
    assert "expired at" in answer.text
    assert words(site, one) == []


def test_a_policy_that_changed_since_the_page_was_loaded_is_said(site: Site9476) -> None:
    one = site.propose()
    browser = site.browser("ada")
    path = f"/proposals/{key_of(one.id)}"
    fields = browser.form(browser.get(path)) | {"act": "approve"}
    site.judge(one, policy=policy(required=2))
    answer = browser.post(path, fields)
    assert answer.status_code == 409
    assert "policy is in force than the one" in answer.text
    assert words(site, one) == []
    assert browser.post(path, fields | {"act": "reject"}).status_code == 303, "no is always heard"


def test_what_has_moved_on_is_not_approved(site: Site9476) -> None:
    one = site.propose()
    browser = site.browser("ada")
    path = f"/proposals/{key_of(one.id)}"
    fields = browser.form(browser.get(path)) | {"act": "approve"}
    site.store.advance("proposal", one.id, expect="AwaitingApproval", to="Superseded")
    answer = browser.post(path, fields)
    assert answer.status_code == 409
    assert "is Superseded" in answer.text
    assert words(site, one) == []


def test_an_approval_that_could_have_no_effect_is_refused_with_what_to_do(site: Site9476) -> None:
    site.policy = site.policy.model_copy(
        update={"spec": site.policy.spec.model_copy(update={"mode": Mode.OBSERVE_ONLY})}
    )
    one = site.propose()
    answer = site.browser("ada").say(one, "approve")
    assert answer.status_code == 409
    assert "would have no effect" in answer.text
    assert words(site, one) == []


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"act=approve", "text/plain"),
        (b"\xff\xfe=1", "application/x-www-form-urlencoded"),
        (b"act=approve&act=reject", "application/x-www-form-urlencoded"),
        (b"&".join(b"f%d=1" % n for n in range(40)), "application/x-www-form-urlencoded"),
        (b"comment=" + b"x" * 40_000, "application/x-www-form-urlencoded"),
        (b"act=explode", "application/x-www-form-urlencoded"),
        (b"act=approve&artifact=sha256:12", "application/x-www-form-urlencoded"),
        (b"{}", "application/json"),
    ],
)
def test_what_is_no_form_of_ours_is_refused_in_words(
    site: Site9476, body: bytes, kind: str
) -> None:
    one = site.propose()
    browser = site.browser("ada")
    answer = browser.http.post(
        f"/proposals/{key_of(one.id)}",
        content=body,
        headers={"content-type": kind, "origin": f"http://{HOST}"},
    )
    assert answer.status_code == 422
    assert "Nothing was decided" in answer.text
    assert words(site, one) == []


def test_a_comment_longer_than_a_record_takes_decides_nothing(site: Site9476) -> None:
    one = site.propose()
    answer = site.browser("ada").say(one, "approve", comment="x" * 4_001)
    assert answer.status_code == 422
    assert words(site, one) == []


def test_the_form_under_an_alerts_link_decides_as_well(site: Site9476) -> None:
    one = site.propose()
    browser = site.browser("ada")
    page = browser.get(f"/proposals/{one.id}")  # as metrics name it, with its prefix
    assert page.status_code == 200
    where = page.text.partition('<form method="post" action="')[2].partition('"')[0]
    answer = browser.post(where, browser.form(page) | {"act": "approve"})
    assert answer.status_code == 303
    assert words(site, one) == [("ada", "Approve", "")]
