"""The operator's store as controllers and the agent API see it: results, evidence, beliefs, code.

Records and signed evidence lie in one SQLite file and a folder of blobs, as on one machine. What
an experiment's pod left is believed only after it was computed again here and signed; its artifact
is copied and signed for the target that it is proposed for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from retuned.adapters.envelopes import seal, unseal
from retuned.adapters.signing import Ed25519Notary
from retuned.agent_wire import ProfileReport
from retuned.catalog.own.intercepting import launch_data_of
from retuned.contract import Digest, Solution
from retuned.errors import TemporaryError, UnreadableInput
from retuned.lab.countersigning import wrong_with
from retuned.ports import Finding, Spans, Store
from retuned.spans import NoSpans
from retuned.stages.hypothesis import Hypothesis
from retuned.stages.proposal import Proposal
from retuned.stages.verdict import Claim, EvidenceFault, ServerEnvironment, differences, doubt_of
from retuned_operator.agent.ports import PodRecord, Receipt, Said
from retuned_operator.controllers.ports import OpenDrift, VerifiedWin
from retuned_operator.crds import JobRole, KernelExperiment
from retuned_operator.machine import ResultFact
from retuned_operator.program.artifacts import ArtifactFolders, is_bound
from retuned_operator.program.asking import LlmQuota
from retuned_operator.program.collecting import Collector
from retuned_operator.program.inbox import StoreInbox
from retuned_operator.program.kinds import HYPOTHESIS, SOLUTION
from retuned_operator.program.live_kernels import LiveKernels
from retuned_operator.program.results import PodResult, ResultFolder
from retuned_operator.program.tasks import Tasks, target_of

log = logging.getLogger(__name__)

_PASSING = frozenset({"key-unreadable", "blob-unreadable"})
_RETRY_S = 15.0


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
        What pods have told.
    live
        Live kernels of servers; made over `store` by default.
    heard
        Told of every window that a pod has told for the first time.
    collector
        Brings it in; None where somebody else does.
    spans
        What is being done, for traces; off by default.
    asking
        How pods ask a model for variants; None where none does.
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
        heard: Callable[[PodRecord, ProfileReport], None] = lambda _pod, _said: None,
        spans: Spans | None = None,
        asking: LlmQuota | None = None,
    ) -> None:
        live = live or LiveKernels(store)
        self._inbox = StoreInbox(store, live=live, heard=heard, spans=spans or NoSpans())
        self._tasks = Tasks(store, results, live=live, asking=asking)
        self._store = store
        self._notary = notary
        self._artifacts = ArtifactFolders(artifacts, notary)
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
            log.error("%s: what %s proved is not believed: %s", uid, pod_uid, why)
            return None
        if not self._keep_artifact(experiment, found, best.solution):
            log.error("%s: %s left no artifact of %s", uid, pod_uid, best.solution.digest)
            return None
        digest = self._store.put_blob(seal(raw, notary=self._notary))
        verdict = best.verdict.model_copy(update={"evidence": digest})
        return VerifiedWin(verdict=verdict, trust=best.solution.trust)

    def task(self, experiment: KernelExperiment, role: JobRole, *, arch: str = "") -> str:
        """Return the lab's task; see `Ledger.task` and `Tasks`."""
        return self._tasks.task(experiment, role, arch=arch)

    def doubt(
        self, proposal: Proposal, *, servers: Sequence[ServerEnvironment]
    ) -> EvidenceFault | None:
        """Say why evidence does not carry a proposal; see `Ledger.doubt`.

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
        claim = Claim(
            candidate=proposal.artifact,
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

    def share(self, hypothesis: str) -> float:
        """Return the share of GPU time of a belief; see `Ledger.share`."""
        stored = self._store.get(HYPOTHESIS, hypothesis)
        return float(stored.body["share"]) if stored is not None else 0.0

    def belief(self, id: str) -> Hypothesis | None:
        """Return what was believed; see `Ledger.belief`."""
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
        """Keep what a sidecar says; see `StoreInbox`."""
        self._inbox.take(receipt, said)

    def believe(self, belief: Hypothesis) -> None:
        """Keep a belief."""
        self._store.add(HYPOTHESIS, belief.id, belief.model_dump(mode="json"), phase="open")

    # --- code -------------------------------------------------------------------------------------

    def artifact(self, digest: Digest) -> Mapping[str, bytes] | None:
        """Return the files of an artifact; see `ArtifactFolders.files`."""
        return self._artifacts.files(digest)

    def _keep_artifact(
        self, experiment: KernelExperiment, found: PodResult, solution: Solution
    ) -> bool:
        """Copy what was compiled and sign it for its target; False where there is none."""
        files = self._results.artifact(experiment.metadata.uid, found, solution.digest)
        if files is None:
            return False
        target, own = target_of(experiment), self._tasks.own(experiment)
        name = experiment.spec.kernel.name
        if not is_bound(files, {} if own is None else launch_data_of(own, solution)):
            log.error("%s says of launches of %s what nobody has lifted", solution.digest, name)
            return False
        self._artifacts.keep(solution.digest, files, definition=name, target=target)
        body = solution.model_dump(mode="json")
        self._store.add(SOLUTION, solution.digest, body, phase="final")
        return True
