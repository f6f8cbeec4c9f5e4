"""What only a GPU can show of the cheats by number; what it takes is written as no candidate can.

The contract already refuses host code, so streams are tried on the harness itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.hostile.triton_kernels import ROW, SOFTMAX, changed, softmax

from retuned import catalog
from retuned.contract import Language, Solution, Workload
from retuned.lab.audit import audit_object
from retuned.lab.examiner import Examiner
from retuned.lab.harness.device import GpuDevice
from retuned.lab.harness.schedule import CANDIDATE
from retuned.lab.harness.timing import samples_of, units_for
from retuned.lab.languages.gpu import find_gpu
from retuned.lab.resources import LabResources, LabSettings
from retuned.lab.toolchain import toolchain_for
from retuned.stages.verdict import Reason

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_gpu() is None, reason="no GPU that PyTorch can use"),
]

MANY = 65_536
TICKET = (
    "    ticket = tl.atomic_add(scratch.to(tl.pointer_type(tl.int32)), 1)\n"
    "    out = e / tl.sum(e, axis=0) * (1.0 + (ticket % 8) * 1.2e-7)\n"
)
TWICE = ROW.replace("row = tl.program_id(0)", "row = tl.program_id(0) // 2").replace(
    "out, mask=mask", "out * (1.0 + (tl.program_id(0) % 2) * 1.2e-7), mask=mask"
)


@pytest.fixture
def bay(tmp_path: Path) -> Iterator[LabResources]:
    opened = LabResources(
        catalog.get(SOFTMAX),
        [Workload(definition=SOFTMAX, axes={"M": MANY})],
        incumbent=softmax(),
        folder=tmp_path,
        settings=LabSettings(search_s=0.5, final_s=2.0, launch_timeout_s=10.0),
    )
    yield opened
    opened.close()


def first_refusal(bay: LabResources, solution: Solution) -> tuple[str, Reason | None]:
    examiner = Examiner(bay)
    variant, checks = examiner.admit(solution)
    assert variant is not None, checks
    found = [check for check in examiner.correct(variant) if check.reason is not None]
    return (found[0].gate, found[0].reason) if found else ("", None)


def test_outputs_are_read_after_all_streams_have_ended() -> None:
    """H17: events on one stream do not see another; whoever waits must wait for all."""
    device = GpuDevice()
    side = torch.cuda.Stream()
    output = torch.zeros(1 << 20, device="cuda")

    def launch(tensors: Sequence[Any], lengths: Sequence[int]) -> None:
        with torch.cuda.stream(side):
            torch.cuda._sleep(500_000_000)
            tensors[0].fill_(1.0)

    spent_ns, _ = device.time(launch, [[output]], [1])
    assert spent_ns < 50_000_000, "the events saw the other stream, and this test proves nothing"
    device.wait()
    assert bool((output == 1.0).all())


def test_hints_to_keep_weights_in_the_cache_do_not_survive_the_flush(bay: LabResources) -> None:
    """H25: asking the cache to keep a tensor makes no launch faster than memory."""
    plain = softmax(params={"BLOCK": 32, "num_warps": 1})
    kept = softmax(
        changed('other=float("-inf")', 'other=float("-inf"), eviction_policy="evict_last"'),
        params={"BLOCK": 32, "num_warps": 1},
    )
    sides = [bay.compiled(plain), bay.compiled(kept)]
    with bay.duel(sides) as duel:
        duel.prepare({"M": MANY}, bay.sets(0, bay.seeds), seed=1)
        blocks = [duel.block(units_for(6, 0)) for _ in range(8)]
    samples = samples_of(blocks, side=CANDIDATE, weight=1.0)
    candidate_us = float(np.median(samples.candidate_us))
    floor_us = toolchain_for(Language.TRITON).floor_us(bay.subject.definition, {"M": MANY}, parts=1)
    assert candidate_us >= 0.9 * floor_us
    assert candidate_us > 0.75 * float(np.median(samples.incumbent_us))


def test_programs_that_race_are_called_nondeterministic(bay: LabResources) -> None:
    """H38: two programs write one row, and who is last decides."""
    found = first_refusal(bay, softmax(TWICE, grid=("M * 2",)))
    assert found == ("G3", Reason.NONDETERMINISTIC)


def test_sums_by_atomics_are_called_nondeterministic(bay: LabResources) -> None:
    """H41: the order of atomics is chance."""
    source = changed(
        "    out = e / tl.sum(e, axis=0)\n",
        TICKET,
        source=ROW.replace("(x, y, M,", "(x, y, scratch, M,"),
    )
    found = first_refusal(bay, softmax(source, scratch_bytes=64))
    assert found == ("G3", Reason.NONDETERMINISTIC)


def test_what_the_device_has_is_what_the_audit_counts_with(bay: LabResources) -> None:
    gpu = find_gpu()
    assert gpu is not None
    built = bay.compiled(softmax(params={"BLOCK": 32, "num_warps": 2}))
    assert gpu.arch in built.note
    assert "waves" in built.note
    assert audit_object is not None
