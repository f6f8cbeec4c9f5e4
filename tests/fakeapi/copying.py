"""Copies of JSON objects. `copy.deepcopy` took half of the time of an operator's story."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def copied(value: T) -> T:
    """Return a copy that shares no dictionary and no list with the value."""
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}  # type: ignore[return-value]
    if isinstance(value, list):
        return [copied(each) for each in value]  # type: ignore[return-value]
    return value
