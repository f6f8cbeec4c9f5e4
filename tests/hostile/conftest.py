"""A lab with small budgets, shared by all hostile kernels so that compiled objects are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hostile.honest_variants import shapes_of

from retuned import catalog
from retuned.contract import Language, Solution, SourceFile, Workload
from retuned.experiment.local import LocalLab
from retuned.lab.examiner import Examiner
from retuned.lab.generators.fixed import GivenGenerator
from retuned.lab.languages.cpu_cpp import CompileLimits, cpu_environment
from retuned.lab.resources import LabResources, LabSettings
from retuned.stages.experiment import Budget, ExperimentPlan
from retuned.stages.verdict import Check, Verdict

QUICK = LabSettings(
    search_s=0.2,
    final_s=0.6,
    most_processes=12,
    launch_timeout_s=1.5,
    compile=CompileLimits(wall_s=60.0, cpu_s=8),
)

Judge = Callable[..., Verdict]
SHAPES = ({"M": 4}, {"M": 48})


@pytest.fixture(scope="session")
def lab_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="session")
def candidate() -> Callable[..., Solution]:
    def make(source: str, *, definition: str, **more: Any) -> Solution:
        return Solution(
            name="candidate",
            definition=definition,
            language=Language.CPU_CPP,
            entry="kernel",
            sources=(SourceFile(path="kernel.cpp", content=source),),
            structure="hostile",
            **more,
        )

    return make


@pytest.fixture
def judged(lab_root: Path) -> Judge:
    def judge(
        solution: Solution,
        *,
        shapes: tuple[dict[str, int], ...] = SHAPES,
        incumbent: Solution | None = None,
        settings: LabSettings = QUICK,
    ) -> Verdict:
        entry = catalog.get(solution.definition)
        against = incumbent or entry.incumbent
        plan = ExperimentPlan(
            id="hostile",
            hypothesis="hostile",
            definition=solution.definition,
            workloads=tuple(Workload(definition=solution.definition, axes=axes) for axes in shapes),
            incumbent=against.digest,
            generators=("given",),
            budget=Budget(max_candidates=1, max_seconds=240.0, finalists=1),
            environment=cpu_environment().digest,
        )
        lab = LocalLab(
            lab_root,
            subjects=catalog.get,
            solutions={against.digest: against}.get,
            generators={"given": lambda _plan: GivenGenerator([solution])},
            lab=settings,
        )
        (finding,) = lab.run(plan, known={})
        return finding.verdict

    return judge


@pytest.fixture(scope="session")
def bays(lab_root: Path) -> Iterator[dict[str, LabResources]]:
    """One bay per definition; candidates get children of their own all the same."""
    found: dict[str, LabResources] = {}
    yield found
    for bay in found.values():
        bay.close()


@pytest.fixture
def examined(
    bays: dict[str, LabResources], lab_root: Path
) -> Callable[[Solution], tuple[Check, ...]]:
    """Take a C++ candidate through G1 to G4; return all answers."""

    def run(solution: Solution) -> tuple[Check, ...]:
        name = solution.definition
        if name not in bays:
            entry = catalog.get(name, language=solution.language)
            bays[name] = LabResources(
                entry,
                [Workload(definition=name, axes=axes) for axes in shapes_of(solution)],
                incumbent=entry.incumbent,
                folder=lab_root / "bays",
                settings=QUICK,
            )
        examiner = Examiner(bays[name])
        variant, checks = examiner.admit(solution)
        return checks if variant is None else (*checks, *examiner.correct(variant))

    return run
