"""Swap orders as they arrive on the control socket: every field checked, nothing else taken."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retuned.runtime.spec import Refused

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_MAX_EPOCH = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One epoch of one slot; the daemon's `SwapOrder` without what only people read."""

    id: str
    """Identity; carrying out the same id twice is the same as once."""
    kind: str
    """``swap`` or ``rollback``."""
    definition: str
    """Slot."""
    artifact: str | None
    """Digest to activate; None is the original."""
    previous: str | None
    """Digest that stays loaded for the way back; None is the original."""
    guard: Mapping[str, Any]
    """Bounds per variable axis, checked against the slot's axes when it is used."""
    epoch: int
    """Grows with every order."""
    shadow_every: int
    """One swapped launch in so many is compared with the incumbent."""
    shadow_tolerance: float
    """Allowed difference, as a share of the RMS of the incumbent's output."""


def parse_order(body: object) -> Order:
    """Read an order.

    Raises
    ------
    Refused
        ``order-invalid``, naming the field.
    """
    if not isinstance(body, Mapping):
        raise Refused("order-invalid", detail="the order is no object")
    return Order(
        id=_text(body, "id"),
        kind=_kind(body),
        definition=_text(body, "definition"),
        artifact=_digest(body, "artifact"),
        previous=_digest(body, "previous"),
        guard=_guard(body),
        epoch=_integer(body, "epoch", high=_MAX_EPOCH),
        shadow_every=_integer(body, "shadow_every", high=10**9, default=50),
        shadow_tolerance=_tolerance(body),
    )


def _kind(body: Mapping[str, Any]) -> str:
    kind = body.get("kind")
    if kind not in ("swap", "rollback"):
        raise _invalid("kind", "is neither swap nor rollback")
    if kind == "swap" and body.get("artifact") is None:
        raise _invalid("artifact", "is missing; a swap names what to load")
    return str(kind)


def _text(body: Mapping[str, Any], field: str) -> str:
    value = body.get(field)
    if not isinstance(value, str) or not 0 < len(value) <= 256:
        raise _invalid(field, "is no text of 1 to 256 characters")
    return value


def _digest(body: Mapping[str, Any], field: str) -> str | None:
    value = body.get(field)
    if value is None:
        return None
    if not isinstance(value, str) or not _DIGEST.match(value):
        raise _invalid(field, "is no sha256 digest")
    return value


def _guard(body: Mapping[str, Any]) -> Mapping[str, Any]:
    value = body.get("guard")
    if not isinstance(value, Mapping):
        raise _invalid("guard", "is no object")
    return value


def _integer(body: Mapping[str, Any], field: str, *, high: int, default: int | None = None) -> int:
    value = body.get(field, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= high:
        raise _invalid(field, f"is no whole number from 1 to {high}")
    return value


def _tolerance(body: Mapping[str, Any]) -> float:
    value = body.get("shadow_tolerance", 1e-3)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= 1:
        raise _invalid("shadow_tolerance", "is not above 0 and at most 1")
    return float(value)


def _invalid(field: str, problem: str) -> Refused:
    return Refused("order-invalid", detail=f"'{field}' {problem}")
