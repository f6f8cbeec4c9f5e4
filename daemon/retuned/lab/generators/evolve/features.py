"""What a source looks like: numbers measured from its text, so that unlike variants are both kept.

Only the text is looked at, nothing is executed: Python's own parser for Triton, a lexer without
comments and strings for C++. A source that cannot be read has the features of nothing; the lab
refuses it anyway.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from retuned.contract import Language, Solution

Cell = tuple[int, ...]
"""A niche: variants in one cell compete, variants in two do not."""

_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*|[{}();]|\d+")
_TILES = re.compile(r"(?i)(?:^|_)(?:tile|block|rows?|cols?|panels?|group|[mnkp]r?)(?:_[a-z]+)?$")
_SPLIT = re.compile(r"(?i)split|partial")
_VECTORS = (
    (64, ("_mm512", "__m512")),
    (32, ("_mm256", "__m256")),
    (16, ("_mm_", "__m128", "float4")),
)
_BANDS = (0.5, 0.9, 1.1, 1.5, 2.5)
"""Speed relative to the incumbent, edges of the bands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Structure of one source."""

    loops: int = 0
    """Loop statements."""
    depth: int = 0
    """Deepest nest of loops."""
    tiles: int = 0
    """Tile sizes: constants and parameters named like one; in Triton ranges of a tile."""
    vector_bytes: int = 0
    """Widest vector named; 0 where that is left to the compiler."""
    split: bool = False
    """Whether a reduction is shared out: split, partial sums, atomics."""
    persistent: bool = False
    """Whether a program works through more than one tile by itself."""
    matrix: bool = False
    """Whether matrix units are used."""
    prefetch: bool = False
    """Whether it loads ahead by name: prefetch instructions, more than one stage."""
    scratch: bool = False
    """Whether it wants a workspace."""
    repacked: bool = False
    """Whether it wants a weight in another layout."""

    def cell(self, merit: float | None) -> Cell:
        """Return the niche; the speed is a part of it, so that slow beginnings survive.

        Examples
        --------
        >>> Features(loops=2, depth=2).cell(1.2) == Features(loops=3, depth=2).cell(1.4)
        True
        """
        flags = (self.split, self.persistent, self.matrix, self.prefetch, self.scratch)
        band = -1 if merit is None else sum(merit >= edge for edge in _BANDS)
        bits = sum(flag << place for place, flag in enumerate((*flags, self.repacked)))
        return (
            band,
            min(self.loops, 7) // 2,
            min(self.depth, 4),
            min(self.tiles, 5) // 2,
            self.vector_bytes,
            bits,
        )

    def sentence(self) -> str:
        """Return it in words, for a prompt."""
        vector = f"{self.vector_bytes}-byte vectors" if self.vector_bytes else "no explicit vectors"
        named = [
            word
            for word, flag in (
                ("shared-out reduction", self.split),
                ("persistent", self.persistent),
                ("matrix units", self.matrix),
                ("prefetch", self.prefetch),
                ("workspace", self.scratch),
                ("repacked weight", self.repacked),
            )
            if flag
        ]
        start = f"{self.loops} loops nested {self.depth} deep, {self.tiles} tile sizes, {vector}"
        return ", ".join([start, *named])


def measure(solution: Solution) -> Features:
    """Measure the first source of a variant; headers are the same for all of them.

    Examples
    --------
    >>> from retuned.contract import SourceFile
    >>> text = "void f() { for (;;) { for (;;) {} } } // for"
    >>> file = SourceFile(path="k.cpp", content=text)
    >>> s = Solution(name="s", definition="d", language=Language.CPU_CPP, entry="f",
    ...              sources=(file,), structure="t")
    >>> measure(s).loops, measure(s).depth
    (2, 2)
    """
    text = solution.sources[0].content
    params = solution.params
    if solution.language is Language.TRITON:
        return _triton(text, params, solution)
    return _cpp(text, params, solution)


def _cpp(text: str, params: Mapping[str, int | str], solution: Solution) -> Features:
    bare = _COMMENT.sub(" ", text)
    words = _WORD.findall(bare)
    loops, depth = _nest(words)
    names = {word for word in words if word.isidentifier()}
    return Features(
        loops=loops,
        depth=depth,
        tiles=len({n for n in (*names, *params) if _names_tile(n)}),
        vector_bytes=_vector(bare, names, params),
        split=any(_SPLIT.search(name) for name in (*names, *params)),
        persistent="gridDim" in names and depth > 0,
        matrix=any("mma" in name or "mfma" in name for name in names),
        prefetch=any("prefetch" in name for name in names),
        scratch=solution.scratch_bytes > 0,
        repacked=any(layout != "as-is" for layout in solution.layouts.values()),
    )


def _names_tile(name: str) -> bool:
    return name.isupper() and bool(_TILES.search(name)) and not _SPLIT.search(name)


def _nest(words: list[str]) -> tuple[int, int]:
    """Count loops and the deepest nest of them; a loop without braces ends at its semicolon."""
    loops = deepest = level = 0
    open_loops: list[int | None] = []  # level of the loop's braces; None before its body
    rounds = 0
    for word in words:
        if word in ("for", "while"):
            loops += 1
            open_loops.append(None)
            deepest = max(deepest, len(open_loops))
        elif word in "()":
            rounds += 1 if word == "(" else -1
        elif word == "{":
            level += 1
            if open_loops and open_loops[-1] is None and not rounds:
                open_loops[-1] = level
        elif word == "}":
            while open_loops and open_loops[-1] == level:
                open_loops.pop()
            level -= 1
            _drop_bare(open_loops)
        elif word == ";" and not rounds:
            _drop_bare(open_loops)
    return loops, deepest


def _drop_bare(open_loops: list[int | None]) -> None:
    while open_loops and open_loops[-1] is None:
        open_loops.pop()


def _vector(bare: str, names: set[str], params: Mapping[str, int | str]) -> int:
    named = params.get("VEC")
    if isinstance(named, int):
        return min(max(named, 0), 64)
    sizes = [int(size) for size in re.findall(r"vector_size\s*\(\s*(\d{1,4})\s*\)", bare)]
    for width, prefixes in _VECTORS:
        if any(name.startswith(prefixes) for name in names):
            sizes.append(width)
            break
    return max(sizes, default=0)


def _triton(text: str, params: Mapping[str, int | str], solution: Solution) -> Features:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Features()
    calls = [
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    loops = list(_loops(tree))
    stages = params.get("num_stages", 1)
    return Features(
        loops=len(loops),
        depth=max(loops, default=0),
        tiles=calls.count("arange"),
        split=any(call.startswith("atomic") for call in calls)
        or any(_SPLIT.search(name) for name in params),
        persistent="num_programs" in calls,
        matrix="dot" in calls or "dot_scaled" in calls,
        prefetch=isinstance(stages, int) and stages > 1,
        scratch=solution.scratch_bytes > 0 or bool(solution.scratch),
        repacked=any(layout != "as-is" for layout in solution.layouts.values()),
    )


def _loops(tree: ast.AST) -> Iterator[int]:
    """Yield the depth of each loop, from 1, without recursion."""
    stack: list[tuple[ast.AST, int]] = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        inside = depth + isinstance(node, (ast.For, ast.While))
        if inside > depth:
            yield inside
        stack.extend((child, inside) for child in ast.iter_child_nodes(node))
