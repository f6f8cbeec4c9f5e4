"""Fast path for launches of a variant that repeat an earlier launch.

The checks of a variant's launch depend on the plain arguments, the element types and, if the
variant uses them, sizes and grid. So a launch that ran is cached under these, with its counters.
What may change between two such launches is checked at each: alignment, whether the stream is
captured, whether a shadow check is due, the device, and the kernel's hooks and globals. If anything
differs, the launch takes the normal path.

The cache belongs to the slot's table, so that every flip discards it: a rollback, a breaker, a
canary and a bypass end it in the same assignment that ends the variant.

A compiled kernel is launched as Triton's own runner does it, without hooks that are not set.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from retuned.runtime.core.active_order import Swapped
from retuned.runtime.core.tables import Table
from retuned.runtime.intercept.arguments import ALIGN
from retuned.runtime.intercept.call import GridNumbers, LaunchCall, LaunchOutcome
from retuned.runtime.intercept.compiled import Ready
from retuned.runtime.intercept.plan import MAX_STORAGE, Plan
from retuned.runtime.intercept.registry import Kernel
from retuned.runtime.intercept.slot import KernelSlot
from retuned.runtime.shadow.sampler import Stratum

Runner = Callable[[tuple[Any, ...]], object]
"""Launches once, with the arguments of all parameters in order, on the current stream."""

_DOES = frozenset(
    (
        *("driver", "active", "get_current_device", "get_current_stream", "launch_metadata"),
        *("run", "function", "packed_metadata", "knobs", "runtime"),
        *("launch_enter_hook", "launch_exit_hook"),
    )
)
"""All names that Triton's function uses, in versions 3.5 to 3.9."""


def runner_of(compiled: Any, grid: GridNumbers) -> Runner:  # noqa: ANN401 - triton.CompiledKernel
    """Return the function that launches loaded code."""
    plain = compiled[grid]
    home = sys.modules.get(type(compiled).__module__)
    knobs, drivers = getattr(home, "knobs", None), getattr(home, "driver", None)
    if knobs is None or drivers is None or not _is_as_known(plain):
        return lambda args: plain(*args)
    runtime, (x, y, z) = knobs.runtime, grid
    run, function, packed = compiled.run, compiled.function, compiled.packed_metadata

    def launch(args: tuple[Any, ...]) -> object:
        enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
        if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            return plain(*args)
        active = drivers.active
        stream = active.get_current_stream(active.get_current_device())
        return run(x, y, z, stream, function, packed, None, None, None, *args)

    return launch


def _is_as_known(plain: object) -> bool:
    """Whether Triton's function does what this module does, and nothing else."""
    return isinstance(plain, types.FunctionType) and set(plain.__code__.co_names) == _DOES


MAX_FORMS = 64
"""Argument layouts cached per table; beyond it the cache is cleared."""
MAX_REPEATS = 512
"""Launches cached per layout; beyond it the cache is cleared."""
MISSED = object()
"""Result for a launch that must take the normal path."""
FAILED = object()
"""Result for a launch whose variant raised: the server's own code must run."""

Repeat = tuple[list[int], Stratum, Ready, Runner]
"""Counter of the slot, bucket of the order, compiled code, and the function that launches it."""

_PLAIN = frozenset({bool, float, int, str, type(None)})
_NOT_GIVEN = ("grid", "warmup")
_ODD = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""Exceptions of reading arguments that are not as before."""


class FastPathEntry:
    """Launches of one kernel that pass their arguments in the same positions.

    Raises
    ------
    KeyError
        If their arguments cannot distinguish such launches.
    """

    __slots__ = (
        *("arguments", "by_grid", "capturing", "codes", "elsewhere", "exact", "fixed", "floats"),
        *("limited", "order", "plan", "pointers", "repeats", "sizes"),
    )

    def __init__(self, call: LaunchCall, ran: LaunchOutcome, order: Swapped) -> None:
        plan: Plan = ran.plan
        names = [each.name for each in call.kernel.parameters]
        values = _given(call)
        given = [*names[: len(call.args)], *_named(call)]
        places = {name: place for place, name in enumerate(given)}
        fixed: list[Any] = []

        def constant(value: Any) -> int:  # noqa: ANN401 - of the kernel
            fixed.append(value)
            return len(given) + len(fixed) - 1

        bound = call.values()
        sources = [
            constant(what) if is_fixed
            else places[names[what]] if names[what] in places
            else constant(bound[what])
            for is_fixed, what in plan.arguments
        ]  # fmt: skip
        tensors = [places[names[place]] for place in plan.pointers]
        loose = {places[names[place]] for place in plan.scalars if names[place] in places}
        self.floats = frozenset(place for place in loose if type(values[place]) is float)
        """Numbers that the code takes at run time: their values are not part of the key."""
        others = {*tensors, *self.floats}
        self.exact = _picker([place for place in range(len(given)) if place not in others])
        self.pointers = tuple((place, values[place].dtype) for place in tensors)
        self.sizes = tuple(places[names[place]] for place in plan.geometry.sized)
        self.fixed = tuple(fixed)
        self.arguments = _picker(sources)
        self.by_grid = plan.geometry.asks_for_grid
        self.limited = plan.limited
        self.plan = plan
        self.codes = plan.codes
        self.order = order
        self.capturing: Callable[[], bool] | None = ran.variant.capturing()
        self.elsewhere: Callable[[], bool] | None = ran.variant.elsewhere
        self.repeats: dict[Any, Repeat] = {}

    def is_known(self, given: tuple[Any, ...]) -> bool:
        """Whether the key contains everything that the launch depends on."""
        tensors = {place for place, _ in self.pointers}
        plain = (value for place, value in enumerate(given) if place not in tensors)
        return _PLAIN.issuperset(map(type, plain)) and all(
            type(given[place]) is float for place in self.floats
        )

    def key(self, given: tuple[Any, ...], grid: Any) -> Any:  # noqa: ANN401 - numbers or a function
        """Return what determines a launch, without tensors.

        Raises one of `_ODD` if that is unknown.
        """
        key: Any = (self.exact(given), tuple(map(type, given)))
        if self.by_grid:
            if grid.__class__ is not tuple:
                raise TypeError("the grid function was not evaluated")
            key = (key, grid)
        if self.sizes:
            key = (key, *[given[place].numel() for place in self.sizes])
        return key


def repeat(
    table: Table,
    kernel: Kernel,
    jit: Any,  # noqa: ANN401 - a JITFunction
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    grid: Any,  # noqa: ANN401 - numbers or a function
) -> Any:  # noqa: ANN401 - what Triton's launch returns, `MISSED` or `FAILED`
    """Launch as an earlier launch did; the hot path of swapped kernels. Never raises."""
    try:
        form: FastPathEntry = table.repeats[kernel, len(args), *kwargs]
        given = (*args, *kwargs.values())
        bits = 0
        for place, dtype in form.pointers:
            tensor = given[place]
            if tensor.dtype is not dtype:
                return MISSED
            bits |= tensor.data_ptr()
        if form.by_grid or form.sizes:
            key = form.key(given, grid)
        else:  # as `form.key`, without the call
            key = (form.exact(given), tuple(map(type, given)))
        cell, stratum, ready, run = form.repeats[key]
        if bits % ALIGN or stratum.ran >= stratum.check_at or jit.pre_run_hooks:
            return MISSED
        if form.codes.watched and form.plan.hindered(jit):
            return MISSED
        if form.capturing is not None and form.capturing():
            return MISSED
        if form.elsewhere is not None and form.elsewhere():
            return MISSED
        if form.limited and _reaches_far(given, form):
            return MISSED
    except _ODD:
        return MISSED
    cell[0] += 1
    try:
        run(form.arguments((*given, *form.fixed)))
    except Exception as error:  # untrusted code: the original serves, whatever is raised
        form.order.count_error(error)
        return FAILED
    stratum.ran += 1
    ready.count += 1
    return ready.compiled


def remember(slot: KernelSlot, table: Table, call: LaunchCall) -> None:
    """Cache a launch that has just run, if the next one like it may skip the checks.

    Parameters
    ----------
    table
        Table in use before it; a newer table does not read this cache.
    """
    ran, order = call.ran, table.in_force
    if ran is None or not isinstance(order, Swapped) or order.variant is not ran.variant:
        return
    stratum = order.unconditional(ran.key)
    if stratum is None or ran.ready.compiled is None or slot.recorder is not None:
        return
    name = (call.kernel, len(call.args), *_named(call))
    given = _given(call)
    try:
        form = table.repeats.get(name) or FastPathEntry(call, ran, order)
        if not form.is_known(given):
            return
        key = form.key(given, call.grid)
        if len(form.repeats) >= MAX_REPEATS:
            form.repeats.clear()
        run = runner_of(ran.ready.compiled, ran.grid)
        form.repeats[key] = (slot.cell(ran.key), stratum, ran.ready, run)
    except _ODD:
        return
    if name not in table.repeats and len(table.repeats) >= MAX_FORMS:
        table.repeats.clear()
    table.repeats[name] = form


def _given(call: LaunchCall) -> tuple[Any, ...]:
    return (*call.args, *_named(call).values())


def _named(call: LaunchCall) -> dict[str, Any]:
    return {name: value for name, value in call.kwargs.items() if name not in _NOT_GIVEN}


def _picker(places: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    if not places:
        return lambda _: ()
    if len(places) == 1:
        (only,) = places
        return lambda pool: (pool[only],)
    return itemgetter(*places)


def _reaches_far(given: Sequence[Any], form: FastPathEntry) -> bool:
    """Whether 32-bit offsets, which compiled code assumes, do not reach the end of a tensor."""
    tensors = (given[place] for place, _ in form.pointers)
    return any(each.untyped_storage().nbytes() > MAX_STORAGE for each in tensors)
