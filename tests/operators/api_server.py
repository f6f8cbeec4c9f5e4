"""A real API server with etcd on loopback, for schemas, rules and admission; no nodes, no pods."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

ROOT = Path(__file__).parents[2]
_READY_S = 90
USERS = {
    "admin": "system:masters",
    "ada": "gpu-platform,sre",
    "bob": "other",
    "program": "gpu-platform",
}


def tools() -> Path | None:
    """Return the folder with the built tools; None where they are not built."""
    script = ROOT / "scripts" / "cluster-tools"
    found = subprocess.run([script, "--path"], capture_output=True, text=True, check=False)
    return Path(found.stdout.strip()) if found.returncode == 0 else None


class ApiServer:
    """Requests as one of `USERS`."""

    def __init__(self, url: str) -> None:
        # the certificate is the server's own, made at its start
        self._client = httpx.Client(base_url=url, verify=False, timeout=30.0)

    def close(self) -> None:
        self._client.close()

    def call(
        self, method: str, path: str, body: Any = None, *, user: str = "admin"
    ) -> tuple[int, Mapping[str, Any]]:
        """Return status and answer."""
        patch = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {user}-token", "Content-Type": patch}
        answer = self._client.request(method, path, json=body, headers=headers)
        found = answer.json() if answer.headers["content-type"] == "application/json" else {}
        return answer.status_code, found

    def create(self, body: Mapping[str, Any], *, user: str = "admin") -> Mapping[str, Any]:
        """Make an object and return it.

        Raises
        ------
        AssertionError
            With what the server says, where it refuses.
        """
        status, answer = self.call("POST", path_of(body), body, user=user)
        assert status in (200, 201), answer.get("message")
        return answer

    def refusal(self, body: Mapping[str, Any], *, user: str = "admin") -> str:
        """Return why the server refuses an object."""
        status, answer = self.call("POST", path_of(body), body, user=user)
        assert status in (400, 403, 422), f"not refused: {status}"
        return str(answer["message"])

    def eventually(self, method: str, path: str) -> Mapping[str, Any]:
        """Return the answer once there is one: what was just made takes a moment to be served."""
        deadline = time.monotonic() + 30
        while True:
            status, answer = self.call(method, path)
            if status == 200 or time.monotonic() > deadline:
                assert status == 200, answer
                return answer
            time.sleep(0.1)


def path_of(body: Mapping[str, Any]) -> str:
    """Return where objects of a kind are made."""
    plurals = {"KernelTuningPolicy": "kerneltuningpolicies"}
    version, kind = body["apiVersion"], body["kind"]
    plural = plurals.get(kind, kind.lower() + ("es" if kind.endswith("Class") else "s"))
    plural = plural.replace("policys", "policies")
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = body["metadata"].get("namespace")
    return f"{base}/namespaces/{namespace}/{plural}" if namespace else f"{base}/{plural}"


@contextmanager
def running(bin: Path, folder: Path) -> Iterator[ApiServer]:
    """Run etcd and an API server for as long as the block lasts."""
    etcd, peer, port = (_free_port() for _ in range(3))
    _write_key(folder)
    lines = [f'{name}-token,{name},{name},"{groups}"\n' for name, groups in USERS.items()]
    (folder / "tokens.csv").write_text("".join(lines))
    stores = f"http://127.0.0.1:{etcd}"
    commands: list[list[str | Path]] = [
        [
            bin / "etcd",
            f"--data-dir={folder / 'data'}",
            f"--listen-client-urls={stores}",
            f"--advertise-client-urls={stores}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync=true",
        ],
        [
            bin / "kube-apiserver",
            f"--etcd-servers={stores}",
            f"--cert-dir={folder / 'certs'}",
            f"--secure-port={port}",
            "--bind-address=127.0.0.1",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--disable-admission-plugins=ServiceAccount",
            f"--service-account-issuer=https://127.0.0.1:{port}/",
            f"--service-account-key-file={folder / 'sa.pub'}",
            f"--service-account-signing-key-file={folder / 'sa.key'}",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--endpoint-reconciler-type=none",
        ],
    ]
    children: list[subprocess.Popen[bytes]] = []
    server = ApiServer(f"https://127.0.0.1:{port}")
    with (folder / "log").open("wb") as log:
        try:
            for command in commands:
                children.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=folder))
            _wait(server, children, folder / "log")
            yield server
        finally:
            server.close()
            for child in reversed(children):
                child.terminate()
                try:
                    child.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()


def _wait(server: ApiServer, children: list[subprocess.Popen[bytes]], log: Path) -> None:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        assert all(child.poll() is None for child in children), log.read_text()[-3000:]
        try:
            if server.call("GET", "/readyz")[0] == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"not ready within {_READY_S} s: {log.read_text()[-3000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _write_key(folder: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "sa.key").write_bytes(private)
    (folder / "sa.pub").write_bytes(public)
