"""A real Kubernetes control plane without nodes, as processes of the user who runs the tests.

etcd, API server, controllers, scheduler and kwok from `scripts/cluster-tools`; no root, no
container. ``with ControlPlane(folder, tools) as plane`` is ready when it begins and gone when it
ends, processes and files.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from tests.plane.pki import Authority, Pair

ROOT = Path(__file__).resolve().parents[2]
_READY_S = 200.0
_ASKED_S = 240.0
"""Longest time for what kubectl does."""
_STOP_S = 10.0
_FIRST_PORT, _PORTS, _WORKERS = 20_000, 1_500, 8
"""Below the ports that Linux gives to connections; so many for each process that runs tests."""
_SERVERS = ("kube-apiserver", "etcd")
"""Those that the others need; the last ones to stop."""
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "rules": [
        {"level": "RequestResponse", "resources": [{"group": "retuned.dev"}]},
        {"level": "None"},
    ],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a control plane listens, and who its nodes are."""

    address: str = "127.0.0.1"
    """Where the API server listens."""
    services: str = "10.0.0.0/24"
    """Cluster IPs of services."""
    first_service: str = "10.0.0.1"
    """The first of them is the API server's own."""
    kubelets: bool = False
    """Whether nodes are real ones, with pods that reach the API server; else kwok plays them."""
    controllers: bool = True
    """Whether anybody works on what is stored; else there is an API server and nothing besides."""
    before: tuple[str, ...] = ()
    """What starts each program, such as one that ends it together with who started it."""


class Failed(RuntimeError):
    """A process of the control plane did not come up; says which, and its last lines."""


def tools() -> Path | None:
    """Return where the control plane was built; None if it was not."""
    done = subprocess.run(
        [ROOT / "scripts" / "cluster-tools", "--path"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def needed_tools() -> Path:
    """Return where the control plane was built; that it was not is a failure in CI."""
    programs = tools()
    if programs is None:
        reason = "Kubernetes is not built here: make cluster-tools"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return programs


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now and that nobody is given until a server starts.

    A port that the kernel chooses it may give to a connection as soon as it is free again; who asks
    a server that is away can even be given the server's port, and then talks to itself.
    """
    once_round = itertools.islice(_PORTS_OF_OURS, _PORTS)
    return list(itertools.islice(filter(_is_free, once_round), count))


def _ports_of_ours() -> Iterator[int]:
    """Yield the ports of this process, round and round from any one on."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _FIRST_PORT + worker % _WORKERS * _PORTS
    for number in itertools.count(secrets.randbelow(_PORTS)):
        yield first + number % _PORTS


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


_PORTS_OF_OURS = _ports_of_ours()


class ControlPlane:
    """One control plane in one folder.

    Parameters
    ----------
    folder
        Empty; holds keys, logs and data.
    programs
        What `tools` returns.
    place
        Loopback and nodes that are played, if nothing else is said.
    definitions
        Files of CRDs that are in force before the controllers start: the one that collects
        garbage looks for new kinds only every half a minute.
    """

    def __init__(
        self,
        folder: Path,
        programs: Path,
        *,
        place: Place | None = None,
        definitions: tuple[Path, ...] = (),
    ) -> None:
        self.folder = folder
        self._definitions = definitions
        self.programs = programs
        self._place = place or Place()
        self.authority = Authority(folder / "pki")
        etcd, peer, api, controllers, scheduler, kwok = free_ports(6)
        self._ports = {"etcd": etcd, "peer": peer, "controllers": controllers}
        self._ports |= {"scheduler": scheduler, "kwok": kwok}
        self.url = f"https://{self._place.address}:{api}"
        self.audit_log = folder / "audit.json"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "logs").mkdir(exist_ok=True)

    def __enter__(self) -> Self:
        try:
            self._start_store()
            self._start_api()
            self._define()
            if self._place.controllers:
                self._start_controllers()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- who asks ---------------------------------------------------------------------------------

    def kubeconfig(self, user: str, *, groups: tuple[str, ...] = ()) -> Path:
        """Return a kubeconfig of a user; ``system:masters`` is the group that may do all."""
        pair = self.authority.user(user, groups=groups)
        path = pair.certificate.with_suffix(".kubeconfig")
        path.write_text(yaml.safe_dump(self._kubeconfig(pair)), "utf-8")
        return path

    def admin(self) -> Path:
        """Return the kubeconfig of somebody who may do all."""
        return self.kubeconfig("admin", groups=("system:masters",))

    def kubectl(self, *arguments: str, kubeconfig: Path, given: str | None = None) -> str:
        """Run kubectl and return what it said.

        Raises
        ------
        subprocess.CalledProcessError
            If it failed; ``stderr`` says why.
        """
        return subprocess.run(
            [self.programs / "kubectl", "--kubeconfig", str(kubeconfig), *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=_ASKED_S,
            check=True,
        ).stdout

    def audited(self) -> Iterator[dict[str, Any]]:
        """Yield what the audit log says of our group's objects, oldest first."""
        whole, _, _being_written = self.audit_log.read_text("utf-8").rpartition("\n")
        for line in whole.splitlines():
            yield json.loads(line)

    # --- its processes ----------------------------------------------------------------------------

    def stop_process(self, name: str, *, with_signal: int = signal.SIGTERM) -> None:
        """Stop one of them and wait for its end."""
        process = self._running.pop(name)
        process.send_signal(with_signal)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def start_api(self) -> None:
        """Start the API server again after it was stopped."""
        self._start_api()

    def stop(self, *, with_signal: int = signal.SIGTERM) -> None:
        """Stop all, the API server's clients first."""
        clients = [name for name in self._running if name not in _SERVERS]
        for name in (*clients, *(name for name in _SERVERS if name in self._running)):
            self.stop_process(name, with_signal=with_signal)

    def _start_store(self) -> None:
        client, peer = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "peer"))
        self._start(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync=true",
        )
        self._await("etcd", f"{client}/health")

    def _start_api(self) -> None:
        place = self._place
        names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        hosts = (*names, place.address, place.first_service)
        server = self.authority.server("apiserver", hosts=hosts)
        private, public = (
            self.authority.signing_key()
            if not (self.folder / "pki" / "tokens.key").exists()
            else (self.folder / "pki" / "tokens.key", self.folder / "pki" / "tokens.pub")
        )
        policy = self.folder / "audit-policy.yaml"
        policy.write_text(yaml.safe_dump(_AUDIT), "utf-8")
        self._start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}",
            f"--bind-address={place.address}",
            f"--secure-port={self.url.rpartition(':')[2]}",
            f"--cert-dir={self.folder / 'pki'}",
            f"--tls-cert-file={server.certificate}",
            f"--tls-private-key-file={server.key}",
            f"--client-ca-file={self.authority.certificate}",
            *self._for_nodes(),
            f"--service-cluster-ip-range={place.services}",
            "--allow-privileged=true",
            f"--service-account-issuer={self.url}/",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={private}",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit_log}",
        )
        self._await("kube-apiserver", f"{self.url}/readyz")

    def _for_nodes(self) -> tuple[str, ...]:
        if not self._place.kubelets:
            return ("--authorization-mode=RBAC", "--endpoint-reconciler-type=none")
        asks = self.authority.user("kube-apiserver", groups=("system:masters",))
        return (
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--advertise-address={self._place.address}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={asks.certificate}",
            f"--kubelet-client-key={asks.key}",
            f"--kubelet-certificate-authority={self.authority.certificate}",
        )

    def _define(self) -> None:
        admin = self.admin()
        files = [f"--filename={path}" for path in self._definitions]
        if files:
            self.kubectl("apply", "--server-side", *files, kubeconfig=admin)
            waiting = ("wait", "--for=condition=Established", f"--timeout={_READY_S:.0f}s")
            self.kubectl(*waiting, *files, kubeconfig=admin)

    def _start_controllers(self) -> None:
        private = self.folder / "pki" / "tokens.key"
        masters = ("system:masters",)
        manager = self.kubeconfig("system:kube-controller-manager", groups=masters)
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={manager}",
            f"--root-ca-file={self.authority.certificate}",
            f"--service-account-private-key-file={private}",
            "--use-service-account-credentials",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports['controllers']}",
            "--leader-elect=false",
            # a node that is silent because all stands still, or is to be for a test, is not gone
            "--node-monitor-grace-period=15m",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        )
        self._start(
            "kube-scheduler",
            f"--kubeconfig={self.kubeconfig('system:kube-scheduler', groups=masters)}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports['scheduler']}",
            "--leader-elect=false",
        )
        if not self._place.kubelets:
            self._start_kwok(masters)
        self._await(
            "kube-controller-manager", f"https://127.0.0.1:{self._ports['controllers']}/healthz"
        )

    def _start_kwok(self, masters: tuple[str, ...]) -> None:
        self._start(
            "kwok",
            f"--kubeconfig={self.kubeconfig('kwok', groups=masters)}",
            f"--config={ROOT / 'tests' / 'plane' / 'stages.yaml'}",
            "--manage-all-nodes=true",
            "--node-ip=10.0.0.254",
            "--cidr=10.64.0.0/14",
            "--node-lease-duration-seconds=40",
            f"--server-address=127.0.0.1:{self._ports['kwok']}",
        )

    def _start(self, name: str, *arguments: str) -> None:
        log = (self.folder / "logs" / f"{name}.log").open("ab")
        with log:
            self._running[name] = subprocess.Popen(
                [*self._place.before, str(self.programs / name), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
                start_new_session=True,
            )

    def _await(self, name: str, url: str) -> None:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        if url.startswith("https"):
            admin = self.authority.user("admin", groups=("system:masters",))
            context.load_cert_chain(admin.certificate, admin.key)
            if name != "kube-apiserver":  # signs for itself
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        end = time.monotonic() + _READY_S
        while True:
            if self._running[name].poll() is not None:
                raise Failed(f"{name} ended by itself:\n{self._tail(name)}")
            try:
                with urllib.request.urlopen(
                    url, timeout=10, context=context if url.startswith("https") else None
                ):
                    return
            except (urllib.error.URLError, OSError) as error:
                if time.monotonic() > end:
                    raise Failed(f"{name}: {error}\n{self._tail(name)}") from error
            time.sleep(0.1)

    def _tail(self, name: str) -> str:
        return (self.folder / "logs" / f"{name}.log").read_text("utf-8", "replace")[-3000:]

    def _kubeconfig(self, pair: Pair) -> dict[str, Any]:
        cluster = {"server": self.url, "certificate-authority": str(self.authority.certificate)}
        user = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "user"}}],
            "current-context": "tests",
        }
