"""From settings to a loop: which real adapter stands behind each port on this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import timedelta

from retuned import catalog
from retuned.adapters.clock import SystemClock
from retuned.adapters.lab_process import LabProcess
from retuned.adapters.local_lab import LocalLab
from retuned.adapters.policy_files import PolicyFiles, load_policies
from retuned.adapters.runtime_socket import RuntimeSocket
from retuned.adapters.sqlite_store import SqliteStore
from retuned.adapters.telemetry import PrometheusTelemetry
from retuned.adapters.trace_folder import TraceFolders
from retuned.adapters.traces import ReadLimits
from retuned.contract import Digest, Solution
from retuned.lab.languages.cpu_cpp import cpu_environment
from retuned.local.context import Context, Kind, LoopSettings
from retuned.local.known_kernels import KnownKernels
from retuned.local.program import Loop
from retuned.ports import Bench, Store
from retuned.settings import Settings
from retuned.stages.drift import DEMO_SETTINGS, DriftSettings
from retuned.stages.experiment import Budget
from retuned.stages.hypothesis import HypothesisSettings
from retuned.stages.profile import ProfileSettings

log = logging.getLogger(__name__)

_CORE_GFLOPS = 100.0
"""Float32 peak of one core of today's servers, 1e9 a second: two 256-bit FMA units at 3 GHz. A
guess that only ranks hypotheses; what is gained is measured."""
_CORE_GBYTES_PER_S = 20.0
"""What one core of today's servers streams from memory, 1e9 bytes a second. The same applies."""
_DEMO_PROFILE = ProfileSettings(ladder=(1, 2, 4, 8, 16, 32, 64, 128, 256))
"""Windows of seconds hold few launches: with wider buckets each is seen often enough."""


def build(settings: Settings) -> tuple[Loop, PrometheusTelemetry]:
    """Connect everything; nothing runs yet.

    Raises
    ------
    MissingDependency
        If there is no C++ compiler.
    UnreadableInput
        If the state or a policy cannot be read.
    """
    clock = SystemClock()
    store = SqliteStore(settings.state_dir, clock=clock)
    telemetry = PrometheusTelemetry()
    environment = cpu_environment()
    context = Context(
        store=store,
        clock=clock,
        telemetry=telemetry,
        traces=TraceFolders(
            settings.watch_dirs,
            clock=clock,
            known=[batch.id for batch in store.list(Kind.BATCH)],
            limits=ReadLimits(input_bytes=settings.max_trace_bytes),
        ),
        swapper=RuntimeSocket(settings.sockets),
        bench=_lab(settings, store),
        settings=loop_settings(settings),
        environment=environment.digest,
        catalog=KnownKernels(gflops=_CORE_GFLOPS, gbytes_per_s=_CORE_GBYTES_PER_S),
        policies=_policies(settings),
        labels={**settings.labels, "env": settings.env},
    )
    return Loop(context), telemetry


def loop_settings(settings: Settings) -> LoopSettings:
    """Translate what a person sets into what the steps read."""
    demo = settings.detector_preset == "demo"
    return LoopSettings(
        target=settings.target,
        window=timedelta(seconds=settings.window_s),
        settle=timedelta(seconds=settings.settle_s),
        baseline_windows=settings.baseline_windows,
        explain_windows=settings.explain_windows,
        profile=_DEMO_PROFILE if demo else ProfileSettings(),
        drift=DEMO_SETTINGS if demo else DriftSettings(),
        hypothesis=HypothesisSettings(
            max_shapes=settings.max_shapes, max_attempts=settings.max_attempts
        ),
        experiments_per_day=settings.experiments_per_day,
        experiment_s_per_day=settings.experiment_s_per_day,
        budget=Budget(
            max_candidates=settings.max_candidates,
            max_seconds=settings.max_experiment_s,
            finalists=settings.finalists,
        ),
        shadow_every=settings.shadow_every,
        min_saving=settings.min_saving_ratio,
        proposal_ttl=timedelta(seconds=settings.proposal_ttl_s),
        quarantine=timedelta(seconds=settings.quarantine_s),
    )


def _lab(settings: Settings, store: Store) -> Bench:
    root = settings.state_dir / "lab"
    cores = settings.lab_cores or tuple(sorted(os.sched_getaffinity(0)))
    find = _solutions(store)
    builder = LocalLab(root, subjects=catalog.get, solutions=find, generators={}, cores=cores)
    return LabProcess(root, cores=cores, solution=find, builder=builder)


def _solutions(store: Store) -> Callable[[Digest], Solution | None]:
    """Find an incumbent: the catalog's, or a variant that an earlier experiment found."""

    def find(digest: Digest) -> Solution | None:
        for plan in store.list(Kind.EXPERIMENT):
            incumbent = catalog.get(str(plan.body["definition"])).incumbent
            if incumbent.digest == digest:
                return incumbent
        for stored in store.list(Kind.FINDING):
            solution = Solution.model_validate(stored.body["solution"])
            if solution.digest == digest:
                return solution
        return None

    return find


def _policies(settings: Settings) -> PolicyFiles:
    """Read policies; at the start a bad one is a reason not to start, later it permits nothing."""
    names = [policy.full_name for policy in load_policies(settings.policy_files)]
    log.info("policies: %s", ", ".join(names) or "none, so nothing will be swapped")
    return PolicyFiles(settings.policy_files)
