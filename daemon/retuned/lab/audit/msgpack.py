"""MessagePack subset that the notes of AMD code objects use.

The input is untrusted: a count is checked against the remaining bytes, and nesting is bounded.
Reading costs at most time in proportion to the file's length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

_MAX_DEPTH = 32
_MAX_VALUES = 1_000_000
"""Maximum of numbers, texts and containers; notes of a large code object hold thousands."""
_NUMBERS: dict[int, struct.Struct] = {
    0xCA: struct.Struct(">f"),
    0xCB: struct.Struct(">d"),
    0xCC: struct.Struct(">B"),
    0xCD: struct.Struct(">H"),
    0xCE: struct.Struct(">I"),
    0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"),
    0xD1: struct.Struct(">h"),
    0xD2: struct.Struct(">i"),
    0xD3: struct.Struct(">q"),
}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_LENGTHS = {1: struct.Struct(">B"), 2: struct.Struct(">H"), 4: struct.Struct(">I")}
_TEXT = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC4: 1, 0xC5: 2, 0xC6: 4}
_ARRAYS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}


class BadMessage(ValueError):
    """The bytes are not a valid message; the text gives the position."""


def decode(data: bytes) -> Any:  # noqa: ANN401 - whatever was written
    """Decode one message: None, bool, int, float, str, list and dict with text keys.

    Raises
    ------
    BadMessage
        If it is truncated, nested too deeply, or followed by other bytes.

    Examples
    --------
    >>> decode(bytes([0x82, 0xA1, 0x61, 0x01, 0xA1, 0x62, 0x92, 0xC3, 0xFF]))
    {'a': 1, 'b': [True, -1]}
    """
    reader = _Reader(data)
    value = reader.value(0)
    if reader.at != len(data):
        raise BadMessage(f"{len(data) - reader.at} bytes are left over at byte {reader.at}")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._values = 0
        self.at = 0

    def value(self, depth: int) -> Any:  # noqa: ANN401
        if depth > _MAX_DEPTH:
            raise BadMessage(f"nested more than {_MAX_DEPTH} deep at byte {self.at}")
        self._values += 1
        if self._values > _MAX_VALUES:
            raise BadMessage(f"more than {_MAX_VALUES} values before byte {self.at}")
        kind = self._take(1)[0]
        if kind <= 0x7F:
            return kind
        if kind >= 0xE0:
            return kind - 0x100
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind in _NUMBERS:
            form = _NUMBERS[kind]
            return form.unpack(self._take(form.size))[0]
        return self._sized(kind, depth)

    def _sized(self, kind: int, depth: int) -> Any:  # noqa: ANN401
        if 0xA0 <= kind <= 0xBF:
            return self._text(kind & 0x1F)
        if kind in _TEXT:
            return self._text(self._length(_TEXT[kind]))
        if 0x90 <= kind <= 0x9F or kind in _ARRAYS:
            count = kind & 0x0F if kind < 0xA0 else self._length(_ARRAYS[kind])
            return self._many(count, 1, lambda: self.value(depth + 1))
        if 0x80 <= kind <= 0x8F or kind in _MAPS:
            count = kind & 0x0F if kind < 0x90 else self._length(_MAPS[kind])
            return dict(self._many(count, 2, lambda: self._pair(depth)))
        raise BadMessage(f"a kind {kind:#x} that has no use here at byte {self.at - 1}")

    def _pair(self, depth: int) -> tuple[str, Any]:
        key = self.value(depth + 1)
        if not isinstance(key, str):
            raise BadMessage(f"a key is not a text, before byte {self.at}")
        return key, self.value(depth + 1)

    def _many(self, count: int, least_bytes: int, read: Callable[[], Any]) -> list[Any]:
        if count * least_bytes > len(self._data) - self.at:
            raise BadMessage(f"{count} things announced at byte {self.at}, fewer bytes are left")
        return [read() for _ in range(count)]

    def _text(self, length: int) -> str:
        return self._take(length).decode("utf-8", "backslashreplace")

    def _length(self, size: int) -> int:
        found: int = _LENGTHS[size].unpack(self._take(size))[0]
        return found

    def _take(self, size: int) -> bytes:
        if self.at + size > len(self._data):
            raise BadMessage(f"cut off at byte {len(self._data)}")
        self.at += size
        return self._data[self.at - size : self.at]
