"""The static contract of C++ candidates: an allow-list over the text, before and after macros.

A deny-list loses against token pasting, line splices and look-alike names, so every rule here says
what is allowed: which headers, directives, attributes, builtins and compiler-reserved names. What
slips past meets the audit of the compiled binary (``elf``), which trusts no text at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from retuned.errors import CandidateError
from retuned.lab.languages.cpp_text import without_comments

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

_DIRECTIVES = frozenset(
    {
        "define",
        "undef",
        "if",
        "ifdef",
        "ifndef",
        "else",
        "elif",
        "endif",
        "include",
        "pragma",
        "error",
    }
)
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
_FORBIDDEN_WORDS = frozenset(
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
_TRIGRAPH = re.compile(r"\?\?[=/'()!<>-]")
_DIGRAPHS = ("<:", ":>", "<%", "%>", "%:")
_MACRO = re.compile(r"([A-Z][A-Z0-9_]*)(?:\(|\s|$)")
"""Names that the headers do not use themselves: a macro called `return` would rewrite them."""
_LINE_CHARS, _EXPANDED_CHARS = 20_000, 4_000_000
_ATTRIBUTE_TOKENS = 200
_TOKEN = re.compile(
    r'"(?:[^"\\\n]|\\.)*"'
    r"|'(?:[^'\\\n]|\\.)*'"
    r"|\.?\d(?:[eEpP][+-]|'\w|[\w.])*"
    r"|[A-Za-z_]\w*"
    r"|##|::|[^\s\w]"
)
_RAW_STRING = re.compile(r'(?<![A-Za-z0-9_])(?:u8|u|U|L)?R"')
_MARKER = re.compile(r'^# (\d+) "([^"]*)"')


class ContractViolated(CandidateError):
    """The source steps outside the contract; it was neither compiled nor run."""

    def __init__(self, detail: str) -> None:
        super().__init__("contract-violated", detail=detail)


def check_source(text: str, *, where: str, own_headers: frozenset[str] = frozenset()) -> None:
    """Check one file as written: encoding, directives, headers and pragmas.

    `own_headers` are the other files of the solution, which it may include by ``"name"``.

    Raises
    ------
    ContractViolated
        On the first thing outside the allow-list; names the line.
    """
    text = text.replace("\r\n", "\n")
    for number, line in enumerate(text.split("\n"), 1):
        if not line.replace("\t", "").isprintable():
            raise ContractViolated(f"{where}:{number}: control or invisible characters")
        if len(line) > _LINE_CHARS:
            raise ContractViolated(f"{where}:{number}: a line of {len(line)} characters")
    if _TRIGRAPH.search(text):
        raise ContractViolated(f"{where}: trigraphs are not allowed")
    try:
        bare = without_comments(text)
    except ValueError as error:
        raise ContractViolated(f"{where}: {error}") from None
    if not bare.isascii():
        raise ContractViolated(f"{where}: only ASCII is allowed outside comments")
    for number, line in enumerate(bare.splitlines(), 1):
        _check_line(line.strip(), where=f"{where}:{number}", own_headers=own_headers)


def check_preprocessed(text: str, *, own_files: frozenset[str], entry: str) -> None:
    """Check the candidate's own tokens after macro expansion; headers' lines are left out.

    `text` is the output of ``g++ -E`` with line markers; `own_files` are the paths that are the
    candidate's, as the markers spell them.

    Raises
    ------
    ContractViolated
        On the first token outside the allow-list.
    """
    own = "\n".join(_own_lines(text, own_files))
    if len(own) > _EXPANDED_CHARS:
        raise ContractViolated(f"macros make {len(own)} characters of the source")
    tokens = [match.group(0) for match in _TOKEN.finditer(own)]
    if entry not in tokens:
        raise ContractViolated(f"the source does not define '{entry}'")
    depth = 0  # of parentheses in a static_assert
    for index, token in enumerate(tokens):
        if depth or (token == "(" and index and tokens[index - 1] == "static_assert"):
            depth += (token == "(") - (token == ")")
        elif token.startswith('"') and token != '"C"':
            raise ContractViolated("strings have no use in a kernel")
        _check_token(tokens, index, token, entry=entry)
    _check_attributes(tokens)


def _check_line(line: str, *, where: str, own_headers: frozenset[str] = frozenset()) -> None:
    if any(pair in line for pair in _DIGRAPHS) or _RAW_STRING.search(line):
        raise ContractViolated(f"{where}: digraphs and raw strings are not allowed")
    if not line.startswith("#"):
        return
    directive, _, rest = line[1:].strip().partition(" ")
    match = re.match(r"[a-z_]*", directive)
    word = match.group(0) if match else ""
    rest = (directive[len(word) :] + " " + rest).strip()
    if word not in _DIRECTIVES:
        raise ContractViolated(f"{where}: directive '#{directive[:40]}' is not allowed")
    if "__has_" in rest or "_Pragma" in rest or "__COUNTER__" in rest:
        raise ContractViolated(f"{where}: '{rest[:40]}' is not allowed in a directive")
    if word == "include":
        system = re.fullmatch(r"<([a-z0-9_.]+)>", rest)
        own = re.fullmatch(r'"([A-Za-z0-9_.-]+)"', rest)
        if not (system and system.group(1) in HEADERS) and not (
            own and own.group(1) in own_headers
        ):
            raise ContractViolated(f"{where}: header {rest[:60]} is not on the allow-list")
    if word in ("define", "undef"):
        macro = _MACRO.match(rest + " ")
        if macro is None or "__" in macro.group(1):
            raise ContractViolated(
                f"{where}: macro '{rest[:40]}' must have a name of capitals, so that no header "
                "means it"
            )
    if word == "pragma" and _PRAGMAS.fullmatch(rest) is None:
        raise ContractViolated(f"{where}: '#pragma {rest[:40]}' is not allowed")


def _own_lines(text: str, own_files: frozenset[str]) -> Iterator[str]:
    inside = False
    for line in text.splitlines():
        marker = _MARKER.match(line)
        if marker:
            inside = marker.group(2) in own_files
        elif inside:
            if line.lstrip().startswith("#"):
                _check_line(line.strip(), where="after macros")
            else:
                yield line


def _check_token(tokens: list[str], index: int, token: str, *, entry: str) -> None:
    if token in ("\\", "##", "`", "@", "$"):
        raise ContractViolated(f"'{token}' is not allowed")
    if token in _FORBIDDEN_WORDS:
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


def _check_attributes(tokens: list[str]) -> None:
    """Only attributes that steer optimisation; none that name sections, symbols or constructors."""
    for index, token in enumerate(tokens):
        if token == "__attribute__":
            begin, brackets = index + 1, ("(", ")")
        elif token == "[" and tokens[index + 1 : index + 2] == ["["]:
            begin, brackets = index, ("[", "]")
        else:
            continue
        part = tokens[begin : begin + _ATTRIBUTE_TOKENS]
        for name in _names_at_depth(part, *brackets, depth=2):
            if name.strip("_") not in _ATTRIBUTES:
                raise ContractViolated(f"attribute '{name[:40]}' is not on the allow-list")


def _names_at_depth(tokens: list[str], opening: str, closing: str, *, depth: int) -> Iterator[str]:
    """Yield words right inside `depth` brackets; arguments lie deeper or in parentheses."""
    level = arguments = 0
    for token in tokens:
        if token == opening:
            level += 1
        elif token == closing:
            level -= 1
        elif token in "()":
            arguments += 1 if token == "(" else -1
        elif level == depth and not arguments and (token[0].isalpha() or token[0] == "_"):
            yield token
        if level == 0:
            return
    raise ContractViolated(f"attributes of more than {_ATTRIBUTE_TOKENS} words")
