"""Family of definitions: one operator, any constant lengths."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from retuned.catalog.entry import KernelEntry
from retuned.contract import AxisConst, AxisVar, DType, Language, TensorSpec, ValueLike, ValueRule

LONGEST = 2**20
"""Longest constant axis: a longer one in a name is a mistake or an attack."""

THREADS: tuple[int, ...] = (1, 2, 4, 8)
VECTORS: tuple[int, ...] = (16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One operator."""

    op_type: str
    template: str
    """Name of a definition, with constant axes in braces, for example ``rmsnorm_h{H}``."""
    description: str
    shapes: tuple[tuple[str, ...], ...]
    dtypes: tuple[str, ...]
    build: Callable[[str, dict[str, int]], KernelEntry]
    languages: tuple[Language, ...] = (Language.CPU_CPP, Language.TRITON)
    settle: Callable[[dict[str, int]], dict[str, int] | None] = lambda lengths: lengths
    """Convert lengths of a trace to lengths of the definition's axes; None if they do not fit."""

    @cached_property
    def constants(self) -> tuple[str, ...]:
        return tuple(re.findall(r"\{(\w+)\}", self.template))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(re.sub(r"\\\{\w+\\\}", "([1-9][0-9]{0,6})", re.escape(self.template)))

    def parse(self, name: str) -> dict[str, int] | None:
        """Return the constant axes in a definition's name; None if it belongs to another family."""
        match = self._pattern.fullmatch(name)
        if match is None:
            return None
        lengths = dict(zip(self.constants, map(int, match.groups()), strict=True))
        return lengths if all(n <= LONGEST for n in lengths.values()) else None

    def name(self, lengths: Mapping[str, int]) -> str:
        return self.template.format(**lengths)


def variable(description: str) -> AxisVar:
    return AxisVar(description=description)


def fixed(length: int) -> AxisConst:
    return AxisConst(value=length)


def whole(most: str, *, least: int = 0) -> ValueRule:
    """Return the rule of integers from `least` to `most`, an expression over axes."""
    return ValueRule(like=ValueLike.INTEGERS, low=least, high=most)


def floats(*shape: str, weight: bool = False) -> TensorSpec:
    return TensorSpec(shape=shape, dtype=DType.FLOAT32, constant=weight)
