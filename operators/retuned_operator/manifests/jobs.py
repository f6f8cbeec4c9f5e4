"""Jobs of an experiment: compile, generate, search, and the trusted verify.

Every Job starts suspended: the operator, or Kueue, releases it when the budget allows. Production
pods preempt it (priority -100), and a disrupted pod does not count as failed. A Job is tried once.
A second container writes the results to its log and cannot change them: the pod has no network, no
token and no volume of other pods. An experiment on a tunable has the server's container beside the
runner; see `server_container`.

Where pods of experiments may go: nodes with the right accelerator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from retuned.api.experiment import JobRole
from retuned.api.target import Vendor
from retuned.api.values import GROUP, TRACEPARENT
from retuned.errors import Refused, UsageError
from retuned_operator.manifests.names import (
    ATTEMPT,
    EXPERIMENT_UID,
    ROLE,
    child_name,
    labels,
    owner,
    without_empty,
)
from retuned_operator.manifests.pod_security import container_security, pod_security
from retuned_operator.manifests.server_container import (
    HOST_SOCKET,
    RUNNER_SIZE,
    ServerImage,
    code_container,
    pull_secrets,
    runner_mounts,
    runtime_class,
    server_container,
    server_volumes,
)
from retuned_operator.manifests.settings import JobSettings, Size


def nodes_of(model: str, settings: JobSettings) -> dict[str, str]:
    """Return the labels of nodes with a model.

    Raises
    ------
    Refused
        ``gpu-model-unknown``: no node is known to have it.
    """
    found = settings.gpu_models.get(model)
    if not found:
        error = Refused(
            f"no node labels are known for the accelerator {model[:63]!r}: "
            "no pod of an experiment can be placed; "
            "name them in the chart's value experiments.gpuModels, as "
            f"`{model[:63]}: {{LABEL: VALUE}}`"
        )
        error.code = "gpu-model-unknown"
        raise error
    return dict(found)


def gpu_resource(vendor: Vendor, settings: JobSettings) -> str:
    """Return the name of the resource of an accelerator.

    Raises
    ------
    Refused
        ``gpu-resource-unknown``: nothing is named for the vendor.
    """
    name = settings.gpu_resources.get(vendor, "")
    if not name:
        error = Refused(
            f"no resource is named for accelerators of {vendor}: no pod of an experiment can ask "
            f"for one; name it in the chart's value experiments.gpuResources.{vendor}"
        )
        error.code = "gpu-resource-unknown"
        raise error
    return name


RUNNER = "runner"
"""Container that does the work."""
TELLER = "results"
"""Native sidecar whose log is the results."""
TASK_KEY = "task.json"
"""File of the task."""
FINAL_EXIT_CODES = (3, 4, 64, 65, 66)
"""Trying again cannot help: unreadable task, no compiler; and the harness' wrong result, compile
error and breach of the sandbox."""
MAX_TASK_BYTES = 1_000_000
"""A ConfigMap holds no more than 1 MiB, names included."""
_LONGEST_DEADLINE_S = 86_400
_GRACE_S = 10
"""The runner gets the signal first and ends within 3 s; the rest is for writing the results."""

TASK_DIR = "/retuned/task"
WORK_DIR = "/retuned/work"
RESULTS_DIR = "/retuned/results"
ENDPOINT_KEY = "RETUNED_ENDPOINT_KEY"
"""Variable with the key of the model's endpoint, in ``generate`` pods alone."""
MESSAGE_PATH = "/dev/termination-log"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One Job that is wanted."""

    role: JobRole
    """What it does."""
    experiment: str
    """Name of the KernelExperiment."""
    experiment_uid: str
    """Its uid."""
    experiment_namespace: str
    """Its namespace."""
    attempt: int
    """Which try, from 1."""
    task: str
    """The lab's task, JSON."""
    vendor: Vendor
    """Accelerator's vendor."""
    model: str
    """Accelerator's model."""
    deadline_s: int
    """Longest time that its pod may be on a node, seconds; waiting for one does not count."""
    priority_class: str = ""
    """From the policy; empty is the setting."""
    traceparent: str = ""
    """Span that it goes on from; empty where traces are off."""
    server: ServerImage | None = None
    """Image of the target's servers, for a tunable; None for kernels."""

    @property
    def name(self) -> str:
        """Name of the Job: the same request has the same one."""
        return child_name(str(self.role), self.experiment_uid, self.attempt)


def job_objects(request: JobRequest, settings: JobSettings) -> tuple[dict[str, Any], ...]:
    """Return the ConfigMap with the task and the Job, in the order to make them.

    Raises
    ------
    Refused
        ``gpu-model-unknown`` or ``gpu-resource-unknown``: no node is known to have it.
        ``task-too-large``: a ConfigMap does not hold it.
    UsageError
        If the deadline is out of bounds, or a Job that generates, compiles or searches gets a
        server's container.
    """
    if request.server is not None and request.role is not JobRole.VERIFY:
        raise UsageError(f"a Job {request.role} has no server's container")
    size = len(request.task.encode())
    if size > MAX_TASK_BYTES:
        error = Refused(
            f"the task of the Job {request.role} has {size} bytes and a ConfigMap holds "
            f"{MAX_TASK_BYTES}; shorten the kernel's definition, or plan fewer shapes"
        )
        error.code = "task-too-large"
        raise error
    if not 1 <= request.deadline_s <= _LONGEST_DEADLINE_S:
        raise UsageError(f"a Job's deadline is 1 to {_LONGEST_DEADLINE_S} s")
    return _task_map(request, settings), _job(request, settings)


def unplaced(vendor: Vendor, model: str, settings: JobSettings) -> Refused | None:
    """Return why no pod that measures can be placed; None where one can, as far as settings say."""
    if not wants_device(JobRole.SEARCH, vendor, settings):
        return None
    try:
        nodes_of(model, settings)
        gpu_resource(vendor, settings)
    except Refused as error:
        return error
    return None


def wants_device(role: JobRole, vendor: Vendor, settings: JobSettings) -> bool:
    """Whether a Job needs a device; for a CPU only if the settings name a resource for it."""
    named = vendor is not Vendor.CPU or bool(settings.gpu_resources.get(vendor))
    return role in (JobRole.SEARCH, JobRole.VERIFY) and named


def _metadata(request: JobRequest, settings: JobSettings) -> dict[str, Any]:
    namespace = settings.namespace or request.experiment_namespace
    body: dict[str, Any] = {
        "name": request.name,
        "namespace": namespace,
        "labels": _labels(request),
        "annotations": _annotations(request),
    }
    if namespace == request.experiment_namespace:  # owners of another namespace do not count
        own = owner("KernelExperiment", name=request.experiment, uid=request.experiment_uid)
        body["ownerReferences"] = [own]
    return body


def _annotations(request: JobRequest) -> dict[str, str]:
    found = {f"{GROUP}/experiment": f"{request.experiment_namespace}/{request.experiment}"}
    return found | ({TRACEPARENT: request.traceparent} if request.traceparent else {})


def _labels(request: JobRequest) -> dict[str, str]:
    return labels("experiment") | {
        EXPERIMENT_UID: request.experiment_uid,
        ROLE: str(request.role),
        ATTEMPT: str(request.attempt),
    }


def _task_map(request: JobRequest, settings: JobSettings) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(request, settings),
        "immutable": True,
        "data": {TASK_KEY: request.task},
    }


def _job(request: JobRequest, settings: JobSettings) -> dict[str, Any]:
    metadata = _metadata(request, settings)
    if settings.queue:
        metadata["labels"] |= {"kueue.x-k8s.io/queue-name": settings.queue}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "suspend": True,
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": settings.keep_s,
            # never two pods of one Job on two accelerators
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    },
                    {
                        "action": "FailJob",
                        "onExitCodes": {
                            "containerName": RUNNER,
                            "operator": "In",
                            "values": list(FINAL_EXIT_CODES),
                        },
                    },
                ]
            },
            "template": {
                "metadata": {"labels": _labels(request), "annotations": _annotations(request)},
                "spec": _pod(request, settings),
            },
        },
    }


def _pod(request: JobRequest, settings: JobSettings) -> dict[str, Any]:
    gpu = wants_device(request.role, request.vendor, settings)
    groups = settings.device_groups.get(request.vendor, ()) if gpu else ()
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_S,
        # the pod's, not the Job's: it begins when a node has the pod, so waiting for room is free
        "activeDeadlineSeconds": request.deadline_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": request.priority_class or settings.priority_class,
        "securityContext": pod_security(settings.user_id, groups=groups),
        "initContainers": [_teller(request, settings)],
        "containers": [_runner(request, settings, gpu=gpu and request.server is None)],
        "volumes": _volumes(request, settings),
    }
    if request.server is not None:
        # before the runner, which waits for it: a node pulls the images of containers in order
        resource = gpu_resource(request.vendor, settings) if gpu else ""
        size = settings.sizes[request.role]
        server = server_container(request.server, settings, size=size, gpu=resource)
        spec["initContainers"].append(code_container(settings))
        spec["containers"].insert(0, server)
    if settings.user_namespaces:
        spec["hostUsers"] = False
    optional = {
        "runtimeClassName": runtime_class(request.server, settings),
        "imagePullSecrets": pull_secrets(request.server, settings),
        "tolerations": [dict(each) for each in settings.tolerations] if gpu else [],
        "nodeSelector": nodes_of(request.model, settings) if gpu else {},
        "hostAliases": _aliases(request, settings),
    }
    return spec | without_empty(optional)


def _aliases(request: JobRequest, settings: JobSettings) -> list[dict[str, Any]]:
    """Return the one name that a ``generate`` pod knows: it has no name server."""
    alias = settings.endpoint.alias if settings.endpoint is not None else None
    if request.role is not JobRole.GENERATE or alias is None:
        return []
    address, name = alias
    return [{"ip": address, "hostnames": [name]}]


def _runner(request: JobRequest, settings: JobSettings, *, gpu: bool) -> dict[str, Any]:
    size = _runner_size(request, settings)
    resources = {"cpu": size.cpu, "memory": size.memory, "ephemeral-storage": size.work}
    limits = dict(resources)
    if gpu:
        limits[gpu_resource(request.vendor, settings)] = "1"
    mounts = [
        {"name": "task", "mountPath": TASK_DIR, "readOnly": True},
        {"name": "work", "mountPath": WORK_DIR},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "results", "mountPath": RESULTS_DIR},
    ]
    if gpu:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    if request.server is not None:
        mounts += runner_mounts()
    return {
        "name": RUNNER,
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": ["python", "-m", "retuned.experiment", f"{TASK_DIR}/{TASK_KEY}"],
        "env": _whose(request) + _environment(request, settings),
        "resources": {"requests": resources, "limits": limits},
        "securityContext": container_security(),
        "terminationMessagePath": MESSAGE_PATH,
        "terminationMessagePolicy": "File",
        "volumeMounts": mounts,
    }


def _runner_size(request: JobRequest, settings: JobSettings) -> Size:
    """Return what the runner may use; beside a server's container it only decides."""
    return settings.sizes[request.role] if request.server is None else RUNNER_SIZE


def _teller(request: JobRequest, settings: JobSettings) -> dict[str, Any]:
    """Return the native sidecar that logs the results: it ends after the runner has ended."""
    return {
        "name": TELLER,
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "restartPolicy": "Always",
        "command": ["python", "-m", "retuned.experiment.log_transport"],
        "env": _whose(request),
        "resources": {
            "requests": {"cpu": "10m", "memory": "32Mi", "ephemeral-storage": "32Mi"},
            "limits": {"cpu": "1", "memory": "256Mi", "ephemeral-storage": "32Mi"},
        },
        "securityContext": container_security(),
        "terminationMessagePolicy": "File",
        "volumeMounts": [{"name": "results", "mountPath": RESULTS_DIR, "readOnly": True}],
    }


def _whose(request: JobRequest) -> list[dict[str, Any]]:
    """Return the variables of both containers: identity and folder of the results."""
    return [
        {"name": "RETUNED_EXPERIMENT_UID", "value": request.experiment_uid},
        {"name": "RETUNED_JOB", "value": request.name},
        {"name": "RETUNED_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "RETUNED_RESULTS_DIR", "value": RESULTS_DIR},
    ]


def _environment(request: JobRequest, settings: JobSettings) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": "RETUNED_ROLE", "value": str(request.role)},
        {"name": "RETUNED_MESSAGE_PATH", "value": MESSAGE_PATH},
        {"name": "HOME", "value": WORK_DIR},
        {"name": "TRITON_CACHE_DIR", "value": f"{WORK_DIR}/triton"},
    ]
    if request.server is not None:
        found.append({"name": "RETUNED_HOST_SOCKET", "value": HOST_SOCKET})
    if request.traceparent:
        found.append({"name": "TRACEPARENT", "value": request.traceparent})
    if request.role is JobRole.GENERATE and settings.endpoint_secret:
        secret = {"name": settings.endpoint_secret, "key": "key"}
        found.append({"name": ENDPOINT_KEY, "valueFrom": {"secretKeyRef": secret}})
    return found


def _volumes(request: JobRequest, settings: JobSettings) -> list[dict[str, Any]]:
    size = _runner_size(request, settings)
    found: list[dict[str, Any]] = [
        {"name": "task", "configMap": {"name": request.name, "defaultMode": 0o444}},
        {"name": "work", "emptyDir": {"sizeLimit": size.work}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}},
        {"name": "results", "emptyDir": {"sizeLimit": "64Mi"}},
    ]
    if wants_device(request.role, request.vendor, settings):
        found.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}})
    if request.server is not None:
        found += server_volumes(settings.sizes[request.role])
    return found
