"""How one variant is launched in place of one kernel: what must hold, and from where it gets what.

A plan belongs to one variant and one kernel function of the server. Launches are kept by signature,
their plain arguments; a signature that is new takes code that is there (`ready`), and one whose
code is not is the server's, until the control thread has compiled what was asked for.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from retuned.runtime.inforce import Ineligible
from retuned.runtime.intercept.arguments import ALIGN, Observation, dtype_name, is_pointer
from retuned.runtime.intercept.binding import (
    Arguments,
    bind_live,
    bind_source,
    mismatch,
    other_places,
    place_of,
    places_of,
)
from retuned.runtime.intercept.call import GridNumbers, LaunchCall
from retuned.runtime.intercept.geometry import Geometry
from retuned.runtime.intercept.held import ShapeLimits
from retuned.runtime.intercept.kernels import Kernel
from retuned.runtime.intercept.ready import MAX_RUNNERS, Codes, Ready, Signature
from retuned.runtime.intercept.rules import LaunchRule
from retuned.runtime.precompiled_triton import Shipped
from retuned.runtime.spec import Spec
from retuned.runtime.triton_bind import LAUNCH_OPTIONS
from retuned.runtime.triton_import import unspecialised
from retuned.runtime.triton_source import check_source

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
        """What launches under a signature."""
        idle = sorted(constants.keys() - taken - self.geometry.names)
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

    def signature(self, call: LaunchCall) -> Signature | Ineligible:
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

    def launch(
        self, ready: Ready, call: LaunchCall, values: Sequence[Any], grid: GridNumbers
    ) -> None:
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

    def hindrance(self, call: LaunchCall) -> Ineligible | None:
        """Return why the server's own launch must run whatever the shape."""
        if not self.hindered(call.target):
            return None
        return _HOOKED if getattr(call.target, "pre_run_hooks", None) else _CHANGED

    def hindered(self, target: Any) -> bool:  # noqa: ANN401 - of the server's Triton
        """Whether it must: for hooks of the server's, or a global that is not as it was."""
        if getattr(target, "pre_run_hooks", None):
            return True
        # of a global that has changed the server's launch says so itself
        return any(names.get(name) is not value for names, name, value in self.codes.watched)

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


def _scalar(value: object) -> object:
    """Return what Triton specialises on: a whole number itself, of a float that it is one."""
    if isinstance(value, int):
        return value
    return float if type(value) is float else None


def raw_of(call: LaunchCall) -> tuple[Any, ...]:
    """Return the arguments of a launch without its tensors."""
    return tuple(value.dtype if is_pointer(value) else value for value in call.values())
