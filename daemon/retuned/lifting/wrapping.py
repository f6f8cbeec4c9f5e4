"""The entry that the lab launches: it calls the live kernel with what the definition says.

The live kernel's text stays as it is. Its whole arguments are passed as products of axes, and what
Triton knows of a live argument (that it is 1, that 16 divides it) is said again, so that the lab
compiles what the server runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retuned.lifting.records import MARK
from retuned.lifting.refusing import NotLifted
from retuned.lifting.source import Source
from retuned.lifting.words import TYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapped:
    """A file within the contract."""

    text: str
    """The file."""
    entry: str
    """Function to launch."""


def wrap(
    source: Source,
    *,
    tensors: Sequence[str],
    axes: Sequence[str],
    choices: Sequence[str],
    arguments: Mapping[str, str],
) -> Wrapped:
    """Return the kernel's file with an entry whose parameters the definition names.

    Parameters
    ----------
    source
        The kernel.
    tensors
        Inputs, then outputs.
    axes
        Axes that arguments are made of.
    choices
        Constexprs that may be chosen.
    arguments
        What is passed for each parameter of the kernel, as an expression.
    """
    taken = {*source.functions, *source.constants, *tensors, *axes, *choices, *source.parameters}
    entry = "lifted"
    while entry in taken:
        entry += "_x"
    parameters = [*tensors, *axes, *(f"{name}: tl.constexpr" for name in choices)]
    clashes = sorted({*tensors, *axes, *choices} & {*source.functions, *source.constants})
    if clashes:
        detail = f"'{clashes[0]}' is an argument and a name of the source"
        raise NotLifted("names-clash", detail=detail)
    passed = ", ".join(arguments[name] for name in source.parameters)
    text = (
        f"{source.text}\n\n@triton.jit\ndef {entry}({', '.join(parameters)}):\n"
        f"    {source.entry}({passed})\n"
    )
    return Wrapped(text=text, entry=entry)


def literal(value: object, *, what: str) -> str:
    """Return a constexpr as the source says it.

    Raises
    ------
    NotLifted
        ``argument-unknown`` for what is no plain value.
    """
    if isinstance(value, str) and value.startswith(MARK):
        name = value.removeprefix(MARK)
        if name not in TYPES:
            raise NotLifted("argument-unknown", detail=f"'{what}' is the type {name[:40]}")
        return f"tl.{TYPES[name]}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    raise NotLifted("argument-unknown", detail=f"'{what}' is no plain value")


def scalar(text: str, dtype: str) -> str:
    """Return a number with the type that a launch gives it.

    A bare number would have none: it takes the type of what it is added to, and the lab would not
    compute what the server does.

    Examples
    --------
    >>> scalar("1e-06", "float32")
    'tl.full((), 1e-06, tl.float32)'
    """
    return f"tl.full((), {text}, tl.{dtype})"


def whole(factors: Sequence[str | int], *, divisible: Mapping[str, bool]) -> str:
    """Return a whole argument as a product of axes.

    Examples
    --------
    >>> whole(("H", 2), divisible={"H": True})
    'H // 16 * 16 * 2'
    >>> whole((1,), divisible={})
    '1'
    """
    parts: list[str] = []
    for factor in sorted(factors, key=lambda each: isinstance(each, int)):
        text = str(factor)
        divided = isinstance(factor, str) and divisible.get(factor, False)
        inner = f"{text} // 16 * 16" if divided else text
        parts.append(f"({inner})" if divided and parts else inner)
    return " * ".join(parts)
