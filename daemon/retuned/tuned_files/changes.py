"""File changes for a won variant, and the choice of the step to tune. Pure.

The text of a change is signed. It names the digest of the file that it was made for, so a server
refuses it after the file was edited, and every batch size that it may change.

Experiments tune the step of a file with the most GPU time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retuned.contract import Digest, Guard, Solution
from retuned.errors import CandidateError
from retuned.tuned_files.formats import TABLES, body_of, choices_of
from retuned.tuned_files.launches import incumbent_of, row_of
from retuned.tuned_files.records import (
    MAX_M,
    FileChange,
    Format,
    Look,
    PickedRun,
    Row,
    TunedFileStep,
)

AXIS = "M"
"""The only variable axis of a kernel that a file configures: tokens in the step."""


def change_of(
    subject: TunedFileStep, solution: Solution, guard: Guard, *, look: Look, under: str = ""
) -> FileChange:
    """Return the file change for a won variant.

    `guard` holds the batch sizes of the change. `look` is the server's current selection. `under`
    is the proposal whose change the file already has; empty for the original file.

    Raises
    ------
    CandidateError
        ``not-a-row``, ``guard-beyond-step``, ``file-changed`` or ``nothing-to-change``.
    """
    low, high = _range(guard, subject)
    if not under and not _picks(look, low, high, subject.run.row):
        detail = f"{look.path} has changed since the measurement"
        raise CandidateError("file-changed", detail=detail[:500])
    row = row_of(solution, subject)
    if _picks(look, low, high, row):
        raise CandidateError(
            "nothing-to-change", detail=f"{look.path} already has this content"[:500]
        )
    table = subject.format in TABLES
    body = body_of(subject, row, look=look, low=low, high=high) if table else None
    text = json.dumps(
        {**(body or _of_moe(subject, row, look, low, high)), "before": look.digest}, sort_keys=True
    )
    return FileChange(
        definition=subject.definition,
        format=subject.format,
        digest="sha256:" + hashlib.sha256(text.encode()).hexdigest(),
        text=text,
        path=look.path,
        under=under,
    )


def _of_moe(subject: TunedFileStep, row: Row, look: Look, low: int, high: int) -> dict[str, Any]:
    body: dict[str, Any] = {
        "format": subject.format,
        "guard": [[low, None if high == MAX_M else high]],
        "rows": [{"M": low, "config": row}],
        "lookup": subject.lookup,
    }
    if look.digest is None:
        body["defaults"] = [
            [run.first, None if run.last == MAX_M else run.last, run.row] for run in look.runs
        ]
    return body


def _range(guard: Guard, subject: TunedFileStep) -> tuple[int, int]:
    low, high = guard.bounds.get(AXIS, (subject.run.first, subject.run.last))
    low = max(1, low)
    if set(guard.bounds) - {AXIS} or not subject.run.first <= low <= high <= subject.run.last:
        detail = f"{guard} is not within {subject.run.first} <= M <= {subject.run.last}"
        raise CandidateError("guard-beyond-step", detail=detail)
    return low, high


def _picks(look: Look, low: int, high: int, row: Row) -> bool:
    touched = [run for run in look.runs if run.first <= high and low <= run.last]
    return all(_same(run.row, row) for run in touched)


def _same(one: Row, other: Row) -> bool:
    typed = [{name: (type(v), v) for name, v in each.items()} for each in (one, other)]
    return typed[0] == typed[1]


_LEAST_CHOICES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """GPU time of launches of a bucket of batch sizes."""

    low: int
    high: int
    gpu_time_ns: int


def inside(run: PickedRun, *, low: int, high: int) -> bool:
    """Whether a whole bucket of batch sizes gets one row.

    In a bucket that straddles a step, the row of a launch is unknown.
    """
    return run.first <= low and high <= run.last


def choose(
    definition: str,
    look: Look,
    costs: Sequence[Cost],
    *,
    format: Format,
    lookup: Mapping[str, Any],
    tested: Collection[Digest] = (),
) -> TunedFileStep:
    """Return the step worth an experiment; untested steps come first.

    `look` is the server's current selection, `costs` the launches. `format` and `lookup` find the
    file. `tested` holds rows, as digests of their lab variants, that had an experiment.

    Raises
    ------
    CandidateError
        ``no-step-covers`` where every bucket straddles a step, ``row-does-not-map`` where the lab's
        kernel cannot be launched with the row of any step that is used, or ``no-other-row`` of a
        table that has nothing else to try.
    """
    spent = [
        (sum(c.gpu_time_ns for c in costs if inside(run, low=c.low, high=c.high)), run)
        for run in look.runs
    ]
    used = sorted((each for each in spent if each[0] > 0), key=lambda each: -each[0])
    if not used:
        detail = f"no launch of {definition} lies within one step of {look.path}"
        raise CandidateError("no-step-covers", detail=detail[:500])
    choices = choices_of(look.runs) if format in TABLES else ()
    if format in TABLES and len(choices) < _LEAST_CHOICES:
        detail = f"{look.path} has no other row for {definition} that could be tried"
        raise CandidateError("no-other-row", detail=detail[:500])
    problem: CandidateError | None = None
    possible: list[tuple[bool, PickedRun]] = []
    for _, run in used:
        try:
            possible.append(
                (incumbent_of(definition, run.row, format=format).digest in tested, run)
            )
        except CandidateError as error:
            problem = problem or error
    if not possible:
        assert problem is not None, "every step that is used was refused"
        raise problem
    return TunedFileStep(
        definition=definition,
        format=format,
        lookup=dict(lookup),
        path=look.path,
        digest=look.digest,
        run=min(possible, key=lambda each: each[0])[1],
        choices=choices,
    )
