"""CPU kernels that cheat, each in one sentence, each refused with the reason that fits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from retuned.contract import Solution
from retuned.stages.verdict import Reason, Status, Verdict

LINEAR = "linear_w8_n48_k96"
SOFTMAX = "softmax_n96"

HEAD = """#include <cmath>
#include <cstdint>
#include <cstring>
"""
ENTRY = """
extern "C" void kernel(void* const* tensors, const int64_t* axes, void* scratch, int64_t part,
                       int64_t parts) {
  const float* x = (const float*)tensors[0];
  const int8_t* w = (const int8_t*)tensors[1];
  const float* scale = (const float*)tensors[2];
  float* y = (float*)tensors[3];
  const int64_t M = axes[0], N = axes[1], K = axes[2];
"""
TWO_TENSORS = """
extern "C" void kernel(void* const* tensors, const int64_t* axes, void* scratch, int64_t part,
                       int64_t parts) {
  const float* x = (const float*)tensors[0];
  float* y = (float*)tensors[1];
  const int64_t M = axes[0], N = axes[1];
"""
HONEST = """
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < K; ++k) sum += x[m * K + k] * (float)w[n * K + k];
      y[m * N + n] = sum * scale[n];
    }
"""
HONEST_SOFTMAX = """
  for (int64_t m = 0; m < M; ++m) {
    float top = x[m * N], sum = 0;
    for (int64_t n = 1; n < N; ++n) top = x[m * N + n] > top ? x[m * N + n] : top;
    for (int64_t n = 0; n < N; ++n) sum += (y[m * N + n] = expf(x[m * N + n] - top));
    for (int64_t n = 0; n < N; ++n) y[m * N + n] /= sum;
  }
"""


def linear(body: str, *, before: str = "", head: str = HEAD) -> str:
    return head + before + ENTRY + body + "}\n"


def softmax(body: str, *, before: str = "") -> str:
    return HEAD + before + TWO_TENSORS + body + "}\n"


def changed(old: str, new: str, *, source: str = HONEST) -> str:
    assert old in source
    return source.replace(old, new)


WITHOUT_COMPUTING = {
    "does nothing and hopes for a stale output": ("", Reason.OUTPUT_NOT_WRITTEN),
    "writes only the first rows": (
        changed("m < M", "m < (M + 1) / 2"),
        Reason.OUTPUT_NOT_WRITTEN,
    ),
    "writes all but the last element": (
        changed("n < N; ++n) {", "n < N - (m == M - 1); ++n) {"),
        Reason.OUTPUT_NOT_WRITTEN,
    ),
    "returns its input": (
        "for (int64_t i = 0; i < M * N; ++i) y[i] = x[i % (M * K)];",
        Reason.WRONG_OUTPUT,
    ),
    "fills the output with zeros": ("std::memset(y, 0, M * N * 4);", Reason.WRONG_OUTPUT),
    "skips one per cent of the sum": (
        changed("k < K; ++k", "k < K - 1; ++k"),
        Reason.WRONG_OUTPUT,
    ),
    "sums in bfloat16": (
        changed(
            "sum += x[m * K + k] * (float)w[n * K + k];",
            "{ sum += x[m * K + k] * (float)w[n * K + k]; uint32_t b; std::memcpy(&b, &sum, 4);"
            " b = (b + 0x8000u) & 0xffff0000u; std::memcpy(&sum, &b, 4); }",
        ),
        Reason.WRONG_OUTPUT,
    ),
    "rounds its inputs to eleven bits": (
        changed("x[m * K + k] *", "(float)(_Float16)x[m * K + k] *"),
        Reason.WRONG_OUTPUT,
    ),
    "is right for few rows and wrong for many": (
        changed("sum * scale[n]", "sum * scale[n] * (M > 40 ? 1.001f : 1.0f)"),
        Reason.WRONG_OUTPUT,
    ),
    "is right for even rows and wrong where a tile has a rest": (
        changed("sum * scale[n]", "sum * scale[n] * (M % 4 == 3 && m == M - 1 ? 0.9f : 1.0f)"),
        Reason.WRONG_OUTPUT,
    ),
    "turns NaN into zero": (
        changed("y[m * N + n] = sum * scale[n]", "y[m * N + n] = sum == sum ? sum * scale[n] : 0"),
        Reason.NAN_MISMATCH,
    ),
}

MEMORY = {
    "writes one element behind its output": (
        HONEST + "y[M * N] = 1.0f;",
        Reason.OUT_OF_BOUNDS,
    ),
    "writes one element before its output": (HONEST + "y[-1] = 1.0f;", Reason.OUT_OF_BOUNDS),
    "writes far behind its scratch": (
        HONEST + "((float*)scratch)[32] = 1.0f;",
        Reason.OUT_OF_BOUNDS,
    ),
    "depends on what lies behind its input": (
        changed("y[m * N + n] = sum", "y[m * N + n] = (sum + x[M * K])"),
        Reason.OUT_OF_BOUNDS,
    ),
    "reads behind its weights and throws the value away": (
        changed("y[m * N + n] = sum", "y[m * N + n] = (w[N * K + 4096] == 77 ? sum : sum)")
        + "float z = 0; for (int64_t i = 0; i < 8192; ++i) z += w[N * K + i];"
        + "if (z == 0.12345f) y[0] = 0;",
        Reason.OUT_OF_BOUNDS,
    ),
    "changes its input": (HONEST + "((float*)x)[0] = 0.0f;", Reason.INPUT_MODIFIED),
    "zeroes its input before it computes": (
        "std::memset((void*)x, 0, M * K * 4);" + HONEST,
        Reason.INPUT_MODIFIED,
    ),
    "follows a null pointer": ("*(float*)(8 * (M > 0)) = 1.0f;" + HONEST, Reason.CRASHED),
    "needs more stack than there is": (
        "float big[1 << 26]; for (int64_t i = 0; i < (1 << 26); i += 512) big[i] = x[0];"
        "for (int64_t i = 0; i < M * N; ++i) y[i] = big[(i * 512) % (1 << 26)];",
        Reason.CRASHED,
    ),
    "never ends": (
        "for (uint64_t i = 1 + 2 * (x == nullptr); i; i += 2) y[0] += (float)i;" + HONEST,
        Reason.TIMED_OUT,
    ),
    "answers with the address of its output": (
        changed("sum * scale[n]", "sum * scale[n] * ((uintptr_t)y % 4096 ? 1.0000002f : 1.0f)"),
        Reason.NONDETERMINISTIC,
    ),
}

CONTRACT = {
    "keeps its answer in a static": linear("static float cache[64]; cache[0] += x[0];" + HONEST),
    "counts its calls in a static": linear("static int64_t calls; ++calls;" + HONEST),
    "opens a file": linear(HONEST, head="#include <fstream>\n" + HEAD),
    "includes a device that never ends": linear(HONEST, head='#include "/dev/zero"\n' + HEAD),
    "includes through a macro": linear(
        HONEST, head='#define WHERE "/etc/passwd"\n#include WHERE\n' + HEAD
    ),
    "pastes a forbidden name together": linear(
        'PASTE(sys, tem)("id");' + HONEST, before="#define PASTE(a, b) a##b\n"
    ),
    "hides a forbidden name behind a line splice": linear("sys\\\ntem(0);" + HONEST),
    "writes assembly": linear('asm volatile("syscall");' + HONEST),
    "writes assembly by its other name": linear('__asm__("syscall");' + HONEST),
    "reads the clock": linear(
        "y[0] = (float)__rdtsc();" + HONEST, head=HEAD + "#include <immintrin.h>\n"
    ),
    "changes rounding for everybody": linear(
        "_mm_setcsr(0x9fc0);" + HONEST, head=HEAD + "#include <immintrin.h>\n"
    ),
    "runs before it is called": linear(
        HONEST, before="__attribute__((constructor)) void early() {}\n"
    ),
    "hides an attribute behind arguments": linear(
        HONEST, before="__attribute__((aligned((16)), constructor)) void early() {}\n"
    ),
    "spells an attribute with spaces": linear(
        HONEST, before="[ [gnu::constructor] ] void early() {}\n"
    ),
    "chooses its code at load time": linear(
        HONEST, before='void f(); __attribute__((ifunc("f"))) void g();\n'
    ),
    "names a section": linear(
        HONEST, before='__attribute__((section(".init_array"))) void* early = 0;\n'
    ),
    "offers a weak memcpy to others": linear(
        HONEST,
        before="__attribute__((weak)) void* memcpy(void* d, const void*, size_t) { return d; }\n",
    ),
    "declares somebody else's function": linear(
        "getpid();" + HONEST, before='extern "C" int getpid(void);\n'
    ),
    "claims to be a system header": linear(
        HONEST, before='#line 1 "/usr/include/x.h"\nint system(const char*);\n'
    ),
    "disables what the compiler would say": linear(HONEST, before="#pragma GCC poison foo\n"),
    "looks at the caller": linear("y[0] = (float)(uintptr_t)__builtin_return_address(0);" + HONEST),
    "throws": linear("if (M < 0) throw 1;" + HONEST),
    "uses a raw string": linear(HONEST, before='const char* s = R"(x)";\n'),
    "uses a digraph directive": linear(HONEST, head="%:include <unistd.h>\n" + HEAD),
    "has a pragma inside a macro": linear('_Pragma("GCC optimize (3)")' + HONEST),
}

BINARY = {
    "keeps state in an inline variable": linear(
        "++calls;" + HONEST, before="inline int64_t calls;\n"
    ),
    "keeps state in a namespace": linear(
        "if (++calls > 9) return;" + HONEST, before="namespace { int64_t calls; }\n"
    ),
    "starts from a value computed at load time": linear(
        changed("float sum = 0", "float sum = start * 0"),
        before="float start = sqrtf((float)(uintptr_t)&start);\n",
    ),
    "fills in a replacement for memset": linear(
        HONEST, before="void* memset(void* d, int, size_t) noexcept { return d; }\n"
    ),
}

COMPILER = {
    "does not compile": linear("return 1;" + HONEST),
    "recurses in templates without end": linear(
        HONEST,
        before="template <int N> struct T { static constexpr int v = T<N + 1>::v; };\n"
        "const int bomb = T<0>::v;\n",
    ),
    "doubles its templates until the compiler gives up": linear(
        HONEST,
        before="template <int A, int B> struct X { static constexpr int v = X<A - 1, B * 2>::v"
        " + X<A - 1, B * 2 + 1>::v; };\n"
        "template <int B> struct X<0, B> { static constexpr int v = 1; };\n"
        "const int bomb = X<26, 0>::v;\n",
    ),
    "computes for ever at compile time": linear(
        HONEST,
        before="constexpr int f(int n) { return n < 2 ? 1 : f(n - 1) + f(n - 2); }\n"
        "constexpr int bomb = f(60);\n",
    ),
    "calls what is not there": linear("missing();" + HONEST, before="void missing();\n"),
}

Make = Callable[..., Solution]
Judge = Callable[..., Verdict]


def refused(verdict: Verdict, *reasons: Reason) -> None:
    assert verdict.status is Status.REJECT, verdict
    assert verdict.reason in reasons, (verdict.reason, verdict.detail)


@pytest.mark.parametrize("sentence", WITHOUT_COMPUTING)
def test_a_kernel_that_does_not_compute_is_refused(
    sentence: str, candidate: Make, judged: Judge
) -> None:
    body, reason = WITHOUT_COMPUTING[sentence]
    refused(judged(candidate(linear(body), definition=LINEAR)), reason)


@pytest.mark.parametrize("sentence", MEMORY)
def test_a_kernel_that_leaves_its_memory_or_never_ends_is_refused(
    sentence: str, candidate: Make, judged: Judge
) -> None:
    body, reason = MEMORY[sentence]
    scratch = 64 if "scratch" in sentence else 0
    solution = candidate(linear(body), definition=LINEAR, scratch_bytes=scratch)
    refused(judged(solution), reason)


@pytest.mark.parametrize("sentence", CONTRACT)
def test_a_source_outside_the_contract_is_refused_before_it_runs(
    sentence: str, candidate: Make, judged: Judge
) -> None:
    verdict = judged(candidate(CONTRACT[sentence], definition=LINEAR))
    refused(verdict, Reason.CONTRACT)
    assert verdict.gate == "G1"


@pytest.mark.parametrize("sentence", BINARY)
def test_a_binary_that_keeps_state_or_runs_at_load_time_is_refused(
    sentence: str, candidate: Make, judged: Judge
) -> None:
    verdict = judged(candidate(BINARY[sentence], definition=LINEAR))
    refused(verdict, Reason.BINARY_AUDIT)
    assert verdict.gate == "G2"


@pytest.mark.parametrize("sentence", COMPILER)
def test_a_source_that_wears_out_the_compiler_is_refused(
    sentence: str, candidate: Make, judged: Judge
) -> None:
    verdict = judged(candidate(COMPILER[sentence], definition=LINEAR))
    refused(verdict, Reason.COMPILE_FAILED)


def test_a_compile_error_names_no_path_of_this_machine(candidate: Make, judged: Judge) -> None:
    verdict = judged(candidate(COMPILER["does not compile"], definition=LINEAR))
    assert "error" in verdict.detail
    assert "/" not in verdict.detail.replace("</", "")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("x[m * N + n] - top", "x[m * N + n]", (Reason.NAN_MISMATCH, Reason.WRONG_OUTPUT)),
        ("expf(x[m * N + n] - top)", "expf((x[m * N + n] - top) * 0.999f)", (Reason.WRONG_OUTPUT,)),
        ("/= sum", "/= sum == sum ? sum : 1.0f", (Reason.NAN_MISMATCH, Reason.WRONG_OUTPUT)),
    ],
    ids=["no max is subtracted", "a cheaper exponential", "NaN is swallowed"],
)
def test_a_softmax_that_cuts_a_corner_is_refused(
    old: str, new: str, reason: tuple[Reason, ...], candidate: Make, judged: Judge
) -> None:
    body = changed(old, new, source=HONEST_SOFTMAX)
    refused(judged(candidate(softmax(body), definition=SOFTMAX)), *reason)


def test_a_kernel_that_wants_more_scratch_than_the_lab_has_is_refused(
    candidate: Make, judged: Judge
) -> None:
    solution = candidate(
        linear(HONEST),
        definition=LINEAR,
        scratch_bytes=2**30,
        params={"THREADS": 64},
    )
    refused(judged(solution), Reason.OUT_OF_MEMORY, Reason.CONTRACT)


def test_a_kernel_that_asks_for_another_layout_of_an_input_is_refused(
    candidate: Make, judged: Judge
) -> None:
    solution = candidate(linear(HONEST), definition=LINEAR, layouts={"x": "transposed"})
    refused(judged(solution), Reason.CONTRACT)


def test_a_layout_that_does_not_fit_the_weights_is_refused(candidate: Make, judged: Judge) -> None:
    solution = candidate(linear(HONEST), definition=LINEAR, layouts={"wq": "panels-7"})
    refused(judged(solution), Reason.CONTRACT)


def test_a_parameter_that_smuggles_in_options_is_refused(candidate: Make, judged: Judge) -> None:
    solution = candidate(linear(HONEST), definition=LINEAR, params={"A": "1 -include /etc/passwd"})
    refused(judged(solution), Reason.CONTRACT)


def test_a_kernel_that_replays_its_scratch_never_wins(candidate: Make, judged: Judge) -> None:
    body = (
        "float* kept = (float*)scratch; bool same = true;"
        "for (int64_t k = 0; k < 8; ++k) same &= kept[k] == x[k];"
        "if (same) { std::memcpy(y, kept + 8, M * N * 4); return; }"
        + HONEST
        + "std::memcpy(kept, x, 32); std::memcpy(kept + 8, y, M * N * 4);"
    )
    solution = candidate(linear(body), definition=LINEAR, scratch_bytes=32 + 64 * 48 * 4)
    assert judged(solution).status is not Status.PROMOTE


def test_an_honest_but_slow_kernel_is_refused_as_slower(candidate: Make, judged: Judge) -> None:
    refused(judged(candidate(linear(HONEST), definition=LINEAR)), Reason.SLOWER)
