"""The operator's store for controllers and the agent API: results, evidence, hypotheses, code.

Records and signed evidence are in one SQLite file and a folder of blobs, as on one machine. The
operator computes the result of an experiment's pod again before it signs and uses it. It copies the
artifact and signs it for the target of the proposal.

Tasks for pods of an experiment: the plan, and the findings of earlier pods.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from retuned.api.agent import ProfileReport
from retuned.catalog import own_definition
from retuned.catalog.user import OwnDefinition
from retuned.catalog.user.launch_rules import launch_data_of
from retuned.contract import Digest, Guard, Record, Solution, TrustClass
from retuned.control import ResultFact
from retuned.errors import CandidateError, TemporaryError, UnreadableInput
from retuned.experiment.messages import FindingRecord
from retuned.experiment.pod_task import COMPILE_GATES
from retuned.lab.evidence_check import wrong_with
from retuned.ports import Finding, Spans, Store, Verifier
from retuned.stages.hypothesis import Hypothesis
from retuned.stages.proposal import Lesson, Proposal, TableText, is_tunable, verified
from retuned.stages.verdict import (
    Claim,
    Doubt,
    EvidenceFault,
    ServerEnvironment,
    Status,
    differences,
    doubt_of,
)
from retuned.store.envelopes import payload_of, seal, unseal
from retuned.store.keys import Ed25519Notary
from retuned.store.lessons import LESSON, keep, kept
from retuned.telemetry.spans import NoSpans
from retuned_operator.agent_api.ports import PodRecord, Receipt, Said
from retuned_operator.controllers.ports import (
    OpenDrift,
    ProvenTable,
    TunableSource,
    TunableSources,
    VerifiedWin,
)
from retuned_operator.llm_quota import LlmQuota
from retuned_operator.manifests import ServerImage
from retuned_operator.manifests.jobs import MAX_TASK_BYTES, WORK_DIR
from retuned_operator.schema import JobRole, KernelExperiment
from retuned_operator.store.artifacts import ArtifactFolders, is_bound
from retuned_operator.store.kernels import LiveKernels
from retuned_operator.store.reports import HYPOTHESIS, SOLUTION, StoreInbox
from retuned_operator.store.results import Collector, PodResult, ResultFolder
from retuned_operator.store.tables import TableStore
from retuned_operator.store.tunables import PodTunables

_MAX_SOLUTIONS = 8
_NAMES_BYTES = 1024
"""Of a task, for names of lists that are empty yet."""
_RETRY_S = 15.0


class NoTunables:
    """A `TunableSources` of an operator without posts of tunables."""

    def source(self, target: str, tunable: str) -> TunableSource | None:
        return None


class Tasks:
    """Makes tasks.

    Parameters
    ----------
    store
        Winners of earlier experiments.
    results
        Results of pods.
    live
        Live kernels of servers.
    asking
        How pods ask a model for variants; None where none does.
    tunables
        What sidecars report about tunables.
    """

    def __init__(
        self,
        store: Store,
        results: ResultFolder,
        *,
        live: LiveKernels,
        asking: LlmQuota | None,
        tunables: TunableSources,
    ) -> None:
        self._tunables = tunables
        self._store = store
        self._results = results
        self._live = live
        self._asking = asking

    def task(self, experiment: KernelExperiment, role: JobRole, *, arch: str = "") -> str:
        """Return the lab's task; a trusted Job gets the finalists without their measurements.

        What has no room in a ConfigMap is left out: the search compiles it itself. For a tunable
        the task has what the servers report.
        """
        plan = experiment.spec.stage_plan()
        source = self._source(experiment)
        if source is not None:
            inputs = source.inputs.for_plan(plan)
            return json.dumps(
                {
                    "plan": plan.model_dump(mode="json"),
                    "root": WORK_DIR,
                    "tunable": inputs.model_dump(mode="json", exclude_unset=True),
                },
                sort_keys=True,
                separators=(",", ":"),
            )
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
            # without a device the prompt could describe a wrong one
            body["evolve"] = self._asking.config(attempt) if arch else None
        if role in (JobRole.COMPILE, JobRole.SEARCH):
            body["written"] = _fitting(body, self._written(experiment))
        if role is JobRole.SEARCH:
            refused = map(FindingRecord.of, self._refused(experiment))
            body["refused"] = _fitting(body, refused)
        return json.dumps(body, sort_keys=True, separators=(",", ":"))

    def server(self, experiment: KernelExperiment) -> ServerImage | None:
        """Return the image of the servers, for an experiment on a tunable; None for kernels."""
        source = self._source(experiment)
        return source.server if source is not None else None

    def _source(self, experiment: KernelExperiment) -> TunableSource | None:
        """Return what servers report about the tunable of an experiment; None for kernels.

        Raises
        ------
        TemporaryError
            If no server reports it now.
        Refused
            As `TunableSources.source`.
        """
        name, target = experiment.spec.kernel.name, target_of(experiment)
        if not is_tunable(name):
            return None
        source = self._tunables.source(target, name)
        if source is None:
            raise TemporaryError(f"no server of {target} reports {name} now", delay_s=_RETRY_S)
        return source

    def own(self, experiment: KernelExperiment) -> OwnDefinition | None:
        """Return the definition that a pod cannot know by itself: a live kernel's, or a user's."""
        name = experiment.spec.kernel.name
        return self._live.find(target_of(experiment), name) or own_definition(name)

    def told(self, experiment: KernelExperiment, role: JobRole) -> list[Finding]:
        """Return the findings of the pod of a role whose result counts, in its order."""
        refs = [r for r in experiment.status.job_refs if r.role is role and r.result]
        return [
            finding
            for ref in refs
            for result in self.of(experiment, ref.name)
            if result.pod_uid == ref.result
            for finding in result.findings
        ]

    def of(self, experiment: KernelExperiment, job: str) -> Sequence[PodResult]:
        """Return the results of the pods of a Job."""
        return self._results.of(experiment.metadata.uid, job)

    def _solution(self, digest: Digest) -> Solution | None:
        """Return a variant that an earlier experiment won; None for one of the catalog."""
        stored = self._store.get(SOLUTION, digest)
        return Solution.model_validate(stored.body) if stored is not None else None

    def _written(self, experiment: KernelExperiment) -> list[Solution]:
        """Return the variants that a model wrote; they are untrusted, whatever the pod reports."""
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


log = logging.getLogger(__name__)

_PASSING = frozenset({"key-unreadable", "blob-unreadable"})


class StoreLedger:
    """The `Ledger`, and the `Inbox` that lasts.

    Parameters
    ----------
    store
        Records and blobs.
    notary
        Signs evidence and artifacts.
    artifacts
        Folder of artifacts by digest.
    results
        Results of pods.
    live
        Live kernels of servers; made over `store` by default.
    heard
        Called with every window that a pod reports for the first time.
    collector
        Fetches results of pods; None if another part does.
    spans
        What is being done, for traces; off by default.
    asking
        How pods ask a model for variants; None where none does.
    tunables
        What sidecars report about tunables; none by default.
    """

    def __init__(
        self,
        store: Store,
        notary: Ed25519Notary,
        *,
        artifacts: Path,
        results: ResultFolder,
        collector: Collector | None = None,
        live: LiveKernels | None = None,
        posts: PodTunables | None = None,
        heard: Callable[[PodRecord, ProfileReport], None] = lambda _pod, _said: None,
        spans: Spans | None = None,
        asking: LlmQuota | None = None,
        tunables: TunableSources | None = None,
    ) -> None:
        live = live or LiveKernels(store)
        self._inbox = StoreInbox(
            store,
            live=live,
            tunables=posts or PodTunables(),
            heard=heard,
            spans=spans or NoSpans(),
        )
        self._tasks = Tasks(
            store, results, live=live, asking=asking, tunables=tunables or NoTunables()
        )
        self._store = store
        self._notary = notary
        self._artifacts = ArtifactFolders(artifacts, notary)
        self._tables = TableStore(store, self._artifacts)
        self._results = results
        self._collector = collector

    # --- what experiments found -------------------------------------------------------------------

    def collect(self, experiment: KernelExperiment) -> None:
        """Read what came; see `Ledger.collect`."""
        if self._collector is not None:
            self._collector.collect(experiment)

    def results(self, experiment: KernelExperiment) -> Sequence[ResultFact]:
        """Read what came, and return the complete results of all known Jobs; `Ledger.results`."""
        self.collect(experiment)
        return tuple(
            result.fact(ref.role)
            for ref in experiment.status.job_refs
            for result in self._tasks.of(experiment, ref.name)
        )

    def lost(self, experiment: KernelExperiment) -> Mapping[str, str]:
        """Return the Jobs whose results are gone for good; see `Ledger.lost`."""
        return self._collector.lost(experiment) if self._collector is not None else {}

    def win(self, experiment: KernelExperiment, *, job: str, pod_uid: str) -> VerifiedWin | None:
        """Check, sign and keep what a pod proved; see `Ledger.win`."""
        found = next((r for r in self._tasks.of(experiment, job) if r.pod_uid == pod_uid), None)
        best = found.best() if found is not None else None
        if found is None or best is None:
            return None
        uid, named = experiment.metadata.uid, best.verdict.evidence
        raw = self._results.evidence(uid, found, named) if named is not None else None
        doubt = (
            wrong_with(raw, experiment.spec.stage_plan(), best, environment=None) if raw else None
        )
        if raw is None or doubt is not None:
            why = doubt.detail if doubt else "it left no evidence"
            log.error("%s: the evidence of %s is not valid: %s", uid, pod_uid, why)
            return None
        table = None
        if is_tunable(experiment.spec.kernel.name):
            table = self._read_table(experiment, best.solution)
            if table is None:
                return None
        elif not self._keep_artifact(experiment, found, best.solution):
            log.error("%s: %s left no artifact of %s", uid, pod_uid, best.solution.digest)
            return None
        digest = self._store.put_blob(seal(raw, notary=self._notary))
        verdict = best.verdict.model_copy(update={"evidence": digest})
        return VerifiedWin(verdict=verdict, trust=best.solution.trust, table=table)

    def keep_proof(self, document: bytes) -> Digest:
        """Sign and keep the pairs of a live proof; see `Ledger.keep_proof`."""
        return self._store.put_blob(seal(document, notary=self._notary))

    def proof(self, digest: Digest) -> bytes | None:
        """Return a document of `keep_proof`; see `Ledger.proof`."""
        return read_proof(self._store, self._notary, digest)

    def keep_lesson(self, lesson: Lesson, *, id: str, target: str) -> None:
        """Sign and keep a lesson; see `Ledger.keep_lesson`."""
        name = f"{target}/{id}"
        if self._store.get(LESSON, name) is None:
            keep(self._store, lesson, id=name, notary=self._notary)

    def lessons(self, target: str) -> Sequence[Lesson]:
        """Return the lessons of a target; see `Ledger.lessons`."""
        return kept(self._store, prefix=f"{target}/", verifier=self._notary)

    def task(self, experiment: KernelExperiment, role: JobRole, *, arch: str = "") -> str:
        """Return the lab's task; see `Ledger.task` and `Tasks`."""
        return self._tasks.task(experiment, role, arch=arch)

    def server(self, experiment: KernelExperiment) -> ServerImage | None:
        """Return the image of the servers, for a tunable; see `Ledger.server`."""
        return self._tasks.server(experiment)

    def doubt(
        self, proposal: Proposal, *, servers: Sequence[ServerEnvironment]
    ) -> EvidenceFault | None:
        """Return why evidence does not support a proposal; see `Ledger.doubt`.

        A digest of what a lab ran on and one of what servers run on never are the same: what
        decides is compared, one by one.
        """
        if proposal.evidence is None:
            return EvidenceFault.MISSING
        try:
            document, doubt = unseal(self._store.get_blob(proposal.evidence), verifier=self._notary)
        except UnreadableInput as error:
            if error.code in _PASSING:
                raise TemporaryError(str(error), delay_s=_RETRY_S) from error
            missing = error.code == "blob-missing"
            return EvidenceFault.MISSING if missing else EvidenceFault.ALTERED
        if doubt is not None or document is None:
            return doubt.fault if doubt else EvidenceFault.UNREADABLE
        candidate = proposal.artifact
        if is_tunable(proposal.definition):
            proven = self._tables.proven(proposal)
            if proven is None:
                return EvidenceFault.CONTRADICTED
            candidate = proven
        claim = Claim(
            candidate=candidate,
            incumbent=proposal.baseline,
            plan=proposal.experiment,
            environment=document.environment.digest,
            guard=proposal.guard,
            speedup=proposal.speedup,
            trust=proposal.trust,
        )
        found = doubt_of(document, claim)
        if found is not None:
            return found.fault
        apart = [d for each in servers for d in differences(document.environment, each)]
        return EvidenceFault.OTHER_ENVIRONMENT if any(d.decides for d in apart) else None

    def belief(self, id: str) -> Hypothesis | None:
        """Return a hypothesis; see `Ledger.belief`."""
        stored = self._store.get(HYPOTHESIS, id)
        return Hypothesis.model_validate(stored.body) if stored is not None else None

    def findings(self, experiment: KernelExperiment) -> Sequence[Finding]:
        """Return what is known of each candidate; see `Ledger.findings`."""
        found: dict[Digest, Finding] = {}
        for role in (JobRole.SEARCH, JobRole.VERIFY):
            found |= {each.solution.digest: each for each in self._tasks.told(experiment, role)}
        return tuple(found.values())

    def drifts(self, target: str) -> Sequence[OpenDrift]:
        """Return the reports that ask for something and are still to be answered."""
        return self._inbox.drifts(target)

    def answered(self, drifted: OpenDrift) -> None:
        """Note that a report has been answered."""
        self._inbox.answered(drifted)

    def take(self, receipt: Receipt, said: Said) -> None:
        """Keep a message of a sidecar; see `StoreInbox`."""
        self._inbox.take(receipt, said)

    def believe(self, belief: Hypothesis) -> None:
        """Store a hypothesis."""
        self._store.add(HYPOTHESIS, belief.id, belief.model_dump(mode="json"), phase="open")

    # --- code -------------------------------------------------------------------------------------

    def artifact(self, digest: Digest) -> Mapping[str, bytes] | None:
        """Return the files of an artifact; see `ArtifactFolders.files`."""
        return self._artifacts.files(digest)

    def keep_table(
        self, table: TableText, solution: Solution, *, guard: Guard, target: str
    ) -> None:
        """Keep the text of a table; see `Ledger.keep_table`."""
        self._tables.keep(table, solution, guard=guard, target=target)

    def table(self, digest: Digest) -> ProvenTable | None:
        """Return a table; see `Ledger.table`."""
        found = self._tables.find(digest)
        return None if found is None else ProvenTable(solution=found.solution, text=found.text)

    def _read_table(self, experiment: KernelExperiment, solution: Solution) -> Solution | None:
        """Return the rules that a pod delivered, made again as a variant; None where it has more.

        It is kept: a table is compared with it before each swap.
        """
        try:
            table = verified(solution, experiment.spec.kernel.name)
        except CandidateError as error:
            log.error("%s: the delivered table is refused: %s", experiment.metadata.uid, error)
            return None
        self._store.add(SOLUTION, table.digest, table.model_dump(mode="json"), phase="final")
        return table

    def _keep_artifact(
        self, experiment: KernelExperiment, found: PodResult, solution: Solution
    ) -> bool:
        """Copy the compiled files and sign them for their target; False without any."""
        files = self._results.artifact(experiment.metadata.uid, found, solution.digest)
        if files is None:
            return False
        target, own = target_of(experiment), self._tasks.own(experiment)
        name = experiment.spec.kernel.name
        if not is_bound(files, {} if own is None else launch_data_of(own, solution)):
            log.error("the manifest of %s differs from the definition of %s", solution.digest, name)
            return False
        self._artifacts.keep(solution.digest, files, definition=name, target=target)
        body = solution.model_dump(mode="json")
        self._store.add(SOLUTION, solution.digest, body, phase="final")
        return True


def read_proof(store: Store, verifier: Verifier, digest: Digest) -> bytes | None:
    """Return a document of `StoreLedger.keep_proof`; see `Ledger.proof`.

    Raises
    ------
    TemporaryError
        If it cannot be read now.
    """
    try:
        found = payload_of(store.get_blob(digest), verifier=verifier)
    except UnreadableInput as error:
        if error.code in _PASSING:
            raise TemporaryError(str(error), delay_s=_RETRY_S) from error
        log.error("%s cannot be read: %s", digest, error)
        return None
    if isinstance(found, Doubt):
        log.error("%s is not believed: %s", digest, found.detail)
        return None
    return found
