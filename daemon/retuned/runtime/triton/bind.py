"""Bindings of a Triton entry: each parameter is a tensor, scratch, an axis or a constant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retuned.runtime.core.grid import Grid, parse_grid
from retuned.runtime.schema import Refused
from retuned.runtime.triton.contract import KernelSignature, Parameter

SCRATCH = "scratch"
"""Parameter that gets the workspace."""

LAUNCH_OPTIONS: Mapping[str, tuple[int, ...]] = {
    "num_warps": (1, 2, 4, 8, 16, 32),
    "num_stages": tuple(range(1, 9)),
    "waves_per_eu": tuple(range(9)),
    "matrix_instr_nonkdim": (0, 16, 32),
    "kpack": (1, 2),
}
"""Params for the compiler instead of the kernel, with the accepted values."""

_MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The resolved parameters of an entry; lengths are those of all axes, in order."""

    parameters: tuple[Parameter, ...]
    tensors: tuple[tuple[int, int], ...]
    """(position among the parameters, index of the tensor)."""
    axes: tuple[tuple[int, int], ...]
    """(position among the parameters, index of the axis)."""
    constants: tuple[tuple[int, int | str], ...]
    """(position among the parameters, value)."""
    scratch_at: int | None
    options: Mapping[str, int]
    grid: Grid
    axis_names: tuple[str, ...]
    integers: Mapping[str, int]

    @property
    def runtime_axes(self) -> tuple[str, ...]:
        """Axes that a launch passes as int32."""
        return tuple(
            self.parameters[place].name
            for place, _ in self.axes
            if not self.parameters[place].constexpr
        )

    def specialisation(self, lengths: Sequence[int]) -> tuple[int, ...]:
        """Return what the compiled code depends on: the lengths of the constexpr axes."""
        return tuple(
            lengths[index] for place, index in self.axes if self.parameters[place].constexpr
        )

    def grid_at(self, lengths: Sequence[int]) -> tuple[int, int, int]:
        """Return the programs per dimension.

        Raises
        ------
        Refused
            ``grid-invalid``.
        """
        return self.grid.at({**self.integers, **dict(zip(self.axis_names, lengths, strict=True))})

    def arguments(
        self, lengths: Sequence[int], *, tensors: Sequence[object], scratch: object
    ) -> list[object]:
        """Return one argument per parameter; the items of `tensors` may be of any type.

        Raises
        ------
        Refused
            ``lengths-too-large`` if a run-time length is not an int32.
        """
        args, places = self.template(lengths)
        for place, index in places:
            args[place] = tensors[index]
        if self.scratch_at is not None:
            args[self.scratch_at] = scratch
        return args

    def template(self, lengths: Sequence[int]) -> tuple[list[object], tuple[tuple[int, int], ...]]:
        """Return arguments with gaps, and (position, tensor) of the gaps.

        Raises
        ------
        Refused
            ``lengths-too-large``.
        """
        args: list[object] = [None] * len(self.parameters)
        for place, value in self.constants:
            args[place] = value
        for place, index in self.axes:
            if not 0 <= lengths[index] <= _MAX_INT32:
                name = self.parameters[place].name
                raise Refused("lengths-too-large", detail=f"{name} = {lengths[index]} is not int32")
            args[place] = lengths[index]
        return args, self.tensors


def bind(
    signature: KernelSignature,
    *,
    params: Mapping[str, int | str],
    grid: Sequence[str],
    tensors: Sequence[str],
    axes: Sequence[str],
    scratch_bytes: int = 0,
) -> Binding:
    """Resolve every parameter by its name.

    Parameters
    ----------
    tensors
        Names of inputs, then outputs.

    Raises
    ------
    Refused
        ``contract-violated`` for names that are missing, unknown or ambiguous; ``grid-invalid``.
    """
    _check_names(params, tensors=tensors, axes=axes)
    options = {name: _option(name, params[name]) for name in params if name in LAUNCH_OPTIONS}
    given = {name: value for name, value in params.items() if name not in options}
    integers = {name: value for name, value in given.items() if isinstance(value, int)}
    parsed = parse_grid(grid, {*integers, *axes})
    bound: dict[str, list[tuple[int, int]]] = {"tensor": [], "axis": []}
    constants: list[tuple[int, int | str]] = []
    scratch_at = None
    for place, parameter in enumerate(signature.parameters):
        name = parameter.name
        if name in tensors:
            bound["tensor"].append((place, _plain(parameter, tensors.index(name))))
        elif name == SCRATCH:
            scratch_at = _scratch(parameter, place, scratch_bytes)
        elif name in axes:
            bound["axis"].append((place, axes.index(name)))
        else:
            constants.append((place, _constant(parameter, given)))
    taken = {parameter.name for parameter in signature.parameters} | parsed.names
    unknown = sorted(given.keys() - taken)
    if unknown:
        raise _refused(f"params {unknown} are neither in the entry nor in the grid")
    return Binding(
        parameters=signature.parameters,
        tensors=tuple(bound["tensor"]),
        axes=tuple(bound["axis"]),
        constants=tuple(constants),
        scratch_at=scratch_at,
        options=options,
        grid=parsed,
        axis_names=tuple(axes),
        integers=integers,
    )


def _check_names(
    params: Mapping[str, int | str], *, tensors: Sequence[str], axes: Sequence[str]
) -> None:
    names = [*tensors, *axes, *params, SCRATCH]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _refused(f"the names {twice} could mean two things")


def _option(name: str, value: int | str) -> int:
    if type(value) is not int or value not in LAUNCH_OPTIONS[name]:
        raise _refused(f"{name} = {value!r:.40} is not one of {LAUNCH_OPTIONS[name]}")
    return value


def _plain(parameter: Parameter, index: int) -> int:
    if parameter.constexpr:
        raise _refused(f"the tensor '{parameter.name}' is annotated tl.constexpr")
    return index


def _scratch(parameter: Parameter, place: int, scratch_bytes: int) -> int:
    if parameter.constexpr or scratch_bytes <= 0:
        raise _refused("'scratch' must be a pointer and needs scratch_bytes above 0")
    return place


def _constant(parameter: Parameter, given: Mapping[str, int | str]) -> int | str:
    if parameter.name not in given:
        raise _refused(f"the entry's parameter '{parameter.name}' is not a tensor, axis or param")
    if not parameter.constexpr:
        raise _refused(f"the param '{parameter.name}' is not annotated tl.constexpr")
    value = given[parameter.name]
    if type(value) not in (int, str):
        raise _refused(f"the param '{parameter.name}' must be a whole number or text")
    return value


def _refused(detail: str) -> Refused:
    return Refused("contract-violated", detail=detail)
