"""Server pods of the virtual cluster, each with a sidecar that does as its test wishes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tests.operators import examples
from tests.operators.controllers.memory import KERNEL

from retuned.api.agent import (
    BlockedOrder,
    BootOrder,
    Hello,
    LevelsState,
    OverheadOrder,
    PodBoot,
    PodOverhead,
    PodProof,
    PodRef,
    ProcessEnvironment,
    ProofOrder,
    ProofPost,
    SlotWatch,
    WatchPost,
)
from retuned.contract import Digest
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.stages.watch import WatchAction, WatchReport
from retuned_operator.agent_api import Said
from retuned_operator.controllers.target import environment_of

SERVER = ProcessEnvironment(process="1", device="gfx942", triton="3.9.0")
WORLD = environment_of(
    Hello(
        pod=PodRef(namespace="n", name="n", uid="u"),
        target="n/n",
        version=1,
        release="1",
        at=examples.NOW,
        environments=(SERVER,),
    )
)
"""Digest of what every server runs on."""


@dataclass
class ServerPod:
    """One server pod with its sidecar."""

    name: str
    uid: str
    active: Digest | None = None
    epoch: int = 0
    proposal: str = ""
    says: str = "keep"
    """keep, wait, rollback; or none: the sidecar is silent."""
    tripped: str = ""
    refuses: str = ""
    """Why it carries no swap out; empty: it does."""
    waits: str = ""
    """Why it cannot carry a swap out yet."""
    held: BlockedOrder | None = None
    swaps: list[tuple[int, Digest | None]] = field(default_factory=list)

    steps: str | None = None
    """Why its steps cannot be timed, empty if they can; None: its sidecar reports no proofs."""
    levels: LevelsState = LevelsState.ABSENT
    """Whether it reads the server's service levels."""
    engine: str = ""
    """Name and version of its engine."""
    asked: Sequence[ProofOrder] = ()
    """What the operator asks it to prove."""
    proves: Callable[[ProofOrder], PodProof | None] = lambda _: None
    """What it reports of a proof."""
    asked_boot: BootOrder | None = None
    """What the operator asks it to measure of its boot."""
    boots: Callable[[BootOrder], PodBoot | None] = lambda _: None
    """What it reports of its boot."""

    overhead: OverheadOrder | None = None
    """What the operator asks about Retuned's own cost."""
    costs: PodOverhead | None = None
    """What it has measured of that; posted as by a sidecar, while it is asked for and not heard."""

    def carry_out(self, orders: Sequence[SwapOrder]) -> None:
        """Do what is ordered and not done yet; without orders there is the original."""
        if self.active is not None and not orders:  # see `retuned.node.order_intake.withdraw`
            self.epoch, self.active = self.epoch + 1, None
            self.swaps.append((self.epoch, None))
        for order in orders:
            self.held = held(order, self)
            if order.epoch > self.epoch and self.held is None:
                self.swaps.append((order.epoch, order.artifact))
                self.epoch, self.active = order.epoch, order.artifact
                self.proposal, self.tripped = order.proposal, ""
                if order.kind is SwapKind.ROLLBACK:
                    self.says = "keep"

    def says_now(self, namespace: str, *, target: str, at: datetime) -> Sequence[Said]:
        """Return what the sidecar posts: who it is, live proofs, and how its server stands."""
        ref = PodRef(namespace=namespace, name=self.name, uid=self.uid)
        report = None
        if self.says != "none" and self.proposal:
            report = WatchReport(action=WatchAction(self.says), reason="shadow-mismatch")
        slot = SlotWatch(
            definition=KERNEL,
            active=self.active,
            epoch=self.epoch,
            newest_epoch=self.epoch,
            tripped=self.tripped,
            proposal=self.proposal,
            report=report,
        )
        proofs = filter(None, map(self.proves, self.asked))
        post = ProofPost(
            pod=ref,
            target=target,
            unavailable=self.steps or "",
            levels=self.levels,
            engine=self.engine,
            proofs=tuple(proofs),
            overhead=self._unheard(),
            boot=self.boots(self.asked_boot) if self.asked_boot is not None else None,
        )
        return (
            Hello(pod=ref, target=target, version=1, release="1", at=at, environments=(SERVER,)),
            *([] if self.steps is None else [post]),
            WatchPost(
                pod=ref,
                target=target,
                at=at,
                slots=(slot,),
                held=(self.held,) if self.held is not None else (),
            ),
        )

    def _unheard(self) -> PodOverhead | None:
        asked, last = self.overhead, self.costs
        if asked is None or not asked.measure or last is None or last.at == asked.heard:
            return None
        return last


def held(order: SwapOrder, server: ServerPod) -> BlockedOrder | None:
    """Return why a server does not carry an order out."""
    reason = server.refuses or server.waits
    if order.kind is SwapKind.ROLLBACK or not reason or order.epoch <= server.epoch:
        return None
    return BlockedOrder(
        order=order.id,
        proposal=order.proposal,
        definition=order.definition,
        epoch=order.epoch,
        final=bool(server.refuses),
        reason=reason,
        detail="as the test wished",
    )
