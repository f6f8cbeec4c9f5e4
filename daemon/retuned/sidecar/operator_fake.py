"""The operator without a cluster: the fake beside `operator_api`, with the same meaning."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from retuned.api.agent import (
    MAX_ARTIFACT_BYTES,
    VERSION,
    Ack,
    AgentMessage,
    AlarmOrder,
    BootOrder,
    Bundle,
    BundleFile,
    Hello,
    OrderDone,
    Orders,
    OverheadOrder,
    PodRef,
    ProofOrder,
    Report,
    Welcome,
    as_orders,
)
from retuned.contract import Digest
from retuned.errors import Refused, TemporaryError
from retuned.sidecar.operator_api import take_bundle
from retuned.stages.swap import SwapOrder


class FakeOperator:
    """Remembers its messages, and answers as the test sets it.

    Parameters
    ----------
    pod
        The one pod that it listens to.
    target
        Its target.
    """

    def __init__(self, pod: PodRef, *, target: str) -> None:
        self.pod = pod
        self.target = target
        self.away = False
        """Whether it does not answer."""
        self.selected = True
        """Whether a target selects the pod."""
        self.heard = False
        """Whether it has this pod's hello; a restarted operator does not."""
        self.full = False
        """Whether it cannot keep anything."""
        self.key = ""
        """What it signs with."""
        self.artifacts: dict[Digest, Mapping[str, bytes]] = {}
        """Its store."""
        self.said: list[AgentMessage] = []
        """All accepted messages, in order."""
        self.traces: list[str] = []
        """Spans of the messages, in order; hellos have none."""
        self.now = datetime(2026, 1, 5, 12, tzinfo=UTC)
        """Its clock."""
        self._orders: tuple[SwapOrder, ...] = ()
        self._proofs: tuple[ProofOrder, ...] = ()
        self._alarms: tuple[AlarmOrder, ...] = ()
        self._overhead: OverheadOrder | None = None
        self._boot: BootOrder | None = None
        self._changed = threading.Condition()

    def order(self, *orders: SwapOrder) -> None:
        """Tell the pod to have these, and nothing else."""
        with self._changed:
            self._orders = orders
            self._changed.notify_all()

    def prove(self, *proofs: ProofOrder) -> None:
        """Ask the pod to prove these swaps, and no other."""
        with self._changed:
            self._proofs = proofs
            self._changed.notify_all()

    def allow_trials(self, *alarms: AlarmOrder) -> None:
        """Let alarms try these swaps off, and no other."""
        with self._changed:
            self._alarms = alarms
            self._changed.notify_all()

    def ask_overhead(self, order: OverheadOrder | None) -> None:
        """Tell the pod what to do about Retuned's own cost."""
        with self._changed:
            self._overhead = order
            self._changed.notify_all()

    def measure(self, boot: BootOrder | None) -> None:
        """Ask the pod to measure its boot."""
        with self._changed:
            self._boot = boot
            self._changed.notify_all()

    def hello(self, hello: Hello) -> Welcome:
        """See `Operator.hello`."""
        self._take(hello)
        self.heard = True
        return Welcome(version=VERSION, at=self.now, target=self.target, key=self.key)

    def post(self, report: Report, *, traceparent: str = "") -> Ack:
        """See `Operator.post`."""
        self._take(report)
        self.traces.append(traceparent)
        return Ack(unheard=not self.heard)

    def orders(self, *, after: int, wait_s: float) -> Orders:
        """See `Operator.orders`; it waits in real time, as the real one does."""
        self._answer()
        if not self.selected:
            raise _refused("no-target", self.pod.name)
        with self._changed:
            self._changed.wait_for(
                lambda: self.away or self._named().revision != after, timeout=wait_s
            )
            self._answer()
            return self._named()

    def artifact(self, digest: Digest, *, folder: Path) -> None:
        """See `Operator.artifact`."""
        self._answer()
        named = {each for order in self._orders for each in (order.artifact, order.previous)}
        files = self.artifacts.get(digest)
        if files is None or digest not in named:
            raise _refused("artifact-unknown", digest)
        if sum(len(data) for data in files.values()) > MAX_ARTIFACT_BYTES:
            raise _refused("artifact-too-large", digest)
        bundle = Bundle(
            digest=digest,
            files={
                name: BundleFile(size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
                for name, data in files.items()
            },
        )
        line = bundle.model_dump_json().encode() + b"\n"
        take_bundle(digest, [line, *files.values()], folder=folder)

    def done(self, said: OrderDone, *, traceparent: str = "") -> None:
        """See `Operator.done`."""
        self._take(said)
        self.traces.append(traceparent)

    def _named(self) -> Orders:
        return as_orders(
            self._orders, self._proofs, self._boot, alarms=self._alarms, overhead=self._overhead
        )

    def _take(self, said: AgentMessage) -> None:
        self._answer()
        if not self.selected:
            raise _refused("no-target", self.pod.name)
        if said.pod != self.pod:
            raise _refused("not-your-pod", said.pod.name)
        if said.target != self.target and (said.target or not isinstance(said, Hello)):
            raise _refused("not-your-target", said.target)
        if self.full:
            raise TemporaryError("the fake operator's disk is full", delay_s=5.0)
        self.said.append(said)

    def _answer(self) -> None:
        if self.away:
            raise TemporaryError("the fake operator is away", delay_s=5.0)


def _refused(code: str, text: str) -> Refused:
    error = Refused(f"{text} [{code}]")
    error.code = code
    return error
