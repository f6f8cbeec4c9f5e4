"""Honest variants: other orders, other tiles, other precisions above; none may be called wrong.

Two sources. Hand-written C++ that differs in how it adds up, which is what a tolerance that is too
tight would refuse first. And the catalog's own spaces, point by point, in every language.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from retuned import catalog
from retuned.catalog.entry import KernelEntry
from retuned.contract import Language, Solution, SourceFile
from retuned.errors import UsageError

LINEAR, SOFTMAX, RMSNORM = "linear_w8_n48_k96", "softmax_n96", "rmsnorm_h80"
CATALOG = (
    "linear_w8_n48_k96",
    "linear_w8_n64_k64",
    "rmsnorm_h80",
    "rmsnorm_h256",
    "silu_mul_i96",
    "softmax_n96",
    "softmax",
    "attention_h2_d16",
    "attention_h2_d32",
)
_ROWS = ({"M": 4}, {"M": 48})
_ATTENTION = ({"T": 1, "S": 33}, {"T": 4, "S": 20})
_HEAD = """#include <cmath>
#include <cstdint>
extern "C" void kernel(void* const* tensors, const int64_t* axes, void* scratch, int64_t part,
                       int64_t parts) {
"""
_ORDERS = {
    "forwards": "for (int64_t i = 0; i < L; ++i) { TERM(i) }",
    "backwards": "for (int64_t i = L; i-- > 0;) { TERM(i) }",
    "even first": "for (int64_t o = 0; o < 2; ++o) for (int64_t i = o; i < L; i += 2) { TERM(i) }",
    "in strides": "for (int64_t o = 0; o < 8; ++o) for (int64_t i = o; i < L; i += 8) { TERM(i) }",
    "in blocks from the end": "for (int64_t b = (L - 1) / 16 * 16; b >= 0; b -= 16)"
    " for (int64_t i = b; i < L && i < b + 16; ++i) { TERM(i) }",
}
_SUMS = {
    "one sum": ("float s = 0;", "s += {0};", "s"),
    "a fused sum": ("float s = 0;", "s = fmaf({1}, {2}, s);", "s"),
    "a double": ("double s = 0;", "s += (double){1} * (double){2};", "(float)s"),
    "two chains": ("float c[2] = {};", "c[i % 2] += {0};", "c[0] + c[1]"),
    "four chains": (
        "float c[4] = {};",
        "c[i % 4] += {0};",
        "(c[0] + c[1]) + (c[2] + c[3])",
    ),
    "sixteen chains": (
        "float c[16] = {};",
        "c[i % 16] += {0};",
        "((c[0] + c[8]) + (c[4] + c[12])) + ((c[2] + c[10]) + (c[6] + c[14]))"
        " + (((c[1] + c[9]) + (c[5] + c[13])) + ((c[3] + c[11]) + (c[7] + c[15])))",
    ),
    "Kahan's sum": (
        "float s = 0, lost = 0;",
        "float t = {0} - lost, now = s + t; if (now - now == 0) lost = (now - s) - t; s = now;",
        "s",
    ),
    "pairs": (
        "float a[8] = {}; int64_t took = 0;",
        "float t = {0}; int64_t at = took++, j = 0; while (at & 1) { t += a[j]; at >>= 1; ++j; }"
        " a[j] = t;",
        "[&] { float s = 0; for (int j = 0; j < 8; ++j) if (took >> j & 1) s += a[j];"
        " return s; }()",
    ),
}
_NESTS = {
    "rows outside": "for (int64_t m = 0; m < M; ++m) for (int64_t n = 0; n < N; ++n)",
    "columns outside": "for (int64_t n = 0; n < N; ++n) for (int64_t m = 0; m < M; ++m)",
}


def shapes_of(solution: Solution) -> tuple[dict[str, int], ...]:
    """Two small shapes; the judge adds their edges."""
    variable = catalog.get(solution.definition).definition.variable_axes
    if variable == ("T", "S"):
        return _ATTENTION
    return tuple({name: shape.get(name, 33) for name in variable} for shape in _ROWS)


def written() -> Iterator[Solution]:
    """Yield the hand-written ones: every order with every sum, for three operators."""
    for (order, loop), (name, parts) in itertools.product(_ORDERS.items(), _SUMS.items()):
        for nest, scaled in itertools.product(_NESTS, (False, True)):
            title = f"linear: {nest}, {order}, {name}, scale {'inside' if scaled else 'after'}"
            yield _solution(title, LINEAR, _linear(loop, parts, _NESTS[nest], scaled=scaled))
        yield _solution(f"rmsnorm: {order}, {name}", RMSNORM, _rmsnorm(loop, parts))
        yield _solution(f"softmax: {order}, {name}", SOFTMAX, _softmax(loop, parts))


def points(name: str, language: Language) -> list[Solution]:
    """Every point of the catalog's spaces for a definition, one thread on a processor."""
    entry = catalog.get(name, language=language)
    found = []
    for space in entry.spaces:
        for values in itertools.product(*space.params.values()):
            params = dict(zip(space.params, values, strict=True))
            if params.get("THREADS", 1) == 1 and space.constraints(params, entry.definition):
                found.append(_built(entry, space.name, params))
    return [solution for solution in found if solution is not None]


def drawn(language: Language, *, count: int, seed: int) -> list[Solution]:
    """Draw points of all definitions and structures, as evenly as they come."""
    rng = random.Random(seed)
    groups: dict[tuple[str, str], list[Solution]] = {}
    for name in CATALOG:
        for solution in points(name, language):
            groups.setdefault((name, solution.structure), []).append(solution)
    for group in groups.values():
        rng.shuffle(group)
    turns = itertools.zip_longest(*groups.values())
    return [one for turn in turns for one in turn if one is not None][:count]


def _built(entry: KernelEntry, structure: str, params: dict[str, int | str]) -> Solution | None:
    try:
        return entry.solution(structure, params)
    except UsageError:
        return None


def _adding(loop: str, parts: tuple[str, str, str], *, left: str, right: str) -> str:
    """Return statements that add up ``left * right`` over ``i`` into ``sum``."""
    start, step, result = parts
    term = step.replace("{0}", f"({left} * {right})").replace("{1}", f"({left})")
    term = term.replace("{2}", f"({right})")
    return f"{start} {loop.replace('TERM(i)', term)} float sum = {result};"


def _linear(loop: str, parts: tuple[str, str, str], nest: str, *, scaled: bool) -> str:
    right = "(float)w[n * L + i]" + (" * scale[n]" if scaled else "")
    adding = _adding(loop, parts, left="x[m * L + i]", right=right)
    return (
        _HEAD + "const float* x = (const float*)tensors[0];"
        "const int8_t* w = (const int8_t*)tensors[1];"
        "const float* scale = (const float*)tensors[2]; float* y = (float*)tensors[3];\n"
        f"const int64_t M = axes[0], N = axes[1], L = axes[2];\n{nest} {{ {adding}"
        f" y[m * N + n] = {'sum' if scaled else 'sum * scale[n]'}; }}\n}}\n"
    )


def _rmsnorm(loop: str, parts: tuple[str, str, str]) -> str:
    adding = _adding(loop, parts, left="x[m * L + i]", right="x[m * L + i]")
    return (
        _HEAD + "const float* x = (const float*)tensors[0];"
        "const float* g = (const float*)tensors[1]; float* y = (float*)tensors[2];\n"
        f"const int64_t M = axes[0], L = axes[1];\nfor (int64_t m = 0; m < M; ++m) {{ {adding}"
        " float r = 1.0f / sqrtf(sum / (float)L + 1e-6f);"
        " for (int64_t i = 0; i < L; ++i) y[m * L + i] = x[m * L + i] * r * g[i]; }\n}\n"
    )


def _softmax(loop: str, parts: tuple[str, str, str]) -> str:
    adding = _adding(loop, parts, left="y[m * L + i]", right="1.0f")
    return (
        _HEAD + "const float* x = (const float*)tensors[0]; float* y = (float*)tensors[1];\n"
        "const int64_t M = axes[0], L = axes[1];\nfor (int64_t m = 0; m < M; ++m) {"
        " float top = x[m * L]; for (int64_t i = 1; i < L; ++i) { float v = x[m * L + i];"
        " top = v > top || v != v ? v : top; }"
        f" for (int64_t i = 0; i < L; ++i) y[m * L + i] = expf(x[m * L + i] - top); {adding}"
        " for (int64_t i = 0; i < L; ++i) y[m * L + i] /= sum; }\n}\n"
    )


def _solution(title: str, definition: str, source: str) -> Solution:
    return Solution(
        name="honest",
        definition=definition,
        language=Language.CPU_CPP,
        entry="kernel",
        sources=(SourceFile(path="kernel.cpp", content=source),),
        structure="written",
        author=title,
    )
