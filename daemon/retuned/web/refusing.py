"""Refusals of the page itself, by their stable codes."""

from __future__ import annotations

from typing import Literal

from retuned.errors import Refused

Code = Literal[
    "not-known", "other-site", "other-host", "form-too-old", "not-what-was-shown", "expired"
]
STATUS = {
    "not-known": 403,
    "other-site": 403,
    "other-host": 421,
    "form-too-old": 409,
    "not-what-was-shown": 409,
    "expired": 410,
}
"""HTTP status of each; other refusals are a conflict with how things stand, 409."""


def refused(code: Code, message: str) -> Refused:
    """Return a refusal with its code."""
    error = Refused(message)
    error.code = code
    return error
