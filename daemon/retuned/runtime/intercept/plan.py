"""Plan of one variant for one kernel: conditions of a launch, and the source of each argument.

A plan belongs to one variant and one kernel function of the server. Launches are identified by
their signature, their plain arguments. A new signature uses existing code if possible (`compiled`).
Otherwise the server's code runs until the control thread has compiled the needed code.

Each parameter of a variant gets an argument of the launch, by position, or a fixed value. The
lengths of a launch, and the grid of the variant, follow from these arguments.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from retuned.runtime.core.active_order import Ineligible
from retuned.runtime.core.grid import Grid, parse_expression, parse_grid
from retuned.runtime.intercept.arguments import ALIGN, Observation, dtype_name, is_pointer
from retuned.runtime.intercept.call import GridNumbers, LaunchCall
from retuned.runtime.intercept.compiled import MAX_RUNNERS, Codes, Ready, Signature
from retuned.runtime.intercept.registry import Kernel
from retuned.runtime.intercept.rules import GRID_NAMES, Known, LaunchRule, known_names
from retuned.runtime.intercept.shape_limits import ShapeLimits
from retuned.runtime.schema import Key, Refused, Spec
from retuned.runtime.triton.bind import LAUNCH_OPTIONS
from retuned.runtime.triton.contract import check_source
from retuned.runtime.triton.importer import unspecialised
from retuned.runtime.triton.precompiled import Shipped

Arguments = list[tuple[bool, Any]]
"""Whether each argument of the variant is fixed, and its value or position."""


def bind_live(
    kernel: Kernel, rule: LaunchRule, constants: Mapping[str, Any]
) -> tuple[Arguments, set[str]]:
    """Bind the server's function to its own arguments, except for some constexprs.

    Returns the arguments, and which params were used.

    Raises
    ------
    Refused
        ``launch-mismatch``.
    """
    if rule.bind:
        raise mismatch("'bind' is not allowed for the server's own code")
    kinds = {each.kind for each in inspect.signature(kernel.function).parameters.values()}
    if kinds != {inspect.Parameter.POSITIONAL_OR_KEYWORD}:
        raise mismatch("the kernel has parameters that are not plain")
    by_name = {each.name: each for each in kernel.parameters}
    for name in constants:
        if name not in by_name or not by_name[name].constexpr:
            raise mismatch(f"'{name}' is not a constexpr of the kernel")
    arguments: Arguments = [
        (True, constants[each.name]) if each.name in constants else (False, place)
        for place, each in enumerate(kernel.parameters)
    ]
    return arguments, set(constants)


def bind_source(
    kernel: Kernel, rule: LaunchRule, *, parameters: Sequence[Any], constants: Mapping[str, Any]
) -> tuple[Arguments, set[str]]:
    """Bind another source to the arguments of the launch that it names, and to its own constexprs.

    Returns the arguments, and which params were used.

    Raises
    ------
    Refused
        ``launch-mismatch``.
    """
    order = places_of(kernel)
    arguments: Arguments = []
    for each in parameters:
        if each.name in constants:
            if not each.constexpr:
                raise mismatch(f"the param '{each.name}' is not annotated tl.constexpr")
            arguments.append((True, constants[each.name]))
            continue
        wanted = rule.bind.get(each.name, each.name)
        place = place_of(order, wanted)
        if kernel.parameters[place].constexpr and not each.constexpr:
            raise mismatch(f"'{each.name}' would get the constexpr '{wanted}'")
        arguments.append((False, place))
    return arguments, {each.name for each in parameters}


def other_places(kernel: Kernel, *, settled: Collection[int]) -> list[int]:
    """Return positions that are neither pointers nor checked or changed constexprs.

    All ints matter.

    Raises
    ------
    Refused
        ``launch-mismatch`` if one of them is a constexpr.
    """
    rest = [place for place in range(len(kernel.parameters)) if place not in settled]
    loose = [place for place in rest if kernel.parameters[place].constexpr]
    if loose:
        names = [kernel.parameters[place].name for place in loose]
        raise mismatch(f"the rule does not give the values of the constexprs {names}")
    return rest


def places_of(kernel: Kernel) -> dict[str, int]:
    return {each.name: place for place, each in enumerate(kernel.parameters)}


def asked_for(rule: LaunchRule, kernel: Kernel) -> set[str]:
    """Return all names that the lengths of a launch are computed from."""
    names = known_names(kernel)
    return {name for text in rule.axes.values() for name in parse_grid([text], names).names}


def names_in(order: Mapping[str, int], names: Mapping[str, str]) -> list[str]:
    """Return the names; refuses a name that is not a parameter of the kernel."""
    for name in names:
        place_of(order, name)
    return list(names)


def place_of(order: Mapping[str, int], name: str) -> int:
    """Return the position of a parameter; refuses a name that the kernel does not have."""
    if name not in order:
        raise mismatch(f"the kernel has no parameter '{name}'")
    return order[name]


def mismatch(detail: str) -> Refused:
    """Return the refusal of a variant that does not fit its kernel."""
    return Refused("launch-mismatch", detail=detail)


_GRID = Ineligible("grid-invalid")


class Geometry:
    """Lengths of a launch, checked against its arguments, and the grid of the variant.

    Parameters
    ----------
    grid
        Rule of the artifact; empty to keep the server's.
    numbers
        Whole numbers of the variant, which the grid may name.
    changed
        Constexprs with which the server's grid function is called.

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
            raise Refused("grid-invalid", detail="the grid needs a rule or 'kept'")
        self.names = frozenset(self._grid.names if self._grid is not None else ())
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
        """Whether a launch depends on the server's own grid."""
        self.sized = tuple(
            place
            for name, place in order.items()
            if f"numel_{name}" in asked or name in rule.numels
        )
        own = {*order, *numbers, *axes, *GRID_NAMES}
        self._settled = self._grid is not None and self.names <= own
        self._by_grid = not self.names.isdisjoint(GRID_NAMES)

    def fits(self, call: LaunchCall, ready: Ready, key: Key) -> bool:
        """Whether all arguments match the definition at these lengths."""
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


MAX_STORAGE = 2**31 - 1
"""Bytes that 32-bit offsets reach, which AMD's compiled code assumes."""
_KIND = Ineligible("tensor-kind")
_DTYPE = Ineligible("dtype")
_UNALIGNED = Ineligible("unaligned")
_CONSTEXPR = Ineligible("constexpr")
_LARGE = Ineligible("tensor-too-large")
_OTHER = Ineligible("other-arguments")
_HOOKED = Ineligible("pre-run-hooks")
_CHANGED = Ineligible("globals-changed")


class Plan:
    """One variant on one kernel.

    Parameters
    ----------
    grid
        Rule of the artifact; empty to keep the server's.
    entry, module
        Function to launch, in the imported source; None for the server's own code.

    Raises
    ------
    Refused
        ``launch-mismatch`` if the two do not fit (see `ShapeLimits` for another source),
        ``grid-invalid``, or ``contract-violated``.
    """

    def __init__(
        self,
        kernel: Kernel,
        rule: LaunchRule,
        *,
        spec: Spec,
        params: Mapping[str, int | str],
        grid: Sequence[str],
        entry: str | None = None,
        module: Any = None,  # noqa: ANN401 - the imported source
        source: str = "",
        shipped: Shipped | None = None,
    ) -> None:
        self.kernel = kernel
        self.jit: Any = kernel.target() if entry is None else getattr(module, entry)
        self.live = entry is None
        order = places_of(kernel)
        self._order = order
        self.options = {name: value for name, value in params.items() if name in LAUNCH_OPTIONS}
        constants = {name: value for name, value in params.items() if name not in self.options}
        self.stores = {place_of(order, name): how for name, how in rule.stores.items()}
        self._pointers = [(place_of(order, name), dtype) for name, dtype in rule.dtypes.items()]
        self._fixed = [(place_of(order, name), value) for name, value in rule.constexprs.items()]
        self._known: dict[Any, str] = {}
        self._forms: dict[tuple[str, ...], tuple[str, ...]] = {}
        torch = sys.modules.get("torch")
        self.limited = torch is not None and getattr(torch.version, "hip", None) is not None
        self._arguments: Arguments
        if entry is None:
            self._arguments, taken = bind_live(kernel, rule, constants)
            self.changed = dict(constants)
        else:
            parameters = check_source(source, entry=entry).parameters
            self._arguments, taken = bind_source(
                kernel, rule, parameters=parameters, constants=constants
            )
            self.changed = {}
        numbers = {name: value for name, value in constants.items() if isinstance(value, int)}
        self.geometry = Geometry(
            kernel, rule, spec=spec, grid=grid, numbers=numbers, changed=self.changed
        )
        settled = {place for place, _ in (*self._pointers, *self._fixed)}
        self._scalars = other_places(
            kernel, settled=settled | {order[name] for name in self.changed}
        )
        self._held: ShapeLimits | None = None
        if entry is not None:
            self._held = ShapeLimits(
                rule,
                places=order,
                scalars=self._scalars,
                parameters=parameters,
                wanted=self._arguments,
            )
            self.jit = unspecialised(self.jit, self._held.free)
        self.codes = Codes(
            self.jit,
            interpreted=kernel.interpreted,
            arguments=self._arguments,
            options=self.options,
            scalars=len(self._scalars),
            held=self._held,
            shipped=shipped or Shipped(),
        )
        self.ready = self.codes.ready
        idle = sorted(constants.keys() - taken - self.geometry.names)
        if idle:
            raise mismatch(f"neither the entry nor the grid uses the params {idle}")

    @property
    def pointers(self) -> list[int]:
        return [place for place, _ in self._pointers]

    @property
    def scalars(self) -> Sequence[int]:
        """Positions that are neither tensors nor fixed constexprs."""
        return self._scalars

    @property
    def arguments(self) -> Sequence[tuple[bool, Any]]:
        """Whether each argument of the variant is fixed, and its value or position."""
        return self._arguments

    # --- a launch ---------------------------------------------------------------------------------

    def signature(self, call: LaunchCall) -> Signature | Ineligible:
        """Return what determines the code of a launch, or why the server's code must run."""
        values = call.values()
        for place, wanted in self._pointers:
            value = values[place]
            try:
                dtype, address = value.dtype, value.data_ptr()
            except AttributeError:
                return _KIND
            if address % ALIGN:
                return _UNALIGNED
            if (self._known.get(dtype) or self._name(dtype)) != wanted:
                return _DTYPE
            if self.limited and value.untyped_storage().nbytes() > MAX_STORAGE:
                return _LARGE  # compiled code assumes that 32-bit offsets reach the end
        for place, expected in self._fixed:
            value = values[place]
            value = getattr(value, "value", value)
            if value != expected or value.__class__ is not expected.__class__:
                return _CONSTEXPR
        numbers = []
        for place in self._scalars:
            value = values[place]
            number = value if value.__class__ is int else _scalar(value)
            if number is None:
                return _KIND
            numbers.append(number)
        held = self._held
        if held is not None and not all(map(held.allows, self._scalars, numbers)):
            return _OTHER
        if self.live:
            numbers += self._options(call.kwargs)
        return tuple(numbers)

    def launch(
        self, ready: Ready, call: LaunchCall, values: Sequence[Any], grid: GridNumbers
    ) -> None:
        """Launch; if it raises, nothing of the server has changed."""
        args = [what if fixed else values[what] for fixed, what in self._arguments]
        if ready.compiled is not None:
            runner = ready.runners.get(grid)
            if runner is None:
                if len(ready.runners) >= MAX_RUNNERS:
                    ready.runners.clear()
                runner = ready.runners[grid] = ready.compiled[grid]
            runner(*args)
        elif self.live:
            executor = copy.copy(call.target)
            executor.grid = grid
            call.plain(executor, *args)
        else:
            self.jit[grid](*args)

    def hindrance(self, call: LaunchCall) -> Ineligible | None:
        """Return why the server's own launch must run for any shape."""
        if not self.hindered(call.target):
            return None
        return _HOOKED if getattr(call.target, "pre_run_hooks", None) else _CHANGED

    def hindered(self, target: Any) -> bool:  # noqa: ANN401 - of the server's Triton
        if getattr(target, "pre_run_hooks", None):
            return True
        # if a global has changed, the server's own launch reports it
        return any(names.get(name) is not value for names, name, value in self.codes.watched)

    def _options(self, kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
        given = tuple(kwargs)
        names = self._forms.get(given)
        if names is None:
            known = {*self._order, "grid", "warmup"}
            names = self._forms[given] = tuple(name for name in given if name not in known)
            if len(self._forms) > MAX_RUNNERS:
                self._forms.clear()
        return [(name, kwargs[name]) for name in names]

    def _name(self, dtype: object) -> str:
        if len(self._known) >= len(self._order):
            self._known.clear()
        name = self._known[dtype] = dtype_name(dtype)
        return name

    # --- off the request path ---------------------------------------------------------------------

    def seen(self, observation: Observation) -> Signature | None:
        """Return the signature of a described launch; None if the variant does not cover it."""
        raw = observation.raw
        for place, wanted in self._pointers:
            argument = observation.arguments[place]
            if argument.kind != "pointer" or argument.dtype != wanted or not argument.aligned16:
                return None
        for place, expected in self._fixed:
            value = getattr(raw[place], "value", raw[place])
            if value != expected or value.__class__ is not expected.__class__:
                return None
        numbers = [_scalar(raw[place]) for place in self._scalars]
        if None in numbers:
            return None
        held = self._held
        if held is not None and not all(map(held.allows, self._scalars, numbers)):
            return None
        return tuple(numbers) if not self.live else (*numbers, *observation.given.items())


def _scalar(value: object) -> object:
    """Return what Triton specialises on: a whole number itself; for a float, its type."""
    if isinstance(value, int):
        return value
    return float if type(value) is float else None


def raw_of(call: LaunchCall) -> tuple[Any, ...]:
    """Return the arguments of a launch without its tensors."""
    return tuple(value.dtype if is_pointer(value) else value for value in call.values())
