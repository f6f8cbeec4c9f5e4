"""GPU bindings of a C++ variant: grid, block and shared memory from its parameters.

The block is three integer parameters of the variant, ``BLOCK_X`` and, if they are not 1,
``BLOCK_Y`` and ``BLOCK_Z``. The source is compiled with them, so that its block is known. The
parameter ``SHARED_BYTES`` is the dynamic shared memory of a launch. The grid is expressions over
axes and integer parameters, as for Triton.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retuned.runtime.core.grid import Grid, parse_grid
from retuned.runtime.schema import Refused

BLOCK = ("BLOCK_X", "BLOCK_Y", "BLOCK_Z")
SHARED = "SHARED_BYTES"
MAX_THREADS = 1024
"""Threads of a block on every GPU of both vendors."""
WHOLE_WARPS = 32
"""Blocks have a multiple of this many threads.

64 if a block is larger than a wave of AMD's GPUs.
"""
MAX_SHARED_BYTES = 256 << 10
_MAX_X_THREADS = 2**32 - 1
"""Along the first dimension, on AMD's GPUs."""
_MAX_YZ = 65_535
"""Blocks along the second and third dimension, on NVIDIA's GPUs."""
_MAX_DEPTH = 64
"""Threads along the third dimension, on NVIDIA's GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchShape:
    axes: tuple[str, ...]
    block: tuple[int, int, int]
    shared_bytes: int
    grid: Grid
    numbers: Mapping[str, int]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    def grid_at(self, lengths: Sequence[int]) -> tuple[int, int, int]:
        """Return the blocks of a launch.

        Raises
        ------
        Refused
            ``grid-invalid`` if a device exists that cannot launch the result.
        """
        named = {**self.numbers, **dict(zip(self.axes, lengths, strict=True))}
        found = self.grid.at(named)
        if max(found[1:]) > _MAX_YZ or found[0] * self.block[0] > _MAX_X_THREADS:
            detail = f"the grid {found} of blocks {self.block} is wider than any device"
            raise Refused("grid-invalid", detail=detail)
        return found


def launch_shape(
    *, params: Mapping[str, int | str], grid: Sequence[str], axes: Sequence[str]
) -> LaunchShape:
    """Parse the launch of a variant.

    Raises
    ------
    Refused
        ``contract-violated`` or ``grid-invalid``.

    Examples
    --------
    >>> made = launch_shape(params={"BLOCK_X": 128}, grid=["cdiv(M, 4)"], axes=["M"])
    >>> made.block, made.grid_at([9])
    ((128, 1, 1), (3, 1, 1))
    """
    if "BLOCK_X" not in params:
        raise _refused("the parameter BLOCK_X, the threads of a block, is missing")
    x, y, z = (_number(params, name, default=1, least=1, most=MAX_THREADS) for name in BLOCK)
    if x * y * z > MAX_THREADS or z > _MAX_DEPTH:
        raise _refused(f"blocks of {x} x {y} x {z} threads are larger than {MAX_THREADS}")
    if x * y * z % WHOLE_WARPS:
        raise _refused(f"blocks of {x} x {y} x {z} threads are not whole warps of {WHOLE_WARPS}")
    numbers = {name: value for name, value in params.items() if type(value) is int}
    clash = sorted(numbers.keys() & set(axes))
    if clash:
        raise _refused(f"{clash[0]} is an axis and a parameter")
    return LaunchShape(
        axes=tuple(axes),
        block=(x, y, z),
        shared_bytes=_number(params, SHARED, default=0, least=0, most=MAX_SHARED_BYTES),
        grid=parse_grid(grid, [*axes, *numbers]),
        numbers=numbers,
    )


def _number(
    params: Mapping[str, int | str], name: str, *, default: int, least: int, most: int
) -> int:
    value = params.get(name, default)
    if type(value) is not int or not least <= value <= most:
        raise _refused(f"{name}={str(value)[:40]} is not a whole number from {least} to {most}")
    return value


def _refused(detail: str) -> Refused:
    return Refused("contract-violated", detail=detail)
