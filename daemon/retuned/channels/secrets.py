"""Secrets by reference: a setting names a file or a variable, never the secret itself."""

from __future__ import annotations

import os
import re
from pathlib import Path

from retuned.errors import UnreadableInput
from retuned.files import read_plain

_VARIABLE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]{0,127})")
_MAX_BYTES = 8192


def read_secret(reference: str, *, what: str) -> str:
    """Return a secret, read anew each time: files of secrets are exchanged while we run.

    Parameters
    ----------
    reference
        Path of a file, or ``env:NAME``.
    what
        Which setting names it, for messages.

    Raises
    ------
    UnreadableInput
        If there is none, or it holds what no secret holds.
    """
    found = _VARIABLE.fullmatch(reference)
    if found is not None:
        text = os.environ.get(found[1], "")
        where = f"{what}: variable {found[1]}"
    else:
        where = f"{what}: {reference}"
        try:
            data = read_plain(Path(reference).expanduser(), max_bytes=_MAX_BYTES)
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or "no path"
            raise UnreadableInput(
                "no-secret", where=where, message=f"cannot be read: {said}"
            ) from error
        text = (data or b"").decode("ascii", "replace")
    text = text.strip()
    if not text or not text.isascii() or not text.isprintable():
        message = "holds nothing, or characters that no secret has"
        raise UnreadableInput("no-secret", where=where, message=message)
    return text
