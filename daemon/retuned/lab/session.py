"""Session of one plan: all candidates pass the gates, the best are re-measured, all are judged.

Every candidate leaves one evidence document, rejected ones included: see `evidence`.

A pure part chooses the finalists and the family over which p-values are corrected.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from retuned.contract import Digest, Solution
from retuned.errors import HarnessError
from retuned.lab.evidence import (
    Contender,
    Weighing,
    ended_of,
    keep,
    p_value,
    search_interval,
    search_shapes,
    timed_from,
    write_document,
)
from retuned.lab.examiner import Examiner, Timed
from retuned.lab.harness.variant import Variant
from retuned.lab.journal import Ended, FinalNote, Note, Notebook
from retuned.lab.rejected_cache import definition_digest
from retuned.lab.resources import LabResources
from retuned.lab.statistics import holm
from retuned.ports import Finding
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.verdict import (
    Check,
    Freeze,
    Interval,
    JudgeSettings,
    Reason,
    Verdict,
    freeze_of,
    judge,
    rank,
)

__all__ = ["Contender", "Session"]


@dataclass(frozen=True, slots=True)
class Family:
    """The re-measurements of an experiment besides those that are judged now."""

    others: tuple[float, ...] = ()
    """Their p-values; 1 if one began and its result is unknown."""

    def size(self, finalists: int) -> int:
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

    `results` are search speedups of candidates without a verdict. `notes` are finalists of earlier
    runs, `judged` are finalists with a verdict. `count` bounds the finalists of one experiment.

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
    """Return the family besides the finalists `now` of this run.

    `notes` are the finalists as recorded before this run measures. `judged` are finalists with a
    verdict; one without a note counts with p = 1.

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


log = logging.getLogger(__name__)


class Session:
    """One run of one plan: candidates in, findings out.

    Evidence documents are stored under `root`. `notebook` records frozen candidates and those that
    passed the search.
    """

    def __init__(
        self,
        plan: ExperimentPlan,
        *,
        bay: LabResources,
        root: Path,
        incumbent: Solution,
        settings: JudgeSettings,
        notebook: Notebook,
    ) -> None:
        self._plan = plan
        self._bay = bay
        self._root = root
        self._weighing = Weighing(plan, bay, incumbent=incumbent, settings=settings)
        self._settings = settings
        self._notebook = notebook
        self._examiner = Examiner(bay)
        self._definition = definition_digest(bay.subject.definition)
        self.history: list[Finding] = []
        self.judged: set[Digest] = set()
        """Finalists with a verdict from before this run."""

    def know(self, known: Collection[Finding]) -> None:
        self.history.extend(known)
        self.judged |= {f.solution.digest for f in known if f.verdict.gate == "G6"}

    def recall(self, solution: Solution, before: Finding) -> None:
        """Adopt rejections of an earlier experiment, so that generators learn of them."""
        log.info(
            "candidate rejected by an earlier experiment: variant=%s reason=%s",
            solution.name,
            before.verdict.reason,
        )
        self.history.append(replace(before, solution=solution, seconds=0.0))

    def examine(self, solution: Solution) -> Contender:
        begin = time.monotonic()
        freeze, frozen = self._freeze(solution)
        contender = Contender(solution=solution, freeze=freeze, variant=None, checks=[frozen])
        if not contender.failed:
            contender.variant, checks = self._examiner.admit(solution)
            contender.checks += checks
        if contender.variant is not None:
            contender.checks += self._examiner.correct(contender.variant)
        if contender.variant is not None and not contender.failed:
            contender.search = self._examiner.search(contender.variant)
            contender.checks += contender.search.checks
            contender.interval = search_interval(contender.search)
        contender.spent_s = time.monotonic() - begin
        self.history.append(self._known(contender))
        if not contender.failed:
            self._notebook.write(
                Note(
                    solution=solution,
                    checks=tuple(contender.checks),
                    interval=contender.interval,
                    spent_s=contender.spent_s,
                )
            )
        return contender

    def resume(self, note: Note) -> Contender:
        """Restore a candidate of an interrupted run: it is compiled, not measured again."""
        freeze, frozen = self._freeze(note.solution)
        variant: Variant | None = None
        checks: tuple[Check, ...] = (frozen,)
        if frozen.reason is None:
            variant, admitted = self._examiner.admit(note.solution)
            checks = (frozen, *admitted)
        contender = Contender(
            solution=note.solution,
            freeze=freeze,
            variant=variant,
            checks=list(note.checks if variant is not None else checks),
            spent_s=note.spent_s,
            interval=note.interval if variant is not None else None,
        )
        self.history.append(self._known(contender))
        return contender

    def decide(self, contenders: Sequence[Contender], *, deadline: float) -> Iterator[Finding]:
        """Re-measure the best candidates and judge all.

        Raises
        ------
        HarnessError
            If no finalist could be measured.
        """
        notes = self._notebook.finals()
        chosen = choose(
            [(c.solution.digest, c.interval) for c in contenders if c.interval is not None],
            notes=notes,
            judged=self.judged,
            count=self._plan.budget.finalists,
        )
        for contender in contenders:
            if contender.solution.digest not in chosen:
                yield self.finding(contender)
        by_digest = {c.solution.digest: c for c in contenders}
        finalists = [by_digest[digest] for digest in chosen]
        family = family_of(notes, judged=self.judged, now=chosen)
        for contender in finalists:
            contender.chosen = True
            digest = contender.solution.digest
            self._notebook.write_final(notes.get(digest, FinalNote(candidate=digest)))
        self._measure_all(finalists, notes, family=family, deadline=deadline)
        yield from self._judge_finalists(finalists, family)

    def _measure_all(
        self,
        finalists: Sequence[Contender],
        notes: Mapping[Digest, FinalNote],
        *,
        family: Family,
        deadline: float,
    ) -> None:
        size = family.size(len(finalists))
        for number, contender in enumerate(finalists):
            note = notes.get(contender.solution.digest)
            if note is not None and note.ended is not None:
                self._take_up(contender, note.ended)
                continue
            left_s = deadline - time.monotonic()
            if number and left_s < 0.0:
                return  # the best comes first; the rest stays without a re-measurement
            share_s = max(left_s, 0.0) / (len(finalists) - number)
            try:
                self._measure(contender, note, finalists=size, share_s=share_s)
            except HarnessError as error:
                if all(each.final is None for each in finalists):
                    raise
                # earlier measurements stay valid; this failure is not evidence about a candidate
                log.error(
                    "finalist not re-measured: variant=%s: %s", contender.solution.name, error
                )
                detail = f"the lab failed: {error}"[:500]
                failed = Check(gate="G6", reason=Reason.HARNESS_FAILED, detail=detail)
                contender.checks.append(failed)
                return

    def _judge_finalists(self, finalists: Sequence[Contender], family: Family) -> Iterator[Finding]:
        measured = [(c, c.final) for c in finalists if c.final is not None]
        adjusted = family.adjusted([p_value(final, self._settings) for _, final in measured])
        # A chosen finalist without a measurement had no chance of a false win.
        size = family.size(len(measured))
        for (contender, _), p in zip(measured, adjusted, strict=True):
            yield self.finding(contender, adjusted_p=p, finalists=size)
        for contender in finalists:
            if contender.final is None:
                yield self.finding(contender)

    def finding(
        self, contender: Contender, *, adjusted_p: float = 1.0, finalists: int = 1
    ) -> Finding:
        evidence = self._weighing.evidence(contender, adjusted_p=adjusted_p, finalists=finalists)
        answer = judge(evidence, self._settings)
        document = write_document(
            contender,
            evidence,
            verdict=answer,
            plan=self._plan,
            bay=self._bay,
            settings=self._settings,
            tried=max(1, self._notebook.frozen()),
            finalists=finalists,
            written_at=datetime.now(UTC),
        )
        digest = keep(self._root, document)
        verdict = answer.model_copy(update={"evidence": digest})
        log.info(
            "candidate %s: %s, %s (%s)",
            contender.solution.name,
            verdict.status,
            verdict.reason,
            verdict.detail,
        )
        return self._found(contender, verdict)

    def _freeze(self, solution: Solution) -> tuple[Freeze, Check]:
        asked = freeze_of(solution, plan=self._plan.id, frozen_at=datetime.now(UTC))
        stands = self._notebook.freeze(asked)
        if stands.trust is not asked.trust:
            detail = f"was frozen as class {stands.trust}, comes again as class {asked.trust}"
            return stands, Check(gate="G0", reason=Reason.CONTRACT, detail=detail)
        detail = f"frozen at {stands.frozen_at.isoformat()}, class {stands.trust}"
        return stands, Check(gate="G0", detail=detail)

    def _measure(
        self, contender: Contender, note: FinalNote | None, *, finalists: int, share_s: float
    ) -> None:
        """Gate G6: measure until it is decided, or the finalist's share of time is up."""
        assert contender.variant is not None, "a finalist was timed"
        begin = time.monotonic()
        note = note or FinalNote(candidate=contender.solution.digest)
        note = note.model_copy(update={"begun": note.begun + 1})
        self._notebook.write_final(note)

        def decided(timed: Timed) -> bool:
            return self._weighing.is_decided(timed, contender, finalists=finalists)

        timed = self._examiner.final(contender.variant, decided=decided, until_s=begin + share_s)
        ended = ended_of(
            timed,
            self._plan.workloads,
            p_value=p_value(timed, self._settings),
            seconds=time.monotonic() - begin,
        )
        self._notebook.write_final(note.model_copy(update={"ended": ended}))
        self._take_up(contender, ended)

    def _take_up(self, contender: Contender, ended: Ended) -> None:
        contender.final = timed_from(ended)
        contender.checks += ended.checks
        contender.spent_s += ended.seconds

    def _known(self, contender: Contender) -> Finding:
        verdict = judge(self._weighing.evidence(contender), self._settings)
        if not verdict.shapes:  # kernel authors need the times, not only the ratio
            shapes = search_shapes(contender.search, self._plan.workloads)
            verdict = verdict.model_copy(update={"shapes": shapes})
        return self._found(contender, verdict)

    def _found(self, contender: Contender, verdict: Verdict) -> Finding:
        return Finding(
            solution=contender.solution,
            verdict=verdict,
            seconds=contender.spent_s,
            definition=self._definition,
        )
