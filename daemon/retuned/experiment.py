"""The experiment as a program: a plan comes in as JSON, findings go out as JSON lines.

The daemon starts it as a child that it can kill; a pod runs the same. One object on stdin or in a
file::

    {"plan": ExperimentPlan, "root": "folder", "cores": [1], "known": [finding...],
     "solutions": [Solution...], "definitions": [OwnDefinition...],
     "earlier": [finding with environment and arch...],
     "evolve": EvolveConfig or null}

``solutions`` are variants that the catalog does not have, such as an incumbent that an earlier
experiment found; ``definitions`` are users' own kernels. Each answer is one line:
``{"finding": {...}}``, and at the end ``{"done": true}`` or ``{"failed": {"code", "message"}}``.
Exit codes: 0 done, 3 unreadable plan, 4 no compiler, 5 the lab failed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from pydantic import Field, ValidationError

from retuned import catalog
from retuned.adapters.local_lab import LocalLab
from retuned.catalog.own import OwnDefinition
from retuned.contract import Digest, Language, Record, Solution, Workload
from retuned.errors import (
    HarnessError,
    MissingDependency,
    RetunedError,
    UnreadableInput,
    UsageError,
)
from retuned.lab.bay import LabSettings
from retuned.lab.generators.devices import facts_here
from retuned.lab.generators.evolve import EvolveConfig
from retuned.lab.generators.inference import widen
from retuned.lab.generators.occasion import SELF_CONTAINED, Make, Occasion
from retuned.lab.generators.porting import Earlier
from retuned.ports import Finding, Generator
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.verdict import JudgeSettings, Verdict

_LANGUAGES = (Language.CPU_CPP, Language.TRITON)
"""Languages that the catalog has kernels in."""

GeneratorFactory = Callable[[ExperimentPlan], Generator]
"""Makes a generator for a plan."""

GENERATORS: Mapping[str, Make] = {**SELF_CONTAINED}
"""Every generator that a plan may name. One that needs an adapter adds its factory here."""


class FindingRecord(Record):
    """A finding as it crosses the process."""

    solution: Solution
    """What was tried."""
    verdict: Verdict
    """What the judge said."""
    seconds: float = Field(ge=0.0)
    """Wall time it cost."""

    @classmethod
    def of(cls, finding: Finding) -> FindingRecord:
        """Wrap a finding."""
        return cls(solution=finding.solution, verdict=finding.verdict, seconds=finding.seconds)

    def unwrap(self) -> Finding:
        """Return the finding."""
        return Finding(solution=self.solution, verdict=self.verdict, seconds=self.seconds)


class EarlierRecord(FindingRecord):
    """A finding of an earlier experiment as it crosses the process."""

    environment: Digest
    """Digest of the environment it was found in."""
    arch: str = ""
    """Architecture of that environment; empty where it is not known."""
    workloads: tuple[Workload, ...] = ()
    """Shapes it was measured at."""

    def restore(self) -> Earlier:
        """Return the finding with where it comes from."""
        return Earlier(
            finding=self.unwrap(),
            environment=self.environment,
            arch=self.arch,
            workloads=self.workloads,
        )


class Task(Record):
    """What the program is asked to do."""

    plan: ExperimentPlan
    """The plan."""
    root: str
    """Private folder for compiled objects, artifacts and raw numbers."""
    cores: tuple[int, ...] = ()
    """Cores that candidates may use; empty means all."""
    known: tuple[FindingRecord, ...] = ()
    """Findings of an earlier, interrupted run."""
    solutions: tuple[Solution, ...] = ()
    """Variants that the catalog does not have."""
    definitions: tuple[OwnDefinition, ...] = ()
    """Users' own definitions, by content: their files may be elsewhere."""
    earlier: tuple[EarlierRecord, ...] = ()
    """What other experiments found on the same operator."""
    evolve: EvolveConfig | None = None
    """How a language model is asked for variants; None where it is not."""


def read_task(text: str, *, where: str) -> Task:
    """Read a task.

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
    evolve: EvolveConfig | None = None,
    generators: Mapping[str, GeneratorFactory] | None = None,
    cores: Sequence[int] = (),
    lab: LabSettings | None = None,
    judge_settings: JudgeSettings | None = None,
) -> LocalLab:
    """Return a lab over the catalog; `solutions` are variants that it does not have."""
    extra = {solution.digest: solution for solution in solutions}
    asked: set[str] = {solution.definition for solution in solutions}

    def subject(name: str) -> catalog.Entry:
        asked.add(name)
        return catalog.get(name)

    def find(digest: Digest) -> Solution | None:
        return extra.get(digest) or shipped(digest, sorted(asked))

    def occasion(plan: ExperimentPlan) -> Occasion:
        incumbent = find(plan.incumbent)
        if incumbent is None:
            raise HarnessError(f"no source for the incumbent {plan.incumbent[:19]}")
        count = len(cores) or os.cpu_count() or 1
        return occasion_of(plan, incumbent, cores=count, earlier=earlier)

    if generators is None:
        makers = {**GENERATORS, **_evolution(evolve)}
        generators = {name: _bound(make, occasion) for name, make in makers.items()}
    return LocalLab(
        root,
        subjects=subject,
        solutions=find,
        generators=generators,
        cores=cores,
        lab=lab,
        judge_settings=judge_settings,
    )


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
    plan: ExperimentPlan, incumbent: Solution, *, cores: int, earlier: Sequence[Earlier] = ()
) -> Occasion:
    """Return what the plan's generators are made from.

    The plan's id seeds them: an interrupted plan, run again, proposes the same again.
    """
    device = facts_here(incumbent.language, cores=cores)
    entry = catalog.get(plan.definition, language=incumbent.language)
    return Occasion(
        plan=plan,
        tunable=widen(entry, incumbent, device=device),
        incumbent=incumbent,
        cores=cores,
        seed=int.from_bytes(hashlib.sha256(plan.id.encode()).digest()[:4], "little"),
        device=device,
        earlier=tuple(earlier),
    )


def _evolution(config: EvolveConfig | None) -> Mapping[str, Make]:
    """Return the factory that needs an endpoint; none where none is set."""
    if config is None:
        return {}
    # Only here: the client costs every experiment a third of a second otherwise.
    from retuned.adapters.evolution import open_evolution

    return {"evolve": lambda occasion: open_evolution(config, occasion)}


def _bound(make: Make, occasion: Callable[[ExperimentPlan], Occasion]) -> GeneratorFactory:
    return lambda plan: make(occasion(plan))


def run(
    task: Task, out: TextIO, *, generators: Mapping[str, GeneratorFactory] | None = None
) -> int:
    """Carry out a task; write each finding as soon as it is final; return the exit code."""
    catalog.learn(task.definitions)
    lab = open_lab(
        Path(task.root),
        solutions=task.solutions,
        evolve=task.evolve,
        earlier=[record.restore() for record in task.earlier],
        generators=generators,
        cores=task.cores,
    )
    catalog.get(task.plan.definition)
    known = {record.solution.digest: record.unwrap() for record in task.known}
    try:
        for finding in lab.run(task.plan, known=known):
            _write(out, {"finding": FindingRecord.of(finding).model_dump(mode="json")})
    except (HarnessError, MissingDependency) as error:
        code = "missing-dependency" if isinstance(error, MissingDependency) else "harness-failed"
        _write(out, {"failed": {"code": code, "message": str(error)}})
        return error.exit_code
    _write(out, {"done": True})
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the task from the file named, or from stdin."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        text = Path(words[0]).read_text(encoding="utf-8") if words else sys.stdin.read()
        task = read_task(text, where=words[0] if words else "stdin")
        if task.cores:  # compilers too: whoever serves requests keeps the other cores
            os.sched_setaffinity(0, task.cores)
        if task.evolve is not None and task.evolve.key_variable:
            from retuned.adapters.evolution import hide_memory

            hide_memory()
        return run(task, sys.stdout)
    except RetunedError as error:
        _write(sys.stdout, {"failed": {"code": type(error).__name__, "message": str(error)}})
        return error.exit_code
    except OSError as error:
        _write(sys.stdout, {"failed": {"code": "unreadable", "message": str(error)}})
        return UnreadableInput.exit_code


def _write(out: TextIO, body: Mapping[str, Any]) -> None:
    out.write(json.dumps(body, separators=(",", ":"), allow_nan=False) + "\n")
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
