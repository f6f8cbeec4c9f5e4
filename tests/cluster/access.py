"""What people do with a cluster: kubectl, Helm, ``kubectl retuned``, and waiting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from tests.plane.control_plane import ControlPlane, Failed


class Access(ABC):
    """A cluster as those who use it see it."""

    folder: Path
    """Keys, logs and data."""
    programs: Path
    """What `tests.plane.control_plane.tools` returns."""
    admin: Path
    """Kubeconfig of somebody who may do all."""

    @property
    @abstractmethod
    def plane(self) -> ControlPlane:
        """The control plane, for kubeconfigs and the audit log."""

    def kubectl(self, *arguments: str, given: Any = None, kubeconfig: Path | None = None) -> str:
        """Run kubectl, as who may do all if nobody else is named; `given` goes in as YAML.

        Raises
        ------
        subprocess.CalledProcessError
            If it failed; ``stderr`` says why.
        """
        text = given if given is None or isinstance(given, str) else yaml.safe_dump_all(given)
        return self.plane.kubectl(*arguments, kubeconfig=kubeconfig or self.admin, given=text)

    def get(self, *what: str) -> dict[str, Any]:
        """Return what kubectl gets."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *what, "-o", "json"))
        return found

    def evict(self, pod: str, *, namespace: str) -> None:
        """Ask for a pod's end by the Eviction API, as ``kubectl drain`` does."""
        about = {"name": pod, "namespace": namespace}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": about}
        where = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
        self.kubectl("create", "--raw", where, "-f", "-", given=json.dumps(eviction))

    @contextmanager
    def cordoned(self, node: str) -> Iterator[None]:
        """Let no new pod onto a node for a block."""
        self.kubectl("cordon", node)
        try:
            yield
        finally:
            self.kubectl("uncordon", node)

    def person(self, name: str, role: str, *, namespace: str, groups: tuple[str, ...] = ()) -> Path:
        """Return the kubeconfig of somebody who has one of our roles in a namespace."""
        kubeconfig = self.plane.kubeconfig(name, groups=groups)
        group = "rbac.authorization.k8s.io"
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"{name}-{role}", "namespace": namespace},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": group, "kind": "User", "name": name}],
        }
        self.kubectl("apply", "-f", "-", given=[binding])  # somebody may be asked twice
        may = ("auth", "can-i", "get", "swapproposals.retuned.dev", "-n", namespace, "--quiet")
        known = f"{name} has the rights of {role}: who checks them reads a cache"
        self.eventually(lambda: self.succeeds(*may, kubeconfig=kubeconfig), known)
        return kubeconfig

    def retuned(self, *arguments: str, kubeconfig: Path) -> str:
        """Run ``kubectl retuned`` as somebody and return what it said.

        Raises
        ------
        subprocess.CalledProcessError
            If the answer is no; ``stderr`` says why.
        """
        return subprocess.run(
            [sys.executable, "-m", "retuned_operator.kubectl", *arguments],
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        ).stdout

    def helm(self, *arguments: str, given: Mapping[str, Any] | None = None) -> str:
        """Run Helm as who may do all; `given` are values.

        Raises
        ------
        Failed
            With its words, if it failed.
        """
        command = [str(self.programs / "helm"), "--kubeconfig", str(self.admin), *arguments]
        if given is not None:
            command.append("--values=-")
        home = str(self.folder / "helm")
        done = subprocess.run(
            command,
            input=None if given is None else yaml.safe_dump(dict(given)),
            capture_output=True,
            text=True,
            timeout=900,
            env={"PATH": os.environ["PATH"], "HOME": home},
            check=False,
        )
        if done.returncode != 0:
            raise Failed(f"helm {' '.join(arguments)}: {done.stderr.strip()}\n{self._scene()}")
        return done.stdout

    def succeeds(self, *arguments: str, kubeconfig: Path | None = None) -> bool:
        """Return whether kubectl does what is asked, without waiting for it."""
        try:
            self.kubectl(*arguments, kubeconfig=kubeconfig)
        except subprocess.CalledProcessError:
            return False
        return True

    def eventually(self, seen: Callable[[], bool], what: str, *, within_s: float = 240.0) -> float:
        """Wait until something holds and return the seconds that took.

        Raises
        ------
        AssertionError
            With the pods and the last events, if it does not come to that.
        """
        began = time.monotonic()
        while not seen():
            if time.monotonic() - began > within_s:
                raise AssertionError(f"not within {within_s:.0f} s: {what}\n{self._scene()}")
            time.sleep(0.2)
        return time.monotonic() - began

    def _scene(self) -> str:
        pods = self.kubectl("get", "pods", "--all-namespaces", "-o", "wide")
        events = self.kubectl("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp")
        return "\n".join([pods, *events.splitlines()[-25:], *self._last_words()])

    def _last_words(self) -> Iterator[str]:
        """Yield how containers that ended ended, and what they said before."""
        for pod in self.get("pods", "--all-namespaces")["items"]:
            where, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
            status = pod["status"]
            for kind in ("initContainerStatuses", "containerStatuses"):
                for each in status.get(kind, []):
                    ended = each.get("lastState", {}) or each["state"]
                    if ended.get("terminated", {"exitCode": 0})["exitCode"] == 0:
                        continue
                    yield f"\n{where}/{name}/{each['name']}: {json.dumps(ended)}"
                    log = ("logs", "-n", where, name, "-c", each["name"], "--tail=40")
                    for which in ([], ["--previous"]):
                        try:
                            yield self.kubectl(*log, *which)
                        except subprocess.CalledProcessError as refused:
                            yield refused.stderr.strip()
