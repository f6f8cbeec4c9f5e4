"""Events of a JSON trace, a few megabytes at a time, with the speed of a typed decoder.

The text is cut where one event ends and the next begins. A candidate cut is proven, not guessed:
if ``[`` + text + ``]`` decodes, its brackets balance, so the cut lies between two events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from retuned.errors import UnreadableInput
from retuned.traces.source import ByteSource, ReadLimits

Event = TypeVar("Event")
_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_NEXT = re.compile(rb"\}\s*,\s*$")
_PLACE = re.compile(r"\(byte (\d+)\)")
_TRIES = 6
_TOKEN_BYTES = 400
"""Longest number, and more than any escape: what ends so close to the end may only be cut there."""
_SPACE = b" \t\r\n"


class EventStream(Generic[Event]):
    """Iterates over lists of events.

    Parameters
    ----------
    source
        The text, from `head` on.
    head
        What was already read of it.
    event
        Type to decode each event to; fields it does not name are skipped.
    limits
        Bounds.
    """

    def __init__(
        self, source: ByteSource, head: bytes, *, event: type[Event], limits: ReadLimits
    ) -> None:
        self._source = source
        self._buffer = head.removeprefix(b"\xef\xbb\xbf")
        self._limits = limits
        self._decoder: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(list[event])  # type: ignore[valid-type]
        self._ended = False

    def __iter__(self) -> Iterator[list[Event]]:
        """Yield decoded events in file order; check the rest of the document at the end.

        Raises
        ------
        UnreadableInput
            ``truncated-json``, ``damaged-json``, ``not-a-trace`` or ``too-large``.
        """
        listed = self._open()
        while True:
            events, done = self._step()
            if events:
                yield events
            if done:
                break
        self._close(listed)

    def _open(self) -> bool:
        """Skip to the first event; True if the document is a bare list of events."""
        while True:
            start = self._buffer.lstrip(_SPACE)
            if start[:1] == b"[":
                self._buffer = start[1:]
                return True
            found = _OPENING.search(self._buffer)
            if found:
                self._check_object(self._buffer[: found.end()] + b"]}", "before traceEvents")
                self._buffer = self._buffer[found.end() :]
                return False
            if len(self._buffer) > self._limits.element_bytes:
                raise self._source.refuse(
                    "not-a-trace", f"no traceEvents in the first {len(self._buffer)} bytes"
                )
            if not self._more():
                raise self._source.refuse("not-a-trace", "JSON without a list of traceEvents")

    def _step(self) -> tuple[list[Event], bool]:
        """Decode up to the last provable end of an event; True at the end of the list."""
        while True:
            filled = len(self._buffer) >= self._limits.chunk_bytes
            if not filled and self._more():
                continue
            events = self._up_to_cut() if filled else None
            if events is not None:
                return events, False
            last = self._up_to_end()
            if last is not None:
                return last, True
            if len(self._buffer) > self._limits.element_bytes:
                raise self._fail(f"no event ends within {self._limits.element_bytes} bytes")
            if not self._more():
                self._closing()  # raises if the end is invalid, now that nothing follows
                raise self._fail("the list of events does not end", code="truncated-json")

    def _more(self) -> bool:
        data = b"" if self._ended else self._source.read(self._limits.chunk_bytes)
        self._ended = not data
        self._buffer += data
        return bool(data)

    def _up_to_cut(self) -> list[Event] | None:
        high = len(self._buffer)
        for _ in range(_TRIES):
            high = self._buffer.rfind(b"{", 0, high)
            if high <= 0:
                return None
            between = _NEXT.search(self._buffer, max(0, high - 64), high)
            if between is None:
                continue
            cut = between.start() + 1
            events = self._decode(cut)
            if events is not None:
                self._buffer = self._buffer[high:]
                return events
        return None

    def _up_to_end(self) -> list[Event] | None:
        """Events before the list's closing bracket, which is left in the buffer."""
        end = self._closing()
        if end is None:
            return None
        events = self._decode(end)
        if events is None:
            raise self._fail("an event cannot be read")
        self._buffer = self._buffer[end:]
        return events

    def _closing(self) -> int | None:
        """Offset of the bracket that closes the list of events, if it is in the buffer."""
        try:
            self._decoder.decode(b"[" + self._buffer)
        except (msgspec.ValidationError, UnicodeDecodeError) as error:
            raise self._fail(_short(error)) from None
        except msgspec.DecodeError as error:
            text = str(error)
            if "truncated" in text:
                return None
            place = _PLACE.search(text)
            if "trailing characters" in text and place:
                # one for the bracket put before the buffer, one since bytes count from 1
                return self._buffer.rfind(b"]", 0, int(place.group(1)) - 2)
            near = place is not None and int(place.group(1)) > len(self._buffer) - _TOKEN_BYTES
            if near and not self._ended:  # such as "1.", of which the rest was not read yet
                return None
            raise self._fail(_short(error)) from None
        except RecursionError:
            raise self._fail("values are nested too deeply") from None
        return len(self._buffer.rstrip(_SPACE)) - 1

    def _decode(self, end: int) -> list[Event] | None:
        """Events up to an offset; None if it does not lie between two of them."""
        text = b"".join((b"[", memoryview(self._buffer)[:end], b"]"))  # one copy
        try:
            return self._decoder.decode(text)
        except (msgspec.ValidationError, UnicodeDecodeError) as error:
            raise self._fail(_short(error)) from None
        except msgspec.DecodeError:
            return None
        except RecursionError:
            raise self._fail("values are nested too deeply") from None

    def _close(self, listed: bool) -> None:
        """Check what follows the events: a file that stops early is not complete."""
        while self._more():
            if len(self._buffer) > self._limits.document_bytes:
                raise self._source.refuse("too-large", "too much text after the traceEvents")
        rest = self._buffer[1:]
        if listed:
            if rest.strip(_SPACE):
                raise self._fail("text after the end of the list")
            return
        self._check_object(b'{"":[]' + rest, "after traceEvents")

    def _check_object(self, text: bytes, place: str) -> None:
        try:
            msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            truncated = "truncated" in str(error)
            raise self._fail(
                f"{place}: {_short(error)}", code="truncated-json" if truncated else "damaged-json"
            ) from None
        except RecursionError:
            raise self._fail(f"{place}: values are nested too deeply") from None

    def _fail(self, what: str, *, code: str = "damaged-json") -> UnreadableInput:
        at = self._source.read_bytes - len(self._buffer)
        hint = "wait until it is written" if code == "truncated-json" else "record it again"
        return self._source.refuse(code, f"{what}; copy the file again or {hint}", at=at)


def decode_document(data: bytes, type_: type[Event], *, source: ByteSource) -> Event:
    """Decode a whole document.

    Raises
    ------
    UnreadableInput
        ``truncated-json`` or ``damaged-json``.
    """
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        truncated = "truncated" in str(error)
        raise source.refuse(
            "truncated-json" if truncated else "damaged-json",
            f"{_short(error)}; copy the file again",
        ) from None


def json_value(raw: bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Return a small value kept raw; None where it cannot be read."""
    try:
        return json.loads(raw) if raw else None
    except (ValueError, RecursionError):
        return None


def _short(error: Exception) -> str:
    return str(error)[:200]
