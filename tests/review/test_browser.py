"""The page in a real browser, with scripts switched off: whole flows, as a person goes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.review import browsing
from tests.review.browsing import NEEDS_CHROMIUM, PHONE, Served, approve, refuse, served, taken
from tests.review.conftest import SOURCE, TWO_PEOPLE, solution
from tests.stages.watch_proof.blocks import proven

from retuned.clock import FakeClock
from retuned.contract import TrustClass
from retuned.stages.watch.proof import calibrate
from retuned.standalone.review_source import key_of
from retuned.store.approvals import Approvals

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, NEEDS_CHROMIUM, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browsing.chromium() as browser:
        yield browser


@pytest.fixture
def there(tmp_path: Path, clock: FakeClock, chromium: Browser) -> Iterator[Served]:
    with served(tmp_path, clock, chromium) as found:
        yield found


def words(there: Served, id: str) -> list[tuple[str, str]]:
    found = Approvals(there.site.store).decisions(id)
    return [(each.user, each.decision.value) for each in found]


def test_an_approval_from_the_inbox_to_the_record_by_keyboard_alone(there: Served) -> None:
    one = there.site.propose()
    page = there.page("ada", "gpu-platform")
    page.goto("/")
    page.get_by_role("link", name=one.definition).focus()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/proposals/"))
    page.get_by_label("Why, for the record").first.focus()
    page.keyboard.type("numbers look right")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")  # the artifact was looked at
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("#said"))
    assert page.get_by_text("Approved by ada").is_visible()
    assert words(there, one.id) == [("ada", "Approve")]
    assert there.site.judge(one) == "approved"


def test_an_approval_without_having_looked_is_not_even_sent(there: Served) -> None:
    one = there.site.propose()
    page = there.page("ada")
    page.goto(f"/proposals/{key_of(one.id)}")
    page.get_by_role("button", name="Approve").click()
    assert not page.url.endswith("#said")
    assert words(there, one.id) == []


def test_a_rejection_with_a_reason_ends_the_proposal(there: Served) -> None:
    one = there.site.propose()
    page = there.page("grace")
    page.goto(f"/proposals/{key_of(one.id)}")
    refuse(page, "Reject", why="not before the launch")
    taken(page)
    assert page.locator("q", has_text="not before the launch").is_visible()
    assert words(there, one.id) == [("grace", "Reject")]
    assert there.site.judge(one) == "rejected"


def test_two_people_in_two_browsers(there: Served) -> None:
    there.site.policy = TWO_PEOPLE
    one = there.site.propose()
    ada, alan = there.page("ada", "gpu-platform"), there.page("alan", "gpu-platform")
    path = f"/proposals/{key_of(one.id)}"
    for page in (ada, alan):
        page.goto(path)
    approve(ada)
    taken(ada)
    assert there.site.judge(one) == "waiting"
    approve(alan)
    taken(alan)
    assert there.site.judge(one) == "waiting", "both are of one group"
    grace = there.page("grace", "sre-oncall")
    grace.goto(path)
    assert grace.get_by_text("1 of 2", exact=False).first.is_visible()
    approve(grace)
    taken(grace)
    assert there.site.judge(one) == "approved"


def test_a_page_that_stayed_open_past_the_expiry_says_so_and_decides_nothing(
    there: Served,
) -> None:
    one = there.site.propose(expires_at=there.site.clock.now() + timedelta(minutes=5))
    page = there.page("ada")
    page.goto(f"/proposals/{key_of(one.id)}")
    there.site.clock.advance(600)
    approve(page)
    page.get_by_role("heading", name="Nothing was decided").wait_for()
    page.get_by_text("expired at", exact=False).wait_for()
    page.get_by_role("link", name="Look at the proposal as it is now").click()
    page.get_by_text("It has expired.").wait_for()
    assert words(there, one.id) == []


def test_a_rollback_from_a_swap_in_place(there: Served) -> None:
    one = there.site.propose(phase="Promoted")
    page = there.page("ada")
    page.goto(f"/proposals/{key_of(one.id)}")
    refuse(page, "Roll back", why="answers look odd")
    taken(page)
    (asked,) = there.site.store.list("request", phase="new")
    assert (asked.body["what"], asked.body["who"]) == ("rollback", "ada")
    assert page.get_by_text("rollback asked by ada", exact=False).first.is_visible()


def test_a_bot_that_follows_and_prefetches_every_link_decides_nothing(there: Served) -> None:
    one = there.site.propose()
    there.site.propose(phase="Promoted")
    there.site.window(16)
    page = there.page("bot")
    waiting, seen = ["/"], set[str]()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        answer = page.request.get(
            there.address + path, headers={"sec-purpose": "prefetch;prerender"}
        )
        assert answer.status == 200, path
        waiting += re.findall(r'(?:href|action|src)="(/[^"#]*)', answer.text())
    assert len(seen) >= 8
    assert words(there, one.id) == []
    assert there.site.store.list("request") == []


def test_markup_in_names_comments_and_sources_runs_nothing(there: Served) -> None:
    evil = "<img src=/x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    one = there.site.propose(
        target=evil, risk_reasons=(evil,), candidate=solution("e", source=SOURCE + f"# {evil}")
    )
    page = there.page("ada", bypass_csp=True)  # scripts on, and our own policy off: escaping alone
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: asked.append("dialog"))
    for path in ("/", f"/proposals/{key_of(one.id)}"):
        page.goto(path)
        assert page.title() != "owned"
    assert not [url for url in asked if url.endswith("/x") or url == "dialog"]
    refuse(page, "Reject", why=evil)
    taken(page)
    assert page.title() != "owned"
    assert page.locator("q", has_text="<script>").first.is_visible()


PATHS = (
    "/",
    "/in-force",
    "/past",
    "/swaps",
    "/drift",
    "/savings",
    "WINDOW",
    "PROPOSAL",
    "PROMOTED",
    "/nowhere",
)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [None, PHONE], ids=["desk", "phone"])
def test_axe_finds_nothing_wrong_on_any_page(
    there: Served, dark: bool, size: dict[str, int] | None
) -> None:
    addresses = furnished(there)
    page = there.page("ada", size=size, dark=dark, bypass_csp=True)
    assert browsing.faults(page, (addresses.get(path, path) for path in PATHS)) == []


def test_a_narrow_phone_shows_everything_without_scrolling_sideways(there: Served) -> None:
    addresses = furnished(there)
    page = there.page("ada", size=PHONE, bypass_csp=True)
    paths = (addresses.get(path, path) for path in PATHS)
    assert browsing.wider_than(page, PHONE, paths) == []
    page.goto(addresses["PROPOSAL"])
    assert browsing.too_thin(page) == [], "thumbs need room"


def furnished(there: Served) -> dict[str, str]:
    """Fill an installation with one of everything."""
    site = there.site
    for m in (16, 16, 24):
        site.window(m)
    window = site.window(512, detected=True)
    changed = SOURCE.replace("1e-6", "1e-5").replace("tl.rsqrt(", "1.0 / tl.sqrt(")
    rewritten = solution("rewritten", source=changed, num_warps=8)
    one = site.propose(candidate=rewritten, trust=TrustClass.GENERATED)
    two = site.propose(phase="Promoted", target="code")
    state = proven(0.97, busy=0.006)
    site.store.add("live-proof", two.id, {"state": state.model_dump(mode="json")}, phase="helps")
    assert state.report is not None
    found = calibrate(
        state.report,
        proposal=two.id,
        definition=two.definition,
        artifact=two.artifact,
        at=site.clock.now(),
        share=two.share,
        speedup=two.speedup,
        forecast=None,
    )
    assert found is not None
    site.store.add("calibration", two.id, found.model_dump(mode="json"), phase="differs")
    site.propose(phase="Rejected")
    site.spent(two)
    return {
        "WINDOW": f"/drift/{window}",
        "PROPOSAL": f"/proposals/{key_of(one.id)}",
        "PROMOTED": f"/proposals/{key_of(two.id)}",
    }
