"""AMD code objects: metadata notes, and the kernel descriptors that the hardware uses.

Runtimes read the note to place arguments; registers, LDS and scratch of a launch come from the
kernel descriptor, 64 bytes at ``NAME.kd``. If the two differ, the larger number counts and the
difference is a finding, because a compiler writes both from the same numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgspec

from retuned.lab.audit.elf import EM_AMDGPU, SHT_DYNSYM, ElfFile, Symbol
from retuned.lab.audit.facts import KernelFacts

MACHINES: Mapping[int, str] = {
    0x2C: "gfx900", 0x2F: "gfx906", 0x30: "gfx908", 0x32: "gfx90c", 0x33: "gfx1010",
    0x36: "gfx1030", 0x37: "gfx1031", 0x38: "gfx1032", 0x3F: "gfx90a", 0x41: "gfx1100",
    0x43: "gfx1150", 0x44: "gfx1103", 0x46: "gfx1101", 0x47: "gfx1102", 0x48: "gfx1200",
    0x4A: "gfx1151", 0x4C: "gfx942", 0x4E: "gfx1201", 0x4F: "gfx950",
}  # fmt: skip
"""Low byte of the header's flags to architecture, in LLVM's numbering."""
_METADATA = 32
_METADATA_BYTES = 4 * 2**20
"""Largest metadata that is decoded: a byte may become an object of 64 bytes."""
_DESCRIPTOR = struct.Struct("<IIII q 20x III HH 4x")
_UNIFIED = ("gfx90a", "gfx942", "gfx950")
_HOST_BUFFERS = ("hidden_hostcall_buffer", "hidden_default_queue", "hidden_heap_v1")
_PRINTS = "hidden_printf_buffer"
_CALLS = ("__ockl_hostcall", "__ockl_printf", "__ockl_fprintf", "__assert_fail", "__ockl_dm_alloc")
_NUMBER_MAX = 2**31
_KERNELS_MAX = 4096


def arch_of(elf: ElfFile) -> str:
    """Return the architecture in the header; empty if unknown."""
    return MACHINES.get(elf.flags & 0xFF, "") if elf.machine == EM_AMDGPU else ""


def read_kernels(elf: ElfFile) -> list[KernelFacts]:
    """Read every kernel of a code object.

    Raises
    ------
    ObjectUnreadable
        If notes or descriptors are missing or invalid.
    """
    symbols = {symbol.name: symbol for symbol in elf.symbols() if symbol.name}
    symbols |= {symbol.name: symbol for symbol in elf.symbols_of(SHT_DYNSYM) if symbol.name}
    found = [_kernel(elf, body, symbols) for body in _metadata(elf)]
    described = {facts.name for facts in found}
    for name in symbols:
        if name.endswith(".kd") and name.removesuffix(".kd") not in described:
            raise elf.broken(f"kernel '{name[:60]}' has a descriptor and no metadata")
    return found


def _metadata(elf: ElfFile) -> list[dict[str, Any]]:
    bodies = [n.body for n in elf.notes() if n.owner == "AMDGPU" and n.kind == _METADATA]
    if len(bodies) != 1:
        raise elf.broken(f"has {len(bodies)} notes of AMDGPU metadata, not one")
    if len(bodies[0]) > _METADATA_BYTES:
        raise elf.broken(f"has {len(bodies[0])} bytes of metadata, more than {_METADATA_BYTES}")
    try:
        whole = msgspec.msgpack.decode(bodies[0])
    except (msgspec.DecodeError, RecursionError, TypeError, UnicodeError) as error:
        raise elf.broken(f"its metadata cannot be read: {error}") from None
    kernels = whole.get("amdhsa.kernels") if isinstance(whole, dict) else None
    if not isinstance(kernels, list) or len(kernels) > _KERNELS_MAX:
        raise elf.broken("its metadata lists no kernels")
    if not all(isinstance(kernel, dict) for kernel in kernels):
        raise elf.broken("its metadata lists an entry that is not a kernel")
    if whole.get("amdhsa.printf"):
        kernels = [{**kernel, "prints": True} for kernel in kernels]
    return kernels


def _kernel(elf: ElfFile, body: Mapping[str, Any], symbols: Mapping[str, Symbol]) -> KernelFacts:
    name = body.get(".name")
    if not isinstance(name, str) or not name:
        raise elf.broken("its metadata names no kernel")
    at = symbols.get(f"{name}.kd")
    if body.get(".symbol") != f"{name}.kd" or at is None:
        raise elf.broken(f"kernel '{name[:60]}' has no descriptor")

    def number(key: str, default: int | None = None) -> int:
        value = body.get(key, default)
        if type(value) is not int or not 0 <= value < _NUMBER_MAX:
            raise elf.broken(f"kernel '{name[:60]}': {key} is not a count")
        return value

    raw = _DESCRIPTOR.unpack(elf.at_address(at.value, _DESCRIPTOR.size))
    told = _Instruction(raw, arch_of(elf))
    said = {
        "group_segment_fixed_size": (number(".group_segment_fixed_size"), told.shared_bytes),
        "private_segment_fixed_size": (number(".private_segment_fixed_size"), told.scratch_bytes),
        "kernarg_segment_size": (number(".kernarg_segment_size"), told.kernarg_bytes),
    }
    vectors = number(".vgpr_count")
    odd = [
        f"{key} {a} in the note, {b} in the descriptor" for key, (a, b) in said.items() if a != b
    ]
    if told.registers is not None and vectors > told.registers:
        odd.append(f"vgpr_count {vectors} in the note, {told.registers} in the descriptor")
    return KernelFacts(
        name=name,
        registers=max(vectors, told.registers or 0) if odd else vectors,
        accumulators=number(".agpr_count", 0),
        scalars=number(".sgpr_count"),
        spilled=number(".vgpr_spill_count", 0) + number(".sgpr_spill_count", 0),
        shared_bytes=max(said["group_segment_fixed_size"]),
        scratch_bytes=max(said["private_segment_fixed_size"]),
        kernarg_bytes=max(said["kernarg_segment_size"]),
        max_threads=number(".max_flat_workgroup_size", 0) or None,
        lanes=number(".wavefront_size"),
        host_calls=_host_calls(body, symbols),
        host_buffers=tuple(kind for kind in _HOST_BUFFERS if kind in _kinds(body)),
        dynamic_stack=bool(body.get(".uses_dynamic_stack", False)),
        contradictions=tuple(odd),
    )


class _Instruction:
    """Resources in the kernel descriptor."""

    def __init__(self, raw: tuple[int, ...], arch: str) -> None:
        self.shared_bytes, self.scratch_bytes, self.kernarg_bytes = raw[0], raw[1], raw[2]
        granule = 8 if arch in _UNIFIED else 4
        rsrc1 = raw[6]
        # Only for the family whose granule is known; for others the note counts.
        self.registers = ((rsrc1 & 0x3F) + 1) * granule if arch.startswith("gfx9") else None


def _kinds(body: Mapping[str, Any]) -> set[str]:
    args = body.get(".args")
    listed = args if isinstance(args, list) else []
    found = [arg.get(".value_kind") for arg in listed if isinstance(arg, dict)]
    return {kind for kind in found if isinstance(kind, str)}


def _host_calls(body: Mapping[str, Any], symbols: Mapping[str, Symbol]) -> tuple[str, ...]:
    """Return host calls that print, or whose code is in the file."""
    found = [_PRINTS] if _PRINTS in _kinds(body) else []
    found += sorted(name[:60] for name in symbols if name.startswith(_CALLS))
    if body.get("prints"):
        found.append("amdhsa.printf")
    return tuple(found)
