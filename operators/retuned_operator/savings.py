"""Costs of experiments and savings of swaps in a cluster, added up as windows and results arrive.

A window counts for a swap if its pod reports that it had the swap since before the start of the
window; a pod counts with all its accelerators. Rollbacks and results of live proofs are stored
permanently, because objects may be deleted later. A proof counts for the windows of servers in the
environment of its pod; other windows remain a claim of the experiment.

What was spent and saved, written where people with a kubeconfig find it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Protocol

from pydantic import ValidationError

from retuned.api.agent import ProfileReport
from retuned.api.proposal import LiveProofStatus, PodState, ProposalPhase
from retuned.control.experiment import HELPERS
from retuned.errors import RetunedError, UnreadableInput
from retuned.ports import Store
from retuned.stages.profile import WorkloadProfile
from retuned.stages.watch import SIZED, Account, of_all_gpus
from retuned.stages.watch.proof import EffectInterval
from retuned.store.savings import Savings
from retuned_operator.agent_api.ports import PodRecord
from retuned_operator.controllers.ports import BY_PHASE, BY_TARGET, Caches, Kernels
from retuned_operator.kube.errors import ApiError, NotFound
from retuned_operator.kube.resources import CONFIG_MAPS, EXPERIMENTS, PROPOSALS, TARGETS, Resource
from retuned_operator.manifests.report import REPORT, report_map
from retuned_operator.schema import KernelExperiment, SwapProposal, TuningTarget, read
from retuned_operator.store.results import ResultFolder

log = logging.getLogger(__name__)

BACK = "taken-back"
"""Kind of the records of swaps that were rolled back, by their proposal's uid: noted."""
SHOWN = "live-effect"
"""Kind of the records of what live proofs have shown, by proposal's uid and environment: noted."""
_WENT_BACK = (
    ProposalPhase.ROLLING_BACK,
    ProposalPhase.ROLLBACK_FAILED,
    ProposalPhase.ROLLED_BACK,
)
_WHOLE = (ProposalPhase.WATCHING, ProposalPhase.PROMOTED)
"""Every launch of a pod runs the variant; while a swap spreads, its hours do not count."""
_SIZED = frozenset(map(str, SIZED))
_MOST = 50
"""Experiments that are added at a time."""


class ClusterAccounts:
    """Adds up, and answers.

    Parameters
    ----------
    store
        Where sums are kept.
    caches
        The cluster.
    kernels
        The catalog.
    results
        What experiments left.
    """

    def __init__(
        self, store: Store, caches: Caches, *, kernels: Kernels, results: ResultFolder
    ) -> None:
        self._store = store
        self._caches = caches
        self._kernels = kernels
        self._results = results
        self._savings = Savings(store)

    def heard(self, pod: PodRecord, said: ProfileReport) -> None:
        """Add a window that a pod reports for the first time."""
        profile = said.profile
        # slots count in all processes, so that a counted window has every rank's time already
        traced = 0 if profile.counted else said.gpus_traced
        start = datetime.fromtimestamp(profile.window_start_ns / 1e9, UTC)
        target = self._target(pod.target)
        for found in self._in_force(pod, start) if target is not None else ():
            assert target is not None, "asked above"
            environment = target.status.environment or ""
            gpu_ns = self._spent(profile, found, target)
            if not gpu_ns:
                continue
            with self._store.transaction():
                self._note_effect(found, environment)
                self._savings.add(
                    found.metadata.uid,
                    target=found.target,
                    definition=found.spec.kernel,
                    speedup=found.spec.speedup,
                    month=start.strftime("%Y-%m"),
                    gpu_ns=of_all_gpus(gpu_ns, gpus=pod.gpus, traced=traced),
                    server_ns=of_all_gpus(profile.gpu_time_ns, gpus=pod.gpus, traced=traced),
                    environment=environment,
                )

    def keep_up(self) -> None:
        """Record rollbacks, and the device time of ended experiments."""
        for phase in _WENT_BACK:
            for body in self._caches.by(PROPOSALS, BY_PHASE, phase.value) or ():
                uid = str(body.get("metadata", {}).get("uid", ""))
                if uid and self._store.get(BACK, uid) is None:
                    self._store.add(BACK, uid, {}, phase="noted")
        known = self._savings.experiments()
        for experiment in islice(self._ended(known), _MOST):
            try:
                self._spend(experiment)
            except RetunedError as error:  # the others may still work; tried again
                log.warning(
                    "the device time of %s is not known now: %s", experiment.metadata.name, error
                )

    def accounts(self) -> tuple[Account, ...]:
        """Return what was spent and saved, newest month first."""
        return self._savings.accounts(
            taken_back=set(self._store.ids(BACK)), effects=self._effects()
        )

    # --- within -----------------------------------------------------------------------------------

    def _note_effect(self, found: SwapProposal, environment: str) -> None:
        effect = shown_in(found.status.live_proofs, environment)
        if effect is None:
            return
        id, body = f"{found.metadata.uid}/{environment}", effect.model_dump(mode="json")
        known = self._store.get(SHOWN, id)
        if known is None:
            self._store.add(SHOWN, id, body, phase="noted")
        elif dict(known.body) != body:
            self._store.advance(SHOWN, id, expect="noted", to="noted", body=body)

    def _effects(self) -> dict[tuple[str, str], EffectInterval]:
        found = {}
        for stored in self._store.list(SHOWN):
            uid, _, environment = stored.id.partition("/")
            try:
                found[uid, environment] = EffectInterval.model_validate(stored.body)
            except ValidationError as error:  # its windows remain a claim
                log.error("the effect of %s cannot be understood: %s", stored.id, error)
        return found

    def _in_force(self, pod: PodRecord, start: datetime) -> Iterator[SwapProposal]:
        for body in self._caches.by(PROPOSALS, BY_TARGET, pod.target) or ():
            try:
                found = read(SwapProposal, body)
            except UnreadableInput:
                continue  # it cannot be read, so it does not count
            rollout = found.status.rollout
            if found.status.phase not in _WHOLE or rollout is None:
                continue
            if any(
                each.uid == pod.uid
                and each.wants is PodState.SWAP
                and each.done
                and each.since <= start
                for each in rollout.pods
            ):
                yield found

    def _spent(self, profile: WorkloadProfile, found: SwapProposal, target: TuningTarget) -> int:
        spent = 0
        for stat in profile.stats:
            signature = stat.signature
            named = self._kernels.recognise(
                signature.kernel, signature.dims, signature.dtypes, target=target
            )
            if named is not None and named[0] == found.spec.kernel:
                spent += stat.gpu_time_ns if found.spec.guard.allows(named[1]) else 0
        return spent

    def _target(self, key: str) -> TuningTarget | None:
        body = self._caches.get(TARGETS, key) if key else None
        try:
            return read(TuningTarget, body) if body is not None else None
        except UnreadableInput:
            return None

    def _ended(self, known: set[str]) -> Iterator[KernelExperiment]:
        for body in self._caches.list(EXPERIMENTS) or ():
            if str(body.get("metadata", {}).get("uid", "")) in known:
                continue
            try:
                found = read(KernelExperiment, body)
            except UnreadableInput:
                continue
            if found.status.phase.is_terminal:
                yield found

    def _spend(self, experiment: KernelExperiment) -> None:
        took = sum(
            finding.seconds
            for ref in experiment.status.job_refs
            if ref.role not in HELPERS  # they hold no accelerator
            for result in self._results.of(experiment.metadata.uid, ref.name)
            for finding in result.findings
        )
        ended = experiment.status.finished_at or experiment.metadata.creation_timestamp
        months = {ended.strftime("%Y-%m"): took} if ended is not None and took else {}
        self._savings.spend(
            experiment.metadata.uid,
            target=f"{experiment.metadata.namespace}/{experiment.spec.target_ref.name}",
            definition=experiment.spec.stage_plan().definition,
            months=months,
        )


def shown_in(proofs: Iterable[LiveProofStatus], environment: str) -> EffectInterval | None:
    """Return what live proofs have shown of a swap in an environment; None if nothing.

    Of several proofs the one with the least gain counts.

    Parameters
    ----------
    proofs
        Of the proposal.
    environment
        Digest; empty if unknown, and then nothing was shown.
    """
    found = [
        EffectInterval(effect=each.effect, low=each.low, high=each.high)
        for each in proofs
        if environment
        and each.environment == environment
        and each.verdict in _SIZED
        and each.effect is not None
    ]
    return max(found, key=lambda each: each.effect, default=None)


class Objects(Protocol):
    """What of the API server is needed; `retuned_operator.kube.client.Api` has it."""

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> dict[str, Any]:
        """Return one object, or raise `NotFound`."""
        ...

    def apply(
        self, resource: Resource, body: Mapping[str, Any], *, force: bool = True
    ) -> dict[str, Any]:
        """Make the fields of an object what they are in `body`."""
        ...


def write_reports(
    api: Objects, accounts: Sequence[Account], *, namespaces: Iterable[str]
) -> tuple[str, ...]:
    """Write costs and savings into each namespace; an equal report is not written again.

    Returns the namespaces where the write failed: they do not delay the others.

    Parameters
    ----------
    api
        The API server, as the leader.
    accounts
        Newest month first.
    namespaces
        Those with targets.
    """
    untold = []
    for namespace in sorted(set(namespaces)):
        wanted = report_map(namespace, accounts)
        try:
            if _data(api, namespace) != wanted["data"]:
                api.apply(CONFIG_MAPS, wanted)
        except ApiError as error:
            log.warning("configmap %s/%s cannot be written: %s", namespace, REPORT, error)
            untold.append(namespace)
    return tuple(untold)


def _data(api: Objects, namespace: str) -> object:
    try:
        return api.get(CONFIG_MAPS, REPORT, namespace=namespace).get("data")
    except NotFound:
        return None
