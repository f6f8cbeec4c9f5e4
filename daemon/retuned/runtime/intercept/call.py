"""One intercepted launch of a kernel that has a slot."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retuned.runtime.intercept.registry import Kernel
from retuned.runtime.schema import Key

GridNumbers = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LaunchOutcome:
    variant: Any
    plan: Any
    ready: Any
    key: Key
    grid: GridNumbers


class LaunchCall:
    """A launch as the server made it; the server's own code or a variant may execute it.

    Parameters
    ----------
    target
        The ``JITFunction``, or the ``GridExecutor`` of the interpreter.
    args, kwargs
        As the server passed them.
    grid
        Numbers, or a function of the arguments.
    plain
        Triton's own launch.
    counted
        The same, counted.
    """

    # Class attributes, not slots: most launches keep the defaults, which then cost nothing.
    result: Any = None
    spare: list[Any] | None = None
    """On a checked launch: arguments in memory that does not belong to the server.

    After the check, the variant may only be run on them.
    """
    ran: LaunchOutcome | None = None
    """What served the launch; None for the server's own code, and for a launch that was checked."""
    _values: Sequence[Any] | None = None
    _grid: GridNumbers | None = None
    _reference: list[Any] | None = None

    def __init__(
        self,
        kernel: Kernel,
        target: Any,  # noqa: ANN401 - of the server's Triton
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        grid: Any,  # noqa: ANN401 - numbers or a function
        plain: Callable[..., Any],
        counted: Callable[..., Any],
    ) -> None:
        self.kernel = kernel
        self.target = target
        self.args = args
        self.kwargs = kwargs
        self.grid = grid
        self.plain = plain
        self.counted = counted

    @property
    def reference(self) -> list[Any]:
        """On a checked launch: outputs of the server's own code for the same inputs."""
        if self._reference is None:
            self._reference = []
        return self._reference

    @property
    def is_cuda(self) -> bool:
        """Whether it launches on a device, whose own clock then times it."""
        return any(getattr(value, "is_cuda", False) for value in self.values())

    def through_slot(self) -> Any:  # noqa: ANN401 - as Triton's launch
        slot = self.kernel.slot
        if slot is None:  # closed by another thread
            return self.stock()
        slot(self)
        return self.result

    def stock(self) -> Any:  # noqa: ANN401 - as Triton's launch
        self.result = self.counted(self.kernel, self.target, self.args, self.kwargs)
        return self.result

    def values(self) -> Sequence[Any]:
        """Return the value of every parameter, in order; raises ValueError as `Kernel.bind`."""
        values = self._values
        if values is None:
            kernel, args = self.kernel, self.args
            if len(args) == len(kernel.parameters) and not kernel.variadic:
                values = self._values = args
            else:
                values = self._values = kernel.bind(args, self.kwargs)
        return values

    def options(self) -> dict[str, Any]:
        names = self.kernel.names
        return {
            name: value
            for name, value in self.kwargs.items()
            if name not in names and name not in ("grid", "warmup")
        }

    def grid_numbers(self) -> GridNumbers:
        """Return the grid of the server's own launch; raises ValueError if it is invalid."""
        if self._grid is None:
            grid = self.grid
            if grid.__class__ is tuple and len(grid) == 1 and grid[0].__class__ is int:
                self._grid = (grid[0], 1, 1)  # the usual case
            else:
                self._grid = self.grid_for({})
        return self._grid

    def grid_for(self, changed: Mapping[str, Any]) -> GridNumbers:
        """Return the server's grid with other constexprs; raises ValueError if it is invalid."""
        grid = self.grid
        if callable(grid):
            parameters = self.kernel.parameters
            names = (each.name for each in parameters)
            grid = grid({**dict(zip(names, self.values(), strict=True)), **changed})
        numbers = [int(length) for length in grid]
        if not 1 <= len(numbers) <= 3:
            raise ValueError(f"a grid of {len(numbers)} dimensions")
        x, y, z = (*numbers, 1, 1)[:3]
        return x, y, z

    def run_on(self, values: Sequence[Any]) -> None:
        given = len(self.args)
        names = [each.name for each in self.kernel.parameters]
        kwargs = dict(self.kwargs)
        for name, value in zip(names[given:], values[given:], strict=True):
            if name in kwargs:
                kwargs[name] = value
        target = self.target
        if self.kernel.interpreted:
            target = copy.copy(target)
            target.grid = self.grid_numbers()
        else:
            kwargs["grid"] = self.grid
        self.plain(target, *values[:given], **kwargs)
