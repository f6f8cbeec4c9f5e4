"""Experiments on a living server without the daemon: its tunables, searched one after the other.

The same records, child process and search as the daemon's; no proposal, gate or evidence.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.vllm_live.toggles import Toggles

from retuned.runtime.tunables.records import bucket, canonical
from retuned.tunables.process import ChildProcess
from retuned.tunables.tune import ClassResult, rules_of, tune_class

_MOST_CLASSES = 4


def search(
    toggles: Toggles, folder: Path, *, device: str, pausing: bool, until_s: float
) -> tuple[list[str], list[dict[str, Any]]]:
    """Search all tunables; return tables that won, and what was measured.

    Parameters
    ----------
    device
        Value of ``CUDA_VISIBLE_DEVICES`` for the experiments.
    pausing
        Whether the server is paused while candidates are timed: they share its GPU.
    until_s
        Moment of the monotonic clock.
    """
    report = toggles.report()
    tables: list[str] = []
    measured: list[dict[str, Any]] = []
    with ChildProcess(report["environment"], device=device, folder=folder) as child:
        measured.append({"child": child.hello})
        for tunable in sorted(report["tunables"], key=_time_us, reverse=True):
            if time.monotonic() > until_s or tunable["refused"]:
                break
            results = []
            for recipe in _recipes(toggles, tunable):
                if time.monotonic() > until_s:
                    break
                found = tune_class(
                    child,
                    tunable,
                    recipe,
                    exclusive=lambda: _paused(toggles) if pausing else contextlib.nullcontext(),
                    deadline_s=until_s,
                )
                results.append(found)
                measured.append({"tunable": tunable["id"], **_plain(found)})
                print(tunable["id"], {**_plain(found), "trials": len(found.trials)}, flush=True)
                if not child.alive:
                    return tables, measured
            table = _table(tunable, results)
            if table is not None:
                tables.append(table)
    return tables, measured


def described(toggles: Toggles) -> dict[str, Any]:
    """Return what experiments on the tunables of this server need, without the server.

    ``environment``, and ``tunables`` with ``report`` and ``recipes``, the most time first.
    """
    report = toggles.report()
    tunables = [each for each in report["tunables"] if not each["refused"]]
    return {
        "environment": report["environment"],
        "tunables": [
            {"report": each, "recipes": _recipes(toggles, each)}
            for each in sorted(tunables, key=_time_us, reverse=True)
        ],
    }


def _time_us(tunable: Mapping[str, Any]) -> float:
    return sum(_class_us(each) for each in tunable["asked"])


def _class_us(asked: Mapping[str, Any]) -> float:
    mean_us = asked["timed_us"] / asked["timed"] if asked["timed"] else 1.0
    return float(mean_us * (asked["launches"] - asked["captured"]))


def _recipes(toggles: Toggles, tunable: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the recipes of the classes with the most time, and of captured decode steps."""
    every: list[dict[str, Any]] = []
    offset: int | None = 0
    while offset is not None:
        said = toggles.ask({"op": "tunable-recipes", "id": tunable["id"], "offset": offset})
        every += said["recipes"]
        offset = said["next"]
    times = {canonical(each["axes"]): _class_us(each) for each in tunable["asked"]}
    ranked = sorted(every, key=lambda each: -times.get(_classed(each), 0.0))[:_MOST_CLASSES]
    decode = [
        each
        for each in every
        if each["axes"].get("decode") == 1 and each["call"].get("lengths") and each not in ranked
    ]
    steps = [step for each in decode for step in each["call"]["lengths"]]
    size = max((len(step["queries"]) for step in steps), default=0)
    return ranked + [each for each in decode if each["axes"]["rows"] == size][:1]


def _classed(recipe: Mapping[str, Any]) -> str:
    return canonical({name: bucket(value) for name, value in recipe["axes"].items()})


def _plain(result: ClassResult) -> dict[str, Any]:
    return dataclasses.asdict(result)


def _table(tunable: Mapping[str, Any], results: list[ClassResult]) -> str | None:
    rules = rules_of(results)
    if not rules:
        return None
    captures = [
        {"size": each.axes["rows"], "axes": {"longest": each.axes["longest"]}}
        for each in results
        if each.best is not None and each.axes.get("decode") == 1
    ]
    return canonical(
        {
            "format": "table",
            "tunable": tunable["id"],
            "family": tunable["family"],
            "source": tunable["source"],
            "rules": rules,
            "captures": captures,
            "before": None,
        }
    )


@contextlib.contextmanager
def _paused(toggles: Toggles) -> Iterator[None]:
    name = f"benchmark-{time.monotonic_ns()}"
    toggles.ask({"op": "tunable-pause", "id": name, "seconds": 1.5})
    try:
        yield
    finally:
        toggles.ask({"op": "tunable-resume", "id": name})
