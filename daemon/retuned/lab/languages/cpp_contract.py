"""C++ contract: a static allow-list over the text, before and after macro expansion.

A deny-list fails against token pasting, line splices and look-alike names. So every rule here is an
allow-list: headers, directives, attributes, builtins and compiler-reserved names. Code that passes
by mistake is caught by the audit of the compiled binary (``elf``), which ignores the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from retuned.lab.languages.cpp_lexer import (
    ContractViolated,
    TextRules,
    check_attributes,
    check_line,
    check_text,
    tokens_of,
)

__all__ = ["FORBIDDEN_WORDS", "HEADERS", "ContractViolated", "check_preprocessed", "check_source"]

HEADERS = frozenset(
    {
        "algorithm",
        "array",
        "arm_neon.h",
        "cfloat",
        "climits",
        "cmath",
        "cstddef",
        "cstdint",
        "cstring",
        "float.h",
        "immintrin.h",
        "limits",
        "limits.h",
        "math.h",
        "stddef.h",
        "stdint.h",
        "string.h",
        "type_traits",
        "utility",
    }
)
"""Headers without I/O, threads, allocation or operating system."""

_PRAGMAS = re.compile(r"(omp simd\b[\w\s():,*+]*|GCC unroll\b[\w\s()]*|GCC ivdep|once)\s*")
_ATTRIBUTES = frozenset(
    {
        "always_inline",
        "noinline",
        "hot",
        "cold",
        "pure",
        "const",
        "unused",
        "maybe_unused",
        "nodiscard",
        "likely",
        "unlikely",
        "fallthrough",
        "flatten",
        "aligned",
        "vector_size",
        "may_alias",
        "gnu",
    }
)
_BUILTINS = frozenset(
    {
        "__builtin_assume_aligned",
        "__builtin_expect",
        "__builtin_prefetch",
        "__builtin_unreachable",
        "__builtin_memcpy",
        "__builtin_memset",
        "__builtin_convertvector",
        "__builtin_shuffle",
        "__builtin_shufflevector",
        "__builtin_inff",
        "__builtin_inf",
        "__builtin_huge_valf",
        "__builtin_nanf",
    }
)
FORBIDDEN_WORDS = frozenset(
    {
        "asm", "thread_local", "new", "delete", "throw", "try", "catch", "typeid", "dynamic_cast",
        "goto", "register", "volatile", "import", "module", "export", "co_await", "co_yield",
        "co_return", "system", "popen", "syscall", "fork", "vfork", "clone", "execve", "execv",
        "execl", "execvp", "dlopen", "dlsym", "mmap", "munmap", "mprotect", "ptrace", "getenv",
        "setenv", "fopen", "fwrite", "fread", "open", "openat", "socket", "connect",
        "pthread_create", "signal", "sigaction", "kill", "exit", "abort", "malloc", "calloc",
        "realloc", "free", "alloca", "environ", "fesetround", "fesetenv", "feholdexcept",
    }
)  # fmt: skip
"""Words that no kernel needs, on any device."""
# Names that start with an underscore or hold two belong to the compiler: only vector intrinsics,
# their types and a few harmless words are for candidates.
_RESERVED_ALLOWED = re.compile(
    r"_mm\d*_\w+|_k[a-z]+_mask\d+|_cvt\w+_mask\d+|_cvt\w*sh_ss|_cvt\w*ss_sh|__m\d+[idh]?|__m\d+bh"
    r"|__mmask\d+|__v\d+\w+|_MM_HINT_\w+|_MM_SHUFFLE|_MM_FROUND_\w+|_MM_CMPINT_\w+|_CMP_\w+"
    r"|_lzcnt_u\d+|_tzcnt_u\d+|_popcnt\d+|_bzhi_u\d+|_pdep_u\d+|_pext_u\d+|__restrict|__restrict__"
    r"|_Float16|__fp16|__bf16|__int128|__inline|__inline__|__AVX\w*__|__FMA__|__SSE\w*__|__F16C__"
    r"|__ARM_\w+|__aarch64__|__x86_64__|__cplusplus|__GNUC__|__clang__|_"
)
_RESERVED_FORBIDDEN = re.compile(
    r"_mm_(monitor|mwait|umonitor|umwait|tpause|getcsr|setcsr|clflush|clflushopt|clwb|clzero"
    r"|cldemote|pause|sfence|lfence|mfence|malloc|free|rdpid)\w*"
)
_EXPANDED_CHARS = 4_000_000
_MARKER = re.compile(r'^# (\d+) "([^"]*)"')


_RULES = TextRules(headers=HEADERS, pragmas=_PRAGMAS)


def check_source(text: str, *, where: str, own_headers: frozenset[str] = frozenset()) -> None:
    """Check one file as written: encoding, directives, headers and pragmas.

    `own_headers` are the other files of the solution, which it may include by ``"name"``.

    Raises
    ------
    ContractViolated
        On the first thing outside the allow-list; names the line.
    """
    check_text(text, _RULES, where=where, own_headers=own_headers)


def check_preprocessed(text: str, *, own_files: frozenset[str], entry: str) -> None:
    """Check the candidate's own tokens after macro expansion; headers' lines are left out.

    `text` is the output of ``g++ -E`` with line markers. `own_files` are the candidate's paths as
    the markers spell them.

    Raises
    ------
    ContractViolated
        On the first token outside the allow-list.
    """
    own = "\n".join(_own_lines(text, own_files))
    if len(own) > _EXPANDED_CHARS:
        raise ContractViolated(f"macros make {len(own)} characters of the source")
    tokens = tokens_of(own)
    if entry not in tokens:
        raise ContractViolated(f"the source does not define '{entry}'")
    depth = 0  # of parentheses in a static_assert
    for index, token in enumerate(tokens):
        if depth or (token == "(" and index and tokens[index - 1] == "static_assert"):
            depth += (token == "(") - (token == ")")
        elif token.startswith('"') and token != '"C"':
            raise ContractViolated("strings have no use in a kernel")
        _check_token(tokens, index, token, entry=entry)
    check_attributes(tokens, allowed=_ATTRIBUTES)


def _own_lines(text: str, own_files: frozenset[str]) -> Iterator[str]:
    inside = False
    for line in text.splitlines():
        marker = _MARKER.match(line)
        if marker:
            inside = marker.group(2) in own_files
        elif inside:
            if line.lstrip().startswith("#"):
                check_line(line.strip(), _RULES, where="after macros")
            else:
                yield line


def _check_token(tokens: list[str], index: int, token: str, *, entry: str) -> None:
    if token in ("\\", "##", "`", "@", "$"):
        raise ContractViolated(f"'{token}' is not allowed")
    if token in FORBIDDEN_WORDS:
        raise ContractViolated(f"'{token}' is not allowed in a kernel")
    if token == "extern" and tokens[index + 1 : index + 5] != ['"C"', "void", entry, "("]:
        raise ContractViolated(f"extern is only for 'extern \"C\" void {entry}('")
    if token == "static" and tokens[index + 1 : index + 2] not in (
        ["inline"],
        ["constexpr"],
        ["const"],
    ):
        raise ContractViolated(
            "static is only for 'static inline', 'static constexpr', 'static const'"
        )
    if token.startswith("__builtin_") and token not in _BUILTINS:
        raise ContractViolated(f"builtin '{token}' is not on the allow-list")
    reserved = token.startswith("_") or (token[0].isalpha() and "__" in token)
    if reserved and token not in _BUILTINS and token != "__attribute__":
        allowed = _RESERVED_ALLOWED.fullmatch(token) and not _RESERVED_FORBIDDEN.fullmatch(token)
        if not allowed:
            raise ContractViolated(f"name '{token[:60]}' is reserved and not on the allow-list")
