"""Metadata of an AMD code object: the layout of a kernel's arguments.

HIP has no call that returns the layout of a function's arguments, but every code object contains
it: in a note named ``AMDGPU``, a map in MessagePack. Code objects come from the server's own
compiler or are verified artifacts; they are still parsed as untrusted input.
"""

from __future__ import annotations

import struct
from typing import Any

from retuned.runtime.graphs.structures import Layout, check_layout
from retuned.runtime.schema import Refused

_NOTE = 32
_OWNER = b"AMDGPU\0"
_SECTION_NOTES = 7
_MAX_NOTE_BYTES = 16 << 20
_MAX_DEPTH = 16
_MAX_ITEMS = 1 << 20
_MAX_SECTIONS = 4096


def object_layout(image: bytes, kernel: str) -> Layout:
    """Return the layout of the explicit arguments of a kernel.

    Raises
    ------
    Refused
        ``layout-unknown`` if the object does not contain it.
    """
    try:
        for found in _metadata(image).get("amdhsa.kernels", ()):
            if found.get(".name") == kernel:
                explicit = [
                    (int(each[".offset"]), int(each[".size"]))
                    for each in found.get(".args", ())
                    if not str(each[".value_kind"]).startswith("hidden_")
                ]
                return check_layout(explicit)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise Refused("layout-unknown", detail=f"the code object: {error!r:.200}") from error
    raise Refused("layout-unknown", detail=f"the code object has no kernel {kernel[:80]!r}")


def _metadata(image: bytes) -> dict[str, Any]:
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit ELF file")
    (sections_at,) = struct.unpack_from("<Q", image, 40)
    entry_bytes, count = struct.unpack_from("<HH", image, 58)
    for number in range(min(count, _MAX_SECTIONS)):
        head = sections_at + number * entry_bytes
        (kind,) = struct.unpack_from("<I", image, head + 4)
        offset, size = struct.unpack_from("<QQ", image, head + 24)
        if kind == _SECTION_NOTES and size <= _MAX_NOTE_BYTES:
            found = _note_of(image[offset : offset + size])
            if found is not None:
                value = _Reader(found).value(0)
                if isinstance(value, dict):
                    return value
    raise ValueError("no AMDGPU note")


def _note_of(section: bytes) -> bytes | None:
    at = 0
    while at + 12 <= len(section):
        name_bytes, found_bytes, kind = struct.unpack_from("<III", section, at)
        name_at = at + 12
        found_at = name_at + (name_bytes + 3) // 4 * 4
        if kind == _NOTE and section[name_at : name_at + name_bytes] == _OWNER:
            return section[found_at : found_at + found_bytes]
        at = found_at + (found_bytes + 3) // 4 * 4
    return None


class _Reader:
    """The part of MessagePack that the notes use; bounded in depth and items."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._items = 0

    def value(self, depth: int) -> Any:  # noqa: ANN401 - any value
        """Read one value; ValueError for unsupported types."""
        self._items += 1
        if depth > _MAX_DEPTH or self._items > _MAX_ITEMS:
            raise ValueError("too deep or too many values")
        kind = self._take(1)[0]
        if kind < 0x80:
            return kind
        if kind < 0x90:
            return self._map(kind & 15, depth)
        if kind < 0xA0:
            return self._list(kind & 15, depth)
        if kind < 0xC0:
            return self._text(kind & 31)
        if kind >= 0xE0:
            return kind - 256
        return self._long(kind, depth)

    def _long(self, kind: int, depth: int) -> Any:  # noqa: ANN401 - as value
        if kind in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[kind]
        if 0xCC <= kind <= 0xCF:
            return int.from_bytes(self._take(1 << (kind - 0xCC)), "big")
        if 0xD0 <= kind <= 0xD3:
            return int.from_bytes(self._take(1 << (kind - 0xD0)), "big", signed=True)
        if 0xD9 <= kind <= 0xDB:
            return self._text(self._length(kind - 0xD9))
        if kind in (0xDC, 0xDD):
            return self._list(self._length(kind - 0xDB), depth)
        if kind in (0xDE, 0xDF):
            return self._map(self._length(kind - 0xDD), depth)
        raise ValueError(f"a value of kind {kind:#x}")

    def _length(self, power: int) -> int:
        return int.from_bytes(self._take(1 << power), "big")

    def _text(self, size: int) -> str:
        return self._take(size).decode("utf-8", "replace")

    def _list(self, count: int, depth: int) -> list[Any]:
        return [self.value(depth + 1) for _ in range(count)]

    def _map(self, count: int, depth: int) -> dict[str, Any]:
        return {str(self.value(depth + 1)): self.value(depth + 1) for _ in range(count)}

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise ValueError("the note ends too early")
        found = self._data[self._at : end]
        self._at = end
        return found
