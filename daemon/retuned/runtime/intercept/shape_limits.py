"""What launches of another source are held to: those that it was validated with, and no others.

Other parameters of the server's own code may meet any argument, since the code is the server's. A
source that somebody wrote was validated at the values of its rule. So constexprs must have them,
None included; whole numbers must be an axis, or what the rule says they are at its lengths; and a
fraction may only vary where the source takes it as it comes. No code depends on a number that is
free: as where it was validated, the source is compiled once for a length of 1, of 16 and all
others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retuned.runtime.intercept.arguments import width
from retuned.runtime.intercept.rules import LaunchRule
from retuned.runtime.schema import Refused
from retuned.runtime.triton.contract import Parameter

Wanted = tuple[bool, Any]
"""Whether a parameter of the source is fixed, and its value or the place it is taken from."""


class ShapeLimits:
    """One source on one kernel.

    Parameters
    ----------
    rule
        How the artifact binds.
    places
        Place of every parameter of the kernel, by name.
    scalars
        Places that are neither pointers nor constexprs with a value.
    parameters, wanted
        Of the source, in order, and from where each gets its argument.

    Raises
    ------
    Refused
        ``launch-mismatch`` if nothing says what an argument must be that the source ignores, or
        builds its code from.
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
        said = {*rule.ints, *rule.axes.values()}
        self._loose = frozenset(place for place in scalars if names[place] not in said)
        self._baked = frozenset(
            what for each, (fixed, what) in pairs if each.constexpr and not fixed
        )
        handed = {what for each, (fixed, what) in pairs if not fixed and not each.constexpr}
        unsaid = sorted(names[place] for place in self._loose if place not in handed - self._baked)
        if unsaid:
            detail = f"nothing says what the arguments {unsaid} of another source must be"
            raise Refused("launch-mismatch", detail=detail)
        pointers = {places[name] for name in rule.dtypes}
        self.free = tuple(
            each.name
            for each, (fixed, what) in pairs
            if not fixed and not each.constexpr and what not in pointers
        )
        """Parameters of the source that get a number which no code may depend on."""

    def allows(self, place: int, number: object) -> bool:
        """Whether a launch may have this number there; what the rule fixes is looked at later."""
        return number is float or place not in self._loose

    def code_of(self, signature: Sequence[Any]) -> tuple[Any, ...]:
        """Return all of a signature that the compiled code depends on."""
        pairs = zip(self._scalars, signature, strict=True)
        return tuple(number if place in self._baked else _kind(number) for place, number in pairs)


def _kind(number: object) -> object:
    """Return the type that Triton gives a number that is not specialised."""
    if isinstance(number, bool):
        return bool
    return width(number) if isinstance(number, int) else number
