"""Which controllers there are, and what concerns whom.

Which objects of the API server the operator keeps a copy of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from retuned.ports import Telemetry
from retuned_operator.agent_api import Hub
from retuned_operator.controllers import (
    ClusterView,
    ClusterWriter,
    Decisions,
    Experiments,
    Freezes,
    HypothesisController,
    Policies,
    Proposals,
    Targets,
    objects,
)
from retuned_operator.controllers.caches import INDICES
from retuned_operator.controllers.ports import BY_PROPOSAL, BY_TARGET, Caches
from retuned_operator.kube.informer import ObjectCache, key_of
from retuned_operator.kube.manager import Controller, Keys, Manager, itself
from retuned_operator.kube.resources import (
    DECISIONS,
    EXPERIMENTS,
    FREEZES,
    JOBS,
    PODS,
    POLICIES,
    PROPOSALS,
    TARGETS,
    Obj,
    Resource,
)
from retuned_operator.manifests import JobSettings
from retuned_operator.manifests.names import MANAGER
from retuned_operator.pods import targets_of
from retuned_operator.settings import Settings

_WRITERS = 4
"""Threads of controllers with many keys that each wait for a write: after a start all of them."""


def controllers_of(
    world: ClusterView,
    acting: ClusterWriter,
    *,
    hub: Hub,
    jobs: JobSettings,
    telemetry: Telemetry,
    target_keys: Callable[[], Iterable[str]],
) -> tuple[Controller, ...]:
    """Return every controller.

    Parameters
    ----------
    hub
        Woken when what pods are to have may have changed.
    target_keys
        Keys of all targets: a freeze concerns each.
    """
    caches = world.caches
    experiments = Experiments(world, acting, jobs=jobs, telemetry=telemetry)
    proposals = Proposals(world, acting, telemetry=telemetry)

    def of_namespace(body: Obj) -> list[str]:
        namespace = f"{body.get('metadata', {}).get('namespace', '')}/"
        return [key for key in target_keys() if key.startswith(namespace)]

    def hears(key: str) -> None:
        hub.changed(key)

    pods: Keys = lambda body: targets_of(caches, body)  # noqa: E731 - a rule among others
    return (
        _itself(POLICIES.plural, Policies(world, acting).reconcile),
        _itself(FREEZES.plural, Freezes(world, acting).reconcile),
        Controller(
            name="targets",
            primary=TARGETS.plural,
            watches={TARGETS.plural: itself, PODS.plural: pods, POLICIES.plural: of_namespace},
            reconcile=Targets(world, acting, jobs=jobs).reconcile,
            workers=_WRITERS,
        ),
        Controller(
            name="experiments",
            primary=EXPERIMENTS.plural,
            watches={
                EXPERIMENTS.plural: itself,
                JOBS.plural: experiment_of_job,
                PODS.plural: experiment_of_job,
                TARGETS.plural: lambda body: _experiments_of(caches, key_of(body)),
                PROPOSALS.plural: _experiment_of_proposal,
                FREEZES.plural: lambda _: _under_way(caches, target_keys()),
                POLICIES.plural: lambda body: _under_way(caches, of_namespace(body)),
            },
            reconcile=experiments.reconcile,
        ),
        Controller(
            name="proposals",
            primary=TARGETS.plural,
            watches={
                TARGETS.plural: itself,
                PROPOSALS.plural: objects.target_word,
                DECISIONS.plural: lambda body: _targets_of_decision(caches, body),
                FREEZES.plural: lambda _: target_keys(),
                POLICIES.plural: of_namespace,
                PODS.plural: pods,
            },
            reconcile=proposals.reconcile,
            workers=_WRITERS,
        ),
        Controller(
            name="beliefs",
            primary=TARGETS.plural,
            watches={TARGETS.plural: itself},
            reconcile=HypothesisController(world, acting, telemetry=telemetry).reconcile,
            workers=1,
        ),
        Controller(
            name="decisions",
            primary=DECISIONS.plural,
            watches={
                DECISIONS.plural: itself,
                PROPOSALS.plural: lambda body: _decisions_on(caches, key_of(body)),
            },
            reconcile=Decisions(world, acting, telemetry=telemetry).reconcile,
            workers=_WRITERS,
        ),
        Controller(
            name="orders",
            primary=TARGETS.plural,
            watches={TARGETS.plural: itself, PROPOSALS.plural: objects.target_word},
            reconcile=hears,
            workers=1,
        ),
    )


def _itself(name: str, reconcile: Callable[[str], float | None]) -> Controller:
    return Controller(name=name, primary=name, watches={name: itself}, reconcile=reconcile)


def experiment_of_job(body: Obj) -> list[str]:
    """Return the experiment of a Job, or of its pod, ``namespace/name``."""
    notes = body.get("metadata", {}).get("annotations") or {}
    word = notes.get(objects.EXPERIMENT)
    return [word] if isinstance(word, str) and word else []


def _experiment_of_proposal(body: Obj) -> list[str]:
    name = body.get("spec", {}).get("experimentRef")
    namespace = body.get("metadata", {}).get("namespace", "")
    return [f"{namespace}/{name}"] if isinstance(name, str) and name else []


def _experiments_of(caches: Caches, target: str) -> list[str]:
    return [key_of(body) for body in caches.by(EXPERIMENTS, BY_TARGET, target) or ()]


def _under_way(caches: Caches, targets: Iterable[str]) -> list[str]:
    """Return the experiments that something may stop, or let go on."""
    return [
        key_of(body)
        for target in targets
        for body in caches.by(EXPERIMENTS, BY_TARGET, target) or ()
        if not objects.is_over(body)
    ]


def _decisions_on(caches: Caches, proposal: str) -> list[str]:
    return [key_of(body) for body in caches.by(DECISIONS, BY_PROPOSAL, proposal) or ()]


def _targets_of_decision(caches: Caches, body: Obj) -> list[str]:
    found: list[str] = []
    for word in objects.proposal_word(body):
        proposal = caches.get(PROPOSALS, word)
        found += objects.target_word(proposal) if proposal is not None else ()
    return found


WATCHED = (TARGETS, POLICIES, EXPERIMENTS, PROPOSALS, DECISIONS, FREEZES)
"""Our own kinds; pods and Jobs are watched besides."""


def stores_of(manager: Manager, settings: Settings) -> dict[Resource, ObjectCache]:
    """Let a manager watch what an administrator chose; return the stores that fill."""
    jobs = settings.job_settings()
    watched = settings.namespaces
    with_jobs = (jobs.namespace,) if jobs.namespace else watched
    with_pods = tuple(dict.fromkeys((*watched, *with_jobs))) if watched else ()
    stores = {
        kind: manager.store(kind, namespaces=watched, indices=INDICES.get(kind)) for kind in WATCHED
    }
    stores[PODS] = manager.store(PODS, namespaces=with_pods, indices=INDICES[PODS])
    stores[JOBS] = manager.store(
        JOBS,
        namespaces=with_jobs,
        labels=f"app.kubernetes.io/managed-by={MANAGER}",
        indices=INDICES[JOBS],
    )
    return stores
