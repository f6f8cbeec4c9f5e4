"""A kernel that cheats, where it must be stopped, and for which reason."""

from __future__ import annotations

from dataclasses import dataclass

from retuned.contract import Solution
from retuned.stages.verdict import Check, Reason

GATES = tuple(f"G{number}" for number in range(7))


@dataclass(frozen=True, kw_only=True)
class Cheat:
    """One of them."""

    solution: Solution
    """What it hands in."""
    gate: str
    """It is stopped here at the latest."""
    reasons: tuple[Reason, ...]
    """One of these is given."""


def stopped(checks: tuple[Check, ...], cheat: Cheat) -> None:
    """Assert that the gates stopped it, in time and for the right reason."""
    found = [check for check in checks if check.reason is not None]
    assert found, f"accepted: {[(check.gate, check.detail) for check in checks]}"
    assert found[0].reason in cheat.reasons, found[0]
    assert found[0].gate <= cheat.gate, found[0]
