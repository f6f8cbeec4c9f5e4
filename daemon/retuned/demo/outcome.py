"""What a run of the demo must show: the records of its end in, what is missing out. Pure.

The exit code of ``retuned demo`` rests on this. What counts for a swap is the live proof's verdict
and its interval; what an experiment has claimed decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self

from pydantic import Field

from retuned.contract import Record
from retuned.stages.watch.proof import ProofReport, Verdict


class Plot(StrEnum):
    """Which story is played."""

    HELPFUL = "helpful"
    """Swaps help the server; a fault is injected later, and rolled back."""
    HARMFUL = "harmful"
    """Each swapped kernel makes the server slower, whatever its experiment has claimed."""


class EndedSwap(Record):
    """One swap at the end of a story."""

    kernel: str
    """Name of the definition."""
    claimed: float
    """Lower bound of the speedup that its experiment has proven."""
    report: ProofReport | None = None
    """Of its live proof; None without a verdict."""
    kept: bool
    """Whether the server has run it after its live proof, or at the end."""
    rolled_back: bool
    """Whether the daemon has recorded it."""

    @property
    def helps(self) -> bool:
        """Whether steps of the server are proven faster; a contrary interval decides against it."""
        report = self.report
        return report is not None and report.verdict is Verdict.HELPS and not self.slower

    @property
    def slower(self) -> bool:
        """Whether the whole interval of the live proof is a slower server."""
        low = None if self.report is None else self.report.low
        return low is not None and low > 0.0

    @property
    def withdrawn(self) -> bool:
        """Whether its experiment claimed a gain, the server was harmed, and it was rolled back."""
        harms = self.report is not None and self.report.verdict is Verdict.HARMS
        return harms and self.claimed > 1.0 and self.rolled_back and not self.kept


class Ending(Record):
    """The end of a story."""

    plot: Plot = Plot.HELPFUL
    sent: int = Field(ge=0)
    """Requests."""
    ok: int = Field(ge=0)
    failed: int = Field(ge=0)
    swaps: tuple[EndedSwap, ...]
    """All that the server has carried out."""
    fault_reverted: bool = False
    """Whether the injected fault was rolled back."""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Read the end out of what `Story.run` returns."""
        requests = data["requests"]
        return cls(
            plot=Plot(data["plot"]),
            sent=requests["sent"],
            ok=requests["ok"],
            failed=requests["failed"],
            swaps=tuple(_swap(each) for each in data["swaps"]),
            fault_reverted=data["rollback"].get("reverted") is True,
        )


def _swap(body: Mapping[str, Any]) -> EndedSwap:
    proof = body["live_proof"]
    return EndedSwap(
        kernel=body["kernel"],
        claimed=body["speedup"]["lower"],
        report=None if proof is None else ProofReport.model_validate(proof["report"]),
        kept=body["kept"],
        rolled_back=body["rolled_back"],
    )


def shortcomings(end: Ending) -> tuple[str, ...]:
    """Return what a run did not show; empty if it showed all that its plot needs.

    Tokens per second are reported and do not decide: they are the machine's as much as the
    kernel's.
    """
    found = []
    if end.failed or not end.ok:
        found.append(f"{end.failed} of {end.sent} requests failed")
    if not end.swaps:
        found.append("no kernel was swapped")
    found += [f"{swap.kernel} stayed, {_why_not(swap)}" for swap in end.swaps if _wrong(swap)]
    if end.plot is Plot.HARMFUL:
        return (*found, *_harmful(end))
    return (*found, *_helpful(end))


def _wrong(swap: EndedSwap) -> bool:
    return swap.kept and not swap.helps


def _why_not(swap: EndedSwap) -> str:
    if swap.slower:
        return "and the server is slower with it"
    verdict = "none" if swap.report is None else swap.report.verdict
    return f"and the live proof did not show that it helps (verdict: {verdict})"


def _helpful(end: Ending) -> list[str]:
    found = []
    if end.swaps and not any(swap.kept and swap.helps for swap in end.swaps):
        found.append("no swap is proven to help the server")
    if not end.fault_reverted:
        found.append("the fault was not rolled back")
    return found


def _harmful(end: Ending) -> list[str]:
    found = []
    if end.swaps and not any(swap.withdrawn for swap in end.swaps):
        found.append("no harmful swap was rolled back by its live proof")
    if any(swap.kept and swap.helps for swap in end.swaps):
        found.append("a swap stayed that was made to harm the server")
    return found
