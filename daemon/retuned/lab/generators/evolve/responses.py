"""From an answer of the model to a draft of a variant; strict, because a guess would be ours.

An answer holds prose, which is not used, one fenced block ``json`` with launch data, and one fenced
block with the source: the whole file, or an edit of the base. Everything else is refused with a
reason that the next prompt shows to the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, ValidationError

from retuned.contract import Name, Record
from retuned.lab.generators.evolve.edits import AnswerRefused, apply_edits, parse_edits
from retuned.lab.generators.evolve.redaction import line

MAX_ANSWER_CHARS = 400_000
"""Longer answers are not looked at."""
MAX_SOURCE_CHARS = 128_000
"""Longest source."""
_MAX_JSON_CHARS = 8_000
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([\w+#-]*)[^\n]*$")
EDIT = "edit"
"""Word after the fence of an edit."""

Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]{1,64}$")]
Layout = Annotated[str, Field(pattern=r"^(as-is|transposed|panels-[0-9]{1,4})$")]


class LaunchData(Record):
    """How a variant is launched, as the model writes it; a field it does not know is refused."""

    base: Annotated[str, Field(max_length=80)] = ""
    """First digits of the digest of what was edited; needed for an edit."""
    entry: Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,127}$")] | None = None
    """Symbol to launch; the base's where it is not named."""
    params: Annotated[dict[Name, int | Word], Field(max_length=24)] | None = None
    """Compile-time parameters; the base's where they are not named."""
    grid: (
        Annotated[tuple[Annotated[str, Field(max_length=200)], ...], Field(max_length=3)] | None
    ) = None
    """Programs per dimension of a GPU launch; the base's where they are not named."""
    layouts: Annotated[dict[Name, Layout], Field(max_length=16)] | None = None
    """Layouts of constant inputs; the base's where they are not named."""
    scratch_bytes: Annotated[int, Field(ge=0, le=2**28)] | None = None
    """Workspace; the base's where it is not named."""
    idea: Annotated[str, Field(max_length=500)] = ""
    """What the change is for, one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block."""

    word: str
    """What stands behind the fence, lower case."""
    text: str
    """What it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What an answer proposes."""

    source: str
    """The whole file."""
    launch: LaunchData
    """How it is launched."""
    edited: bool
    """Whether it was an edit of the base."""


def parse_answer(
    text: str, *, finish: str, fences: Sequence[str], base: str | None, base_id: str
) -> Draft:
    """Read an answer.

    Parameters
    ----------
    text
        The answer.
    finish
        Why it ended.
    fences
        Words that the language's source block may carry.
    base
        Source of the base; None without a base to edit.
    base_id
        Hex digits of the base's digest; an answer names at least the first eight.

    Raises
    ------
    AnswerRefused
        With a stable code: ``cut-off``, ``too-long``, ``no-block``, ``too-many-blocks``,
        ``bad-launch-data``, ``wrong-base``, ``bad-edit``, ``search-not-found``,
        ``search-ambiguous``, ``no-change``.
    """
    if len(text) > MAX_ANSWER_CHARS:
        raise AnswerRefused("too-long", detail=f"{len(text)} characters in one answer")
    if finish == "length":
        raise AnswerRefused(
            "cut-off", detail="the answer reached its length limit; answer with an edit, or shorter"
        )
    blocks = find_blocks(text)
    launch = read_launch(_one([b for b in blocks if b.word == "json"], "json").text)
    words = {*fences, EDIT}
    block = _one([b for b in blocks if b.word in words], f"{fences[0]} or {EDIT}")
    strange = sorted({b.word or "(none)" for b in blocks} - words - {"json"})
    if strange:
        raise AnswerRefused(
            "too-many-blocks", detail=f"blocks {[line(w, 20) for w in strange]} have no use here"
        )
    if block.word == EDIT:
        source = _edited(block.text, launch, base=base, base_id=base_id)
    else:
        source = block.text
    check_size(source)
    return Draft(source=source, launch=launch, edited=block.word == EDIT)


def check_size(source: str) -> None:
    """Refuse a source that is empty or too long.

    Raises
    ------
    AnswerRefused
        ``no-block`` or ``too-long``.
    """
    if not source.strip() or len(source) > MAX_SOURCE_CHARS:
        detail = f"a source has 1 to {MAX_SOURCE_CHARS} characters, this one {len(source)}"
        raise AnswerRefused("too-long" if source.strip() else "no-block", detail=detail)


def find_blocks(text: str) -> list[Block]:
    r"""Return fenced blocks, outermost only.

    Raises
    ------
    AnswerRefused
        ``cut-off`` if the last one is not closed.

    Examples
    --------
    >>> find_blocks("prose\n```json\n{}\n```\n")
    [Block(word='json', text='{}\n')]
    """
    blocks: list[Block] = []
    fence, word, body = "", "", list[str]()
    for row in text.replace("\r\n", "\n").split("\n"):
        found = _FENCE.match(row)
        if not fence:
            if found:
                fence, word, body = found[1], found[2].lower(), []
        elif found and not found[2] and found[1].startswith(fence) and row.strip() == found[1]:
            blocks.append(Block(word=word, text="".join(f"{each}\n" for each in body)))
            fence = ""
        else:
            body.append(row)
    if fence:
        raise AnswerRefused("cut-off", detail=f"the block '{line(word, 20)}' is not closed")
    return blocks


def parse_json(text: str, *, what: str) -> object:
    """Read a small JSON block.

    Raises
    ------
    AnswerRefused
        ``bad-launch-data``.
    """
    if len(text) > _MAX_JSON_CHARS:
        raise AnswerRefused(
            "bad-launch-data", detail=f"{what} has more than {_MAX_JSON_CHARS} characters"
        )
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        detail = f"{what} is not JSON: {line(str(error), 120)}"
        raise AnswerRefused("bad-launch-data", detail=detail) from error


def _one(found: list[Block], words: str) -> Block:
    if not found:
        raise AnswerRefused("no-block", detail=f"the answer needs one fenced block: {words}")
    if len(found) > 1:
        detail = f"{len(found)} blocks {words}, exactly one is allowed"
        raise AnswerRefused("too-many-blocks", detail=detail)
    return found[0]


def read_launch(text: str) -> LaunchData:
    """Read launch data.

    Raises
    ------
    AnswerRefused
        ``bad-launch-data``.
    """
    body = parse_json(text, what="the launch data")
    try:
        return LaunchData.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the launch data"
        detail = f"{line(place, 60)}: {line(first['msg'], 160)}"
        raise AnswerRefused("bad-launch-data", detail=detail) from error


def _edited(text: str, launch: LaunchData, *, base: str | None, base_id: str) -> str:
    if base is None:
        raise AnswerRefused("wrong-base", detail="no base was given to edit; answer with a file")
    named = launch.base.removeprefix("sha256:")
    if len(named) < 8 or not base_id.startswith(named):
        detail = f"the edit is for base '{line(launch.base, 20)}', the base given is {base_id[:12]}"
        raise AnswerRefused("wrong-base", detail=detail)
    edited = apply_edits(base, parse_edits(text))
    if edited == base:
        raise AnswerRefused("no-change", detail="the edits leave the base as it is")
    return edited


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")
