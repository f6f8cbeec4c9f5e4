"""Real Prometheus and Alertmanager processes of the user who runs the tests."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from tests.plane.control_plane import free_ports

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    """Where they are."""

    alertmanager: str
    prometheus: str
    folder: Path

    def alerts(self) -> list[Any]:
        """Return what stands in Alertmanager."""
        answer = httpx.get(f"{self.alertmanager}/api/v2/alerts", timeout=10.0)
        assert answer.status_code == 200, answer.text
        return list(answer.json())

    def ask(self, query: str) -> list[Any]:
        """Return the series that a query finds in Prometheus."""
        answer = httpx.get(f"{self.prometheus}/api/v1/query", params={"query": query}, timeout=20.0)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["data"]["result"])

    def until(self, reached: Callable[[], object], what: str) -> None:
        """Wait for something, and show both logs where it does not come."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while not _reached(reached):
            if time.monotonic() > deadline_s:
                logs = [path.read_text()[-3000:] for path in sorted(self.folder.glob("*.log"))]
                raise AssertionError(f"it did not come to it that {what}: {logs}")
            time.sleep(0.1)


def _reached(reached: Callable[[], object]) -> bool:
    try:
        return bool(reached())
    except httpx.TransportError:  # it is starting
        return False


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
            there.until(lambda u=url: httpx.get(f"{u}/-/ready").status_code == 200, f"{url} is up")  # type: ignore[misc]
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
