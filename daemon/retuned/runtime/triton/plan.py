"""Plan of the launches of a Triton variant: each checked and bound, with their shared scratch.

Params of the variant apply to all steps. A step takes those that its entry or its grid names; its
own params override them. Nothing is executed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retuned.runtime.core.grid import parse_grid
from retuned.runtime.native.memory import Workspace, parse_workspaces, sizes_at
from retuned.runtime.schema import Refused
from retuned.runtime.triton.bind import LAUNCH_OPTIONS, Binding, bind
from retuned.runtime.triton.contract import KernelSignature, check_source

MAX_STEPS = 16
_FIELDS = {"entry", "grid", "params"}

Declared = Sequence[Mapping[str, Any]]
"""Steps or scratch as plain JSON data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundStep:
    entry: str
    grid: tuple[str, ...]
    params: Mapping[str, int | str]
    """All params of the launch: its own, and those of the variant that it names."""
    binding: Binding
    """Its parameters; tensors are inputs, outputs, then named scratch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    steps: tuple[BoundStep, ...]
    scratch: tuple[Workspace, ...]
    axes: tuple[str, ...]

    def specialisation(self, lengths: Sequence[int]) -> tuple[int, ...]:
        return tuple(n for step in self.steps for n in step.binding.specialisation(lengths))

    def sizes_at(self, lengths: Sequence[int]) -> list[int]:
        """Return the bytes of each piece of scratch; raises `Refused` as `memory.sizes_at`."""
        return sizes_at(self.scratch, dict(zip(self.axes, lengths, strict=True)))

    def check_at(self, lengths: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return the grid of every step.

        Raises
        ------
        Refused
            ``grid-invalid``, ``scratch-invalid`` or ``scratch-too-large``.
        """
        self.sizes_at(lengths)
        return [step.binding.grid_at(lengths) for step in self.steps]


def plan_launches(
    source: str,
    *,
    entry: str,
    params: Mapping[str, int | str],
    grid: Sequence[str],
    tensors: Sequence[str],
    axes: Sequence[str],
    scratch_bytes: int = 0,
    steps: Declared = (),
    scratch: Declared = (),
) -> Plan:
    """Check a source and bind each of its launches; none of it is executed.

    Parameters
    ----------
    entry, grid
        Without steps, of the single launch. With steps, the entry is that of the first step,
        and the grid is empty.
    tensors
        Names of inputs, then outputs.
    steps
        ``entry``, ``grid`` and optionally ``params`` of each launch.
    scratch
        Named scratch; see `parse_workspaces`.

    Raises
    ------
    Refused
        ``contract-violated``, ``grid-invalid`` or ``scratch-invalid``.
    """
    workspaces = parse_workspaces(scratch, params=params, axes=axes)
    if scratch_bytes and (steps or workspaces):
        raise _violated("a variant with steps or named scratch has no scratch_bytes")
    names = [*tensors, *(each.name for each in workspaces)]
    found: list[BoundStep] = []
    for body in _declared(steps, entry=entry, grid=grid):
        signature = check_source(source, entry=body.entry)
        taken = dict(params)
        if steps or workspaces:
            taken = _taken(signature, body, params=params, axes=axes)
        binding = bind(
            signature,
            params=taken,
            grid=body.grid,
            tensors=names,
            axes=axes,
            scratch_bytes=scratch_bytes,
        )
        found.append(BoundStep(entry=body.entry, grid=body.grid, params=taken, binding=binding))
    if steps or workspaces:
        _check_use(found, workspaces, params=params, tensors=len(tensors))
    return Plan(steps=tuple(found), scratch=workspaces, axes=tuple(axes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    entry: str
    grid: tuple[str, ...]
    own: Mapping[str, int | str]


def _declared(steps: Declared, *, entry: str, grid: Sequence[str]) -> list[_Step]:
    """Return every declared launch; the single launch without steps."""
    if not isinstance(steps, (list, tuple)) or len(steps) > MAX_STEPS:
        raise _violated(f"steps are a list of at most {MAX_STEPS}")
    if not steps:
        return [_Step(entry=entry, grid=tuple(grid), own={})]
    found = [_step(body) for body in steps]
    if grid or found[0].entry != entry:
        raise _violated("with steps, each has its grid, and the entry is that of the first")
    return found


def _step(body: object) -> _Step:
    if not isinstance(body, Mapping) or not {"entry", "grid"} <= set(body) <= _FIELDS:
        raise _violated("a step needs entry and grid, and may have params")
    entry, grid, own = body["entry"], body["grid"], body.get("params", {})
    if not isinstance(entry, str) or not isinstance(grid, (list, tuple)):
        raise _violated("a step's entry is a name and its grid a list")
    if not isinstance(own, Mapping) or not all(isinstance(name, str) for name in own):
        raise _violated(f"the params of step '{entry[:80]}' are not an object")
    if not all(type(value) in (int, str) for value in own.values()):
        raise _violated(f"params of step '{entry[:80]}' are whole numbers or text")
    return _Step(entry=entry, grid=tuple(grid), own=dict(own))


def _taken(
    signature: KernelSignature,
    step: _Step,
    *,
    params: Mapping[str, int | str],
    axes: Sequence[str],
) -> dict[str, int | str]:
    """Return the params of one step: its own, and those of the variant that it names."""
    every = {**params, **step.own}
    integers = {name for name, value in every.items() if type(value) is int}
    named = {parameter.name for parameter in signature.parameters} | set(LAUNCH_OPTIONS)
    named |= parse_grid(step.grid, {*integers, *axes}).names
    return {name: value for name, value in every.items() if name in named or name in step.own}


def _check_use(
    steps: Sequence[BoundStep],
    workspaces: Sequence[Workspace],
    *,
    params: Mapping[str, int | str],
    tensors: int,
) -> None:
    """Refuse params and scratch that no step uses: the name is probably misspelt."""
    used = set(LAUNCH_OPTIONS).union(*(each.names for each in workspaces))
    for step in steps:
        used |= {parameter.name for parameter in step.binding.parameters} | step.binding.grid.names
    unknown = sorted(params.keys() - used)
    if unknown:
        raise _violated(f"params {unknown} are in no step's entry, no grid and no scratch")
    touched = {index for step in steps for _, index in step.binding.tensors}
    idle = [each.name for n, each in enumerate(workspaces) if tensors + n not in touched]
    if idle:
        raise _violated(f"no step has a parameter for the scratch {idle}")


def _violated(detail: str) -> Refused:
    return Refused("contract-violated", detail=detail)
