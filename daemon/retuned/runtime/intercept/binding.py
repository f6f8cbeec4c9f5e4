"""What a variant's parameters are given of a launch: places of its arguments, or fixed values."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from retuned.runtime.grid import parse_grid
from retuned.runtime.intercept.kernels import Kernel
from retuned.runtime.intercept.rules import LaunchRule, known_names
from retuned.runtime.spec import Refused

Arguments = list[tuple[bool, Any]]
"""Whether each argument of the variant is fixed, and its value or place."""


def bind_live(
    kernel: Kernel, rule: LaunchRule, constants: Mapping[str, Any]
) -> tuple[Arguments, set[str]]:
    """Give the server's function its own arguments, but for some constexprs.

    Returns the arguments, and which params were taken.

    Raises
    ------
    Refused
        ``launch-mismatch``.
    """
    if rule.bind:
        raise mismatch("the server's own code binds by its own names")
    kinds = {each.kind for each in inspect.signature(kernel.function).parameters.values()}
    if kinds != {inspect.Parameter.POSITIONAL_OR_KEYWORD}:
        raise mismatch("the kernel takes other than plain parameters")
    by_name = {each.name: each for each in kernel.parameters}
    for name in constants:
        if name not in by_name or not by_name[name].constexpr:
            raise mismatch(f"'{name}' is no constexpr of the kernel")
    arguments: Arguments = [
        (True, constants[each.name]) if each.name in constants else (False, place)
        for place, each in enumerate(kernel.parameters)
    ]
    return arguments, set(constants)


def bind_source(
    kernel: Kernel, rule: LaunchRule, *, parameters: Sequence[Any], constants: Mapping[str, Any]
) -> tuple[Arguments, set[str]]:
    """Give another source what it names: arguments of the launch, and its own constexprs.

    Returns the arguments, and which params were taken.

    Raises
    ------
    Refused
        ``launch-mismatch``.
    """
    order = places_of(kernel)
    arguments: Arguments = []
    for each in parameters:
        if each.name in constants:
            if not each.constexpr:
                raise mismatch(f"the param '{each.name}' is not annotated tl.constexpr")
            arguments.append((True, constants[each.name]))
            continue
        wanted = rule.bind.get(each.name, each.name)
        place = place_of(order, wanted)
        if kernel.parameters[place].constexpr and not each.constexpr:
            raise mismatch(f"'{each.name}' would get the constexpr '{wanted}'")
        arguments.append((False, place))
    return arguments, {each.name for each in parameters}


def other_places(kernel: Kernel, *, settled: Collection[int]) -> list[int]:
    """Return what is neither a pointer nor a checked or changed constexpr; all ints matter.

    Raises
    ------
    Refused
        ``launch-mismatch`` if that leaves a constexpr.
    """
    rest = [place for place in range(len(kernel.parameters)) if place not in settled]
    loose = [place for place in rest if kernel.parameters[place].constexpr]
    if loose:
        names = [kernel.parameters[place].name for place in loose]
        raise mismatch(f"nothing says what the constexprs {names} must be")
    return rest


def places_of(kernel: Kernel) -> dict[str, int]:
    """Return the place of each parameter."""
    return {each.name: place for place, each in enumerate(kernel.parameters)}


def asked_for(rule: LaunchRule, kernel: Kernel) -> set[str]:
    """Return all that the lengths of a launch are made of."""
    names = known_names(kernel)
    return {name for text in rule.axes.values() for name in parse_grid([text], names).names}


def names_in(order: Mapping[str, int], names: Mapping[str, str]) -> list[str]:
    """Return the names, each of which the kernel has."""
    for name in names:
        place_of(order, name)
    return list(names)


def place_of(order: Mapping[str, int], name: str) -> int:
    """Return the place of a parameter; refuses one that the kernel has not."""
    if name not in order:
        raise mismatch(f"the kernel has no parameter '{name}'")
    return order[name]


def mismatch(detail: str) -> Refused:
    """Return the refusal of a variant that does not fit its kernel."""
    return Refused("launch-mismatch", detail=detail)
