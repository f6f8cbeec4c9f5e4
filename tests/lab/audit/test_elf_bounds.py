"""Objects whose tables overlap, repeat or name themselves: the work stays in bounds."""

from __future__ import annotations

import struct
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_code
from tests.lab.audit.crafted import code_object, cubin

from retuned.lab.audit import ObjectUnreadable, nvidia
from retuned.lab.audit import elf as elf_module
from retuned.lab.audit.elf import ElfFile
from retuned.lab.audit.report import audit_object

HEADER = "<16sHHIQQQIHHHHHH"
SECTION = "<IIQQQQIIQQ"
SEGMENT = "<IIQQQQQQ"
SYMTAB, STRTAB, NOTE, DYNSYM = 2, 3, 7, 11
NOTE_SEGMENT = 4


def put_together(
    sections: list[tuple[int, int, int, int, int]],
    *,
    segments: list[tuple[int, int, int]] = (),  # type: ignore[assignment]
    body: bytes = b"",
    machine: int = 190,
) -> bytes:
    """An object of these (name, kind, offset, size, link) and (kind, offset, size); the body first.

    Places count from the end of the header.
    """
    at = 64
    tables = at + len(body)
    ends = tables + 64 * len(sections)
    rows = b"".join(
        struct.pack(SECTION, name, kind, 2, 0, at + offset, size, link, 0, 0, 0)
        for name, kind, offset, size, link in sections
    )
    loads = b"".join(
        struct.pack(SEGMENT, kind, 0, at + offset, 0, 0, size, size, 0)
        for kind, offset, size in segments
    )
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack(
        HEADER, identity, 2, machine, 1, 0, ends, tables, 0x5A055A, 64, 56, len(segments), 64,
        len(sections), 0,
    )  # fmt: skip
    return header + body + rows + loads


def everything(data: bytes) -> None:
    """Ask an object all that audits ask."""
    elf = ElfFile(data, where="crafted")
    for ask in (elf.symbols, elf.notes, elf.segments):
        ask()
    elf.symbols_of(DYNSYM)
    list(elf.dynamic())
    for section in elf.sections[:50]:
        elf.content(section)


def in_time(act: object) -> None:
    """Refused at once: seconds even where the machine is busy, and not hours."""
    begin = time.process_time()
    with pytest.raises(ObjectUnreadable):
        act()  # type: ignore[operator]
    assert time.process_time() - begin < 20.0


def test_one_table_of_symbols_named_by_thousands_of_sections_is_refused() -> None:
    body = b"\0" + bytes(24 * 4000)
    # Each a little different, so that none is the same table.
    sections = [(0, STRTAB, 0, 1, 0)]
    sections += [(0, DYNSYM, 1 + n % 900, 24 * 3900, 0) for n in range(4000)]
    in_time(lambda: everything(put_together(sections, body=body)))


def test_one_block_of_notes_named_by_thousands_of_segments_is_refused() -> None:
    body = struct.pack("<III", 0, 0, 1) * 50_000
    segments = [(NOTE_SEGMENT, 0, len(body))] * 60_000
    data = put_together([(0, STRTAB, 0, 1, 0)], segments=segments, body=body)
    in_time(lambda: everything(data))


def test_names_that_share_their_bytes_cost_no_more_than_names_may() -> None:
    names = b"a" * 4000 + b"\0"
    symbols = b"".join(struct.pack("<IBBHQQ", n % 64, 1, 0, 1, 0, 0) for n in range(100_000))
    body = names + symbols
    sections = [(4000, STRTAB, 0, len(names), 0), (4000, SYMTAB, len(names), len(symbols), 0)]
    in_time(lambda: everything(put_together(sections, body=body)))


def test_a_section_read_for_every_symbol_costs_what_is_asked_for() -> None:
    """Ten thousand descriptors in one section of megabytes: only their own bytes are copied."""
    size = 4 * 2**20
    body = b"\0" + bytes(size)
    data = put_together([(0, STRTAB, 0, 1, 0), (0, 1, 1, size, 0)], body=body)
    elf = ElfFile(data, where="crafted")
    begin = time.process_time()
    for n in range(10_000):
        assert len(elf.at_address(n, 64)) == 64
    assert time.process_time() - begin < 10.0


def test_attributes_that_overlap_in_every_section_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(elf_module, "_MAX_PARTS", 20_000)
    body = b"\0" + b"\x03\x00\x00\x00" * 4000
    sections = [(0, STRTAB, 0, 1, 0)] + [(0, 1, 1, 16_000, 0)] * 20
    elf = ElfFile(put_together(sections, body=body), where="crafted")
    each = (entry for section in elf.sections for entry in nvidia._entries(elf, section))
    with raises_code(ObjectUnreadable, "bad-object", "same bytes"):
        list(each)


def test_tables_that_differ_only_in_their_names_are_not_taken_for_each_other() -> None:
    """Two tables at one place with two tables of names: each has its own."""
    symbol = struct.pack("<IBBHQQ", 1, 1, 0, 1, 0, 0)
    body = b"\0first\0" + b"\0other\0" + symbol
    sections = [(0, STRTAB, 0, 7, 0), (0, STRTAB, 7, 7, 0)]
    sections += [(0, SYMTAB, 14, 24, 0), (0, DYNSYM, 14, 24, 1)]
    elf = ElfFile(put_together(sections, body=body), where="crafted")
    assert [s.name for s in elf.symbols()] == ["first"]
    assert [s.name for s in elf.symbols_of(DYNSYM)] == ["other"]


number = st.one_of(
    st.integers(0, 300), st.sampled_from([2**16 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
)
short = st.one_of(st.integers(0, 300), st.just(2**32 - 1))


@given(
    sections=st.lists(
        st.tuples(
            short, st.sampled_from([1, SYMTAB, STRTAB, NOTE, 8, DYNSYM]), number, number, short
        ),
        min_size=1,
        max_size=6,
    ),
    segments=st.lists(st.tuples(st.sampled_from([1, NOTE_SEGMENT]), number, number), max_size=4),
    body=st.binary(max_size=300),
)
def test_any_tables_over_any_bytes_are_read_or_refused(
    sections: list[tuple[int, int, int, int, int]],
    segments: list[tuple[int, int, int]],
    body: bytes,
) -> None:
    def capped(value: int) -> int:
        return min(value, 2**64 - 65)  # the header's length is added

    placed = [(n, k, capped(o), s, li) for n, k, o, s, li in sections]
    loads = [(k, capped(o), s) for k, o, s in segments]
    with suppress(ObjectUnreadable):
        everything(put_together(placed, segments=loads, body=body))


@given(data=st.data(), make=st.sampled_from([code_object, cubin]))
def test_an_object_with_fields_exchanged_or_cut_is_audited_or_refused(
    data: st.DataObject, make: object
) -> None:
    whole = bytearray(make())  # type: ignore[operator]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 9))
        size, form = data.draw(st.sampled_from([(2, "<H"), (4, "<I"), (8, "<Q")]))
        value = data.draw(st.sampled_from([0, 1, at, len(whole), 2**16 - 1])) % 2 ** (8 * size)
        struct.pack_into(form, whole, at, value)
    cut = data.draw(st.integers(1, len(whole)))
    with suppress(ObjectUnreadable):
        audit_object(bytes(whole[:cut]), where="crafted")
