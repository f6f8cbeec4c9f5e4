"""The cluster's review page in a real browser: people come by the proxy, the cluster decides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from tests.operators.review.paging import Paged, paged
from tests.plane.control_plane import ControlPlane
from tests.plane.reviewing import Place, reviewed, watched
from tests.review import browsing
from tests.review.browsing import NEEDS_CHROMIUM, PHONE, approve, refuse, taken

from retuned_operator.controllers.caches import StoreCaches

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.plane, pytest.mark.browser, NEEDS_CHROMIUM]

PLACE = "browsing"


class There:
    """One cluster, its page, and people's windows."""

    def __init__(self, place: Place, pages: Paged, caches: StoreCaches) -> None:
        self.place, self.pages, self._caches = place, pages, caches

    def proposal(self, name: str, *, phase: str = "AwaitingApproval", **spec: Any) -> str:
        """Make one; return the address of its page, which has it."""
        key = self.place.proposal(name, phase=phase, **self.pages.won(**spec))
        self.place.brought(name, self._caches)
        return f"/proposals/{key}"

    def judged(self, name: str) -> str:
        """Let the gate look; return what it says."""
        state = self.place.judge(name)
        self.place.brought(name, self._caches)
        return state

    def words(self, name: str) -> list[tuple[str, str]]:
        """Return who said what."""
        return sorted((each["user"], each["decision"]) for each in self.place.said(name))


@pytest.fixture(scope="module")
def there(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[There]:
    folder = tmp_path_factory.mktemp("page")
    with (
        browsing.chromium() as browser,
        reviewed(plane, PLACE) as place,
        watched(place) as caches,
        paged(folder, browser, api=place.page, caches=caches) as pages,
    ):
        yield There(place, pages, caches)


def shown(page: Page, text: str) -> bool:
    return page.get_by_text(text, exact=False).first.is_visible()


def test_two_people_of_two_groups_agree_from_the_inbox_on_and_the_gate_counts_both(
    there: There,
) -> None:
    path = there.proposal("swp-two")
    ada, grace = there.pages.page("ada"), there.pages.page("grace")
    ada.goto("/")
    ada.locator(f'a[href="{path}"]').click()
    ada.wait_for_url(re.compile(path))
    approve(ada, why="numbers look right")
    taken(ada)
    assert shown(ada, "Approved by ada"), "one's own word is there at once"
    assert there.judged("swp-two") == "waiting"
    grace.goto(path)
    assert shown(grace, "1 of 2")
    assert shown(grace, "group sre-oncall")
    approve(grace, why="a quiet evening")
    taken(grace)
    assert there.judged("swp-two") == "approved"
    assert there.words("swp-two") == [("ada", "Approve"), ("grace", "Approve")]
    assert {each["channel"] for each in there.place.said("swp-two")} == {"review-page"}


def test_who_asked_for_a_swap_is_told_before_and_refused_by_the_cluster(there: There) -> None:
    path = there.proposal("swp-own", requestedBy="ada")
    page = there.pages.page("ada")
    page.goto(path)
    assert shown(page, "you requested this swap yourself")
    approve(page, why="mine")
    page.get_by_role("heading", name="Nothing was decided").wait_for()
    assert shown(page, "the user who asked for a swap cannot approve it")
    page.get_by_role("link", name="Look at the proposal as it is now").click()
    page.wait_for_url(re.compile(path))
    assert there.words("swp-own") == []


def test_who_may_only_look_looks_and_is_told_what_they_may_not(there: There) -> None:
    path = there.proposal("swp-look")
    page = there.pages.page("eve")
    page.goto(path)
    refuse(page, "Reject", why="let me")
    page.get_by_role("heading", name="Nothing was decided").wait_for()
    assert shown(page, "may not create swapdecisions")
    assert there.words("swp-look") == []


@pytest.mark.parametrize(
    ("name", "phase", "button", "word"),
    [
        ("swp-reject", "AwaitingApproval", "Reject", "Reject"),
        ("swp-abort", "Canary", "Abort", "Abort"),
        ("swp-back", "Promoted", "Roll back", "Abort"),
    ],
)
def test_a_no_is_written_in_the_persons_name_wherever_the_swap_is(
    there: There, name: str, phase: str, button: str, word: str
) -> None:
    path = there.proposal(name, phase=phase)
    page = there.pages.page("grace")
    page.goto(path)
    refuse(page, button, why="answers look odd")
    taken(page)
    assert page.locator("q", has_text="answers look odd").is_visible()
    assert there.words(name) == [("grace", word)]


def test_whom_no_proxy_names_sees_nothing(there: There) -> None:
    there.pages.headers, named = (lambda _user, _groups: {}), there.pages.headers
    try:
        page = there.pages.page("ada")
    finally:
        there.pages.headers = named
    page.goto("/")
    assert shown(page, "through the proxy")


PATHS = ("/", "/in-force", "/past", "/swaps", "/drift", "/savings", "/proposals/none/none")


@pytest.mark.parametrize(
    ("size", "dark"), [(None, False), (PHONE, True)], ids=["desk-light", "phone-dark"]
)
def test_every_page_is_for_everybody_and_fits_a_phone(
    there: There, size: dict[str, int] | None, dark: bool
) -> None:
    name = "swp-phone" if size else "swp-desk"
    paths = (*PATHS, there.proposal(name), there.proposal(f"{name}-kept", phase="Promoted"))
    page = there.pages.page("ada", size=size, dark=dark, bypass_csp=True)
    assert browsing.faults(page, paths) == []
    if size:
        assert browsing.wider_than(page, size, paths) == []
        page.goto(paths[-2])
        assert browsing.too_thin(page) == []
