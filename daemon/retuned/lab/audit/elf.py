"""ELF reader for untrusted 64-bit objects.

Every offset and count is checked against the available bytes before use. Parts may overlap or be
referenced repeatedly, so total copies and objects are bounded by the length of the file. Errors
name their location.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from retuned.errors import UnreadableInput
from retuned.files import read_plain

MAX_BYTES = 64 * 2**20
EM_CUDA, EM_AMDGPU = 190, 224
SHT_SYMTAB, SHT_DYNAMIC, SHT_NOTE, SHT_NOBITS, SHT_DYNSYM = 2, 6, 7, 8, 11
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR = 1, 2, 4
STT_OBJECT, STT_FUNC = 1, 2
DT_NEEDED = 1
ET_DYN = 3
_MAX_SECTIONS = 8192
_MAX_SYMBOLS = 200_000
_MAX_NAME = 4096
_MAX_PARTS = 1_000_000
"""Maximum of sections, segments, symbols, notes and attributes together."""
_MAX_NAMES_BYTES = 64 * 2**20
"""Maximum of all names together; they may share bytes in the file."""
_PASSES, _SPARE_BYTES = 16, 1 << 20
"""Limit of reads of a file's bytes, in passes; valid files need about three."""
_PT_NOTE = 4
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<QQ")
_NOTE = struct.Struct("<III")


class ObjectUnreadable(UnreadableInput):
    """An object file is truncated, inconsistent, or of another format."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__("bad-object", where=where, message=problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    name: str
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int

    @property
    def is_state(self) -> bool:
        """Whether it is in memory, writable, and not empty."""
        return bool(self.flags & SHF_ALLOC and self.flags & SHF_WRITE and self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    name: str
    kind: int
    other: int
    """Visibility, and on NVIDIA whether it is a kernel."""
    section: int
    """Index of its section; 0 where it is defined elsewhere."""
    value: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    kind: int
    flags: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    owner: str
    kind: int
    body: bytes


class ElfFile:
    """One object; `where` names it in messages.

    Raises
    ------
    ObjectUnreadable
        If its headers are invalid; methods raise it for the parts that they read.
    """

    def __init__(self, data: bytes, *, where: str) -> None:
        self.where = where
        self._data = data
        self._bytes_left = _PASSES * len(data) + _SPARE_BYTES
        self._parts_left = _MAX_PARTS
        self._names_left = _MAX_NAMES_BYTES
        self._symbols: dict[tuple[int, int, int], list[Symbol]] = {}
        if len(data) > MAX_BYTES:
            raise self.broken(f"has {len(data)} bytes, more than {MAX_BYTES}")
        if data[:4] != b"\x7fELF":
            raise self.broken("is not an ELF object")
        header = _HEADER.unpack(self._take(0, _HEADER.size, "its header"))
        identity = header[0]
        if identity[4] != 2 or identity[5] != 1:
            raise self.broken("is not a 64-bit little-endian object")
        self.abi, self.abi_version = identity[7], identity[8]
        self.kind, self.machine, self.flags = header[1], header[2], header[7]
        self._segments_at, self._segment_size, self._segments = header[5], header[9], header[10]
        self.sections = self._read_sections(header[6], header[11], header[12], header[13])

    def broken(self, problem: str) -> ObjectUnreadable:
        return ObjectUnreadable(self.where, problem)

    def charge(self, parts: int, *, read_bytes: int = 0) -> None:
        """Count parts and bytes before they are created.

        Raises
        ------
        ObjectUnreadable
            If it is more than a valid file needs: its tables overlap or reference each other.
        """
        self._parts_left -= parts
        self._bytes_left -= read_bytes
        if self._parts_left < 0 or self._bytes_left < 0:
            raise self.broken("references the same bytes too often")

    def content(self, section: Section) -> bytes:
        """Bytes of a section; empty if it exists in memory only."""
        if section.kind == SHT_NOBITS:
            return b""
        return self._take(section.offset, section.size, f"section '{section.name[:60]}'")

    def symbols(self) -> list[Symbol]:
        """Symbols of the full table, else of the dynamic one."""
        for kind in (SHT_SYMTAB, SHT_DYNSYM):
            for section in self.sections:
                if section.kind == kind:
                    return self._read_symbols(section)
        return []

    def symbols_of(self, kind: int) -> list[Symbol]:
        """Symbols of all tables of one kind, such as ``SHT_DYNSYM``."""
        found = (section for section in self.sections if section.kind == kind)
        return [symbol for section in found for symbol in self._read_symbols(section)]

    def dynamic(self) -> Iterator[tuple[int, int, str]]:
        """Yield the entries that the loader reads: tag, value, and the name at that value.

        The name is empty for tags whose value is not an offset into the table of names.
        """
        for section in self.sections:
            if section.kind != SHT_DYNAMIC:
                continue
            if section.size % _DYNAMIC.size or section.link >= len(self.sections):
                raise self.broken(f"section '{section.name[:60]}' is not a dynamic section")
            self.charge(section.size // _DYNAMIC.size)
            texts = self.content(self.sections[section.link])
            for tag, value in _DYNAMIC.iter_unpack(self.content(section)):
                if tag == 0:
                    break
                yield tag, value, self._text(texts, value) if tag == DT_NEEDED else ""

    def segments(self) -> list[Segment]:
        if not self._segments:
            return []
        if self._segment_size != _SEGMENT.size:
            raise self.broken(f"has segments of {self._segment_size} bytes")
        self.charge(self._segments)
        table = self._take(
            self._segments_at, _SEGMENT.size * self._segments, "the table of segments"
        )
        return [
            Segment(kind=row[0], flags=row[1], offset=row[2], size=row[5])
            for row in _SEGMENT.iter_unpack(table)
        ]

    def notes(self) -> list[Note]:
        """Return notes of segments, which loaders read, and of sections, each once."""
        found: dict[tuple[str, int, bytes], Note] = {}
        for block in self._note_blocks():
            for note in self._read_notes(block):
                found[(note.owner, note.kind, note.body)] = note
        return list(found.values())

    def at_address(self, address: int, size: int) -> bytes:
        """Return bytes that are loaded at an address.

        Raises
        ------
        ObjectUnreadable
            If no section holds all of them.
        """
        self.charge(1 + len(self.sections) // 64)
        for section in self.sections:
            inside = section.flags & SHF_ALLOC and section.kind != SHT_NOBITS
            start = address - section.address
            if inside and start >= 0 and start + size <= section.size:
                what = f"section '{section.name[:60]}'"
                self._take(section.offset + section.size, 0, what)  # all of it must be there
                return self._take(section.offset + start, size, what)
        raise self.broken(f"has no section with {size} bytes at address {address:#x}")

    def _take(self, offset: int, size: int, what: str) -> bytes:
        if offset < 0 or size < 0 or offset + size > len(self._data):
            raise self.broken(
                f"{what} has the bytes {offset} to {offset + size} of {len(self._data)}"
            )
        self.charge(0, read_bytes=size)
        return self._data[offset : offset + size]

    def _read_sections(self, at: int, size: int, count: int, names: int) -> list[Section]:
        if count == 0:
            raise self.broken("has no sections; nothing can be checked")
        if count > _MAX_SECTIONS or size != _SECTION.size or names >= count:
            raise self.broken(f"has a table of {count} sections of {size} bytes, names in {names}")
        self.charge(count)
        table = self._take(at, size * count, "the table of sections")
        rows = list(_SECTION.iter_unpack(table))
        texts = self._take(rows[names][4], rows[names][5], "the names of sections")
        return [
            Section(
                name=self._text(texts, row[0]),
                kind=row[1],
                flags=row[2],
                address=row[3],
                offset=row[4],
                size=row[5],
                link=row[6],
                info=row[7],
            )
            for row in rows
        ]

    def _read_symbols(self, section: Section) -> list[Symbol]:
        if section.size % _SYMBOL.size or section.size > _MAX_SYMBOLS * _SYMBOL.size:
            raise self.broken(f"section '{section.name[:60]}' is not a symbol table")
        if section.link >= len(self.sections):
            raise self.broken(f"section '{section.name[:60]}' names no table of names")
        place = (section.offset, section.size, section.link)
        if place in self._symbols:
            return self._symbols[place]
        self.charge(section.size // _SYMBOL.size)
        texts = self.content(self.sections[section.link])
        found = [
            Symbol(
                name=self._text(texts, name),
                kind=info & 15,
                other=other,
                section=index,
                value=value,
                size=size,
            )
            for name, info, other, index, value, size in _SYMBOL.iter_unpack(self.content(section))
        ]
        self._symbols[place] = found
        return found

    def _text(self, texts: bytes, at: int) -> str:
        end = texts.find(b"\0", at, at + _MAX_NAME)
        if at >= len(texts) or end < 0:
            raise self.broken(f"names something at byte {at} of {len(texts)} of its names")
        self._names_left -= end - at
        if self._names_left < 0:
            raise self.broken(f"has more than {_MAX_NAMES_BYTES} bytes of names")
        return texts[at:end].decode("ascii", "backslashreplace")

    def _note_blocks(self) -> Iterator[bytes]:
        for segment in self.segments():
            if segment.kind == _PT_NOTE:
                yield self._take(segment.offset, segment.size, "a segment of notes")
        for section in self.sections:
            if section.kind == SHT_NOTE:
                yield self.content(section)

    def _read_notes(self, block: bytes) -> Iterator[Note]:
        at = 0
        while at + _NOTE.size <= len(block):
            name_bytes, body_bytes, kind = _NOTE.unpack_from(block, at)
            name_at = at + _NOTE.size
            body_at = name_at + -(-name_bytes // 4) * 4
            if body_at + body_bytes > len(block):
                raise self.broken(f"a note claims {body_bytes} bytes, {len(block)} are there")
            self.charge(1)
            owner = block[name_at : name_at + name_bytes].rstrip(b"\0")
            yield Note(
                owner=owner[:64].decode("ascii", "backslashreplace"),
                kind=kind,
                body=block[body_at : body_at + body_bytes],
            )
            at = body_at + -(-body_bytes // 4) * 4


def read_bytes(path: Path) -> bytes:
    """Read a file that may be an object.

    Raises
    ------
    ObjectUnreadable
        If it is too long.
    UnreadableInput
        If the file cannot be read.
    """
    try:
        data = read_plain(path, max_bytes=MAX_BYTES)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        problem = f"cannot be read: {why}"
        raise UnreadableInput("unreadable-file", where=str(path), message=problem) from error
    if data is None:
        raise ObjectUnreadable(str(path), f"has more than {MAX_BYTES} bytes")
    return data
