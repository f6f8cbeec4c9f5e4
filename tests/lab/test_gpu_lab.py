"""What only a GPU can show of the lab: its clock, its faults, and a kernel that never ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.hostile.triton_kernels import LINEAR, SOFTMAX, changed, linear, softmax

from retuned import catalog
from retuned.contract import Language, Solution, Workload
from retuned.errors import CandidateError, CandidateTimedOut
from retuned.experiment.local import LocalLab
from retuned.lab.examiner import Examiner
from retuned.lab.generators.fixed import GivenGenerator
from retuned.lab.harness.run import Fill
from retuned.lab.harness.schedule import CANDIDATE, CLONE
from retuned.lab.harness.timing import samples_of, units_for
from retuned.lab.languages.gpu import find_gpu
from retuned.lab.resources import LabResources, LabSettings
from retuned.lab.subject import make_inputs
from retuned.lab.toolchain import environment_of
from retuned.stages.experiment import Budget, ExperimentPlan
from retuned.stages.verdict import Reason, Status

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_gpu() is None, reason="no GPU that PyTorch can use"),
]

MANY = 65_536
AGAIN = (
    "    for turn in range(40):\n"
    "        e = tl.exp(v - tl.max(v, axis=0) + turn * 0.0 * tl.sum(e, axis=0))\n    out = e"
)
SLOW = softmax(changed("    out = e", AGAIN))
ENDLESS = softmax(
    changed(
        "    tl.store(y",
        "    turn = M\n    while turn > 0:\n        turn += M - M\n"
        "        tl.atomic_add(y + at, 0.0, mask=mask)\n    tl.store(y",
    )
)
FAULTY = softmax(
    changed("out, mask", "out + tl.load(x + (at.to(tl.int64) + 1) * 1099511627776), mask")
)


def bay_of(incumbent: Solution, root: Path, *, rows: tuple[int, ...]) -> LabResources:
    name = incumbent.definition
    return LabResources(
        catalog.get(name),
        [Workload(definition=name, axes={"M": count}) for count in rows],
        incumbent=incumbent,
        folder=root,
        settings=LabSettings(search_s=0.3, final_s=2.0, launch_timeout_s=3.0),
    )


@pytest.fixture
def bay(tmp_path: Path) -> Iterator[LabResources]:
    opened = bay_of(softmax(), tmp_path, rows=(MANY,))
    yield opened
    opened.close()


def test_the_environment_names_device_driver_and_versions() -> None:
    environment = environment_of(Language.TRITON)
    gpu = find_gpu()
    assert gpu is not None
    assert environment.arch == gpu.arch
    assert all((environment.driver, environment.runtime, environment.torch, environment.triton))


@pytest.mark.parametrize("solution", [softmax(), linear()], ids=[SOFTMAX, LINEAR])
def test_a_device_gives_the_right_answer_under_every_fill(
    solution: Solution, tmp_path: Path
) -> None:
    entry = catalog.get(solution.definition)
    bay = bay_of(solution, tmp_path, rows=(64,))
    inputs = make_inputs(entry, {"M": 63}, seed=3, family="randn")
    want = entry.reference(inputs, {"M": 63})["y"]
    with bay.runner(bay.incumbent) as runner:
        for fill in (Fill(), Fill(value=0x5A), Fill(fenced=True)):
            got = runner.run(inputs, {"M": 63}, fill=fill, timeout_s=20.0)["y"]
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    bay.close()


def test_events_see_more_work_take_longer_and_clones_take_the_same(bay: LabResources) -> None:
    sides = [bay.incumbent, bay.compiled(SLOW), bay.clone()]
    with bay.duel(sides) as duel:
        duel.prepare({"M": MANY}, bay.sets(0, bay.seeds), seed=1)
        blocks = [duel.block(units_for(6, 6)) for _ in range(8)]
        late, calls = duel._late, duel._calls
    slow = samples_of(blocks, side=CANDIDATE, weight=1.0)
    clone = samples_of(blocks, side=CLONE, weight=1.0)
    assert np.median(slow.candidate_us) > 1.2 * np.median(slow.incumbent_us)
    ratio = float(np.median(clone.candidate_us / clone.incumbent_us))
    assert abs(ratio - 1.0) < 0.02, ratio
    assert late < 0.2 * calls, (late, calls)
    # Bytes over time is no more than the device can move.
    floor = bay.toolchain.floor_us(bay.subject.definition, {"M": MANY}, parts=1)
    assert float(np.median(clone.incumbent_us)) > floor


def test_a_tiny_kernel_is_timed_without_the_gaps_between_launches(tmp_path: Path) -> None:
    bay = bay_of(softmax(), tmp_path, rows=(1,))
    with bay.duel([bay.incumbent, bay.clone()]) as duel:
        duel.prepare({"M": 1}, bay.sets(0, bay.seeds), seed=1)
        pairs = [duel.block(units_for(8, 0)) for _ in range(4)]
    bay.close()
    # Launching one from Python takes 5 us and more; the kernel itself 1 to 4 us.
    assert float(np.median(samples_of(pairs, side=CANDIDATE, weight=1.0).incumbent_us)) < 5.0


def test_a_kernel_that_never_ends_is_killed_and_the_device_serves_the_next(
    bay: LabResources,
) -> None:
    inputs = make_inputs(bay.subject, {"M": 2}, seed=3, family="randn")
    with bay.runner(bay.compiled(ENDLESS)) as runner, pytest.raises(CandidateTimedOut):
        runner.run(inputs, {"M": 2}, timeout_s=3.0)
    with bay.runner(bay.incumbent) as runner:
        runner.run(inputs, {"M": 2}, timeout_s=20.0)


def test_a_kernel_that_faults_is_refused_and_the_device_serves_the_next(bay: LabResources) -> None:
    inputs = make_inputs(bay.subject, {"M": 2}, seed=3, family="randn")
    with bay.runner(bay.compiled(FAULTY)) as runner, pytest.raises(CandidateError) as caught:
        runner.run(inputs, {"M": 2}, timeout_s=20.0)
    assert caught.value.reason in {"crashed", "out-of-bounds"}
    with bay.runner(bay.incumbent) as runner:
        runner.run(inputs, {"M": 2}, timeout_s=20.0)


def test_more_shared_memory_than_the_device_has_is_refused(tmp_path: Path) -> None:
    bay = bay_of(linear(), tmp_path, rows=(64,))
    # 256 KiB for one tile of x alone, in code that is still short enough to compile soon.
    variant, checks = Examiner(bay).admit(linear(params={"BM": 256, "BN": 16, "BK": 256}))
    bay.close()
    assert variant is None
    assert checks[-1].reason in {Reason.OVER_LIMIT, Reason.COMPILE_FAILED}


def test_a_faster_variant_is_promoted_on_a_device(tmp_path: Path) -> None:
    plan = ExperimentPlan(
        id="gpu",
        hypothesis="h",
        definition=SOFTMAX,
        workloads=tuple(Workload(definition=SOFTMAX, axes={"M": rows}) for rows in (4_096, MANY)),
        incumbent=SLOW.digest,
        generators=("given",),
        budget=Budget(max_candidates=1, max_seconds=240.0, finalists=1),
        environment=environment_of(Language.TRITON).digest,
    )
    lab = LocalLab(
        tmp_path,
        subjects=catalog.get,
        solutions={SLOW.digest: SLOW}.get,
        generators={"given": lambda _plan: GivenGenerator([softmax()])},
        lab=LabSettings(final_s=2.0),
    )
    (finding,) = lab.run(plan, known={})
    assert finding.verdict.status is Status.PROMOTE, finding.verdict
