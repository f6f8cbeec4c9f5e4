"""What a request says: addresses, headers and forms, bounded before anybody looks at them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request

from retuned.contract import Digest
from retuned.errors import UsageError
from retuned.web.ports import SeenProposal
from retuned.web.records import Act, Slice

KEY_MAX = 400
"""Longest key in an address, characters."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def headers_of(request: Request) -> dict[str, str]:
    """Return the headers; one that is sent twice is not believed, whichever is meant."""
    found: dict[str, str] = {}
    twice: set[str] = set()
    for name, value in request.headers.items():
        if name in found:
            twice.add(name)
        found[name] = value
    return {name: value for name, value in found.items() if name not in twice}


def place_of(found: object) -> tuple[str, int]:
    """Return address and port of an end of the connection; of another kind of socket neither."""
    if not isinstance(found, tuple | list) or not isinstance(found[1], int):
        return "", 0
    return str(found[0]), found[1]


def key_of(request: Request) -> str:
    """Return the key in the address.

    Raises
    ------
    HTTPException
        404 if it can be nobody's.
    """
    key = str(request.path_params["key"])
    if not 0 < len(key) <= KEY_MAX or not key.isprintable():
        raise HTTPException(404, "There is no such address.")
    return key


def slice_of(request: Request, *, limit: int) -> Slice:
    """Return the part of a list that is asked for, by the key of its first entry.

    Raises
    ------
    HTTPException
        404 if it names none.
    """
    before = request.query_params.get("before", "")
    if len(before) > KEY_MAX or not (before.isprintable() or not before):
        raise HTTPException(404, "There is no such part of the list.")
    return Slice(before=before, limit=limit)


def act_of(form: Mapping[str, str]) -> Act:
    """Return what a form decides.

    Raises
    ------
    UsageError
        If it does not say.
    """
    try:
        return Act(form.get("act", ""))
    except ValueError:
        raise UsageError("the form does not say what is decided; load the page again") from None


def seen_of(form: Mapping[str, str]) -> SeenProposal:
    """Return what a form says that the person was shown.

    Raises
    ------
    UsageError
        If it names no artifact.
    """
    artifact, policy = form.get("artifact", ""), form.get("policy", "")
    if not _DIGEST.fullmatch(artifact) or not (policy == "" or _DIGEST.fullmatch(policy)):
        raise UsageError("the form names no artifact; load the page again")
    digest: Digest | None = policy or None
    return SeenProposal(artifact=artifact, policy=digest)
