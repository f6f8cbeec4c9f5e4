"""The audit of binaries, on objects that no contract would have let through."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expect import raises_code

from retuned.lab.languages.binary_audit import BinaryAuditFailed, audit

PLAIN = 'extern "C" void kernel(float* y) { y[0] = 1.0f; }\n'
EARLY = "int n; __attribute__((WHEN)) void f() { n = 1; }\n"


def build(folder: Path, source: str, *flags: str) -> Path:
    (folder / "kernel.cpp").write_text(source)
    (folder / "map").write_text("{ global: kernel; local: *; };")
    command = [
        "g++",
        "-O2",
        "-fPIC",
        "-shared",
        "-nostartfiles",
        "-nodefaultlibs",
        "-fno-exceptions",
    ]
    command += ["-fno-asynchronous-unwind-tables", "-Wl,--version-script=map", *flags]
    command += ["kernel.cpp", "-lm", "-lc", "-lgcc", "-o", "kernel.so"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "kernel.so"


@pytest.mark.parametrize(
    "source",
    [
        PLAIN,
        '#include <cmath>\nextern "C" void kernel(float* y) { y[0] = expf(y[1]); }\n',
        '#include <cstring>\nextern "C" void kernel(char* y, long n) { memset(y, 0, n); }\n',
        "static const float table[4] = {1, 2, 3, 4};\n"
        'extern "C" void kernel(float* y) { y[0] = table[(int)y[1] & 3]; }\n',
    ],
)
def test_a_kernel_that_only_computes_passes(source: str, tmp_path: Path) -> None:
    audit(build(tmp_path, source), entry="kernel")


@pytest.mark.parametrize(
    ("source", "flags", "finding"),
    [
        ("int n;\n" + PLAIN.replace("1.0f", "(float)++n"), (), ".bss"),
        ("int n = 7;\n" + PLAIN.replace("1.0f", "(float)++n"), (), ".data"),
        (
            EARLY.replace("WHEN", "constructor") + PLAIN,
            (),
            "init_array",
        ),
        (
            EARLY.replace("WHEN", "destructor") + PLAIN,
            (),
            "fini_array",
        ),
        ("thread_local int n;\n" + PLAIN.replace("1.0f", "(float)++n"), (), ".tbss"),
        (
            'extern "C" int getpid();\n' + PLAIN.replace("1.0f", "(float)getpid()"),
            (),
            "getpid",
        ),
        (
            'extern "C" { static void* f() { return 0; }\n'
            'void g() __attribute__((ifunc("f"))); }\n' + PLAIN + "void h() { g(); }\n",
            (),
            "'g'",
        ),
        (
            'extern "C" __attribute__((noinline, used)) void* memcpy(void* d, const void* s, '
            "unsigned long) { return s ? d : 0; }\n" + PLAIN,
            (),
            "'memcpy'",
        ),
        (PLAIN, ("-Wl,-z,execstack",), "stack"),
        (PLAIN, ("-Wl,-rpath,/tmp",), "DT_R"),
        (PLAIN, ("-Wl,-init,kernel",), "DT_INIT"),
        (PLAIN, ("-Wl,--no-as-needed", "-ldl", "-lpthread", "-lstdc++"), "library"),
    ],
)
def test_state_code_at_load_time_and_foreign_symbols_are_found(
    source: str, flags: tuple[str, ...], finding: str, tmp_path: Path
) -> None:
    with raises_code(BinaryAuditFailed, "binary-audit-failed", finding):
        audit(build(tmp_path, source, *flags), entry="kernel")


def test_a_second_exported_symbol_is_found(tmp_path: Path) -> None:
    path = build(tmp_path, PLAIN)
    with raises_code(BinaryAuditFailed, "binary-audit-failed", "['kernel']", "'other'"):
        audit(path, entry="other")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return build(tmp_path_factory.mktemp("elf"), PLAIN).read_bytes()


@settings(max_examples=200)
@given(data=st.data())
def test_a_damaged_object_is_refused_or_read_and_never_breaks_the_reader(
    honest: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    damaged = bytearray(honest)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    path = tmp_path_factory.getbasetemp() / "damaged.so"
    path.write_bytes(bytes(damaged[:cut]))
    with contextlib.suppress(BinaryAuditFailed):
        audit(path, entry="kernel")


def test_what_is_no_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kernel.so"
    for content in (b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF\x02\x01" + bytes(100)):
        path.write_bytes(content)
        with pytest.raises(BinaryAuditFailed):
            audit(path, entry="kernel")
