"""Gate G7 of a swap, as people and programs see it."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from retuned.ports import Store, Stored
from retuned.stages.watch import EndToEndReport
from retuned.terminal.layout import print_fields

_MEASURING = "measuring"


def end_to_end_of(store: Store, proposal: str) -> Stored | None:
    """Return what was measured of a proposal's swap on the whole server; None if nothing was."""
    return store.get("end-to-end", proposal)


def end_to_end_body(stored: Stored | None) -> dict[str, Any] | None:
    """Return the stable JSON: outcome, reason and numbers, and the digest of the evidence."""
    if stored is None:
        return None
    body = {
        "outcome": stored.phase,
        "predicted": stored.body.get("predicted"),
        "passes": len(stored.body.get("blocks", ())),
        "evidence": stored.body.get("evidence"),
    }
    return body | dict(stored.body.get("report") or {})


def print_end_to_end(stored: Stored | None) -> None:
    """Print what was measured; nothing where nothing was."""
    if stored is None:
        return
    if stored.phase == _MEASURING:
        passes = len(stored.body.get("blocks", ()))
        print_fields([("end to end", f"being measured, {passes} passes so far")])
        return
    try:
        report = EndToEndReport.model_validate(stored.body.get("report"))
    except ValidationError:
        print_fields([("end to end", "its record cannot be read")])
        return
    rows = [("end to end", f"{report.outcome}: {report.reason}  {report.detail}".rstrip())]
    numbers = _numbers(report)
    rows += [("", numbers)] if numbers else []
    print_fields([*rows, ("", f"evidence {stored.body.get('evidence')}")])


def _numbers(report: EndToEndReport) -> str:
    pairs = (
        ("tokens/s", report.tokens_per_s),
        ("first token ms", report.ttft_ms),
        ("further token ms", report.tpot_ms),
    )
    parts = [f"{name} {off:.4g} off, {on:.4g} on" for name, (off, on) in _given(pairs)]
    if report.divergence is not None:
        parts.append(f"{report.divergence:.2%} of tokens differ")
    return "; ".join(parts)


def _given(
    pairs: tuple[tuple[str, tuple[float, float] | None], ...],
) -> list[tuple[str, tuple[float, float]]]:
    return [(name, pair) for name, pair in pairs if pair is not None]
