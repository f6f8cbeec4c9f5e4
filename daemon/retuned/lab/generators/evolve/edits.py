"""SEARCH/REPLACE edits of a source: each must name exactly one place, or nothing is changed."""

from __future__ import annotations

from dataclasses import dataclass

from retuned.errors import CandidateError

MAX_EDITS = 32
"""Most edits in one answer."""
_SEARCH, _MIDDLE, _REPLACE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"


class AnswerRefused(CandidateError):
    """An answer of the model that is not a candidate; the reason goes back to the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One replacement."""

    search: str
    """Text that must be found exactly once, whole lines."""
    replace: str
    """Its replacement."""


def parse_edits(text: str) -> tuple[Edit, ...]:
    r"""Read the blocks of an edit.

    Raises
    ------
    AnswerRefused
        With the code ``bad-edit`` where the marks are out of order or something stands between
        blocks.

    Examples
    --------
    >>> parse_edits("<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n")
    (Edit(search='a\n', replace='b\n'),)
    """
    edits: list[Edit] = []
    search: list[str] | None = None
    replace: list[str] | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        bare = line.rstrip()
        if search is None:
            if bare == _SEARCH:
                search = []
            elif bare:
                raise _bad(f"line {number} of the edit stands outside of a SEARCH block")
        elif replace is None:
            if bare == _MIDDLE:
                replace = []
            elif bare in (_SEARCH, _REPLACE):
                raise _bad(f"line {number} of the edit: '{bare}' without '{_MIDDLE}' before it")
            else:
                search.append(line)
        elif bare == _REPLACE:
            edits.append(Edit(search=_joined(search), replace=_joined(replace)))
            search = replace = None
        elif bare in (_SEARCH, _MIDDLE):
            raise _bad(f"line {number} of the edit: '{bare}' inside of a REPLACE block")
        else:
            replace.append(line)
    if search is not None:
        raise _bad(f"the last block of the edit is not closed by '{_REPLACE}'")
    if not edits:
        raise _bad(f"the edit holds no block that begins with '{_SEARCH}'")
    return tuple(edits)


def apply_edits(base: str, edits: tuple[Edit, ...]) -> str:
    r"""Apply edits in order; each search is looked for in what the earlier ones left.

    Raises
    ------
    AnswerRefused
        ``search-not-found`` or ``search-ambiguous``, naming the edit; ``bad-edit`` for too many or
        an empty search.

    Examples
    --------
    >>> apply_edits("a\nb\n", (Edit(search="b\n", replace="c\n"),))
    'a\nc\n'
    """
    if len(edits) > MAX_EDITS:
        raise _bad(f"{len(edits)} edits in one answer, {MAX_EDITS} are allowed")
    text = base.replace("\r\n", "\n")
    if not text.endswith("\n"):
        text += "\n"
    for number, edit in enumerate(edits, start=1):
        if not edit.search.strip():
            raise _bad(f"edit {number} searches for nothing; name the lines it replaces")
        places = _places(text, edit.search)
        if not places:
            first = edit.search.strip().splitlines()[0][:120]
            raise AnswerRefused(
                "search-not-found",
                detail=f"edit {number}: the base has no lines like those that begin '{first}'; "
                "copy them from the base, white space included",
            )
        if len(places) > 1:
            raise AnswerRefused(
                "search-ambiguous",
                detail=f"edit {number}: the base has its lines {len(places)} times; take more "
                "lines around them",
            )
        at = places[0]
        text = text[:at] + edit.replace + text[at + len(edit.search) :]
    return text


def _places(text: str, search: str) -> list[int]:
    """Return where whole lines match."""
    found, at = [], text.find(search)
    while at >= 0:
        if at == 0 or text[at - 1] == "\n":
            found.append(at)
        at = text.find(search, at + 1)
    return found


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _bad(detail: str) -> AnswerRefused:
    return AnswerRefused("bad-edit", detail=detail)
