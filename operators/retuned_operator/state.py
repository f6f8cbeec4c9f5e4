"""What an operator keeps on its volume: records, keys, what pods left, and who reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retuned.ports import Clock, Spans
from retuned.store.keys import Ed25519Notary
from retuned.store.sqlite import SqliteStore
from retuned_operator.controllers.ports import Caches
from retuned_operator.kube.resources import Obj
from retuned_operator.llm_quota import LlmQuota
from retuned_operator.savings import ClusterAccounts
from retuned_operator.schema import KernelExperiment
from retuned_operator.settings import Settings
from retuned_operator.store.experiments import StoreLedger
from retuned_operator.store.kernels import CatalogKernels, DefinitionLoad, LiveKernels, learn
from retuned_operator.store.results import Collector, Logs, ResultFolder
from retuned_operator.store.tunables import PodTunables
from retuned_operator.tunable_sources import ClusterTunables


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All of it."""

    store: SqliteStore
    """Records and blobs."""
    notary: Ed25519Notary
    """The key that signs."""
    results: ResultFolder
    """What pods of experiments left."""
    kernels: CatalogKernels
    """Definitions: the catalog's, the administrator's and the live ones."""
    tunables: PodTunables
    """Tunables that pods have posted."""
    accounts: ClusterAccounts
    """What was spent and saved."""
    ledger: StoreLedger
    """Results, evidence and hypotheses, for controllers and the agent API."""
    learnt: DefinitionLoad
    """Result of loading the administrator's definitions."""


def open_state(
    settings: Settings,
    caches: Caches,
    *,
    pods: Callable[[KernelExperiment], Sequence[Obj] | None],
    logs: Logs,
    clock: Clock,
    spans: Spans,
) -> State:
    """Open what is on the volume.

    Parameters
    ----------
    pods, logs
        See `Collector`.
    spans
        What is being done, for traces.

    Raises
    ------
    RetunedError
        If the store cannot be opened, or a key cannot be used.
    """
    store = SqliteStore(settings.state_dir / "state", clock=clock, carried=spans.carried)
    notary = Ed25519Notary(settings.state_dir / "keys")
    notary.current()  # an unusable key is an error before any other work
    results = ResultFolder(settings.state_dir / "results")
    learnt = learn(settings.definitions_dir)  # before pods report kernels that use a name
    live, tunables = LiveKernels(store), PodTunables()
    kernels = CatalogKernels(live, tunables=tunables)
    accounts = ClusterAccounts(store, caches, kernels=kernels, results=results)
    sources = ClusterTunables(tunables, caches, table=lambda digest: ledger.table(digest))
    ledger = StoreLedger(
        store,
        notary,
        artifacts=settings.state_dir / "artifacts",
        results=results,
        collector=Collector(results, pods=pods, logs=logs, clock=clock),
        live=live,
        posts=tunables,
        tunables=sources,
        heard=accounts.heard,
        spans=spans,
        asking=LlmQuota(store, settings.job_settings(), clock=clock),
    )
    return State(
        store=store,
        notary=notary,
        results=results,
        kernels=kernels,
        tunables=tunables,
        accounts=accounts,
        ledger=ledger,
        learnt=learnt,
    )
