"""Compiled variant in the harness, with the layouts it requested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from retuned.contract import Definition, Digest, Solution
from retuned.lab.harness.worker import Library
from retuned.lab.languages.cpp_contract import ContractViolated
from retuned.lab.subject import Array
from retuned.runtime.native.memory import Workspace, parse_workspaces, repack, sizes_at
from retuned.runtime.schema import Refused

AS_IS = "as-is"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One loaded side of a comparison."""

    digest: Digest
    library: Path
    entry: str
    layouts: Mapping[str, str]
    scratch_bytes: int
    parts: int
    workspaces: tuple[Workspace, ...] = ()
    """Named scratch; if there is any, `scratch_bytes` is 0."""
    launch: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    audit: tuple[Mapping[str, Any], ...] = ()

    def scratch_sizes(self, lengths: Mapping[str, int]) -> list[int]:
        """Return the bytes of each piece of scratch at these axis lengths: per part, or named.

        Raises
        ------
        ContractViolated
            If they cannot be computed, or are too large together.
        """
        if not self.workspaces:
            return [self.scratch_bytes] * self.parts if self.scratch_bytes else []
        try:
            return sizes_at(self.workspaces, lengths)
        except Refused as error:
            raise ContractViolated(error.detail) from error

    def as_library(self, definition: Definition) -> Library:
        return Library(
            path=self.library,
            entry=self.entry,
            tensors=len(definition.inputs) + len(definition.outputs),
            axes=len(definition.axes),
            parts=self.parts,
            launch=self.launch,
        )


def parts_of(solution: Solution) -> int:
    """Return the number of shares: the parameter ``THREADS``, else one.

    Raises
    ------
    ContractViolated
        If it is not a small positive number.
    """
    value = solution.params.get("THREADS", 1)
    if not isinstance(value, int) or not 1 <= value <= 256:
        raise ContractViolated(f"THREADS={value!r} is not between 1 and 256")
    return value


def variant_of(solution: Solution, definition: Definition, *, library: Path) -> Variant:
    """Bind a solution to its compiled object.

    Raises
    ------
    ContractViolated
        If it asks for another layout of an input that is not constant, or for scratch that cannot
        be sized.
    """
    for name, layout in solution.layouts.items():
        spec = definition.inputs.get(name)
        if spec is None or (not spec.constant and layout != AS_IS):
            raise ContractViolated(f"layout of '{name}': only constant inputs can be repacked")
    return Variant(
        digest=solution.digest,
        library=library,
        entry=solution.entry,
        layouts=dict(solution.layouts),
        scratch_bytes=solution.scratch_bytes,
        parts=parts_of(solution),
        workspaces=_workspaces(solution, definition),
    )


def _workspaces(solution: Solution, definition: Definition) -> tuple[Workspace, ...]:
    declared = [each.model_dump(mode="json") for each in solution.scratch]
    try:
        return parse_workspaces(declared, params=solution.params, axes=list(definition.axes))
    except Refused as error:
        raise ContractViolated(error.detail) from error


def packed(array: Array, layout: str) -> Array:
    """Return an input in the variant's layout, contiguous.

    Raises
    ------
    ContractViolated
        If the layout does not fit the tensor.
    """
    if layout == AS_IS:
        return array
    try:
        return np.ascontiguousarray(repack(array, layout))
    except ValueError as error:
        raise ContractViolated(str(error)) from None
