"""The contract over text: what is allowed passes, and disguises are seen through."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_code

from retuned.contract import Language, Solution, SourceFile
from retuned.lab.languages.cpp_contract import (
    HEADERS,
    ContractViolated,
    check_preprocessed,
    check_source,
)
from retuned.lab.languages.cpu_cpp import check_contract

OWN = frozenset({"kernel.cpp"})


def expanded(body: str) -> None:
    text = f'# 1 "kernel.cpp"\n{body}\nextern "C" void kernel() {{}}\n'
    check_preprocessed(text, own_files=OWN, entry="kernel")


@pytest.mark.parametrize("header", sorted(HEADERS))
def test_headers_without_an_operating_system_may_be_included(header: str) -> None:
    check_source(f"#include <{header}>\n", where="kernel.cpp")


@pytest.mark.parametrize(
    "text",
    [
        "#include <unistd.h>",
        "#include <thread>",
        "# include <fstream>",
        "#\tinclude <cstdlib>",
        '#include "../../secret"',
        '#include "other.h"',
        "#include_next <cmath>",
        "#import <cmath>",
        "#embed </etc/passwd>",
        "#inc\\\nlude <unistd.h>",
        "#/* c */include <unistd.h>",
        "/* c */ #include <unistd.h>",
        "%:include <unistd.h>",
        "??=include <unistd.h>",
        "#if __has_include(</etc/passwd>)",
        "#line 3",
        '# 1 "/usr/include/math.h"',
        "#pragma GCC optimize (0)",
        "#pragma omp parallel for",
        "#pragma weak f",
        '#ident "x"',
        "// hidden \\\n#include <unistd.h>\nint x;",
        "int caf\u00e9;",
        "int a\0b;",
        'auto s = R"x(y)x";',
    ],
)
def test_directives_and_letters_outside_the_allow_list_are_refused(text: str) -> None:
    hidden_by_a_comment = text.startswith("// hidden")
    if hidden_by_a_comment:  # a splice joins the next line to the comment: nothing is included
        check_source(text, where="kernel.cpp")
        return
    with pytest.raises(ContractViolated):
        check_source(text, where="kernel.cpp")


@pytest.mark.parametrize(
    "text",
    [
        "#pragma omp simd reduction(+ : sum)",
        "#pragma GCC unroll 8",
        "#pragma GCC ivdep",
        "#pragma once",
        "#if defined(__AVX512F__) && VEC == 64",
        "// a comment with na\u00efve letters",
        "/* two\nlines \u2265 */ int x;",
    ],
)
def test_what_kernels_need_is_allowed(text: str) -> None:
    check_source(text, where="kernel.cpp")


@pytest.mark.parametrize(
    "body",
    [
        "static inline float f(float x) { return x; }",
        "static const float table[2] = {1.0f, 2.0f};",
        "__m512 f(__m512 a) { return _mm512_fmadd_ps(a, a, a); }",
        "typedef float v __attribute__((vector_size(64), may_alias));",
        "__attribute__((always_inline)) inline int f() { return 1; }",
        "[[maybe_unused]] int f(int a[2]) { return a[a[0]]; }",
        'static_assert(sizeof(float) == 4, "four bytes");',
        "template <typename T> T f(T* __restrict p) { return *p; }",
    ],
)
def test_ordinary_kernel_code_is_allowed(body: str) -> None:
    expanded(body)


@pytest.mark.parametrize(
    "body",
    [
        "static int n;",
        "static float* p = 0;",
        "thread_local int n;",
        "extern int errno;",
        'extern "C" int puts(const char*);',
        'extern "C" { int puts(const char*); }',
        'void f() { asm("nop"); }',
        'void f() { __asm__ __volatile__("nop"); }',
        "int* f() { return new int; }",
        "void f() { __builtin_trap(); }",
        "void* f() { return __builtin_frame_address(0); }",
        "unsigned f() { return _mm_getcsr(); }",
        "auto f() { return __rdtsc(); }",
        "auto f() { return _rdrand16_step(0); }",
        "int __cxa_atexit;",
        'const char* s = "text";',
        '[[gnu::section("x")]] int f();',
        "[ [gnu::weak] ] int f();",
        '__attribute__((visibility("default"))) int f();',
        "__attribute((constructor)) int f();",
        "__attribute__((aligned((4)), constructor)) int f();",
        'int f() __attribute__((alias("g")));',
    ],
)
def test_state_assembly_foreign_symbols_and_reserved_names_are_refused(body: str) -> None:
    with pytest.raises(ContractViolated):
        expanded(body)


def test_a_source_without_its_entry_is_refused() -> None:
    with raises_code(ContractViolated, "contract-violated", "'kernel'"):
        check_preprocessed('# 1 "kernel.cpp"\nint x;\n', own_files=OWN, entry="kernel")


def test_lines_of_headers_are_not_the_candidate_s() -> None:
    text = '# 1 "/usr/include/x.h"\nextern int open(const char*);\n# 2 "kernel.cpp"\n'
    check_preprocessed(text + 'extern "C" void kernel() {}\n', own_files=OWN, entry="kernel")


@given(st.text(max_size=200))
def test_any_text_is_either_accepted_or_refused_as_a_violation(text: str) -> None:
    with contextlib.suppress(ContractViolated):
        check_source(text, where="kernel.cpp")


@pytest.mark.parametrize(
    "params", [{"a": 1}, {"A": "x y"}, {"A": "-1;"}, {"A": ""}, {"__A": 1}, {"A": "a" * 40}]
)
def test_parameters_are_plain_names_and_values(params: dict[str, int | str]) -> None:
    solution = Solution.model_construct(
        language=Language.CPU_CPP,
        params=params,
        sources=(SourceFile(path="kernel.cpp", content=""),),
    )
    with pytest.raises(ContractViolated):
        check_contract(solution)
