"""Grafana's dashboards, read as Grafana reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "dashboards"
FILES = sorted(FOLDER.glob("*.json"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query of one panel."""

    dashboard: str
    panel: str
    number: int
    expr: str

    @property
    def id(self) -> str:
        return f"{self.dashboard}-{self.panel}-{self.number}"

    def asked(self, *, within: str = "5m") -> str:
        """Return the query with Grafana's own words filled in."""
        filled = self.expr.replace("$__rate_interval", within).replace("$__range", within)
        return filled.replace("$namespace", ".*")


def dashboards() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in FILES:
        yield path.stem, json.loads(path.read_text("utf-8"))


def queries() -> list[Query]:
    return [
        Query(dashboard=name, panel=panel["title"], number=number, expr=target["expr"])
        for name, body in dashboards()
        for panel in body["panels"]
        for number, target in enumerate(panel["targets"])
    ]
