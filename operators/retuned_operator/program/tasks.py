"""What pods of an experiment are told: the plan, and what those before them have found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from retuned.adapters.lab_wire import FindingRecord
from retuned.adapters.pod_task import COMPILE_GATES
from retuned.catalog import own_definition
from retuned.catalog.own import OwnDefinition
from retuned.contract import Digest, Record, Solution, TrustClass
from retuned.ports import Finding, Store
from retuned.stages.verdict import Status
from retuned_operator.crds import JobRole, KernelExperiment
from retuned_operator.manifests.jobs import MAX_TASK_BYTES, WORK_DIR
from retuned_operator.program.asking import LlmQuota
from retuned_operator.program.kinds import SOLUTION
from retuned_operator.program.live_kernels import LiveKernels
from retuned_operator.program.results import PodResult, ResultFolder

_MAX_SOLUTIONS = 8
_NAMES_BYTES = 1024
"""Of a task, for names of lists that are empty yet."""


class Tasks:
    """Makes tasks.

    Parameters
    ----------
    store
        Variants that earlier experiments won.
    results
        What pods have told.
    live
        Live kernels of servers.
    asking
        How pods ask a model for variants; None where none does.
    """

    def __init__(
        self,
        store: Store,
        results: ResultFolder,
        *,
        live: LiveKernels,
        asking: LlmQuota | None,
    ) -> None:
        self._store = store
        self._results = results
        self._live = live
        self._asking = asking

    def task(self, experiment: KernelExperiment, role: JobRole, *, arch: str = "") -> str:
        """Return the lab's task; a trusted Job gets the finalists, and nobody's numbers.

        What has no room in a ConfigMap is left out: the search compiles it itself.
        """
        plan = experiment.spec.stage_plan()
        own = self.own(experiment)
        solutions = [self._solution(plan.incumbent)]
        if role is JobRole.VERIFY:
            solutions += self._finalists(experiment)
        body: dict[str, Any] = {
            "plan": plan.model_dump(mode="json"),
            "root": WORK_DIR,
            "solutions": [each.model_dump(mode="json") for each in solutions if each],
            "definitions": [] if own is None else [own.model_dump(mode="json")],
        }
        if role is not JobRole.VERIFY:
            body["arch"] = arch
        if role is JobRole.GENERATE and self._asking is not None:
            budget = plan.budget.model_copy(update=self._asking.bounds())
            body["plan"] = plan.model_copy(update={"budget": budget}).model_dump(mode="json")
            before = sum(ref.role is role for ref in experiment.status.job_refs)
            attempt = f"{experiment.metadata.uid}/{before}"
            # who does not know what it writes for would be told of another device
            body["evolve"] = self._asking.config(attempt) if arch else None
        if role in (JobRole.COMPILE, JobRole.SEARCH):
            body["written"] = _fitting(body, self._written(experiment))
        if role is JobRole.SEARCH:
            refused = map(FindingRecord.of, self._refused(experiment))
            body["refused"] = _fitting(body, refused)
        return json.dumps(body, sort_keys=True, separators=(",", ":"))

    def own(self, experiment: KernelExperiment) -> OwnDefinition | None:
        """Return the definition that a pod cannot know by itself: a live kernel's, or a user's."""
        name = experiment.spec.kernel.name
        return self._live.find(target_of(experiment), name) or own_definition(name)

    def told(self, experiment: KernelExperiment, role: JobRole) -> list[Finding]:
        """Return what the pod of a role has told whose result counts, in its order."""
        refs = [r for r in experiment.status.job_refs if r.role is role and r.result]
        return [
            finding
            for ref in refs
            for result in self.of(experiment, ref.name)
            if result.pod_uid == ref.result
            for finding in result.findings
        ]

    def of(self, experiment: KernelExperiment, job: str) -> Sequence[PodResult]:
        """Return what the pods of a Job have told."""
        return self._results.of(experiment.metadata.uid, job)

    def _solution(self, digest: Digest) -> Solution | None:
        """Return a variant that an earlier experiment won; None for one of the catalog."""
        stored = self._store.get(SOLUTION, digest)
        return Solution.model_validate(stored.body) if stored is not None else None

    def _written(self, experiment: KernelExperiment) -> list[Solution]:
        """Return what a model has written; whatever the pod says, a stranger is its author."""
        return [
            each.solution.model_copy(update={"trust": TrustClass.GENERATED})
            for each in self.told(experiment, JobRole.GENERATE)
            if each.solution.definition == experiment.spec.kernel.name
        ]

    def _refused(self, experiment: KernelExperiment) -> list[Finding]:
        """Return what could not be compiled; of anything else a pod that compiles knows nothing."""
        return [
            each
            for each in self.told(experiment, JobRole.COMPILE)
            if each.verdict.status is Status.REJECT and each.verdict.gate in COMPILE_GATES
        ]

    def _finalists(self, experiment: KernelExperiment) -> list[Solution]:
        """Return what the search would promote, best first."""
        told = self.told(experiment, JobRole.SEARCH)
        found = [each for each in told if each.verdict.status is Status.PROMOTE]
        ordered = sorted(
            found, key=lambda f: -(f.verdict.speedup.lower if f.verdict.speedup else 0)
        )
        return [
            each.solution
            for each in ordered[: min(_MAX_SOLUTIONS, experiment.spec.budget.finalists)]
        ]


def _fitting(task: Mapping[str, Any], records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return records as JSON, the first ones, as many as there is still room for in a task."""
    found: list[dict[str, Any]] = []
    left = MAX_TASK_BYTES - _NAMES_BYTES - len(json.dumps(task))
    for each in records:
        body = each.model_dump(mode="json")
        left -= len(json.dumps(body)) + 1
        if left < 0:
            break
        found.append(body)
    return found


def target_of(experiment: KernelExperiment) -> str:
    """Return the target of an experiment, ``namespace/name``."""
    return f"{experiment.metadata.namespace}/{experiment.spec.target_ref.name}"
