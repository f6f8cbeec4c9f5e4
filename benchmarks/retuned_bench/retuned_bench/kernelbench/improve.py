"""From a given solution to a better one: generators propose, the lab judges against the given."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from retuned.contract import Definition, Digest, Solution, Workload
from retuned.errors import UsageError
from retuned.experiment.local import LocalLab
from retuned.lab.generators.devices import facts_here
from retuned.lab.generators.inputs import GeneratorInput, Make
from retuned.lab.generators.space_inference import Widened, infer_space
from retuned.lab.generators.spaces import Params, SpaceLike
from retuned.lab.resources import LabSettings
from retuned.lab.toolchain import toolchain_for
from retuned.ports import Finding, Generator
from retuned.stages.experiment import Budget, ExperimentPlan
from retuned.stages.verdict import Status
from retuned_bench.kernelbench.problem import ProblemSubject

_FINAL_SHARE, _FINAL_S = 0.05, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How generators are asked."""

    makers: Mapping[str, Make]
    """Those that may be asked, by name."""
    seconds: float = 60.0
    """Time for one problem."""
    candidates: int = 16
    """Most variants of one problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Improved:
    """What generators made of a solution."""

    best: Solution
    """The fastest that is proven faster than the given one, or else the given one."""
    candidates: int
    """How many were tried."""
    verdicts: Mapping[str, int]
    """How many by reason."""


@dataclass(frozen=True, slots=True)
class _Given:
    """A tunable of one variant."""

    definition: Definition
    incumbent: Solution

    @property
    def spaces(self) -> Sequence[SpaceLike]:
        return ()

    def solution(self, structure: str, params: Params) -> Solution:
        raise UsageError(f"{structure} cannot be built with {dict(params)}")


def improve(
    subject: ProblemSubject,
    start: Solution,
    *,
    search: Search,
    folder: Path,
    cores: Sequence[int] = (),
) -> Improved:
    """Let generators look for something faster than a solution that is right.

    Parameters
    ----------
    subject
        The problem.
    start
        The variant to start from and to beat.
    search
        The generators, and their time.
    folder
        Private.
    cores
        Cores that variants may use; empty means all.

    Raises
    ------
    HarnessError
        If nothing can be concluded: the start fails, or every generator does.
    """
    toolchain = toolchain_for(start.language)
    workload = Workload(definition=subject.definition.name, axes={})
    seed = hashlib.sha256(f"{start.digest} {','.join(search.makers)}".encode()).hexdigest()
    plan = ExperimentPlan(
        id=f"kernelbench-{seed[:16]}",
        hypothesis="bench",
        definition=subject.definition.name,
        workloads=(workload,),
        incumbent=start.digest,
        generators=tuple(search.makers),
        budget=Budget(
            max_candidates=search.candidates,
            max_seconds=search.seconds + toolchain.pace.start_s,
            finalists=1,
        ),
        environment=toolchain.environment().digest,
    )
    lab = LocalLab(
        folder,
        subjects=lambda _name: subject,
        solutions=lambda digest: _of(start, digest),
        generators=_generators(subject, start, search.makers, cores=len(cores) or _all_cores()),
        cores=cores,
        lab=LabSettings(final_s=min(_FINAL_S, _FINAL_SHARE * search.seconds)),
    )
    findings = list(lab.run(plan, known={}))
    won = [found for found in findings if found.verdict.status is Status.PROMOTE]
    best = max(won, key=_merit).solution if won else start
    reasons = Counter(str(found.verdict.reason) for found in findings)
    return Improved(best=best, candidates=len(findings), verdicts=dict(sorted(reasons.items())))


def _generators(
    subject: ProblemSubject, start: Solution, makers: Mapping[str, Make], *, cores: int
) -> dict[str, Callable[[ExperimentPlan], Generator]]:
    device = facts_here(start.language, cores=cores)
    space = infer_space(start, subject.definition, device=device)
    given = _Given(subject.definition, start)
    tunable = Widened(given, start, space=space)

    def bound(make: Make) -> Callable[[ExperimentPlan], Generator]:
        return lambda plan: make(
            GeneratorInput(
                plan=plan,
                tunable=tunable,
                incumbent=start,
                cores=cores,
                seed=int.from_bytes(hashlib.sha256(plan.id.encode()).digest()[:4], "little"),
                device=device,
            )
        )

    return {name: bound(make) for name, make in makers.items()}


def _of(start: Solution, digest: Digest) -> Solution | None:
    return start if start.digest == digest else None


def _merit(found: Finding) -> float:
    return found.verdict.speedup.lower if found.verdict.speedup else 0.0


def _all_cores() -> int:
    return os.cpu_count() or 1
