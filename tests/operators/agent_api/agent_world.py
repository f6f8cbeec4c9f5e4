"""An operator's agent API over TLS in this process, with pods, tokens and orders from the test."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.plane.pki import Authority

from retuned.api.agent import AlarmOrder, BootOrder, Hello, OverheadOrder, PodRef, ProofOrder
from retuned.clock import FakeClock
from retuned.contract import Digest, Guard
from retuned.errors import TemporaryError
from retuned.sidecar.operator_api import OperatorApi
from retuned.stages.swap import SwapKind, SwapOrder
from retuned_operator.agent_api import (
    AgentServer,
    AgentSettings,
    Hub,
    PodRecord,
    Receipt,
    Said,
    agent_app,
)
from retuned_operator.agent_api.authentication import POD_NAME, POD_UID
from retuned_operator.agent_api.server import Certificates

TARGET = "serving/chat"
POD = PodRef(namespace="serving", name="chat-0", uid="u-0")
OTHER = PodRef(namespace="serving", name="chat-1", uid="u-1")


def token_of(pod: PodRef, *, ends_at: float = 4e9, audience: str = "retuned.dev") -> str:
    """Return a token as the API server makes them; only the fake below believes it."""
    claims = {"exp": ends_at, "aud": [audience], "pod": [pod.namespace, pod.name, pod.uid]}
    parts = [json.dumps(each).encode() for each in ({"alg": "none"}, claims)]
    text = [base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts]
    return ".".join([*text, "signature"])


class FakeTokens:
    """An API server that reviews tokens, and counts how often it was asked."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.asked = 0
        self.away = False

    def review(self, token: str, *, audience: str) -> Mapping[str, Any]:
        self.asked += 1
        if self.away:
            raise TemporaryError("the API server is away", delay_s=2.0)
        part = token.split(".")[1] if token.count(".") == 2 else ""
        try:
            claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        except ValueError:
            return {"status": {"authenticated": False, "error": "no token of ours"}}
        if claims["exp"] <= self.clock.now().timestamp() or audience not in claims["aud"]:
            return {"status": {"authenticated": False, "error": "expired, or for another"}}
        namespace, name, uid = claims["pod"]
        user: dict[str, Any] = {"username": f"system:serviceaccount:{namespace}:default"}
        user["extra"] = {POD_NAME: [name], POD_UID: [uid]}
        return {"status": {"authenticated": True, "audiences": [audience], "user": user}}


class FakeFleet:
    """Pods, orders and artifacts, as the test says."""

    def __init__(self) -> None:
        self.pods = {
            each.name: PodRecord(
                namespace=each.namespace, name=each.name, uid=each.uid, target=TARGET
            )
            for each in (POD, OTHER)
        }
        self.ordered: dict[str, tuple[SwapOrder, ...]] = {}
        self.proven: dict[str, tuple[ProofOrder, ...]] = {}
        self.tried: dict[str, tuple[AlarmOrder, ...]] = {}
        self.measured: dict[str, OverheadOrder] = {}
        self.boots: dict[str, BootOrder] = {}
        self.artifacts: dict[Digest, Mapping[str, bytes]] = {}
        self.signs_with = ""

    def pod(self, namespace: str, name: str) -> PodRecord | None:
        found = self.pods.get(name)
        return found if found is not None and found.namespace == namespace else None

    def orders(self, pod: PodRecord) -> Sequence[SwapOrder]:
        return self.ordered.get(pod.uid, ())

    def proofs(self, pod: PodRecord) -> Sequence[ProofOrder]:
        return self.proven.get(pod.uid, ())

    def alarms(self, pod: PodRecord) -> Sequence[AlarmOrder]:
        return self.tried.get(pod.uid, ())

    def overhead(self, pod: PodRecord) -> OverheadOrder | None:
        return self.measured.get(pod.uid)

    def boot(self, pod: PodRecord) -> BootOrder | None:
        return self.boots.get(pod.uid)

    def artifact(self, digest: Digest) -> Mapping[str, bytes] | None:
        return self.artifacts.get(digest)

    def key(self) -> str:
        return self.signs_with


class Remembers:
    """An inbox that keeps everything, as long as it is not full."""

    def __init__(self) -> None:
        self.full = False
        self.taken: list[tuple[Receipt, Said]] = []
        self._lock = threading.Lock()

    def take(self, receipt: Receipt, said: Said) -> None:
        if self.full:
            raise TemporaryError("the disk is full", delay_s=3.0)
        with self._lock:
            self.taken.append((receipt, said))

    def has_heard(self, pod: PodRecord) -> bool:
        with self._lock:
            return any(isinstance(said, Hello) and r.pod == pod for r, said in self.taken)


class AgentWorld:
    """The API, served over TLS on a free port of this machine."""

    def __init__(self, folder: Path, *, settings: AgentSettings | None = None) -> None:
        self.clock = FakeClock()
        self.tokens = FakeTokens(self.clock)
        self.fleet, self.inbox, self.hub = FakeFleet(), Remembers(), Hub()
        self.folder = folder
        self.spans: dict[str, str] = {}
        self.authority = Authority(folder / "pki")
        self.pair = self.authority.server("agent", hosts=("127.0.0.1", "localhost"))
        app = agent_app(
            self.fleet,
            self.inbox,
            tokens=self.tokens,
            hub=self.hub,
            clock=self.clock,
            settings=settings or AgentSettings(),
            traces=lambda _, orders: {
                each.id: self.spans[each.id] for each in orders if each.id in self.spans
            },
            heard=self.inbox.has_heard,
        )
        certificates = Certificates(self.pair.certificate, self.pair.key)
        self.server = AgentServer(app, certificates, hub=self.hub, address="127.0.0.1", port=0)
        self.server.start()
        self._clients: list[OperatorApi] = []

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server.port}"

    def client(self, pod: PodRef = POD, *, token: str | None = None) -> OperatorApi:
        """Return a sidecar's end, with a token of this pod."""
        path = self.folder / f"token-{len(self._clients)}"
        path.write_text(token if token is not None else token_of(pod))
        client = OperatorApi(self.url, token_file=path, ca_file=self.authority.certificate)
        self._clients.append(client)
        return client

    def order(self, *orders: SwapOrder, pod: PodRef = POD) -> None:
        """Tell a pod to have these, and wake it."""
        self.fleet.ordered[pod.uid] = orders
        self.hub.changed(TARGET)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.server.stop()


def an_order(
    artifact: Digest | None, *, epoch: int = 1, name: str = "gemm", proposal: str = "p"
) -> SwapOrder:
    """Return an order; the same arguments, the same order."""
    return SwapOrder(
        id=f"{name}-{proposal}-{epoch}",
        kind=SwapKind.SWAP if artifact else SwapKind.ROLLBACK,
        proposal=proposal,
        target=TARGET,
        definition=name,
        artifact=artifact,
        previous=None,
        guard=Guard(),
        epoch=epoch,
    )


def artifact_files(digest: Digest, *, binary: bytes = b"code") -> dict[str, bytes]:
    """Return the files of an artifact, without a signature."""
    manifest = {
        "digest": digest,
        "binary": "kernel.so",
        "binary_sha256": hashlib.sha256(binary).hexdigest(),
    }
    return {"artifact.json": json.dumps(manifest).encode(), "kernel.so": binary}
