"""Objects of the API server to models and back: the only place where either is read or written.

The server has checked an object against its schema, but not against what only the models know, and
an object may be older than the schema. An invalid field is refused with its path. Callers fail
closed: a decision that cannot be read may be a rejection, and a freeze that cannot be read is in
force.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import ValidationError

from retuned.api.decision import SwapDecision, TuningFreeze
from retuned.api.experiment import KernelExperiment
from retuned.api.policy import PolicyObject
from retuned.api.proposal import SwapProposal
from retuned.api.target import TuningTarget
from retuned.api.values import ApiModel
from retuned.errors import UnreadableInput

MAX_OBJECT_BYTES = 2 * 2**20
"""No object of an API server is larger."""
_MAX_SHOWN = 5
_KEPT, _SMALL = 1024, 2**14
"""Parsed objects in the cache, and characters of the longest of them: three controllers read each
target, and every pass reads the policies of a target."""

R = TypeVar(
    "R",
    TuningTarget,
    PolicyObject,
    KernelExperiment,
    SwapProposal,
    SwapDecision,
    TuningFreeze,
)


def read(model: type[R], body: Mapping[str, Any]) -> R:
    """Read one object.

    Parameters
    ----------
    model
        What it is to be.
    body
        As the API server's JSON has it.

    Raises
    ------
    UnreadableInput
        ``object-too-large``, ``not-json`` or ``object-invalid``, with kind and name, and the
        first fields that are wrong.

    Examples
    --------
    >>> read(TuningFreeze, {"kind": "TuningFreeze", "metadata": {"name": "now"}})
    Traceback (most recent call last):
    ...
    retuned.errors.UnreadableInput: TuningFreeze now: apiVersion: Field required; spec: Field \
required [object-invalid]
    """
    try:
        text = json.dumps(body, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _unreadable("not-json", model, body, str(error)[:200]) from None
    if len(text) > MAX_OBJECT_BYTES:
        message = f"is larger than {MAX_OBJECT_BYTES // 2**20} MiB"
        raise _unreadable("object-too-large", model, body, message)
    try:
        return _parsed(model, text) if len(text) <= _SMALL else _parse(model, text)
    except ValidationError as error:
        raise _unreadable("object-invalid", model, body, _said(error)) from None


def write(resource: ApiModel) -> dict[str, Any]:
    """Return an object as JSON data, camelCase, without what is not there.

    Fields that are None are left out: to the API server they mean the same.
    """
    body: dict[str, Any] = resource.model_dump(mode="json", by_alias=True, exclude_none=True)
    metadata = body.get("metadata")
    if isinstance(metadata, dict):
        body["metadata"] = {key: value for key, value in metadata.items() if value not in ("", {})}
        if body["metadata"].get("generation") == 0:
            del body["metadata"]["generation"]
    return body


def _parse(model: type[R], text: str) -> R:
    return model.model_validate_json(text, strict=True, by_alias=True, by_name=False)


_parsed = lru_cache(_KEPT)(_parse)
"""Objects are frozen: all readers may share a parsed object."""


def _unreadable(
    code: str, model: type[ApiModel], body: Mapping[str, Any], message: str
) -> UnreadableInput:
    return UnreadableInput(code, where=_where(model, body), message=message)


def _where(model: type[ApiModel], body: Mapping[str, Any]) -> str:
    metadata = body.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    parts = (metadata.get("namespace"), metadata.get("name"))
    name = "/".join(str(part)[:253] for part in parts if part) or "(no name)"
    kind = str(model.model_fields["kind"].annotation).split("'")[1]
    return f"{kind} {_printable(name)}"


def _said(error: ValidationError) -> str:
    """Name the first fields that are wrong; values are untrusted and not repeated."""
    problems = error.errors(include_url=False, include_input=False)
    shown = []
    for item in problems[:_MAX_SHOWN]:
        path = ".".join(str(part)[:64] for part in item["loc"]) or "the whole object"
        message = str(item["msg"]).removeprefix("Value error, ")
        shown.append(f"{path}: {message[:300]}")
    more = len(problems) - len(shown)
    return _printable("; ".join(shown) + (f"; and {more} more" if more > 0 else ""))


def _printable(text: str) -> str:
    """Replace characters that could control a terminal: names and keys are untrusted."""
    return "".join(each if each.isprintable() else "?" for each in text)
