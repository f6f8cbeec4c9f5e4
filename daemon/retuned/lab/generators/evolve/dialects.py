"""What a candidate may be in each language, for the model, and how a draft becomes a variant.

The texts here only help the model. The contract's checkers in the lab decide what is allowed; every
answer goes through them like any untrusted code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from retuned.contract import Definition, Language, Solution, SourceFile, TrustClass
from retuned.errors import UsageError
from retuned.lab.generators.evolve.edits import AnswerRefused
from retuned.lab.generators.evolve.lineage import Lineage
from retuned.lab.generators.evolve.redaction import line
from retuned.lab.generators.evolve.responses import Draft
from retuned.lab.languages.cpp_contract import HEADERS
from retuned.runtime.triton.bind import LAUNCH_OPTIONS
from retuned.runtime.triton.contract import LANGUAGE, MATH

_T = TypeVar("_T")
_CPU = f"""\
The source is one C++17 file, compiled by g++ with -O3 -march=native -ffp-contract=fast.
It defines exactly one exported symbol, the entry:
  extern "C" void ENTRY(void* const* tensors, const int64_t* axes, void* scratch,
                        int64_t part, int64_t parts)
tensors: inputs, then outputs, in the order of the table below. axes: the length of every axis of
the table, in its order. Tensors are dense, row-major, and never alias. A launch calls the entry
once for each part of parts (parts is the integer parameter THREADS, 1 where it is not set), maybe
on several threads at once: share the work out by part, so that each output element is written by
exactly one part, for any lengths and any parts. scratch has scratch_bytes per part, 64-byte
aligned, with undefined content.
Allowed: headers {", ".join(sorted(HEADERS))}; functions, templates, constexpr; vector types by
__attribute__((vector_size(N))) and intrinsics; #pragma GCC unroll N; std::memcpy for unaligned
vectors. Parameters come as macros -DNAME=value, names in capitals.
Not allowed: global or static variables that can change, threads, allocation, I/O, system calls,
inline assembly, strings, exceptions, goto, other headers, attributes that name sections."""
_TRITON = f"""\
The source is one Python file that holds a docstring, `import triton`,
`import triton.language as tl`, constants, and functions decorated with @triton.jit; nothing else
at module level, no other imports, and no host code. The entry is one of the functions.
Parameters of the entry are bound by name: the names of the tensors of the table below (pointers;
inputs, then outputs), the names of its axes (run-time int32, or tl.constexpr to compile per
length), `scratch` (a pointer; needs scratch_bytes above 0), and the parameters of the launch data
(annotated tl.constexpr). Tensors are dense and row-major.
grid: one to three integer expressions over axes and parameters with + - * // %, parentheses,
min, max, cdiv(a, b), next_pow2(a).
Launch options go into params as well: {", ".join(LAUNCH_OPTIONS)}.
Allowed of tl: {" ".join(sorted(LANGUAGE))}; of tl.math: {" ".join(sorted(MATH))}.
Mask every load and store whose index may leave its tensor: lengths are arbitrary."""
_GPU = """\
The source is one device-only C++ file that both HIP and CUDA compile. The entry is one function
  extern "C" __global__ void ENTRY(pointers of the tensors of the table below in its order,
                                   then `float* scratch` where scratch_bytes is above 0,
                                   then the length of every axis as index_t)
Pointers to inputs are const. Elements are spelled float, double, bf16, fp16, fp8_e4m3fn,
fp8_e4m3fnuz, index_t (64 bits), int, i8, u8, bool; a parameter may name one.
Its one header is "retuned_device.h", with thread_x() block_x() blocks_x() lane() warp() sync(),
shuffle(v, lane) shuffle_xor(v, mask) warp_sum warp_max block_sum(v, room) block_max(v, room) where
room is `__shared__ float room[WARPS_PER_BLOCK]`, vec<KIND, COUNT> with member at[], load_vec<COUNT>
and store_vec of at most 16 bytes, to_float(v) from_float<KIND>(v), infinity(), and the macros
WARP_SIZE THREADS_PER_BLOCK WARPS_PER_BLOCK. Mathematics by name: expf sqrtf fmaxf and the like.
Parameters become macros: BLOCK_X (threads of a block; BLOCK_Y and BLOCK_Z where they are not 1) has
to be among them, and SHARED_BYTES where there is an `extern __shared__` array. grid: one to three
integer expressions over axes and parameters with + - * // %, parentheses, min, max, cdiv(a, b),
next_pow2(a).
Not allowed: host code, inline assembly, anything static or with a value outside functions, strings,
##, printf, assert, malloc, clocks, dynamic parallelism, other headers, names beginning with __
beyond those of CUDA's qualifiers. Check every index: lengths are arbitrary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One language, as the model meets it."""

    language: Language
    """Which."""
    fences: tuple[str, ...]
    """Words after the fence of its source block, the usual one first."""
    path: str
    """Name of the source file."""
    contract: str
    """What a candidate may be."""
    grids: bool
    """Whether a launch has a grid."""


_DIALECTS: Mapping[Language, Dialect] = {
    Language.CPU_CPP: Dialect(
        language=Language.CPU_CPP,
        fences=("cpp", "c++", "cc"),
        path="kernel.cpp",
        contract=_CPU,
        grids=False,
    ),
    Language.TRITON: Dialect(
        language=Language.TRITON,
        fences=("python", "py"),
        path="kernel.py",
        contract=_TRITON,
        grids=True,
    ),
    Language.GPU_CPP: Dialect(
        language=Language.GPU_CPP,
        fences=("cpp", "c++", "cuda", "hip", "cu"),
        path="kernel.cpp",
        contract=_GPU,
        grids=True,
    ),
}


def dialect_of(language: Language) -> Dialect:
    """Return how a language is spoken of.

    Raises
    ------
    UsageError
        If candidates in it are not evolved.
    """
    found = _DIALECTS.get(language)
    if found is None:
        raise UsageError(f"candidates in {language} cannot be evolved; known: {list(_DIALECTS)}")
    return found


def solution_of(
    draft: Draft,
    definition: Definition,
    *,
    dialect: Dialect,
    base: Solution | None,
    headers: Sequence[SourceFile],
    lineage: Lineage,
) -> Solution:
    """Make a variant of a draft; what the draft leaves open is the base's.

    Trust, definition and language are ours, whatever the answer says.

    Raises
    ------
    AnswerRefused
        With the code ``bad-launch-data`` if a name or number is out of bounds.
    """
    launch = draft.launch
    mark = hashlib.sha256(draft.source.encode()).hexdigest()[:8]
    entry = launch.entry or (base.entry if base is not None else "kernel")
    kept = base if base is not None and launch.grid is None and entry == base.entry else None
    files = [SourceFile(path=dialect.path, content=draft.source)]
    files += [header for header in headers if header.path != dialect.path]

    try:
        return Solution(
            name=f"{definition.op_type[:80]}.evolved.{mark}",
            definition=definition.name,
            language=dialect.language,
            entry=entry,
            sources=tuple(files),
            structure=f"evolved-{mark}",
            params=_first(launch.params, base.params if base else None, {}),
            grid=_first(launch.grid, base.grid if base else None, ()) if dialect.grids else (),
            steps=kept.steps if kept is not None else (),
            scratch=kept.scratch if kept is not None else (),
            layouts=_first(launch.layouts, base.layouts if base else None, {}),
            scratch_bytes=_first(launch.scratch_bytes, base.scratch_bytes if base else None, 0),
            trust=TrustClass.GENERATED,
            author=lineage.author(),
            parents=() if lineage.parent is None else (lineage.parent,),
            prompt=lineage.prompt,
        )
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        detail = f"{line(place, 60)}: {line(first['msg'], 160)}"
        raise AnswerRefused("bad-launch-data", detail=detail) from error


def _first(given: _T | None, from_base: _T | None, otherwise: _T) -> _T:
    if given is not None:
        return given
    return otherwise if from_base is None else from_base
