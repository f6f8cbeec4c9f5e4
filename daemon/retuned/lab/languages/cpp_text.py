"""C++ text without comments, as the compiler reads it."""

from __future__ import annotations

import re

_PIECE = re.compile(
    r'"(?:[^"\\\n]|\\.)*"'
    r"|'(?:[^'\\\n]|\\.)*'"
    r"|\.?\d(?:[eEpP][+-]|'\w|[\w.])*"
    r"|[A-Za-z_]\w*"
    r"|[^\"'\w/]+"
)
"""Tokens that are skipped as one piece.

Numbers and names are included, because in ``1'000`` and ``u8'x'`` the same mark has different
meanings. A wrong choice would see a comment where the compiler sees an include.
"""
_SPLICE = re.compile(r"\\[ \t]*\n")


def without_comments(text: str) -> str:
    r"""Join spliced lines and replace comments by a space, in time linear in the text.

    Raises
    ------
    ValueError
        If a comment, string or character does not end: the rest could be read in two ways.

    Examples
    --------
    >>> without_comments("int a = 1'2 + '/*'; /* no */ int b; // no\n")
    "int a = 1'2 + '/*';   int b;  \n"
    """
    # Splices come before comments in C++: `//` and a backslash hide the next line.
    text = _SPLICE.sub("", text)
    kept: list[str] = []
    at, end = 0, len(text)
    while at < end:
        found = _PIECE.match(text, at)
        if found is not None:
            kept.append(found.group(0))
            at = found.end()
        elif text.startswith("//", at):
            line = text.find("\n", at)
            at = end if line < 0 else line
            kept.append(" ")
        elif text.startswith("/*", at):
            close = text.find("*/", at + 2)
            if close < 0:
                raise ValueError("a comment does not end")
            kept.append(" ")
            at = close + 2
        elif text[at] in "\"'":
            raise ValueError("a string or character does not end on its line")
        else:
            kept.append(text[at])
            at += 1
    return "".join(kept)
