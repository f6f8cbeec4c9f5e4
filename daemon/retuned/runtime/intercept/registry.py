"""Registry of intercepted kernels: parameters, and launches counted by shape key.

For each compiled kernel it stores in which positions the integers of a launch are.
"""

from __future__ import annotations

import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

from retuned.runtime.intercept.arguments import Observation, observe


class Cell:
    __slots__ = ("count", "idle", "least_ns", "observation", "timed", "total_ns")

    def __init__(self) -> None:
        self.count = 0
        self.observation: Observation | None = None
        self.timed = 0
        self.total_ns = 0
        self.least_ns = 0
        self.idle = 0
        """Launches not timed because their stream was idle."""

    def time(self, took_ns: int) -> None:
        self.least_ns = took_ns if self.timed == 0 else min(self.least_ns, took_ns)
        self.timed += 1
        self.total_ns += took_ns


class LaunchLayout:
    """Launches of one compiled kernel that pass their integers in the same positions."""

    __slots__ = ("cells", "named", "places")

    def __init__(self, places: Callable[[Any], Any], named: Callable[[Any], Any] | None) -> None:
        self.places = places
        """Picks the integers of the positional arguments."""
        self.named = named
        """Picks the integers of the keyword arguments; None if there are none."""
        self.cells: dict[Any, Cell] = {}


def _nothing(args: object) -> None: ...


def make_form(
    places: Sequence[int], named: Sequence[str], *, loose: Sequence[str], given: int
) -> LaunchLayout:
    """Return a layout.

    Parameters
    ----------
    places, named
        Positions and names of the integers.
    loose
        Parameters with a whole number that may be omitted.
    given
        How many arguments are positional.
    """
    pick = itemgetter(*places) if places else _nothing
    if not loose:
        return LaunchLayout(pick, itemgetter(*named) if named else None)
    return LaunchLayout(_exactly(given, pick), _naming(loose, named))


def _exactly(given: int, pick: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def exact(args: tuple[Any, ...]) -> Any:  # noqa: ANN401 - integers
        if len(args) != given:
            raise KeyError(given)
        return pick(args)

    return exact


def _naming(loose: Sequence[str], named: Sequence[str]) -> Callable[[Any], Any]:
    """Pick by name, including parameters that may be omitted: an omission is part of the key."""
    names = (*named, *(name for name in loose if name not in named))

    def by_name(kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple([kwargs.get(name) for name in names])

    return by_name


def pick(form: LaunchLayout, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return the integers of a launch, in the form that the fast path uses."""
    found = form.places(args)
    return found if form.named is None else (found, form.named(kwargs))


log = logging.getLogger(__name__)

MAX_KEYS = 512
MAX_OBSERVED = 64
MISSING = object()

Grid = Any
"""A tuple of up to three whole numbers, or any object that a server passes."""


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    constexpr: bool
    default: Any


class Probe(Protocol):
    """Times one launch; implemented in `timing`."""

    def begin(self, kernel: Kernel) -> Any | None:  # noqa: ANN401 - the device's own
        """Mark the start of a launch if it is the one to be timed."""
        ...

    def end(self, begun: Any, cell: Cell) -> None:  # noqa: ANN401 - the device's own
        ...


class Kernel:
    """One kernel function of the server.

    Parameters
    ----------
    target
        What launches it: a ``JITFunction``, or the function that the interpreter runs. Referenced
        weakly.
    """

    __slots__ = (
        "__weakref__",
        "_alternatives",
        "_keys",
        "_lock",
        "_loose",
        "_observed",
        "_slot",
        "forms",
        "function",
        "interpreted",
        "led",
        "name",
        "names",
        "other",
        "parameters",
        "probe",
        "target",
        "tell",
        "variadic",
    )

    def __init__(
        self,
        target: Any,  # noqa: ANN401 - of the server's Triton
        function: Any,  # noqa: ANN401
        *,
        constexprs: Sequence[str],
        interpreted: bool,
    ) -> None:
        self.target = weakref.ref(target)
        self.function = function
        self.name = f"{function.__module__}:{function.__qualname__}"
        self.interpreted = interpreted
        found = inspect.signature(function).parameters
        self.parameters = tuple(
            Parameter(
                name,
                name in constexprs,
                MISSING if each.default is inspect.Parameter.empty else each.default,
            )
            for name, each in found.items()
        )
        self.names = frozenset(found)
        self._loose = frozenset(
            each.name
            for each in self.parameters
            if not each.constexpr and each.default is not MISSING
        )
        self.variadic = any(
            each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in found.values()
        )
        """Takes ``*args``: counted, but neither lifted nor swapped."""
        self.led: Any = None
        """Slot or probe that launches go through; None for the server's own code."""
        self._slot: Any = None
        self.probe: Probe | None = None
        self.tell: Callable[[], None] | None = None
        """Called when a launch has a new key, including the first launch; must not raise."""
        self.restart()

    @property
    def slot(self) -> Any:  # noqa: ANN401 - a KernelSlot
        """Slot of its launches; None while the server's own code runs them."""
        return self._slot

    @slot.setter
    def slot(self, slot: Any) -> None:  # noqa: ANN401 - as above
        self._slot = slot
        self._lead()

    def arm(self, probe: Probe) -> None:
        """Time one of the next launches; no effect while a slot dispatches them."""
        self.probe = probe
        self._lead()

    def disarm(self) -> None:
        self.probe = None
        self._lead()

    def _lead(self) -> None:
        """Set what launches go through now.

        A launch may disarm while the control thread opens a slot, and neither waits for the other.
        So each reads both values again after the assignment, and the last assignment is correct.
        """
        while True:
            slot, probe = self._slot, self.probe
            self.led = probe if slot is None else slot
            if self._slot is slot and self.probe is probe:
                return

    def restart(self) -> None:
        self.disarm()
        self._lock = threading.Lock()
        self._alternatives: dict[Any, LaunchLayout] = {}
        self._keys = 0
        self._observed = 0
        self.forms: dict[Any, LaunchLayout] = {}
        self.other = Cell()

    # --- counting ---------------------------------------------------------------------------------

    def sighted(
        self,
        compiled: object,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        grid: Grid,
        *,
        rule: object = None,
    ) -> None:
        """Count a launch whose key the fast path has not found; never raises.

        Parameters
        ----------
        compiled
            What Triton launched; None in its interpreter.
        rule
            Function that returned the grid, if any.
        """
        try:
            if not isinstance(grid, tuple):
                grid = tuple(grid)
            form, numbers = self._form(compiled, args, kwargs)
            key = (grid, numbers)
            cell = form.cells.get(key)
            if cell is None:
                cell = self._new_cell(form, key)
                self._describe(cell, compiled, args, kwargs, (grid, rule))
                if self.tell is not None:
                    self.tell()
            cell.count += 1
        except Exception as error:  # untrusted arguments: counting must not break a launch
            self.other.count += 1
            log.debug("%s: a launch is counted without its shape: %r", self.name, error)

    def cells(self) -> Iterator[Cell]:
        for form in (*list(self.forms.values()), *list(self._alternatives.values())):
            yield from list(form.cells.values())

    def total(self) -> int:
        return self.other.count + sum(cell.count for cell in self.cells())

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the value of every parameter, in order.

        Raises
        ------
        ValueError
            If one is missing, or there are too many.
        """
        if len(args) > len(self.parameters) or self.variadic:
            raise ValueError("arguments do not fit the parameters")
        values = list(args)
        for each in self.parameters[len(args) :]:
            value = kwargs.get(each.name, each.default)
            if value is MISSING:
                raise ValueError(f"'{each.name}' is not given")
            values.append(value)
        return values

    def _form(
        self, compiled: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[LaunchLayout, Any]:
        token = compiled if compiled is not None else self._token(args, kwargs)
        form = self.forms.get(token)
        if form is None:
            form = self.forms.setdefault(token, self._make_form(args, kwargs))
        try:
            return form, pick(form, args, kwargs)
        except (IndexError, KeyError):  # passed in other positions than at first
            other = (token, len(args), tuple(kwargs))
            form = self._alternatives.get(other)
            if form is None:
                form = self._alternatives.setdefault(other, self._make_form(args, kwargs))
            return form, pick(form, args, kwargs)

    def _make_form(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> LaunchLayout:
        ordinary = [not each.constexpr for each in self.parameters]
        ordinary += [True] * (len(args) - len(ordinary))  # of *args
        places = [i for i, value in enumerate(args) if ordinary[i] and isinstance(value, int)]
        fixed = {each.name for each in self.parameters if each.constexpr}
        named = [
            name
            for name, value in kwargs.items()
            if name in self.names and name not in fixed and isinstance(value, int)
        ]
        return make_form(places, named, loose=self._omissible(args, kwargs), given=len(args))

    def _omissible(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
        """Return the parameters of a launch that have a default and a whole number.

        Other values stay out of the key: a key that holds a tensor keeps its memory allocated.
        """
        positional = dict(zip([each.name for each in self.parameters], args, strict=False))
        given = {**positional, **kwargs}
        return [
            each.name
            for each in self.parameters
            if each.name in self._loose and isinstance(given.get(each.name, each.default), int)
        ]

    def _token(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        """Return the key that Triton would compile for, where it compiles nothing."""
        found: list[object] = []
        for each, value in zip(self.parameters, self.bind(args, kwargs), strict=True):
            if each.constexpr:
                found.append((value.__class__, getattr(value, "value", value)))
            elif hasattr(value, "data_ptr"):
                found.append((str(value.dtype), value.data_ptr() % 16 == 0))
            else:
                found.append(value.__class__)
        return tuple(found)

    def _new_cell(self, form: LaunchLayout, key: Any) -> Cell:  # noqa: ANN401 - grid and integers
        with self._lock:
            if self._keys >= MAX_KEYS:
                self._trim()
            self._keys += 1
            return form.cells.setdefault(key, Cell())

    def _trim(self) -> None:
        """Add the less launched half of the cells to `other`, to make room for new keys."""
        forms = [*self.forms.values(), *self._alternatives.values()]
        counts = sorted(cell.count for form in forms for cell in form.cells.values())
        limit, left = counts[len(counts) // 2], len(counts) // 2
        for form in forms:
            for key, cell in list(form.cells.items()):
                if left and cell.count <= limit:
                    del form.cells[key]
                    left -= 1
                    self._keys -= 1
                    self._observed -= cell.observation is not None
                    self.other.count += cell.count
        for table in (self.forms, self._alternatives):
            for token, form in list(table.items()):
                if not form.cells:
                    del table[token]  # its compiled code may now be freed

    def _describe(
        self,
        cell: Cell,
        compiled: object,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        grid: tuple[tuple[Any, ...], object],
    ) -> None:
        if self.variadic or self._observed >= MAX_OBSERVED or cell.observation is not None:
            return
        options = {name: value for name, value in kwargs.items() if name not in self.names}
        cell.observation = observe(
            [each.name for each in self.parameters],
            [each.constexpr for each in self.parameters],
            self.bind(args, kwargs),
            options=options,
            compiled=compiled,
            grid=grid[0],
            grid_code=getattr(grid[1], "__code__", None),
        )
        self._observed += 1
