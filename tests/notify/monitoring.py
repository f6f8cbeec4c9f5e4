"""Real Prometheus and Alertmanager processes of the user who runs the tests."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import yaml
from tests.plane.control_plane import free_ports

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    """Where they are."""

    alertmanager: str
    prometheus: str
    folder: Path

    def alerts(self) -> list[Any]:
        """Return what stands in Alertmanager."""
        answer = httpx.get(f"{self.alertmanager}/api/v2/alerts", timeout=30.0)
        assert answer.status_code == 200, answer.text
        return list(answer.json())

    def ever(self, query: str, *, since: float) -> list[Any]:
        """Return the series that a query finds in Prometheus at any second since a moment.

        What was to be seen for a while is found later, and a scrape that failed hides nothing.
        """
        asked = {"query": query, "start": str(since), "end": str(time.time()), "step": "1"}
        answer = httpx.get(f"{self.prometheus}/api/v1/query_range", params=asked, timeout=60.0)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["data"]["result"])

    def until(
        self, reached: Callable[[], object], what: str, *, lacking: Callable[[], object] = str
    ) -> None:
        """Wait for something; where it does not come, show what is lacking and both logs."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while not _reached(reached):
            if time.monotonic() > deadline_s:
                logs = [path.read_text()[-3000:] for path in sorted(self.folder.glob("*.log"))]
                raise AssertionError(f"it did not come to it that {what}: {lacking()} {logs}")
            time.sleep(0.1)

    def one_alert(self, *, proposal: str = "") -> Any:
        """Wait until one alert stands, that of a proposal where it is named, and return it.

        An alert may go away again for a moment: when a scrape was late, Prometheus knows nothing.
        """
        seen: list[Any] = []

        def stands() -> bool:
            seen[:] = self.alerts()
            if proposal:
                seen[:] = [each for each in seen if each["labels"].get("proposal") == proposal]
            return bool(seen)

        self.until(stands, "the alert stands")
        (found,) = seen
        return found


def _reached(reached: Callable[[], object]) -> bool:
    try:
        return bool(reached())
    except httpx.TransportError:  # it is starting
        return False


def _is_up(url: str) -> bool:
    return httpx.get(f"{url}/-/ready", timeout=30.0).is_success


@contextmanager
def monitoring_of(
    programs: Path, folder: Path, *, metrics_port: int, webhook: str, token: str
) -> Iterator[Monitoring]:
    """Run both: Prometheus scrapes a port by the rules that ship, Alertmanager tells a webhook."""
    am_port, prometheus_port = free_ports(2)
    there = Monitoring(
        alertmanager=f"http://127.0.0.1:{am_port}",
        prometheus=f"http://127.0.0.1:{prometheus_port}",
        folder=folder,
    )
    _configure(folder, metrics_port=metrics_port, am_port=am_port, webhook=webhook, token=token)
    commands = {
        "alertmanager": [
            f"--config.file={folder / 'alertmanager.yaml'}",
            f"--storage.path={folder / 'alerts'}",
            f"--web.listen-address=127.0.0.1:{am_port}",
            "--cluster.listen-address=",
        ],
        "prometheus": [
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{prometheus_port}",
        ],
    }
    running = []
    try:
        for name, options in commands.items():
            with (folder / f"{name}.log").open("wb") as log:
                running.append(
                    subprocess.Popen(
                        [programs / name, *options],
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        cwd=folder,
                    )
                )
        for url in (there.alertmanager, there.prometheus):
            there.until(partial(_is_up, url), f"{url} is up")
        yield there
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(_PATIENCE_S)


def _configure(folder: Path, *, metrics_port: int, am_port: int, webhook: str, token: str) -> None:
    rules = folder / "swaps.yaml"
    text = (ROOT / "dashboards" / "rules" / "swaps.yaml").read_text()
    rules.write_text(text.replace("for: 1m", "for: 0s"))
    config = {
        "global": {
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
            "evaluation_interval": "1s",
        },
        "rule_files": [str(rules)],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{am_port}"]}]}]
        },
        "scrape_configs": [
            {
                "job_name": "retuned",
                "static_configs": [{"targets": [f"127.0.0.1:{metrics_port}"]}],
            }
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    routes = {
        "route": {
            "receiver": "retuned",
            "group_by": ["alertname", "proposal"],
            "group_wait": "0s",
            "group_interval": "1s",
            "repeat_interval": "4h",
        },
        "receivers": [
            {
                "name": "retuned",
                "webhook_configs": [
                    {
                        "url": webhook,
                        "send_resolved": True,
                        "http_config": {"authorization": {"credentials": token}},
                    }
                ],
            }
        ],
    }
    (folder / "alertmanager.yaml").write_text(yaml.safe_dump(routes))


def of_alerts(history: Iterable[str]) -> str:
    """Return how an alert stands by a proposal's history: one that came back goes away again."""
    words = [what for what in history if what.startswith("alert-")]
    turns = ["alert-firing", "alert-resolved"] * len(words)
    assert words == turns[: len(words)], words
    return words[-1] if words else ""
