"""What each pointer of a live kernel is: an input, an output, or a reason not to lift it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from retuned.contract import DType
from retuned.lifting.flow import Flow
from retuned.lifting.refusing import NotLifted

_WHOLE = frozenset({DType.INT64, DType.INT32, DType.INT8, DType.UINT8, DType.BOOL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Pointers, in the order of the parameters."""

    inputs: tuple[str, ...]
    """Read."""
    outputs: tuple[str, ...]
    """Written."""
    idle: tuple[str, ...]
    """Neither: another pointer of the type is passed in their place."""


def roles_of(flow: Flow, dtypes: Mapping[str, DType], *, bounded: frozenset[str]) -> Roles:
    """Sort pointers.

    Parameters
    ----------
    flow
        Of the source.
    dtypes
        Element type of each pointer.
    bounded
        Inputs whose numbers somebody gave bounds for.

    Raises
    ------
    NotLifted
        ``atomic-output``, ``in-place``, ``no-outputs``, ``no-inputs``, ``index-bounds-unknown``
        or ``pointer-unused``.
    """
    if flow.atomic:
        detail = f"{_list(flow.atomic)}: changed atomically, so a launch adds to what was there"
        raise NotLifted("atomic-output", detail=detail)
    both = flow.loaded & flow.stored
    if both:
        detail = f"{_list(both)}: read and written, so a second launch would not see the same"
        raise NotLifted("in-place", detail=detail)
    if not flow.stored:
        raise NotLifted("no-outputs", detail="it writes to none of its pointers")
    if not flow.loaded:
        raise NotLifted("no-inputs", detail="it reads none of its pointers")
    unknown = flow.places - bounded
    if unknown:
        detail = f"{_list(unknown)}: its numbers are places or counts; give bounds for them"
        raise NotLifted("index-bounds-unknown", detail=detail)
    used = flow.loaded | flow.stored
    kept = {dtypes[name] for name in used}
    idle = tuple(name for name in dtypes if name not in used)
    for name in idle:
        if dtypes[name] not in kept:
            detail = f"'{name}' is neither read nor written, and no other tensor has its type"
            raise NotLifted("pointer-unused", detail=detail)
    return Roles(
        inputs=tuple(name for name in dtypes if name in flow.loaded),
        outputs=tuple(name for name in dtypes if name in flow.stored),
        idle=idle,
    )


def is_whole(dtype: DType) -> bool:
    """Whether an element type holds whole numbers only."""
    return dtype in _WHOLE


def _list(names: set[str] | frozenset[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
