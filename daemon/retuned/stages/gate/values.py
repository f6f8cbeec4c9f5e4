"""Value types of policies: durations, quantities, percentages; and a base model."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel

from retuned.contract import Record

LONGEST = timedelta(days=366)
"""Longest duration in a policy; a longer one is a typing error."""

DNS = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
"""Names that Kubernetes accepts."""

_DURATION = re.compile(r"(?:([0-9]{1,5})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,7})m)?(?:([0-9]{1,9})s)?")
_QUANTITY = re.compile(r"([0-9]{1,15})(Ki|Mi|Gi|Ti|k|M|G|T)?")
_FACTORS = {
    None: 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


class PolicyModel(Record):
    """Part of a policy: camelCase in YAML, snake_case in Python, finite numbers only."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        allow_inf_nan=False,
    )


def parse_duration(value: object) -> timedelta:
    """Parse ``30m``, ``1h30m`` or ``7d``.

    Raises
    ------
    ValueError
        If it is not a duration, is negative, or is longer than `LONGEST`.

    Examples
    --------
    >>> parse_duration("1h30m")
    datetime.timedelta(seconds=5400)
    """
    if isinstance(value, timedelta):
        span = value
    elif isinstance(value, str):
        found = _DURATION.fullmatch(value)
        if found is None or not value:
            raise ValueError("a duration is written like 30s, 15m, 24h, 7d or 1h30m")
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    else:
        raise ValueError("a duration is text with a unit, like 30s, 15m, 24h or 7d")
    if not timedelta(0) <= span <= LONGEST:
        raise ValueError(f"a duration is between 0s and {LONGEST.days}d")
    return span


def format_duration(span: timedelta) -> str:
    """Format a duration as `parse_duration` accepts it.

    Examples
    --------
    >>> format_duration(timedelta(hours=1, minutes=30)), format_duration(timedelta(0))
    ('1h30m', '0s')
    """
    left = int(span.total_seconds())
    text = ""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def parse_quantity(value: object) -> object:
    """Parse bytes written as ``512Mi`` or ``1G``; a bare number is bytes.

    Raises
    ------
    ValueError
        If the text is not a quantity.

    Examples
    --------
    >>> parse_quantity("2Mi")
    2097152
    """
    if isinstance(value, str):
        found = _QUANTITY.fullmatch(value)
        if found is None:
            raise ValueError("a quantity is written like 0Mi, 512Mi, 2Gi or 1000000")
        return int(found[1]) * _FACTORS[found[2]]
    return value


def _format_quantity(size: int) -> str:
    return f"{size // 2**20}Mi" if size % 2**20 == 0 else str(size)


def _not_zero(span: timedelta) -> timedelta:
    if span < timedelta(seconds=1):
        raise ValueError("must be longer than 0s")
    return span


_DURATION_SCHEMA = WithJsonSchema(
    {"type": "string", "pattern": "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$"}
)

Duration = Annotated[
    timedelta, BeforeValidator(parse_duration), PlainSerializer(format_duration), _DURATION_SCHEMA
]
"""Text like ``30m`` in YAML, a timedelta in Python."""

PositiveDuration = Annotated[
    timedelta,
    BeforeValidator(lambda value: _not_zero(parse_duration(value))),
    PlainSerializer(format_duration),
    _DURATION_SCHEMA,
]
"""A duration above 0 s."""

Bytes = Annotated[
    int,
    BeforeValidator(parse_quantity),
    Field(ge=0, le=2**50),
    PlainSerializer(_format_quantity),
    WithJsonSchema({"type": "string", "pattern": "^[0-9]+(Ki|Mi|Gi|Ti|k|M|G|T)?$"}),
]
"""Text like ``512Mi`` in YAML, bytes in Python."""

Percent = Annotated[str, Field(pattern=r"^(100|[1-9][0-9]?)%$")]
"""``1%`` to ``100%``."""

Glob = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f]+$")]
"""Case-sensitive pattern with ``*``, ``?`` and ``[...]``."""

Label = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[^\x00-\x1f]+$")]
"""Short text without control characters."""
