"""Object files made by hand: what a compiler writes, and what nobody but an attacker would."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EM_CUDA, EM_AMDGPU = 190, 224
PROGBITS, SYMTAB, STRTAB, NOTE, NOBITS = 1, 2, 3, 7, 8
WRITE, ALLOC, CODE = 1, 2, 4
GFX942, GFX950, SM_90 = 0x54C, 0x54F, 0x5A055A
_ALIGN = 16


@dataclass(frozen=True, kw_only=True)
class Part:
    """A section."""

    name: str
    body: bytes = b""
    kind: int = PROGBITS
    flags: int = ALLOC
    address: int = 0
    size: int | None = None
    link: int = 0


@dataclass(frozen=True, kw_only=True)
class Name:
    """A symbol; `section` counts from 1, in the order of the parts."""

    name: str
    kind: int = 1
    section: int = 1
    value: int = 0
    size: int = 0
    other: int = 0


def elf(parts: Sequence[Part], *, machine: int, flags: int, names: Sequence[Name] = ()) -> bytes:
    """Put an object together."""
    texts = bytearray(b"\0")
    table = bytearray(24)
    for name in names:
        table += struct.pack(
            "<IBBHQQ",
            len(texts),
            0x10 | name.kind,
            name.other,
            name.section,
            name.value,
            name.size,
        )
        texts += name.name.encode() + b"\0"
    symtab = Part(name=".symtab", body=bytes(table), kind=SYMTAB, flags=0, link=len(parts) + 2)
    strtab = Part(name=".strtab", body=bytes(texts), kind=STRTAB, flags=0)
    every = [*parts, symtab, strtab]
    titles = bytearray(b"\0")
    starts = []
    for part in [*every, Part(name=".shstrtab")]:
        starts.append(len(titles))
        titles += part.name.encode() + b"\0"
    every.append(Part(name=".shstrtab", body=bytes(titles), kind=STRTAB, flags=0))
    image, rows = bytearray(64), [bytes(64)]
    for part, title in zip(every, starts, strict=True):
        image += bytes(-len(image) % _ALIGN)
        size = len(part.body) if part.size is None else part.size
        rows.append(
            struct.pack(
                "<IIQQQQIIQQ",
                title,
                part.kind,
                part.flags,
                part.address,
                len(image),
                size,
                part.link,
                0,
                _ALIGN,
                24 if part.kind == SYMTAB else 0,
            )
        )
        image += part.body
    image += bytes(-len(image) % _ALIGN)
    identity = b"\x7fELF\x02\x01\x01\x40\x04" + bytes(7)
    image[:64] = struct.pack(
        "<16sHHIQQQIHHHHHH",
        identity,
        3,
        machine,
        1,
        0,
        0,
        len(image),
        flags,
        64,
        0,
        0,
        64,
        len(rows),
        len(rows) - 1,
    )
    return bytes(image) + b"".join(rows)


def packed(value: Any) -> bytes:
    """Encode as MessagePack."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return _packed_int(value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        head = bytes([0xA0 | len(data)]) if len(data) < 32 else b"\xda" + _u16(len(data))
        return head + data
    if isinstance(value, list):
        head = bytes([0x90 | len(value)]) if len(value) < 16 else b"\xdc" + _u16(len(value))
        return head + b"".join(map(packed, value))
    head = bytes([0x80 | len(value)]) if len(value) < 16 else b"\xde" + _u16(len(value))
    return head + b"".join(packed(key) + packed(one) for key, one in value.items())


def _packed_int(value: int) -> bytes:
    if 0 <= value < 128:
        return bytes([value])
    if -32 <= value < 0:
        return bytes([value + 256])
    form = (b"\xcf", ">Q") if value >= 0 else (b"\xd3", ">q")
    return form[0] + struct.pack(form[1], value)


def _u16(value: int) -> bytes:
    return struct.pack(">H", value)


def note(
    body: bytes, *, owner: bytes = b"AMDGPU\0", kind: int = 32, size: int | None = None
) -> bytes:
    """Encode a note."""
    told = len(body) if size is None else size
    head = struct.pack("<III", len(owner), told, kind)
    return head + owner + bytes(-len(owner) % 4) + body + bytes(-len(body) % 4)


def metadata(**changes: Any) -> dict[str, Any]:
    """Describe one AMD kernel as compilers do."""
    body = {
        ".name": "kernel",
        ".symbol": "kernel.kd",
        ".vgpr_count": 32,
        ".agpr_count": 0,
        ".sgpr_count": 24,
        ".vgpr_spill_count": 0,
        ".sgpr_spill_count": 0,
        ".group_segment_fixed_size": 1024,
        ".private_segment_fixed_size": 0,
        ".kernarg_segment_size": 40,
        ".max_flat_workgroup_size": 256,
        ".wavefront_size": 64,
        ".args": [{".value_kind": "global_buffer", ".size": 8, ".offset": 0}],
    }
    return {**body, **{f".{key}": value for key, value in changes.items()}}


def descriptor(
    *, shared: int = 1024, scratch: int = 0, kernarg: int = 40, registers: int = 32
) -> bytes:
    """Encode what the hardware is told."""
    rsrc1 = registers // 8 - 1
    return struct.pack("<IIII q 20x III HH 4x", shared, scratch, kernarg, 0, 64, 0, rsrc1, 0, 0, 0)


def code_object(
    kernel: Mapping[str, Any] | None = None,
    *,
    told: bytes | None = None,
    flags: int = GFX942,
    parts: Sequence[Part] = (),
    names: Sequence[Name] = (),
    notes: bytes | None = None,
    extra: Mapping[str, Any] | None = None,
) -> bytes:
    """Put an AMD code object of one kernel together."""
    whole = {"amdhsa.kernels": [dict(kernel or metadata())], "amdhsa.version": [1, 2]}
    body = note(packed({**whole, **(extra or {})})) if notes is None else notes
    return elf(
        [
            Part(name=".note", body=body, kind=NOTE),
            Part(name=".rodata", body=told or descriptor(), address=0x1000),
            Part(name=".text", body=bytes(64), flags=ALLOC | CODE, address=0x2000),
            *parts,
        ],
        machine=EM_AMDGPU,
        flags=flags,
        names=[
            Name(name="kernel.kd", section=2, value=0x1000, size=64),
            Name(name="kernel", kind=2, section=3, value=0x2000, size=64),
            *names,
        ],
    )


def attribute(kind: int, *numbers: int, form: int = 4) -> bytes:
    """Encode an entry of ``.nv.info``."""
    if form == 3:
        return struct.pack("<BBH", form, kind, numbers[0])
    return struct.pack(f"<BBH{len(numbers)}I", form, kind, 4 * len(numbers), *numbers)


def cubin(
    *,
    registers: int = 40,
    frame: int = 0,
    shared: int = 0,
    flags: int = SM_90,
    parts: Sequence[Part] = (),
    names: Sequence[Name] = (),
    own: bytes | None = None,
    info: bytes | None = None,
) -> bytes:
    """Put a cubin of one kernel together; the kernel is symbol 1."""
    common = attribute(0x2F, 1, registers) + attribute(0x11, 1, frame) + attribute(0x12, 1, frame)
    mine = attribute(0x19, 40, form=3) + attribute(0x10, 128, 1, 1)
    made = [
        Part(name=".text.kernel", body=bytes(128), flags=ALLOC | CODE),
        Part(name=".nv.info", body=common if info is None else info, kind=0x70000000, flags=0),
        Part(name=".nv.info.kernel", body=mine if own is None else own, kind=0x70000000, flags=0),
    ]
    if shared:
        made.append(Part(name=".nv.shared.kernel", kind=NOBITS, flags=ALLOC | WRITE, size=shared))
    return elf(
        [*made, *parts],
        machine=EM_CUDA,
        flags=flags,
        names=[Name(name="kernel", kind=2, section=1, size=128, other=0x10), *names],
    )
