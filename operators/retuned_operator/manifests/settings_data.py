"""Settings of the sidecar from data: the values of the chart, by their names there. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from typing import Any

from retuned.errors import UnreadableInput
from retuned_operator.manifests.settings import SidecarSettings

_MAX_TEXT = 4096


def value_name(name: str) -> str:
    """Return the name of a setting among the chart's values.

    Examples
    --------
    >>> value_name("agent_url"), value_name("token_s")
    ('agentUrl', 'tokenSeconds')
    """
    first, *rest = name.split("_")
    return first + "".join("Seconds" if part == "s" else part.capitalize() for part in rest)


def sidecar_settings(data: object, *, where: str) -> SidecarSettings:
    """Read the settings of the sidecar.

    Parameters
    ----------
    data
        A mapping such as ``{"image": ..., "agentUrl": ...}``; what is left out is as usual.
    where
        For messages.

    Raises
    ------
    UnreadableInput
        ``settings-invalid``, naming the setting.

    Examples
    --------
    >>> sidecar_settings({"image": "i", "agentUrl": "https://r:8443"}, where="here").token_s
    3600
    """
    if not isinstance(data, Mapping):
        raise _wrong(where, "expected a mapping of settings, such as image and agentUrl")
    known = {value_name(each.name): each for each in fields(SidecarSettings)}
    for key in data:
        if key not in known:
            near = get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"
            raise _wrong(where, f"unknown setting {str(key)[:60]!r}{hint}")
    missing = [k for k, each in known.items() if each.default is MISSING and not data.get(k)]
    if missing:
        raise _wrong(where, f"{' and '.join(missing)} must be given")
    values = {each.name: _value(data[k], each, where) for k, each in known.items() if k in data}
    try:
        return SidecarSettings(**values)
    except ValueError as error:
        raise _wrong(where, str(error)) from None


def _value(found: object, field: Field[Any], where: str) -> Any:  # noqa: ANN401 - text or number
    """Return a value of the setting's type; quantities may be written as numbers."""
    name = value_name(field.name)
    if field.type == "int":
        if isinstance(found, bool) or not isinstance(found, int):
            raise _wrong(where, f"{name}: expected a whole number")
        return found
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise _wrong(where, f"{name}: expected text")
    if len(str(found)) > _MAX_TEXT:
        raise _wrong(where, f"{name}: longer than {_MAX_TEXT} characters")
    return str(found)


def _wrong(where: str, message: str) -> UnreadableInput:
    return UnreadableInput("settings-invalid", where=where, message=message)
