"""One run of one plan: all candidates through the gates, the best once more, every one judged."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retuned.contract import Digest, Solution
from retuned.lab.bay import Bay
from retuned.lab.evidence import (
    Floor,
    adjusted_p_values,
    final_timing,
    gather,
    search_interval,
)
from retuned.lab.examiner import Examiner, Timed
from retuned.lab.harness.variant import Variant
from retuned.lab.notebook import Note, Notebook
from retuned.ports import Finding
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.verdict import Check, Interval, JudgeSettings, judge, rank

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Contender:
    """A candidate on its way through the gates."""

    solution: Solution
    """What is tried."""
    variant: Variant | None
    """Compiled; None where it did not come so far."""
    checks: list[Check]
    """Answers of the gates so far."""
    spent_s: float = 0.0
    """Wall time it cost so far."""
    search: Timed | None = None
    """Timing of gate G5."""
    interval: Interval | None = None
    """Production-weighted speedup of gate G5."""
    final: Timed | None = None
    """Timing of gate G6."""

    @property
    def failed(self) -> bool:
        """Whether a gate refused it."""
        return any(check.reason is not None for check in self.checks)


class Session:
    """One run of one plan: candidates in, findings out.

    Parameters
    ----------
    plan
        What is tried, and how long.
    bay
        Children and inputs.
    root
        Raw numbers are kept under it.
    incumbent
        The variant in production.
    settings
        Thresholds of the decision.
    notebook
        Where candidates that passed the search are noted.
    """

    def __init__(
        self,
        plan: ExperimentPlan,
        *,
        bay: Bay,
        root: Path,
        incumbent: Solution,
        settings: JudgeSettings,
        notebook: Notebook,
    ) -> None:
        self._plan = plan
        self._bay = bay
        self._root = root
        self._incumbent = incumbent
        self._settings = settings
        self._notebook = notebook
        self._examiner = Examiner(bay)
        self.history: list[Finding] = []

    def examine(self, solution: Solution) -> Contender:
        """Take a candidate through G1 to G5, cheapest first."""
        begin = time.monotonic()
        variant, checks = self._examiner.admit(solution)
        contender = Contender(solution=solution, variant=variant, checks=list(checks))
        if variant is not None:
            contender.checks += self._examiner.correct(variant)
        if variant is not None and not contender.failed:
            contender.search = self._examiner.search(variant)
            contender.checks += contender.search.checks
            contender.interval = search_interval(contender.search)
        contender.spent_s = time.monotonic() - begin
        self.history.append(self.finding(contender))
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
        """Take up a candidate where an interrupted run left it: compiled, not measured again."""
        variant, checks = self._examiner.admit(note.solution)
        contender = Contender(
            solution=note.solution,
            variant=variant,
            checks=list(note.checks if variant is not None else checks),
            spent_s=note.spent_s,
            interval=note.interval if variant is not None else None,
        )
        self.history.append(self.finding(contender))
        return contender

    def decide(self, contenders: Sequence[Contender], *, deadline: float) -> Iterator[Finding]:
        """Re-measure the best from zero and judge everybody."""
        ranked = rank(
            [(c.solution.digest, c.interval) for c in contenders if c.interval is not None],
            count=self._plan.budget.finalists,
        )
        for contender in contenders:
            if contender.solution.digest not in ranked:
                yield self.finding(contender)
        by_digest = {c.solution.digest: c for c in contenders}
        finalists = [by_digest[digest] for digest in ranked]
        for number, contender in enumerate(finalists):
            if number and time.monotonic() > deadline:
                break  # the best comes first; the rest stays without a re-measurement
            assert contender.variant is not None
            begin = time.monotonic()
            contender.final = self._examiner.final(contender.variant)
            contender.checks += contender.final.checks
            contender.spent_s += time.monotonic() - begin
        measured = [c for c in finalists if c.final is not None]
        adjusted = adjusted_p_values(
            [c.final for c in measured if c.final is not None], self._settings
        )
        for contender, p_value in zip(measured, adjusted, strict=True):
            yield self.finding(contender, adjusted_p=p_value, finalists=len(measured))
        for contender in finalists[len(measured) :]:
            yield self.finding(contender)

    def finding(
        self, contender: Contender, *, adjusted_p: float = 1.0, finalists: int = 1
    ) -> Finding:
        """Judge what is known of a contender."""
        timing = None
        if contender.final is not None and contender.final.passed and contender.variant:
            timing = final_timing(
                contender.final,
                workloads=self._plan.workloads,
                floor=self._floor(contender.variant),
                adjusted_p=adjusted_p,
                finalists=finalists,
                settings=self._settings,
            )
        evidence = gather(
            contender.solution.digest,
            self._incumbent.digest,
            checks=contender.checks,
            search=contender.interval,
            finalist=contender.final is not None,
            timing=timing,
            raw=self._keep(contender) if contender.final is not None else None,
        )
        verdict = judge(evidence, self._settings)
        log.info(
            "candidate %s: %s, %s (%s)",
            contender.solution.name,
            verdict.status,
            verdict.reason,
            verdict.detail,
        )
        return Finding(solution=contender.solution, verdict=verdict, seconds=contender.spent_s)

    def _floor(self, variant: Variant) -> Floor:
        bay = self._bay
        return lambda axes: bay.toolchain.floor_us(
            bay.subject.definition, axes, parts=variant.parts
        )

    def _keep(self, contender: Contender) -> Digest:
        """Keep the raw numbers under their digest, beside the artifacts."""
        body = {
            "candidate": contender.solution.digest,
            "incumbent": self._incumbent.digest,
            "plan": self._plan.id,
            "environment": self._bay.toolchain.environment().model_dump(mode="json"),
            "checks": [check.model_dump(mode="json") for check in contender.checks],
            "search": _raw(contender.search),
            "final": _raw(contender.final),
        }
        data = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        digest = hashlib.sha256(data).hexdigest()
        folder = self._root / "evidence"
        folder.mkdir(exist_ok=True)
        partial = folder / f".{digest}.partial"
        partial.write_bytes(data)
        partial.replace(folder / f"{digest}.json")
        return f"sha256:{digest}"


def _raw(timed: Timed | None) -> dict[str, Any] | None:
    if timed is None:
        return None
    return {
        side: [
            {
                "weight": samples.weight,
                "incumbent_us": [round(value, 3) for value in samples.incumbent_us.tolist()],
                "candidate_us": [round(value, 3) for value in samples.candidate_us.tolist()],
                "block": samples.block.tolist(),
            }
            for samples in group
        ]
        for side, group in (("candidate", timed.samples), ("clone", timed.clones))
    }
