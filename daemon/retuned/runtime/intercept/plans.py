"""How one variant is launched in place of one kernel: what must hold, and from where it gets what.

A plan belongs to one variant and one kernel function of the server. Launches are kept by signature,
their plain arguments; compiled code by the part of it that Triton specialises on. A signature that
is new takes code that is there; one whose code is not is the server's, and the control thread
compiles what was asked for.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from retuned.runtime.grid import Grid, parse_expression, parse_grid
from retuned.runtime.inforce import Ineligible
from retuned.runtime.intercept.arguments import ALIGN, Observation, dtype_name, is_pointer
from retuned.runtime.intercept.binding import (
    Arguments,
    asked_for,
    bind_live,
    bind_source,
    mismatch,
    names_in,
    other_places,
    place_of,
    places_of,
)
from retuned.runtime.intercept.call import Call, GridNumbers
from retuned.runtime.intercept.codes import compiled_source, specialisation_of
from retuned.runtime.intercept.held import Held
from retuned.runtime.intercept.kernels import Kernel
from retuned.runtime.intercept.rules import GRID_NAMES, Known, LaunchRule, known_names
from retuned.runtime.precompiled_triton import Shipped
from retuned.runtime.spec import Key, Refused, Spec
from retuned.runtime.triton_bind import LAUNCH_OPTIONS
from retuned.runtime.triton_launch import unspecialised
from retuned.runtime.triton_source import check_source

MAX_SIGNATURES = 256
"""Signatures kept ready for one kernel; more start over."""
MAX_CODES = 256
"""Codes compiled for one kernel; launches that need more stay the server's."""
MAX_RUNNERS = 256
"""Grids kept ready per signature; more start over."""
MAX_STORAGE = 2**31 - 1
"""Bytes that 32-bit offsets reach, which AMD's compiled code assumes."""
_KIND = Ineligible("tensor-kind")
_DTYPE = Ineligible("dtype")
_UNALIGNED = Ineligible("unaligned")
_CONSTEXPR = Ineligible("constexpr")
_LARGE = Ineligible("tensor-too-large")
_GRID = Ineligible("grid-invalid")
_OTHER = Ineligible("other-arguments")
_HOOKED = Ineligible("pre-run-hooks")
_CHANGED = Ineligible("globals-changed")

Signature = tuple[Any, ...]
Code = tuple[Any, ...]
"""What compiled code is kept by: the same for all signatures that Triton compiles alike."""


class Ready:
    """Compiled code of one signature."""

    __slots__ = ("compiled", "count", "fits", "grids", "runners")

    def __init__(self, compiled: Any) -> None:  # noqa: ANN401 - triton.CompiledKernel or None
        self.compiled = compiled
        self.count = 0
        """Launches of the variant under this signature."""
        self.fits: dict[Key, bool] = {}
        """Whether launches of these lengths, and elements, are of the definition."""
        self.grids: dict[Any, GridNumbers] = {}
        """The variant's grids, where lengths, signature and the server's grid decide them."""
        self.runners: dict[GridNumbers, Any] = {}


class Plan:
    """One variant on one kernel.

    Parameters
    ----------
    kernel
        Of the server.
    rule
        How the artifact binds.
    spec
        Definition of the artifact.
    params
        Constexprs and options of the variant.
    grid
        Rule of the artifact; empty to keep the server's.
    entry, module
        Function to launch, in the imported source; None for the server's own code.
    source
        Text of that source.
    shipped
        Compiled code that was delivered.

    Raises
    ------
    Refused
        ``launch-mismatch`` if the two do not fit (see `Held` for another source),
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
        self._shipped = shipped or Shipped()
        self._codes: dict[Code, Any] = {}
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
        self.watched: list[tuple[Mapping[str, Any], str, Any]] = []
        """Globals that the server's code was compiled with, as (names, name, value)."""
        self._forms: dict[tuple[str, ...], tuple[str, ...]] = {}
        torch = sys.modules.get("torch")
        self.limited = torch is not None and getattr(torch.version, "hip", None) is not None
        self.ready: dict[Signature, Ready] = {}
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
        self._numbers = numbers
        axes = [name for name, _ in spec.axes]
        names = {*known_names(kernel), *numbers, *axes}
        self._grid: Grid | None = parse_grid(grid, names) if grid else None
        if self._grid is None and not rule.keeps_grid:
            raise Refused("grid-invalid", detail="neither a rule nor 'kept' says the grid")
        settled = {place for place, _ in (*self._pointers, *self._fixed)}
        self._scalars = other_places(
            kernel, settled=settled | {order[name] for name in self.changed}
        )
        self._held: Held | None = None
        if entry is not None:
            self._held = Held(
                rule,
                places=order,
                scalars=self._scalars,
                parameters=parameters,
                wanted=self._arguments,
            )
            self.jit = unspecialised(self.jit, self._held.free)
        used = set(self._grid.names) if self._grid is not None else set()
        own = {*order, *numbers, *axes}
        self._spec = spec
        self._ints = [
            (order[n], parse_expression(rule.ints[n], axes)) for n in names_in(order, rule.ints)
        ]
        self._numels = [
            (order[n], parse_expression(rule.numels[n], axes)) for n in names_in(order, rule.numels)
        ]
        asked = {*used, *asked_for(rule, kernel)}
        self.asks_for_grid = self._grid is None or not asked.isdisjoint(GRID_NAMES)
        """Whether the server's own grid decides anything of a launch."""
        self.sized = tuple(
            place
            for name, place in order.items()
            if f"numel_{name}" in asked or name in rule.numels
        )
        """Places of the tensors whose size does."""
        self._settled = self._grid is not None and used <= {*own, *GRID_NAMES}
        self._by_grid = not used.isdisjoint(GRID_NAMES)
        idle = sorted(constants.keys() - taken - used)
        if idle:
            raise mismatch(f"the params {idle} are neither the entry's nor in the grid")

    @property
    def pointers(self) -> list[int]:
        """Places of the tensors."""
        return [place for place, _ in self._pointers]

    @property
    def scalars(self) -> Sequence[int]:
        """Places that are neither tensors nor settled constexprs."""
        return self._scalars

    @property
    def arguments(self) -> Sequence[tuple[bool, Any]]:
        """Whether each argument of the variant is fixed, and its value or place."""
        return self._arguments

    # --- a launch ---------------------------------------------------------------------------------

    def signature(self, call: Call) -> Signature | Ineligible:
        """Return what decides which code a launch needs, or why it is the server's."""
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

    def fits(self, call: Call, ready: Ready, key: Key) -> bool:
        """Whether all arguments are what the definition says at these lengths."""
        try:
            mark = (*key, *[call.values()[place].numel() for place, _ in self._numels])
        except AttributeError:
            return False
        found = ready.fits.get(mark)
        return self._fits(call, ready, key, mark) if found is None else found

    def _fits(self, call: Call, ready: Ready, key: Key, mark: Key) -> bool:
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

    def grid(self, call: Call, ready: Ready, key: Key) -> GridNumbers | Ineligible:
        """Return the programs of the variant's launch."""
        try:
            mark = (key, call.grid_numbers()) if self._by_grid else key
            known = ready.grids.get(mark)
            if known is not None:
                return known
            if self._grid is None:
                return call.grid_for(self.changed)
            found = self._grid.at(Known(call, {**self._spec.lengths(key), **self._numbers}))
            if self._settled:
                if len(ready.grids) >= MAX_RUNNERS:
                    ready.grids.clear()
                ready.grids[mark] = found
            return found
        except (Refused, ValueError, TypeError, KeyError):
            return _GRID

    def launch(self, ready: Ready, call: Call, values: Sequence[Any], grid: GridNumbers) -> None:
        """Launch; whatever it raises, nothing of the server has changed."""
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

    def hindrance(self, call: Call) -> Ineligible | None:
        """Return why the server's own launch must run whatever the shape."""
        if not self.hindered(call.target):
            return None
        return _HOOKED if getattr(call.target, "pre_run_hooks", None) else _CHANGED

    def hindered(self, target: Any) -> bool:  # noqa: ANN401 - of the server's Triton
        """Whether it must: for hooks of the server's, or a global that is not as it was."""
        if getattr(target, "pre_run_hooks", None):
            return True
        # of a global that has changed the server's launch says so itself
        return any(names.get(name) is not value for names, name, value in self.watched)

    def _options(self, kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Return the keywords that are no parameters, with their values."""
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
        """Return the signature of a described launch; None if it is not for the variant."""
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

    @property
    def codes(self) -> int:
        """How many codes are compiled."""
        return len(self._codes)

    def code_of(self, signature: Signature, raw: Sequence[Any], options: Mapping[str, Any]) -> Code:
        """Return what decides the code of a launch; takes microseconds, and compiles nothing.

        Parameters
        ----------
        signature
            Of the launch.
        raw
            Its arguments; element types in place of pointers.
        options
            Its options.
        """
        if self._held is not None:
            return self._held.code_of(signature)
        if self.kernel.interpreted:
            return signature
        args = [what if fixed else raw[what] for fixed, what in self._arguments]
        found = specialisation_of(self.jit, args, {**options, **self.options})
        return signature if found is None else (found, signature[len(self._scalars) :])

    def derived(self, signature: Signature, code: Code) -> Ready | None:
        """Return what launches under a new signature whose code is there already; else None."""
        if code not in self._codes:
            return None
        return self._keep(signature, self._codes[code])

    def compile(self, signature: Signature, raw: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Compile and load what launches of a signature need.

        Parameters
        ----------
        signature
            Of the launch.
        raw
            Its arguments; element types in place of pointers.
        options
            Its options.

        Raises
        ------
        Refused
            ``compile-failed``, ``out-of-resources``, ``pre-run-hooks``, or as `Shipped.compiled`.
        """
        if self.derived(signature, self.code_of(signature, raw, options)) is not None:
            return
        if self.kernel.interpreted:
            self._compiled(signature, raw, options, None)
            return
        if self.jit.pre_run_hooks:
            raise Refused(
                "pre-run-hooks", detail="the server hangs hooks on this kernel's launches"
            )
        args = [what if fixed else raw[what] for fixed, what in self._arguments]

        def compile_it() -> Any:  # noqa: ANN401 - triton.CompiledKernel
            if not self.live:
                return compiled_source(self.jit, args, self.options)
            return self.jit.warmup(*args, grid=(1,), **{**options, **self.options})

        try:
            compiled = self._shipped.compiled(compile_it)
            compiled._init_handles()
        except Refused:
            raise
        except Exception as error:  # the compiler on a stranger's source: whatever it raises
            reason = "out-of-resources" if "OutOfResources" in repr(type(error)) else ""
            detail = f"{type(error).__name__}: {str(error)[-1500:]}"
            raise Refused(reason or "compile-failed", detail=detail) from error
        if self.live:
            self.watched = [
                (names, name, names.get(name))
                for (name, _), (_, names) in self.jit.used_global_vals.items()
            ]
        self._compiled(signature, raw, options, compiled)

    def _compiled(
        self,
        signature: Signature,
        raw: Sequence[Any],
        options: Mapping[str, Any],
        compiled: Any,  # noqa: ANN401 - triton.CompiledKernel or None
    ) -> None:
        # Asked anew: before its first code Triton says of none what it depends on.
        self._codes[self.code_of(signature, raw, options)] = compiled
        self._keep(signature, compiled)

    def _keep(self, signature: Signature, compiled: Any) -> Ready:  # noqa: ANN401 - as above
        if len(self.ready) >= MAX_SIGNATURES:
            self.ready.clear()  # code stays: what comes again is ready at its next launch
        return self.ready.setdefault(signature, Ready(compiled))


def _scalar(value: object) -> object:
    """Return what Triton specialises on: a whole number itself, of a float that it is one."""
    if isinstance(value, int):
        return value
    return float if type(value) is float else None


def raw_of(call: Call) -> tuple[Any, ...]:
    """Return the arguments of a launch without its tensors."""
    return tuple(value.dtype if is_pointer(value) else value for value in call.values())
