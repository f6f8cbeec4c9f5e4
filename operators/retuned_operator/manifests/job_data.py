"""Settings of experiment pods from data: the part `jobs` of the chart's settings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from retuned.errors import UnreadableInput
from retuned_operator.manifests.settings import DEFAULT_SIZES, Endpoint, JobSettings, Size
from retuned_operator.manifests.settings_data import value_name

_ADAPTER = TypeAdapter(JobSettings)


def job_settings(data: object, *, where: str) -> JobSettings:
    """Read the settings of experiment pods.

    Parameters
    ----------
    data
        A mapping such as ``{"image": ..., "gpuModels": ...}``; what is left out is as usual.
    where
        For messages.

    Raises
    ------
    UnreadableInput
        ``settings-invalid``, naming the setting.

    Examples
    --------
    >>> job_settings({"image": "i", "keepSeconds": 60}, where="here").keep_s
    60
    """
    values = _mapping(data, where=where)
    known = {value_name(each.name): each.name for each in fields(JobSettings)}
    _only(values, known, where=where)
    for role, size in _mapping(values.get("sizes") or {}, where=f"{where}: sizes").items():
        _only(_mapping(size, where=f"{where}: sizes.{role}"), _named(Size), where=where)
    if values.get("endpoint") is not None:
        endpoint = _mapping(values["endpoint"], where=f"{where}: endpoint")
        _only(endpoint, _named(Endpoint), where=f"{where}: endpoint")
    try:
        found = _ADAPTER.validate_python({known[name]: value for name, value in values.items()})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _wrong(where, f"{value_name(place)}: {first['msg']}") from None
    return replace(found, sizes=MappingProxyType({**DEFAULT_SIZES, **found.sizes}))


def _named(record: type[Size | Endpoint]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(record))


def _mapping(data: object, *, where: str) -> Mapping[str, Any]:
    if isinstance(data, Mapping) and all(isinstance(key, str) for key in data):
        return data
    raise _wrong(where, "expected a mapping of settings")


def _only(values: Mapping[str, Any], known: Iterable[str], *, where: str) -> None:
    names = tuple(known)
    for key in values:
        if key not in names:
            near = get_close_matches(key, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"
            raise _wrong(where, f"unknown setting {key[:60]!r}; {hint}")


def _wrong(where: str, message: str) -> UnreadableInput:
    return UnreadableInput("settings-invalid", where=where, message=message)
