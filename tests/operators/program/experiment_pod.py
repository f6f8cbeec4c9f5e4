"""A pod of an experiment without a cluster: the manifest's programs, environments and mounts.

Beside the container that works runs the one that tells the results; its log is what comes out. What
the manifest mounts lies below one folder; paths in the command, the environment and the task are
changed to lie there and nothing else is. Like in a pod, the programs are nobody's user (where the
tests are root's, and there is a Python outside of root's home), have no way out, and can write to
their volumes only (where the kernel can hold them to that). A pod that asks a model is only the
first of these.

A pod for a tunable also has the server's container: another user and another folder than the
runner, the delivered packages alone, and the Python of these tests in place of the image.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.tunables.hosts import children_of, deliver

from retuned.lab.harness.landlock import Allowed, restrict
from retuned_operator.manifests.jobs import MESSAGE_PATH, RUNNER, TASK_KEY, TELLER
from retuned_operator.manifests.server_container import CODE_DIR, SERVER
from retuned_operator.schema import JobRole

SERVER_PACKAGES = "/server-packages"
"""Folder of the server's image with the server's own kernels."""
_USER = 65532
"""As the manifest says."""
_WRITABLE = ("work", "tmp")


def _everybodys(program: Path) -> bool:
    """Whether another user can start it."""
    return all(each.stat().st_mode & 1 for each in (program, *program.parents))


def _interpreter() -> tuple[Path, bool]:
    """Return a Python like this one, and whether every user can start it."""
    here = Path(sys.executable)
    system = Path(f"/usr/bin/python3.{sys.version_info.minor}")
    for each in (here, system):
        if each.exists() and _everybodys(each.resolve()):
            return each, True
    return here, False


_PYTHON, _REACHED = _interpreter()
_IS_NOBODY = os.geteuid() == 0 and _REACHED
_PACKAGES = os.pathsep.join(
    each for each in sys.path if os.path.isdir(each) and not each.startswith(sys.base_prefix)
)
"""Where another Python finds what this one does."""


class ExperimentPod:
    """One pod of a Job, not started.

    Parameters
    ----------
    place
        Folder for this pod alone, which every user may enter.
    objects
        ConfigMap and Job.
    uid
        The pod's.
    packages
        Folder that stands for `SERVER_PACKAGES`; None where the pod has no server's container.
    """

    def __init__(
        self,
        place: Path,
        objects: tuple[dict[str, Any], ...],
        *,
        uid: str,
        packages: Path | None = None,
    ) -> None:
        task_map, job = objects
        self._place = place
        spec = job["spec"]["template"]["spec"]
        (self._container,) = (each for each in spec["containers"] if each["name"] == RUNNER)
        (self._teller,) = (each for each in spec["initContainers"] if each["name"] == TELLER)
        mounted = self._container["volumeMounts"]
        self.results = place / "results"
        self.log = b""
        """What the container that tells has written, once the pod has ended."""
        self.user = _USER if _IS_NOBODY else os.geteuid()
        """Who runs it."""
        self.work = place / "work"
        """Its scratch folder."""
        self.message_file = place / "termination-log"
        self._paths = {MESSAGE_PATH: str(self.message_file)}
        if packages is not None:
            self._paths[SERVER_PACKAGES] = str(packages)
        for each in mounted:
            folder = place / each["name"]
            self._paths[each["mountPath"]] = str(folder)
            folder.mkdir()
        self.message_file.touch()
        self.environment = self._environment(self._container, uid)
        self._tellers = self._environment(self._teller, uid)
        self._mount_task(task_map["data"][TASK_KEY])
        if _IS_NOBODY:
            for path in (place / "work", place / "tmp", self.results, self.message_file):
                os.chown(path, _USER, _USER)
        self._server = next((each for each in spec["containers"] if each["name"] == SERVER), None)
        self._server_paths = self._mount_server()

    @property
    def message(self) -> dict[str, Any]:
        """The termination message."""
        text = self.message_file.read_text()
        assert len(text) <= 4096
        found: dict[str, Any] = json.loads(text)
        return found

    @property
    def left(self) -> list[str]:
        """Every file of its results, hidden ones too."""
        return sorted(
            str(each.relative_to(self.results))
            for each in self.results.rglob("*")
            if not each.is_dir()
        )

    def start(self, **changes: str) -> subprocess.Popen[str]:
        """Start the program as its user, behind the walls of a pod."""
        environment: Mapping[str, str] = {**self.environment, **changes}
        own = (*(str(self._place / name) for name in _WRITABLE), str(self.results))
        return subprocess.Popen(
            self._command(self._container),
            env=environment,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: self._enter(own),
        )

    def run(self, **changes: str) -> int:
        """Run the pod to its end, both of its containers; return the exit code of the program."""
        teller = self.start_telling()
        child = self.start(**changes)
        self.stdout, self.stderr = child.communicate(timeout=280.0)
        self.end_telling(teller)
        return child.returncode

    @contextmanager
    def server(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the server's container for the length of a block."""
        container = self._server
        assert container is not None, "the pod has no such container"
        given = {each["name"]: self._in_server(each["value"]) for each in container["env"]}
        given["RETUNED_ALLOWED_UIDS"] = str(self.user)
        process = subprocess.Popen(
            [self._in_server(word) for word in container["command"]],
            env={"PATH": os.environ["PATH"], **given},
            cwd=self._in_server(container["workingDir"]),
            stderr=subprocess.DEVNULL,
        )
        try:
            yield process
        finally:
            for pid in children_of(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.kill()
            process.wait()

    def run_all(self) -> dict[str, int]:
        """Run every container of the pod to its end; return their exit codes by name."""
        if self._server is None:
            return {RUNNER: self.run()}
        with self.server() as server:
            return {RUNNER: self.run(), SERVER: server.wait(30.0)}

    def start_telling(self) -> subprocess.Popen[bytes]:
        """Start the container that tells the results; it can write nowhere."""
        return subprocess.Popen(
            self._command(self._teller),
            env=self._tellers,
            cwd="/",
            stdout=subprocess.PIPE,
            preexec_fn=lambda: self._enter(()),
        )

    def end_telling(self, teller: subprocess.Popen[bytes]) -> None:
        """End it as the kubelet does, once the container that works has ended."""
        teller.send_signal(signal.SIGTERM)
        self.log, _ = teller.communicate(timeout=150.0)

    def _command(self, container: Mapping[str, Any]) -> list[str]:
        command = [self._here(word) for word in container["command"]]
        assert command[0] == "python"
        return [str(_PYTHON), *command[1:]]

    def _environment(self, container: Mapping[str, Any], uid: str) -> dict[str, str]:
        given = {"RETUNED_POD_UID": uid}
        for each in container["env"]:
            given.setdefault(each["name"], each.get("value", ""))
        found = {name: self._here(value) for name, value in given.items()}
        found |= {"TMPDIR": str(self._place / "tmp"), "PATH": os.environ["PATH"]}
        return found | {"PYTHONPATH": _PACKAGES}

    def _enter(self, own: tuple[str, ...]) -> None:
        if _IS_NOBODY:
            os.setgroups([])
            os.setgid(_USER)
            os.setuid(_USER)
        if own and self.environment.get("RETUNED_ROLE") == JobRole.GENERATE:
            return  # it alone has a way out, which Landlock would close
        restrict(
            Allowed(
                programs=("/",),
                devices=("/dev/null", "/dev/zero"),
                account=(str(self.message_file), "/proc/self"),
                own=own,
            )
        )

    def _here(self, text: str) -> str:
        known = "|".join(map(re.escape, self._paths))
        return re.sub(known, lambda found: self._paths[found[0]], text)

    def _mount_server(self) -> dict[str, str]:
        """Make what the server's container mounts, with the delivered packages."""
        found: dict[str, str] = {}
        for mount in self._server["volumeMounts"] if self._server is not None else ():
            folder = self._place / mount["name"]
            found[mount["mountPath"]] = str(folder)
            if mount["mountPath"] == CODE_DIR:
                deliver(folder)
            folder.mkdir(exist_ok=True)
        return found

    def _in_server(self, text: str) -> str:
        for mounted, folder in self._server_paths.items():
            if text == mounted or text.startswith(f"{mounted}/"):
                return f"{folder}{text.removeprefix(mounted)}"
        return text

    def _mount_task(self, text: str) -> None:
        """Mount it as the kubelet does, which exchanges whole folders behind a link."""
        data = self._place / "task" / "..2026_01_01"
        data.mkdir()
        (data / TASK_KEY).write_text(self._here(text))
        (self._place / "task" / "..data").symlink_to(data.name)
        (self._place / "task" / TASK_KEY).symlink_to(f"..data/{TASK_KEY}")
