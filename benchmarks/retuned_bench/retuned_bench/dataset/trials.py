"""What the store holds, one experiment at a time: memory does not grow with the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from retuned.contract import Digest, Solution
from retuned.errors import UnreadableInput
from retuned.ports import Finding, Store, Stored
from retuned.stages.experiment import ExperimentPlan, Turn
from retuned.stages.verdict import Verdict

_T = TypeVar("_T")
_RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedExperiment:
    """One experiment that has ended."""

    plan: ExperimentPlan
    """What was to be done."""
    findings: tuple[Finding, ...]
    """What was tried, in the order in which it was proposed as far as that is known."""
    generators: Mapping[Digest, str]
    """Who proposed a candidate, where that was kept."""


def trials(store: Store) -> Iterator[EndedExperiment | None]:
    """Yield every experiment, oldest first; None for one that is still running.

    Raises
    ------
    UnreadableInput
        If a record is not what its kind says.
    """
    for id in store.ids("experiment"):
        stored = store.get("experiment", id)
        if stored is None:
            continue
        yield None if stored.phase == _RUNNING else _trial(store, stored)


def tried(store: Store, digest: Digest) -> Solution | None:
    """Return a variant that any experiment tried; None if none did."""
    for id in store.ids("experiment"):
        stored = store.get("finding", f"{id}/{digest}")
        if stored is not None:
            return _finding(stored).solution
    return None


def _trial(store: Store, stored: Stored) -> EndedExperiment:
    plan = _read(stored, ExperimentPlan.model_validate)
    found = [
        _finding(record)
        for id in store.ids("finding", prefix=f"{stored.id}/")
        if (record := store.get("finding", id)) is not None
    ]
    turns = _turns(store, stored.id)
    order = [digest for turn in turns for digest in turn.proposed]
    place = {digest: number for number, digest in reversed(list(enumerate(order)))}
    found.sort(key=lambda each: place.get(each.solution.digest, len(order)))  # stable
    return EndedExperiment(
        plan=plan,
        findings=tuple(found),
        generators={d: turn.generator for turn in reversed(turns) for d in turn.proposed},
    )


def _turns(store: Store, experiment: str) -> Sequence[Turn]:
    stored = store.get("turns", experiment)
    if stored is None:
        return ()
    return _read(stored, lambda body: [Turn.model_validate(each) for each in body["turns"]])


def _finding(stored: Stored) -> Finding:
    return _read(
        stored,
        lambda body: Finding(
            solution=Solution.model_validate(body["solution"]),
            verdict=Verdict.model_validate(body["verdict"]),
            seconds=float(body["seconds"]),
        ),
    )


def _read(stored: Stored, make: Callable[[Mapping[str, Any]], _T]) -> _T:
    try:
        return make(stored.body)
    except (ValidationError, KeyError, TypeError, ValueError) as error:
        raise UnreadableInput(
            "record-unreadable",
            where=f"{stored.kind} {stored.id}",
            message="does not read as what it should be; it was written by another version or "
            "changed by hand. Nothing was written",
        ) from error
