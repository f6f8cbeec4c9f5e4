"""Local lab: candidates are compiled and run in killable child processes of this machine.

It also precompiles winners for the servers of an artifact.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from retuned.contract import Definition, Digest, Language, Solution, Workload
from retuned.errors import (
    CandidateError,
    CompileFailed,
    HarnessError,
    MissingDependency,
    TemporaryError,
    UsageError,
)
from retuned.files import NotPlain, make_private, read_plain
from retuned.lab.captured_checks import leave_out_unanswered
from retuned.lab.captured_inputs import FOLDER, with_captured
from retuned.lab.generators.portfolio import Portfolio, TurnFolder
from retuned.lab.generators.transfer import Earlier
from retuned.lab.journal import Note, Notebook, notebook_name
from retuned.lab.languages.gpu import find_gpu
from retuned.lab.languages.limits import CompileLimits
from retuned.lab.languages.triton_precompile import precompile, precompile_served
from retuned.lab.rejected_cache import definition_digest, remembered, sameness
from retuned.lab.resources import LabResources, LabSettings
from retuned.lab.session import Session
from retuned.lab.subject import FoundInServer, KernelUnderTest
from retuned.lab.toolchain import environment_of, toolchain_for
from retuned.ports import Finding, Generator
from retuned.runtime.artifacts.precompiled import PrecompiledEntry
from retuned.stages.experiment import ExperimentPlan, Turn, TurnOutcome, turns_sentence
from retuned.stages.verdict import JudgeSettings, Status
from retuned.store.artifact_folder import MANIFEST, keep_artifact

log = logging.getLogger(__name__)

SHAPES = "shapes"
MAX_SHAPES = 256
_MAX_BYTES = 1 << 20


class Precompiler:
    """Compiles winners for the architecture of this machine's GPU.

    `arch` is the architecture of the servers. None uses this machine's GPU; without one, nothing is
    compiled.
    """

    def __init__(self, root: Path, *, arch: str | None = None) -> None:
        self._root = root
        self._arch = arch

    def remember(self, definition: str, workloads: Iterable[Workload]) -> None:
        path = self._path(definition)
        shapes = [dict(each.axes) for each in workloads][:MAX_SHAPES]
        partial = path.with_suffix(f".{os.getpid()}.{secrets.token_hex(4)}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial.write_text(json.dumps(shapes), encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            log.warning("shapes not stored: definition=%s: %s", definition, error)
        finally:
            partial.unlink(missing_ok=True)

    def shapes_of(self, definition: Definition) -> list[dict[str, int]]:
        try:
            with self._path(definition.name).open("rb") as file:
                body = json.loads(file.read(_MAX_BYTES))
        except (OSError, ValueError):
            return []
        wanted = set(definition.variable_axes)
        rows = body if isinstance(body, list) else []
        return [row for row in rows[:MAX_SHAPES] if _is_shape(row, wanted)]

    def entries_for(
        self,
        solution: Solution,
        definition: Definition,
        *,
        manifest: Mapping[str, Any],
        limits: CompileLimits | None = None,
    ) -> Sequence[PrecompiledEntry]:
        """Return precompiled code for an artifact; empty if its servers compile by themselves.

        If the manifest changes only parameters of a server's own code, the server must compile,
        because only it has that code. `limits` of None uses the language's.

        Raises
        ------
        CandidateError
            If the audit refuses the code for servers.
        """
        intercept = manifest.get("intercept", {})
        entry = manifest.get("entry", solution.entry)
        if solution.language is not Language.TRITON or intercept.get("code") == "live":
            return ()
        try:
            arch = self._arch or _arch_here()
            if arch is None:
                return ()
            if entry != solution.entry:
                return precompile_served(
                    solution, definition, arch=arch, entry=entry, intercept=intercept, limits=limits
                )
            shapes = self.shapes_of(definition)
            return precompile(solution, definition, arch=arch, shapes=shapes, limits=limits)
        except (CompileFailed, MissingDependency) as error:
            log.warning(
                "code not precompiled, servers compile it: variant=%s: %s", solution.name, error
            )
            return ()

    def _path(self, definition: str) -> Path:
        name = hashlib.sha256(definition.encode()).hexdigest()
        return self._root / SHAPES / f"{name}.json"


def _arch_here() -> str | None:
    gpu = find_gpu()
    return None if gpu is None else gpu.arch


def _is_shape(row: object, axes: set[str]) -> bool:
    return (
        isinstance(row, dict)
        and set(row) == axes
        and all(type(length) is int and 0 <= length < 2**40 for length in row.values())
    )


TURNS = "turns"
_BATCH = 4
_LONGEST_REST_S = 10.0
"""Longest wait for a resting generator if no other has candidates."""
_MAX_EVIDENCE_BYTES = 64 << 20
"""Longest document that is read; longer ones are ignored."""
_FINAL_SHARE = 0.4


class LocalLab:
    """Runs plans with this machine's compiler and cores.

    `root` is a private folder for compiled objects, artifacts and raw numbers. `subjects` finds a
    kernel under test by the definition's name and raises `UsageError` if it is unknown. `solutions`
    finds the incumbent by digest. `generators` makes the plan's generators by name. `advantages`
    are their gains per second over the average in earlier experiments. Empty `cores` means all.
    `earlier` holds findings of other experiments: valid rejections are not measured again.
    """

    def __init__(
        self,
        root: Path,
        *,
        subjects: Callable[[str], KernelUnderTest],
        solutions: Callable[[Digest], Solution | None],
        generators: Mapping[str, Callable[[ExperimentPlan], Generator]],
        advantages: Mapping[str, float] | None = None,
        cores: Sequence[int] = (),
        lab: LabSettings | None = None,
        judge_settings: JudgeSettings | None = None,
        earlier: Sequence[Earlier] = (),
    ) -> None:
        self._root = root
        self._subjects = subjects
        self._solutions = solutions
        self._generators = generators
        self._advantages = dict(advantages or {})
        self._cores = tuple(cores)
        self._lab = lab or LabSettings()
        self._judge = judge_settings or JudgeSettings()
        self._earlier = tuple(earlier)
        self._stop = threading.Event()
        self._precompiler = Precompiler(root)
        self._search_until = math.inf
        make_private(root)

    def run(self, plan: ExperimentPlan, *, known: Mapping[Digest, Finding]) -> Iterator[Finding]:
        incumbent = self._check_plan(plan)
        self._precompiler.remember(plan.definition, plan.workloads)
        notebook = Notebook(self._root / "notes" / notebook_name(plan.id))
        notes = [note for note in notebook.read() if note.solution.digest not in known]
        deadline = time.monotonic() + _left_s(plan, known.values(), notes)
        bay = LabResources(
            with_captured(
                self._subjects(plan.definition), self._root / FOLDER / notebook_name(plan.id)
            ),
            plan.workloads,
            incumbent=incumbent,
            folder=self._root,
            cores=self._cores,
            settings=_settings(self._lab, plan),
        )
        judge = self._judge.model_copy(update={"buckets": plan.buckets})
        try:
            leave_out_unanswered(bay)
            session = Session(
                plan,
                bay=bay,
                root=self._root,
                incumbent=incumbent,
                settings=judge,
                notebook=notebook,
            )
            session.know(known.values())
            contenders = [session.resume(note) for note in notes]
            seen = {plan.incumbent, *known, *(note.solution.digest for note in notes)}
            search_until = deadline - _FINAL_SHARE * plan.budget.max_seconds
            self._search_until = search_until
            if len(seen) == 1:  # no state of an earlier run remains
                TurnFolder(self._root / TURNS / notebook_name(plan.id)).clear()
            for solution in self._proposals(plan, session, seen, until=search_until):
                if self._stop.is_set():
                    raise TemporaryError("the lab was stopped between candidates", delay_s=0.0)
                contender = session.examine(solution)
                if contender.failed:
                    yield session.finding(contender)
                else:
                    contenders.append(contender)
            for finding in session.decide(contenders, deadline=deadline):
                yield finding
                if finding.verdict.status is Status.PROMOTE:
                    self._build_ahead(finding.solution)
            notebook.close()
        finally:
            bay.close()

    def build(self, solution: Solution) -> Path:
        """Return the artifact's folder, built on first use; see `Bench.build`.

        Raises
        ------
        CandidateError
            If the solution does not compile or breaks the contract.
        """
        target = self._root / "artifacts" / solution.digest.removeprefix("sha256:")
        if (target / MANIFEST).exists():
            return target
        subject = self._subjects(solution.definition)
        definition = subject.definition
        built = toolchain_for(solution.language).build(
            solution, definition, folder=self._root / "compiled", limits=self._lab.compile
        )
        if isinstance(subject, FoundInServer):
            manifest = {**built.manifest, **subject.launch_data(solution)}
            built = replace(built, manifest=manifest)
        codes = self._precompiler.entries_for(
            solution, definition, manifest=built.manifest, limits=self._lab.compile
        )
        keep_artifact(target, built, solution=solution, definition=definition, precompiled=codes)
        return target

    def _build_ahead(self, solution: Solution) -> None:
        """Build a winner's artifact now, so that orders need not wait for compilers."""
        try:
            self.build(solution)
        except (CandidateError, HarnessError, MissingDependency, OSError) as error:
            log.warning(
                "artifact not built ahead, it is built when ordered: variant=%s: %s",
                solution.name,
                error,
            )

    def search_left_s(self) -> float:
        return self._search_until - time.monotonic()

    def _check_plan(self, plan: ExperimentPlan) -> Solution:
        self._subjects(plan.definition)  # an unknown definition is the clearer message
        incumbent = self._solutions(plan.incumbent)
        if incumbent is None:
            raise HarnessError(f"no source for the incumbent {plan.incumbent[:19]}")
        here = environment_of(incumbent.language).digest
        if plan.environment != here:
            raise HarnessError(
                f"the plan is for environment {plan.environment[:19]}, this machine is {here[:19]}"
            )
        unknown = [name for name in plan.generators if name not in self._generators]
        if unknown:
            raise UsageError(f"unknown generators {unknown}; there are {sorted(self._generators)}")
        return incumbent

    def _proposals(
        self,
        plan: ExperimentPlan,
        session: Session,
        seen: set[Digest],
        *,
        until: float,
    ) -> Iterator[Solution]:
        """Yield new candidates until the budget or every generator is exhausted.

        At least one is tried, even after a late start: an experiment without candidates yields no
        information but counts as an attempt.

        Raises
        ------
        HarnessError
            If every generator failed before the first candidate.
        """
        definition = self._subjects(plan.definition).definition
        portfolio = self._portfolio(plan)
        portfolio.settle(session.history)
        rejected = remembered(self._earlier, plan, definition=definition_digest(definition))
        recalled = 0  # not measured, so not paid from the budget
        none_yet = first = len(seen) == 1
        while len(seen) - 1 - recalled < plan.budget.max_candidates and (
            first or time.monotonic() < until
        ):
            first = False
            room = plan.budget.max_candidates - len(seen) + 1 + recalled
            batch = portfolio.propose(
                definition,
                plan.workloads,
                history=tuple(session.history),
                count=min(_BATCH, room),
            )
            # Gate G0: from here on a candidate is its digest; seeds are secret and not yet used
            # on it.
            fresh = {each.digest: each for each in batch if each.digest not in seen}
            if not fresh:
                if not batch and not self._rested(portfolio, until=until):
                    break
                continue
            seen |= set(fresh)
            for solution in fresh.values():
                before = rejected.get(sameness(solution))
                if before is not None:
                    session.recall(solution, before)
                    recalled += 1
                    continue
                if not none_yet and time.monotonic() >= until:
                    break
                none_yet = False
                yield solution
        portfolio.settle(session.history)
        log.info("generators asked: %s", turns_sentence(portfolio.turns))
        failed = [turn for turn in portfolio.turns if turn.outcome is TurnOutcome.FAILED]
        if (
            failed
            and len(seen) == 1
            and {turn.generator for turn in failed} == set(plan.generators)
        ):
            raise HarnessError(f"every generator failed: {turns_sentence(portfolio.turns)}")

    def _rested(self, portfolio: Portfolio, *, until: float) -> bool:
        """Wait briefly for a resting generator; return False if there is none."""
        pause_s = portfolio.wakes_in_s()
        if pause_s is None or pause_s > min(_LONGEST_REST_S, until - time.monotonic()):
            return False
        if self._stop.wait(pause_s):
            raise TemporaryError("the lab was stopped between candidates", delay_s=0.0)
        return True

    def _portfolio(self, plan: ExperimentPlan) -> Portfolio:
        members = {
            name: functools.partial(self._generators[name], plan) for name in plan.generators
        }
        return Portfolio(
            members,
            seed=int.from_bytes(hashlib.sha256(plan.id.encode()).digest()[:4], "little"),
            log=TurnFolder(self._root / TURNS / notebook_name(plan.id)),
            clock=time.monotonic,
            taken={plan.incumbent},
            advantages=self._advantages,
        )

    def turns(self, plan: str) -> Sequence[Turn]:
        return TurnFolder(self._root / TURNS / notebook_name(plan)).read()

    def evidence(self, digest: Digest) -> bytes | None:
        path = self._root / "evidence" / f"{digest.removeprefix('sha256:')}.json"
        try:
            return read_plain(path, max_bytes=_MAX_EVIDENCE_BYTES, follow=False)
        except (FileNotFoundError, NotPlain):
            return None

    def stop(self) -> None:
        self._stop.set()


def _settings(lab: LabSettings, plan: ExperimentPlan) -> LabSettings:
    if plan.batch_invariant:
        return lab
    return replace(lab, tolerance=replace(lab.tolerance, batch_invariant=False))


def _left_s(plan: ExperimentPlan, known: Iterable[Finding], notes: Iterable[Note]) -> float:
    """Seconds left for a resumed plan: spent time counts, but finalists are still measured."""
    spent_s = sum(found.seconds for found in known) + sum(note.spent_s for note in notes)
    return max(plan.budget.max_seconds - spent_s, _FINAL_SHARE * plan.budget.max_seconds)
