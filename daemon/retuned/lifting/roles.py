"""Roles of a live kernel's pointers: input, output, both, or a reason not to lift it.

A pointer that is read and written becomes two tensors of the definition: an input with the previous
contents, which stays unchanged, and an output that starts as a copy of it and is passed to the
kernel. So a launch can be repeated and its result compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from retuned.contract import DType
from retuned.lifting.data_flow import Flow
from retuned.lifting.records import NotLifted

_WHOLE = frozenset({DType.INT64, DType.INT32, DType.INT8, DType.UINT8, DType.BOOL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Pointers, in the order of the parameters."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    """Written pointers, by their names in the definition."""
    idle: tuple[str, ...]
    """Unused pointers: another pointer of the type is passed in their place."""
    updated: Mapping[str, str] = field(default_factory=dict)
    """Output -> pointer, for pointers changed in place; other outputs have their pointer's name."""

    def pointer(self, tensor: str) -> str:
        return self.updated.get(tensor, tensor)

    @property
    def passed(self) -> dict[str, str]:
        """Tensor that is passed for each pointer; for one changed in place, the output."""
        found = {name: name for name in self.inputs}
        return found | {self.pointer(name): name for name in self.outputs}


def roles_of(
    flow: Flow,
    dtypes: Mapping[str, DType],
    *,
    bounded: frozenset[str],
    taken: Collection[str] = (),
) -> Roles:
    """Classify the pointers.

    `bounded` are inputs with user-provided bounds. `taken` are names that outputs must not get,
    besides those of pointers.

    Raises
    ------
    NotLifted
        ``atomic-output``, ``in-place-index``, ``no-outputs``, ``no-inputs``, ``bounds-unknown``,
        ``index-bounds-unknown`` or ``pointer-unused``.
    """
    if flow.atomic:
        detail = f"{_list(flow.atomic)}: changed atomically, so a launch adds to what was there"
        raise NotLifted("atomic-output", detail=detail, line=flow.line("atomic", flow.atomic))
    both = (flow.loaded & flow.stored) | flow.scattered
    moving = both & flow.places
    if moving:
        detail = f"{_list(moving)}: its numbers are places or counts, and it is written over"
        raise NotLifted("in-place-index", detail=detail, line=flow.line("place", moving))
    if not flow.stored:
        raise NotLifted("no-outputs", detail="it writes to none of its pointers")
    if not flow.loaded:
        raise NotLifted("no-inputs", detail="it reads none of its pointers")
    strange = {name for name in bounded if name not in dtypes or not is_whole(dtypes[name])}
    if strange:
        detail = f"{_list(strange)}: bounds are given, but it is not a pointer to integers"
        raise NotLifted("bounds-unknown", detail=detail)
    unknown = flow.places - bounded
    if unknown:
        told = _list(unknown)
        detail = (
            f"{told}: its numbers are indices or counts; set bounds in the setting kernel_bounds"
        )
        line = flow.line("place", unknown)
        raise NotLifted("index-bounds-unknown", detail=detail, line=line)
    used = flow.loaded | flow.stored
    kept = {dtypes[name] for name in used}
    idle = tuple(name for name in dtypes if name not in used)
    for name in idle:
        if dtypes[name] not in kept:
            detail = f"'{name}' is neither read nor written, and no other tensor has its type"
            raise NotLifted("pointer-unused", detail=detail)
    left = _left_behind([name for name in dtypes if name in both], {*dtypes, *taken})
    return Roles(
        inputs=tuple(name for name in dtypes if name in flow.loaded | both),
        outputs=tuple(left.get(name, name) for name in dtypes if name in flow.stored),
        idle=idle,
        updated={output: name for name, output in left.items()},
    )


def _left_behind(names: Collection[str], taken: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        stem, number = f"{name.rstrip('_')}_out", 1
        output = stem
        while output in taken or output in found.values():
            number += 1
            output = f"{stem}{number}"
        found[name] = output
    return found


def is_whole(dtype: DType) -> bool:
    return dtype in _WHOLE


def _list(names: set[str] | frozenset[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
