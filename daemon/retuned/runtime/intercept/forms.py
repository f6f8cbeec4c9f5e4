"""How launches are counted under one compiled kernel: where their integers are, and the counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from retuned.runtime.intercept.arguments import Observation


class Cell:
    """Launches of one shape key."""

    __slots__ = ("count", "idle", "least_ns", "observation", "timed", "total_ns")

    def __init__(self) -> None:
        self.count = 0
        self.observation: Observation | None = None
        self.timed = 0
        """Launches timed on the device."""
        self.total_ns = 0
        """Of these, together."""
        self.least_ns = 0
        """Of these, the quickest."""
        self.idle = 0
        """Launches not timed because their stream had nothing else to do."""

    def time(self, took_ns: int) -> None:
        """Fold in what a launch took on the device."""
        self.least_ns = took_ns if self.timed == 0 else min(self.least_ns, took_ns)
        self.timed += 1
        self.total_ns += took_ns


class LaunchLayout:
    """Launches of one compiled kernel whose integers are given in the same places."""

    __slots__ = ("cells", "named", "places")

    def __init__(self, places: Callable[[Any], Any], named: Callable[[Any], Any] | None) -> None:
        self.places = places
        """Picks the integers among the positional arguments."""
        self.named = named
        """Picks the integers among the others; None where there are none."""
        self.cells: dict[Any, Cell] = {}
        """By grid and integers."""


def _nothing(args: object) -> None:
    """Pick from arguments without integers."""


def make_form(
    places: Sequence[int], named: Sequence[str], *, loose: Sequence[str], given: int
) -> LaunchLayout:
    """Return a form.

    Parameters
    ----------
    places, named
        Of the integers among the positional and the other arguments.
    loose
        Parameters that may be left out.
    given
        How many arguments are positional.
    """
    pick = itemgetter(*places) if places else _nothing
    if not loose:
        return LaunchLayout(pick, itemgetter(*named) if named else None)
    return LaunchLayout(_exactly(given, pick), _naming(loose, named))


def _exactly(given: int, pick: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Pick only where exactly so many arguments are positional."""

    def exact(args: tuple[Any, ...]) -> Any:  # noqa: ANN401 - integers
        if len(args) != given:
            raise KeyError(given)
        return pick(args)

    return exact


def _naming(loose: Sequence[str], named: Sequence[str]) -> Callable[[Any], Any]:
    """Pick by name, those that may be left out too: what is not given is part of the key."""
    names = (*named, *(name for name in loose if name not in named))

    def by_name(kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple([kwargs.get(name) for name in names])

    return by_name


def pick(form: LaunchLayout, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return the integers of a launch, in the shape the quick way has them."""
    found = form.places(args)
    return found if form.named is None else (found, form.named(kwargs))
