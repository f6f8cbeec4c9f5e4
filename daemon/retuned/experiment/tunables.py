"""Experiments on tunables: a bench whose lab is the server's own Python environment.

One experiment searches every size class of a tunable and judges the table that follows as one
candidate: in several fresh processes, on fresh inputs, against what the server launches, beside a
clone of it. The judge and the evidence are those of every experiment.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from retuned.contract import (
    Digest,
    Environment,
    Solution,
    digest_of,
)
from retuned.errors import CandidateError, HarnessError, TemporaryError
from retuned.experiment.tunable_task import class_of, recipes_by_class
from retuned.lab.evidence import final_timing, gather, keep, p_value, raw_of
from retuned.lab.examiner import Timed
from retuned.lab.statistics import ShapeSamples
from retuned.ports import Bench, Clock, Finding
from retuned.runtime.core.environment import SWITCHES
from retuned.runtime_client.client import server_environment
from retuned.stages.experiment import ExperimentPlan, Turn, TurnOutcome
from retuned.stages.hypothesis import TABLE_STRUCTURE
from retuned.stages.proposal import variant_of
from retuned.stages.verdict import (
    Check,
    EvidenceDocument,
    Isolation,
    JudgeSettings,
    Reason,
    SeedCommitment,
    differences,
    freeze_of,
    judge,
    raw_digest,
)
from retuned.tunables.process import Child, ChildProcess, HostedChild, ServerHost
from retuned.tunables.tune import (
    CHECK_S,
    MAX_OWN_FLOAT64,
    ClassResult,
    Distance,
    checked,
    chosen,
    rules_of,
    tune_class,
)

__all__ = [
    "Benches",
    "TunableLab",
    "TunableTask",
    "class_of",
    "environment_differences",
    "recipes_by_class",
    "variant_of",
]

log = logging.getLogger(__name__)

_FILE = "table.json"
_COMPARED = ("torch", "triton", "vllm", "sglang")
"""Packages whose versions must be the server's."""
_SERVERS = ("vllm", "sglang")
_RETRY_S = 5.0
_BLOCKS, _PAIRS = 2, 3
"""Blocks of a size class in one process, and pairs of one block."""
_REASONS: Mapping[str, Reason] = {
    "compile-failed": Reason.COMPILE_FAILED,
    "out-of-resources": Reason.OVER_LIMIT,
    "device-memory": Reason.OUT_OF_MEMORY,
    "hangs": Reason.TIMED_OUT,
    "slice-too-long": Reason.TIMED_OUT,
    "wrote-outside": Reason.OUT_OF_BOUNDS,
    "wrong-result": Reason.WRONG_OUTPUT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TunableTask:
    """What an experiment on a tunable needs from the server."""

    report: Mapping[str, Any] = field(hash=False)
    """The tunable, as the runtime reports it."""
    recipes: Sequence[Mapping[str, Any]] = field(hash=False)
    """Described launches, one for each size class."""
    environment: Mapping[str, Any] = field(hash=False)
    """Interpreter, paths and variables of the server."""
    measured_in: Environment = field(hash=False)
    """Environment that the evidence names: the server's."""
    device: str = ""
    """Value of ``CUDA_VISIBLE_DEVICES``; empty without a GPU."""
    exclusive: Callable[[], AbstractContextManager[None]] = nullcontext
    """Entered around each slice of timing: a pause of the server if it shares its GPU."""
    slice_s: float = 0.4
    """Longest slice, seconds."""
    memory_bytes: int | None = None
    """Device memory that an experiment may use on the server's GPU; None on another one."""
    in_force: Sequence[Mapping[str, Any]] = field(default=(), hash=False)
    """Rules of the table in force; the new table's rules come before them."""
    host: ServerHost | None = field(default=None, hash=False)
    """Starts the child processes in the server's container; None starts them here."""


def _same_version(name: str, one: str, other: str) -> bool:
    """Whether two versions of a package agree.

    A server's module may lack the local part that its package has, and a child reads the package
    while it has not imported the module.

    >>> _same_version("vllm", "0.32.0+cpu", "0.32.0")
    True
    >>> _same_version("torch", "2.11.0+cpu", "2.11.0")
    False
    """
    if name in _SERVERS and not ("+" in one and "+" in other):
        return one.partition("+")[0] == other.partition("+")[0]
    return one == other


def environment_differences(task: TunableTask, about: Mapping[str, Any]) -> list[str]:
    """Return how the place of an experiment differs from the server, in words; empty if it fits.

    `about` is a child's answer: the facts that the server's runtime reports about itself.
    """
    here = server_environment(about)
    found = [
        f"{each.what} is {each.serving or 'unknown'}, in the server {each.measured or 'unknown'}"
        for each in differences(task.measured_in, here)
        if each.decides or each.what == "torch"
    ]
    versions = dict(about.get("versions", {}))
    for name, version in dict(task.environment.get("versions", {})).items():
        if name in _COMPARED and not _same_version(name, str(versions.get(name, "")), str(version)):
            found.append(f"{name} is {versions.get(name, 'absent')}, in the server {version}")
    return found


class TunableLab:
    """A `Bench` for plans about tunables.

    Parameters
    ----------
    task_of
        Reads what a plan needs from the server; raises a `RetunedError` if it does not answer.
    folder
        For evidence, built tables and compiler caches.
    processes
        Fresh processes that measure a table; each counts once, and the judge's bound needs eight.
    """

    def __init__(
        self,
        task_of: Callable[[ExperimentPlan], TunableTask],
        folder: Path,
        *,
        clock: Clock,
        processes: int = 8,
    ) -> None:
        self._task_of, self._folder, self._clock = task_of, folder, clock
        self._processes = processes
        self._turns: dict[str, list[Turn]] = {}
        self._stopped = threading.Event()
        self._driver = ""
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, plan: ExperimentPlan, *, known: Mapping[Digest, Finding]) -> Iterator[Finding]:
        """Yield the finding on the table; nothing where no size class has a clear gain."""
        if known:  # the table was judged before an interruption
            return
        try:
            yield from self._run(plan, self._task_of(plan))
        except CandidateError as error:  # nothing that a configuration is to blame for
            raise HarnessError(f"the experiment ended: {error}") from error

    def _run(self, plan: ExperimentPlan, task: TunableTask) -> Iterator[Finding]:
        begin_s = time.monotonic()
        results = self._searched(plan, task)
        rules = rules_of(results)
        if not rules:
            return
        candidate = variant_of(plan.definition, rules, author="search")
        frozen_at = self._clock.now()
        timed = self._measured(plan, task, rules)
        settings = JudgeSettings(buckets=plan.buckets)
        timing = None
        if timed.passed:
            timing = final_timing(
                timed,
                workloads=plan.workloads,
                floor=lambda _: 0.0,
                adjusted_p=p_value(timed, settings),
                finalists=1,
                settings=settings,
            )
        evidence = gather(
            candidate.digest, plan.incumbent, checks=timed.checks, finalist=True, timing=timing
        )
        final = raw_of(timed, plan.workloads)
        evidence = evidence.model_copy(update={"raw": raw_digest(None, final)})
        verdict = judge(evidence, settings)
        document = EvidenceDocument(
            plan=plan.id,
            definition=plan.definition,
            candidate=candidate.digest,
            incumbent=plan.incumbent,
            environment=self._place_of(task),
            freeze=freeze_of(candidate, plan=plan.id, frozen_at=frozen_at),
            isolation=_ISOLATION,
            seeds=(_commitment(timed),),
            tried=max(1, sum(len(each.trials) for each in results)),
            settings=settings,
            evidence=evidence,
            verdict=verdict,
            final=final,
            written_at=self._clock.now(),
        )
        kept = verdict.model_copy(update={"evidence": keep(self._folder, document)})
        yield Finding(
            solution=candidate,
            verdict=kept,
            seconds=time.monotonic() - begin_s,
            definition=digest_of([plan.definition, task.report["source"]]),
        )

    def build(self, solution: Solution) -> Path:
        """Return a folder with the table's rules."""
        folder = self._folder / "tables" / solution.digest.removeprefix("sha256:")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _FILE).write_text(solution.sources[0].content, "utf-8")
        return folder

    def evidence(self, digest: Digest) -> bytes | None:
        """Return evidence by its digest; None if it is not here."""
        path = self._folder / "evidence" / f"{digest.removeprefix('sha256:')}.json"
        return path.read_bytes() if path.exists() else None

    def turns(self, plan: str) -> Sequence[Turn]:
        """Return one turn for each size class that was searched."""
        return tuple(self._turns.get(plan, ()))

    def stop(self) -> None:
        """End the run at the next size class or process, and refuse new ones."""
        self._stopped.set()

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise TemporaryError("the experiment was stopped", delay_s=_RETRY_S)

    def _child(self, task: TunableTask) -> Child:
        self._check_stopped()
        modules = sorted({str(each["module"]) for each in task.recipes if each.get("module")})
        switches = {k: v for k, v in task.measured_in.numerics.items() if k in SWITCHES}
        variables = {**task.environment.get("variables", {}), **switches}
        environment = {**task.environment, "variables": variables}
        if task.host is not None:
            return HostedChild(
                environment, host=task.host, device=task.device, modules=modules,
                memory_bytes=task.memory_bytes,
            )  # fmt: skip
        return ChildProcess(
            environment,
            device=task.device,
            folder=self._folder / "child",
            modules=modules,
            memory_bytes=task.memory_bytes,
        )

    def _check_place(self, child: Child, task: TunableTask) -> None:
        """Refuse a place where other code would run, or the same code on another device."""
        about = child.ask({"op": "about"}, limit_s=CHECK_S)
        found = environment_differences(task, about)
        if found:
            error = HarnessError(f"the experiment runs elsewhere: {'; '.join(found)}"[:1000])
            error.code = "environment-differs"
            raise error
        self._driver = server_environment(about).driver

    def _place_of(self, task: TunableTask) -> Environment:
        """Return the environment of the evidence.

        It is the server's, but for the driver of another node, which decides nothing.
        """
        driver = self._driver if task.host is not None else ""
        return (
            task.measured_in.model_copy(update={"driver": driver}) if driver else task.measured_in
        )

    @contextlib.contextmanager
    def _children(self, task: TunableTask, count: int) -> Iterator[Iterator[Child]]:
        """Yield fresh processes, one after the other.

        On a GPU the next ones import the server meanwhile: that takes longer than to measure. They
        do not use the device before their turn.
        """
        ahead = max(1, (os.cpu_count() or 1) // 2) if task.device else 1
        if task.host is not None:
            ahead = min(ahead, task.host.children)
        waiting: deque[Child] = deque()

        def each() -> Iterator[Child]:
            for number in range(count):
                while len(waiting) < min(ahead, count - number):
                    waiting.append(self._child(task))
                with waiting[0] as child:
                    self._check_place(child, task)
                    yield child
                waiting.popleft()

        try:
            yield each()
        finally:
            for child in waiting:
                child.close()

    def _searched(self, plan: ExperimentPlan, task: TunableTask) -> list[ClassResult]:
        """Search the size classes of the plan, most launches first.

        A class without a recipe has its reason.
        """
        recipes = recipes_by_class(task.recipes)
        results: list[ClassResult] = []
        turns = self._turns[plan.id] = []
        child: Child | None = None
        deadline_s = math.inf
        order = sorted(range(len(plan.workloads)), key=lambda n: -plan.workloads[n].weight)
        try:
            for index in order:
                axes = dict(plan.workloads[index].axes)
                recipe = recipes.get(class_of(axes))
                if recipe is None:
                    result = ClassResult(axes=axes, in_force_us=0.0, reason="not-described")
                else:
                    if child is None or not child.alive:
                        child = self._child(task).__enter__()
                        self._check_place(child, task)
                        # to import a server may take longer than to search
                        deadline_s = min(deadline_s, time.monotonic() + plan.budget.max_seconds)
                    self._check_stopped()
                    result = tune_class(
                        child,
                        task.report,
                        recipe,
                        base=chosen(task.in_force, axes),
                        exclusive=task.exclusive,
                        slice_s=task.slice_s,
                        deadline_s=deadline_s,
                        most=plan.budget.max_candidates,
                        recorded=task.recipes,
                    )
                results.append(result)
                turns.append(_turn(index + 1, result))
                log.info("%s: %s", plan.definition, turns[-1].because)
        finally:
            if child is not None:
                child.close()
        return results

    def _measured(
        self, plan: ExperimentPlan, task: TunableTask, rules: Sequence[Mapping[str, Any]]
    ) -> Timed:
        """Measure the table at all size classes of the plan, in fresh processes."""
        recipes = recipes_by_class(task.recipes)
        secret = secrets.token_bytes(32)
        rows = [_Rows() for _ in plan.workloads]
        checks = [Check(gate="G0"), Check(gate="G1"), Check(gate="G2")]
        worst = Distance()
        with self._children(task, self._processes) as children:
            for process, child in enumerate(children):
                for index, workload in enumerate(plan.workloads):
                    axes = dict(workload.axes)
                    base = chosen(task.in_force, axes)
                    config = chosen([*rules, *task.in_force], axes)
                    recipe = recipes.get(class_of(axes))
                    if recipe is None:
                        raise HarnessError(f"no launch of {axes} is described any more")
                    seed = _seed(secret, process, index)
                    try:
                        case = child.ask({"op": "open", "recipe": recipe}, limit_s=CHECK_S)["case"]
                        worst = worst.farthest(checked(child, case, config, seed=seed))
                        rows[index].add(
                            child, case, (base, config), process=process, seed=seed, task=task
                        )
                        child.ask({"op": "close", "case": case}, limit_s=CHECK_S)
                    except CandidateError as failure:
                        return Timed(checks=(*checks, _failed(failure)))
        detail = f"{self._processes} processes, {_distance(worst)}"
        checks += [Check(gate="G3"), Check(gate="G4", detail=detail, error_ratio=worst.error)]
        checks += [Check(gate="G5"), Check(gate="G6", detail=detail)]
        weights = [each.weight for each in plan.workloads]
        return Timed(
            checks=tuple(checks),
            samples=tuple(r.samples(w) for r, w in zip(rows, weights, strict=True)),
            clones=tuple(r.clones(w) for r, w in zip(rows, weights, strict=True)),
            shapes=tuple(range(len(rows))),
            processes=self._processes,
            commitment="sha256:" + hashlib.sha256(secret).hexdigest(),
        )


_ISOLATION = Isolation(
    system_calls_filtered=False,
    memory_check="guard zones of a fixed pattern around every tensor",
    missing=(
        "a tunable runs the server's own kernels with other launch parameters; its process is "
        "not confined further than the server",
    ),
)


def _seed(secret: bytes, process: int, index: int) -> int:
    text = hashlib.sha256(secret + f"{process}/{index}".encode()).digest()
    return int.from_bytes(text[:4], "big") % (2**31)


def _commitment(timed: Timed) -> SeedCommitment:
    commitment = timed.commitment or "sha256:" + "0" * 64
    return SeedCommitment(purpose="hold-out", commitment=commitment, after_freeze=True)


def _distance(worst: Distance) -> str:
    text = f"largest distance {worst.error:.2e}"
    if worst.float64 is None or worst.own_float64 is None:
        return f"{text}; not compared with float64, the kernel's function is not known"
    far = worst.own_float64 > MAX_OWN_FLOAT64
    note = " (not compared: the reference is not of this launch)" if far else ""
    own = worst.own_float64
    return f"{text}; from float64 {worst.float64:.2e}, the server's own choice {own:.2e}{note}"


def _failed(error: CandidateError) -> Check:
    reason = _REASONS.get(error.reason, Reason.CRASHED)
    gate = {"wrong-result": "G4", "compile-failed": "G1"}.get(error.reason, "G3")
    return Check(gate=gate, reason=reason, detail=error.detail[:500])


@dataclass(slots=True)
class _Rows:
    """Pairs of one size class over all processes."""

    times: list[tuple[float, float, float]] = field(default_factory=list)
    """Incumbent, clone and candidate of one round, microseconds."""
    blocks: list[int] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)

    def add(
        self,
        child: Child,
        case: int,
        configs: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None],
        *,
        process: int,
        seed: int,
        task: TunableTask,
    ) -> None:
        """Time incumbent, clone and candidate in one process, in random order in each round."""
        base, config = configs
        request = {"op": "pairs", "case": case, "configs": [base, base, config], "pairs": _PAIRS}
        request["seconds"] = task.slice_s
        child.ask({**request, "pairs": 1, "seed": seed}, limit_s=CHECK_S)  # compiles
        for _ in range(_BLOCKS):
            missing = _PAIRS
            while missing > 0:  # a slice of slow launches ends early
                wanted = {**request, "pairs": missing, "seed": seed + missing}
                with task.exclusive():
                    said = child.ask(wanted, limit_s=CHECK_S)
                for row in said["pairs"]:
                    self.times.append((float(row[0]), float(row[1]), float(row[2])))
                    self.blocks.append(len(self.processes))
                missing -= len(said["pairs"])
            self.processes.append(process)

    def samples(self, weight: float) -> ShapeSamples:
        return self._paired(weight, 2)

    def clones(self, weight: float) -> ShapeSamples:
        return self._paired(weight, 1)

    def _paired(self, weight: float, column: int) -> ShapeSamples:
        times = np.array(self.times)
        return ShapeSamples(
            weight=weight,
            incumbent_us=times[:, 0],
            candidate_us=times[:, column],
            block=np.array(self.blocks, dtype=np.int64),
            process=np.array(self.processes, dtype=np.int64),
        )


def _turn(number: int, result: ClassResult) -> Turn:
    good = [each for each in result.trials if each.us < math.inf]
    where = ", ".join(f"{name} {value}" for name, value in result.axes.items())
    found = result.reason or f"{result.in_force_us:.1f} to {result.best_us:.1f} us"
    lost = [f"{reason} at the {end} end" for end, reason in result.edges.items() if reason]
    found = ", ".join([found, *lost])
    return Turn(
        number=number,
        generator="search",
        because=f"{where}: {len(result.trials)} of {result.space} configurations, {found}",
        outcome=TurnOutcome.TRIED if result.trials else TurnOutcome.FAILED,
        tried=len(result.trials),
        correct=len(good),
        gain_ratio=max(1.0, result.low if result.best is not None else 1.0),
        seconds=result.seconds,
    )


class Benches:
    """A `Bench` that runs plans about tunables in one lab, and all others in another.

    Parameters
    ----------
    kernels
        Runs plans about kernels.
    tables
        Runs plans about tunables.
    """

    def __init__(self, kernels: Bench, tables: TunableLab) -> None:
        self._kernels, self._tables = kernels, tables

    def run(self, plan: ExperimentPlan, *, known: Mapping[Digest, Finding]) -> Iterator[Finding]:
        return self._of(plan.structures).run(plan, known=known)

    def build(self, solution: Solution) -> Path:
        return self._of((solution.structure,)).build(solution)

    def evidence(self, digest: Digest) -> bytes | None:
        found = self._tables.evidence(digest)
        return found if found is not None else self._kernels.evidence(digest)

    def turns(self, plan: str) -> Sequence[Turn]:
        return self._tables.turns(plan) or self._kernels.turns(plan)

    def stop(self) -> None:
        self._tables.stop()
        self._kernels.stop()

    def _of(self, structures: Sequence[str]) -> Bench:
        return self._tables if tuple(structures) == (TABLE_STRUCTURE,) else self._kernels
