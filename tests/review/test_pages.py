"""What the pages show, and that looking decides nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.review.conftest import HOST, Site9476, solution
from tests.stages.watch_proof.blocks import proven

from retuned.stages.gate import StopPolicy, TuningFreeze
from retuned.stages.watch.proof import Pace, forecast
from retuned.standalone.review_source import key_of
from retuned.store.approvals import Approvals


def test_the_inbox_lists_what_waits_with_the_same_words_as_the_terminal(site: Site9476) -> None:
    one = site.propose()
    site.propose(phase="Promoted")
    site.propose(phase="Rejected")
    browser = site.browser("ada")
    text = browser.get("/").text
    assert "1 waiting for a decision" in text
    assert text.count('href="/proposals/') == 1
    assert f"{one.speedup.point:.2f}x (&gt;= {one.speedup.lower:.2f})" in text
    assert "1 more: anyone" in text
    assert "chat on node-7" in text
    assert browser.get("/in-force").text.count('href="/proposals/') == 1
    assert browser.get("/past").text.count('href="/proposals/') == 1


def test_what_goes_back_stands_above_all_that_waits(site: Site9476) -> None:
    site.propose(phase="RollbackFailed", target="elsewhere")
    for _ in range(60):
        site.propose()
    text = site.browser("ada").get("/").text
    assert text.index("<h2>Rolling") < text.index("RollbackFailed") < text.index("AwaitingApproval")


def test_a_proposal_says_what_where_how_much_how_sure_and_who_is_missing(site: Site9476) -> None:
    site.window(16)
    one = site.propose()
    page = site.browser("ada").get(f"/proposals/{key_of(one.id)}")
    assert page.status_code == 200
    for needed in (
        one.artifact,
        "GPU-hours",
        "$2.5 an hour",
        "signed and whole",
        "computes the right thing",
        "touches 40% of kernel time",
        "0 of 1 approvals",
        "num_warps",
        "Roofline",
        "Speedup at each shape",
        f"retuned approve {key_of(one.id)[:12]} --digest {one.artifact}",
        "only parameters change",
    ):
        assert needed in page.text, needed


def test_a_live_proof_is_drawn_with_its_numbers_as_text(site: Site9476) -> None:
    one = site.propose(phase="RolledBack")
    state = proven(1.03, busy=0.006)
    body = {"state": state.model_dump(mode="json")}
    site.store.add("live-proof", one.id, body, phase="harms")
    pace = Pace(steps=1000, gpu_bound=0, seen=1000)
    found = forecast(0.4, 1.6, pace=pace, min_effect=0.005)
    site.store.add("forecast", one.id, found.model_dump(mode="json"), phase="current")
    text = site.browser("ada").get(f"/proposals/{key_of(one.id)}").text
    assert "host-bound: the server cannot gain from this" in text
    assert "<h3>Live proof</h3>" in text
    for title in ("Change of step time by pair", "Evidence by pair", "Where the time of a step"):
        assert f"<title>{title}" in text
    assert f"<desc>30 sham pairs, {len(state.pairs) - 30} pairs; interval" in text
    assert "<script" not in text


def test_hours_are_not_invented_where_no_profile_says_how_busy_the_gpu_is(site: Site9476) -> None:
    one = site.propose()
    text = site.browser("ada").get(f"/proposals/{key_of(one.id)}").text
    assert "unknown: no profile shows how busy the GPU is" in text


def test_a_changed_source_is_shown_line_by_line(site: Site9476) -> None:
    other = solution("rewritten", source=solution("x").sources[0].content.replace("1e-6", "1e-5"))
    one = site.propose(candidate=other)
    text = site.browser("ada").get(f"/proposals/{key_of(one.id)}").text
    assert "1 line new, 1 line gone" in text
    assert '<tr class="new">' in text
    assert '<tr class="gone">' in text


def test_evidence_that_does_not_verify_is_called_so(site: Site9476) -> None:
    one = site.propose(evidence="sha256:" + "9" * 64)
    text = site.browser("ada").get(f"/proposals/{key_of(one.id)}").text
    assert "NOT VERIFIED, it will not be swapped" in text


def test_a_freeze_and_a_missing_daemon_are_said_on_every_page(site: Site9476) -> None:
    Approvals(site.store).freeze(
        TuningFreeze(
            id="launch-day",
            stop_policy=StopPolicy.HOLD,
            reason="<b>launch</b>",
            user="grace",
            at=site.clock.now(),
        )
    )
    browser = site.browser("ada")
    for path in ("/", "/past", "/swaps", "/drift", "/savings"):
        text = browser.get(path).text
        assert "FROZEN by grace for everything" in text
        assert "No daemon runs on this state" in text
        assert "&lt;b&gt;launch" in text


def test_lists_are_paged_and_nothing_is_lost_or_twice(site: Site9476) -> None:
    for _ in range(7):
        site.propose(phase="Rejected")
    browser = site.browser("ada")
    from retuned.review import app

    seen: list[str] = []
    path = "/past"
    pages = 0
    before, app.PAGE = app.PAGE, 3
    try:
        while path:
            text = browser.get(path).text
            pages += 1
            seen += [part.partition('"')[0] for part in text.split('href="/proposals/')[1:]]
            path = text.partition('class="more"><a href="')[2].partition('"')[0]
    finally:
        app.PAGE = before
    assert (len(seen), len(set(seen)), pages) == (7, 7, 3)


def test_a_record_that_cannot_be_understood_is_named_and_hides_no_other(site: Site9476) -> None:
    one = site.propose()
    site.store.add("proposal", "damaged", {"nonsense": True}, phase="AwaitingApproval")
    text = site.browser("ada").get("/").text
    assert key_of(one.id) in text
    assert "Left out because it cannot be read" in text


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_looking_never_decides_whatever_the_address_says(site: Site9476, method: str) -> None:
    one = site.propose()
    browser = site.browser("ada")
    path = f"/proposals/{key_of(one.id)}"
    for address in (path, f"{path}?act=approve&token=x", f"{path}?act=reject", "/"):
        answer = browser.http.request(
            method, address, headers={"sec-purpose": "prefetch", "purpose": "prefetch"}
        )
        assert answer.status_code == 200
    assert Approvals(site.store).decisions(one.id) == ()
    assert site.store.list("request") == []


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_refused(site: Site9476, method: str) -> None:
    one = site.propose()
    answer = site.browser("ada").http.request(method, f"/proposals/{key_of(one.id)}")
    assert answer.status_code == 405


def test_every_answer_says_that_no_script_may_run(site: Site9476) -> None:
    site.propose()
    browser = site.browser("ada")
    for path in ("/", "/style.css", "/nowhere", "/proposals/nobody"):
        answer = browser.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src" not in policy
        assert "frame-ancestors 'none'" in policy
        assert "<script" not in answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{HOST[-4:]}", "127.0.0.1", "localhost:9476.evil", ""]
)
def test_a_page_asked_for_by_another_name_is_refused(site: Site9476, host: str) -> None:
    answer = site.browser("ada").get("/", headers={"host": host})
    assert answer.status_code == 421
    assert "Inbox" not in answer.text


def test_who_is_not_known_sees_nothing(site: Site9476) -> None:
    one = site.propose()
    site.door.person = None
    browser = site.browser()
    for path in ("/", "/past", "/swaps", "/drift", "/savings", f"/proposals/{key_of(one.id)}"):
        answer = browser.get(path)
        assert answer.status_code == 403
        assert one.definition not in answer.text


def test_an_address_of_nothing_is_answered_in_words(site: Site9476) -> None:
    answer = site.browser("ada").get("/proposals/" + "0" * 64)
    assert answer.status_code == 404
    assert "This proposal does not exist" in answer.text


def test_an_expired_proposal_says_so_and_offers_no_approval(site: Site9476) -> None:
    one = site.propose()
    site.clock.advance(timedelta(hours=25).total_seconds())
    text = site.browser("ada").get(f"/proposals/{key_of(one.id)}").text
    assert "It has expired." in text
    assert 'value="approve"' not in text


def test_hours_and_money_come_with_their_bounds_and_what_they_were_reckoned_with(
    site: Site9476,
) -> None:
    site.window(16)
    one = site.propose()
    text = site.browser("ada").get(f"/proposals/{key_of(one.id)}").text
    whole = 8 * 730 * 0.6 * 0.4  # GPUs, hours, how busy, share
    for bound in (one.speedup.lower, one.speedup.upper):
        assert f"${whole * (1 - 1 / bound) * 2.5:,.0f}" in text
    assert "8 GPUs, kernels running 60.0% of the time, 730 hours a month" in text


def test_drift_is_a_list_with_plots_and_a_page_for_every_window(site: Site9476) -> None:
    site.window(16)
    key = site.window(512, detected=True)
    browser = site.browser("ada")
    listed = browser.get("/drift").text
    assert "rmsnorm now runs at M=512" in listed
    assert listed.count("<svg") == 4
    page = browser.get(f"/drift/{key}").text
    for needed in ("M=512 is new", "new-signature", "Share of kernel time by kernel", "512"):
        assert needed in page
    assert "against the window before" in page


def test_a_window_that_is_gone_still_has_its_report(site: Site9476) -> None:
    site.window(16)
    key = site.window(512, detected=True)
    report = site.store.get("drift", key)
    assert report is not None
    other = f"{int(key[:20]) + 1:020d}.0"
    site.store.add("drift", other, dict(report.body), phase="noted")
    assert "is not kept any more" in site.browser("ada").get(f"/drift/{other}").text
