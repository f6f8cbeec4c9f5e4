"""Fake server in memory that implements the runtime's protocol, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retuned.contract import Digest
from retuned.errors import CandidateError, PartialCommit, TemporaryError
from retuned.ports import SlotState
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.stages.verdict import ServerEnvironment
from retuned.stages.watch import WatchSample

_RETRY_S = 1.0
_UNKNOWN = ServerEnvironment(process="fake")


@dataclass(slots=True)
class FakeSwapper:
    """Slots without kernels; orders are executed as in the runtime."""

    definitions: Sequence[str]
    live: frozenset[str] = frozenset()
    """Kernels that were launched and have no slot before an artifact for them is prepared."""
    refuse: dict[Digest, str] = field(default_factory=dict)
    """Artifacts that prepare refuses, with the reason."""
    refuse_commit: dict[Digest, str] = field(default_factory=dict)
    """Artifacts that commit refuses, with the reason."""
    half: bool = False
    """Whether another process has executed a commit that is refused."""
    away: bool = False
    """Whether the server does not answer."""
    partial: bool = False
    """Whether a process dies after the others have executed a swap."""
    flips: list[str] = field(default_factory=list)
    """Ids of executed orders, in order; a repeated order adds nothing."""
    counts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Fields of `WatchSample` to report per slot, set by the test."""
    launches: dict[str, dict[tuple[int, ...], int]] = field(default_factory=dict)
    """Launches to report per slot, set by the test."""
    arm: str = ""
    """Label of the steps that begin now."""
    runs_on: ServerEnvironment = _UNKNOWN
    """Reported environment, set by the test."""
    _opened: list[str] = field(default_factory=list)
    _half_done: dict[str, int] = field(default_factory=dict)
    _orders: dict[str, SwapOrder] = field(default_factory=dict)
    _prepared: set[tuple[str, Digest]] = field(default_factory=set)
    _bypassed: set[str] = field(default_factory=set)
    _spread: dict[str, dict[str, Any]] = field(default_factory=dict)

    def restart(self) -> None:
        """Lose everything, as a restarted server does."""
        self._opened.clear()
        self._orders.clear()
        self._prepared.clear()
        self._half_done.clear()
        self._bypassed.clear()
        self._spread.clear()
        self.counts.clear()

    def slots(self) -> Sequence[SlotState]:
        self._answer()
        return [
            SlotState(
                definition=name,
                active=self._active(name),
                epoch=self._epoch(name),
                newest_epoch=max(self._epoch(name), self._half_done.get(name, 0)),
                launches=dict(self.launches.get(name, {})),
                tripped=str(self.counts.get(name, {}).get("tripped", "")),
                bypassed=name in self._bypassed,
            )
            for name in self._slots()
        ]

    def environments(self) -> Sequence[ServerEnvironment]:
        self._answer()
        return [self.runs_on]

    def samples(self) -> Sequence[WatchSample]:
        self._answer()
        nothing = dict.fromkeys(_COUNTS, 0)
        return [
            WatchSample.model_validate(
                {
                    "definition": name,
                    "artifact": self._active(name),
                    "epoch": self._epoch(name),
                    **nothing,
                    **self._spread.get(name, {}),
                    **self.counts.get(name, {}),
                }
            )
            for name in self._slots()
        ]

    def prepare(self, order: SwapOrder, *, artifact_dir: Path) -> None:
        """Accept an artifact folder with a manifest; see `Swapper.prepare`."""
        if order.definition not in self.live:
            self._slot(order.definition)
        self._answer()
        if order.artifact is None:
            raise CandidateError("order-invalid", detail="the original needs no prepare")
        if order.artifact in self.refuse:
            raise CandidateError(self.refuse[order.artifact], detail="as the test wished")
        if (order.definition, order.artifact) in self._prepared:
            return
        if not (artifact_dir / "artifact.json").is_file():
            raise CandidateError("artifact-missing", detail=str(artifact_dir))
        self._prepared.add((order.definition, order.artifact))
        if order.definition not in self._slots():
            self._opened.append(order.definition)

    def commit(self, order: SwapOrder) -> int:
        """Execute an order once; see `Swapper.commit`."""
        self._slot(order.definition)
        current = self._orders.get(order.definition)
        if order.id in self.flips and current is not None and current.epoch >= order.epoch:
            return 1000
        half_done = self._half_done.get(order.definition, 0)
        if order.epoch <= self._epoch(order.definition) or order.epoch < half_done:
            raise CandidateError("stale-epoch", detail=f"epoch {order.epoch}")
        if order.artifact and (order.definition, order.artifact) not in self._prepared:
            raise CandidateError("not-prepared", detail=order.artifact)
        if order.artifact in self.refuse_commit:
            self._half_done |= {order.definition: order.epoch} if self.half else {}
            raise CandidateError(self.refuse_commit[order.artifact], detail="as the test wished")
        self._orders[order.definition] = order
        self._bypassed.discard(order.definition)
        first = order.canary[0].fraction if order.canary and order.artifact else 1.0
        self._spread[order.definition] = {"fraction": first}
        self.counts.pop(order.definition, None)
        self.flips.append(order.id)
        if self.partial and order.kind is SwapKind.SWAP:
            lost = TemporaryError("a process is gone", delay_s=_RETRY_S)
            raise PartialCommit("one of two has it", cause=lost, delay_s=_RETRY_S)
        return 1000

    def abort(self, order: SwapOrder) -> None:
        """Forget what was prepared and not committed; see `Swapper.abort`."""
        self._slot(order.definition)
        if order.artifact is not None and order.artifact != self._active(order.definition):
            self._prepared.discard((order.definition, order.artifact))

    def bypass(self, definition: str, *, on: bool, arm: str | None = None) -> None:
        self._slot(definition)
        if on and self._active(definition) is not None:
            self._bypassed.add(definition)
        else:
            self._bypassed.discard(definition)
        self.arm = self.arm if arm is None else arm

    def ramp(
        self, order: SwapOrder, *, fraction: float, excluded: Sequence[tuple[int, ...]]
    ) -> None:
        """Change the share of launches that run an order; see `Swapper.ramp`."""
        self._slot(order.definition)
        if self._epoch(order.definition) != order.epoch or order.artifact is None:
            raise CandidateError("stale-epoch", detail=f"epoch {self._epoch(order.definition)}")
        self._spread[order.definition] = {
            "fraction": fraction,
            "excluded": tuple(excluded),
            "fraction_s": 0.0,
        }

    def _slot(self, definition: str) -> None:
        self._answer()
        if definition not in self._slots():
            raise CandidateError("unknown-slot", detail=definition)

    def _slots(self) -> Sequence[str]:
        return [*self.definitions, *self._opened]

    def _answer(self) -> None:
        if self.away:
            raise TemporaryError("the fake server is away", delay_s=_RETRY_S)

    def _active(self, definition: str) -> Digest | None:
        order = self._orders.get(definition)
        return order.artifact if order else None

    def _epoch(self, definition: str) -> int:
        order = self._orders.get(definition)
        return order.epoch if order else 0


_COUNTS = (
    "swapped_launches",
    "fallback_launches",
    "shadow_checks",
    "shadow_mismatches",
    "shadow_nonfinite",
    "worst_ratio",
    "errors",
)
