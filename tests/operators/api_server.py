"""A real API server, for schemas, rules and admission; nobody works on what it keeps."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.plane.control_plane import ControlPlane, Place, needed_tools

USERS = {"admin": ("system:masters",), "ada": ("gpu-platform", "sre"), "bob": ("other",)}
"""Who asks, and in which groups they are."""


class ApiServer:
    """Requests as one of `USERS`.

    Parameters
    ----------
    clients
        By user.
    """

    def __init__(self, clients: Mapping[str, httpx.Client]) -> None:
        self._clients = clients

    def call(
        self, method: str, path: str, body: Any = None, *, user: str = "admin"
    ) -> tuple[int, Mapping[str, Any]]:
        """Return status and answer."""
        patch = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Content-Type": patch}
        answer = self._clients[user].request(method, path, json=body, headers=headers)
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
        deadline = time.monotonic() + 150
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
def running(folder: Path) -> Iterator[ApiServer]:
    """Run etcd and an API server for as long as the block lasts."""
    place = Place(controllers=False)
    with ControlPlane(folder, needed_tools(), place=place) as plane, ExitStack() as stack:
        yield ApiServer({user: stack.enter_context(client(plane, user)) for user in USERS})


def client(plane: ControlPlane, user: str) -> httpx.Client:
    """Return what asks as a user."""
    context = ssl.create_default_context(cafile=str(plane.authority.certificate))
    pair = plane.authority.user(user, groups=USERS[user])
    context.load_cert_chain(pair.certificate, pair.key)
    return httpx.Client(base_url=plane.url, verify=context, timeout=100.0)
