"""What every store refuses, so that the real one and the fake agree."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from retuned.contract import Digest
from retuned.errors import UnreadableInput

IMMUTABLE_KINDS = frozenset({"decision"})
"""Kinds whose records are written once: a person's word is not edited."""
KINDS_BY_PROPOSAL = frozenset({"decision", "order"})
"""Kinds that are found by the proposal that their body names."""

_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,512}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def check_name(what: str, value: str) -> None:
    """Refuse empty, overlong and unprintable kinds, ids and phases.

    Raises
    ------
    ValueError
        A fault of the caller.
    """
    if not _NAME.fullmatch(value):
        raise ValueError(f"a store's {what} is 1 to 512 printable characters, got {value!r:.80}")


def check_mutable(kind: str) -> None:
    """Refuse to change what is written once.

    Raises
    ------
    ValueError
        A fault of the caller.
    """
    if kind in IMMUTABLE_KINDS:
        raise ValueError(f"records of kind {kind!r} are never changed")


def check_limit(limit: int | None) -> None:
    """Refuse a negative limit, which SQL would read as none.

    Raises
    ------
    ValueError
        A fault of the caller.
    """
    if limit is not None and limit < 0:
        raise ValueError("limit is zero or more")


def check_proposal(kind: str, proposal: str) -> None:
    """Refuse to look for a proposal where nothing is kept by it.

    Raises
    ------
    ValueError
        A fault of the caller.
    """
    if proposal and kind not in KINDS_BY_PROPOSAL:
        raise ValueError(f"records of kind {kind!r} are not found by their proposal")


def proposal_of(kind: str, body: Mapping[str, Any]) -> str | None:
    """Return the proposal by which a record is found; None where it is found by none."""
    named = body.get("proposal") if kind in KINDS_BY_PROPOSAL else None
    return named if isinstance(named, str) else None


def past_prefix(prefix: str) -> str | None:
    """Return the least string that sorts after all that begin with `prefix`; None if all do.

    Examples
    --------
    >>> past_prefix("ab"), past_prefix("a" + chr(0x10FFFF)), past_prefix("")
    ('ac', 'b', None)
    """
    head = prefix.rstrip(chr(0x10FFFF))
    if not head:
        return None
    code = ord(head[-1]) + 1
    return head[:-1] + chr(0xE000 if code == 0xD800 else code)  # surrogates are no text


def encode(body: Mapping[str, Any]) -> str:
    """Write a body as JSON; NaN and infinity are no JSON.

    Raises
    ------
    TypeError, ValueError
        If it is not JSON data: a fault of the caller.
    """
    return json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def check_digest(digest: Digest) -> str:
    """Return the hexadecimal part; what is no digest never becomes a path.

    Raises
    ------
    UnreadableInput
        If it is no digest.
    """
    if not _DIGEST.fullmatch(digest):
        raise UnreadableInput(
            "not-a-digest", where=f"{digest!r:.80}", message="expected sha256: and 64 hex digits"
        )
    return digest.removeprefix("sha256:")
