"""What a pod of an experiment is told, and how its role changes the task.

The manifest of a Job says by environment variables which role the pod has and where its results
go. ``generate`` asks a model for variants and runs nothing; ``compile`` compiles without the
device, and runs nothing either. ``search`` carries the plan out, less what could not be compiled.
``verify`` is the trusted one: of what the search said it takes the source of its finalists and
nothing else, compiles it itself, and measures it from zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from retuned.contract import Definition, Digest, Solution, Workload
from retuned.errors import UnreadableInput, UsageError
from retuned.experiment.messages import EarlierRecord, LabTask
from retuned.files import NotPlain, read_plain
from retuned.ports import Finding
from retuned.stages.verdict import Status

MAX_TASK_BYTES = 1 << 20
"""A ConfigMap holds no more."""
ROLE, RESULTS, MESSAGE = "RETUNED_ROLE", "RETUNED_RESULTS_DIR", "RETUNED_MESSAGE_PATH"
"""Names of the variables."""
COMPILE_GATES = ("G1", "G2")
"""Gates that a pod without the accelerator may speak for."""

_TaskT = TypeVar("_TaskT", bound=LabTask)


class PodRole(StrEnum):
    """What a pod with the lab does."""

    GENERATE = "generate"
    """Has variants written; it alone reaches the model, and compiles and runs nothing."""
    COMPILE = "compile"
    """Compiles what a search would try, without the accelerator."""
    SEARCH = "search"
    """Tries variants; nobody trusts its numbers."""
    VERIFY = "verify"
    """Measures what a search promoted, from zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """What the manifest says."""

    role: PodRole
    """What this pod does."""
    results: Path
    """Folder of this pod alone, for what it found."""
    message: Path | None = None
    """File of the termination message; None where nobody reads one."""


def pod_settings(environment: Mapping[str, str]) -> PodSettings | None:
    """Return what the manifest says; None where this is no pod of an experiment.

    Raises
    ------
    UsageError
        If the role is none of the lab's, or the results have no folder.
    """
    role, results = environment.get(ROLE), environment.get(RESULTS, "")
    if role is None:
        return None
    if role not in set(PodRole):
        known = ", ".join(PodRole)
        raise UsageError(f"{ROLE}: the lab has no role {role[:40]!r}; there are {known}")
    if not Path(results).is_absolute():
        raise UsageError(f"{RESULTS}: {results[:80]!r} is no absolute path of a folder")
    message = environment.get(MESSAGE, "")
    return PodSettings(
        role=PodRole(role), results=Path(results), message=Path(message) if message else None
    )


def read_mounted(path: Path) -> str:
    """Return the text of a task as a ConfigMap is mounted: a link to a regular file.

    Raises
    ------
    UnreadableInput
        If there is none, or it is too long or no text.
    """
    try:
        data = read_plain(path, max_bytes=MAX_TASK_BYTES)
        if data is not None:
            return data.decode()
        problem = f"it is longer than {MAX_TASK_BYTES} bytes"
    except (NotPlain, UnicodeDecodeError) as error:
        problem = str(error)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    raise UnreadableInput("bad-task", where=str(path), message=problem)


class FixedGenerator:
    """A generator that proposes what it was handed, once and in that order.

    Parameters
    ----------
    solutions
        Without the incumbent.
    """

    name = "handed"

    def __init__(self, solutions: Sequence[Solution]) -> None:
        self._left = list(solutions)

    def propose(
        self,
        definition: Definition,
        workloads: Sequence[Workload],
        *,
        history: Sequence[Finding],
        count: int,
    ) -> Sequence[Solution]:
        """Return the next ones; see `Generator`."""
        given, self._left = self._left[:count], self._left[count:]
        return given


def for_pod(task: _TaskT, *, role: PodRole, root: Path, here: Digest) -> _TaskT:
    """Return the task as the role carries it out, in a folder that nobody has used before.

    What servers run on and what a lab runs on never have one digest. The plan names the servers';
    the operator compares the two fact by fact, in the evidence, so the lab takes its own.

    Parameters
    ----------
    root
        Empty folder.
    here
        Environment of this lab.

    Raises
    ------
    UnreadableInput
        If there is nothing to verify.
    """
    plan = task.plan.model_copy(update={"environment": here})
    task = task.model_copy(update={"root": str(root), "plan": plan, "known": ()})
    if role is PodRole.SEARCH:
        return task.model_copy(update={"earlier": (*task.earlier, *_refused(task)), "evolve": None})
    if role is not PodRole.VERIFY:
        return task
    count = len(handed_of(task))
    if not count:
        message = f"it has no variant of {plan.definition} to verify"
        raise UnreadableInput("bad-task", where="solutions", message=message)
    budget = plan.budget.model_copy(
        update={"max_candidates": count, "finalists": min(count, plan.budget.finalists)}
    )
    plan = plan.model_copy(
        update={"generators": (FixedGenerator.name,), "structures": (), "budget": budget}
    )
    trusted = {
        "plan": plan,
        "earlier": (),
        "priors": None,
        "evolve": None,
        "written": (),
        "refused": (),
    }
    return task.model_copy(update=trusted)


def _refused(task: LabTask) -> Iterator[EarlierRecord]:
    """Yield what a pod could not compile, as if it had been found here: at the plan's shapes.

    Only refusals of the contract and the compiler: whoever told them has measured nothing. The
    worst that a lie can do here is that a variant is not tried.
    """
    plan = task.plan
    for each in task.refused:
        verdict = each.verdict
        if verdict.status is Status.REJECT and verdict.gate in COMPILE_GATES:
            yield EarlierRecord(
                solution=each.solution,
                verdict=verdict,
                seconds=0.0,
                definition=each.definition,
                environment=plan.environment,
                arch=task.arch,
                workloads=plan.workloads,
            )


def handed_of(task: LabTask) -> tuple[Solution, ...]:
    """Return what a trusted pod measures: the task's variants of the plan's definition."""
    plan = task.plan
    found = {
        each.digest: each
        for each in task.solutions
        if each.digest != plan.incumbent and each.definition == plan.definition
    }
    return tuple(found.values())
