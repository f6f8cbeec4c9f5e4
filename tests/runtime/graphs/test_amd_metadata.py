"""Where arguments lie, as AMD's code objects say it themselves."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.runtime.graphs.amd_metadata import object_layout
from retuned.runtime.schema import Refused


def text(value: str) -> bytes:
    data = value.encode()
    return (bytes([0xA0 | len(data)]) if len(data) < 32 else bytes([0xD9, len(data)])) + data


def packed(value: Any) -> bytes:
    """MessagePack of what the notes hold."""
    if isinstance(value, dict):
        return bytes([0xDE]) + struct.pack(">H", len(value)) + b"".join(
            text(name) + packed(each) for name, each in value.items()
        )  # fmt: skip
    if isinstance(value, list):
        return bytes([0x90 | len(value)]) + b"".join(map(packed, value))
    if isinstance(value, str):
        return text(value)
    return bytes([value]) if value < 128 else bytes([0xCD]) + struct.pack(">H", value)


def code_object(metadata: bytes, *, owner: bytes = b"AMDGPU\0") -> bytes:
    """An ELF file with one section, of notes."""
    name = owner.ljust(-(-len(owner) // 4) * 4, b"\0")
    note = struct.pack("<III", len(owner), len(metadata), 32) + name + metadata
    note += bytes(-len(note) % 8)
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", head, 40, 64 + len(note))
    struct.pack_into("<HH", head, 58, 64, 1)
    section = bytearray(64)
    struct.pack_into("<I", section, 4, 7)
    struct.pack_into("<QQ", section, 24, 64, len(note))
    return bytes(head) + note + bytes(section)


def argument(offset: int, size: int, kind: str = "by_value") -> dict[str, Any]:
    return {".offset": offset, ".size": size, ".value_kind": kind}


GOOD = {
    "amdhsa.version": [1, 2],
    "amdhsa.kernels": [
        {".name": "other", ".args": []},
        {
            ".name": "scale",
            ".args": [
                argument(0, 8, "global_buffer"),
                argument(8, 4),
                argument(16, 8, "global_buffer"),
                argument(24, 4, "hidden_block_count_x"),
                argument(300, 8, "hidden_queue_ptr"),
            ],
        },
    ],
}


def test_explicit_arguments_are_found_and_hidden_ones_left_out() -> None:
    assert object_layout(code_object(packed(GOOD)), "scale") == ((0, 8), (8, 4), (16, 8))
    assert object_layout(code_object(packed(GOOD)), "other") == ()


@pytest.mark.parametrize(
    "image",
    [
        b"",
        b"no code object at all",
        code_object(packed(GOOD), owner=b"GNU\0"),
        code_object(packed(GOOD)[:-20]),
        code_object(packed({"amdhsa.kernels": 7})),
        code_object(packed({"amdhsa.kernels": [{".name": "scale", ".args": [{}]}]})),
        code_object(
            packed({"amdhsa.kernels": [{".name": "scale", ".args": [argument(8, 8)] * 2}]})
        ),
        code_object(b"\x91" * 200),
        code_object(packed({"amdhsa.kernels": []})),
    ],
)
def test_an_object_that_does_not_say_is_unknown(image: bytes) -> None:
    with pytest.raises(Refused) as caught:
        object_layout(image, "scale")
    assert caught.value.reason == "layout-unknown"


@given(data=st.binary(max_size=200), cut=st.integers(0, 400))
def test_whatever_an_object_holds_it_is_read_or_refused(data: bytes, cut: int) -> None:
    for image in (code_object(data), code_object(packed(GOOD))[:cut] + data):
        with contextlib.suppress(Refused):
            object_layout(image, "scale")


def test_what_triton_compiles_for_amd_says_where_its_arguments_lie() -> None:
    from retuned.runtime.triton.launch import TritonKernel

    triton: Any = pytest.importorskip("triton")
    if triton.knobs.runtime.interpret:
        pytest.skip("the interpreter compiles nothing")
    source = """import triton
import triton.language as tl


@triton.jit
def scale(x, y, M, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < M
    tl.store(y + at, tl.load(x + at, mask=inside) * 2, mask=inside)
"""
    kernel = TritonKernel(source, entry="scale", params={"BLOCK": 64}, grid=["cdiv(M, BLOCK)"],
                          tensors=["x", "y"], axes=["M"])  # fmt: skip
    target = triton.backends.compiler.GPUTarget("hip", "gfx942", 64)
    compiled = kernel.cross_compile(target, [100], dtypes=["float32", "float32"])
    layout = object_layout(compiled.asm["hsaco"], "scale")
    assert layout[:3] == ((0, 8), (8, 8), (16, 4))
    assert {size for _, size in layout[3:]} <= {8}, "Triton's own workspaces"
