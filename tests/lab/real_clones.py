"""Copies of incumbents on real clocks: the same code by another digest, through the whole lab."""

from __future__ import annotations

import functools
from pathlib import Path

from retuned import catalog
from retuned.contract import Solution, SourceFile, Workload
from retuned.experiment.local import LocalLab
from retuned.lab.generators.fixed import GivenGenerator
from retuned.lab.languages.cpu_cpp import cpu_environment
from retuned.lab.resources import LabSettings
from retuned.ports import Finding
from retuned.stages.experiment import Budget, ExperimentPlan

KERNELS = (
    ("rmsnorm_h1024", {"M": 64}),
    ("softmax_n1024", {"M": 16}),
    ("linear_w8_n256_k256", {"M": 8}),
)


def commented(solution: Solution, number: int) -> Solution:
    """Return the same code under another digest."""
    first, *rest = solution.sources
    said = SourceFile(path=first.path, content=f"{first.content}\n// copy {number}\n")
    return solution.model_copy(update={"name": f"copy-{number}", "sources": (said, *rest)})


def experiment(folder: Path, number: int) -> Finding:
    """Let a copy of an incumbent go through the whole lab."""
    name, axes = KERNELS[number % len(KERNELS)]
    entry = catalog.get(name)
    plan = ExperimentPlan(
        id=f"clone-{number}",
        hypothesis="clone",
        definition=name,
        workloads=(Workload(definition=name, axes=axes),),
        incumbent=entry.incumbent.digest,
        generators=("given",),
        budget=Budget(max_candidates=1, max_seconds=120.0, finalists=1),
        environment=cpu_environment().digest,
    )
    lab = LocalLab(
        folder,
        subjects=catalog.get,
        solutions={entry.incumbent.digest: entry.incumbent}.get,
        generators={"given": functools.partial(_given, commented(entry.incumbent, number))},
        lab=LabSettings(search_s=0.3, final_s=1.0),
    )
    (finding,) = lab.run(plan, known={})
    return finding


def _given(solution: Solution, _plan: ExperimentPlan) -> GivenGenerator:
    return GivenGenerator([solution])
