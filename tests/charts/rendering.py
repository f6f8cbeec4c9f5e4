"""Helm in a process of its own: its Go runtime would change the signals of the one that tests.

``Helm`` starts one worker and asks it line by line; this file is the worker as well.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "retuned"
LIBRARY = ROOT / "charts" / "retuned-lib"
CI = sorted((CHART / "ci").glob("*-values.yaml"))
Values = Mapping[str, Any]
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where it is there


class Refused(Exception):
    """Helm did not render; says why."""


class Helm:
    """Renders charts until it is left."""

    def __enter__(self) -> Self:
        self._worker = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.close()
        self._worker.wait(150)
        self._worker.stdout.close()

    def files(self, values: Values, *, chart: Path = CHART, **how: Any) -> dict[str, str]:
        """Return what each template becomes, by its path.

        Raises
        ------
        Refused
            If the values break the schema, or a template fails.
        """
        found: dict[str, str] = self._ask("render", chart=str(chart), values=values, how=how)
        return found

    def objects(self, values: Values, **how: Any) -> list[dict[str, Any]]:
        """Return all objects, hooks included."""
        return list(documents(self.files(values, **how)))

    def lint(self, values: Values) -> list[dict[str, Any]]:
        """Return what Helm finds fault with; severity 2 is a warning, 3 an error."""
        found: list[dict[str, Any]] = self._ask("lint", chart=str(CHART), values=values, how={})
        return found

    def _ask(self, what: str, **question: Any) -> Any:
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.write(json.dumps({"what": what, **question}) + "\n")
        self._worker.stdin.flush()
        line = self._worker.stdout.readline()
        assert line, "Helm's worker ended by itself"
        answer = json.loads(line)
        if "refused" in answer:
            raise Refused(answer["refused"])
        return answer["done"]


def documents(files: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the objects of rendered files."""
    for path, text in files.items():
        if path.endswith(".yaml"):
            yield from filter(None, yaml.load_all(text, Loader=_LOADER))


def values_of(path: Path) -> dict[str, Any]:
    """Return the values of a file."""
    found: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return found


def _serve() -> None:
    import helm_python as helm

    def done(question: dict[str, Any]) -> object:
        chart, values = question["chart"], question["values"]
        if question["what"] == "lint":
            return helm.lint(chart, values, namespace="retuned", strict=True)["messages"]
        how = {"name": "retuned", "namespace": "retuned"} | question["how"]
        with helm.Chart.load(chart) as loaded:
            return loaded.render(values, **how)

    for line in sys.stdin:
        try:
            answer: dict[str, object] = {"done": done(json.loads(line))}
        except helm.HelmError as error:
            answer = {"refused": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
