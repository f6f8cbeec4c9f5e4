"""A space for a source whose author gave none: from its own parameters and the device's limits.

Only what the source itself makes a parameter is varied: constexprs of a Triton kernel and ``-D``
names of a C++ one, and of these only such as can mean something else than "how it is": sizes of
blocks that the grid or a loop's step depends on, launch options, switches, vector widths, threads.
Points that cannot run on the device are left out before they are compiled.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from retuned.contract import Definition, Language, Solution
from retuned.errors import UsageError
from retuned.lab.generators.devices import DeviceFacts
from retuned.lab.generators.spaces import THREADS, Params, SpaceLike, Tunable
from retuned.lab.subject import numpy_dtype
from retuned.runtime.core.grid import parse_grid
from retuned.runtime.schema import Refused

VEC = "VEC"
"""Parameter that counts the bytes of a vector."""
_WARPS, _STAGES = "num_warps", "num_stages"
_REACH = 2
"""Sizes are halved and doubled so many times."""
_LARGEST = 1 << 14
_ELEMENTS = 256
"""Most elements of a block per thread: more cannot stay in registers."""
_AMD_OPTIONS: Mapping[str, tuple[int, ...]] = {
    "waves_per_eu": (0, 1, 2, 4),
    "matrix_instr_nonkdim": (0, 16, 32),
    "kpack": (1, 2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InferredSpace:
    """The parameters of one source."""

    name: str
    """Structure."""
    params: Mapping[str, tuple[int | str, ...]]
    """Choices of each parameter."""
    starts: Callable[[Mapping[str, int]], tuple[Params, ...]]
    """The source's own point: the best guess there is."""
    rank: Callable[[Mapping[str, int]], int]
    """Where it stands among the structures."""
    fits: Callable[[Params], bool]
    """Whether a point fits the device."""

    def constraints(self, params: Params, definition: Definition) -> bool:
        """Whether the point is in the space and fits the device."""
        del definition
        known = params.keys() == self.params.keys()
        return (
            known
            and all(value in self.params[name] for name, value in params.items())
            and self.fits(params)
        )


def infer_space(
    solution: Solution, definition: Definition, *, device: DeviceFacts, name: str = ""
) -> InferredSpace:
    """Return the space around a variant: its own point is always in it.

    Parameters
    ----------
    solution
        The variant; its source is read, not run.
    definition
        What it computes.
    device
        Where it is to run.
    name
        Structure; the solution's own where empty.
    """
    gpu = solution.language is Language.TRITON
    roles = _triton_roles(solution) if gpu else None
    params = {
        param: _with(value, _choices(param, value, solution, roles=roles, device=device))
        for param, value in solution.params.items()
    }
    own = dict(solution.params)

    def fits(point: Params) -> bool:
        return dict(point) == own or (
            not gpu or _fits_gpu(point, definition, solution, roles=roles, device=device)
        )

    return InferredSpace(
        name=name or solution.structure,
        params=params,
        starts=lambda _axes: (own,),
        rank=lambda _axes: 0,
        fits=fits,
    )


class Widened:
    """A tunable with the space of one more source, and with that source as the incumbent.

    Parameters
    ----------
    tunable
        The definition with its spaces.
    incumbent
        The variant in production.
    space
        Its space; None where the tunable has it already.
    """

    def __init__(
        self, tunable: Tunable, incumbent: Solution, *, space: InferredSpace | None
    ) -> None:
        self._tunable = tunable
        self._space = space
        self.incumbent = incumbent

    @property
    def definition(self) -> Definition:
        """What is computed."""
        return self._tunable.definition

    @property
    def spaces(self) -> tuple[SpaceLike, ...]:
        """Structures that implement it."""
        own = (self._space,) if self._space is not None else ()
        return (*self._tunable.spaces, *own)

    def solution(self, structure: str, params: Params) -> Solution:
        """Return the variant at one point.

        Raises
        ------
        UsageError
            If the structure is unknown or the point is not in its space.
        """
        if self._space is None or structure != self._space.name:
            return self._tunable.solution(structure, params)
        if not self._space.constraints(params, self.definition):
            raise UsageError(f"{structure} cannot be built with {dict(params)}")
        point = "-".join(f"{name.lower()}{value}" for name, value in params.items())
        return self.incumbent.model_copy(
            update={
                "name": f"{self.definition.op_type}.{structure}.{point}"[:128],
                "structure": structure,
                "params": {name: params[name] for name in self.incumbent.params},
                "author": "parameters",
            }
        )


def widen(tunable: Tunable, incumbent: Solution, *, device: DeviceFacts) -> Tunable:
    """Return the tunable as a plan sees it: its incumbent, with an inferred space if it has none.

    Parameters
    ----------
    tunable
        The definition with its spaces.
    incumbent
        The variant in production, which may be from outside the catalog.
    device
        Where it is to run.
    """
    if incumbent.digest == tunable.incumbent.digest:
        return tunable
    for space in tunable.spaces:
        if space.name == incumbent.structure:
            if _is_of(tunable, incumbent):
                return Widened(tunable, incumbent, space=None)
            name = f"{incumbent.structure}.own"[:128]
            break
    else:
        name = incumbent.structure
    space = infer_space(incumbent, tunable.definition, device=device, name=name)
    if math.prod(len(choices) for choices in space.params.values()) == 1:
        return Widened(tunable, incumbent, space=None)  # a source without parameters
    return Widened(tunable, incumbent, space=space)


def _is_of(tunable: Tunable, incumbent: Solution) -> bool:
    """Whether the variant is a point of the tunable's own source."""
    try:
        return tunable.solution(incumbent.structure, incumbent.params).digest == incumbent.digest
    except UsageError:
        return False


@dataclass(frozen=True, slots=True)
class _Roles:
    """What the source does with its names."""

    in_grid: frozenset[str] = frozenset()
    in_step: frozenset[str] = frozenset()
    uses_dot: bool = False


def _triton_roles(solution: Solution) -> _Roles:
    try:
        names = {name for name, value in solution.params.items() if isinstance(value, int)}
        tree = ast.parse(solution.sources[0].content)
        used = _grid_names(solution)
    except (SyntaxError, ValueError, RecursionError, MemoryError, Refused):
        return _Roles()  # the compiler reports the error
    steps: set[str] = set()
    dot = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else (
                node.func.id if isinstance(node.func, ast.Name) else ""
            )  # fmt: skip
            dot = dot or called == "dot"
            if called in ("range", "static_range") and len(node.args) == 3:
                steps |= {n.id for n in ast.walk(node.args[2]) if isinstance(n, ast.Name)}
    return _Roles(frozenset(used & names), frozenset(steps & names), dot)


def _grid_names(solution: Solution) -> set[str]:
    texts = [text for step in solution.launches for text in step.grid]
    texts += [text for scratch in solution.scratch for text in scratch.shape]
    known = {
        node.id
        for text in texts
        for node in ast.walk(ast.parse(text.strip(), mode="eval"))
        if isinstance(node, ast.Name)
    }
    known -= {"min", "max", "cdiv", "next_pow2"}
    return {name for text in texts for name in parse_grid([text], known).names}


def _choices(
    name: str,
    value: int | str,
    solution: Solution,
    *,
    roles: _Roles | None,
    device: DeviceFacts,
) -> tuple[int, ...]:
    """Return other values that a parameter may have; empty leaves it as it is."""
    if not isinstance(value, int) or value < 0:
        return ()
    if roles is not None:
        return _triton_choices(name, value, roles=roles, device=device)
    return _cpp_choices(name, value, solution, device=device)


def _triton_choices(
    name: str, value: int, *, roles: _Roles, device: DeviceFacts
) -> tuple[int, ...]:
    if name == _WARPS:
        return tuple(1 << n for n in range(5) if 1 << n <= device.most_warps)
    if name == _STAGES:
        return (1, 2, 3, 4)
    if name in _AMD_OPTIONS:
        return _AMD_OPTIONS[name] if device.is_amd else ()
    if name in roles.in_grid | roles.in_step and (value == 1 or _is_power(value)):
        least = 16 if roles.uses_dot and value >= 16 else 1
        return _around(value, least=least)
    # A block that neither the grid nor a loop depends on covers a whole axis: it must stay.
    return (0, 1) if value in (0, 1) and name not in roles.in_grid else ()


def _cpp_choices(
    name: str, value: int, solution: Solution, *, device: DeviceFacts
) -> tuple[int, ...]:
    if f"panels-{value}" in solution.layouts.values():
        return ()  # the layout follows from it, in an unknown way
    if name == VEC:
        return tuple(width for width in (16, 32, 64) if width <= device.vector_bytes)
    if name == THREADS:
        return tuple(1 << n for n in range(8) if 1 << n <= device.units)
    if value in (0, 1):
        return (0, 1)
    if not _is_power(value):
        return ()
    around = _around(value, least=1)
    # Workspace was sized for this value: more of it may need more.
    return tuple(n for n in around if n <= value) if solution.scratch_bytes else around


def _around(value: int, *, least: int) -> tuple[int, ...]:
    found = (value << n if n >= 0 else value >> -n for n in range(-_REACH, _REACH + 1))
    return tuple(n for n in found if least <= n <= _LARGEST)


def _is_power(value: int) -> bool:
    return value > 1 and value & (value - 1) == 0


def _with(value: int | str, choices: tuple[int, ...]) -> tuple[int | str, ...]:
    """Return the choices with the source's own value among them, in order."""
    if not isinstance(value, int):
        return (value,)
    return tuple(sorted({value, *choices}))


def _fits_gpu(
    point: Params,
    definition: Definition,
    solution: Solution,
    *,
    roles: _Roles | None,
    device: DeviceFacts,
) -> bool:
    """Whether a block fits a program's threads, registers and shared memory, as far as is known."""
    if roles is None:
        return True
    rows = [int(point[name]) for name in sorted(roles.in_grid - roles.in_step)]
    steps = [int(point[name]) for name in sorted(roles.in_step)]
    threads = device.lanes * int(point.get(_WARPS, 4))
    held = math.prod(rows) if roles.uses_dot else math.prod(rows) * math.prod(steps)
    if held > _ELEMENTS * threads or threads > 1024:
        return False
    if not roles.uses_dot or not steps or not device.shared_bytes:
        return True
    wide = max(numpy_dtype(spec).itemsize for spec in definition.inputs.values())
    depth = math.prod(steps)
    staged = sum(rows) * depth * wide * max(int(point.get(_STAGES, 2)) - 1, 1)
    return staged <= device.shared_bytes
