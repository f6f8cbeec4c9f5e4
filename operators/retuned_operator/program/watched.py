"""Which objects of the API server the operator keeps a copy of."""

from __future__ import annotations

from retuned_operator.controllers.caches import INDICES
from retuned_operator.manifests.names import MANAGER
from retuned_operator.program.settings import Settings
from retuned_operator.runtime.manager import Manager
from retuned_operator.runtime.resources import (
    DECISIONS,
    EXPERIMENTS,
    FREEZES,
    JOBS,
    PODS,
    POLICIES,
    PROPOSALS,
    TARGETS,
    Resource,
)
from retuned_operator.runtime.store import ObjectCache

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
