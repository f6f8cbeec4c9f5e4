"""GPU C++ contract: a static allow-list over the text, before any compiler reads it.

GPU compilers cannot report macro expansions, so macros are restricted: they may not build tokens of
others, and may not hold declarations. Every token that a compiler will see is in the text and is
checked. Code that passes by mistake is caught by the audit of the compiled object (``lab.audit``),
which ignores the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

from retuned.contract import Definition, Language, Solution
from retuned.lab.languages.cpp_contract import FORBIDDEN_WORDS
from retuned.lab.languages.cpp_lexer import (
    ContractViolated,
    TextRules,
    check_attributes,
    check_text,
    tokens_of,
)
from retuned.lab.languages.cpp_text import without_comments
from retuned.lab.languages.gpu_cpp_entry import check_entry, is_entry
from retuned.runtime.native.gpu_bind import LaunchShape, launch_shape
from retuned.runtime.schema import Refused


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


HEADER = "retuned_device.h"
MATH = _words(
    """fabsf sqrtf expf exp2f expm1f logf log2f log10f log1pf floorf ceilf truncf rintf roundf fmaxf
    fminf fmaf fmodf powf tanhf sinhf coshf sinf cosf tanf asinf acosf atanf atan2f erff erfcf
    rsqrtf cbrtf copysignf ldexpf fabs sqrt exp exp2 log log2 floor ceil trunc rint fmax fmin fma
    pow tanh sin cos erf rsqrt min max abs"""
)
"""Functions that both vendors' compilers provide without a header; clang alone has a dozen."""
ATOMICS = _words(
    """atomicAdd atomicMax atomicMin atomicAnd atomicOr atomicXor atomicExch atomicCAS"""
)
_RULES = TextRules(headers=frozenset(), pragmas=re.compile(r"(unroll(\s+[A-Z0-9_]+)?|once)\s*"))
_ATTRIBUTES = frozenset({"maybe_unused", "nodiscard", "likely", "unlikely", "fallthrough"})
_FORBIDDEN = FORBIDDEN_WORDS | _words(
    """printf vprintf fprintf puts assert trap memcpy memset memmove clock clock64 wall_clock64
    globaltimer mutable friend virtual cooperative_groups cudaMalloc cudaFree cudaLaunchDevice
    hipMalloc hipFree and or not xor bitand bitor compl and_eq or_eq xor_eq not_eq"""
)
_RESERVED = _words(
    """__global__ __device__ __shared__ __restrict__ __launch_bounds__ __forceinline__ __align__
    __syncthreads _"""
)
_DECLARING = _words(
    """extern static __device__ __global__ __shared__ __launch_bounds__ template operator"""
)
"""Words that a macro must not hold, because their meaning depends on their neighbours."""
_CALLING = _words(
    """if for while switch return sizeof alignof alignas decltype static_assert operator constexpr
    __launch_bounds__ __align__ catch noexcept void float double int unsigned bool char short long
    index_t i8 u8 i32 bf16 fp16 fp8_e4m3fn fp8_e4m3fnuz __syncthreads"""
)
_NOT_A_TYPE = _words("return else case do sizeof")
_PARAM_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,31}")
_PARAM_VALUE = re.compile(r"-?[0-9]{1,9}|[a-zA-Z][a-zA-Z0-9_]{0,31}")
_FILE_NAMES = (".cu", ".hip", ".cpp")


@cache
def header_text() -> str:
    """Text of the header that makes one source compile for both vendors."""
    return Path(__file__).with_name(HEADER).read_text("utf-8")


@cache
def header_names() -> frozenset[str]:
    """Names in the header: candidates may call them, and may not define macros of them."""
    return frozenset(re.findall(r"[A-Za-z_]\w*", without_comments(header_text())))


def check_contract(
    solution: Solution, definition: Definition, *, shapes: Sequence[Mapping[str, int]] = ()
) -> LaunchShape:
    """Gate G1: text, entry, parameters, and grid and block at every shape; it does not compile.

    Raises
    ------
    ContractViolated
        On the first violation.
    """
    if solution.language is not Language.GPU_CPP:
        raise ContractViolated(f"language {solution.language} is not {Language.GPU_CPP}")
    names = [source.path for source in solution.sources]
    if len(set(names)) != len(names) or not names[0].endswith(_FILE_NAMES):
        raise ContractViolated("the first source is a .cu, .hip or .cpp file, and names differ")
    if HEADER in names:
        raise ContractViolated(f"'{HEADER}' is ours; a candidate brings none of that name")
    _check_params(solution.params, definition)
    tokens = _checked_tokens(solution, names)
    check_entry(tokens, solution, definition)
    try:
        shape = launch_shape(params=solution.params, grid=solution.grid, axes=list(definition.axes))
        for axes in shapes:
            shape.grid_at(list(definition.lengths(axes).values()))
    except Refused as error:
        raise ContractViolated(error.detail[:400]) from error
    if shape.shared_bytes == 0 and _uses_dynamic_shared(tokens):
        raise ContractViolated("it has a dynamic shared array, and SHARED_BYTES is not given")
    return shape


def _check_params(params: Mapping[str, int | str], definition: Definition) -> None:
    for name, value in params.items():
        if not _PARAM_NAME.fullmatch(name) or not _PARAM_VALUE.fullmatch(str(value)):
            raise ContractViolated(f"parameter {name[:40]}={str(value)[:40]!r} is not plain")
        if name in definition.axes or name in definition.inputs or name in definition.outputs:
            raise ContractViolated(f"{name} is an axis or tensor and a parameter")
        if name in header_names() and name not in ("BLOCK_X", "BLOCK_Y", "BLOCK_Z"):
            raise ContractViolated(f"parameter {name} has the name of something in {HEADER}")
        if str(value) in _FORBIDDEN | _DECLARING:
            raise ContractViolated(f"parameter {name}={value} is not a value")


def _checked_tokens(solution: Solution, names: Sequence[str]) -> list[str]:
    tokens: list[str] = []
    directives: list[str] = []
    for source in solution.sources:
        own = (frozenset(names) - {names[0], source.path}) | {HEADER}
        bare = check_text(source.content, _RULES, where=source.path, own_headers=own)
        code = []
        for number, line in enumerate(bare.splitlines(), 1):
            if line.lstrip().startswith("#"):
                directives += _checked_directive(line.strip(), where=f"{source.path}:{number}")
            else:
                code.append(line)
        tokens += tokens_of("\n".join(code))
    if not any('"' + HEADER + '"' in source.content for source in solution.sources):
        raise ContractViolated(
            f'the source must say #include "{HEADER}": it brings indices, index_t, conversions and '
            "vector loads for both vendors (docs/writing-a-candidate.md)"
        )
    macros = _macros(solution)
    called = header_names() | MATH | ATOMICS | macros | _declared(tokens)
    called |= {str(value) for value in solution.params.values() if str(value).isidentifier()}
    called |= {solution.entry, *solution.params}
    for index, token in enumerate(tokens):
        _check_token(tokens, index, token, entry=solution.entry)
        _check_call(tokens, index, token, called=called)
    for index, token in enumerate(directives):
        _check_call(directives, index, token, called=called | {"defined"})
    _check_file_scope(tokens)
    check_attributes(tokens, allowed=_ATTRIBUTES)
    return tokens


def _checked_directive(line: str, *, where: str) -> list[str]:
    """Restrict macros so that their expansion does not matter; return the line's tokens."""
    word, _, rest = line[1:].strip().partition(" ")
    tokens = tokens_of(rest)
    if word == "include":
        return []
    if "#" in tokens or "##" in tokens or "\\" in tokens:  # \u006b is a letter to some compilers
        raise ContractViolated(f"{where}: a macro may not make tokens")
    for token in tokens:
        if token in _FORBIDDEN or token in _DECLARING or token.startswith(('"', "'")):
            raise ContractViolated(f"{where}: '{token[:40]}' is not allowed in a directive")
        if _is_reserved(token):
            raise ContractViolated(f"{where}: name '{token[:60]}' is reserved")
    if word in ("define", "undef") and tokens and tokens[0] in header_names():
        raise ContractViolated(f"{where}: '{tokens[0][:40]}' is a name of {HEADER}")
    return tokens


def _check_token(tokens: list[str], index: int, token: str, *, entry: str) -> None:
    if token in ("\\", "##", "#", "`", "@", "$"):
        raise ContractViolated(f"'{token}' is not allowed")
    if token in _FORBIDDEN:
        raise ContractViolated(f"'{token}' is not allowed in a kernel")
    if token == "<" and tokens[index + 1 : index + 3] == ["<", "<"]:
        raise ContractViolated("a kernel launches no other")
    if token.startswith(('"', "'")) and token != '"C"' and not _in_assertion(tokens, index):
        raise ContractViolated("strings and characters have no use in a kernel")
    if token == "extern" and not is_entry(tokens, index, entry) and not _is_room(tokens, index):
        raise ContractViolated(
            f"extern is only for 'extern \"C\" __global__ void {entry}(' and for "
            "'extern __shared__ TYPE NAME[];'"
        )
    if token == "__global__" and tokens[max(0, index - 2) : index] != ["extern", '"C"']:
        raise ContractViolated("only the entry is __global__")
    if token == "static":
        raise ContractViolated("static is not allowed: a kernel must not keep state")
    if token == "__device__" and not _is_function(tokens, index):
        raise ContractViolated("__device__ is only for functions: a kernel must not keep state")
    if token == "__shared__" and tokens[index + 1 : index + 2] == ["static"]:
        raise ContractViolated("'__shared__ static' is not allowed")
    if _is_reserved(token):
        raise ContractViolated(f"name '{token[:60]}' is reserved and not on the allow-list")


def _check_call(
    tokens: list[str], index: int, token: str, *, called: frozenset[str] | set[str]
) -> None:
    """Allow only functions of this file, of our header, and mathematics."""
    if tokens[index + 1 : index + 2] != ["("] or not (token[0].isalpha() or token[0] == "_"):
        return
    if token not in called and token not in _CALLING:
        raise ContractViolated(
            f"calls '{token[:60]}', which is neither in the source nor in {HEADER}"
        )


def _check_file_scope(tokens: Sequence[str]) -> None:
    """Forbid values outside functions: compilers make variables even of constants."""
    depth = angles = 0
    first = ""  # word of the statement
    for before, token in pairwise([";", *tokens]):
        first = token if before in (";", "}") else first
        depth += (token in ("{", "(", "[")) - (token in ("}", ")", "]"))
        if depth == 0 and (angles or before == "template"):
            angles += (token == "<") - (token == ">")
        elif depth == 0 and token == "=" and first != "using":
            raise ContractViolated(
                f"'{before[:60]}' has a value outside functions; use an enum or a macro"
            )


def _declared(tokens: Sequence[str]) -> set[str]:
    found = set()
    for before, name, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        is_name = name[0].isalpha() or name[0] == "_"
        typed = before.replace("_", "a").isalnum() and not before[0].isdigit()
        if is_name and typed and before not in _NOT_A_TYPE and after in ("(", "=", "{"):
            found.add(name)
        if before in ("struct", "class", "typename", "using") and is_name:
            found.add(name)
    return found


def _macros(solution: Solution) -> set[str]:
    text = "\n".join(source.content for source in solution.sources)
    return set(re.findall(r"^[ \t]*#[ \t]*define[ \t]+([A-Z][A-Z0-9_]*)", text, re.M))


def _is_reserved(token: str) -> bool:
    hidden = token.startswith("_") or (token[0].isalpha() and "__" in token)
    return hidden and token not in _RESERVED


def _is_room(tokens: Sequence[str], index: int) -> bool:
    """Whether the tokens here are ``extern __shared__ [__align__(16)] TYPE NAME[];``."""
    rest = list(tokens[index + 1 : index + 12])
    if rest[:1] != ["__shared__"]:
        return False
    rest = rest[1:]
    if rest[:2] == ["__align__", "("]:
        rest = rest[4:]
    names = rest.index("[") if "[" in rest else 0
    typed = 2 <= names <= 3 and all(word.replace("_", "a").isalnum() for word in rest[:names])
    return typed and rest[names : names + 3] == ["[", "]", ";"]


def _uses_dynamic_shared(tokens: Sequence[str]) -> bool:
    return any(pair == ("extern", "__shared__") for pair in pairwise(tokens))


def _is_function(tokens: Sequence[str], index: int) -> bool:
    """Whether ``__device__`` is followed by a name with a parenthesis before other tokens."""
    for token in tokens[index + 1 :]:
        if token == "(":
            return True
        if token in ("=", ";", "{", "[", "}", "__align__", "alignas", "__shared__"):
            return False
    return False


def _in_assertion(tokens: Sequence[str], index: int) -> bool:
    before = tokens[max(0, index - 64) : index]
    return tokens[index + 1 : index + 2] == [")"] and "static_assert" in before
