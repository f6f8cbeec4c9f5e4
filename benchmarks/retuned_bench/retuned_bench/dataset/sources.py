"""Which sources are the same but for parameters, comments and white space. Pure, linear time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from retuned.contract import Digest, Language, Solution

_NUMBER_OR_WORD = r"\d[\w.']*|\w+"
_CPP = re.compile(
    r"(?P<comment>//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z))"
    r'|(?P<text>"(?:\\.|[^"\\\n])*"?|' + r"'(?:\\.|[^'\\\n])*'?)"
    rf"|(?P<word>{_NUMBER_OR_WORD})"
    r"|(?P<joined>\\\r?\n)"
    r"|(?P<line>\n)"
    r"|(?P<blank>[^\S\n]+)"
    r"|(?P<sign>.)",
    re.S,
)
_PYTHON = re.compile(
    r"(?P<comment>\#[^\n]*)"
    r'|(?P<text>"""(?:\\.|[^\\])*?(?:"""|\Z)|' + r"'''(?:\\.|[^\\])*?(?:'''|\Z)"
    r'|"(?:\\.|[^"\\\n])*"?|' + r"'(?:\\.|[^'\\\n])*'?)"
    rf"|(?P<word>{_NUMBER_OR_WORD})"
    r"|(?P<joined>\\\r?\n)"
    r"|(?P<line>\n[^\S\n]*)"
    r"|(?P<blank>[^\S\n]+)"
    r"|(?P<sign>.)",
    re.S,
)


def group_of(solution: Solution) -> Digest:
    """Digest of what is computed by which text, whatever the parameters are.

    Names of variables count, names of files do not.
    """
    hasher = hashlib.sha256(f"{solution.language}\0{solution.entry}".encode())
    python = solution.language is Language.TRITON
    for text in sorted("\x1f".join(tokens(s.content, python=python)) for s in solution.sources):
        hasher.update(b"\0" + text.encode("utf-8", "surrogatepass"))
    return "sha256:" + hasher.hexdigest()


def tokens(text: str, *, python: bool) -> Iterator[str]:
    r"""Yield what a compiler tells apart: no comments, and white space only where it means a thing.

    Examples
    --------
    >>> list(tokens("a = b; // c\n#if X\nd", python=False))
    ['a', '=', 'b', ';', '#', 'if', 'X', '\n', 'd']
    >>> list(tokens("if a:\n\n  b # c\n", python=True))
    ['if', 'a', ':', '\n  ', 'b', '\n']
    """
    yield from _python(text) if python else _cpp(text)


def _cpp(text: str) -> Iterator[str]:
    starts, directive = True, False
    for match in _CPP.finditer(text):
        kind, value = match.lastgroup, match.group()
        if kind == "line":
            if directive:
                yield "\n"
            starts, directive = True, False
        elif kind not in ("comment", "blank", "joined"):
            directive = directive or (starts and value == "#")
            starts = False
            yield value


def _python(text: str) -> Iterator[str]:
    line = ""
    for match in _PYTHON.finditer(text):
        kind, value = match.lastgroup, match.group()
        if kind == "line":
            line = value
        elif kind not in ("comment", "blank", "joined"):
            if line:
                yield line
            line = ""
            yield value
    if line:
        yield "\n"
