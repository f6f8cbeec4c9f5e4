"""Debian's Chromium, and a page served over a real connection to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.web.conftest import Site9476, made

from retuned.adapters.clock import FakeClock
from retuned.web.ports import Visit
from retuned.web.records import Person
from retuned.web.refusing import refused
from retuned.web.serving import PageServer, names_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 900}


class HeaderDoor:
    """Lets in whom a header names: each browser of a test is somebody else."""

    def who(self, visit: Visit) -> Person:
        said = visit.headers.get("x-test-user", "")
        if not said:
            raise refused("not-known", "nobody knows you")
        user, *groups = said.split()
        return Person(user=user, groups=tuple(groups))


@dataclass
class Served:
    """A page on a port, and browsers that look at it."""

    site: Site9476
    address: str
    chromium: Browser
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
            extra_http_headers={"x-test-user": " ".join((user, *groups))},
            java_script_enabled=bypass_csp,
            bypass_csp=bypass_csp,
        )
        context.set_default_timeout(20_000)
        self.contexts.append(context)
        return context.new_page()

    def close(self) -> None:
        for context in self.contexts:
            context.close()


@contextmanager
def served(folder: Path, clock: FakeClock, chromium: Browser) -> Iterator[Served]:
    """Serve one installation on a free port."""
    server = PageServer("127.0.0.1", 0)
    worlds = made(folder, clock, hosts=names_of("127.0.0.1", server.port), door=HeaderDoor())
    site = next(worlds)
    server.start(site.app)
    found = Served(site=site, address=f"http://127.0.0.1:{server.port}", chromium=chromium)
    try:
        yield found
    finally:
        found.close()
        server.stop()
        worlds.close()
