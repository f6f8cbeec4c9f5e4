"""Copies of JSON values. `copy.deepcopy` took half of the time of an operator's story."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def copied(value: T) -> T:
    """Return a copy of a JSON value that shares no dictionary and no list with it.

    Raises
    ------
    TypeError
        If a part is not JSON: it would be shared.
    """
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}  # type: ignore[return-value]
    if isinstance(value, list):
        return [copied(each) for each in value]  # type: ignore[return-value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise TypeError(f"{type(value).__name__} is not JSON")
