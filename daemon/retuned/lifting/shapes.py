"""Axis lengths inferred from launches: how many elements each tensor has, and why.

A tensor's elements are an integer times a product of numbers in the launch: arguments, or programs
of the grid if nothing else gives the rows. A product counts only if it fits every observed launch.
If two different products fit, more launches are needed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from math import prod

from retuned.lifting.records import MORE, NotLifted

_MOST_FACTORS = 3
_GRID = "grid"
_MOST_AXES = 12
_MOST_ATOMS = 24
_MOST_PACKED = 16
"""Maximum of tensors packed in one, row by row: a stride may be so many times a length."""
_LONGEST = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One distinct launch, as numbers."""

    ints: Mapping[str, int]
    numels: Mapping[str, int]
    constants: Mapping[str, int]
    grid: tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Axes of a kernel, and the values they explain."""

    lengths: Mapping[str, tuple[int, ...]]
    sources: Mapping[str, str]
    """Source of each axis in a launch: ``param:NAME``, ``grid:0`` or ``const``."""
    ints: Mapping[str, tuple[str | int, ...]]
    shapes: Mapping[str, tuple[str, ...]]
    fixed: frozenset[str] = field(default_factory=frozenset)
    """Constexprs that lengths depend on, and that are therefore outside the space."""

    @property
    def variable(self) -> tuple[str, ...]:
        return tuple(name for name, found in self.lengths.items() if len(set(found)) > 1)


def axes_of(launches: Sequence[Launch], *, ranges: Collection[str] = ()) -> Axes:
    """Explain every length.

    All `launches` have the same parameters. `ranges` are constexprs that are tile lengths, and so
    not tensor lengths.

    Raises
    ------
    NotLifted
        ``needs-more-launches``, ``shape-unknown``, ``strides-not-contiguous``,
        ``int-unexplained``, ``int-out-of-range`` or ``empty-tensor``.
    """
    if len({tuple(launch.numels.items()) for launch in launches}) < 2:
        detail = "every launch that was seen had the same lengths; what varies is not known yet"
        raise NotLifted(MORE, detail=detail)
    _check_numbers(launches)
    return _Explained(launches, ranges).axes()


def _check_numbers(launches: Sequence[Launch]) -> None:
    """Refuse numbers that are not lengths; one that is always negative is a marker."""
    marks = {
        name
        for name, number in launches[0].ints.items()
        if -_LONGEST <= number < 0 and "stride" not in name.lower()
        if all(launch.ints[name] == number for launch in launches)
    }
    for launch in launches:
        for name, number in launch.ints.items():
            if not 0 <= number <= _LONGEST and name not in marks:
                raise NotLifted("int-out-of-range", detail=f"'{name}' is {number}")
        for name, count in launch.numels.items():
            if count < 1:
                raise NotLifted("empty-tensor", detail=f"'{name}' had no elements")


class _Explained:
    """Works on columns: one number per launch."""

    def __init__(self, launches: Sequence[Launch], ranges: Collection[str]) -> None:
        first = launches[0]
        self._launches = launches
        self._ints = {n: tuple(each.ints[n] for each in launches) for n in first.ints}
        self._numels = {n: tuple(each.numels[n] for each in launches) for n in first.numels}
        self._constants = {
            n: tuple(each.constants[n] for each in launches)
            for n in first.constants
            if n not in ranges
        }
        self._grid = [tuple(each.grid[d] for each in launches) for d in range(3)]
        self._atoms: dict[str, tuple[int, ...]] = {}
        self._sources: dict[str, str] = {}
        self._names: dict[str, tuple[str | int, ...]] = {}
        self._fixed: set[str] = set()
        self._used: set[str] = set()

    def axes(self) -> Axes:
        lengths = [name for name in self._ints if "stride" not in name.lower()]
        for name in lengths:
            self._take(name)
        if len(self._atoms) > _MOST_ATOMS:
            detail = f"it has {len(self._atoms)} different numbers, too many"
            raise NotLifted("shape-unknown", detail=detail)
        strides = [name for name in self._ints if name not in lengths]
        later = [name for name in strides if not self._is_product(name)]
        for name in later:
            self._take(name)
        shapes = {name: self._shape(name, column) for name, column in self._numels.items()}
        self._check_strides([name for name in later if self._names[name] == (name,)])
        self._settle()
        kept = {name: self._atoms[name] for name in self._atoms if name in self._used}
        if len(kept) > _MOST_AXES:
            raise NotLifted("shape-unknown", detail=f"it has {len(kept)} axes, too many")
        return Axes(
            lengths=kept,
            sources={name: self._sources[name] for name in kept},
            ints=self._names,
            shapes=shapes,
            fixed=frozenset(self._fixed),
        )

    def _take(self, name: str) -> None:
        column = self._ints[name]
        if column[0] < 0:
            self._names[name] = (column[0],)
            return
        if set(column) <= {0, 1}:
            if len(set(column)) > 1:
                raise NotLifted("int-unexplained", detail=f"'{name}' is 0 or 1")
            self._names[name] = (column[0],)
            return
        if 0 in column:
            raise NotLifted("int-unexplained", detail=f"'{name}' is 0 in some launches")
        for other, known in self._atoms.items():
            if known == column:
                self._names[name] = (other,)
                return
        self._atoms[name] = column
        self._sources[name] = f"param:{name}"
        self._names[name] = (name,)

    def _is_product(self, name: str) -> bool:
        """Express a stride as a product of lengths, where every launch agrees."""
        column = self._ints[name]
        if set(column) == {1}:
            self._names[name] = (1,)
            return True
        found = self._product(column, self._atoms, most=_MOST_FACTORS, whole=False)
        if found is None and len(set(column)) > 1:
            found = self._product(column, self._atoms, most=_MOST_FACTORS, whole=True, what=name)
        if found is None or found[1] > _MOST_PACKED:
            return False
        factors, times = found
        self._names[name] = factors if times == 1 else (times, *factors)
        return True

    def _shape(self, name: str, column: tuple[int, ...]) -> tuple[str, ...]:
        found = self._product(column, self._atoms, most=_MOST_FACTORS, whole=True, what=name)
        if found is None:
            found = self._with_grid(name, column)
        factors, times = found
        axes = [str(factor) for factor in factors]
        if times != 1:
            axes += self._constant_axes(times, of=name)
        self._used |= set(axes)
        rank = {axis: place for place, axis in enumerate(self._ordered())}
        return tuple(sorted(axes, key=lambda axis: rank.get(axis, len(rank))))

    def _ordered(self) -> list[str]:
        """Order axes: rows first, because a grid counts the outermost, then by parameter."""
        rows = [name for name in self._atoms if self._sources[name].startswith(_GRID)]
        rest = [name for name in self._atoms if name not in rows]
        moving = [name for name in rest if len(set(self._atoms[name])) > 1]
        return [*rows, *moving, *[name for name in rest if name not in moving]]

    def _with_grid(self, name: str, column: tuple[int, ...]) -> tuple[tuple[str, ...], int]:
        for dimension, programs in enumerate(self._grid):
            known = [atom for atom, values in self._atoms.items() if values == programs]
            if len(set(programs)) == 1 or known:
                continue
            label = ("rows", "rows_y", "rows_z")[dimension]
            while label in {*self._ints, *self._numels, *self._launches[0].constants}:
                label += "_"
            wider = {**self._atoms, label: programs}
            found = self._product(column, wider, most=_MOST_FACTORS, whole=True, what=name)
            if found is not None and label in found[0]:
                self._atoms[label] = programs
                self._sources[label] = f"{_GRID}:{dimension}"
                return found
        told = ", ".join(map(str, column[:6]))
        detail = f"'{name}' had {told} elements, which the arguments do not explain"
        raise NotLifted("shape-unknown", detail=detail)

    def _product(
        self,
        column: tuple[int, ...],
        atoms: Mapping[str, tuple[int, ...]],
        *,
        most: int,
        whole: bool,
        what: str = "",
    ) -> tuple[tuple[str, ...], int] | None:
        """Return the only product of varying atoms, and its integer factor.

        Without `whole`, constant atoms are tried too, and the factor is 1.
        """
        moving = [n for n, values in atoms.items() if len(set(values)) > 1]
        names = moving if whole else list(atoms)
        found: list[tuple[tuple[str, ...], int]] = []
        for size in range(1 if len(set(column)) > 1 or not whole else 0, most + 1):
            for factors in combinations_with_replacement(names, size):
                times = _ratio(column, [atoms[f] for f in factors])
                if times is not None and (whole or times == 1):
                    found.append((factors, times))
            if found and not whole:
                return found[0]
        if len(found) > 1:
            found = _without_echoes(found, atoms, self._sources)
        if len(found) > 1 and whole:
            told = " or ".join(_told(each) for each in found[:2])
            raise NotLifted(MORE, detail=f"the elements of '{what}' may be {told}")
        return found[0] if found else None

    def _constant_axes(self, times: int, *, of: str = "") -> list[str]:
        """Name a constant number of elements, by constant lengths if possible.

        The tensor's own stride comes first: several lengths may be equal, and each must belong to a
        tensor.
        """
        own = self._own_stride(of)
        if own and times % self._atoms[own][0] == 0:
            rest = times // self._atoms[own][0]
            return [*(self._constant_axes(rest) if rest > 1 else []), own]
        for pool in (self._atoms, self._constants):
            steady = {n: v[0] for n, v in pool.items() if len(set(v)) == 1 and v[0] > 1}
            for size in (1, 2, 3):
                for factors in combinations_with_replacement(steady, size):
                    if prod(steady[f] for f in factors) == times:
                        self._fix(factors)
                        return list(factors)
            for one, length in steady.items():
                if length <= times and times % length == 0 and pool is self._atoms:
                    self._fix((one,))
                    return [*self._constant_axes(times // length), one]
        label, column = f"n{times}", (times,) * len(self._launches)
        given = {*self._ints, *self._numels, *self._launches[0].constants}
        while label in given:
            label += "_"
        self._atoms[label] = column
        self._sources[label] = "const"
        return [label]

    def _own_stride(self, pointer: str) -> str | None:
        """Return the constant stride named after a pointer, as `k_row_stride` after `k_ptr`."""
        stem = pointer.removesuffix("_ptr")
        found = [
            name
            for name, column in self._atoms.items()
            if stem and name.startswith(f"{stem}_") and "stride" in name.lower()
            if len(set(column)) == 1 and column[0] > 1
        ]
        return max(found, key=lambda name: self._atoms[name][0], default=None)

    def _fix(self, factors: Sequence[str]) -> None:
        for name in factors:
            if name in self._constants and name not in self._atoms:
                self._fixed.add(name)
                self._atoms[name] = self._constants[name]
                self._sources[name] = "const"

    def _check_strides(self, strides: Sequence[str]) -> None:
        for name in strides:
            if name not in self._used:
                told = ", ".join(str(each) for each in self._ints[name][:4])
                detail = f"'{name}' is {told}, which is not a product of lengths"
                raise NotLifted("strides-not-contiguous", detail=detail)

    def _settle(self) -> None:
        for name, factors in self._names.items():
            loose = [f for f in factors if isinstance(f, str) and f not in self._used]
            if not loose:
                continue
            if any(len(set(self._atoms[f])) > 1 for f in loose):
                detail = f"'{name}' varies, and no tensor has such a length"
                raise NotLifted("int-unexplained", detail=detail)
            self._names[name] = tuple(
                self._atoms[f][0] if isinstance(f, str) and f in loose else f for f in factors
            )


def _ratio(column: Sequence[int], factors: Sequence[Sequence[int]]) -> int | None:
    first, rest = divmod(column[0], prod(factor[0] for factor in factors))
    if rest or first < 1:
        return None
    same = all(
        first * prod(factor[at] for factor in factors) == each for at, each in enumerate(column)
    )
    return first if same else None


def _without_echoes(
    found: list[tuple[tuple[str, ...], int]],
    atoms: Mapping[str, tuple[int, ...]],
    sources: Mapping[str, str],
) -> list[tuple[tuple[str, ...], int]]:
    """Prefer arguments to programs of the grid, because a grid follows from lengths."""
    of_arguments = [
        each for each in found if all(sources.get(f, _GRID).startswith("param") for f in each[0])
    ]
    return of_arguments or found


def _told(product: tuple[tuple[str, ...], int]) -> str:
    factors, times = product
    return " * ".join([*factors, *([str(times)] if times != 1 or not factors else [])])
