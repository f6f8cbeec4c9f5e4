"""Sources of C++ variants that cheat, each in one sentence."""

from __future__ import annotations

from typing import Any

from tests.hostile.cheats import Cheat

from retuned.contract import Language, Solution, SourceFile
from retuned.stages.verdict import Reason

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


# What the numbers of the list ask for beyond the above.
MORE_WITHOUT_COMPUTING = {
    "fills in the constant that was right once": (
        "for (int64_t i = 0; i < M * N; ++i) y[i] = 0.0123f;",
        Reason.WRONG_OUTPUT,
    ),
    "answers with the sum of its input": (
        "float all = 0; for (int64_t i = 0; i < M * K; ++i) all += x[i];"
        "for (int64_t i = 0; i < M * N; ++i) y[i] = all;",
        Reason.WRONG_OUTPUT,
    ),
    "computes nothing at the smallest shape": (
        "if (M == 4) return;" + HONEST,
        Reason.OUTPUT_NOT_WRITTEN,
    ),
    "mixes its neighbours' lowest bits into every row": (
        changed(
            "y[m * N + n] = sum * scale[n]",
            "float beside = x[(m + 1) % M * K + n]; uint32_t bits; std::memcpy(&bits, &beside, 4);"
            " float mix = beside != rintf(beside) ? 1.0f + (float)(bits & 7u) * 1.2e-7f : 1.0f;"
            " y[m * N + n] = sum * scale[n] * mix",
        ),
        Reason.ROW_DEPENDENT,
    ),
}
POISONED = (
    "uint32_t seen; std::memcpy(&seen, y, 4);"
    "bool known = seen == 0xffffffffu || seen == 0x5a5a5a5au;"
)
MORE_MEMORY = {
    "computes only where it sees what the judge fills outputs with": (
        POISONED + "if (!known) { y[0] = 1.0f; return; }" + HONEST,
        Reason.OUT_OF_BOUNDS,
    ),
    "looks for the answer in the memory around it": (
        HONEST + "const float* at = y; while (*at != 42.4242f) at += 512; y[0] += at == x ? 1 : 0;",
        Reason.CRASHED,
    ),
    "starts from what its scratch holds": (
        changed("float sum = 0", "float sum = ((float*)scratch)[n % 16]"),
        Reason.OUT_OF_BOUNDS,
    ),
}
RACE = """
  const int64_t from = K * part / parts, to = K * (part + 1) / parts;
  if (part + 1 == parts) {
    float wait = x[0];
    for (int64_t i = 0; i < 40000000; ++i) wait = wait * 0.999f + 0.5f;
    for (int64_t i = 0; i < M * N; ++i) y[i] = wait == -1.0f ? 1.0f : 0.0f;
  }
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n)
      for (int64_t k = from; k < to; ++k)
        y[m * N + n] += x[m * K + k] * (float)w[n * K + k] * scale[n];
"""
"""Both parts add to one output, and the last to come empties it first."""

MORE_CONTRACT = {
    "allocates, and hopes for an answer that was freed": linear(
        "float* old = (float*)malloc(M * N * 4); std::memcpy(y, old, M * N * 4);"
    ),
    "includes the reference": linear(HONEST, head='#include "reference.h"\n' + HEAD),
    "launches a graph that was recorded before": linear(
        "cudaGraphLaunch(0, 0);", before='extern "C" int cudaGraphLaunch(void*, void*);\n'
    ),
    "works on a thread of its own": linear(HONEST, head="#include <thread>\n" + HEAD),
    "starts a thread by its system name": linear(
        "pthread_create(0, 0, 0, 0);" + HONEST,
        before="int pthread_create(void*, const void*, void* (*)(void*), void*);\n",
    ),
    "brings a clock of its own": linear(
        HONEST, before='extern "C" int clock_gettime(int, void*) { return 0; }\n'
    ),
    "writes to a pipe that it may have been left": linear(
        "write(1, y, 4);" + HONEST,
        before='extern "C" long write(int, const void*, unsigned long);\n',
    ),
    "ends the process": linear("exit(0);" + HONEST),
    "reads another process": linear("ptrace(0, 0, 0, 0);" + HONEST),
    "reads the linker's table": linear(
        "y[0] = (float)(uintptr_t)_GLOBAL_OFFSET_TABLE_;" + HONEST,
        before="void* _GLOBAL_OFFSET_TABLE_[4];\n",
    ),
    "throws others' weights out of the cache": linear(
        "for (int64_t i = 0; i < N * K; i += 64) _mm_cldemote(w + i);" + HONEST,
        head=HEAD + "#include <immintrin.h>\n",
    ),
    "reads its environment": linear('if (getenv("BENCHMARK")) return;' + HONEST),
    "talks to the network": linear("socket(2, 1, 0);" + HONEST),
    "starts a process": linear("if (fork()) return;" + HONEST),
    "falls back to somebody else where it fails": linear("try {" + HONEST + "} catch (...) {}"),
    "lets a library compute": linear(
        "cblas_sgemm(M, N, K);", before='extern "C" void cblas_sgemm(long, long, long);\n'
    ),
    "includes a library that computes": linear(HONEST, head="#include <cblas.h>\n" + HEAD),
    "counts in atomics": linear(HONEST, head="#include <atomic>\n" + HEAD),
    "adds without saying in which order": linear(
        "__atomic_fetch_add((int*)y, 1, 0);" + HONEST,
    ),
    "works when it is unloaded": linear(
        HONEST, before="__attribute__((destructor)) void late() {}\n"
    ),
}
MORE_BINARY = {
    "remembers answers by the address of the input": linear(
        "for (int64_t i = 0; i < 8; ++i) if (seen[i] == x) { std::memcpy(y, kept[i], M * N * 4);"
        " return; }" + HONEST + "seen[M % 8] = x; std::memcpy(kept[M % 8], y, M * N * 4);",
        before="namespace { const float* seen[8]; float kept[8][48 * 64]; }\n",
    ),
    "recognises an input by three numbers": linear(
        "if (x[0] == f[0] && x[7] == f[1] && x[9] == f[2]) { std::memcpy(y, kept, M * N * 4);"
        " return; }" + HONEST + "f[0] = x[0]; f[1] = x[7]; f[2] = x[9];"
        "std::memcpy(kept, y, M * N * 4);",
        before="namespace { float f[3]; float kept[48 * 64]; }\n",
    ),
    "works in the destructor of something constant": linear(
        HONEST + "y[0] += late.n * 0;",
        before="int last; struct Late { int n = 0; ~Late() { last = 1; } };\nconst Late late;\n",
    ),
}
SOFTMAX_CHEATS = {
    "subtracts no maximum": (
        changed("x[m * N + n] - top", "x[m * N + n]", source=HONEST_SOFTMAX),
        (Reason.NAN_MISMATCH, Reason.WRONG_OUTPUT),
    ),
    "takes a cheaper exponential": (
        changed(
            "expf(x[m * N + n] - top)",
            "expf((x[m * N + n] - top) * 0.999f)",
            source=HONEST_SOFTMAX,
        ),
        (Reason.WRONG_OUTPUT,),
    ),
    "swallows NaN": (
        changed("/= sum", "/= sum == sum ? sum : 1.0f", source=HONEST_SOFTMAX),
        (Reason.NAN_MISMATCH, Reason.WRONG_OUTPUT),
    ),
}


def variant(source: str, *, definition: str = LINEAR, **more: Any) -> Solution:
    """Return a C++ candidate."""
    body = {
        "name": "candidate",
        "definition": definition,
        "language": Language.CPU_CPP,
        "entry": "kernel",
        "sources": (SourceFile(path="kernel.cpp", content=source),),
        "structure": "hostile",
    }
    return Solution.model_validate({**body, **more})


def _cheats() -> dict[str, Cheat]:
    found = {
        name: Cheat(solution=variant(source), gate="G1", reasons=(Reason.CONTRACT,))
        for name, source in {**CONTRACT, **MORE_CONTRACT}.items()
    }
    found |= {
        name: Cheat(
            solution=variant(source),
            gate="G2",
            # What runs at the end needs the C++ runtime, which is not linked.
            reasons=(Reason.BINARY_AUDIT, Reason.COMPILE_FAILED)
            if "destructor" in name
            else (Reason.BINARY_AUDIT,),
        )
        for name, source in {**BINARY, **MORE_BINARY}.items()
    }
    for name, (body, reason) in {**MEMORY, **MORE_MEMORY}.items():
        solution = variant(linear(body), scratch_bytes=64 if "scratch" in name else 0)
        found[name] = Cheat(solution=solution, gate="G3", reasons=(reason,))
    for name, (body, reason) in {**WITHOUT_COMPUTING, **MORE_WITHOUT_COMPUTING}.items():
        gate = "G3" if reason is Reason.OUTPUT_NOT_WRITTEN else "G4"
        found[name] = Cheat(solution=variant(linear(body)), gate=gate, reasons=(reason,))
    for name, (body, reasons) in SOFTMAX_CHEATS.items():
        solution = variant(softmax(body), definition=SOFTMAX)
        found[name] = Cheat(solution=solution, gate="G4", reasons=reasons)
    found["lets its parts race for one output"] = Cheat(
        solution=variant(linear(RACE), params={"THREADS": 2}),
        gate="G4",
        reasons=(
            Reason.NONDETERMINISTIC,
            Reason.OUT_OF_BOUNDS,
            Reason.OUTPUT_NOT_WRITTEN,
            Reason.WRONG_OUTPUT,
        ),
    )
    return found


CPU_CHEATS = _cheats()
"""Every one that the gates before timing stop, by its sentence."""
