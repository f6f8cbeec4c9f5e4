"""Write the pictures of docs/on-call.md: ``python -m tests.web.pictures``."""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import FloatRect, Page
from tests.web.browsing import PHONE, approve, chromium, served
from tests.web.conftest import NOON, ROOT, TWO_PEOPLE
from tests.web.test_browser import furnished

from retuned.adapters.clock import FakeClock
from retuned.local.lock import only_one

FOLDER = ROOT / "docs" / "pictures"


def shot(page: Page, path: str, name: str, *, high: int, begin: str = "") -> None:
    """Take a part of a page, from an element's top on."""
    page.goto(path)
    top = 0.0
    if begin:
        box = page.locator(begin).bounding_box()
        assert box is not None, begin
        top = box["y"] - 16
    size = page.viewport_size
    assert size is not None, "a window has a size"
    clip: FloatRect = {"x": 0, "y": top, "width": size["width"], "height": high}
    page.screenshot(path=str(FOLDER / f"{name}.png"), full_page=True, clip=clip)


def main() -> None:
    """Write them all."""
    FOLDER.mkdir(exist_ok=True)
    with (
        chromium() as browser,
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder), FakeClock(NOON), browser) as there,
        only_one(Path(folder) / "state"),
    ):
        there.site.policy = TWO_PEOPLE
        there.site.propose(phase="rollback-failed", target="batch")
        addresses = furnished(there)
        grace = there.page("grace", "sre-oncall")
        grace.goto(addresses["PROPOSAL"])
        approve(grace, why="numbers hold on our own replay")
        for one in there.site.proposed[-3:]:
            there.site.judge(one)
        page = there.page("ada", "gpu-platform", size={"width": 1000, "height": 800})
        shot(page, "/", "review-inbox", high=600)
        shot(page, addresses["PROPOSAL"], "review-proposal", high=1110)
        shot(page, addresses["PROPOSAL"], "review-evidence", high=1120, begin="#worth")
        shot(page, "/savings", "review-savings", high=800)
        dark = there.page("ada", size={"width": 1000, "height": 800}, dark=True)
        shot(dark, addresses["WINDOW"], "review-drift", high=900)
        phone = there.page("ada", "gpu-platform", size=PHONE, dark=True)
        shot(phone, addresses["PROPOSAL"], "review-phone", high=1180)


if __name__ == "__main__":
    main()
