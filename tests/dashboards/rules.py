"""The rules and their tests, read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "dashboards" / "rules"
RUNBOOKS = ROOT / "docs" / "runbooks"
_METRIC = re.compile(r"\bretuned_[a-z0-9_]+\b")
_SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One alert of one file."""

    file: str
    name: str
    expr: str
    body: dict[str, Any]

    @property
    def id(self) -> str:
        """Return what tells it apart from others."""
        elapsed = self.body["labels"].get("elapsed", "")
        return f"{self.name}-{elapsed}" if elapsed else self.name


def files() -> list[Path]:
    return sorted(path for path in RULES.glob("*.yaml") if not path.stem.endswith("_test"))


def alerts() -> list[Rule]:
    return [
        Rule(file=path.name, name=body["alert"], expr=body["expr"], body=body)
        for path in files()
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]
        for body in group["rules"]
    ]


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each block of the tests, with the name of its file."""
    for path in sorted(RULES.glob("*_test.yaml")):
        for block in yaml.safe_load(path.read_text("utf-8"))["tests"]:
            yield path.name, block


def metrics_in(query: str) -> set[str]:
    """Return the metrics that a query names, histograms by their own name."""
    found = set()
    for name in _METRIC.findall(query):
        for suffix in _SUFFIXES:
            name = name.removesuffix(suffix)
        found.add(name)
    return found


def matchers_in(query: str) -> Iterator[tuple[str, str]]:
    """Yield metric and label of each matcher of a query."""
    for name, inside in re.findall(r"\b(retuned_[a-z0-9_]+)\{([^}]*)\}", query):
        for suffix in _SUFFIXES:
            name = name.removesuffix(suffix)
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside):
            yield name, label
