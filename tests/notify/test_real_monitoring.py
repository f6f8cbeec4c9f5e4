"""Scrape, rule, Alertmanager, channel, decision, resolved: with the real programs in between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from tests.notify.heard import Ear, listening
from tests.notify.monitoring import Monitoring, monitoring_of, of_alerts
from tests.notify.test_arrivals import SECRET, TEAM
from tests.notify.test_whole_way import press, propose, said, until
from tests.plane.control_plane import free_ports
from tests.standalone.local_world import WINNER, World

from retuned.clock import FakeClock
from retuned.settings import Settings
from retuned.standalone.context import RecordKind
from retuned.standalone.notifications import channelled
from retuned.telemetry import Exporter
from retuned.telemetry.prometheus import PrometheusTelemetry

pytestmark = [pytest.mark.monitoring, pytest.mark.slow, pytest.mark.timeout(900)]

TOKEN = "a-token-of-alertmanager"


@pytest.fixture
def ear() -> Iterator[Ear]:
    with listening() as found:
        yield found


class Scraped:
    """A loop whose numbers are served, and whose clock shows the time that Prometheus sees."""

    def __init__(self, folder: Path) -> None:
        self.telemetry = PrometheusTelemetry(Exporter.DAEMON)
        # the story takes a minute of its own: it began so long ago that now it is over
        self.clock = FakeClock(datetime.now(UTC) - timedelta(seconds=90))
        self.world = World(folder / "world", clock=self.clock)
        self.world.telemetry = self.telemetry  # type: ignore[assignment]
        self.world.restart()
        (self.port,) = free_ports(1)
        self.stop = self.telemetry.serve("127.0.0.1", port=self.port)

    def now(self) -> None:
        """Let the clock catch up with the time that the others live in."""
        self.clock.set_wall(datetime.now(UTC))

    def close(self) -> None:
        self.stop()
        self.world.store.close()


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[Scraped]:
    made = Scraped(tmp_path)
    yield made
    made.close()


def settings(scraped: Scraped, ear: Ear, monkeypatch: pytest.MonkeyPatch) -> Settings:
    (port,) = free_ports(1)
    for name, text in (("A_HOOK", ear.url), ("A_SECRET", SECRET), ("A_TOKEN", TOKEN)):
        monkeypatch.setenv(name, text)
    return Settings(
        state_dir=scraped.world.folder / "state",
        slack_webhook="env:A_HOOK",
        slack_signing_secret="env:A_SECRET",
        slack_team=TEAM,
        slack_users={"U2CERLKJA": "nobody"},
        alertmanager_webhook_token="env:A_TOKEN",
        channels_listen=f"127.0.0.1:{port}",
    )


@contextmanager
def watched(
    scraped: Scraped, wanted: Settings, *, programs: Path, folder: Path
) -> Iterator[tuple[Monitoring, str]]:
    """Run both programs beside a loop that hears Alertmanager; return them, and where it hears."""
    world = scraped.world
    with (
        monitoring_of(
            programs,
            folder,
            metrics_port=scraped.port,
            webhook=f"http://{wanted.channels_listen}/alertmanager",
            token=TOKEN,
        ) as there,
        channelled(wanted, clock=world.clock, telemetry=world.telemetry) as place,
    ):
        yield there, place


def told(there: Monitoring, alert: Mapping[str, object]) -> None:
    url = f"{there.alertmanager}/api/v2/alerts"
    httpx.post(url, json=[alert], timeout=60.0).raise_for_status()


def names(there: Monitoring) -> list[str]:
    return [alert["labels"]["alertname"] for alert in there.alerts()]


def test_a_proposal_is_scraped_alerted_told_decided_and_the_alert_resolves(
    scraped: Scraped,
    ear: Ear,
    monitoring: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, wanted = scraped.world, settings(scraped, ear, monkeypatch)
    with watched(scraped, wanted, programs=monitoring, folder=tmp_path) as (there, place):
        id = propose(world)
        scraped.now()
        world.loop.turn()  # shows what waits
        alert = there.one_alert()
        assert alert["labels"]["alertname"] == "RetunedSwapAwaitingApproval"
        assert alert["labels"]["proposal"] == id
        assert WINNER.digest in alert["annotations"]["approve_command"]

        def lines() -> list[str]:
            events = world.store.events(id=id)
            return [event.what for event in events if event.who == "alertmanager"]

        there.until(lambda: "alert-firing" in lines(), "the proposal's history has the alert")

        until(ear, 1)
        scraped.now()
        (message,) = said(ear, '"blocks"')
        assert press(world, place, message).status_code == 200
        for _ in range(3):
            world.clock.advance(2.0)
            world.loop.turn()
        assert world.server.slots()[0].active == WINNER.digest

        there.until(lambda: "RetunedSwapAwaitingApproval" not in names(there), "it resolves")
        over = "alert-resolved"
        there.until(lambda: of_alerts(lines()) == over, "the history has it too")
        until(ear, 2)
        assert "nobody" in ear.took[1].raw.decode()


def test_on_a_machine_that_nobody_scrapes_alertmanager_is_told_and_told_again_of_the_end(
    scraped: Scraped,
    monitoring: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ear: Ear,
) -> None:
    world = scraped.world
    with monitoring_of(
        monitoring, tmp_path, metrics_port=scraped.port, webhook=f"{ear.url}/hook", token=TOKEN
    ) as there:
        wanted = Settings(
            state_dir=world.folder / "state",
            alertmanager_url=there.alertmanager,
            review_url="https://review.example",
        )
        with channelled(wanted, clock=world.clock, telemetry=world.telemetry):
            id = propose(world)
            scraped.now()
            alert = there.one_alert()
            assert alert["labels"]["alertname"] == "RetunedSwapAwaitingApproval"
            assert alert["labels"]["proposal"] == id
            assert alert["generatorURL"] == f"https://review.example/proposals/{id[7:]}"
            there.until(lambda: ear.took, "Alertmanager tells others of it")
            assert ear.took[0].headers["authorization"] == f"Bearer {TOKEN}"

            world.approve_what_waits()
            scraped.now()
            for _ in range(3):
                world.clock.advance(0.5)
                world.loop.turn()
            there.until(lambda: names(there) == [], "it is over")
            there.until(
                lambda: ear.took[-1].body["status"] == "resolved", "Alertmanager tells that too"
            )
    assert world.phases(RecordKind.PROPOSAL) == ["Analyzing"]


def test_an_alert_of_a_real_alertmanager_stops_tuning_and_lets_it_go_on(
    scraped: Scraped,
    ear: Ear,
    monitoring: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, wanted = scraped.world, settings(scraped, ear, monkeypatch)
    with watched(scraped, wanted, programs=monitoring, folder=tmp_path) as (there, _):
        scraped.now()
        began = datetime.now(UTC)
        alert = {
            "labels": {"alertname": "LatencyHigh", "retuned_pause": "true"},
            "annotations": {"summary": "p99 is above its objective"},
            "startsAt": began.isoformat(),
        }
        told(there, alert)
        there.until(lambda: world.phases(RecordKind.FREEZE) == ["active"], "tuning stops")
        alert["endsAt"] = datetime.now(UTC).isoformat()
        told(there, alert)
        there.until(lambda: world.phases(RecordKind.FREEZE) == ["lifted"], "it goes on")
