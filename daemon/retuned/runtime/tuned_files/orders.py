"""Orders for tuned-config files from the control socket, signed like artifacts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from retuned.runtime.artifacts.trust import Trust
from retuned.runtime.core.orders import CheckRates, parse_rates
from retuned.runtime.schema import Refused
from retuned.runtime.tuned_files.changes import Change, parse_change
from retuned.runtime.tuned_files.strict import json_object

MAX_CHANGE_BYTES = 192 << 10
"""Longest text of a change; a request has at most 256 KiB."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_MAX_EPOCH = 2**53
_MAX_OLDER = 16


C = TypeVar("C")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOrder(Generic[C]):
    """An order for a change of configuration: of a file, or of a table in this process."""

    id: str
    """Identity; executing the same id twice has the same effect as once."""
    kind: str
    undoes: str
    """Id of the swap that a rollback undoes; empty for a swap."""
    definition: str
    target: str
    who: str
    """For the provenance: a daemon's or a person's name."""
    when: str
    """When it was ordered, UTC."""
    epoch: int
    """Grows with every order for a file."""
    change: C
    """What to change; for a rollback, what was changed."""
    before: str | None
    """Digest of the file that the change was made for; None if it did not exist."""
    artifact: str = ""
    """The daemon's name of the variant that is active after execution; empty is the original."""
    older: tuple[str, ...] = ()
    """Further swaps that a rollback undoes after `undoes`, the newest first.

    `change` and `before` are then those of the last of them.
    """
    rates: CheckRates = field(default_factory=CheckRates)
    """How launches under a table are checked."""
    leaves: bool = False
    """Whether a rollback accepts a file that others have changed since, and leaves it unchanged.

    Otherwise such a rollback is refused.
    """


TunedOrder = ChangeOrder[Change]
"""An order for a tuned-config file."""


def parse_tuned_order(request: Mapping[str, Any], *, trust: Trust) -> TunedOrder:
    """Parse an order for a file; see `parse_order`."""
    return parse_order(request, trust=trust, read=lambda body, _: parse_change(body))


def parse_order(
    request: Mapping[str, Any], *, trust: Trust, read: Callable[[dict[str, Any], str], C]
) -> ChangeOrder[C]:
    """Parse an order, and check the signature over what a swap changes.

    The signature is over the text of the change, as it is over the manifest of an artifact: file,
    rows, guard. A rollback needs none; it can only restore what was in force before.

    Parameters
    ----------
    read
        Parses the change, from its JSON object and its text.

    Raises
    ------
    Refused
        ``order-invalid``, ``digest-mismatch``, as `Trust.check`, or as `read`.
    """
    body = request.get("order")
    if not isinstance(body, Mapping):
        raise _invalid("order", "is not an object")
    kind = body.get("kind")
    if kind not in ("swap", "rollback"):
        raise _invalid("kind", "must be swap or rollback")
    text = body.get("change")
    if not isinstance(text, str) or not 0 < len(text) <= MAX_CHANGE_BYTES:
        raise _invalid("change", f"is not text of at most {MAX_CHANGE_BYTES} characters")
    definition, target = _text(body, "definition"), _text(body, "target", empty=True)
    if kind == "swap":
        _check(request, text, trust=trust, definition=definition, target=target)
    parsed = _parsed(text)
    before = parsed.get("before", "")
    if before is not None and not (isinstance(before, str) and _DIGEST.match(before)):
        raise _invalid("before", "is neither a sha256 digest nor null")
    epoch = body.get("epoch")
    if type(epoch) is not int or not 1 <= epoch <= _MAX_EPOCH:
        raise _invalid("epoch", f"is not a whole number from 1 to {_MAX_EPOCH}")
    return ChangeOrder(
        id=_text(body, "id"),
        kind=str(kind),
        undoes=_text(body, "undoes") if kind == "rollback" else "",
        definition=definition,
        target=target,
        who=_text(body, "who", empty=True),
        when=_text(body, "when", empty=True),
        epoch=epoch,
        change=read(parsed, text),
        before=before,
        artifact=_text(body, "artifact", empty=True),
        older=_older(body) if kind == "rollback" else (),
        rates=parse_rates(body),
        leaves=kind == "rollback" and body.get("leaves") is True,
    )


def _older(body: Mapping[str, Any]) -> tuple[str, ...]:
    listed = body.get("older", [])
    if not isinstance(listed, list) or len(listed) > _MAX_OLDER:
        raise _invalid("older", f"is not a list of at most {_MAX_OLDER} orders")
    return tuple(_text({"older": each}, "older") for each in listed)


def _check(
    request: Mapping[str, Any], text: str, *, trust: Trust, definition: str, target: str
) -> None:
    signature = request.get("signature")
    if signature is not None and not isinstance(signature, str):
        raise _invalid("signature", "is not text")
    data = text.encode("utf-8", "surrogatepass")
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    named = request.get("digest")
    if named is not None and named != digest:
        raise Refused("digest-mismatch", detail=f"the change is {digest}, not {named!r:.80}")
    trust.check(
        data,
        signature=signature.encode("utf-8", "surrogatepass") if signature else None,
        artifact=digest,
        definition=definition,
        target=target,
    )


def _parsed(text: str) -> dict[str, Any]:
    try:
        return json_object(text)
    except ValueError as error:
        raise _invalid("change", f"is not JSON of an order: {error}"[:200]) from error


def _text(body: Mapping[str, Any], field: str, *, empty: bool = False) -> str:
    value = body.get(field, "" if empty else None)
    if not isinstance(value, str) or len(value) > 256 or not (value or empty):
        raise _invalid(field, "is not text of 1 to 256 characters")
    return value


def _invalid(field: str, problem: str) -> Refused:
    return Refused("order-invalid", detail=f"'{field}' {problem}")
