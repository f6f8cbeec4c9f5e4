"""What experiments on this machine make believe of a kernel, for ``retuned kernels show``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retuned import catalog
from retuned.adapters.sqlite_store import DATABASE, SqliteStore
from retuned.cli.output import say
from retuned.errors import RetunedError, UsageError
from retuned.lab.generators.priors import Outcomes, Priors, StructurePrior
from retuned.local.believed import LabEnvironment, learned, of_family
from retuned.local.earlier import arch_of, stored_findings
from retuned.ports import Store
from retuned.settings import load_settings

_MOST_POINTS = 5


def believed(config: Path | None, name: str) -> list[dict[str, Any]]:
    """Return one entry per language in which kernels of the operator were tried here.

    Empty where there is no state, or nothing of it can be read: what a kernel is can be said
    without.
    """
    folder = load_settings(config).state_dir
    if not (folder / DATABASE).is_file():
        return []
    try:
        store = SqliteStore(folder)
    except RetunedError as error:
        say(f"what is believed is not known: {error}")
        return []
    try:
        return [_entry(each) for each in _priors(store, name, now=datetime.now(UTC))]
    except RetunedError as error:
        say(f"what is believed is not known: {error}")
        return []
    finally:
        store.close()


def believed_lines(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what is believed as text."""
    for entry in entries:
        where = f"{entry['language']} on {entry['arch'] or 'this machine'}"
        yield (
            f"  believed of {where}: {entry['findings']} variants of {entry['experiments']} "
            f"experiments on {entry['family']}"
        )
        for each in entry["structures"]:
            failed = "; ".join(
                f"{each[name]:.0%} {name}"
                for name in ("unbuilt", "starved", "wrong")
                if each[name] > 0.0
            )
            text = f"    {each['structure']}: {each['gain_ratio']:.2f}x of incumbents"
            text += f" in {each['tried']} tries"
            yield text + (f" ({failed})" if failed else "")
        for each in entry["points"]:
            params = " ".join(f"{name}={value}" for name, value in each["params"].items())
            yield f"    best known: {each['structure']} {params} ({each['tried']} tries)"
        for each in entry["generators"]:
            yield (
                f"    {each['generator']}: {each['advantage_ratio']:.2f} times the average gain a "
                f"second in {each['turns']:.0f} turns"
            )


def _priors(store: Store, name: str, *, now: datetime) -> Iterator[Priors]:
    """Yield what is believed, by language; of the place where the newest experiment ran."""
    family = _family(name)
    done = of_family(store, family, family=_family)
    if not done or not family:
        return
    environment = str(done[-1].body.get("environment", ""))
    newest = next(iter(stored_findings(store, done[-1].id)), None)
    arch = arch_of(store, newest.verdict.evidence) if newest is not None else ""
    for language in catalog.languages(name):
        place = LabEnvironment(language=str(language), environment=environment, arch=arch)
        priors = learned(store, done, family=family, place=place, now=now)
        if priors.known:
            yield priors


def _family(definition: str) -> str:
    try:
        return catalog.get(definition).definition.op_type
    except UsageError:
        return ""


def _entry(priors: Priors) -> dict[str, Any]:
    return {
        "family": priors.family,
        "language": priors.language,
        "arch": priors.arch,
        "experiments": priors.experiments,
        "findings": priors.findings,
        "structures": [_structure(each) for each in priors.structures],
        "points": [
            {"structure": each.structure, "params": dict(each.params), "tried": each.tried}
            for each in priors.points[:_MOST_POINTS]
        ],
        "generators": [
            {
                "generator": each.generator,
                "advantage_ratio": round(each.advantage, 4),
                "turns": round(each.turns, 2),
            }
            for each in priors.generators
        ],
    }


def _structure(each: StructurePrior) -> dict[str, Any]:
    return {
        "structure": each.structure,
        "gain_ratio": round(math.exp(each.gain), 4),
        **_outcomes(each.outcomes),
        "values": [
            {
                "name": value.name,
                "value": value.value,
                "effect_ratio": round(math.exp(value.effect), 4),
                **_outcomes(value.outcomes),
            }
            for value in each.values
        ],
    }


def _outcomes(outcomes: Outcomes) -> dict[str, Any]:
    return {
        "tried": outcomes.tried,
        "weight": round(outcomes.weight, 4),
        "unbuilt": round(outcomes.unbuilt, 4),
        "starved": round(outcomes.starved, 4),
        "wrong": round(outcomes.wrong, 4),
    }
