"""A pod in memory: a server, its sidecar, an operator that comes and goes, a clock, restarts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from retuned.api.agent import AgentMessage, OrderDone, Outcome, PodRef, SlotWatch, WatchPost
from retuned.clock import FakeClock
from retuned.contract import Digest, Guard
from retuned.node.windows import WindowSettings
from retuned.ports import Spans, Swapper, TraceBatch
from retuned.runtime_client.fake import FakeSwapper
from retuned.sidecar.artifacts import Artifacts
from retuned.sidecar.context import Context, SidecarSettings
from retuned.sidecar.key_pinning import PinnedKeys
from retuned.sidecar.main import Sidecar
from retuned.sidecar.operator_fake import FakeOperator
from retuned.sidecar.spool import Spool
from retuned.sidecar.store import PodStore
from retuned.stages.drift import DEMO_SETTINGS
from retuned.stages.swap import SwapKind, SwapOrder, order_rollback
from retuned.stages.trace import LaunchRecord, ShapeSource
from retuned.stages.verdict import ServerEnvironment
from retuned.stages.watch import WatchSettings
from retuned.store.artifact_folder import bundle_of, sign_artifact
from retuned.store.keys import Ed25519Notary
from retuned.telemetry.prometheus import FakeTelemetry
from retuned.telemetry.spans import NoSpans
from retuned.traces.folder import FakeTraceSource

S = TypeVar("S", bound=AgentMessage)

POD = PodRef(namespace="serving", name="chat-0", uid="u-0")
TARGET = "serving/chat"
FIRST: Digest = "sha256:" + "1" * 64
SECOND: Digest = "sha256:" + "2" * 64
WINDOW = timedelta(seconds=60)
CLEAN: Mapping[str, Any] = {"swapped_launches": 50_000, "shadow_checks": 1_000}


class NoKernels:
    """A catalog that knows nothing."""

    def recognise(
        self, kernel: str, dims: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
    ) -> None:
        return None


class PodWorld:
    """One pod; `start` is a sidecar that begins, with what an earlier one left on disk."""

    def __init__(
        self, folder: Path, *, spool_bytes: int = 64 << 20, spans: Spans | None = None
    ) -> None:
        self.spans: Spans = spans or NoSpans()
        self.folder = folder
        self.clock = FakeClock()
        self.swapper = FakeSwapper(
            ("gemm", "norm"), runs_on=ServerEnvironment(process="7", cpu="cpu:a")
        )
        self.operator = FakeOperator(POD, target=TARGET)
        self.notary = Ed25519Notary(folder / "keys")
        self.operator.key = self.notary.public_hex()
        self.traces = FakeTraceSource()
        self.telemetry = FakeTelemetry()
        self.spool_bytes = spool_bytes
        self.sidecar = self.start()

    @property
    def ctx(self) -> Context:
        return self.sidecar.ctx

    def start(self, *, configured: str = "") -> Sidecar:
        """Return a sidecar over what is on disk, as after a kill."""
        former = getattr(self, "sidecar", None)
        if former is not None:
            former.ctx.store.close()
        store = PodStore(self.folder / "state", clock=self.clock, carried=self.spans.carried)
        believed = PinnedKeys(store, configured=configured)
        artifacts = Artifacts(
            self.folder / "state" / "artifacts", operator=self.operator, believed=believed
        )
        self.sidecar = Sidecar(
            Context(
                pod=self.operator.pod,
                hinted="",
                store=store,
                clock=self.clock,
                telemetry=self.telemetry,
                traces=self.traces,
                swapper=self.swaps(store, artifacts, believed),
                operator=self.operator,
                catalog=NoKernels(),
                artifacts=artifacts,
                spool=Spool(self.folder / "state" / "spool", max_bytes=self.spool_bytes),
                believed=believed,
                spans=self.spans,
                settings=SidecarSettings(
                    numbers=WindowSettings(
                        window=WINDOW,
                        settle=timedelta(0),
                        baseline_windows=3,
                        drift=DEMO_SETTINGS,
                    ),
                    watch=WatchSettings(min_checks=300, min_s=10.0, engage_within_s=60.0),
                ),
            )
        )
        return self.sidecar

    def swaps(self, store: PodStore, artifacts: Artifacts, believed: PinnedKeys) -> Swapper:
        """Return what reaches the server."""
        return self.swapper

    # --- the operator's side ----------------------------------------------------------------------

    def publish(self, digest: Digest, *, name: str = "gemm", target: str = TARGET) -> None:
        """Put a signed artifact into the operator's store."""
        self.operator.artifacts[digest] = self.signed(digest, name=name, target=target)

    def signed(
        self,
        digest: Digest,
        *,
        name: str = "gemm",
        target: str = TARGET,
        binary: bytes = b"code",
        intercept: Mapping[str, Any] | None = None,
    ) -> dict[str, bytes]:
        folder = self.folder / "built" / digest[7:] / name
        folder.mkdir(parents=True, exist_ok=True)
        definition = {
            "name": name,
            "op_type": "copy",
            "axes": {"M": {"type": "var"}},
            "inputs": {"x": {"shape": ["M"], "dtype": "float32"}},
            "outputs": {"y": {"shape": ["M"], "dtype": "float32"}},
        }
        manifest = {
            "digest": digest,
            "definition": definition,
            "language": "rehearsed",
            "entry": "run",
            "params": {},
            "layouts": {},
            "scratch_bytes": 0,
            "parts": 1,
            "binary": "kernel.so",
            "binary_sha256": hashlib.sha256(binary).hexdigest(),
        }
        if intercept is not None:
            manifest["intercept"] = dict(intercept)
        (folder / "kernel.so").write_bytes(binary)
        (folder / "artifact.json").write_text(json.dumps(manifest))
        sign_artifact(folder, notary=self.notary, artifact=digest, definition=name, target=target)
        return bundle_of(folder)

    def order(self, *orders: SwapOrder) -> None:
        """Order something, and let the sidecar hear and do it."""
        self.operator.order(*orders)
        self.turn()

    def said(self, kind: type[S]) -> list[S]:
        return [each for each in self.operator.said if isinstance(each, kind)]

    def outcomes(self) -> list[tuple[str, Outcome, str]]:
        """Return what the operator was told of orders: id, outcome and reason."""
        found = [each for each in self.operator.said if isinstance(each, OrderDone)]
        return [(each.order, each.outcome, each.reason) for each in found]

    def slot(self, name: str = "gemm") -> SlotWatch:
        """Return what the operator was told last of a slot."""
        posts = [each for each in self.operator.said if isinstance(each, WatchPost)]
        return next(slot for slot in posts[-1].slots if slot.definition == name)

    # --- the pod's side ---------------------------------------------------------------------------

    def turn(self, seconds: float = 1.0) -> None:
        """Let every step happen once; an operator that is away is left aside, as in the program."""
        self.clock.advance(seconds)
        self.sidecar.observe()
        for step in (self.sidecar.tell, lambda: self.sidecar.listen(wait_s=0.0)):
            if not self.operator.away:
                step()
        self.sidecar.steer()
        if not self.operator.away:
            self.sidecar.tell()

    def active(self, name: str = "gemm") -> Digest | None:
        return next(slot.active for slot in self.swapper.slots() if slot.definition == name)

    def trace(
        self, kernel: str = "gemm", *, launches: int = 200, number: int = 0, slow: float = 1.0
    ) -> None:
        """Let a trace file complete now, whose launches took so many times as long."""
        at_ns = int(self.clock.now().timestamp() * 1e9)
        records = tuple(
            LaunchRecord(
                kernel=kernel,
                blocks=(8, 1, 1),
                threads=(256, 1, 1),
                start_ns=n * 10_000,
                duration_ns=int(5_000 * slow),
                dims=((16, 64),),
                dtypes=("bfloat16",),
                shape_source=ShapeSource.OP,
                shape_confidence=1.0,
            )
            for n in range(launches)
        )
        body = f"{kernel} {at_ns} {number}".encode()
        self.traces.add(
            TraceBatch(
                origin=f"/traces/{at_ns}-{number}.json",
                digest="sha256:" + hashlib.sha256(body).hexdigest(),
                format="test",
                launches=records,
                span_ns=launches * 10_000,
                completed_at_ns=at_ns,
            )
        )


def swap(
    artifact: Digest = FIRST,
    *,
    epoch: int = 2,
    proposal: str = "p1",
    name: str = "gemm",
    previous: Digest | None = None,
    target: str = TARGET,
) -> SwapOrder:
    return SwapOrder(
        id=f"swap-{proposal}-{epoch}",
        kind=SwapKind.SWAP,
        proposal=proposal,
        target=target,
        definition=name,
        artifact=artifact,
        previous=previous,
        previous_guard=Guard() if previous else None,
        guard=Guard(),
        epoch=epoch,
    )


def back(order: SwapOrder, *, epoch: int) -> SwapOrder:
    return order_rollback(order, epoch=epoch)
