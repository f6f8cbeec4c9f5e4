"""The whole lab over GPU C++: compiled and audited for a GPU, run on one that a driver plays.

What runs is the source itself, made for this processor; see ``emulator``. Without a played device
and without a GPU, everything up to the audit works, and running says what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.expect import raises_naming
from tests.lab.gpu_cpp.emulator import EmulatedGpuCpp, build_driver

from retuned import catalog
from retuned.contract import Language, Solution, SourceFile, Workload
from retuned.errors import MissingDependency
from retuned.experiment.local import LocalLab
from retuned.lab import toolchain
from retuned.lab.examiner import Examiner
from retuned.lab.generators.fixed import GivenGenerator
from retuned.lab.languages.gpu import find_gpu
from retuned.lab.languages.gpu_compilers import find_nvrtc
from retuned.lab.resources import LabResources, LabSettings
from retuned.lab.toolchain import environment_of, toolchain_for
from retuned.lab.toolchain_gpu_cpp import GpuCpp
from retuned.ports import Finding
from retuned.runtime.artifacts.artifact import read_artifact
from retuned.stages.experiment import Budget, ExperimentPlan
from retuned.stages.verdict import Reason, Status

pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no libnvrtc; PyTorch for CUDA has it")

NAME = "rmsnorm_h64"
ENTRY = catalog.get(NAME, language=Language.GPU_CPP)
FAST = ENTRY.solution("held", {"BLOCK_X": 32, "VEC": 4, "EACH": 1, "TYPE": "float"})
QUICK = LabSettings(search_s=0.1, search_blocks=3, final_s=0.2)


def changed(solution: Solution, old: str, new: str) -> Solution:
    (source,) = solution.sources
    assert old in source.content
    text = source.content.replace(old, new)
    body = {"sources": (SourceFile(path=source.path, content=text),), "name": "changed"}
    return solution.model_copy(update=body)


SLOW = changed(
    ENTRY.solution("block", {"BLOCK_X": 128, "VEC": 1, "TYPE": "float"}),
    "  float squares = 0.0f;\n",
    "  float squares = 0.0f, wasted = 1.0f;\n"
    "  for (int turn = 0; turn < 3; turn++) wasted = block_max(wasted, room);\n"
    "  squares = wasted - wasted;\n",
)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedGpuCpp]:
    made = EmulatedGpuCpp(build_driver(tmp_path_factory.mktemp("driver")))
    yield made
    made.close()


@pytest.fixture
def played(emulated: EmulatedGpuCpp, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the toolchain of GPU C++ be the one with a played device."""
    known = {**toolchain._TOOLCHAINS, Language.GPU_CPP: lambda: emulated}
    monkeypatch.setattr(toolchain, "_TOOLCHAINS", known)
    toolchain_for.cache_clear()
    yield
    toolchain_for.cache_clear()


def judged(root: Path, candidate: Solution, incumbent: Solution) -> Finding:
    plan = ExperimentPlan(
        id="gpu-cpp",
        hypothesis="h",
        definition=NAME,
        workloads=(Workload(definition=NAME, axes={"M": 4}),),
        incumbent=incumbent.digest,
        generators=("given",),
        budget=Budget(max_candidates=1, max_seconds=240.0, finalists=1),
        environment=environment_of(Language.GPU_CPP).digest,
    )
    (finding,) = lab(root, candidate, incumbent).run(plan, known={})
    return finding


def lab(root: Path, candidate: Solution, incumbent: Solution) -> LocalLab:
    return LocalLab(
        root,
        subjects=catalog.get,
        solutions={incumbent.digest: incumbent}.get,
        generators={"given": lambda _plan: GivenGenerator([candidate])},
        lab=QUICK,
    )


@pytest.mark.usefixtures("played")
def test_a_faster_variant_goes_through_every_gate(tmp_path: Path) -> None:
    verdict = judged(tmp_path, FAST, SLOW).verdict
    assert verdict.status is Status.PROMOTE, verdict
    assert verdict.speedup is not None
    assert verdict.speedup.lower > 1.0
    (raw,) = (tmp_path / "evidence").glob("*.json")
    document = json.loads(raw.read_text())
    assert {check["gate"] for check in document["evidence"]["checks"]} == {
        f"G{number}" for number in range(7)
    }
    assert document["environment"]["compiler"].startswith("nvrtc ")


@pytest.mark.usefixtures("played")
def test_an_artifact_holds_the_object_that_was_audited(tmp_path: Path) -> None:
    folder = lab(tmp_path, FAST, SLOW).build(FAST)
    artifact = read_artifact(folder, digest=FAST.digest)
    assert artifact.language == "gpu_cpp"
    assert artifact.binary.startswith(b"\x7fELF")
    assert artifact.params["BLOCK_X"] == 32
    assert artifact.grid == ("M",)


@pytest.fixture(scope="module")
def bay(
    emulated: EmulatedGpuCpp, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LabResources]:
    opened = LabResources(
        ENTRY,
        [Workload(definition=NAME, axes={"M": 3})],
        incumbent=ENTRY.incumbent,
        folder=tmp_path_factory.mktemp("bay"),
        settings=QUICK,
        toolchain=emulated,
    )
    yield opened
    opened.close()


ONE_MORE = ("if (at < H) {\n      const", "if (at < H + 4) {\n      const")
WILD = ("store_vec(to + at, held[i]);", "store_vec(to + at + (1ll << 44), held[i]);")
DIVERGED = (
    "  const float scale = 1.0f / sqrtf(block_sum(squares, room)",
    "  if (thread_x() > 7) sync();\n  const float scale = 1.0f / sqrtf(block_sum(squares, room)",
)
WRONG = ("(float)H + 1e-6f", "(float)H + 1e-2f")


@pytest.mark.parametrize(
    ("edit", "gate", "reason"),
    [
        (ONE_MORE, "G3", {Reason.OUT_OF_BOUNDS}),
        (WILD, "G3", {Reason.CRASHED}),
        (DIVERGED, "G3", {Reason.CRASHED}),
        (WRONG, "G4", {Reason.WRONG_OUTPUT}),
    ],
    ids=["one vector too many", "wild store", "a barrier that not all reach", "wrong epsilon"],
)
def test_a_variant_that_is_wrong_is_found_at_its_gate(
    edit: tuple[str, str], gate: str, reason: set[Reason], bay: LabResources
) -> None:
    examiner = Examiner(bay)
    variant, checks = examiner.admit(changed(FAST, *edit))
    assert variant is not None, checks
    found = [check for check in examiner.correct(variant) if check.reason is not None]
    assert [check.gate for check in found] == [gate], found
    assert found[0].reason in reason, found


def test_what_the_contract_forbids_ends_at_the_first_gate(bay: LabResources) -> None:
    bad = changed(FAST, "  float squares", '  asm("trap;");\n  float squares')
    variant, (check,) = Examiner(bay).admit(bad)
    assert variant is None
    assert (check.gate, check.reason) == ("G1", Reason.CONTRACT)


@pytest.mark.skipif(find_gpu() is not None, reason="there is a GPU")
def test_without_a_gpu_it_is_compiled_and_audited_and_not_run(tmp_path: Path) -> None:
    chain = GpuCpp()
    built = chain.build(FAST, ENTRY.definition, folder=tmp_path, shapes=[{"M": 4}])
    assert "compiled for sm_90" in built.variant.note
    assert built.variant.audit[0]["kernel"] == FAST.entry
    with raises_naming(MissingDependency, "GPU", "retuned audit FILE --arch"):
        LabResources(
            ENTRY,
            [Workload(definition=NAME, axes={"M": 3})],
            incumbent=FAST,
            folder=tmp_path,
            toolchain=chain,
        )
