"""The audit on objects that no compiler of ours would make."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expect import raises_code
from tests.lab.audit import crafted
from tests.lab.audit.crafted import (
    ALLOC,
    GFX942,
    GFX950,
    NOBITS,
    NOTE,
    WRITE,
    Name,
    Part,
    attribute,
    code_object,
    cubin,
    descriptor,
    elf,
    metadata,
    note,
    packed,
)

from retuned.lab.audit import (
    AuditCode,
    AuditLimits,
    AuditReport,
    ObjectUnreadable,
    audit_object,
    refusal,
)


def only(data: bytes, **more: object) -> AuditReport:
    (report,) = audit_object(data, **more)  # type: ignore[arg-type]
    return report


def codes(report: AuditReport) -> set[AuditCode]:
    return {problem.code for problem in report.problems}


def test_an_ordinary_code_object_passes_with_its_figures() -> None:
    spilling = metadata(vgpr_spill_count=3, sgpr_spill_count=1, agpr_count=8)
    report = only(code_object(spilling), arch="gfx942", entry="kernel")
    assert report.problems == ()
    assert refusal([report]) is None
    assert (report.kernel, report.arch, report.threads) == ("kernel", "gfx942", 256)
    assert (report.registers, report.accumulator_registers, report.scalar_registers) == (32, 8, 24)
    assert (report.shared_bytes, report.shared_limit_bytes) == (1024, 65_536)
    assert (report.spilled_registers, report.kernarg_bytes) == (4, 40)
    assert any("4 registers are spilled" in text for text in report.notes)
    assert report.occupancy is not None
    assert (report.occupancy.waves, report.occupancy.of) == (32, 32)


def test_an_ordinary_cubin_passes_with_its_figures() -> None:
    report = only(cubin(registers=168, frame=32, shared=2048), arch="sm_90", entry="kernel")
    assert report.problems == ()
    assert (report.registers, report.scratch_bytes, report.kernarg_bytes) == (168, 32, 40)
    assert (report.threads, report.shared_bytes) == (128, 2048)
    assert report.spilled_registers is None
    assert any("32 bytes of scratch" in text for text in report.notes)
    assert report.occupancy is not None
    assert report.occupancy.limited_by == "registers"
    assert report.occupancy.blocks == 3  # 168 registers in steps of 8: 12 warps of 64


@pytest.mark.parametrize(
    ("make", "limit"),
    [
        (lambda size: code_object(told=descriptor(shared=size), flags=GFX942), 65_536),
        (lambda size: code_object(told=descriptor(shared=size), flags=GFX950), 163_840),
        (lambda size: cubin(shared=size), 232_448),
    ],
    ids=["gfx942", "gfx950", "sm_90"],
)
def test_shared_memory_beyond_a_block_s_is_refused(make: object, limit: int) -> None:
    """H39: on AMD such a kernel was seen to run, and to win by reading garbage."""
    assert callable(make)
    fits = only(make(limit))
    over = only(make(limit + 256))
    assert AuditCode.OVER_LIMIT_SHARED not in codes(fits)
    assert AuditCode.OVER_LIMIT_SHARED in codes(over)
    assert over.occupancy is not None
    assert over.occupancy.waves == 0
    added = only(make(limit), dynamic_shared_bytes=1)
    assert AuditCode.OVER_LIMIT_SHARED in codes(added)


def test_only_resources_make_the_reason_over_limit() -> None:
    over = only(cubin(shared=300_000))
    error = refusal([over])
    assert error is not None
    assert error.reason == "over-limit"
    state = Part(name=".nv.global", kind=NOBITS, flags=ALLOC | WRITE, size=8)
    both = refusal([only(cubin(shared=300_000, parts=[state]))])
    assert both is not None
    assert both.reason == "binary-audit-failed"


def test_what_the_note_hides_the_descriptor_tells() -> None:
    modest = metadata(group_segment_fixed_size=16, private_segment_fixed_size=0, vgpr_count=8)
    told = descriptor(shared=70_000, scratch=512, registers=512)
    report = only(code_object(modest, told=told))
    assert {AuditCode.CONTRADICTION, AuditCode.OVER_LIMIT_SHARED} <= codes(report)
    assert (report.shared_bytes, report.scratch_bytes) == (70_000, 512)


@pytest.mark.parametrize(
    ("section", "kind", "size"),
    [(".data", 1, 4), (".bss", NOBITS, 4), (".anything", NOBITS, 1 << 30)],
)
def test_what_could_keep_an_answer_between_launches_is_refused(
    section: str, kind: int, size: int
) -> None:
    """H12: a writable global of the device."""
    body = bytes(size) if kind == 1 else b""
    part = Part(name=section, kind=kind, flags=ALLOC | WRITE, body=body, size=size, address=0x9000)
    amd = code_object(parts=[part], names=[Name(name="cache", section=4, value=0x9000, size=4)])
    nvidia = cubin(parts=[part], names=[Name(name="cache", section=4, size=4)])
    for data in (amd, nvidia):
        report = only(data)
        assert codes(report) == {AuditCode.WRITABLE_GLOBAL}
        assert "cache" in report.problems[0].detail
        error = refusal([report])
        assert error is not None
        assert error.reason == "binary-audit-failed"


def test_tables_of_the_vendor_s_mathematics_are_no_state_but_their_names_are_no_disguise() -> None:
    def with_table(size: int, *more: Name) -> AuditReport:
        part = Part(name=".nv.global.init", flags=ALLOC | WRITE, body=bytes(size))
        table = Name(name="__cudart_i2opi_f", section=4, size=min(size, 24))
        return only(cubin(parts=[part], names=[table, *more]))

    assert with_table(24).problems == ()
    assert codes(with_table(4096)) == {AuditCode.WRITABLE_GLOBAL}
    assert codes(with_table(28, Name(name="n", section=4, value=24, size=4))) == {
        AuditCode.WRITABLE_GLOBAL
    }
    wrong = Part(name=".nv.global.init", flags=ALLOC | WRITE, body=bytes(64))
    named = Name(name="__cudart_i2opi_f", section=4, size=64)
    assert codes(only(cubin(parts=[wrong], names=[named]))) == {AuditCode.WRITABLE_GLOBAL}


def test_ways_to_the_host_are_refused() -> None:
    asks = metadata(args=[{".value_kind": "hidden_printf_buffer"}])
    assert codes(only(code_object(asks))) == {AuditCode.HOST_CALL}
    given = only(code_object(metadata(args=[{".value_kind": "hidden_hostcall_buffer"}])))
    assert given.problems == ()
    assert any("hidden_hostcall_buffer" in text for text in given.notes)
    linked = code_object(names=[Name(name="__ockl_printf_begin", kind=2, section=3)])
    assert codes(only(linked)) == {AuditCode.HOST_CALL}
    printing = code_object(extra={"amdhsa.printf": ["1:1:4:%d"]})
    assert codes(only(printing)) == {AuditCode.HOST_CALL}
    extern = attribute(0x19, 40, form=3) + attribute(0x0F, 2)
    calling = cubin(own=extern, names=[Name(name="vprintf", kind=2, section=0)])
    assert codes(only(calling)) == {AuditCode.HOST_CALL, AuditCode.FOREIGN_SYMBOL}


def test_a_symbol_from_elsewhere_is_refused() -> None:
    needs = code_object(names=[Name(name="helper", kind=2, section=0)])
    assert codes(only(needs)) == {AuditCode.FOREIGN_SYMBOL}


def test_an_object_for_another_gpu_or_another_kernel_is_refused() -> None:
    assert codes(only(code_object(), arch="gfx950")) == {AuditCode.WRONG_ARCH}
    assert codes(only(cubin(), arch="gfx942")) == {AuditCode.WRONG_ARCH}
    assert codes(only(cubin(), entry="other")) == {AuditCode.NO_KERNEL}


def test_blocks_that_it_was_not_compiled_for_are_refused() -> None:
    assert AuditCode.OVER_LIMIT_THREADS in codes(only(cubin(), threads=256))


def test_scratch_and_spills_are_notes_until_a_policy_bounds_them() -> None:
    heavy = metadata(vgpr_spill_count=40, private_segment_fixed_size=512)
    data = code_object(heavy, told=descriptor(scratch=512))
    report = only(data)
    assert report.problems == ()
    assert len(report.notes) == 2
    allowed = AuditLimits(max_scratch_bytes=512, max_spilled_registers=40)
    assert only(data, limits=allowed).problems == ()
    strict = AuditLimits(max_scratch_bytes=511, max_spilled_registers=39)
    found = only(data, limits=strict)
    assert codes(found) == {AuditCode.OVER_LIMIT_SCRATCH, AuditCode.OVER_LIMIT_SPILL}
    error = refusal([found])
    assert error is not None
    assert error.reason == "over-limit"


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b"", "ELF"),
        (b"\x7fELF", "bytes 0 to 64"),
        (b"\x7fELF\x01\x01" + bytes(100), "64-bit"),
        (cubin()[:-30], "bytes 416 to 864"),
        (elf([Part(name=".text")], machine=62, flags=0), "machine 62"),
        (elf([Part(name=".text")], machine=190, flags=crafted.SM_90), "no kernel"),
        (code_object(notes=b""), "0 notes"),
        (code_object(notes=note(b"\xc1")), "metadata"),
        (code_object(notes=note(b"\x91" * 100_000 + b"\xc0")), "metadata"),
        (code_object(notes=note(b"\xdd\xff\xff\xff\xff")), "metadata"),
        (code_object(notes=note(b"\xa1\xff")), "metadata"),
        (code_object(notes=note(b"\x81\x81\x01\x01\x02")), "metadata"),
        (code_object(notes=note(bytes(5 * 2**20))), "5242880 bytes"),
        (code_object(notes=note(packed([1, 2]))), "no kernels"),
        (code_object(notes=note(packed({"amdhsa.kernels": [7]}))), "entry"),
        (code_object(notes=note(b"\xc0", size=1 << 31)), "2147483648 bytes"),
        (code_object(notes=note(packed(None)) + note(packed(True))), "2 notes"),
        (code_object(metadata(symbol="other.kd")), "'kernel'"),
        (code_object(metadata(name="other", symbol="other.kd")), "'other'"),
        (code_object(metadata(vgpr_count=-1)), "'kernel': .vgpr_count"),
        (code_object(metadata(vgpr_count=True)), "'kernel': .vgpr_count"),
        (code_object(metadata(sgpr_count="many")), "'kernel': .sgpr_count"),
        (code_object(names=[Name(name="hidden.kd", section=2)]), "'hidden.kd'"),
        (cubin(info=b""), "registers"),
        (cubin(info=attribute(0x2F, 99, 40)), "symbol 99 of 2"),
        (cubin(own=struct.pack("<BBH", 4, 0x19, 60_000)), "'.nv.info.kernel'"),
        (code_object(told=bytes(32)), "64 bytes at address 0x1000"),
    ],
)
def test_what_is_no_object_is_refused_with_its_place(data: bytes, names: str) -> None:
    with raises_code(ObjectUnreadable, "bad-object", names) as found:
        audit_object(data, where="candidate.bin")
    assert found.value.where == "candidate.bin"


def test_numbers_that_lie_cost_no_memory() -> None:
    whole = bytearray(code_object())
    many = bytes(whole[:60]) + struct.pack("<H", 0xFFFF) + bytes(whole[62:])
    liars = [
        many,
        code_object(notes=note(b"\xdd\xff\xff\xff\xff")),
        code_object(notes=note(b"\xdf\xff\xff\xff\xff")),
        code_object(notes=note(b"\xdb\xff\xff\xff\xff")),
        code_object(notes=note(b"\x91" * 100_000)),
        code_object(parts=[Part(name=".big", body=b"", size=1 << 62)], notes=b""),
        elf([Part(name=".n", kind=NOTE, size=1 << 40)], machine=224, flags=GFX942),
    ]
    tracemalloc.start()
    try:
        for data in liars:
            with pytest.raises(ObjectUnreadable):
                audit_object(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * 2**20, peak


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_object_is_audited_or_refused_and_nothing_else(data: st.DataObject) -> None:
    damaged = bytearray(data.draw(st.sampled_from([code_object(), cubin(shared=64)])))
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(damaged) - 8))
        value = data.draw(st.sampled_from([0, 1, 0xFF, 0x7F, 0xFFFF, 0xFFFFFFFF, (1 << 64) - 1]))
        width = data.draw(st.sampled_from([1, 2, 4, 8]))
        damaged[place : place + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    cut = data.draw(st.integers(0, len(damaged)) | st.just(len(damaged)))
    with contextlib.suppress(ObjectUnreadable):
        for report in audit_object(bytes(damaged[:cut])):
            AuditReport.model_validate(report.model_dump(mode="json"))
