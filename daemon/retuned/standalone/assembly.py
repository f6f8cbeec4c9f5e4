"""From settings to a loop: which real adapter stands behind each port on this machine."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from retuned import catalog
from retuned.catalog.user import load_definitions
from retuned.clock import SystemClock
from retuned.contract import Definition, Digest, Language, Solution
from retuned.errors import MissingDependency, UsageError
from retuned.experiment.child import LabProcess
from retuned.experiment.local import LocalLab
from retuned.experiment.tunables import Benches, TunableLab
from retuned.lab.captured_inputs import FOLDER
from retuned.lab.cleanup import sweep
from retuned.lab.generators.evolve import EvolveConfig, EvolveRules
from retuned.lab.generators.priors import Priors
from retuned.lab.generators.transfer import Earlier
from retuned.lab.journal import notebook_name
from retuned.lab.languages.gpu import find_gpu
from retuned.lab.llm.http import check_url
from retuned.lab.physics import GPU_PEAKS, Peak
from retuned.lab.toolchain import environment_of, is_timed
from retuned.lifting.sampled_outputs import with_structures
from retuned.node import metrics
from retuned.node.gpu import find_devices, free_device
from retuned.node.own_overhead import OverheadKeeper
from retuned.node.server_cores import free_cores, server_cores, server_processes
from retuned.node.service_levels import counts_at
from retuned.node.watcher import kept_after
from retuned.node.windows import numbers_of
from retuned.ports import Bench, EndToEnd, Store, Swapper
from retuned.runtime_client.captures import RuntimeCaptures
from retuned.runtime_client.change_orders import ChangeSwapper
from retuned.runtime_client.client import RuntimeSocket
from retuned.runtime_client.kernels import RuntimeKernels
from retuned.runtime_client.live_steps import ServerSteps, StepLook
from retuned.runtime_client.own_overhead import ServerOverhead
from retuned.runtime_client.tunables import RuntimeTunables
from retuned.runtime_client.tuned_files import RuntimeFiles
from retuned.settings import Settings
from retuned.stages.experiment import Budget, ExperimentPlan
from retuned.stages.gate import GPU_MODEL_LABEL
from retuned.stages.hypothesis import HypothesisSettings
from retuned.stages.swap import MixedEpochs
from retuned.standalone.context import (
    Captures,
    Context,
    Files,
    LoopSettings,
    RecordKind,
    Retention,
    Tunables,
)
from retuned.standalone.daemon import Loop
from retuned.standalone.findings import earlier_findings, found_solution, priors_for
from retuned.standalone.kernels import KnownKernels, recall
from retuned.standalone.proofs.end_to_end_http import HttpEndToEnd, load_requests
from retuned.standalone.tunables.experiments import task_of
from retuned.standalone.tunables.tuned_files import (
    ConfiguredKernels,
    StoredChanges,
    incumbent_named,
)
from retuned.store.keys import Ed25519Notary
from retuned.store.policy_files import PolicyFiles, load_policies
from retuned.store.sqlite import SqliteStore
from retuned.telemetry import Exporter
from retuned.telemetry.otlp import open_spans
from retuned.telemetry.prometheus import PrometheusTelemetry
from retuned.traces import ReadLimits
from retuned.traces.folder import TraceFolders, WatchSettings

log = logging.getLogger(__name__)

_LAB = "lab"
"""Folder below the state's."""
OBSERVES_ONLY = (
    "observes only: lab_language is triton and this machine has no GPU. Triton's interpreter could "
    "run variants but not time them, and without times no win can be proven, so the daemon tries "
    "none; run it where a GPU is"
)
_CORE = Peak(gflops=256.0, gbytes_per_s=20.0, cache_bytes=0)
"""One core of today's servers: two 512-bit FMA units at 4 GHz, and what one core streams from
memory. A guess that only ranks hypotheses; what is gained is measured."""
_UNKNOWN = Peak(gflops=0.0, gbytes_per_s=0.0, cache_bytes=0)
_GPU_LAUNCH_NS = 1_500
"""What any kernel takes on a GPU, as its trace has it: those that do next to nothing take 1.4 to
1.6 us on an H100 (`examples/traces`). The host's part of a launch is not in it."""


def build(settings: Settings) -> tuple[Loop, PrometheusTelemetry]:
    """Connect everything; nothing runs yet.

    Raises
    ------
    MissingDependency
        If the machine has no C++ compiler, or no PyTorch and Triton where a GPU is tuned.
    UnreadableInput
        If the state, a policy or a definition of the user's own cannot be read.
    UsageError
        If the catalog has the name of a definition of the user's own.
    """
    catalog.learn(
        load_definitions(settings.definition_files),
        unconfined_references=settings.allow_unconfined_references,
    )
    clock = SystemClock()
    spans = open_spans("retuned", url=settings.traces_url, target=settings.target)
    store = SqliteStore(settings.state_dir, clock=clock, carried=spans.carried)
    telemetry = PrometheusTelemetry(Exporter.DAEMON)
    metrics.begin(telemetry, clock)
    notary = Ed25519Notary(settings.keys)
    log.info("evidence is signed with %s", notary.current())
    language = language_of(settings)
    environment = environment_of(language)
    untimed = "" if is_timed(environment) else OBSERVES_ONLY
    if untimed:
        log.warning("%s", untimed)
    peak = _peak(language)
    context = Context(
        store=store,
        clock=clock,
        telemetry=telemetry,
        traces=TraceFolders(
            settings.watch_dirs,
            clock=clock,
            known=store.ids(RecordKind.BATCH),
            limits=ReadLimits(input_bytes=settings.max_trace_bytes),
        ),
        swapper=_swapper(settings, store, notary),
        bench=_lab(settings, store, language=language, arch=environment.arch),
        notary=notary,
        settings=replace(loop_settings(settings), observes_only=untimed),
        environment=environment.digest,
        catalog=ConfiguredKernels(
            KnownKernels(language=language, gflops=peak.gflops, gbytes_per_s=peak.gbytes_per_s),
            store,
            buckets=loop_settings(settings).profile,
        ),
        policies=_policies(settings),
        labels={GPU_MODEL_LABEL: _gpu_model(language), **settings.labels, "env": settings.env},
        spans=spans,
        lab=settings.state_dir / _LAB,
        end_to_end=_end_to_end(settings),
        live_steps=ServerSteps(settings.sockets),
        service_counts=counts_at(settings.server_metrics_url),
        step_observer=StepLook(settings.sockets),
        captures=_captures(settings),
        kernels=RuntimeKernels(settings.sockets) if language is Language.TRITON else None,
        devices=find_devices() if language is Language.TRITON else None,
        server_processes=lambda: server_processes(settings.sockets),
        files=Files(tap=RuntimeFiles(settings.sockets)) if language is Language.TRITON else None,
        changes=settings.state_dir / _LAB / "files",
        structures=with_structures if language is Language.TRITON else None,
    )
    recall(store)
    return Loop(with_tables(with_own_overhead(context, settings), settings)), telemetry


def with_own_overhead(context: Context, settings: Settings) -> Context:
    """Return a context whose loop measures what Retuned costs the server."""
    if context.live_steps is None:
        return context
    keeper = OverheadKeeper(
        ServerOverhead(settings.sockets),
        live=context.live_steps,
        store=context.store,
        clock=context.clock,
        telemetry=context.telemetry,
    )
    return replace(context, own_overhead=keeper)


def _swapper(settings: Settings, store: Store, notary: Ed25519Notary) -> Swapper:
    """Connect to the server; changes of its files and tables go there too."""
    socket = RuntimeSocket(settings.sockets, key=notary.public_hex)
    return ChangeSwapper(
        socket,
        settings.sockets,
        changes=StoredChanges(store),
        term=socket.term,
        key=notary.public_hex,
    )


def with_tables(context: Context, settings: Settings) -> Context:
    """Return a context whose loop tunes the server's tunables too."""
    found = replace(
        context,
        tunables=Tunables(
            tap=RuntimeTunables(settings.sockets),
            free_device=lambda model: free_device(context.devices, model),
        ),
    )
    tables = TunableLab(
        lambda plan: task_of(found, plan), settings.state_dir / _LAB / "tunables", clock=found.clock
    )
    return replace(found, bench=Benches(found.bench, tables))


def language_of(settings: Settings) -> Language:
    """Return the language of the server's kernels: what is set, or what this machine has."""
    if settings.lab_language != "auto":
        return Language(settings.lab_language)
    try:
        found = find_gpu()
    except MissingDependency as error:
        log.info("kernels are taken to run on the CPU: %s", error)
        return Language.CPU_CPP
    return Language.CPU_CPP if found is None else Language.TRITON


def _gpu_model(language: Language) -> str:
    """Return the accelerator's model, as labels write it; ``cpu`` without one."""
    gpu = find_gpu() if language is not Language.CPU_CPP else None
    name = "" if gpu is None else re.sub(r"[^A-Za-z0-9._-]+", "-", gpu.name).strip("-._")
    return name[:63] or "cpu"


def _peak(language: Language) -> Peak:
    """Return the roofline of what the kernels run on; zeros where unknown."""
    if language is Language.CPU_CPP:
        return _CORE
    gpu = find_gpu()
    return GPU_PEAKS.get(gpu.arch, _UNKNOWN) if gpu is not None else _UNKNOWN


def loop_settings(settings: Settings) -> LoopSettings:
    """Translate what a person sets into what the steps read."""
    numbers = numbers_of(settings, stands_still_s=WatchSettings().settle_s)
    return LoopSettings(
        target=settings.target,
        window=numbers.window,
        kernel_bounds=settings.kernel_bounds,
        settle=numbers.settle,
        baseline_windows=numbers.baseline_windows,
        explain_windows=settings.explain_windows,
        profile=numbers.profile,
        drift=numbers.drift,
        hypothesis=_hypothesis_settings(settings),
        end_to_end_time=timedelta(seconds=settings.end_to_end_s),
        experiments_per_day=settings.experiments_per_day,
        experiment_s_per_day=settings.experiment_s_per_day,
        budget=Budget(
            max_candidates=settings.max_candidates,
            max_seconds=settings.max_experiment_s,
            finalists=settings.finalists,
        ),
        shadow_every=settings.shadow_every,
        watch=kept_after(settings.detector_preset),
        min_saving=settings.min_saving_ratio,
        proposal_ttl=timedelta(seconds=settings.proposal_ttl_s),
        quarantine=timedelta(seconds=settings.quarantine_s),
        environment_mismatch=settings.environment_mismatch,
        mixed_epochs=MixedEpochs(settings.mixed_epochs),
        catch_up_s=settings.catch_up_s,
        retention=Retention(
            things=timedelta(days=settings.retention_days),
            evidence=timedelta(days=settings.evidence_retention_days),
        ),
        generators=(*settings.generators, *(("evolve",) if settings.evolve_url else ())),
    )


def _hypothesis_settings(settings: Settings) -> HypothesisSettings:
    found = HypothesisSettings(max_shapes=settings.max_shapes, max_attempts=settings.max_attempts)
    if language_of(settings) is Language.CPU_CPP:
        return found
    return found.model_copy(update={"launch_ns": _GPU_LAUNCH_NS})


def _end_to_end(settings: Settings) -> EndToEnd | None:
    """Connect to the server as its users do.

    Raises
    ------
    UnreadableInput
        If the requests cannot be read.
    UsageError
        If only one of address and requests is set, or the address is none.
    """
    url, prompts = settings.end_to_end_url, settings.end_to_end_prompts
    if not url and prompts is None:
        return None
    if not url or prompts is None:
        raise UsageError("end_to_end_url and end_to_end_prompts are set together, or not at all")
    return HttpEndToEnd(url, load_requests(prompts), concurrency=settings.end_to_end_concurrency)


def _captures(settings: Settings) -> Captures:
    return Captures(
        tap=RuntimeCaptures(settings.sockets),
        folder=settings.state_dir / "lab" / FOLDER,
        definition=_definition,
        enabled=settings.capture_inputs,
        every=settings.capture_every,
        max_bytes=settings.capture_max_bytes,
        keep=timedelta(seconds=settings.capture_keep_s),
    )


def _definition(name: str) -> Definition | None:
    try:
        return catalog.get(name).definition
    except UsageError:
        return None


def _lab(settings: Settings, store: Store, *, language: Language, arch: str) -> Bench:
    root = settings.state_dir / _LAB
    running = store.ids(RecordKind.EXPERIMENT, phase="running")
    sweep(root, running={notebook_name(plan) for plan in running})

    def cores() -> tuple[int, ...]:
        """Return the lab's cores, read again before each experiment: servers start and end."""
        mine = os.sched_getaffinity(0)
        return settings.lab_cores or free_cores(mine, server_cores(settings.sockets))

    find = _solutions(store)
    builder = LocalLab(root, subjects=catalog.get, solutions=find, generators={})

    def earlier(plan: ExperimentPlan) -> Sequence[Earlier]:
        return earlier_findings(store, plan, family=_family)

    def priors(plan: ExperimentPlan) -> Priors | None:
        return priors_for(store, plan, family=_family, language=str(language), arch=arch)

    return LabProcess(
        root,
        cores=cores,
        solution=find,
        builder=builder,
        definition=catalog.own_definition,
        earlier=earlier,
        priors=priors,
        evolve=config_of(settings),
        unconfined_references=settings.allow_unconfined_references,
    )


def _family(definition: str) -> str:
    """Return the operator of a definition; empty if the catalog does not have it."""
    try:
        return catalog.get(definition).definition.op_type
    except UsageError:
        return ""


def _solutions(store: Store) -> Callable[[Digest], Solution | None]:
    """Find an incumbent: the catalog's, or a variant that an earlier experiment found."""

    def find(digest: Digest) -> Solution | None:
        for plan in store.list(RecordKind.EXPERIMENT):
            for language in (Language.CPU_CPP, Language.TRITON):
                incumbent = _incumbent(str(plan.body["definition"]), language)
                if incumbent is not None and incumbent.digest == digest:
                    return incumbent
        return incumbent_named(store, digest) or found_solution(store, digest)

    return find


def _incumbent(definition: str, language: Language) -> Solution | None:
    try:
        return catalog.get(definition, language=language).incumbent
    except UsageError:  # not every definition has kernels in every language
        return None


def _policies(settings: Settings) -> PolicyFiles:
    """Read policies; at the start a bad one is a reason not to start, later it permits nothing."""
    names = [policy.full_name for policy in load_policies(settings.policy_files)]
    log.info("policies: %s", ", ".join(names) or "none, so nothing will be swapped")
    return PolicyFiles(settings.policy_files)


def config_of(
    settings: Settings, *, environment: Mapping[str, str] | None = None
) -> EvolveConfig | None:
    """Return what the settings say about evolution; None where it is off.

    Raises
    ------
    UsageError
        If it is on and something that it needs is not set: model, prices, or the key.
    """
    if not settings.evolve_url:
        return None
    given = os.environ if environment is None else environment
    variable = settings.evolve_key_variable
    if not settings.evolve_model:
        raise UsageError("evolve_url is set and evolve_model is not: name the model")
    prices = (settings.evolve_prompt_usd_per_mtok, settings.evolve_completion_usd_per_mtok)
    if prices[0] is None or prices[1] is None:
        raise UsageError(
            "evolve_url is set and a price is not: set evolve_prompt_usd_per_mtok and "
            "evolve_completion_usd_per_mtok, 0 for a server of your own"
        )
    if variable and not given.get(variable):
        raise UsageError(f"evolve_key_variable names {variable}, which is not in the environment")
    check_url(settings.evolve_url, key=bool(variable))
    return EvolveConfig(
        url=settings.evolve_url,
        model=settings.evolve_model,
        key_variable=variable,
        prompt_usd_per_mtok=prices[0],
        completion_usd_per_mtok=prices[1],
        max_tokens=settings.evolve_max_tokens,
        max_usd=settings.evolve_max_usd,
        max_usd_per_day=settings.evolve_max_usd_per_day,
        temperature=settings.evolve_temperature,
        tokens_field=settings.evolve_tokens_field,
        transcripts=str(settings.state_dir / "transcripts"),
        hints=str(settings.evolve_hint_dir) if settings.evolve_hint_dir is not None else "",
        rules=EvolveRules(answer_tokens=settings.evolve_answer_tokens),
    )
