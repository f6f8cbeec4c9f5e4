"""A lab with small budgets, shared by all hostile kernels so that compiled objects are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retuned import catalog
from retuned.adapters.local_lab import LocalLab
from retuned.contract import Language, Solution, SourceFile, Workload
from retuned.lab.bay import LabSettings
from retuned.lab.generators.given import GivenGenerator
from retuned.lab.languages.cpu_cpp import CompileLimits, cpu_environment
from retuned.stages.experiment import Budget, ExperimentPlan
from retuned.stages.verdict import Verdict

QUICK = LabSettings(
    search_s=0.2,
    final_s=0.6,
    launch_timeout_s=1.5,
    compile=CompileLimits(wall_s=8.0, cpu_s=8),
)

Judge = Callable[..., Verdict]


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
        shapes: tuple[dict[str, int], ...] = ({"M": 4}, {"M": 48}),
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
            budget=Budget(max_candidates=1, max_seconds=60.0, finalists=1),
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
