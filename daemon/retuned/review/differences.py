"""What a variant changes: parameters side by side, and sources line by line. Pure.

Sources are untrusted text. A comparison is bounded: two files of a megabyte would take minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from retuned.contract import Solution

MOST_LINES = 2_000
"""Longest source that is compared line by line; longer ones are shown as they are."""
MOST_SHOWN = 600
"""Most lines of one file on a page."""
MOST_COLUMNS = 240
"""Longest part of a line on a page."""
AROUND = 3
"""Equal lines around what differs."""

Sort = Literal["same", "gone", "new", "gap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One parameter or fact of the launch, before and after."""

    name: str
    """Which."""
    before: str
    """Of what runs now; empty where it has none."""
    after: str
    """Of the variant; empty where it has none."""

    @property
    def differs(self) -> bool:
        """Whether it changes."""
        return self.before != self.after


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One line of a comparison."""

    sort: Sort
    """Whether it stays, goes, comes, or stands for lines that are left out."""
    old: int | None
    """Its number before."""
    new: int | None
    """Its number after."""
    text: str
    """What it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDifference:
    """One file before and after."""

    path: str
    """Name."""
    marks: tuple[Mark, ...]
    """Lines, with `AROUND` equal ones around each change."""
    added: int
    """Lines that come."""
    removed: int
    """Lines that go."""
    cut: bool = False
    """Whether more was left out than equal lines."""

    @property
    def same(self) -> bool:
        """Whether nothing changes."""
        return not (self.added or self.removed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What a variant changes."""

    values: tuple[Value, ...]
    """Parameters and launch data, those that change first."""
    files: tuple[FileDifference, ...]
    """Sources that change."""
    unchanged: tuple[str, ...]
    """Names of the sources that do not."""
    only_after: bool
    """Whether what runs now is not kept, so that all of the variant is shown as new."""


def difference(before: Solution | None, after: Solution) -> Difference:
    """Compare a variant with what it replaces.

    Parameters
    ----------
    before
        What runs now; None where its source is not kept.
    after
        The variant.
    """
    old = {each.path: each.content for each in before.sources} if before else {}
    new = {each.path: each.content for each in after.sources}
    if len(old) == len(new) == 1:  # one file each, whatever they are called
        old = dict(zip(new, old.values(), strict=True))
    files = [
        _file(path, old.get(path, ""), new.get(path, "")) for path in dict.fromkeys((*old, *new))
    ]
    values = [*_values(_facts(before) if before else {}, _facts(after))]
    return Difference(
        values=tuple(sorted(values, key=lambda value: not value.differs)),
        files=tuple(each for each in files if not each.same),
        unchanged=tuple(each.path for each in files if each.same),
        only_after=before is None,
    )


def _facts(solution: Solution) -> dict[str, str]:
    """Return everything but the sources that decides what runs."""
    found = {name: str(value) for name, value in solution.params.items()}
    found |= {f"layout of {name}": layout for name, layout in solution.layouts.items()}
    for number, step in enumerate(solution.steps, start=1):
        found[f"step {number}"] = f"{step.entry} over {_grid(step.grid)}"
        found |= {f"step {number} {name}": str(value) for name, value in step.params.items()}
    if solution.grid:
        found["grid"] = _grid(solution.grid)
    if solution.scratch_bytes:
        found["scratch"] = f"{solution.scratch_bytes} bytes"
    for scratch in solution.scratch:
        found[f"scratch {scratch.name}"] = f"{scratch.dtype} {_grid(scratch.shape)}"
    return found | {"structure": solution.structure, "language": solution.language.value}


def _grid(parts: tuple[str, ...]) -> str:
    return "(" + ", ".join(parts) + ")"


def _values(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Value]:
    for name in dict.fromkeys((*after, *before)):
        yield Value(name=name, before=before.get(name, ""), after=after.get(name, ""))


def _file(path: str, before: str, after: str) -> FileDifference:
    old, new = before.splitlines(), after.splitlines()
    if old == new:
        return FileDifference(path=path, marks=(), added=0, removed=0)
    if max(len(old), len(new)) > MOST_LINES:
        marks = [_mark("new", None, number, text) for number, text in enumerate(new, start=1)]
        return _bounded(path, marks, added=len(new), removed=len(old))
    marks, added, removed = [], 0, 0
    groups = SequenceMatcher(a=old, b=new, autojunk=False).get_grouped_opcodes(AROUND)
    for group in groups:
        if marks or group[0][1] > 0:
            marks.append(Mark(sort="gap", old=None, new=None, text=""))
        for tag, a, b, c, d in group:
            if tag == "equal":
                marks += [_mark("same", a + i + 1, c + i + 1, old[a + i]) for i in range(b - a)]
                continue
            marks += [_mark("gone", i + 1, None, old[i]) for i in range(a, b)]
            marks += [_mark("new", None, i + 1, new[i]) for i in range(c, d)]
            removed, added = removed + b - a, added + d - c
    return _bounded(path, marks, added=added, removed=removed)


def _mark(sort: Sort, old: int | None, new: int | None, text: str) -> Mark:
    cut = (
        text if len(text) <= MOST_COLUMNS else text[: MOST_COLUMNS - 1] + "\N{HORIZONTAL ELLIPSIS}"
    )
    return Mark(sort=sort, old=old, new=new, text=cut.expandtabs(4))


def _bounded(path: str, marks: list[Mark], *, added: int, removed: int) -> FileDifference:
    return FileDifference(
        path=path,
        marks=tuple(marks[:MOST_SHOWN]),
        added=added,
        removed=removed,
        cut=len(marks) > MOST_SHOWN,
    )
