"""Who is re-measured, and over how many re-measurements a win must be corrected. Pure.

An experiment that is interrupted and resumed is one experiment: every re-measurement that ever
began is a member of one family, and Holm's correction is over all of it. Who was measured is never
measured again. Once one finalist has been judged, nobody else is chosen: the chance of a false
promotion was given out then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from retuned.contract import Digest
from retuned.lab.notebook import FinalNote
from retuned.lab.statistics import holm
from retuned.stages.verdict import Interval, rank


@dataclass(frozen=True, slots=True)
class Family:
    """The re-measurements of an experiment beside those that are judged now."""

    others: tuple[float, ...] = ()
    """Their p-values; 1 where one began and nobody knows what it gave."""

    def size(self, finalists: int) -> int:
        """How many there are, with as many finalists of this run."""
        return len(self.others) + finalists

    def adjusted(self, p_values: Sequence[float]) -> tuple[float, ...]:
        """Correct the p-values of this run's finalists over the whole family (Holm).

        Examples
        --------
        >>> Family((1.0, 0.2)).adjusted([0.01])
        (0.03,)
        """
        return holm([*self.others, *p_values])[len(self.others) :]


def choose(
    results: Sequence[tuple[Digest, Interval]],
    *,
    notes: Mapping[Digest, FinalNote],
    judged: Collection[Digest],
    count: int,
) -> tuple[Digest, ...]:
    """Return this run's finalists: those of an interrupted run first, then the fastest.

    Parameters
    ----------
    results
        Speedups of the search, of candidates that are not judged yet.
    notes
        Finalists of earlier runs.
    judged
        Finalists whose verdict is out already.
    count
        Most finalists of one experiment.

    Examples
    --------
    >>> fast = Interval(lower=1.8, point=2.0, upper=2.2, confidence=0.95)
    >>> a, b = "sha256:" + "a" * 64, "sha256:" + "b" * 64
    >>> choose([(a, fast), (b, fast)], notes={}, judged=(), count=1) == (a,)
    True
    >>> begun = {b: FinalNote(candidate=b, begun=1)}
    >>> choose([(a, fast), (b, fast)], notes=begun, judged=(), count=1) == (b,)
    True
    >>> choose([(a, fast)], notes={}, judged=(b,), count=3)
    ()
    """
    there = {digest for digest, _ in results}
    earlier = [d for d, note in notes.items() if d in there and (note.begun or judged)]
    if judged:
        return tuple(earlier)
    fresh = [digest for digest in rank(results, count=count) if digest not in earlier]
    return (*earlier, *fresh[: max(0, count - len(earlier))])


def family_of(
    notes: Mapping[Digest, FinalNote], *, judged: Collection[Digest], now: Collection[Digest]
) -> Family:
    """Return the family beside the finalists of this run.

    Parameters
    ----------
    notes
        Every finalist, as noted before this run measures.
    judged
        Finalists whose verdict is out; one without a note counts with p = 1.
    now
        Finalists of this run.

    Examples
    --------
    >>> a = "sha256:" + "a" * 64
    >>> family_of({a: FinalNote(candidate=a, begun=2)}, judged=(), now=(a,)).others
    (1.0, 1.0)
    """
    others: list[float] = []
    for digest, note in notes.items():
        if note.ended is None:
            # in this run it begins once more, which is counted as this run's
            others += [1.0] * note.begun
            continue
        others += [1.0] * (note.begun - 1)
        if digest not in now:
            others.append(note.ended.p_value)
    others += [1.0 for digest in judged if digest not in notes]
    return Family(tuple(others))
