"""Captured input checks: the oracle and the incumbent must be able to run each sample."""

from __future__ import annotations

import logging

from retuned.errors import CandidateError, HarnessError
from retuned.lab.captured_inputs import is_captured
from retuned.lab.harness.cases import CaseKey
from retuned.lab.resources import LabResources
from retuned.lab.subject import make_inputs

log = logging.getLogger(__name__)


def leave_out_unanswered(bay: LabResources) -> int:
    """Remove captured cases on which the incumbent or the oracle fails; return how many.

    Captured bytes are untrusted. A sample that crashes the incumbent would end the experiment and
    is not evidence about a candidate.
    """
    bad = {cell for cell in bay.cells if is_captured(cell.family) and not _answered(bay, cell)}
    for cell in bad:
        log.warning(
            "captured inputs skipped, the incumbent or the oracle fails: axes=%s", dict(cell.axes)
        )
    bay.cells = tuple(cell for cell in bay.cells if cell not in bad)
    return len(bad)


def _answered(bay: LabResources, cell: CaseKey) -> bool:
    """Run the incumbent in a separate child, which may crash."""
    try:
        inputs = make_inputs(bay.subject, cell.axes, seed=0, family=cell.family)
        bay.subject.reference(inputs, cell.axes)
        with bay.runner(bay.incumbent) as runner:
            runner.run(inputs, cell.axes, timeout_s=bay.timeout_s)
    except (CandidateError, HarnessError, ArithmeticError, LookupError, ValueError) as error:
        log.info("captured inputs failed: axes=%s: %s", dict(cell.axes), error)
        return False
    return True
