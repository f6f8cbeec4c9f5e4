"""Which step of a file experiments are about: the one that most GPU time goes through. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retuned.configured.records import Format, Look, PickedRun, TunedFileStep
from retuned.configured.tables import TABLES, choices_of
from retuned.configured.variants import incumbent_of
from retuned.contract import Digest
from retuned.errors import CandidateError

_LEAST_CHOICES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """GPU time of launches of some batch sizes."""

    low: int
    """Least size of the bucket."""
    high: int
    """Largest."""
    gpu_time_ns: int
    """Sum of durations."""


def inside(run: PickedRun, *, low: int, high: int) -> bool:
    """Whether a whole bucket of batch sizes gets one row.

    Of a bucket that straddles a step nobody can say which row its launches had.
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
    """Return the step that is worth an experiment: one that had none comes before one that had.

    Parameters
    ----------
    definition
        Kernel of the catalog that stands for the server's.
    look
        What the server picks.
    costs
        What was launched.
    format, lookup
        What finds the file.
    tested
        Rows, as digests of what they are in the lab, that experiments were about.

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
