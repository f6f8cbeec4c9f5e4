"""Limits of launches for another source: only those that it was validated with.

Other parameters of the server's own code may meet any argument, since the code is the server's.
Another source was validated only at the values of its rule. So constexprs must have these values,
including None. Whole numbers must be an axis, or what the rule gives for them at its lengths. A
float may vary only if the source takes it at run time. No code depends on a free number: as in
validation, the source is compiled once for a length of 1, of 16 and all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retuned.runtime.intercept.arguments import width
from retuned.runtime.intercept.rules import LaunchRule
from retuned.runtime.schema import Refused
from retuned.runtime.triton.contract import Parameter

Wanted = tuple[bool, Any]
"""Whether a parameter of the source is fixed, and its value or the position of its argument."""


class ShapeLimits:
    """One source on one kernel.

    Parameters
    ----------
    places
        Position of every parameter of the kernel, by name.
    scalars
        Positions that are neither pointers nor constexprs with a value.
    parameters, wanted
        Of the source, in order, and where each gets its argument.

    Raises
    ------
    Refused
        ``launch-mismatch`` if the rule gives no value for an argument that the source ignores or
        compiles into its code.
    """

    def __init__(
        self,
        rule: LaunchRule,
        *,
        places: Mapping[str, int],
        scalars: Sequence[int],
        parameters: Sequence[Parameter],
        wanted: Sequence[Wanted],
    ) -> None:
        names = {place: name for name, place in places.items()}
        pairs = list(zip(parameters, wanted, strict=True))
        self._scalars = tuple(scalars)
        ruled = {*rule.ints, *rule.axes.values()}
        self._loose = frozenset(place for place in scalars if names[place] not in ruled)
        self._baked = frozenset(
            what for each, (fixed, what) in pairs if each.constexpr and not fixed
        )
        handed = {what for each, (fixed, what) in pairs if not fixed and not each.constexpr}
        free = sorted(names[place] for place in self._loose if place not in handed - self._baked)
        if free:
            detail = f"the rule gives no value for the arguments {free} of another source"
            raise Refused("launch-mismatch", detail=detail)
        pointers = {places[name] for name in rule.dtypes}
        self.free = tuple(
            each.name
            for each, (fixed, what) in pairs
            if not fixed and not each.constexpr and what not in pointers
        )
        """Parameters of the source that get a number on which no code may depend."""

    def allows(self, place: int, number: object) -> bool:
        """Whether a launch may have this number there.

        Values fixed by the rule are checked later.
        """
        return number is float or place not in self._loose

    def code_of(self, signature: Sequence[Any]) -> tuple[Any, ...]:
        """Return the part of a signature that the compiled code depends on."""
        pairs = zip(self._scalars, signature, strict=True)
        return tuple(number if place in self._baked else _kind(number) for place, number in pairs)


def _kind(number: object) -> object:
    """Return the type that Triton gives a number that is not specialised."""
    if isinstance(number, bool):
        return bool
    return width(number) if isinstance(number, int) else number
