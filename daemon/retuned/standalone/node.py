"""Node agent of one machine: the modules of `retuned.node` in the process of the control plane."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retuned import catalog
from retuned.api.agent import Outcome
from retuned.errors import CandidateError, TemporaryError
from retuned.node import order_intake
from retuned.node.order_context import OrderMemory
from retuned.node.order_store import bringer
from retuned.ports import Clock, Spans, Store, Swapper, Telemetry
from retuned.stages.swap import MixedEpochs, SwapKind, SwapOrder
from retuned.stages.watch import CanaryDecision, WatchSettings
from retuned.standalone.context import Context
from retuned.standalone.evidence import UNKNOWN, check_before_load
from retuned.standalone.findings import found_solution
from retuned.standalone.records import last_done, say
from retuned.standalone.tunables import tuned_files
from retuned.store.artifact_folder import sign_artifact

_RETRY_S = 1.0


class BuiltArtifacts:
    """Artifacts that the lab of this machine builds; an `ArtifactSource`.

    Parameters
    ----------
    ctx
        Lab, store and signing key.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def folder_of(self, order: SwapOrder) -> Path:
        """Build, or find, what an order loads; see `ArtifactSource.folder_of`.

        Before a swap the evidence is verified again, and every process of the server is compared
        with the machine that measured; a rollback needs neither.
        """
        ctx = self._ctx
        assert order.artifact is not None, "the original has no artifact"
        if order.kind is SwapKind.SWAP:
            self._check(order)
        if tuned_files.is_change(ctx, order.proposal):
            return tuned_files.folder_of(ctx, order)
        solution = found_solution(ctx.store, order.artifact)
        if solution is None:
            raise CandidateError("artifact-missing", detail=f"{order.artifact} is not in the store")
        folder = ctx.bench.build(solution)
        sign_artifact(
            folder,
            notary=ctx.notary,
            artifact=order.artifact,
            definition=order.definition,
            target=order.target,
        )
        return folder

    def opens(self, order: SwapOrder) -> bool:
        """Whether the slot appears with its first variant, as those of live kernels do."""
        own = catalog.own_definition(order.definition)
        return own is not None and own.lifted is not None

    def _check(self, order: SwapOrder) -> None:
        try:
            check_before_load(self._ctx, order)
        except CandidateError as error:
            if error.reason != UNKNOWN:
                raise
            # no launch has shown yet what a process runs on: the swap waits
            raise TemporaryError(str(error), delay_s=_RETRY_S) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Numbers of the node agent; an `OrderSettings`."""

    watch: WatchSettings
    mixed_epochs: MixedEpochs
    catch_up_s: float
    fresh_s: float = 300.0
    withdrawn_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    """The one node of a target on one machine; an `OrderContext`."""

    ctx: Context
    artifacts: BuiltArtifacts
    settings: NodeSettings
    standing: OrderMemory = field(default_factory=OrderMemory)
    lock: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def over(cls, ctx: Context) -> LocalNode:
        """Return the node agent of a context."""
        return cls(
            ctx=ctx,
            artifacts=BuiltArtifacts(ctx),
            settings=NodeSettings(
                watch=ctx.settings.watch,
                mixed_epochs=ctx.settings.mixed_epochs,
                catch_up_s=ctx.settings.catch_up_s,
            ),
        )

    @property
    def store(self) -> Store:
        """The store of the control plane."""
        return self.ctx.store

    @property
    def clock(self) -> Clock:
        """Time."""
        return self.ctx.clock

    @property
    def telemetry(self) -> Telemetry:
        """Metrics."""
        return self.ctx.telemetry

    @property
    def spans(self) -> Spans:
        """Traces."""
        return self.ctx.spans

    @property
    def swapper(self) -> Swapper:
        """The server."""
        return self.ctx.swapper

    @property
    def target(self) -> str:
        """Name of the target."""
        return self.ctx.settings.target

    def report(
        self,
        order: SwapOrder,
        outcome: Outcome,
        *,
        reason: str = "",
        detail: str = "",
        took_ns: int | None = None,
    ) -> None:
        """Write the outcome of an order into the history; see `OrderContext.report`."""
        about: dict[str, Any] = {"epoch": order.epoch, "slot": order.definition}
        if outcome is Outcome.DONE:
            self._committed(order, about | {"took_ns": took_ns})
            return
        what = "order-refused" if outcome is Outcome.REFUSED else "harm-detected"
        if reason == order_intake.REASON:
            what = "order-withdrawn"
        say(self.ctx, order.proposal, what, **about, reason=reason, detail=detail)

    def ramped(self, order: SwapOrder, decision: CanaryDecision) -> None:
        """Write a step of a canary into the history."""
        say(
            self.ctx,
            order.proposal,
            f"canary-{decision.action}",
            reason=str(decision.reason),
            detail=decision.detail,
            fraction=decision.fraction,
            left_out=[list(bucket) for bucket in decision.excluded],
            slot=order.definition,
        )

    def _committed(self, order: SwapOrder, about: dict[str, Any]) -> None:
        """Write what a slot runs now, and what it no longer runs."""
        before = last_done(self.store, order.definition)
        was = bringer(self.store, before).proposal if before is not None else ""
        if order.kind is SwapKind.SWAP:
            say(self.ctx, order.proposal, "swapped", **about)
            if before is not None and before.artifact is not None and was != order.proposal:
                say(self.ctx, was, "replaced", by=order.proposal)
            return
        say(self.ctx, order.proposal, "reverted", **about)
        now = bringer(self.store, order).proposal
        if order.artifact is not None and now not in (order.proposal, was):
            say(self.ctx, now, "restored", **about)
