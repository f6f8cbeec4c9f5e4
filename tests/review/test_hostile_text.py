"""Strangers' text: it is shown as text, whatever it says, on every page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.review.conftest import SOURCE, Site9476, solution

from retuned.stages.gate import DecisionKind, SwapDecision
from retuned.standalone.review_source import key_of
from retuned.store.approvals import Approvals

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\u202e</textarea>'


class Elements(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.addresses |= {
            value or "" for name, value in attrs if name in ("href", "action", "src")
        }


def assert_harmless(text: str) -> None:
    found = Elements(text)
    assert not found.tags & {"script", "img", "iframe", "object", "base", "style", "meta2"}
    assert not [name for name in found.attributes if name.startswith("on") or name == "style"]
    assert all(address.startswith(("/", "#")) for address in found.addresses), found.addresses
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_names_reasons_comments_and_sources_are_shown_as_text(site: Site9476) -> None:
    site.window(16, kernel=EVIL)
    key = site.window(512, kernel=EVIL, detected=True)
    variant = solution("evil", source=SOURCE + f"\n# {EVIL}\n")
    one = site.propose(
        candidate=variant,
        target=EVIL,
        risk_reasons=(EVIL,),
        requested_by=EVIL,
    )
    Approvals(site.store).give(
        SwapDecision(
            proposal=one.id,
            digest=one.artifact,
            decision=DecisionKind.APPROVE,
            user=EVIL,
            comment=EVIL,
            at=site.clock.now(),
            policy_digest=site.policy.digest,
        )
    )
    Approvals(site.store).request("abort", target=one.id, who=EVIL, at=site.clock.now())
    site.store.add("proposal", EVIL.replace("\x1b", ""), {"x": EVIL}, phase="AwaitingApproval")
    site.judge(one)
    browser = site.browser(EVIL.replace("\x1b", ""), EVIL)
    path = f"/proposals/{key_of(one.id)}"
    for address in ("/", "/past", "/swaps", "/drift", f"/drift/{key}", "/savings", path):
        answer = browser.get(address)
        assert answer.status_code == 200, address
        assert_harmless(answer.text)
    shown = browser.get(path).text
    assert shown.count("&lt;script&gt;") >= 5, "it is there to be read"


def test_an_address_that_is_markup_comes_back_as_text(site: Site9476) -> None:
    browser = site.browser("ada")
    for address in (
        "/%3Cscript%3E",
        "/proposals/%3Cscript%3Ealert(1)",
        "/past?before=%3Cscript%3E",
    ):
        assert_harmless(browser.get(address).text)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text(max_size=80))
def test_whatever_a_source_says_the_page_stays_the_page(site: Site9476, text: str) -> None:
    one = site.propose(candidate=solution("any", source=SOURCE + "\n# " + text))
    answer = site.browser("ada").get(f"/proposals/{key_of(one.id)}")
    assert answer.status_code == 200
    assert_harmless(answer.text)
    assert re.search(r"</html>\s*$", answer.text)
