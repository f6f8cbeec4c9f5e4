"""State of tunables in this process: launches by size class, recorded launches, table in force."""

from __future__ import annotations

import base64
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from retuned.runtime.core.orders import CheckRates
from retuned.runtime.steps.launch_timer import LaunchTimer, moments
from retuned.runtime.steps.launch_times import LaunchSpan, LaunchTimes
from retuned.runtime.tunables.checks import TableChecks
from retuned.runtime.tunables.records import Axes, Config, Rule, Table, bucket, tunable_id

log = logging.getLogger(__name__)

MAX_TUNABLES = 256
MAX_CLASSES = 256
"""Size classes counted for one tunable; launches of further ones are counted together."""
MAX_RECIPES = 64
_MAX_SIZES = 64
MAX_DATA_BYTES = 1 << 20
"""Values of integer tensors that one recorded launch may hold."""
_TIME_EVERY, _TIME_AT = 61, 5
"""One eager launch in so many is timed on the device; the first ones may compile.

The number is prime, so that the timed launch is not the same layer of each step.
"""
_STEP = 1.1
"""How far beyond the described launches another one is described as an end of its class."""


class SizeClass:
    """Launches of one size class.

    Parameters
    ----------
    timer
        Returns what times launches, asked when one is due.
    """

    __slots__ = (
        "axes",
        "captured",
        "config",
        "described",
        "detail",
        "ends",
        "how",
        "idle",
        "launches",
        "matched",
        "proof",
        "ready",
        "sizes",
        "timed",
        "timed_us",
        "timer",
    )

    def __init__(self, axes: Axes, timer: Callable[[], LaunchTimer]) -> None:
        self.axes = axes
        self.timer = timer
        self.launches = 0
        self.captured = 0
        """Launches during a capture of a graph; each is replayed unseen."""
        self.sizes: set[int] = set()
        """Exact sizes on the first axis of captured launches."""
        self.matched = 0
        self.timed = 0
        self.timed_us = 0.0
        self.idle = 0
        """Launches that were due to be timed, and for which the device may have waited."""
        self.proof: LaunchSpan | None = None
        """Counts and times launches for a live proof; None without one."""
        self.ends: tuple[int, int] | None = None
        """Sizes of the smallest and the largest launch that were described."""
        self.described: bool | None = None
        """Whether a launch was described, with values of integer tensors or without."""
        self.ready = False
        """Whether an experiment can repeat the described launch."""
        self.config: Config = {}
        self.how = ""
        self.detail = ""

    def begin(self) -> Any | None:  # noqa: ANN401 - the device's own
        """Mark the start of the launch that was counted last; None if it is not timed."""
        return self.timer().begin() if self.launches % _TIME_EVERY == _TIME_AT else None

    def end(self, begun: Any) -> None:  # noqa: ANN401 - the device's own
        """Take the end of a launch that `begin` has marked; never raises into the server."""
        self.timer().end(begun, self)

    def time(self, took_ns: int) -> None:
        """Take the device time of one launch."""
        self.timed_us += took_ns / 1e3
        self.timed += 1

    def report(self) -> dict[str, Any]:
        return {
            "axes": dict(self.axes),
            "launches": self.launches,
            "timed": self.timed,
            "timed_us": round(self.timed_us, 3),
            "idle": self.idle,
            "captured": self.captured,
            "sizes": sorted(self.sizes)[:_MAX_SIZES],
            "ready": self.ready,
            "config": dict(self.config),
            "how": self.how,
            "detail": self.detail,
        }


class Tunable:
    """One kernel with what is fixed about it.

    Parameters
    ----------
    space
        Declared configurations: ``{"configs": [...]}`` or ``{"parameters": {...}}``.
    check
        Raises `Refused` for a configuration that this tunable cannot launch.
    warm
        Compiles the configurations of a table before it is exchanged.
    """

    def __init__(
        self,
        family: str,
        *,
        kernel: str,
        module: str,
        source: str,
        geometry: Mapping[str, Any],
        axes: Sequence[str],
        space: Mapping[str, Any],
        check: Callable[[Config], None],
        warm: Callable[[Table], None] = lambda _: None,
    ) -> None:
        self.id = tunable_id(family, module=module, kernel=kernel, geometry=geometry)
        self.family, self.kernel, self.module = family, kernel, module
        self.source, self.geometry, self.axes = source, dict(geometry), tuple(axes)
        self.space, self.check, self.warm = dict(space), check, warm
        self.table: Table | None = None
        """In force."""
        self.since_s = 0.0
        """When the table came into force, seconds of the monotonic clock."""
        self.checks: TableChecks | None = None
        """Compares launches under the table with the server's choice."""
        self.written: frozenset[str] | None = None
        """Arguments that a launch may write, where its source tells; see `written_by`."""
        self.tripped = ""
        """Why the table in force has ended in this process; empty if it has not."""
        self.bypassed = False
        """Whether the server's choice runs for a while although a table is in force."""
        self.cold: tuple[Rule, ...] = ()
        """Rules that are not compiled yet: their sizes keep the server's choice."""
        self.failed: tuple[Config, ...] = ()
        """Configurations of the table that failed in a launch: their sizes keep it until another
        table comes."""
        self.uncaptured: dict[int, int] = {}
        """Batch sizes whose graph could not be captured again, and how often it was tried."""
        self.refused = ""
        self.captured_sizes: tuple[int, ...] = ()
        """Batch sizes whose graphs were captured with the table in force."""
        self.recording = False
        self.first: int | None = None
        """Size class at which an autotuner made its choice; None if that was not observed."""
        self.recipes: dict[tuple[int, ...], dict[str, Any]] = {}
        self.edges: dict[tuple[tuple[int, ...], str], dict[str, Any]] = {}
        """By size class and end: its smallest and its largest launch, beside the recipe."""
        self._classes: dict[tuple[int, ...], SizeClass] = {}
        self._times: LaunchTimes | None = None
        self._timer: LaunchTimer | None = None

    def sized(self, axes: Axes) -> SizeClass:
        """Return the size class of a launch."""
        key = tuple(bucket(axes[name]) for name in self.axes)
        found = self._classes.get(key)
        if found is None:
            if len(self._classes) >= MAX_CLASSES - 1:
                key = tuple(0 for _ in self.axes)
            made = SizeClass(dict(zip(self.axes, key, strict=True)), self.timer)
            found = self._classes.setdefault(key, made)
            self._prove(key, found)
        return found

    def timer(self) -> LaunchTimer:
        """Return what times launches; the first launch that is due decides by which clock."""
        if self._timer is None:
            self._timer = LaunchTimer(moments())
        return self._timer

    def time_launches(self, times: LaunchTimes | None) -> None:
        """Start to count and time launches for a live proof; None ends that."""
        self._times = times
        for key, each in list(self._classes.items()):
            self._prove(key, each)

    def _prove(self, key: tuple[int, ...], sized: SizeClass) -> None:
        times = self._times
        sized.proof = None if times is None else times.span(key)

    def choose(self, axes: Axes, sized: SizeClass) -> Config | None:
        """Count a launch, and return the configuration of the table; None for the server's."""
        sized.launches += 1
        if len(sized.sizes) < _MAX_SIZES and capturing():
            sized.sizes.add(axes[self.axes[0]])
        config = self.row_of(axes)
        if config is not None:
            sized.matched += 1
            sized.config, sized.how = config, "table"
        return config

    def row_of(self, axes: Axes) -> Config | None:
        """Return the configuration of the table for a launch; None for the server's."""
        table = self.acting
        config = table.choose(axes) if table is not None else None
        if config is not None and any(rule.config is config for rule in self.cold):
            return None
        if config is not None and any(config is each for each in self.failed):
            return None
        return config

    @property
    def acting(self) -> Table | None:
        """The table in force, as far as launches run under it now."""
        return None if self.tripped or self.bypassed else self.table

    def put(
        self,
        table: Table | None,
        *,
        cold: Sequence[Rule] = (),
        rates: CheckRates | None = None,
    ) -> None:
        """Put a table in force; None is the original.

        Parameters
        ----------
        rates
            How its launches are checked; None checks none.
        """
        self.cold, self.uncaptured, self.failed = tuple(cold), {}, ()
        self.tripped, self.bypassed = "", False
        self.checks = None if table is None or rates is None else self._checks_of(table, rates)
        self.table, self.since_s = table, time.monotonic()

    def _checks_of(self, table: Table, rates: CheckRates) -> TableChecks:
        def stands() -> bool:
            return self.table is table and not self.tripped

        def trip(reason: str, _detail: str) -> None:
            if self.table is table:
                self.tripped = reason

        return TableChecks(self.id, rates=rates, on_trip=trip, stands=stands)

    def leave_out(self, config: Config) -> None:
        """Let the sizes of a configuration that failed run the server's choice."""
        self.failed = (*self.failed, config)

    def forget_values(self) -> None:
        """Drop descriptions that hold values of integer tensors."""
        for key, each in list(self._classes.items()):
            if each.described:
                each.described, each.ready, each.ends = None, False, None
                self.recipes.pop(key, None)
                self._forget_edges(key)

    def wants_recipe(self, sized: SizeClass) -> bool:
        """Whether a launch of this class is to be described, or described again with values."""
        if sized.described == self.recording or sized.described is True:
            return False
        return sized.described is not None or len(self.recipes) < MAX_RECIPES

    def only_counts(self, sized: SizeClass) -> bool:
        """Whether the next launch of a class is only counted: most launches are.

        No table is in force, the launch is neither timed nor described, and no graph is captured.
        """
        described = sized.described
        return (
            self.table is None
            and described is not None
            and (described or not self.recording)
            and (sized.launches + 1) % _TIME_EVERY != _TIME_AT
            and not capturing()
        )

    def record(self, sized: SizeClass, recipe: Mapping[str, Any]) -> None:
        """Keep the description of a launch; at most one for each size class."""
        sized.described = self.recording
        sized.ready = self.family != "autotune" or not lacks_values(recipe)
        sized.ends = (_size(recipe["axes"]),) * 2
        key = tuple(sized.axes.values())
        self._forget_edges(key)
        self.recipes[key] = dict(recipe)

    def _forget_edges(self, key: tuple[int, ...]) -> None:
        for end in ("low", "high"):
            self.edges.pop((key, end), None)

    def edge(self, sized: SizeClass, axes: Axes) -> str:
        """Return which end of its size class a launch extends, as far as was described."""
        if sized.ends is None or sized.described != self.recording:
            return ""
        size, (low, high) = _size(axes), sized.ends
        # by a step each, so that a size that creeps up is not described at every launch
        return "low" if size * _STEP < low else "high" if size > high * _STEP else ""

    def record_edge(self, sized: SizeClass, recipe: Mapping[str, Any], end: str) -> None:
        """Keep the description of a launch at an end of its size class."""
        assert sized.ends is not None, "asked before"
        low, high = sized.ends
        size = _size(recipe["axes"])
        sized.ends = min(low, size), max(high, size)
        self.edges[tuple(sized.axes.values()), end] = {**recipe, "edge": end}

    @property
    def data_budget(self) -> list[int]:
        """Bytes of integer tensors that a description may copy."""
        return [MAX_DATA_BYTES if self.recording else -1]

    @property
    def matched(self) -> int:
        return sum(each.matched for each in list(self._classes.values()))

    def rule_fits(self, rule: Rule) -> str:
        """Return why a rule cannot match a launch that was seen; empty if it can."""
        named = {name for name, _, _ in rule.when}
        if not named <= set(self.axes):
            return "axis-unknown"
        if any(_overlaps(rule, each.axes) for each in list(self._classes.values())):
            return ""
        return "rule-without-launch"

    def is_captured(self, table: Table) -> bool:
        """Whether graphs were captured at sizes that a rule of a table is for."""
        captured = [each.axes for each in list(self._classes.values()) if each.captured]
        return any(_overlaps(rule, axes) for rule in table.rules for axes in captured)

    def after_fork(self) -> None:
        """Start over in a child: no table, no counts, no recording."""
        self.put(None)
        self.captured_sizes = ()
        self.recording, self.first, self._timer = False, None, None
        self._classes.clear()
        self.recipes.clear()
        self.edges.clear()

    def frozen(self) -> Config | None:
        """Return the configuration that an autotuner chose once; None before its choice is seen."""
        known = (each for each in list(self._classes.values()) if each.how == "frozen")
        return next((each.config for each in known if each.config), None)

    def forget_matches(self) -> None:
        """Start to count the launches of a new table."""
        for each in list(self._classes.values()):
            each.matched = 0

    def asked(self) -> list[dict[str, Any]]:
        """Return the size classes, most launches first."""
        if self._timer is not None:
            self._timer.gather()
        every = sorted(self._classes.values(), key=lambda each: -each.launches)
        return [each.report() for each in every[:MAX_CLASSES]]


def _size(axes: Axes) -> int:
    return math.prod(1 + value for value in axes.values())


def _overlaps(rule: Rule, axes: Axes) -> bool:
    """Whether a rule is for some launch of a size class."""
    ends = {name: (n // 2 + 1 if n > 1 else n, n) for name, n in axes.items()}
    return all(low <= ends[name][1] and ends[name][0] <= high for name, low, high in rule.when)


class Registry:
    """The tunables of this process, by id."""

    def __init__(self) -> None:
        self._known: dict[str, Tunable] = {}
        self._lock = threading.Lock()
        self.when_seen: Callable[[], None] | None = None
        """Called with the first tunable; must not raise."""
        self.may_record = False
        self.assumed: Axes = {}
        """Axes that a capture of our own does not show, such as the longest sequence."""
        self.failures = 0
        """Launches at which code of the runtime failed; the server's own launch ran."""

    def __iter__(self) -> Iterator[Tunable]:
        return iter(list(self._known.values()))

    def find(self, name: str) -> Tunable | None:
        return self._known.get(name)

    def add(self, made: Tunable) -> Tunable | None:
        """Register a tunable; return the one with this id, or None beyond the limit."""
        with self._lock:
            known = self._known.get(made.id)
            if known is not None:
                return known
            if len(self._known) >= MAX_TUNABLES:
                return None
            self._known[made.id] = made
        if self.when_seen is not None:
            self.when_seen()
        return made

    def after_fork(self) -> None:
        """Start over in a child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        for tunable in self:
            tunable.after_fork()

    def failed(self, where: str) -> None:
        """Log a failure of the runtime's own code, with growing distance."""
        self.failures += 1
        if self.failures & (self.failures - 1) == 0:
            log.exception("%s: the server's own launch runs (%d failures)", where, self.failures)


def capturing() -> bool:
    """Whether this thread's current stream captures a graph."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing()


def timed(sized: SizeClass, launch: Callable[[], Any], *, in_capture: bool) -> Any:  # noqa: ANN401
    """Launch, and time the launch if it is due; while a live proof times launches, it decides."""
    if in_capture:
        sized.captured += 1
        return launch()
    span = sized.proof or sized
    begun: Any = span.begin()
    found = launch()
    if begun is not None:
        span.end(begun)
    return found


def spec_of(value: object, *, budget: list[int]) -> dict[str, Any]:
    """Describe an argument of a launch; only values of integer tensors are copied.

    `budget` holds the bytes that may still be copied.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return {"tensor": _tensor_spec(torch, value, budget)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(value)}  # JSON has no infinity
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    inner = getattr(value, "value", None)  # tl.constexpr
    if type(value).__name__ == "constexpr":
        return spec_of(inner, budget=budget)
    if isinstance(value, (tuple, list)) and all(isinstance(n, (int, float)) for n in value[:16]):
        return {"items": list(value[:16])}
    named = str(value)
    if type(value).__name__ == "dtype":
        return {"dtype": named.removeprefix("torch.")}
    return {"unsupported": type(value).__name__}


def _tensor_spec(torch: Any, value: Any, budget: list[int]) -> dict[str, Any]:  # noqa: ANN401
    spec: dict[str, Any] = {
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "stride": list(value.stride()),
        "data": None,
    }
    whole = not value.dtype.is_floating_point and not value.dtype.is_complex
    size = value.numel() * value.element_size()
    if whole and size <= budget[0]:
        budget[0] -= size
        dense = value.detach().contiguous().cpu().view(torch.uint8).flatten()
        spec["data"] = base64.b64encode(bytes(dense.tolist())).decode()
    return spec


def lacks_values(recipe: Mapping[str, Any]) -> bool:
    """Whether a described launch has integer tensors whose values were not copied.

    Examples
    --------
    >>> index = {"dtype": "int32", "shape": [4], "stride": [1], "data": None}
    >>> lacks_values({"call": {"arguments": [["index", {"tensor": index}]]}})
    True
    """
    for _, spec in recipe["call"].get("arguments", ()):
        tensor = spec.get("tensor")
        if tensor is None or tensor["data"] is not None or 0 in tensor["shape"]:
            continue
        if not str(tensor["dtype"]).startswith(("float", "bfloat", "complex")):
            return True
    return False


def replace_everywhere(name: str, old: Any, new: Any) -> list[Any]:  # noqa: ANN401 - functions
    """Replace a function in every loaded module that holds it under its name.

    Returns all modules that hold the new one then, for `replace_among`.
    """
    return replace_among(list(sys.modules.values()), name, old, new)


def replace_among(modules: Sequence[Any], name: str, old: Any, new: Any) -> list[Any]:  # noqa: ANN401
    """Replace a function in some modules; see `replace_everywhere`."""
    found = [(each, getattr(each, "__dict__", {}).get(name)) for each in modules]
    for module, held in found:
        if held is old:
            setattr(module, name, new)
    return [module for module, held in found if held is old or held is new]


def compile_only(kernel: Any, kwargs: Mapping[str, Any]) -> None:  # noqa: ANN401 - a JITFunction
    """Compile a kernel, and load its binary where this Triton can."""
    compiled = kernel.run(grid=(1, 1, 1), warmup=True, **kwargs)
    load = getattr(compiled, "_init_handles", None)
    if load is not None:
        load()


class Pointer:
    """Replaces a tensor where Triton only compiles; its address is aligned by default."""

    def __init__(self, dtype: Any, *, address: int = 0) -> None:  # noqa: ANN401 - a torch.dtype
        self.dtype, self._address = dtype, address

    def data_ptr(self) -> int:
        return self._address

    @property
    def ptr_range(self) -> int:
        return 0
