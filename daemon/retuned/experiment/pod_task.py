"""Pod task of an experiment, and how the pod's role changes it.

Environment variables in the Job's manifest give the pod's role and its folder of results.
``generate`` asks a model for variants and runs none. ``compile`` compiles without the device and
runs none. ``search`` runs the plan, without variants that could not be compiled. ``verify`` is
trusted: it takes only the source of the search's finalists, compiles it, and measures it again.
For a tunable ``verify`` is the only role: it searches and measures in the server's container.
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
ROLE, RESULTS, MESSAGE = "RETUNED_ROLE", "RETUNED_RESULTS_DIR", "RETUNED_MESSAGE_PATH"
HOST = "RETUNED_HOST_SOCKET"
"""Names of environment variables."""
COMPILE_GATES = ("G1", "G2")
"""Gates whose refusals are valid from a pod without the accelerator."""

_TaskT = TypeVar("_TaskT", bound=LabTask)


class PodRole(StrEnum):
    GENERATE = "generate"
    """Generates variants; only this role reaches the model, and it compiles and runs nothing."""
    COMPILE = "compile"
    SEARCH = "search"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """Settings from the manifest."""

    role: PodRole
    results: Path
    message: Path | None = None
    host: Path | None = None
    """Socket of the host in the server's container; None without such a container."""


def pod_settings(environment: Mapping[str, str]) -> PodSettings | None:
    """Return the manifest's settings; None outside a pod of an experiment.

    Raises
    ------
    UsageError
        If the role is unknown, or the folder of results is missing.
    """
    role, results = environment.get(ROLE), environment.get(RESULTS, "")
    if role is None:
        return None
    if role not in set(PodRole):
        known = ", ".join(PodRole)
        raise UsageError(f"{ROLE}: the lab has no role {role[:40]!r}; there are {known}")
    if not Path(results).is_absolute():
        raise UsageError(f"{RESULTS}: {results[:80]!r} is not an absolute path of a folder")
    message, host = environment.get(MESSAGE, ""), environment.get(HOST, "")
    if host and not Path(host).is_absolute():
        raise UsageError(f"{HOST}: {host[:80]!r} is not an absolute path of a socket")
    return PodSettings(
        role=PodRole(role),
        results=Path(results),
        message=Path(message) if message else None,
        host=Path(host) if host else None,
    )


def read_mounted(path: Path) -> str:
    """Return the text of a task as a ConfigMap is mounted: a link to a regular file.

    Raises
    ------
    UnreadableInput
        If it is missing, too long or not text.
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
    """A generator that proposes the given variants, without the incumbent, once and in order."""

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
        given, self._left = self._left[:count], self._left[count:]
        return given


def for_pod(task: _TaskT, *, role: PodRole, root: Path, here: Digest) -> _TaskT:
    """Return the task for the role, in an unused, empty folder `root`.

    The servers' environment and the lab's environment `here` always have different digests. The
    plan names the servers'. The operator compares the two fact by fact in the evidence, so the lab
    uses its own. An experiment on a tunable runs in the servers' environment.

    Raises
    ------
    UnreadableInput
        If the task has no variant to verify, or a task on a tunable comes to another role.
    """
    if task.tunable is not None:
        if role is not PodRole.VERIFY:
            message = f"{task.plan.definition} is a tunable, and the role {role} is for kernels"
            raise UnreadableInput("bad-task", where="plan.definition", message=message)
        return task.model_copy(update={"root": str(root), "known": ()})
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
    """Yield refusals of a compile pod as findings at the plan's shapes.

    Only refusals of the contract and the compiler are accepted, because that pod did not measure. A
    false refusal can only prevent a variant from being tried.
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
    """Return the variants for a trusted pod: the task's variants of the plan's definition."""
    plan = task.plan
    found = {
        each.digest: each
        for each in task.solutions
        if each.digest != plan.incumbent and each.definition == plan.definition
    }
    return tuple(found.values())
