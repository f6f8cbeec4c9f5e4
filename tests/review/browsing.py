"""Debian's Chromium, windows of people's own browsers, and what a person does on a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.review.conftest import Site9476, made

from retuned.clock import FakeClock
from retuned.review.ports import RequestInfo
from retuned.review.records import Person
from retuned.review.requests import refused
from retuned.review.server import PageServer, names_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUM = Path("/usr/bin/chromium")
NEEDS_CHROMIUM = pytest.mark.skipif(
    not CHROMIUM.exists(), reason=f"{CHROMIUM} is missing; scripts/browser-packages installs it"
)
PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 900}
_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 120_000
"""For what a page is to show; a machine with other things to do takes its time."""
_THUMB = 44


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser; every person gets a profile of their own in it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=str(CHROMIUM), args=_ARGUMENTS, timeout=PATIENCE_MS
        )
        yield browser
        browser.close()


@dataclass
class Windows:
    """A page at an address, and browsers that look at it."""

    address: str
    chromium: Browser
    headers: Callable[[str, tuple[str, ...]], Mapping[str, str]]
    """What says who comes, as whatever stands in front of the page adds it."""
    contexts: list[BrowserContext] = field(default_factory=list)

    def page(
        self,
        user: str,
        *groups: str,
        size: dict[str, int] | None = None,
        dark: bool = False,
        bypass_csp: bool = False,
    ) -> Page:
        """Open a window of somebody's own browser; scripts are off, as they may be anywhere."""
        size = size or DESK
        context = self.chromium.new_context(
            base_url=self.address,
            viewport={"width": size["width"], "height": size["height"]},
            color_scheme="dark" if dark else "light",
            extra_http_headers=dict(self.headers(user, groups)),
            java_script_enabled=bypass_csp,
            bypass_csp=bypass_csp,
            ignore_https_errors=True,  # the authority is a test's own
        )
        context.set_default_timeout(PATIENCE_MS)
        self.contexts.append(context)
        return context.new_page()

    def close(self) -> None:
        for context in self.contexts:
            context.close()


@dataclass
class Served(Windows):
    """The page of one installation."""

    site: Site9476 = field(kw_only=True)


class HeaderDoor:
    """Lets in whom a header names: each browser of a test is somebody else."""

    def who(self, visit: RequestInfo) -> Person:
        said = visit.headers.get("x-test-user", "")
        if not said:
            raise refused("not-known", "nobody knows you")
        user, *groups = said.split()
        return Person(user=user, groups=tuple(groups))


@contextmanager
def served(folder: Path, clock: FakeClock, browser: Browser) -> Iterator[Served]:
    """Serve one installation on a free port."""
    server = PageServer("127.0.0.1", 0)
    worlds = made(folder, clock, hosts=names_of("127.0.0.1", server.port), door=HeaderDoor())
    site = next(worlds)
    server.start(site.app)
    found = Served(
        address=f"http://127.0.0.1:{server.port}",
        chromium=browser,
        headers=lambda user, groups: {"x-test-user": " ".join((user, *groups))},
        site=site,
    )
    try:
        yield found
    finally:
        found.close()
        server.stop()
        worlds.close()


# --- what a person does, and sees -----------------------------------------------------------------


def approve(page: Page, *, why: str = "") -> None:
    """Say that one has looked, and agree."""
    if why:
        page.locator("#why-approve").fill(why)
    page.get_by_label(re.compile("I have looked at artifact")).first.check()
    page.get_by_role("button", name="Approve").click()


def refuse(page: Page, button: str, *, why: str) -> None:
    """Say no in one of its forms, and why."""
    page.locator("#why-no").fill(why)
    page.get_by_role("button", name=button).click()


def taken(page: Page) -> None:
    """Wait until a word was taken and the proposal is shown with it."""
    page.wait_for_url(re.compile("#said"))


def faults(page: Page, paths: Iterable[str]) -> list[str]:
    """Return what axe finds wrong; the window needs `bypass_csp`."""
    from axe_playwright_python.sync_playwright import Axe

    axe, found = Axe(), []
    for path in paths:
        page.goto(path)
        for fault in axe.run(page).response["violations"]:
            nodes = [node["html"][:120] for node in fault["nodes"][:3]]
            found.append(f"{path}: {fault['id']}: {fault['help']}: {nodes}")
    return found


def wider_than(page: Page, size: dict[str, int], paths: Iterable[str]) -> list[str]:
    """Return the pages that would have to be scrolled sideways; needs `bypass_csp`."""
    found = []
    for path in paths:
        page.goto(path)
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > size["width"]:
            found.append(f"{path}: {wide}")
    return found


def too_thin(page: Page) -> list[str]:
    """Return the buttons of the page that a thumb would miss."""
    found = []
    for button in page.get_by_role("button").all():
        if button.is_visible():
            box: Any = button.bounding_box()
            if box["height"] < _THUMB:
                found.append(button.inner_text())
    return found
