"""Experiment program: a plan comes in as JSON, findings go out as JSON lines.

The daemon starts it as a killable child; a pod runs the same program. One object on stdin or in a
file::

    {"plan": ExperimentPlan, "root": "folder", "cores": [1], "known": [finding...],
     "solutions": [Solution...], "definitions": [OwnDefinition...],
     "earlier": [finding with environment and arch...],
     "evolve": EvolveConfig or null, "tunable": TunableInputs or null}

``solutions`` are variants that the catalog does not have, such as an incumbent that an earlier
experiment found; ``definitions`` are users' own kernels. Each response is one line:
``{"finding": {...}}``, and at the end ``{"done": true}`` or ``{"failed": {"code", "message"}}``.
Exit codes: 0 done, 2 wrong settings, 3 unreadable plan, 4 no compiler, 5 the lab failed.

If ``RETUNED_ROLE`` is set, the program runs in the pod of a Job. Then the same lines are also
written to ``$RETUNED_RESULTS_DIR/findings.jsonl``, with evidence and winners' artifacts beside
them, and there are more codes: a trusted pod found only 64 wrong results, 65 compile errors or 66
breaches of the sandbox; 143 the pod was terminated. A plan about a tunable runs in such a pod
only, beside the server's container, whose host ends with this program.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from retuned import catalog
from retuned.catalog.user import OwnDefinition
from retuned.contract import Digest, Language, Solution
from retuned.errors import (
    HarnessError,
    MissingDependency,
    RetunedError,
    UnreadableInput,
    UsageError,
)
from retuned.experiment.local import LocalLab
from retuned.experiment.messages import LabTask, done_line, failed_line, finding_line
from retuned.experiment.pod import PodResources, run_pod
from retuned.experiment.pod_task import (
    FixedGenerator,
    PodRole,
    PodSettings,
    handed_of,
    pod_settings,
)
from retuned.experiment.pod_tunables import HOST_WAIT_S, open_tunable_lab
from retuned.experiment.roles import CompilingLab, GeneratingLab
from retuned.lab.generators.devices import GPUS, facts_here
from retuned.lab.generators.evolve import EvolveConfig
from retuned.lab.generators.inputs import SELF_CONTAINED, GeneratorInput, Make
from retuned.lab.generators.priors import Priors
from retuned.lab.generators.space_inference import widen
from retuned.lab.generators.transfer import Earlier
from retuned.lab.resources import LabSettings
from retuned.lab.toolchain import environment_of
from retuned.ports import Bench, Generator
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.verdict import JudgeSettings
from retuned.tunables.process import ServerHost

_LANGUAGES = (Language.CPU_CPP, Language.TRITON, Language.GPU_CPP)

EVOLVE = "evolve"

GeneratorFactory = Callable[[ExperimentPlan], Generator]

GENERATORS: Mapping[str, Make] = {**SELF_CONTAINED}
"""Every generator that a plan may name. One that needs an adapter adds its factory here."""


class Task(LabTask):
    """The task of the program."""

    definitions: tuple[OwnDefinition, ...] = ()


def read_task(text: str, *, where: str) -> Task:
    """Parse a task.

    Raises
    ------
    UnreadableInput
        If it is not JSON or not a task.
    """
    try:
        return Task.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole text"
        raise UnreadableInput("bad-task", where=where, message=f"{place}: {first['msg']}") from None


def open_lab(
    root: Path,
    *,
    solutions: Sequence[Solution] = (),
    earlier: Sequence[Earlier] = (),
    priors: Priors | None = None,
    evolve: EvolveConfig | None = None,
    written: Sequence[Solution] | None = None,
    generators: Mapping[str, GeneratorFactory] | None = None,
    cores: Sequence[int] = (),
    lab: LabSettings | None = None,
    judge_settings: JudgeSettings | None = None,
) -> LocalLab:
    extra = {solution.digest: solution for solution in solutions}
    asked: set[str] = {solution.definition for solution in solutions}

    def subject(name: str) -> catalog.KernelEntry:
        asked.add(name)
        return catalog.get(name)

    def find(digest: Digest) -> Solution | None:
        return extra.get(digest) or shipped(digest, sorted(asked))

    def occasion(plan: ExperimentPlan) -> GeneratorInput:
        incumbent = find(plan.incumbent)
        if incumbent is None:
            raise HarnessError(f"no source for the incumbent {plan.incumbent[:19]}")
        count = len(cores) or os.cpu_count() or 1
        made = occasion_of(plan, incumbent, cores=count, earlier=earlier)
        return dataclasses.replace(made, priors=priors, left_s=bench.search_left_s)

    if generators is None:
        makers = {**GENERATORS, **_evolution(evolve, written)}
        generators = {name: _bound(make, occasion) for name, make in makers.items()}
    bench = LocalLab(
        root,
        subjects=subject,
        solutions=find,
        generators=generators,
        advantages=priors.advantages() if priors is not None else {},
        cores=cores,
        lab=lab,
        judge_settings=judge_settings,
        earlier=earlier,
    )
    return bench


def shipped(digest: Digest, names: Sequence[str]) -> Solution | None:
    """Return the catalog's incumbent with this digest, of any of the definitions and languages."""
    for name in names:
        for language in _LANGUAGES:
            try:
                incumbent = catalog.get(name, language=language).incumbent
            except UsageError:  # not every definition has kernels in every language
                continue
            if incumbent.digest == digest:
                return incumbent
    return None


def occasion_of(
    plan: ExperimentPlan,
    incumbent: Solution,
    *,
    cores: int,
    earlier: Sequence[Earlier] = (),
    arch: str = "",
) -> GeneratorInput:
    """Return the input of the plan's generators.

    The plan's id seeds them, so an interrupted plan proposes the same candidates again. `arch`
    names a GPU that may be absent; empty or unknown uses the present device.
    """
    device = GPUS.get(arch) or facts_here(incumbent.language, cores=cores)
    entry = catalog.get(plan.definition, language=incumbent.language)
    return GeneratorInput(
        plan=plan,
        tunable=widen(entry, incumbent, device=device),
        incumbent=incumbent,
        cores=cores,
        seed=int.from_bytes(hashlib.sha256(plan.id.encode()).digest()[:4], "little"),
        device=device,
        earlier=tuple(earlier),
    )


def _evolution(
    config: EvolveConfig | None, written: Sequence[Solution] | None
) -> Mapping[str, Make]:
    """Return the evolution generator's factory, or one of written variants, by name.

    The mapping is empty without a configuration. `written` takes precedence.
    """
    if written is not None:
        return {EVOLVE: lambda _occasion: FixedGenerator(written)}
    if config is None:
        return {}
    # Only here: the client costs every experiment a third of a second otherwise.
    from retuned.lab.llm.setup import open_evolution

    return {EVOLVE: lambda occasion: open_evolution(config, occasion)}


def _bound(make: Make, occasion: Callable[[ExperimentPlan], GeneratorInput]) -> GeneratorFactory:
    return lambda plan: make(occasion(plan))


def lab_of(
    task: Task,
    *,
    generators: Mapping[str, GeneratorFactory] | None = None,
    written: Sequence[Solution] | None = None,
) -> LocalLab:
    """Return the lab that runs a task.

    `written` holds variants that a model has written elsewhere; None asks a model if the task names
    one.

    Raises
    ------
    UsageError
        If the plan's definition is unknown.
    """
    catalog.learn(task.definitions, unconfined_references=task.unconfined_references)
    lab = open_lab(
        Path(task.root),
        solutions=task.solutions,
        priors=task.priors,
        evolve=task.evolve,
        written=written,
        earlier=[record.restore() for record in task.earlier],
        generators=generators,
        cores=task.cores,
    )
    catalog.get(task.plan.definition)
    return lab


def run(
    task: Task, out: TextIO, *, generators: Mapping[str, GeneratorFactory] | None = None
) -> int:
    """Run a task; write each finding as soon as it is final; return the exit code."""
    lab = lab_of(task, generators=generators)
    known = {record.solution.digest: record.unwrap() for record in task.known}
    try:
        for finding in lab.run(task.plan, known=known):
            _write(out, finding_line(finding))
    except (HarnessError, MissingDependency) as error:
        _write(out, failed_line(error.code, str(error)))
        return error.exit_code
    _write(out, done_line())
    return 0


def _here(task: Task, role: PodRole) -> Digest:
    """Return this machine's environment for a task's language.

    A role that only generates has no such environment and returns the plan's; for a tunable the
    plan's is that of the servers' container.
    """
    if task.tunable is not None:
        return task.plan.environment
    incumbent = _incumbent(task)
    if role is PodRole.GENERATE:
        return task.plan.environment
    return environment_of(incumbent.language).digest


def _incumbent(task: Task) -> Solution:
    catalog.learn(task.definitions, unconfined_references=task.unconfined_references)
    catalog.get(task.plan.definition)  # an unknown definition is the clearer message
    named = task.plan.incumbent
    given = (each for each in task.solutions if each.digest == named)
    incumbent = next(given, None) or shipped(named, [task.plan.definition])
    if incumbent is None:
        raise HarnessError(f"no source for the incumbent {named[:19]}")
    return incumbent


def _hide_key(task: Task) -> None:
    if task.evolve is not None and task.evolve.key_variable:
        from retuned.lab.harness.sandbox import hide_memory

        hide_memory()


def _pod_lab(task: Task, role: PodRole, *, host: ServerHost | None = None) -> Bench:
    _hide_key(task)
    if task.tunable is not None:
        return open_tunable_lab(task.tunable, Path(task.root), host=host)
    if role is PodRole.GENERATE:
        return _generating_lab(task)
    if role is PodRole.COMPILE:
        return _compiling_lab(task)
    if role is PodRole.SEARCH:
        return lab_of(task, written=task.written)
    return lab_of(
        task, generators={FixedGenerator.name: lambda _plan: FixedGenerator(handed_of(task))}
    )


def _generating_lab(task: Task) -> GeneratingLab:
    """Return the lab that generates variants; without a model in the task it has no generator."""
    incumbent, config = _incumbent(task), task.evolve
    subject = catalog.get(task.plan.definition, language=incumbent.language)
    if config is None:
        return GeneratingLab(subject, None)
    from retuned.lab.llm.setup import open_evolution

    cores = len(task.cores) or os.cpu_count() or 1
    occasion = occasion_of(task.plan, incumbent, cores=cores, arch=task.arch)
    until = time.monotonic() + task.plan.budget.max_seconds
    occasion = dataclasses.replace(occasion, left_s=lambda: until - time.monotonic())
    return GeneratingLab(subject, open_evolution(config, occasion, arch=task.arch))


def _compiling_lab(task: Task) -> CompilingLab:
    incumbent, earlier = _incumbent(task), [record.restore() for record in task.earlier]
    cores = len(task.cores) or os.cpu_count() or 1

    def occasion(plan: ExperimentPlan) -> GeneratorInput:
        made = occasion_of(plan, incumbent, cores=cores, earlier=earlier, arch=task.arch)
        return dataclasses.replace(made, priors=task.priors)

    named = [name for name in task.plan.generators if name in SELF_CONTAINED]
    return CompilingLab(
        Path(task.root),
        arch=task.arch,
        subject=catalog.get(task.plan.definition, language=incumbent.language),
        incumbent=incumbent,
        written=task.written,
        generators=[_bound(SELF_CONTAINED[name], occasion) for name in named],
    )


def _resources(settings: PodSettings) -> PodResources[Task]:
    host = ServerHost(settings.host, wait_s=HOST_WAIT_S) if settings.host is not None else None
    return PodResources(
        read=lambda text, where: read_task(text, where=where),
        environment=_here,
        open=partial(_pod_lab, host=host),
        say=lambda line: _write(sys.stdout, line),
        beside=host if host is not None else nullcontext(),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the task from the file named, or from stdin."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        settings = pod_settings(os.environ)
        if settings is not None:
            return run_pod(words, settings, means=_resources(settings))
        text = Path(words[0]).read_text(encoding="utf-8") if words else sys.stdin.read()
        task = read_task(text, where=words[0] if words else "stdin")
        if task.cores:  # compilers too: servers keep the other cores
            os.sched_setaffinity(0, task.cores)
        _hide_key(task)
        return run(task, sys.stdout)
    except RetunedError as error:
        _write(sys.stdout, failed_line(type(error).__name__, str(error)))
        return error.exit_code
    except OSError as error:
        _write(sys.stdout, failed_line("unreadable", str(error)))
        return UnreadableInput.exit_code


def _write(out: TextIO, body: Mapping[str, Any]) -> None:
    out.write(json.dumps(body, separators=(",", ":"), allow_nan=False) + "\n")
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
