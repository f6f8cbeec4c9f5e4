"""Compiling device sources without a device: what comes out, what is refused, what is missing."""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_code, raises_naming
from tests.lab.audit.crafted import code_object
from tests.lab.gpu_cpp.emulator import HERE

from retuned import catalog
from retuned.contract import AxisVar, Definition, DType, Language, Solution, SourceFile, TensorSpec
from retuned.errors import CandidateError, CompileFailed, MissingDependency
from retuned.lab.languages import gpu_compilers, gpu_cpp
from retuned.lab.languages.gpu_compile import LIMITS, version_of
from retuned.lab.languages.gpu_compilers import find_clang, find_nvrtc
from retuned.lab.languages.gpu_cpp import build, gpu_cpp_environment

needs_nvrtc = pytest.mark.skipif(
    find_nvrtc() is None, reason="no libnvrtc; PyTorch for CUDA has it"
)
TENSOR = TensorSpec(shape=("M",), dtype=DType.FLOAT32)
DEFINITION = Definition(
    name="copy",
    op_type="copy",
    axes={"M": AxisVar()},
    inputs={"x": TENSOR},
    outputs={"y": TENSOR},
    reference="def run(x): ...",
)
HEAD = '#include "retuned_device.h"\n'
ENTRY = 'extern "C" __global__ void kernel(const float* x, float* y, index_t M) {\n'
BODY = "  y[block_x() * BLOCK_X + thread_x()] = x[thread_x()];\n}\n"


def solution(text: str, **params: int | str) -> Solution:
    return Solution(
        name="copy",
        definition="copy",
        language=Language.GPU_CPP,
        entry="kernel",
        sources=(SourceFile(path="kernel.cu", content=text),),
        structure="s",
        params={"BLOCK_X": 64, **params},
        grid=("cdiv(M, BLOCK_X)",),
    )


@needs_nvrtc
@pytest.mark.parametrize("name", ["rmsnorm_h4096", "softmax_bf16_n1000"])
def test_every_structure_compiles_for_nvidia_and_its_object_passes_the_audit(
    name: str, tmp_path: Path
) -> None:
    entry = catalog.get(name, language=Language.GPU_CPP)
    for space in entry.spaces:
        made = entry.solution(space.name, space.starts({"M": 8})[0])
        built = build(made, entry.definition, cache_dir=tmp_path, arch="sm_90", shapes=[{"M": 8}])
        assert built.path.suffix == ".cubin"
        assert (built.report.kernel, built.report.arch) == (made.entry, "sm_90")
        assert built.report.threads == made.params["BLOCK_X"]
        assert built.report.scratch_bytes == 0


@pytest.mark.skipif(find_clang() is None, reason="no clang that may know AMD's GPUs")
@pytest.mark.parametrize("name", ["rmsnorm_h4096", "softmax_bf16_n1000", "rmsnorm_fp16_h64"])
def test_every_structure_compiles_for_amd_and_its_object_passes_the_audit(
    name: str, tmp_path: Path
) -> None:
    entry = catalog.get(name, language=Language.GPU_CPP)
    for space in entry.spaces:
        made = entry.solution(space.name, space.starts({"M": 8})[0])
        built = build(made, entry.definition, cache_dir=tmp_path, arch="gfx942", shapes=[{"M": 8}])
        assert (built.report.kernel, built.report.arch) == (made.entry, "gfx942")


@needs_nvrtc
def test_the_same_source_gives_the_same_bytes_and_is_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = solution(HEAD + ENTRY + BODY)
    first = build(made, DEFINITION, cache_dir=tmp_path / "one", arch="sm_90")
    second = build(made, DEFINITION, cache_dir=tmp_path / "two", arch="sm_90")
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.path.name == second.path.name

    def never(*_args: object, **_named: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(gpu_cpp, "_compile", never)
    assert build(made, DEFINITION, cache_dir=tmp_path / "one", arch="sm_90") == first
    other = solution(HEAD + ENTRY + BODY, BLOCK_Y=2)
    with raises_naming(AssertionError, "compiled again"):
        build(other, DEFINITION, cache_dir=tmp_path / "one", arch="sm_90")


@needs_nvrtc
def test_what_is_kept_is_audited_again(tmp_path: Path) -> None:
    made = solution(HEAD + ENTRY + BODY)
    built = build(made, DEFINITION, cache_dir=tmp_path, arch="sm_90")
    built.path.write_bytes(built.path.read_bytes()[:500])
    with pytest.raises(CandidateError) as caught:
        build(made, DEFINITION, cache_dir=tmp_path, arch="sm_90")
    assert caught.value.reason == "binary-audit-failed"


@needs_nvrtc
def test_a_compilers_complaint_names_the_line_and_no_folder(tmp_path: Path) -> None:
    made = solution(HEAD + ENTRY + "  y[0] = x[missing];\n}\n")
    with pytest.raises(CompileFailed) as caught:
        build(made, DEFINITION, cache_dir=tmp_path, arch="sm_90")
    assert 'kernel.cu(3): error: identifier "missing" is undefined' in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


BOMB = "#define B0 v = v * x[0] + y[0];\n" + "".join(
    f"#define B{level + 1} B{level} B{level}\n" for level in range(24)
)
LONG = HEAD + BOMB + ENTRY + "  float v = 0;\n  B24\n  y[0] = v;\n}\n"


@needs_nvrtc
def test_a_source_that_holds_the_compiler_up_is_killed(tmp_path: Path) -> None:
    made = solution(LONG)
    limits = replace(LIMITS, wall_s=1.0, cpu_s=30)
    begin = time.monotonic()
    with raises_code(CompileFailed, "compile-failed", "1 s"):
        build(made, DEFINITION, cache_dir=tmp_path, arch="sm_90", limits=limits)
    assert time.monotonic() - begin < 150.0
    assert not list(tmp_path.iterdir())


@needs_nvrtc
@pytest.mark.parametrize(
    ("text", "params", "reason", "says"),
    [
        (ENTRY + "  extern __shared__ float room[]; y[0] = room[0];\n}\n",
         {"SHARED_BYTES": 240_000}, "over-limit", "over-limit-shared"),
        (ENTRY + "  __shared__ float room[100000]; room[thread_x()] = x[0]; sync();\n"
         "  y[0] = room[7];\n}\n", {}, "", ""),
        (ENTRY.replace("void", "void __launch_bounds__(32)") + BODY, {}, "over-limit",
         "blocks of 64 threads, compiled for 32"),
    ],
)  # fmt: skip
def test_what_no_block_may_have_is_over_the_limit(
    text: str, params: dict[str, int], reason: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(CandidateError) as caught:
        build(solution(HEAD + text, **params), DEFINITION, cache_dir=tmp_path, arch="sm_90")
    assert not reason or caught.value.reason == reason
    assert says in str(caught.value)


@needs_nvrtc
def test_the_environment_names_compiler_options_and_header() -> None:
    found = gpu_cpp_environment()
    assert found.compiler.startswith("nvrtc ")
    assert "--fmad=true" in found.numerics["GPU_CXX_FLAGS"]
    assert len(found.numerics["GPU_CXX_HEADER"]) == 12


# --- AMD's compiler, by its documentation ---------------------------------------------------------


@pytest.fixture(scope="module")
def hiprtc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rocm") / "libhiprtc.so.6"
    words = ["gcc", "-shared", "-fPIC", "-o", str(path), str(HERE / "fake_hiprtc.c"), "-ldl"]
    subprocess.run(words, check=True)
    path.with_name("libhiprtc.so.6.hsaco").write_bytes(code_object())
    return path


@pytest.fixture
def rocm(hiprtc: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(gpu_compilers, "find_hiprtc", lambda: hiprtc)
    return hiprtc


@pytest.mark.usefixtures("rocm")
def test_hiprtc_is_asked_as_documented_and_its_bundle_is_opened(tmp_path: Path) -> None:
    made = solution(HEAD + ENTRY + BODY)
    built = build(made, DEFINITION, cache_dir=tmp_path, arch="gfx942")
    assert built.path.suffix == ".hsaco"
    assert built.path.read_bytes() == code_object()
    assert built.report.arch == "gfx942"


@pytest.mark.usefixtures("rocm")
def test_hiprtcs_complaint_is_the_candidates_fault(tmp_path: Path) -> None:
    made = solution(HEAD + ENTRY + "  // no such thing\n" + BODY)
    with raises_code(
        CompileFailed, "compile-failed", "kernel.cu:3:1: error: use of undeclared identifier"
    ) as caught:
        build(made, DEFINITION, cache_dir=tmp_path, arch="gfx942")
    assert "/some/where" not in str(caught.value)


@pytest.mark.usefixtures("rocm")
def test_an_object_for_another_architecture_fails_the_audit(tmp_path: Path) -> None:
    with pytest.raises(CompileFailed):  # the played compiler knows gfx942 alone
        build(solution(HEAD + ENTRY + BODY), DEFINITION, cache_dir=tmp_path, arch="gfx950")


def test_the_version_is_the_librarys_own(rocm: Path) -> None:
    compiler = gpu_compilers.compiler_for("gfx942")
    assert (compiler.kind, compiler.path) == ("hiprtc", str(rocm))
    assert version_of(compiler) == "hiprtc 6.3"


def test_a_library_that_is_no_compiler_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "libhiprtc.so"
    path.write_bytes(b"no library")
    with raises_naming(MissingDependency, "hiprtc", str(path), "OSError"):
        version_of(gpu_compilers.Compiler(kind="hiprtc", path=str(path)))


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("find_nvrtc", "find_hiprtc", "find_clang"):
        monkeypatch.setattr(gpu_compilers, name, lambda: None)
    with raises_naming(MissingDependency, "libnvrtc", "pip install torch"):
        gpu_compilers.compiler_for("sm_90")
    with raises_naming(MissingDependency, "libhiprtc", "clang-19", "lld-19"):
        gpu_compilers.compiler_for("gfx942")


def test_the_newest_library_of_a_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    for name in ("libnvrtc.so.9.2", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc-builtins.so.99"):
        (folder / name).touch()
    monkeypatch.setattr("sys.path", [str(tmp_path), "/nowhere"])
    find_nvrtc.cache_clear()
    try:
        assert find_nvrtc() == folder / "libnvrtc.so.13"
    finally:
        find_nvrtc.cache_clear()
    assert shutil.which("gcc"), "the tests above compile with it"
