"""Memory of variants in a server: scratch per stream, named scratch, and repacked weights.

Launches on one stream follow each other, so one block of scratch serves them all, as large as the
largest of the prepared lengths needs. A launch never allocates. If its stream has no block yet, or
one that is too small, the incumbent serves it, and the control thread allocates a block. Two
threads that launch on one stream at the same time would mix their steps, so the incumbent serves
the second.

Named scratch passes data between the launches of one variant. Constant inputs (weights) are
repacked to the layout that a variant needs.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retuned.runtime.core.grid import Grid, parse_grid
from retuned.runtime.schema import DTYPES, Refused, Tensor

MAX_BYTES = 2 << 30
MAX_STREAMS = 8
"""Streams that get a block; the incumbent serves launches on others."""


class Lane:
    __slots__ = ("block", "lock", "views")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held from the first step of a launch to the last."""
        self.block: Tensor | None = None
        self.views: dict[Any, Any] = {}
        """Views of the block that launches have cached; dropped with it."""


class Blocks:
    """All blocks of one variant."""

    def __init__(self, torch: Any, device: Any, *, limit_bytes: int = MAX_BYTES) -> None:  # noqa: ANN401
        self._torch = torch
        self._device = device
        self._limit_bytes = limit_bytes
        self._size = 0
        self._bytes = 0
        self._spare: Tensor | None = None
        self._lanes: dict[int, Lane] = {}
        self._wanted = 0
        self._refused = limit_bytes + 1
        self._guard = threading.Lock()

    # --- on the control thread --------------------------------------------------------------------

    def reserve(self, size: int) -> None:
        """Allocate a block of at least `size` bytes for the next stream that needs one.

        Raises
        ------
        Refused
            ``scratch-memory`` if the blocks would exceed the limit or the device has no memory.
        """
        self._size = max(self._size, size)
        spare = self._spare
        if spare is not None and spare.numel() >= self._size:
            return
        if any(_holds(lane, self._size) for lane in list(self._lanes.values())):
            return
        self._make()

    def serve(self) -> int:
        """Allocate a block if a launch needed one; return how many were allocated.

        Raises
        ------
        Refused
            As `reserve`; this size is not tried again.
        """
        wanted, self._wanted = self._wanted, 0
        if not wanted:
            return 0
        self._size = max(self._size, wanted)
        try:
            self._make()
        except Refused:
            self._refused = min(self._refused, wanted)
            raise
        return 1

    # --- on the request path ----------------------------------------------------------------------

    def take(self, stream: int, size: int) -> Lane | None:
        """Return the stream's lane, locked by the caller; None if it has no block or is in use."""
        lane = self._lanes.get(stream)
        if lane is None:
            if len(self._lanes) >= MAX_STREAMS:
                return None
            lane = self._lanes.setdefault(stream, Lane())
        if not lane.lock.acquire(blocking=False):
            return None
        if not _holds(lane, size) and not self._hand_over(lane, size):
            lane.lock.release()
            return None
        return lane

    def _hand_over(self, lane: Lane, size: int) -> bool:
        with self._guard:
            spare = self._spare
            if spare is None or spare.numel() < size:
                if size < self._refused:
                    self._wanted = max(self._wanted, size)
                return False
            self._spare = None
            if lane.block is not None:
                self._bytes -= int(lane.block.numel())
            if spare.is_cuda:  # it must not be freed before this stream has finished with it
                spare.record_stream(self._torch.cuda.current_stream(spare.device))
            lane.views = {}
            lane.block = spare
        return True

    def _make(self) -> None:
        spare = self._spare
        kept = 0 if spare is None else int(spare.numel())
        if self._bytes - kept + self._size > self._limit_bytes:
            raise self._passed()
        try:
            made = self._torch.empty(self._size, dtype=self._torch.uint8, device=self._device)
        except RuntimeError as error:  # also out of memory
            raise Refused("scratch-memory", detail=f"{error!r:.200}") from error
        if made.is_cuda:  # earlier uses of this memory must end; launches use it from any stream
            self._torch.cuda.current_stream(made.device).synchronize()
        with self._guard:
            kept = 0 if self._spare is None else int(self._spare.numel())
            if self._bytes - kept + self._size > self._limit_bytes:  # a launch has taken the spare
                raise self._passed()
            self._bytes += self._size - kept
            self._spare = made

    def _passed(self) -> Refused:
        detail = f"scratch of {self._size} bytes a stream would exceed {self._limit_bytes} bytes"
        return Refused("scratch-memory", detail=detail)


def _holds(lane: Lane, size: int) -> bool:
    block = lane.block
    return block is not None and int(block.numel()) >= size


MAX_SCRATCH_BYTES = 2**30
MAX_WORKSPACES = 16
MAX_RANK = 8
_ITEM_BYTES = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
_SYMBOL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,127}\Z")
_FIELDS = {"name", "dtype", "shape", "zeroed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    name: str
    dtype: str
    zeroed: bool
    """Filled with zeros at the start of every launch."""
    shape: tuple[Grid, ...]
    integers: Mapping[str, int]

    @property
    def item_bytes(self) -> int:
        return _ITEM_BYTES[self.dtype]

    @property
    def names(self) -> frozenset[str]:
        return frozenset().union(*(each.names for each in self.shape))

    def shape_at(self, lengths: Mapping[str, int]) -> tuple[int, ...]:
        """Return the length of every dimension.

        Raises
        ------
        Refused
            ``scratch-invalid`` if one is below 1 or an expression cannot be computed.
        """
        known = {**self.integers, **lengths}
        try:
            return tuple(each.at(known)[0] for each in self.shape)
        except Refused as error:
            raise _invalid(f"'{self.name}': {error.detail}") from error

    def bytes_at(self, lengths: Mapping[str, int]) -> int:
        """Return its size.

        Raises
        ------
        Refused
            ``scratch-invalid``, or ``scratch-too-large`` beyond `MAX_SCRATCH_BYTES`.
        """
        size = math.prod(self.shape_at(lengths)) * self.item_bytes
        if size > MAX_SCRATCH_BYTES:
            raise _too_large(f"'{self.name}' takes {size} bytes", lengths)
        return size


def parse_workspaces(
    declared: Sequence[Mapping[str, Any]], *, params: Mapping[str, int | str], axes: Sequence[str]
) -> tuple[Workspace, ...]:
    """Parse the declared scratch of a variant.

    Parameters
    ----------
    declared
        One object a piece: ``name``, ``dtype``, ``shape`` and optionally ``zeroed``.

    Raises
    ------
    Refused
        ``scratch-invalid``, naming the piece.
    """
    if not isinstance(declared, (list, tuple)) or len(declared) > MAX_WORKSPACES:
        raise _invalid(f"is not a list of at most {MAX_WORKSPACES} pieces")
    integers = {name: value for name, value in params.items() if type(value) is int}
    return tuple(_workspace(each, integers, {*integers, *axes}) for each in declared)


def sizes_at(workspaces: Sequence[Workspace], lengths: Mapping[str, int]) -> list[int]:
    """Return the bytes of each at these lengths of all axes.

    Raises
    ------
    Refused
        ``scratch-invalid``, or ``scratch-too-large`` if they exceed `MAX_SCRATCH_BYTES` together.
    """
    sizes = [each.bytes_at(lengths) for each in workspaces]
    if sum(sizes) > MAX_SCRATCH_BYTES:
        raise _too_large(f"{len(sizes)} pieces take {sum(sizes)} bytes together", lengths)
    return sizes


def _workspace(body: object, integers: Mapping[str, int], known: Collection[str]) -> Workspace:
    if not isinstance(body, Mapping) or not {"name", "dtype", "shape"} <= set(body) <= _FIELDS:
        raise _invalid("a piece needs name, dtype and shape, and may have zeroed")
    name, dtype, shape = body["name"], body["dtype"], body["shape"]
    zeroed = body.get("zeroed", False)
    if not isinstance(name, str) or not _SYMBOL.match(name):
        raise _invalid(f"{name!r:.80} is not a plain name")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _invalid(f"'{name}' has the element type {dtype!r:.40}")
    if not isinstance(zeroed, bool):
        raise _invalid(f"'{name}': zeroed must be true or false")
    if not isinstance(shape, (list, tuple)) or not 1 <= len(shape) <= MAX_RANK:
        raise _invalid(f"'{name}' needs one to {MAX_RANK} dimensions")
    try:
        parsed = tuple(parse_grid([each], known) for each in shape)
    except Refused as error:
        raise _invalid(f"'{name}': {error.detail}") from error
    return Workspace(name=name, dtype=str(dtype), zeroed=zeroed, shape=parsed, integers=integers)


def _invalid(problem: str) -> Refused:
    return Refused("scratch-invalid", detail=f"scratch: {problem}"[:400])


def _too_large(problem: str, lengths: Mapping[str, int]) -> Refused:
    at = ", ".join(f"{name}={length}" for name, length in lengths.items())
    detail = f"scratch: {problem} at {at}; the limit is {MAX_SCRATCH_BYTES}"
    return Refused("scratch-too-large", detail=detail[:400])


def repack(weight: Any, layout: str) -> Any:  # noqa: ANN401 - ndarray or Tensor, neither may be imported here
    """Return `weight` of shape (N, K) in `layout`, contiguous.

    ``as-is``: unchanged. ``transposed``: (K, N). ``panels-P``: (N / P, K, P), so that P outputs of
    one k are adjacent.

    Raises
    ------
    ValueError
        If the layout is unknown or N is not a multiple of P.
    """
    if layout == "as-is":
        return weight
    if layout == "transposed":
        return _contiguous(weight.swapaxes(0, 1))
    prefix, _, digits = layout.partition("-")
    if prefix != "panels" or not digits.isdigit() or int(digits) < 1:
        raise ValueError(f"unknown weight layout '{layout}'")
    panel = int(digits)
    rows, depth = weight.shape
    if rows % panel:
        raise ValueError(f"layout '{layout}' needs rows divisible by {panel}, got {rows}")
    return _contiguous(weight.reshape(rows // panel, panel, depth).swapaxes(1, 2))


def _contiguous(value: Any) -> Any:  # noqa: ANN401 - see repack
    return value.contiguous() if hasattr(value, "contiguous") else value.copy()
