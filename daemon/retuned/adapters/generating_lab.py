"""The lab of a pod that reaches a model: has variants written, and neither compiles nor runs them.

What it finds are sources. Each goes on as any stranger's code: through the contract, a compiler and
all gates of those who measure, who reach nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping

from retuned.adapters.unmeasured_lab import UnmeasuredLab, unmeasured
from retuned.contract import Digest, TrustClass
from retuned.errors import HarnessError, Refused, TemporaryError, UnreadableInput
from retuned.lab.remembering import definition_digest
from retuned.lab.subject import KernelUnderTest
from retuned.ports import Finding, Generator
from retuned.stages.experiment import ExperimentPlan

log = logging.getLogger(__name__)

_AT_A_TIME = 4
"""Variants that are asked for before the next look at the time."""


class GeneratingLab(UnmeasuredLab):
    """Asks one generator for variants until it has no more, or the plan's budget ends.

    Parameters
    ----------
    subject
        What is tuned.
    generator
        Who writes; None where nobody may be asked now.
    """

    def __init__(self, subject: KernelUnderTest, generator: Generator | None) -> None:
        super().__init__()
        self._subject = subject
        self._generator = generator

    def run(self, plan: ExperimentPlan, *, known: Mapping[Digest, Finding]) -> Iterator[Finding]:
        """Yield a finding per variant, which says nothing of it but that it is there.

        Raises
        ------
        HarnessError
            If there is none, because the model cannot be asked.
        """
        if self._generator is None:
            log.warning("no model is asked: the day's money is spent")
            return
        definition = self._subject.definition
        named, history = definition_digest(definition), list(known.values())
        until = time.monotonic() + plan.budget.max_seconds
        while len(history) < plan.budget.max_candidates and time.monotonic() < until:
            if self._stop.is_set():
                return
            begin = time.monotonic()
            room = min(_AT_A_TIME, plan.budget.max_candidates - len(history))
            try:
                written = self._generator.propose(
                    definition, plan.workloads, history=tuple(history), count=room
                )
            except (Refused, TemporaryError, UnreadableInput) as error:
                if not history:
                    raise HarnessError(f"the model wrote nothing: {error}") from error
                log.warning("the model writes no more: %s", error)
                return
            if not written:
                return
            took_s = (time.monotonic() - begin) / len(written)
            for solution in written:
                found = unmeasured(
                    solution.model_copy(update={"trust": TrustClass.GENERATED}),
                    plan,
                    checks=(),
                    detail="written, and looked at by nobody",
                    seconds=took_s,
                    definition=named,
                )
                history.append(found)
                yield found
