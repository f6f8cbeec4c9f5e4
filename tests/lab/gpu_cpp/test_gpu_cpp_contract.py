"""The contract over device sources: honest ones pass, and every way around it we know fails."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_code

from retuned import catalog
from retuned.contract import (
    AxisConst,
    AxisVar,
    Definition,
    DType,
    Language,
    Solution,
    SourceFile,
    TensorSpec,
)
from retuned.lab.languages.cpp_lexer import ContractViolated
from retuned.lab.languages.gpu_cpp_contract import check_contract, header_names

HEAD = '#include "retuned_device.h"\n'
ENTRY = 'extern "C" __global__ void scale(const float* x, float* y, index_t M, index_t N) {\n'
BODY = "  const index_t at = block_x() * BLOCK_X + thread_x();\n  if (at < M * N) y[at] = x[at];\n"
HONEST = f"{HEAD}{ENTRY}{BODY}}}\n"


def definition(dtype: DType = DType.FLOAT32) -> Definition:
    tensor = TensorSpec(shape=("M", "N"), dtype=dtype)
    return Definition(
        name="scale",
        op_type="scale",
        axes={"M": AxisVar(), "N": AxisConst(value=8)},
        inputs={"x": tensor},
        outputs={"y": tensor},
        reference="def run(x): ...",
    )


def solution(text: str, *, path: str = "scale.cu", **changes: Any) -> Solution:
    body: dict[str, Any] = {
        "name": "scale",
        "definition": "scale",
        "language": Language.GPU_CPP,
        "entry": "scale",
        "sources": (SourceFile(path=path, content=text),),
        "structure": "s",
        "params": {"BLOCK_X": 128},
        "grid": ("cdiv(M * N, BLOCK_X)",),
    }
    return Solution.model_validate({**body, **changes})


def inside(line: str) -> str:
    return f"{HEAD}{ENTRY}{BODY}  {line}\n}}\n"


def outside(text: str) -> str:
    return f"{HEAD}{text}\n{ENTRY}{BODY}}}\n"


def refused(text: str, **changes: Any) -> str:
    with pytest.raises(ContractViolated) as caught:
        check_contract(solution(text, **changes), definition(), shapes=[{"M": 3}])
    return str(caught.value)


def accepted(text: str, **changes: Any) -> None:
    check_contract(solution(text, **changes), definition(), shapes=[{"M": 3}])


@pytest.mark.parametrize("name", ["rmsnorm_h64", "rmsnorm_bf16_h4096", "softmax", "softmax_n100"])
def test_every_structure_of_the_catalog_is_within_the_contract(name: str) -> None:
    entry = catalog.get(name, language=Language.GPU_CPP)
    assert len(entry.spaces) == 2
    shape = {axis: 5 for axis in entry.definition.variable_axes}
    for space in entry.spaces:
        for point in space.starts(shape):
            made = entry.solution(space.name, point)
            launch = check_contract(made, entry.definition, shapes=[shape])
            assert launch.grid_at(list(entry.definition.lengths(shape).values())) == (5, 1, 1)
            assert launch.block == (point["BLOCK_X"], 1, 1)


@pytest.mark.parametrize(
    "text",
    [
        HONEST,
        HONEST.replace("void scale", "void __launch_bounds__(BLOCK_X, 2) scale"),
        HONEST.replace("const float* x", "const float* __restrict__ x"),
        HONEST.replace("index_t M", "long long M"),
        outside("__device__ __forceinline__ float half_of(float v) { return 0.5f * v; }"),
        outside("template <int N>\n__device__ float at(const float* x) { return x[N]; }"),
        outside("struct pair { float a, b; };\nusing both = pair;\nenum { FEW = 4 };"),
        outside("#define TWICE(v) (2.0f * (v))\n#if BLOCK_X > 64\n#define MORE 1\n#endif"),
        outside('static_assert(BLOCK_X % 32 == 0, "whole warps");'),
        inside("__shared__ float room[BLOCK_X]; room[thread_x()] = expf(1.0f); sync();"),
        inside("auto twice = [](float v) { return 2.0f * v; }; y[0] = twice(x[0]);"),
        inside("#pragma unroll 4\n  for (int i = 0; i < 4; i++) y[i] += warp_sum(x[i]);"),
    ],
)
def test_what_kernels_are_made_of_is_allowed(text: str) -> None:
    accepted(text)


def test_a_dynamic_shared_array_is_allowed_where_its_bytes_are_given() -> None:
    text = inside("extern __shared__ __align__(16) float room[];")
    accepted(text, params={"BLOCK_X": 128, "SHARED_BYTES": 1024})
    assert "SHARED_BYTES is not given" in refused(text)


def test_a_parameter_may_name_the_element_type() -> None:
    text = HONEST.replace("const float*", "const TYPE*").replace("float* y", "TYPE* y")
    made = solution(text, params={"BLOCK_X": 128, "TYPE": "bf16"})
    check_contract(made, definition(DType.BFLOAT16))
    with raises_code(ContractViolated, "contract-violated", "'const TYPE * x'", "'scale'"):
        check_contract(made, definition(DType.FLOAT16))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        # what reaches beyond the kernel
        (inside('asm volatile("trap;");'), "asm"),
        (inside('__asm__("trap;");'), "__asm__"),
        (inside('printf("leak");'), "not allowed"),
        (inside("void* p = malloc(8);"), "malloc"),
        (inside("long long t = clock64();"), "clock64"),
        (inside("__nanosleep(100);"), "__nanosleep"),
        (inside("__trap();"), "__trap"),
        (inside("scale<<<1, 1>>>(x, y, M, N);"), "launches no other"),
        (inside("cudaLaunchDevice(0, 0, 0, 0, 0, 0);"), "cudaLaunchDevice"),
        (inside("surf2Dwrite(1, 2, 3, 4);"), "surf2Dwrite"),
        (inside("unsigned m = __activemask();"), "__activemask"),
        (inside("__builtin_amdgcn_s_sendmsg(1, 0);"), "__builtin_amdgcn_s_sendmsg"),
        (inside("__ockl_hostcall_internal(0);"), "__ockl_hostcall_internal"),
        # what keeps something between launches
        (outside("__device__ int calls;"), "__device__ is only for functions"),
        (outside("__device__ int calls = 0;"), "__device__ is only for functions"),
        (outside("__device__ float table[4];"), "__device__ is only for functions"),
        (outside("__managed__ int calls;"), "__managed__"),
        (outside("__constant__ float table[4];"), "__constant__"),
        (outside("constexpr float table = 3.0f;"), "outside functions"),
        (inside("static int calls = 0;"), "static"),
        (outside("extern int elsewhere;"), "extern is only for"),
        (outside("thread_local int calls;"), "thread_local"),
        # host code, other entries, attributes
        (outside("__host__ void run() {}"), "__host__"),
        (outside('extern "C" __global__ void other(float* y) {}'), "extern is only for"),
        (outside("__global__ void other(float* y) {}"), "only the entry is __global__"),
        (outside('__attribute__((section("x"))) int f();'), "__attribute__"),
        (outside("[[gnu::constructor]] void f();"), "gnu"),
        (outside("__device__ void f() __asm__(\"scale\");"), "__asm__"),
        # disguises
        (outside("#define A(x, y) x ## y"), "may not make tokens"),
        (outside("#define S(x) #x"), "may not make tokens"),
        (outside("#define A cloc\\u006b64"), "may not make tokens"),
        (outside("#define F printf"), "printf"),
        (outside("#define K __device__ int kept;\nK"), "__device__"),
        (outside("#define K stat\\\nic"), "static"),
        (outside("#define return if"), "capitals"),
        (outside("#define BLOCK_X 32"), "is a name of"),
        (outside("#define FETCH tex2D(1, 2)"), "tex2D"),
        (inside("y[0] = 2.0f * tex2D(1, 2);"), "tex2D"),
        (inside("int v = 1 or printf(0);"), "not allowed"),
        (inside("int \u0430 = 1;"), "ASCII"),
        (inside("y[0] = R\"(x)\"[0];"), "raw strings"),
        (inside("y[0] = 'a';"), "no use"),
        (outside("#include <cuda_runtime.h>"), "allow-list"),
        (outside('#include "/etc/passwd"'), "allow-list"),
        (outside('#include "other.h"'), "allow-list"),
        (outside("#pragma nv_diag_suppress 1"), "#pragma"),
        (outside("#line 7"), "directive"),
        (outside("#if __has_include(<x>)\n#endif"), "not allowed"),
        (outside("#if __CUDA_ARCH__ == 900\n#endif"), "__CUDA_ARCH__"),
        # the entry itself
        (HONEST.replace("const float* x", "float* x"), "const float* x"),
        (HONEST.replace("float* y", "const float* y"), "float* y"),
        (HONEST.replace("float* y", "double* y"), "float* y"),
        (HONEST.replace("float* y", "float** y"), "float* y"),
        (HONEST.replace("index_t M", "int M"), "index_t M"),
        (HONEST.replace(", index_t N", ""), "has 3 parameters; they are x, y, M, N"),
        (HONEST.replace("index_t N", "index_t N, float* more"), "has 5 parameters"),
        (HONEST.replace("scale(", "other("), "extern is only for"),
        (HONEST.replace(HEAD, ""), 'must say #include "retuned_device.h"'),
    ],
)  # fmt: skip
def test_what_is_outside_the_contract_is_refused(text: str, says: str) -> None:
    assert says in refused(text)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"params": {}}, "the parameter BLOCK_X"),
        ({"params": {"BLOCK_X": 2048}}, "BLOCK_X=2048"),
        ({"params": {"BLOCK_X": "many"}}, "BLOCK_X=many"),
        ({"params": {"BLOCK_X": 100}}, "not whole warps"),
        ({"params": {"BLOCK_X": 512, "BLOCK_Y": 4}}, "larger than 1024"),
        ({"params": {"BLOCK_X": 128, "SHARED_BYTES": -1}}, "SHARED_BYTES=-1"),
        ({"params": {"BLOCK_X": 128, "lower": 1}}, "not plain"),
        ({"params": {"BLOCK_X": 128, "N": 1}}, "and a parameter"),
        ({"params": {"BLOCK_X": 128, "T": "asm"}}, "is not a value"),
        ({"params": {"BLOCK_X": 128, "T": "static"}}, "is not a value"),
        ({"params": {"BLOCK_X": 128, "T": "a b"}}, "not plain"),
        ({"params": {"BLOCK_X": 128, "WARP_SIZE": 16}}, "name of something"),
        ({"grid": ("M", "65536 * M")}, "wider than any device"),
        ({"grid": ("2147483647",)}, "wider than any device"),
        ({"grid": ("M - 3",)}, "gives 0"),
        ({"grid": ("__import__('os')",)}, "calls '__import__'"),
        ({"path": "scale.py"}, ".cu, .hip or .cpp"),
    ],
)
def test_launch_data_that_no_device_takes_is_refused(changes: dict[str, Any], says: str) -> None:
    assert says in refused(HONEST, **changes)


def test_our_header_cannot_be_replaced() -> None:
    files = [SourceFile(path="scale.cu", content=HONEST)]
    files.append(SourceFile(path="retuned_device.h", content=""))
    assert "is ours" in refused(HONEST, sources=tuple(files))


def test_own_headers_are_checked_like_the_source() -> None:
    main = SourceFile(path="scale.cu", content=HONEST.replace(HEAD, HEAD + '#include "mine.h"\n'))
    fine = SourceFile(path="mine.h", content="struct pair { float a, b; };\n")
    bad = SourceFile(path="mine.h", content="__device__ int kept;\n")
    accepted(HONEST, sources=(main, fine))
    assert "__device__ is only for" in refused(HONEST, sources=(main, bad))


def test_the_headers_comments_give_no_names_away() -> None:
    assert {"thread_x", "warp_sum", "bf16", "WARP_SIZE"} <= header_names()
    assert not {"vendors", "approximate", "NVRTC"} & header_names()


@given(st.text(alphabet="{}()[]<>=;,*&#\"'\\\n abextern__device__static", max_size=60))
def test_no_text_breaks_the_checker(text: str) -> None:
    with contextlib.suppress(ContractViolated):
        accepted(outside(text))
