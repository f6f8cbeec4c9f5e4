"""Which captured inputs can be asked about: the oracle and the incumbent must answer them."""

from __future__ import annotations

import logging

from retuned.errors import CandidateError, HarnessError
from retuned.lab.captured_inputs import is_captured
from retuned.lab.harness.cases import CaseKey
from retuned.lab.resources import LabResources
from retuned.lab.subject import make_inputs

log = logging.getLogger(__name__)


def leave_out_unanswered(bay: LabResources) -> int:
    """Take captured cells out of a bay that its incumbent or its oracle fails on; return how many.

    They are a stranger's bytes: what ends the incumbent would end the experiment, and says nothing
    about a candidate.
    """
    bad = {cell for cell in bay.cells if is_captured(cell.family) and not _answered(bay, cell)}
    for cell in bad:
        log.warning("captured inputs at %s are left out: nobody answers them", dict(cell.axes))
    bay.cells = tuple(cell for cell in bay.cells if cell not in bad)
    return len(bad)


def _answered(bay: LabResources, cell: CaseKey) -> bool:
    """Ask the incumbent in a child of its own, which may die of it."""
    try:
        inputs = make_inputs(bay.subject, cell.axes, seed=0, family=cell.family)
        bay.subject.reference(inputs, cell.axes)
        with bay.runner(bay.incumbent) as runner:
            runner.run(inputs, cell.axes, timeout_s=bay.timeout_s)
    except (CandidateError, HarnessError, ArithmeticError, LookupError, ValueError) as error:
        log.info("captured inputs at %s: %s", dict(cell.axes), error)
        return False
    return True
