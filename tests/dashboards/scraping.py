"""A real Prometheus that scrapes programs in this process."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import httpx
import yaml
from tests.plane.control_plane import free_ports

_PATIENCE_S = 180.0


class Prometheus:
    """Scrapes jobs by port, as the chart's PodMonitor does.

    Parameters
    ----------
    programs
        Folder with Prometheus.
    folder
        Where it keeps what it has scraped.
    jobs
        By name: port, and labels that the scrape adds.
    """

    def __init__(
        self, programs: Path, folder: Path, jobs: Mapping[str, tuple[int, Mapping[str, str]]]
    ) -> None:
        self._programs, self._folder = programs, folder
        self._jobs = jobs
        (self.port,) = free_ports(1)
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60.0)
        self._process: subprocess.Popen[bytes] | None = None
        self._moment_s = 0.0
        """When all was scraped last: what is asked for then stays as it is."""

    def __enter__(self) -> Self:
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [
                {
                    "job_name": job,
                    "honor_labels": True,
                    "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": dict(labels)}],
                }
                for job, (port, labels) in self._jobs.items()
            ],
        }
        path = self._folder / "prometheus.yaml"
        path.write_text(yaml.safe_dump(config))
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    self._programs / "prometheus",
                    f"--config.file={path}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.until(lambda: len(self.ask("up == 1")) == len(self._jobs), "every job is scraped")
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_PATIENCE_S)

    def seen(self, query: str) -> list[Any]:
        """Return the series that a query found when everything was scraped last.

        Asked for now there may be none, whenever a scrape was late.
        """
        return self.ask(query, at_s=self._moment_s)

    def ask(self, query: str, *, at_s: float | None = None) -> list[Any]:
        """Return the series that a query finds; nothing while Prometheus starts."""
        asked = {"query": query} | ({} if at_s is None else {"time": f"{at_s:.3f}"})
        try:
            answer = self._client.get("/api/v1/query", params=asked)
        except httpx.TransportError:
            return []
        if answer.status_code == 503:
            return []
        assert answer.status_code == 200, answer.text
        return list(answer.json()["data"]["result"])

    def scraped(self) -> None:
        """Wait until each job was scraped twice more: what was just counted is in, and a rate."""
        before = time.time() + 1.1

        def again() -> bool:
            found = self.ask(f"timestamp(up == 1) > {before}")
            self._moment_s = max((float(each["value"][1]) for each in found), default=0.0)
            return len(found) == len(self._jobs)

        self.until(again, "everything is scraped again")

    def until(self, reached: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not reached():
            if time.monotonic() > deadline:
                log = (self._folder / "prometheus.log").read_text()[-2_000:]
                raise AssertionError(f"it did not come to it that {what}: {log}")
            time.sleep(0.1)
