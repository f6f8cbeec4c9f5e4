"""Our own attacks on the C++ contract: text that a checker and a compiler could read differently.

Every attack is compiled the way candidates are. Either the contract refuses it, or the compiler
does, or the audit of the binary; and where a text hides something from the contract's scanner, the
scanner must have seen what the compiler sees.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hostile.cpu_kernels import HEAD, HONEST, linear, variant

from retuned.contract import SourceFile
from retuned.errors import CandidateError
from retuned.lab.languages.cpp_contract import ContractViolated, check_preprocessed, check_source
from retuned.lab.languages.cpp_text import without_comments
from retuned.lab.languages.cpu_cpp import CompileLimits, compile_solution

LIMITS = CompileLimits(wall_s=120.0, cpu_s=15)
SHORT = CompileLimits(wall_s=4.0, cpu_s=3)
OWN = frozenset({"kernel.cpp"})
HIDDEN = "#include <unistd.h>\n"
SYSCALL = '({ __asm__ volatile ("syscall"); 0.0; })'

TEXT: dict[str, str] = {
    "hides an include behind a digit's separator": linear(
        HONEST, head=f"{HEAD}const int a = 1'2 + '/*';\n{HIDDEN}const int b = 1'2 + '*/';\n"
    ),
    "hides an include behind a spliced separator": linear(
        HONEST, head=f"{HEAD}const int a = 1\\\n'2 + '/*';\n{HIDDEN}const int b = 1'2 + '*/';\n"
    ),
    "writes assembly into a header's functions": linear(
        "y[0] = (float)std::abs((double)x[0]);" + HONEST,
        head=f"#define __builtin_fabs(x) {SYSCALL}\n" + HEAD,
    ),
    "gives a keyword of the headers another meaning": linear(
        HONEST, head=f"#define return {SYSCALL}; return\n" + HEAD
    ),
    "turns a promise of the headers into a constructor": linear(
        HONEST, head="#define noexcept __attribute__((constructor))\n" + HEAD
    ),
    "takes back what the compiler defined": linear(HONEST, head="#undef __OPTIMIZE__\n" + HEAD),
    "defines a name of the compiler's": linear(HONEST, head="#define _GNU_SOURCE 1\n" + HEAD),
    "spells an attribute in digraphs": linear(
        HONEST, before="<:<:gnu::constructor:>:> void early() {}\n"
    ),
    "spells a body in digraphs": linear(HONEST, before="inline int f() <% return 1; %>\n"),
    "pastes with digraphs": linear("P(sys, tem)(0);" + HONEST, before="#define P(a, b) a%:%:b\n"),
    "pastes assembly": linear('P(as, m)("nop");' + HONEST, before="#define P(a, b) a##b\n"),
    "pastes a reserved name": linear(
        "y[0] = (float)P(__rd, tsc)();" + HONEST,
        before="#define P(a, b) a##b\n",
        head=HEAD + "#include <immintrin.h>\n",
    ),
    "writes letters that look alike": linear("sys\u0442em(0);" + HONEST),
    "turns the text around": linear("/* \u202e */ int a;" + HONEST),
    "hides a line behind a form feed": linear(HONEST, head=HEAD + "int a; \\\f\n" + HIDDEN),
    "hides a line behind a vertical tab": linear(HONEST, head=HEAD + "// \\\v\n" + HIDDEN),
    "hides a line behind a null": linear(HONEST, head=HEAD + "// \0\n" + HIDDEN),
    "leaves a comment open": linear(HONEST) + "/* and then",
    "leaves a string open": linear(HONEST) + '// fine\nconst char* s = "a\n',
    "writes three question marks": linear(HONEST, head="??=include <unistd.h>\n" + HEAD),
    "includes the next of its name": linear(HONEST, head="#include_next <unistd.h>\n" + HEAD),
    "imports": linear(HONEST, head="#import <unistd.h>\n" + HEAD),
    "embeds": linear(HONEST, head="#embed </etc/passwd>\n" + HEAD),
    "has a pragma in the middle": linear('_Pragma("GCC push_options")' + HONEST),
    "changes the options": linear(HONEST, before='#pragma GCC optimize ("Ofast")\n'),
    "changes the target": linear(HONEST, before='#pragma GCC target ("avx10.1")\n'),
    "calls itself a system header": linear(HONEST, before="#pragma GCC system_header\n"),
    "redefines a symbol": linear(HONEST, before="#pragma redefine_extname memcpy system\n"),
    "names a library for the linker": linear(HONEST, before='#pragma comment(lib, "evil")\n'),
    "keeps a string behind an assertion": linear(
        HONEST, before='static_assert(true, "x"); const char* s = "/bin/sh";\n'
    ),
    "takes an attribute's other name": linear(
        HONEST, before="__attribute((constructor)) void early() {}\n"
    ),
    "uses an attribute's name space": linear(
        HONEST, before="[[using gnu: constructor]] void early() {}\n"
    ),
    "hides an attribute among alignments": linear(
        HONEST,
        before="__attribute__((aligned(16), __constructor__ (101), hot)) void early() {}\n",
    ),
    "cleans up": linear(
        "int a __attribute__((cleanup(late))) = 0;" + HONEST, before="inline void late(int*) {}\n"
    ),
    "gives a variable a register": linear(HONEST, before='register long sp asm("rsp");\n'),
    "gives a function another name": linear(HONEST, before='void f() asm("system");\n'),
    "leaves a weak symbol": linear(HONEST, before="__attribute__((weak)) int f() { return 1; }\n"),
    "asks the compiler for itself": linear("y[0] = (float)(long)__builtin_apply_args();" + HONEST),
    "jumps over the stack": linear("__builtin_longjmp(0, 1);" + HONEST),
    "looks who calls": linear("y[0] = (float)(long)__builtin_extract_return_addr(0);" + HONEST),
    "allocates by an intrinsic": linear(
        "y[0] = *(float*)_mm_malloc(64, 64);" + HONEST, head=HEAD + "#include <immintrin.h>\n"
    ),
    "lists too many attributes": linear(
        HONEST, before="__attribute__((" + "hot, " * 500 + "constructor)) void early() {}\n"
    ),
}
LATER: dict[str, str] = {
    "writes a name in universal characters": linear("s\\u0079stem(0);" + HONEST),
    "has an own name space around a header": linear(
        "y[0] = (float)evil::getpid();" + HONEST,
        head='namespace evil {\n#include <string.h>\nextern "C++" int getpid();\n}\n' + HEAD,
    ),
    "declares a function of the system in its own words": linear(
        "y[0] = (float)getpid();" + HONEST, before="int getpid();\n"
    ),
    "computes a constant for ever": linear(
        HONEST,
        before="constexpr long f(long n) { long s = 0; for (long i = 0; i < n; ++i)"
        " for (long j = 0; j < n; ++j) s += i ^ j; return s; }\n"
        "constexpr long bomb = f(1 << 20);\n",
    ),
    "doubles a macro thirty times": linear(
        "y[0] = " + "X30" + ";" + HONEST,
        before="#define X0 x[0] +\n" + "".join(f"#define X{n + 1} X{n} X{n}\n" for n in range(30)),
    ),
    "includes itself through another": '#include "a.h"\n' + linear(HONEST),
    "aligns a table beyond all pages": linear(
        "y[0] = table[M % 3];" + HONEST,
        before="static const float table[3] __attribute__((aligned(268435456))) = {1, 2, 3};\n",
    ),
}


@pytest.mark.parametrize("sentence", TEXT)
def test_text_that_could_be_read_in_two_ways_is_refused_before_it_is_compiled(
    sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(CandidateError) as refused:
        compile_solution(variant(TEXT[sentence]), cache_dir=tmp_path, limits=LIMITS)
    assert refused.value.reason == "contract-violated", refused.value


@pytest.mark.parametrize("sentence", LATER)
def test_what_the_text_does_not_show_is_refused_in_time(sentence: str, tmp_path: Path) -> None:
    own = SourceFile(path="a.h", content='#include "b.h"\n#include "b.h"\n')
    two = SourceFile(path="b.h", content='#include "a.h"\n#include "a.h"\n')
    solution = variant(LATER[sentence])
    if "another" in sentence:
        solution = solution.model_copy(update={"sources": (*solution.sources, own, two)})
    begin = time.monotonic()
    with pytest.raises(CandidateError):
        compile_solution(solution, cache_dir=tmp_path, limits=SHORT)
    assert time.monotonic() - begin < 60.0
    assert not list(tmp_path.glob("*.so"))


@pytest.mark.parametrize(
    "text",
    [
        "/*" * 500_000,
        '"' * 999_999,
        "'" * 999_999,
        "\\\n" * 500_000,
        "a" * 1_000_000,
        "1'" * 500_000,
        "//\n" * 330_000,
        "[[" * 500_000,
        "__attribute__((" * 60_000,
        'static_assert(1,"");' + '"x"' * 300_000,
        "#define A\n" * 100_000,
        "(" * 1_000_000,
    ],
    ids=lambda text: text[:12].replace("\n", "_"),
)
def test_a_megabyte_of_nonsense_is_answered_soon(text: str) -> None:
    begin = time.process_time()
    with contextlib.suppress(ContractViolated):
        check_source(text[:1_000_000], where="kernel.cpp")
    with contextlib.suppress(ContractViolated):
        expanded = f'# 1 "kernel.cpp"\n{text[:1_000_000]}\nextern "C" void kernel() {{}}\n'
        check_preprocessed(expanded, own_files=OWN, entry="kernel")
    assert time.process_time() - begin < 20.0


PIECES = st.sampled_from(
    [
        "'", '"', "/", "*", "//", "/*", "*/", "\\", "\n", "\\\n", "1'2", "0x1'f", "u8'a'", "'/*'",
        "'*/'", '"/*"', '"*/"', "'\"'", "a", " ", ";", "1.e+'2", "L'/'", "R", ".5'5", "'\\''",
    ]
)  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(st.lists(st.lists(PIECES, max_size=14).map("".join), min_size=5, max_size=5))
def test_comments_are_where_the_compiler_sees_them(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    """Between two marks lies random text; the second mark is code for both or for neither."""
    folder = tmp_path_factory.mktemp("lex")
    for number, text in enumerate(texts):
        if "R" in text and '"' in text:
            continue  # a raw string, which the contract refuses by name
        path = folder / f"t{number}.cpp"
        path.write_text(f"{text}\nMARK\n")
        output = subprocess.run(
            ["g++", "-std=c++17", "-w", "-E", "-P", str(path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        ).stdout
        try:
            ours = without_comments(f"{text}\nMARK\n")
        except ValueError:
            continue  # refused: nothing to read in two ways
        assert ("MARK" in ours.split()) == ("MARK" in output.split()), (text, ours, output)
