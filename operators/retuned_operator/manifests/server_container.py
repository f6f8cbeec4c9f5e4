"""The server's container in an experiment pod for a tunable, with what it mounts. Pure.

It runs the image of the target with the server's own Python, and starts child processes on request
of the container ``runner`` (`retuned.tunables.host`). It has the GPU. It cannot reach the results,
the task or the lab's folder, and has no network beyond that of every Job. Its user is never root,
because the namespace of experiments enforces the `restricted` standard.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from retuned.errors import Refused
from retuned_operator.manifests.pod_security import container_security
from retuned_operator.manifests.settings import JobSettings, Size

SERVER = "server"
"""Container with the server's image."""
CODE = "code"
"""Init container that copies the child's code, and its volume."""
CODE_DIR = "/retuned/code"
HOST_DIR = "/retuned/host"
HOST_SOCKET = f"{HOST_DIR}/host.sock"
SERVER_WORK_DIR = "/retuned/work"
DELIVERED = "/opt/retuned/server"
"""Folder of the experiment image with the packages that the server's Python loads."""
MAX_CHILDREN = 2
"""Child processes at a time: one measures while the next one loads the server's packages."""
HOST_WAIT_S = 900
"""Longest wait of the host for the runner."""
RUNNER_SIZE = Size(cpu="1", memory="2Gi", work="1Gi")
"""Of the container ``runner`` beside a server's container, which does the work."""
_CODE_LIMIT = "16Mi"
_PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,400}@sha256:[0-9a-f]{64}")
_SECRET = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_CLASS = _SECRET
_PYTHON = re.compile(r"/[A-Za-z0-9._+/-]{1,400}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerImage:
    """The image of a target's servers, and how it starts.

    Raises
    ------
    Refused
        ``server-image-invalid``: the image is not named by its digest, or another part is invalid.
    """

    image: str
    """By digest: ``registry/name@sha256:...``."""
    python: str
    """The server's interpreter, an absolute path."""
    pull_secrets: tuple[str, ...] = ()
    """Names of the target's secrets that pull it; they must be in the Jobs' namespace too."""
    runtime_class: str = ""
    """Of the target's pods; empty is the setting for experiments."""
    user_id: int | None = None
    """User of the target's own container; None, or root, is the user of experiments."""

    def __post_init__(self) -> None:
        if not _PINNED.fullmatch(self.image):
            raise _invalid(f"image {self.image[:120]!r} is not named by its digest")
        if not _PYTHON.fullmatch(self.python):
            raise _invalid(f"interpreter {self.python[:120]!r} is not an absolute path")
        if len(self.pull_secrets) > 16 or not all(map(_SECRET.fullmatch, self.pull_secrets)):
            raise _invalid(f"pull secrets {str(self.pull_secrets)[:120]}")
        if self.runtime_class and not _CLASS.fullmatch(self.runtime_class):
            raise _invalid(f"runtime class {self.runtime_class[:120]!r}")
        if self.user_id is not None and not 0 <= self.user_id < 2**31:
            raise _invalid(f"user {self.user_id}")


def _invalid(what: str) -> Refused:
    error = Refused(f"the server's container cannot be made: {what}")
    error.code = "server-image-invalid"
    return error


def server_container(
    server: ServerImage, settings: JobSettings, *, size: Size, gpu: str
) -> dict[str, Any]:
    """Return the container.

    Parameters
    ----------
    size
        What it may use.
    gpu
        Name of the resource of its accelerator; empty asks for none.
    """
    resources = {"cpu": size.cpu, "memory": size.memory, "ephemeral-storage": size.work}
    limits = resources | ({gpu: "1"} if gpu else {})
    mounts: list[dict[str, Any]] = [
        {"name": CODE, "mountPath": CODE_DIR, "readOnly": True},
        {"name": "host", "mountPath": HOST_DIR},
        {"name": "server-work", "mountPath": SERVER_WORK_DIR},
        {"name": "server-tmp", "mountPath": "/tmp"},
    ]
    if gpu:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    user = server.user_id or settings.user_id
    return {
        "name": SERVER,
        "image": server.image,
        "imagePullPolicy": "IfNotPresent",
        # -I: neither variables of the image nor its folders change what the host loads
        "command": [
            server.python, "-I", f"{CODE_DIR}/retuned/tunables/host.py",
            "--socket", HOST_SOCKET, "--work", SERVER_WORK_DIR,
            "--children", str(MAX_CHILDREN), "--wait-s", str(HOST_WAIT_S),
        ],
        "workingDir": SERVER_WORK_DIR,
        "env": [
            {"name": "RETUNED_ALLOWED_UIDS", "value": str(settings.user_id)},
            {"name": "RETUNED_RUNTIME", "value": "off"},
            {"name": "HOME", "value": SERVER_WORK_DIR},
            # PyTorch asks for the name of its user, which an image need not have
            {"name": "USER", "value": "retuned"},
            {"name": "LOGNAME", "value": "retuned"},
            {"name": "TMPDIR", "value": "/tmp"},
        ],
        "resources": {"requests": resources, "limits": limits},
        "securityContext": container_security(user),
        "terminationMessagePolicy": "File",
        "volumeMounts": mounts,
    }  # fmt: skip


def code_container(settings: JobSettings) -> dict[str, Any]:
    """Return the init container that copies the child's code to where the server reads it."""
    return {
        "name": CODE,
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": ["cp", "-r", f"{DELIVERED}/.", CODE_DIR],
        "resources": {
            "requests": {"cpu": "10m", "memory": "32Mi", "ephemeral-storage": _CODE_LIMIT},
            "limits": {"cpu": "1", "memory": "64Mi", "ephemeral-storage": _CODE_LIMIT},
        },
        "securityContext": container_security(),
        "terminationMessagePolicy": "File",
        "volumeMounts": [{"name": CODE, "mountPath": CODE_DIR}],
    }


def server_volumes(size: Size) -> list[dict[str, Any]]:
    """Return the volumes beside those of every Job; each has a limit."""
    return [
        {"name": CODE, "emptyDir": {"sizeLimit": _CODE_LIMIT}},
        {"name": "host", "emptyDir": {"sizeLimit": "1Mi"}},
        {"name": "server-work", "emptyDir": {"sizeLimit": size.work}},
        {"name": "server-tmp", "emptyDir": {"sizeLimit": "1Gi"}},
    ]


def runner_mounts() -> list[dict[str, Any]]:
    """Return what the container ``runner`` mounts for the host's sake."""
    return [{"name": "host", "mountPath": HOST_DIR}]


def pull_secrets(server: ServerImage | None, settings: JobSettings) -> list[dict[str, str]]:
    """Return the secrets that pull the images of a Job, each once."""
    more = server.pull_secrets if server is not None else ()
    return [{"name": name} for name in dict.fromkeys((*settings.pull_secrets, *more))]


def runtime_class(server: ServerImage | None, settings: JobSettings) -> str:
    """Return the runtime class of a Job's pod: the target's if it has one."""
    return (server.runtime_class if server is not None else "") or settings.runtime_class
