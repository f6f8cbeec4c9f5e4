"""Swap orders from the control socket: every field is checked, unknown fields are ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from retuned.runtime.schema import Key, Refused

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_MAX_EPOCH = 2**53
_MAX_ROWS = 256
_MAX_S = 10**9
ORPHANS = frozenset(("hold", "rollback"))
"""What an unfinished canary does when its lease has run out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRates:
    """How often launches are compared with the incumbent, and what is allowed."""

    shadow_every: int = 50
    """One of this many swapped launches is compared with the incumbent."""
    shadow_tolerance: float = 1e-3
    """Allowed difference, as a share of the RMS of the incumbent's output."""
    shadow_later: tuple[tuple[float, int], ...] = ()
    """(age of a shape bucket in seconds, then one check in this many launches), rising ages."""
    shadow_share: float = 1.0
    """Maximum time of checks as a share of elapsed time; 1 means unlimited."""
    noise: Mapping[Key, float] = field(default_factory=dict)
    """RMS of the difference that both kernels' errors allow, over the RMS of the output.

    By shape bucket; only known buckets.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(CheckRates):
    """One epoch of one slot; the daemon's `SwapOrder` without the fields that only people read."""

    id: str
    """Identity; executing the same id twice has the same effect as once."""
    kind: str
    definition: str
    artifact: str | None
    previous: str | None
    """Digest that stays loaded for a rollback; None is the original."""
    guard: Mapping[str, Any]
    """Bounds per variable axis, checked against the slot's axes when it is used."""
    epoch: int
    """Grows with every order."""
    target: str = ""
    """Server that the order is for, as the daemon names it."""
    fraction: float = 1.0
    """Initial share of launches that run the artifact; 0 only shadows it."""
    lease_s: float = 0.0
    """An unfinished canary is an orphan after this time without a request; 0 is never, seconds."""
    orphan: str = "hold"


def parse_order(body: object) -> Order:
    """Parse an order.

    Raises
    ------
    Refused
        ``order-invalid``, naming the field.
    """
    if not isinstance(body, Mapping):
        raise Refused("order-invalid", detail="the order is not an object")
    rates = parse_rates(body)
    return Order(
        id=_text(body, "id"),
        kind=_kind(body),
        definition=_text(body, "definition"),
        artifact=_digest(body, "artifact"),
        previous=_digest(body, "previous"),
        guard=_guard(body),
        epoch=_integer(body, "epoch", high=_MAX_EPOCH),
        target=_text(body, "target") if body.get("target") is not None else "",
        shadow_every=rates.shadow_every,
        shadow_tolerance=rates.shadow_tolerance,
        shadow_later=rates.shadow_later,
        shadow_share=rates.shadow_share,
        noise=rates.noise,
        fraction=_fraction(body),
        lease_s=_number(body, "lease_s", high=_MAX_S, default=0.0),
        orphan=_orphan(body),
    )


def parse_rates(body: Mapping[str, Any]) -> CheckRates:
    """Parse the part of an order that is about checks.

    Raises
    ------
    Refused
        ``order-invalid``, naming the field.
    """
    return CheckRates(
        shadow_every=_integer(body, "shadow_every", high=10**9, default=50),
        shadow_tolerance=_tolerance(body),
        shadow_later=_later(body),
        shadow_share=_number(body, "shadow_share", high=1.0, default=1.0),
        noise=_noise(body),
    )


def _kind(body: Mapping[str, Any]) -> str:
    kind = body.get("kind")
    if kind not in ("swap", "rollback"):
        raise _invalid("kind", "must be swap or rollback")
    if kind == "swap" and body.get("artifact") is None:
        raise _invalid("artifact", "is missing; a swap names what to load")
    return str(kind)


def _text(body: Mapping[str, Any], field: str) -> str:
    value = body.get(field)
    if not isinstance(value, str) or not 0 < len(value) <= 256:
        raise _invalid(field, "is not text of 1 to 256 characters")
    return value


def _digest(body: Mapping[str, Any], field: str) -> str | None:
    value = body.get(field)
    if value is None:
        return None
    if not isinstance(value, str) or not _DIGEST.match(value):
        raise _invalid(field, "is not a sha256 digest")
    return value


def _guard(body: Mapping[str, Any]) -> Mapping[str, Any]:
    value = body.get("guard")
    if not isinstance(value, Mapping):
        raise _invalid("guard", "is not an object")
    return value


def _integer(body: Mapping[str, Any], field: str, *, high: int, default: int | None = None) -> int:
    value = body.get(field, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= high:
        raise _invalid(field, f"is not a whole number from 1 to {high}")
    return value


def _tolerance(body: Mapping[str, Any]) -> float:
    value = body.get("shadow_tolerance", 1e-3)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= 1:
        raise _invalid("shadow_tolerance", "is not above 0 and at most 1")
    return float(value)


def _number(body: Mapping[str, Any], field: str, *, high: float, default: float) -> float:
    value = body.get(field, default)
    if not _is_number(value) or not 0.0 <= value <= high:
        raise _invalid(field, f"is not a number from 0 to {high:g}")
    return float(value)


def _is_number(value: Any) -> bool:  # noqa: ANN401 - from JSON
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def _rows(body: Mapping[str, Any], field: str) -> list[Any]:
    rows = body.get(field) or ()
    if not isinstance(rows, (list, tuple)) or len(rows) > _MAX_ROWS:
        raise _invalid(field, f"is not a list of at most {_MAX_ROWS}")
    return list(rows)


def _later(body: Mapping[str, Any]) -> tuple[tuple[float, int], ...]:
    found: list[tuple[float, int]] = []
    for row in _rows(body, "shadow_later"):
        if not isinstance(row, (list, tuple)) or len(row) != 2 or not _is_number(row[0]):
            raise _invalid("shadow_later", "needs pairs of an age and a rate")
        every = _integer({"every": row[1]}, "every", high=10**9)
        if not (found[-1][0] if found else 0.0) < row[0] <= _MAX_S:
            raise _invalid("shadow_later", "needs rising ages in seconds")
        found.append((float(row[0]), every))
    return tuple(found)


def _noise(body: Mapping[str, Any]) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for row in _rows(body, "shadow_noise"):
        rms = row.get("rms") if isinstance(row, Mapping) else None
        if rms is None or not _is_number(rms) or not 0.0 < rms <= 1.0:
            raise _invalid("shadow_noise", "has an rms error that is not above 0 and at most 1")
        found[parse_bucket(row.get("bucket"))] = float(rms)
    return found


def parse_bucket(value: object) -> Key:
    """Parse the name of a shape bucket.

    Raises
    ------
    Refused
        ``order-invalid``.
    """
    if (
        not isinstance(value, (list, tuple))
        or len(value) > 64
        or not all(type(part) is int and 0 <= part <= 64 for part in value)
    ):
        raise _invalid("bucket", "is not a list of whole numbers from 0 to 64")
    return tuple(value)


def parse_fraction(value: object) -> float:
    """Parse a share of launches.

    Raises
    ------
    Refused
        ``order-invalid``.
    """
    return _number({"fraction": value}, "fraction", high=1.0, default=-1.0)


def _fraction(body: Mapping[str, Any]) -> float:
    steps = _rows(body, "canary")
    if not steps:
        return 1.0
    if not isinstance(steps[0], Mapping):
        raise _invalid("canary", "has a step that is not an object")
    return parse_fraction(steps[0].get("fraction"))


def _orphan(body: Mapping[str, Any]) -> str:
    value = body.get("orphan", "hold")
    if value not in ORPHANS:
        raise _invalid("orphan", f"is not one of {sorted(ORPHANS)}")
    return str(value)


def _invalid(field: str, problem: str) -> Refused:
    return Refused("order-invalid", detail=f"'{field}' {problem}")
