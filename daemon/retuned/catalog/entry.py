"""Catalog entries: definitions with all data that a search and a judge need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from retuned.contract import (
    AxisConst,
    Definition,
    Guard,
    Language,
    Scratch,
    Solution,
    SourceFile,
    Step,
    TrustClass,
)
from retuned.errors import UsageError
from retuned.lab.subject import shape_of

Array = npt.NDArray[Any]
Params = Mapping[str, int | str]
Reference = Callable[..., dict[str, Array]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """One source structure and the parameters it may be compiled with."""

    name: str
    """Structure, for example ``row-dots``."""
    sources: tuple[str, ...]
    """Files under ``sources/``, or named in `texts`; the first is compiled, others are headers."""
    entry: str
    params: Mapping[str, tuple[int | str, ...]]
    """Choices of each parameter, ordered so that neighbours behave alike."""
    starts: Callable[[Mapping[str, int]], tuple[Params, ...]]
    rank: Callable[[Mapping[str, int]], int]
    valid: Callable[[Params, Definition], bool] = lambda _params, _definition: True
    layouts: Callable[[Params], dict[str, str]] = lambda _params: {}
    scratch_bytes: Callable[[Params, Definition], int] = lambda _params, _definition: 0
    language: Language = Language.CPU_CPP
    grid: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    """Launches, if there are several; `grid` is empty then."""
    scratch: tuple[Scratch, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    author: str = "catalog"
    trust: TrustClass = TrustClass.PARAMETERS

    def constraints(self, params: Params, definition: Definition) -> bool:
        """Whether the point is in the space: all parameters named and chosen, relations hold."""
        return (
            params.keys() == self.params.keys()
            and all(value in self.params[name] for name, value in params.items())
            and self.valid(params, definition)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Minimum work of any implementation."""

    flops: float
    """Floating-point operations; a multiply and an add are two."""
    read_bytes: float
    write_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEntry:
    """One kernel definition of the catalog."""

    definition: Definition
    families: tuple[str, ...]
    """Names of the input families; the first is the ordinary one."""
    spaces: tuple[Space, ...]
    incumbent: Solution
    """Variant tuned for chat traffic: one to four tokens a step."""
    make: Callable[[dict[str, int], np.random.Generator, str], dict[str, Array]] = field(repr=False)
    compute: Reference = field(repr=False)
    cost: Callable[[dict[str, int]], Cost] = field(repr=False)
    launching: Callable[[Solution], Mapping[str, Any]] = field(default=lambda _: {}, repr=False)
    """Returns manifest fields for launches that the server makes itself."""
    confinement: Callable[[], tuple[str, ...] | None] = field(default=lambda: None, repr=False)
    """Returns the confinement of an untrusted reference that ran; None if it is ours."""

    def launch_data(self, solution: Solution) -> Mapping[str, Any]:
        return self.launching(solution)

    def reference_confined_by(self) -> tuple[str, ...] | None:
        return self.confinement()

    def reference(self, inputs: dict[str, Array], axes: Mapping[str, int]) -> dict[str, Array]:
        """Compute every output in float64.

        Raises
        ------
        ValueError
            If an input's shape does not follow from `axes`.
        """
        lengths = self.definition.lengths(axes)
        for name, spec in self.definition.inputs.items():
            expected = shape_of(spec, lengths)
            if inputs[name].shape != expected:
                raise ValueError(
                    f"{self.definition.name}: input '{name}' has shape {inputs[name].shape}, "
                    f"the axes need {expected}"
                )
        return self.compute(**{name: inputs[name] for name in self.definition.inputs})

    def inputs(self, axes: Mapping[str, int], *, seed: int, family: str) -> dict[str, Array]:
        """Make every input; the same axes, seed and family give the same bytes.

        Raises
        ------
        UsageError
            If the family is unknown.
        ValueError
            If `axes` are not the definition's variable ones.
        """
        if family not in self.families:
            known = ", ".join(self.families)
            raise UsageError(f"{self.definition.name} has no inputs '{family}'; it has {known}")
        number = self.families.index(family)
        generator = np.random.default_rng([seed, number])
        return self.make(self.definition.lengths(axes), generator, family)

    def space(self, structure: str) -> Space:
        """Return one structure's space.

        Raises
        ------
        UsageError
            If the structure is unknown.
        """
        for space in self.spaces:
            if space.name == structure:
                return space
        known = ", ".join(space.name for space in self.spaces)
        raise UsageError(f"{self.definition.name} has no structure '{structure}'; it has {known}")

    def solution(self, structure: str, params: Params, guard: Guard | None = None) -> Solution:
        """Return the variant at one point of a space.

        Raises
        ------
        UsageError
            If the structure is unknown or the point is not in its space.
        """
        return build_solution(self.definition, self.space(structure), params, guard=guard)

    def floor_us(self, axes: Mapping[str, int], *, gflops: float, gbytes_per_s: float) -> float:
        """Lower bound in us of any implementation on a machine this fast."""
        cost = self.cost(self.definition.lengths(axes))
        moved = cost.read_bytes + cost.write_bytes
        return max(cost.flops / (gflops * 1e3), moved / (gbytes_per_s * 1e3))


def build_solution(
    definition: Definition, space: Space, params: Params, *, guard: Guard | None = None
) -> Solution:
    """Put source, parameters and launch data together.

    Raises
    ------
    UsageError
        If the point is not in the space.
    """
    if not space.constraints(params, definition):
        raise UsageError(f"{definition.name}: {space.name} cannot be built with {dict(params)}")
    point = "-".join(f"{name.lower()}{params[name]}" for name in space.params)
    return Solution(
        name=f"{definition.op_type}.{space.name}.{point}"[:128],
        definition=definition.name,
        language=space.language,
        entry=space.entry,
        sources=tuple(
            SourceFile(
                path=name,
                content=space.texts[name] if name in space.texts else source_text(name),
            )
            for name in space.sources
        ),
        structure=space.name,
        params={name: params[name] for name in space.params},
        grid=space.grid,
        steps=space.steps,
        scratch=space.scratch,
        layouts=space.layouts(params),
        scratch_bytes=space.scratch_bytes(params, definition),
        guard=guard or Guard(),
        trust=space.trust,
        author=space.author,
    )


@cache
def source_text(name: str) -> str:
    return resources.files("retuned.catalog").joinpath("sources", name).read_text("utf-8")


@cache
def reference_text(op_type: str) -> str:
    folder = resources.files("retuned.catalog").joinpath("references")
    return folder.joinpath(f"{op_type}.py").read_text("utf-8")


def constant(definition: Definition, axis: str) -> int:
    length = definition.axes[axis]
    if not isinstance(length, AxisConst):
        raise TypeError(f"axis '{axis}' of {definition.name} is variable")
    return length.value
