"""What is known of the candidates of one plan, as the evidence that they are judged by."""

from __future__ import annotations

from collections.abc import Sequence

from retuned.contract import Solution
from retuned.lab.bay import LabResources
from retuned.lab.evidence import Floor, final_timing, gather, p_value
from retuned.lab.examiner import Timed
from retuned.lab.harness.variant import Variant
from retuned.lab.writing import Contender
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.verdict import Check, Evidence, JudgeSettings, Timing, is_settled


class Weighing:
    """Evidence about the candidates of one plan.

    Parameters
    ----------
    plan
        Whose shapes weigh how much.
    bay
        Knows how fast a device could be at best.
    incumbent
        The variant in production.
    settings
        Thresholds of the decision.
    """

    def __init__(
        self,
        plan: ExperimentPlan,
        bay: LabResources,
        *,
        incumbent: Solution,
        settings: JudgeSettings,
    ) -> None:
        self._plan = plan
        self._bay = bay
        self._incumbent = incumbent
        self._settings = settings

    def evidence(
        self, contender: Contender, *, adjusted_p: float = 1.0, finalists: int = 1
    ) -> Evidence:
        """Return what is known of a contender, its re-measurement included where it passed.

        Parameters
        ----------
        contender
            Anybody of the plan.
        adjusted_p
            Chance that the re-measurement misleads, adjusted for all finalists.
        finalists
            How many were measured together.
        """
        timing = None
        if contender.final is not None and contender.final.passed:
            timing = self._timing(
                contender.final, contender, adjusted_p=adjusted_p, finalists=finalists
            )
        return self._gathered(contender, timing=timing)

    def is_decided(self, timed: Timed, contender: Contender, *, finalists: int) -> bool:
        """Whether more samples would not change what is judged of a finalist."""
        # Before the others are measured Holm's adjustment can be at most this.
        adjusted = min(1.0, finalists * p_value(timed, self._settings))
        timing = self._timing(timed, contender, adjusted_p=adjusted, finalists=finalists)
        evidence = self._gathered(contender, timing=timing, checks=timed.checks)
        return is_settled(evidence, self._settings)

    def _gathered(
        self, contender: Contender, *, timing: Timing | None, checks: Sequence[Check] = ()
    ) -> Evidence:
        return gather(
            contender.solution.digest,
            self._incumbent.digest,
            checks=[*contender.checks, *checks],
            search=contender.interval,
            finalist=contender.chosen,
            timing=timing,
        )

    def _timing(
        self, timed: Timed, contender: Contender, *, adjusted_p: float, finalists: int
    ) -> Timing | None:
        assert contender.variant is not None, "a finalist was compiled"
        return final_timing(
            timed,
            workloads=self._plan.workloads,
            floor=self._floor(contender.variant),
            adjusted_p=adjusted_p,
            finalists=finalists,
            settings=self._settings,
        )

    def _floor(self, variant: Variant) -> Floor:
        bay = self._bay
        return lambda axes: bay.toolchain.floor_us(
            bay.subject.definition, axes, parts=variant.parts
        )
