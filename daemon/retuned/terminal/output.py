"""What commands print: one JSON object on stdout where asked, else text; messages on stderr.

Paths, names and comments are strangers' text wherever they come from: `safe` and `cell` for an
answer, `say` for every message. The rule itself is `report.words.clean`, the same as in reports.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from retuned.errors import RetunedError
from retuned.report import words

if TYPE_CHECKING:  # messages need neither, and a sidecar prints nothing else
    from rich.console import Console
    from rich.text import Text

_LONGEST = 8_000
"""Longest message that is printed, characters."""
_UNWRAPPED = 100_000
"""Columns of a pipe or file, where none is too narrow."""


def emit_json(body: Any) -> None:  # noqa: ANN401 - any JSON-able object
    """Print one object on stdout and nothing else; ASCII, so that no name reaches a terminal."""
    json.dump(body, sys.stdout, ensure_ascii=True, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def emit_yaml(body: Any) -> None:  # noqa: ANN401 - any JSON-able object
    """Print one object as YAML on stdout and nothing else; ASCII as well."""
    import yaml

    yaml.safe_dump(body, sys.stdout, allow_unicode=False, sort_keys=False, width=1000)


def stdout() -> Console:
    """Console for the answer. Names from traces are data, never markup: pass them as ``Text``.

    Where no terminal reads it nothing is wrapped or cut: lines are as long as what they say.
    """
    from rich.console import Console

    console = Console(markup=False, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = _UNWRAPPED
    return console


def say(text: object, *, limit: int = _LONGEST) -> None:
    """Print a message or a line of progress on stderr; the only way there."""
    shown = lines(str(text)[:limit])
    sys.stderr.write(f"{shown}\n")


def say_error(error: RetunedError, *, as_json: bool, program: str = "retuned") -> int:
    """Print an error as one message, with `as_json` on stdout too; return the exit code."""
    if as_json:
        emit_json({"error": error_body(error)})
    say(f"{program}: {error}")
    return error.exit_code


def error_body(error: RetunedError) -> dict[str, str]:
    """Return the stable JSON of an error."""
    return {"code": error.code, "where": error.where, "message": error.message}


def lines(text: str) -> str:
    r"""Make several lines harmless; what follows the first is set in, so none looks a message.

    Examples
    --------
    >>> lines("no file\nretuned: all is well")
    'no file\n  retuned: all is well'
    """
    return "\n  ".join(words.clean(line) for line in text.rstrip("\n").split("\n"))


def safe(text: object, *, limit: int = 200) -> str:
    """Make text from outside harmless to a terminal, on one line of at most `limit` characters."""
    text = words.clean(str(text))
    return text if len(text) <= limit else text[: limit - 1] + words.ELLIPSIS


def cell(text: object) -> Text:
    """Return text from outside as a table cell, never read as markup."""
    from rich.text import Text

    return Text(safe(text))
