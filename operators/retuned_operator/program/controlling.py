"""Which controllers there are, and what concerns whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from retuned.ports import Telemetry
from retuned_operator.agent import Hub
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
    reading,
)
from retuned_operator.controllers.ports import BY_PROPOSAL, BY_TARGET, Caches
from retuned_operator.manifests import JobSettings
from retuned_operator.program.fleet import targets_of
from retuned_operator.runtime.manager import Controller, Keys, itself
from retuned_operator.runtime.resources import (
    DECISIONS,
    EXPERIMENTS,
    FREEZES,
    JOBS,
    PODS,
    POLICIES,
    PROPOSALS,
    TARGETS,
    Obj,
)
from retuned_operator.runtime.store import key_of

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
            watches={TARGETS.plural: itself, PODS.plural: pods},
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
                PROPOSALS.plural: reading.target_word,
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
            watches={TARGETS.plural: itself, PROPOSALS.plural: reading.target_word},
            reconcile=hears,
            workers=1,
        ),
    )


def _itself(name: str, reconcile: Callable[[str], float | None]) -> Controller:
    return Controller(name=name, primary=name, watches={name: itself}, reconcile=reconcile)


def experiment_of_job(body: Obj) -> list[str]:
    """Return the experiment of a Job, or of its pod, ``namespace/name``."""
    notes = body.get("metadata", {}).get("annotations") or {}
    word = notes.get(reading.EXPERIMENT)
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
        if not reading.is_over(body)
    ]


def _decisions_on(caches: Caches, proposal: str) -> list[str]:
    return [key_of(body) for body in caches.by(DECISIONS, BY_PROPOSAL, proposal) or ()]


def _targets_of_decision(caches: Caches, body: Obj) -> list[str]:
    found: list[str] = []
    for word in reading.proposal_word(body):
        proposal = caches.get(PROPOSALS, word)
        found += reading.target_word(proposal) if proposal is not None else ()
    return found
