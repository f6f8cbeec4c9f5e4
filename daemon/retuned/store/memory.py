"""The Store kept in memory: the fake beside SQLite, with the same meaning.

What every store refuses, so that the real one and the fake agree.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from retuned.clock import SystemClock
from retuned.contract import Digest
from retuned.errors import UnreadableInput
from retuned.ports import Clock, Event, Stored

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
    return head[:-1] + chr(0xE000 if code == 0xD800 else code)  # surrogates are not text


def encode(body: Mapping[str, Any]) -> str:
    """Write a body as JSON; NaN and infinity are not valid JSON.

    Raises
    ------
    TypeError, ValueError
        If it is not JSON data: a fault of the caller.
    """
    return json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def check_digest(digest: Digest) -> str:
    """Return the hexadecimal part; other text never becomes a path.

    Raises
    ------
    UnreadableInput
        If it is not a digest.
    """
    if not _DIGEST.fullmatch(digest):
        raise UnreadableInput(
            "not-a-digest", where=f"{digest!r:.80}", message="expected sha256: and 64 hex digits"
        )
    return digest.removeprefix("sha256:")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    kind: str
    id: str
    phase: str
    body: str
    created_at: datetime
    updated_at: datetime
    traceparent: str

    def stored(self) -> Stored:
        """Return a copy that the caller may change without changing the store."""
        return Stored(
            kind=self.kind,
            id=self.id,
            phase=self.phase,
            body=json.loads(self.body),
            created_at=self.created_at,
            updated_at=self.updated_at,
            traceparent=self.traceparent,
        )


class MemoryStore:
    """Records, trail and blobs that end with the process.

    Parameters
    ----------
    clock
        Dates the records.
    carried
        Names the span that records are written in; see `Spans.carried`.
    """

    def __init__(self, clock: Clock | None = None, *, carried: Callable[[], str] = str) -> None:
        self._clock = clock or SystemClock()
        self._carried = carried
        self._rows: dict[tuple[str, str], _Row] = {}
        self._events: list[Event] = []
        self._blobs: dict[str, bytes] = {}
        self._lock = threading.RLock()
        self._open = False

    def add(self, kind: str, id: str, body: Mapping[str, Any], *, phase: str) -> bool:
        """Insert; False if the id is already there, which is left as it was."""
        for what, value in (("kind", kind), ("id", id), ("phase", phase)):
            check_name(what, value)
        text, now = encode(body), self._clock.now()
        with self._lock:
            if (kind, id) in self._rows:
                return False
            self._rows[kind, id] = _Row(
                kind=kind,
                id=id,
                phase=phase,
                body=text,
                created_at=now,
                updated_at=now,
                traceparent=self._carried(),
            )
            return True

    def advance(
        self, kind: str, id: str, *, expect: str, to: str, body: Mapping[str, Any] | None = None
    ) -> bool:
        """Compare and set the phase (and body); False if the phase is not `expect`."""
        check_mutable(kind)
        check_name("phase", to)
        text = None if body is None else encode(body)
        with self._lock:
            row = self._rows.get((kind, id))
            if row is None or row.phase != expect:
                return False
            self._rows[kind, id] = replace(
                row,
                phase=to,
                body=row.body if text is None else text,
                updated_at=self._clock.now(),
                traceparent=self._carried() or row.traceparent,
            )
            return True

    def get(self, kind: str, id: str) -> Stored | None:
        """Return one record."""
        with self._lock:
            row = self._rows.get((kind, id))
        return row.stored() if row else None

    def list(
        self,
        kind: str,
        *,
        phase: str | None = None,
        prefix: str = "",
        above: str = "",
        proposal: str = "",
        limit: int | None = None,
    ) -> Sequence[Stored]:
        """Return records of a kind, oldest first; see `Store.list`."""
        check_limit(limit)
        check_proposal(kind, proposal)
        rows = [
            row
            for row in self._found(kind, phase, prefix, above)
            if not proposal or proposal_of(kind, json.loads(row.body)) == proposal
        ]
        return [
            row.stored() for row in rows[max(0, len(rows) - limit) if limit is not None else 0 :]
        ]

    def ids(
        self, kind: str, *, phase: str | None = None, prefix: str = "", above: str = ""
    ) -> Sequence[str]:
        """Return what `list` would, as ids only."""
        return [row.id for row in self._found(kind, phase, prefix, above)]

    def page(
        self, kind: str, *, phases: Sequence[str], before: str = "", limit: int
    ) -> Sequence[Stored]:
        """Return the newest records in any of some phases, newest first; see `Store.page`."""
        check_limit(limit)
        rows = self._found(kind, None, "", "")
        if before:
            places = [number for number, row in enumerate(rows) if row.id == before]
            rows = rows[: places[0]] if places else []
        kept = [row for row in reversed(rows) if row.phase in phases]
        return [row.stored() for row in kept[:limit]]

    def counts(self, kind: str) -> Mapping[str, int]:
        """Return how many records of a kind are in each phase."""
        return Counter(row.phase for row in self._found(kind, None, "", ""))

    def _found(self, kind: str, phase: str | None, prefix: str, above: str) -> Sequence[_Row]:
        with self._lock:
            return [
                row
                for row in self._rows.values()
                if row.kind == kind
                and phase in (None, row.phase)
                and row.id.startswith(prefix)
                and row.id > above
            ]

    def forget(self, kind: str, *, phase: str, before: datetime, keep: Collection[str] = ()) -> int:
        """Remove old records of a phase for good; see `Store.forget`."""
        check_mutable(kind)
        with self._lock:
            rows = self._found(kind, phase, "", "")
            old = [row for row in rows if row.created_at < before and row.id not in keep]
            for row in old:
                del self._rows[kind, row.id]
            return len(old)

    def record(self, event: Event) -> None:
        """Append to the audit trail."""
        detail = json.loads(encode(event.detail))
        with self._lock:
            self._events.append(replace(event, detail=detail))

    def events(self, *, id: str | None = None, limit: int | None = None) -> Sequence[Event]:
        """Return the trail, oldest first (`limit` keeps the newest)."""
        check_limit(limit)
        with self._lock:
            found = [event for event in self._events if id in (None, event.id)]
        kept = found[max(0, len(found) - limit) if limit is not None else 0 :]
        return [replace(e, detail=json.loads(encode(e.detail))) for e in kept]

    def put_blob(self, data: bytes) -> Digest:
        """Keep bytes under their digest."""
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        with self._lock:
            self._blobs[digest] = bytes(data)
        return digest

    def get_blob(self, digest: Digest) -> bytes:
        """Return bytes.

        Raises
        ------
        UnreadableInput
            If they are absent.
        """
        check_digest(digest)
        with self._lock:
            data = self._blobs.get(digest)
        if data is None:
            raise UnreadableInput(
                "blob-missing", where=digest, message="never kept here; repeat what made it"
            )
        return data

    def drop_blob(self, digest: Digest) -> bool:
        """Forget bytes for good; see `Store.drop_blob`."""
        check_digest(digest)
        with self._lock:
            return self._blobs.pop(digest, None) is not None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes inside happen together or not at all.

        Raises
        ------
        RuntimeError
            If one is already open on this thread.
        """
        with self._lock:
            if self._open:
                raise RuntimeError("transactions do not nest")
            self._open = True
            rows, events = dict(self._rows), list(self._events)
            try:
                yield
            except BaseException:
                self._rows, self._events = rows, events
                raise
            finally:
                self._open = False
