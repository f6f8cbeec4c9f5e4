"""Expected errors, by their stable codes and the data that they name, never by their sentences.

A sentence may be reworded at any time; a test that quotes one has to be reworded with it, and does
not notice when the code that programs read changes. So a test asserts the code, and what a user
needs to find the fault: a file, a line, a name, a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest
from pydantic import ValidationError

E = TypeVar("E", bound=BaseException)


@contextmanager
def raises_code(kind: type[E], code: str, *data: str) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of this kind with this code, whose message contains each of the data.

    Parameters
    ----------
    kind
        Class of the error; its `code` is compared, or its `reason` where it has no code.
    code
        Stable reason in kebab-case.
    data
        Names, numbers and places that the message must contain; no prose.
    """
    with raises_naming(kind, *data) as caught:
        yield caught
    error = caught.value
    found = getattr(error, "code", None) or getattr(error, "reason", None)
    assert found == code, f"code {found!r}, expected {code!r}: {error}"


@contextmanager
def raises_naming(kind: type[E], *data: str) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of this kind, whose message contains each of the data.

    It is for errors whose code does not tell cases apart; `raises_code` is better where it can be
    used.

    Parameters
    ----------
    kind
        Class of the error.
    data
        Names, numbers and places that the message must contain; no prose.
    """
    with pytest.raises(kind) as caught:
        yield caught
    text = str(caught.value)
    absent = [datum for datum in data if datum not in text]
    assert not absent, f"{type(caught.value).__name__} does not name {absent}: {text}"


@contextmanager
def raises_invalid(
    *where: str | int, kind: str | None = None, names: tuple[str, ...] = ()
) -> Iterator[pytest.ExceptionInfo[ValidationError]]:
    """Expect that a pydantic model refuses a value, first at this place.

    Parameters
    ----------
    where
        Path to the field, as in the `loc` of pydantic's errors; empty for the whole model.
    kind
        Pydantic's type of the error, such as ``extra_forbidden``; None where a check of the model
        itself refuses (``value_error``).
    names
        Names and numbers that the message of this error must contain; no prose.
    """
    with pytest.raises(ValidationError) as caught:
        yield caught
    first = caught.value.errors()[0]
    assert (first["loc"], first["type"]) == (where, kind or "value_error"), caught.value
    absent = [name for name in names if name not in first["msg"]]
    assert not absent, f"the error at {where} does not name {absent}: {first['msg']}"
