"""Where the host's time of one swapped Triton launch goes, layer by layer.

A launch that the server made is caught in its slot and made again, from the outermost call to the
driver's, each layer by itself. What a layer costs is what it takes beyond the layer inside it, so
that the layers of a state add up to the whole launch. `PARTS` are looked at besides: they lie
inside of layers. Rounds take all in an order drawn anew, and wait for the device after each.
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

from retuned.runtime.intercept.call import Call
from retuned.runtime.intercept.kernels import Kernel
from retuned.runtime.intercept.plans import Plan, Ready
from retuned.runtime.intercept.rules import key_reader

Thunk = Callable[[], object]

LAYERS = ("entry", "call", "slot", "route", "variant", "arguments", "runner", "driver")
"""From the outermost: what ``kernel[grid](...)`` does before a slot is asked; the record of the
launch; reading its lengths and looking them up; whether it is captured, checked, counted; what
must hold of its arguments, and its grid; putting the arguments in order; device, stream and hooks;
the driver's call."""
PARTS = ("key", "captured", "signature", "fits", "grid", "stream")
"""Inside of them: key in ``slot``, captured in ``route``, stream in ``runner``, others in
``variant``."""
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

    def call(self) -> Call:
        """Return a fresh record of the launch."""
        kwargs = {**self.kwargs, "grid": self.grid, "warmup": False}
        return Call(
            self.kernel, self.jit, self.args, kwargs, grid=self.grid, plain=_never, counted=_never
        )


def catch(kernel: Kernel, launch: Thunk) -> Caught:
    """Return the next launch through a kernel's slot.

    Raises
    ------
    SystemExit
        If none comes: then nothing is swapped there.
    """
    cls, found = type(kernel.slot), list[Call]()
    before = cls.__call__

    def catching(call: Call) -> Any:  # noqa: ANN401 - as a slot's
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
        If no variant takes the launch.
    """
    slot = caught.kernel.slot
    order = slot.table.in_force
    variant = None if order is None else order.variant
    plan: Plan | None = None if variant is None else variant._plans.get(caught.kernel)
    read = caught.call()
    reader = key_reader(slot.rule, slot.spec, caught.kernel)
    key = reader(read)
    signature = None if plan is None else plan.signature(read)
    ready: Ready | None = None if plan is None else plan.ready.get(signature)  # type: ignore[arg-type]
    if plan is None or variant is None or ready is None or ready.compiled is None:
        raise SystemExit(f"{caught.kernel.name}: no compiled variant takes this launch")
    grid: Any = plan.grid(read, ready, key)
    values, fresh, route = read.values(), caught.call, slot.table[key][1]
    args = [what if fixed else values[what] for fixed, what in plan._arguments]
    launch, runner = variant.launcher(key), ready.compiled[grid]
    through: Callable[..., object] = type(caught.jit).run.__through__
    kwargs = caught.kwargs

    def known() -> Call:
        call = fresh()
        call._values, call._grid = read._values, read._grid
        return call

    return {
        "entry": caught.launch,
        "call": lambda: through(caught.kernel, caught.jit, caught.args, dict(kwargs), caught.grid),
        "slot": lambda: slot(fresh()),
        "route": lambda: route(known()),
        "variant": lambda: launch((known(),)),
        "arguments": lambda: plan.launch(ready, read, values, grid),
        "runner": lambda: runner(*args),
        "driver": driver_call(ready.compiled, grid, args),
        "fresh": fresh,
        "known": known,
        "key": lambda: reader(fresh()),
        "captured": variant.capturing() or nothing,
        "signature": lambda: plan.signature(read),
        "fits": lambda: plan.fits(read, ready, key),
        "grid": lambda: plan.grid(known(), ready, key),
        "stream": _stream,
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
        Each takes all thunks, in an order drawn anew.
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
    found |= {"swapped": over("entry", "nothing"), "entry": over("entry", "call")}
    within = {"slot": "fresh", "route": "known", "variant": "known", "arguments": "nothing"}
    for outer, inner in pairwise(LAYERS[1:]):
        taken, given = within.get(outer, "nothing"), within.get(inner, "nothing")
        rounds = zip(raw[outer], raw[taken], raw[inner], raw[given], strict=True)
        value = statistics.median(a - b - c + d for a, b, c, d in rounds)
        found[outer] = round(value / 1e3, 3)
    found["driver"] = over("driver", "nothing")
    inside = {"key": "fresh", "grid": "known"}
    found |= {f"of which {name}": over(name, inside.get(name, "nothing")) for name in PARTS}
    return found


def _stream() -> object:
    active = triton.runtime.driver.active
    return active.get_current_stream(active.get_current_device())


def nothing() -> None:
    """Do nothing: what a loop takes by itself."""


def _never(*_: object, **__: object) -> object:
    raise SystemExit("the server's own launch ran where a variant's should have")
