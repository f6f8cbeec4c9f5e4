"""The Job that an experiment needs, with its task; and retries after changed settings.

An error appears here, before the status reports the Job as made.
"""

from __future__ import annotations

from retuned.api.target import TargetMode, Vendor
from retuned.control import CreateJob, PolicyFact, experiment, step_spans
from retuned.stages.proposal import is_tunable
from retuned_operator.controllers import experiment_facts, objects
from retuned_operator.controllers.cluster_view import ClusterView, baseline, target_of
from retuned_operator.controllers.hypothesis import allowing, asked_for
from retuned_operator.controllers.next_action import LATER_S
from retuned_operator.controllers.ports import BY_TARGET
from retuned_operator.kube.resources import EXPERIMENTS, POLICIES, Obj
from retuned_operator.manifests import JobRequest, JobSettings, experiment_name
from retuned_operator.manifests.jobs import unplaced, wants_device
from retuned_operator.schema import ExperimentPhase, JobRole, KernelExperiment, TuningTarget

EVOLVE = "evolve"
"""Generator of a plan that asks a language model."""
MENDABLE = frozenset({"gpu-model-unknown", "gpu-resource-unknown"})
"""Reasons of a refusal that say nothing of the idea, and that settings mend."""
MENDED = "AskedAgain"
"""Type of the condition of an experiment that was asked for again once settings were mended."""
_AROUND_ASKING_S = 120
"""Time for a pod's start and end, beside its requests to a model, seconds."""


def request_of(
    world: ClusterView,
    resource: KernelExperiment,
    action: CreateJob,
    *,
    target: TuningTarget,
    chosen: PolicyFact | None,
    settings: JobSettings,
) -> JobRequest:
    """Return the Job that a step asks for; its span is that in which the step was written.

    Raises
    ------
    TemporaryError
        If its task cannot be put together now.
    Refused
        If its kernel is a tunable that can get no experiment.
    """
    arch = experiment_facts.arch_of(world, target)
    return JobRequest(
        role=action.role,
        experiment=resource.metadata.name,
        experiment_uid=resource.metadata.uid,
        experiment_namespace=resource.metadata.namespace,
        attempt=action.attempt,
        task=world.ledger.task(resource, action.role, arch=arch),
        vendor=target.spec.gpu.vendor,
        model=target.spec.gpu.model,
        deadline_s=_deadline_s(action.role, resource, chosen, settings),
        priority_class=chosen.policy.spec.experiments.priority_class_name if chosen else "",
        traceparent=step_spans.last_span(resource),
        server=world.ledger.server(resource),
    )


def _deadline_s(
    role: JobRole, resource: KernelExperiment, chosen: PolicyFact | None, settings: JobSettings
) -> int:
    endpoint = settings.endpoint
    if role is JobRole.GENERATE and endpoint is not None:
        return endpoint.max_s + _AROUND_ASKING_S
    return experiment_facts.deadline_s(resource, chosen)


def pipeline_of(
    resource: KernelExperiment, target: TuningTarget | None, settings: JobSettings
) -> tuple[JobRole, ...]:
    """Return its Jobs; what saves time of an accelerator, only where there is one.

    A tunable has the trusted Job alone.
    """
    vendor = target.spec.gpu.vendor if target is not None else Vendor.CPU
    scarce = wants_device(JobRole.SEARCH, vendor, settings)
    return experiment.pipeline_of(
        generates=settings.asks_model and EVOLVE in resource.spec.search.generators,
        compiles=settings.compile_first and scarce,
        tunable=is_tunable(resource.spec.kernel.name),
    )


def no_place(target: TuningTarget | None, settings: JobSettings) -> tuple[str, str] | None:
    """Return why no pod can measure for a target, code and sentence; None where one can."""
    gpu = target.spec.gpu if target is not None else None
    found = unplaced(gpu.vendor, gpu.model, settings) if gpu is not None else None
    return (found.code, str(found)) if found is not None else None


def mended(
    world: ClusterView, resource: KernelExperiment, settings: JobSettings
) -> Obj | float | None:
    """Return the experiment to ask for once more after settings were mended.

    Returns
    -------
    An object; seconds after which to look again, while something is not known or in the way; None
    where nothing is to be asked for.

    Raises
    ------
    UnreadableInput
        If the target cannot be read.
    """
    status, spec = resource.status, resource.spec
    is_mendable = status.phase is ExperimentPhase.REFUSED and status.reason in MENDABLE
    if not is_mendable or any(each.type == MENDED for each in status.conditions):
        return None
    namespace, kernel = resource.metadata.namespace, spec.kernel.name
    target = target_of(world, f"{namespace}/{spec.target_ref.name}")
    if target is None or target.spec.mode is TargetMode.OBSERVE or no_place(target, settings):
        return None
    live, environment = baseline(world, target, kernel), target.status.environment
    bodies = world.caches.by(EXPERIMENTS, BY_TARGET, target.full_name)
    policies = objects.policies(world.caches.list(POLICIES, namespace=namespace))
    if None in (live, environment) or bodies is None or policies is None:
        return LATER_S
    others, _ = objects.all_of(KernelExperiment, bodies)
    chosen = allowing(policies, kernel, target)
    if (live, environment) != (spec.baseline.digest, spec.environment) or chosen is None:
        return None  # not the same plan, or no policy allows it now
    if any(e.spec.kernel.name == kernel and not e.status.phase.is_terminal for e in others):
        return LATER_S
    body = asked_for(spec.stage_plan(), target, chosen, spec.drift)
    plan = f"{spec.plan} after {resource.metadata.uid}"
    body["metadata"]["name"] = experiment_name(plan, target_uid=target.metadata.uid)
    return body
