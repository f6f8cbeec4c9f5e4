"""Variants of several launches that misuse the scratch they share, each refused for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hostile.cheats import Cheat, stopped
from tests.hostile.triton_kernels import HEAD, SOFTMAX, changed, softmax

from retuned import catalog
from retuned.contract import DType, Scratch, Solution, Step, Workload
from retuned.lab.examiner import Examiner
from retuned.lab.resources import LabResources, LabSettings
from retuned.stages.verdict import Reason

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

TWO = (
    HEAD
    + """
@triton.jit
def powers(x, e, M, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < N
    v = tl.load(x + row * N + at, mask=mask, other=float("-inf"))
    out = tl.exp(v - tl.max(v, axis=0))
    tl.store(e + row * N + at, out, mask=mask)


@triton.jit
def shares(e, y, M, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < N
    v = tl.load(e + row * N + at, mask=mask, other=0.0)
    tl.store(y + row * N + at, v / tl.sum(v, axis=0), mask=mask)
"""
)


def steps(source: str = TWO, **more: Any) -> Solution:
    """Return a softmax of two launches: powers, then shares of their sum."""
    body: dict[str, Any] = {
        "entry": "powers",
        "grid": (),
        "steps": (Step(entry="powers", grid=("M",)), Step(entry="shares", grid=("M",))),
        "scratch": (Scratch(name="e", dtype=DType.FLOAT32, shape=("M", "N")),),
    }
    return softmax(source, **{**body, **more})


STORED = "    tl.store(e + row * N + at, out, mask=mask)"
ADDED = (
    "    out += tl.load(e + row * N + at, mask=mask, other=0.0)\n"
    "    tl.store(e + row * N + at, out, mask=mask)"
)
CACHE = (
    "    seen = tl.load(e + M * N)\n"
    "    old = tl.load(e + row * N + at, mask=mask, other=0.0)\n"
    "    out = tl.where(seen == 1234.0, old, out)\n" + STORED
)
CACHED = changed(
    "    tl.store(y",
    "    tl.store(e + M * N, 1234.0)\n    tl.store(y",
    source=changed(STORED, CACHE, source=TWO),
)
ROOM = (Scratch(name="e", dtype=DType.FLOAT32, shape=("M * N + 1",)),)
ZEROED = (Scratch(name="e", dtype=DType.FLOAT32, shape=("M", "N"), zeroed=True),)
SMALL = (Scratch(name="e", dtype=DType.FLOAT32, shape=("M", "N - 1")),)

HONEST = {
    "two launches": steps(),
    "adds to scratch that was zeroed": steps(changed(STORED, ADDED, source=TWO), scratch=ZEROED),
    "a single launch through named scratch": softmax(
        changed(
            "    out = e",
            "    tl.store(kept + row * N + at, e, mask=mask)\n"
            "    tl.debug_barrier()\n"
            "    e = tl.load(kept + row * N + at, mask=mask, other=0.0)\n    out = e",
            source=softmax().sources[0].content.replace("(x, y, M,", "(x, y, kept, M,"),
        ),
        scratch=(Scratch(name="kept", dtype=DType.FLOAT32, shape=("M", "N")),),
    ),
}
CHEATS = {
    "reads scratch before anything wrote it": Cheat(
        solution=steps(changed(STORED, ADDED, source=TWO)),
        gate="G3",
        reasons=(Reason.OUT_OF_BOUNDS,),
    ),
    "keeps its answer in scratch for the next launch": Cheat(
        solution=steps(CACHED, scratch=ROOM), gate="G3", reasons=(Reason.NONDETERMINISTIC,)
    ),
    "writes past the end of scratch": Cheat(
        solution=steps(scratch=SMALL), gate="G3", reasons=(Reason.OUT_OF_BOUNDS,)
    ),
    "writes before the start of scratch": Cheat(
        solution=steps(
            changed("tl.store(e + row", "tl.store(e - 8 + row", source=TWO).replace(
                "tl.load(e + row", "tl.load(e - 8 + row"
            )
        ),
        gate="G3",
        reasons=(Reason.OUT_OF_BOUNDS,),
    ),
    "asks for more scratch than there may be": Cheat(
        solution=steps(
            scratch=(Scratch(name="e", dtype=DType.FLOAT32, shape=("M", "N", "100000000")),)
        ),
        gate="G1",
        reasons=(Reason.CONTRACT,),
    ),
    "hides an import behind its second step": Cheat(
        solution=steps(TWO + "\nimport os\n"), gate="G1", reasons=(Reason.CONTRACT,)
    ),
    "names a step that the file does not have": Cheat(
        solution=steps(
            steps=(Step(entry="powers", grid=("M",)), Step(entry="missing", grid=("M",)))
        ),
        gate="G1",
        reasons=(Reason.CONTRACT,),
    ),
    "launches more programs in its second step than a device has": Cheat(
        solution=steps(
            steps=(
                Step(entry="powers", grid=("M",)),
                Step(entry="shares", grid=("M", "70000")),
            )
        ),
        gate="G1",
        reasons=(Reason.CONTRACT,),
    ),
    "is wrong in its second step": Cheat(
        solution=steps(changed("v / tl.sum(v, axis=0)", "v / tl.max(v, axis=0)", source=TWO)),
        gate="G4",
        reasons=(Reason.WRONG_OUTPUT, Reason.NAN_MISMATCH),
    ),
}


@pytest.fixture(scope="module")
def examiner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examiner]:
    folder: Path = tmp_path_factory.mktemp("lab")
    bay = LabResources(
        catalog.get(SOFTMAX),
        [Workload(definition=SOFTMAX, axes={"M": 4})],
        incumbent=softmax(params={"BLOCK": 128}),
        folder=folder,
        settings=LabSettings(search_s=0.1, search_blocks=3, launch_timeout_s=5.0),
    )
    yield Examiner(bay)
    bay.close()


@pytest.mark.parametrize("sentence", HONEST)
def test_an_honest_variant_of_several_launches_passes(sentence: str, examiner: Examiner) -> None:
    variant, checks = examiner.admit(HONEST[sentence])
    assert variant is not None, checks
    assert len(variant.audit) == len(HONEST[sentence].launches), "every step is audited"
    checks = (*checks, *examiner.correct(variant))
    assert [check for check in checks if check.reason is not None] == []
    assert {check.gate for check in checks} == {"G1", "G2", "G3", "G4"}


@pytest.mark.parametrize("sentence", CHEATS)
def test_a_variant_that_misuses_its_scratch_is_stopped(sentence: str, examiner: Examiner) -> None:
    cheat = CHEATS[sentence]
    variant, checks = examiner.admit(cheat.solution)
    stopped(checks if variant is None else (*checks, *examiner.correct(variant)), cheat)
