"""From a won variant to the change of a server's file: text, digest, and what it is made on. Pure.

The text is what is signed. It names the digest of the file that it was made for, so that a server
refuses it once somebody has changed the file; and every batch size that it may change.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from retuned.configured.records import MAX_M, FileChange, Look, Row, TunedFileStep
from retuned.configured.tables import TABLES, body_of
from retuned.configured.variants import row_of
from retuned.contract import Guard, Solution
from retuned.errors import CandidateError

AXIS = "M"
"""The one variable axis of a kernel that a file configures: tokens in the step."""


def change_of(
    subject: TunedFileStep, solution: Solution, guard: Guard, *, look: Look, under: str = ""
) -> FileChange:
    """Return what is written for a won variant.

    Parameters
    ----------
    subject
        The step that was tuned.
    solution
        What won.
    guard
        Batch sizes that it is for.
    look
        What the server picks at this moment.
    under
        Proposal whose change the file has already; empty where the file is the original's.

    Raises
    ------
    CandidateError
        ``not-a-row``; ``guard-beyond-step`` where it is for sizes that get another row today;
        ``file-changed`` where the server picks something else by now; ``nothing-to-change``.
    """
    low, high = _range(guard, subject)
    if not under and not _picks(look, low, high, subject.run.row):
        detail = f"{look.path} is not what was measured against: it has changed since"
        raise CandidateError("file-changed", detail=detail[:500])
    row = row_of(solution, subject)
    if _picks(look, low, high, row):
        raise CandidateError("nothing-to-change", detail=f"{look.path} says this already"[:500])
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
    """Whether the server picks one row from one size to another."""
    touched = [run for run in look.runs if run.first <= high and low <= run.last]
    return all(_same(run.row, row) for run in touched)


def _same(one: Row, other: Row) -> bool:
    typed = [{name: (type(v), v) for name, v in each.items()} for each in (one, other)]
    return typed[0] == typed[1]
