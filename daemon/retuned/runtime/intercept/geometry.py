"""Lengths of a launch, and the programs of a variant that follow from them and its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retuned.runtime.grid import Grid, parse_expression, parse_grid
from retuned.runtime.inforce import Ineligible
from retuned.runtime.intercept.binding import asked_for, names_in, places_of
from retuned.runtime.intercept.call import GridNumbers, LaunchCall
from retuned.runtime.intercept.kernels import Kernel
from retuned.runtime.intercept.ready import MAX_RUNNERS, Ready
from retuned.runtime.intercept.rules import GRID_NAMES, Known, LaunchRule, known_names
from retuned.runtime.spec import Key, Refused, Spec

_GRID = Ineligible("grid-invalid")


class Geometry:
    """What the arguments of a launch say of its lengths, and the grid that a variant has there.

    Parameters
    ----------
    kernel
        Of the server.
    rule
        How the artifact binds.
    spec
        Definition of the artifact.
    grid
        Rule of the artifact; empty to keep the server's.
    numbers
        Whole numbers of the variant, which the grid may name.
    changed
        Constexprs that a grid of the server's is asked with.

    Raises
    ------
    Refused
        ``grid-invalid``.
    """

    def __init__(
        self,
        kernel: Kernel,
        rule: LaunchRule,
        *,
        spec: Spec,
        grid: Sequence[str],
        numbers: Mapping[str, int],
        changed: Mapping[str, Any],
    ) -> None:
        order = places_of(kernel)
        axes = [name for name, _ in spec.axes]
        names = {*known_names(kernel), *numbers, *axes}
        self._grid: Grid | None = parse_grid(grid, names) if grid else None
        if self._grid is None and not rule.keeps_grid:
            raise Refused("grid-invalid", detail="neither a rule nor 'kept' says the grid")
        self.names = frozenset(self._grid.names if self._grid is not None else ())
        """What the artifact's grid names."""
        self._spec = spec
        self._numbers = numbers
        self._changed = changed
        self._ints = [
            (order[n], parse_expression(rule.ints[n], axes)) for n in names_in(order, rule.ints)
        ]
        self._numels = [
            (order[n], parse_expression(rule.numels[n], axes)) for n in names_in(order, rule.numels)
        ]
        asked = {*self.names, *asked_for(rule, kernel)}
        self.asks_for_grid = self._grid is None or not asked.isdisjoint(GRID_NAMES)
        """Whether the server's own grid decides anything of a launch."""
        self.sized = tuple(
            place
            for name, place in order.items()
            if f"numel_{name}" in asked or name in rule.numels
        )
        """Places of the tensors whose size does."""
        own = {*order, *numbers, *axes, *GRID_NAMES}
        self._settled = self._grid is not None and self.names <= own
        self._by_grid = not self.names.isdisjoint(GRID_NAMES)

    def fits(self, call: LaunchCall, ready: Ready, key: Key) -> bool:
        """Whether all arguments are what the definition says at these lengths."""
        try:
            mark = (*key, *[call.values()[place].numel() for place, _ in self._numels])
        except AttributeError:
            return False
        found = ready.fits.get(mark)
        return self._fits(call, ready, key, mark) if found is None else found

    def _fits(self, call: LaunchCall, ready: Ready, key: Key, mark: Key) -> bool:
        values, lengths = call.values(), self._spec.lengths(key)
        try:
            found = all(values[place] == text(lengths) for place, text in self._ints)
            found = found and all(values[p].numel() == text(lengths) for p, text in self._numels)
        except (Refused, AttributeError, TypeError):
            found = False
        if len(ready.fits) >= MAX_RUNNERS:
            ready.fits.clear()
        ready.fits[mark] = found
        return found

    def grid(self, call: LaunchCall, ready: Ready, key: Key) -> GridNumbers | Ineligible:
        """Return the programs of the variant's launch."""
        try:
            mark = (key, call.grid_numbers()) if self._by_grid else key
            known = ready.grids.get(mark)
            if known is not None:
                return known
            if self._grid is None:
                return call.grid_for(self._changed)
            found = self._grid.at(Known(call, {**self._spec.lengths(key), **self._numbers}))
            if self._settled:
                if len(ready.grids) >= MAX_RUNNERS:
                    ready.grids.clear()
                ready.grids[mark] = found
            return found
        except (Refused, ValueError, TypeError, KeyError):
            return _GRID
