"""On real clocks, on whatever machine this is: a copy of the incumbent is never promoted."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.real_clones import KERNELS, experiment

from retuned.stages.verdict import Reason, Status


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(KERNELS)), ids=[name for name, _ in KERNELS])
def test_a_copy_of_the_incumbent_is_not_promoted_on_real_clocks(
    number: int, tmp_path: Path
) -> None:
    verdict = experiment(tmp_path, number).verdict
    assert verdict.status is not Status.PROMOTE, verdict.detail
    assert verdict.reason is not Reason.WRONG_OUTPUT, verdict.detail
