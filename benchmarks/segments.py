"""Where the host's time of one swapped Triton launch goes, layer by layer.

A launch that the server made is caught in its slot and made again, from the outermost call to the
driver's, each layer by itself. What a layer costs is what it takes beyond the layer inside it, so
that the layers add up to the whole launch. `PARTS` are timed besides: they are inside of layers.
Rounds take all in a new random order, and wait for the device after each.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import triton

from retuned.runtime.intercept.call import LaunchCall
from retuned.runtime.intercept.fast_path import FastPathEntry, repeat
from retuned.runtime.intercept.registry import Kernel
from retuned.runtime.intercept.rules import key_reader

Thunk = Callable[[], object]

LAYERS = ("entry", "leading", "repeat", "runner", "driver")
"""From the outermost: what ``kernel[grid](...)`` does before it is led to its slot; finding the
slot's table; finding by the arguments that the launch was decided before, with the checks that
every launch needs, and its counters; device, stream and hooks; the driver's call."""
PARTS = ("key", "captured", "arguments", "stream")
"""Inside of them: stream in ``runner``, the others in ``repeat``."""
LONG_WAY = ("long way", "of which key of the slot", "of which signature", "of which grid")
"""A launch that was not decided before, from the slot on, and parts of it."""
STOCK = ("stock", "stock binder", "stock stream")
"""The server's own launch whole, and inside of it: Triton's binder, where it is found where it was
last seen; device and stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caught:
    """A launch as the server made it."""

    jit: Any
    """The ``JITFunction`` that is launched."""
    args: tuple[Any, ...]
    """In order."""
    kwargs: Mapping[str, Any]
    """By name; neither grid nor warmup."""
    grid: Any
    """Numbers or a function."""

    @property
    def kernel(self) -> Kernel:
        """Its record; another one each time that interception is installed."""
        kernel: Kernel = self.jit._retuned_kernel
        return kernel

    def launch(self) -> None:
        """Launch as the server did, through whatever stands there now."""
        self.jit[self.grid](*self.args, **self.kwargs)

    def call(self) -> LaunchCall:
        """Return a fresh record of the launch."""
        kwargs = {**self.kwargs, "grid": self.grid, "warmup": False}
        return LaunchCall(
            self.kernel, self.jit, self.args, kwargs, grid=self.grid, plain=_never, counted=_never
        )


def catch(kernel: Kernel, launch: Thunk) -> Caught:
    """Return the next launch through a kernel's slot.

    Raises
    ------
    SystemExit
        If none comes: then nothing is swapped there.
    """
    cls, found = type(kernel.slot), list[LaunchCall]()
    before = cls.__call__

    def catching(call: LaunchCall) -> Any:  # noqa: ANN401 - as a slot's
        found.append(call)
        return before(call)

    cls.__call__ = staticmethod(catching)
    try:
        launch()
    finally:
        cls.__call__ = staticmethod(before)
    if not found:
        raise SystemExit(f"{kernel.name} was not launched through its slot")
    call = found[0]
    kwargs = {name: v for name, v in call.kwargs.items() if name not in ("grid", "warmup")}
    return Caught(jit=call.target, args=call.args, kwargs=kwargs, grid=call.grid)


def swapped(caught: Caught) -> dict[str, Thunk]:
    """Return a swapped launch's layers, and parts of them; each leaves out what is outside of it.

    Raises
    ------
    SystemExit
        If no variant takes the launch, or launches like it are not remembered.
    """
    kernel, jit, args, kwargs, grid = (
        caught.kernel, caught.jit, caught.args, dict(caught.kwargs), caught.grid
    )  # fmt: skip
    caught.launch()  # and remembered
    table = kernel.slot.table
    form: FastPathEntry | None = table.repeats.get((kernel, len(args), *kwargs))
    given = (*args, *kwargs.values())
    entry = None if form is None else form.repeats.get(form.key(given, grid))
    if form is None or entry is None:
        raise SystemExit(f"{kernel.name}: no compiled variant takes this launch, or not as before")
    _, _, ready, run = entry
    plan, variant, asked = form.plan, table.in_force.variant, caught.call()
    reader = key_reader(kernel.slot.rule, kernel.slot.spec, kernel)
    key = reader(asked)
    numbers: Any = plan.geometry.grid(asked, ready, key)
    pool = (*given, *form.fixed)
    chosen = form.arguments(pool)
    through: Callable[..., object] = type(jit).run.__through__
    return {
        "entry": caught.launch,
        "leading": lambda: through(kernel, jit, args, dict(kwargs), grid),
        "copying": lambda: dict(kwargs),
        "repeat": lambda: repeat(table, kernel, jit, args, kwargs, grid),
        "runner": lambda: run(chosen),
        "driver": driver_call(ready.compiled, numbers, chosen),
        "key": lambda: form.repeats[form.key((*args, *kwargs.values()), grid)],
        "captured": variant.capturing() or nothing,
        "arguments": lambda: form.arguments((*given, *form.fixed)),
        "stream": _stream,
        "long way": lambda: kernel.slot(caught.call()),
        "fresh": caught.call,
        "of which key of the slot": lambda: reader(caught.call()),
        "of which signature": lambda: plan.signature(asked),
        "of which grid": lambda: plan.geometry.grid(caught.call(), ready, key),
        "nothing": nothing,
    }


def stock(caught: Caught) -> dict[str, Thunk]:
    """Return the server's own launch, and parts of it; while nothing is intercepted."""
    caches = getattr(caught.jit, "device_caches", None)
    found: dict[str, Thunk] = {
        "stock": caught.launch,
        "stock stream": _stream,
        "nothing, stock": nothing,
    }
    if caches is None:
        return found
    *_, binder = caches[triton.runtime.driver.active.get_current_device()]
    if callable(binder):
        kwargs = dict(caught.kwargs)
        found["stock binder"] = lambda: binder(*caught.args, **kwargs)
    return found


def driver_call(compiled: Any, grid: Any, args: Sequence[Any]) -> Thunk:  # noqa: ANN401
    """Return the launcher's call alone, all that it takes looked up beforehand."""
    active = triton.runtime.driver.active
    stream = active.get_current_stream(active.get_current_device())
    run, function, packed = compiled.run, compiled.function, compiled.packed_metadata
    x, y, z = grid
    return lambda: run(x, y, z, stream, function, packed, None, None, None, *args)


def timed(
    thunks: Mapping[str, Thunk], *, rounds: int, calls: int, wait: Thunk, seed: int = 0
) -> dict[str, list[float]]:
    """Return ns a call per round, by thunk.

    Parameters
    ----------
    thunks
        What is timed; each settles the interpreter first.
    rounds
        Each takes all thunks, in a new random order.
    calls
        Of one thunk in one round; fewer than a device queues.
    wait
        Waits for the device.
    seed
        Of the order.
    """
    chance, found = random.Random(seed), {name: list[float]() for name in thunks}
    for _ in range(rounds):
        for name in chance.sample(list(thunks), len(thunks)):
            thunk = thunks[name]
            for _ in range(min(20, calls)):
                thunk()
            wait()
            turns = range(calls)
            start_ns = time.perf_counter_ns()
            for _ in turns:
                thunk()
            found[name].append((time.perf_counter_ns() - start_ns) / calls)
            wait()
    return found


def split(raw: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return what each layer and each part takes, us: medians of differences within rounds.

    Parameters
    ----------
    raw
        Of `swapped` and of `stock`.
    """

    def over(name: str, *inside: str) -> float:
        rounds = zip(raw[name], *(raw[each] for each in inside), strict=True)
        middle: float = statistics.median(first - sum(rest) for first, *rest in rounds)
        return round(middle / 1e3, 3)

    found = {each: over(each, "nothing, stock") for each in STOCK if each in raw}
    found |= {"swapped": over("entry", "nothing")}
    for outer, inner in pairwise(LAYERS):
        beside = {"leading": "copying"}.get(outer, "nothing")
        without = {"leading": "copying"}.get(inner, "nothing")
        rounds = zip(raw[outer], raw[beside], raw[inner], raw[without], strict=True)
        value = statistics.median(a - b - (c - d) for a, b, c, d in rounds)
        found[outer] = round(value / 1e3, 3)
    found["driver"] = over("driver", "nothing")
    found |= {f"of which {name}": over(name, "nothing") for name in PARTS}
    beside_long = {name: "nothing" if "signature" in name else "fresh" for name in LONG_WAY}
    found |= {name: over(name, beside_long[name]) for name in LONG_WAY}
    return found


def _stream() -> object:
    active = triton.runtime.driver.active
    return active.get_current_stream(active.get_current_device())


def nothing() -> None:
    """Do nothing: what a loop takes by itself."""


def _never(*_: object, **__: object) -> object:
    raise SystemExit("the server's own launch ran where a variant's should have")
