"""MoE files of vLLM and SGLang: a JSON object from batch size to launch parameters.

Both servers convert the keys to numbers and keep the file's order. vLLM first removes
``triton_version``; SGLang would fail on it. Unchanged parts keep their bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retuned.runtime.tuned_files.strict import MAX_M, invalid, text_of

Value = int | bool | str
Config = Mapping[str, Value]
Rows = tuple[tuple[int, Config], ...]
"""Batch size and parameters, in the order of the file.

Of two rows at the same distance, both servers use the one that comes first.
"""

VERSION_KEY = "triton_version"
"""The one key that is not a batch size, in vLLM's files."""
MAX_ROWS = 1024
"""Maximum rows of a file; the longest shipped one has 37."""
MAX_PARAMETERS = 64
_MAX_NUMBER = 2**31
_M = re.compile(r"[1-9][0-9]{0,9}\Z")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")
_WORD = re.compile(r"[A-Za-z0-9_.+:-]{0,128}\Z")
_SPACE = re.compile(r"[ \t\r\n]*")
_STYLE = re.compile(r'\{(\s*)"[^"]*"(\s*:\s*)[^,}]*?(?:(,\s*)"[^}]*?)?(\s*)\}\Z')


@dataclass(frozen=True, slots=True)
class _Member:
    """One key with its value, as spelled in the file."""

    key: str
    value: Any
    lead: str
    """Text between the previous member and this one: comma and space."""
    text: str


@dataclass(frozen=True, slots=True)
class MoeFile:
    rows: Rows
    version: str | None
    """Its Triton version; None if it has none."""
    members: tuple[_Member, ...] = ()
    head: str = "{"
    tail: str = "\n}\n"


def read_moe(name: str, data: bytes, *, version_key: bool) -> MoeFile:
    """Read a file.

    Parameters
    ----------
    version_key
        Whether the server removes ``triton_version`` from it.

    Raises
    ------
    Refused
        ``tuned-invalid``.
    """
    text = text_of(name, data)
    head, members, tail = _members(name, text)
    rows: list[tuple[int, Config]] = []
    version: str | None = None
    seen: set[str] = set()
    for member in members:
        if member.key in seen:
            raise invalid(name, f"key {member.key!r:.80}", "occurs twice")
        seen.add(member.key)
        if member.key == VERSION_KEY and version_key:
            if not isinstance(member.value, str):
                raise invalid(name, f"key {VERSION_KEY!r}", "is not text")
            version = member.value
            continue
        rows.append((_batch(name, member.key), _config(name, member.key, member.value)))
    if not rows:
        raise invalid(name, "the whole", "has no row; the server would use its defaults")
    return MoeFile(tuple(rows), version, members, head, tail)


def check_config(name: str, m: int, value: object) -> Config:
    """Check the parameters of a new row.

    Raises
    ------
    Refused
        ``tuned-invalid``.
    """
    config = _config(name, str(m), value)
    if "BLOCK_SIZE_M" not in config:
        raise invalid(name, f"row {m}", "has no BLOCK_SIZE_M, which the servers need")
    return config


def write_moe(file: MoeFile | None, rows: Rows) -> bytes:
    """Return the bytes of a file with these rows; unchanged rows keep theirs.

    Parameters
    ----------
    file
        The parsed file; None creates a new file.
    """
    if file is None:
        body = {str(m): dict(config) for m, config in rows}
        return (json.dumps(body, indent=4) + "\n").encode("ascii")
    if [m for m, _ in rows] == [m for m, _ in file.rows] and all(
        same(one, other) for (_, one), (_, other) in zip(rows, file.rows, strict=True)
    ):
        return _joined(file.head, list(file.members), file.tail)
    old = {member.key: member for member in file.members}
    known = dict(file.rows)
    lead = file.members[1].lead if len(file.members) > 1 else "," + file.members[0].lead
    style = next(m.text for m in file.members if m.key != VERSION_KEY)
    others = [member for member in file.members if member.key == VERSION_KEY]
    members: list[_Member] = []
    for m, config in rows:
        key = str(m)
        if m in known and same(known[m], config):
            members.append(old[key])
        else:
            members.append(_Member(key, config, lead, _rendered(key, config, style)))
    if others and file.members[-1].key == VERSION_KEY:
        members += others
    else:
        members = others + members
    first = file.members[0].lead
    spaced = [
        _Member(
            member.key,
            member.value,
            first if not index else (member.lead if "," in member.lead else lead),
            member.text,
        )
        for index, member in enumerate(members)
    ]
    return _joined(file.head, spaced, file.tail)


def _joined(head: str, members: Sequence[_Member], tail: str) -> bytes:
    return (head + "".join(m.lead + m.text for m in members) + tail).encode("ascii")


def _rendered(key: str, config: Config, like: str) -> str:
    colon_at = like.index(":")
    gap = like[colon_at : len(like) - len(like[colon_at + 1 :].lstrip())]
    style = _STYLE.search(like[like.index("{") :])
    opening, colon, comma, closing = style.groups() if style else ("", ": ", ", ", "")
    comma = comma or ("," + opening if opening else ", ")
    cells = [f"{json.dumps(name)}{colon}{json.dumps(value)}" for name, value in config.items()]
    return f'"{key}"{gap}{{{opening}{comma.join(cells)}{closing}}}'


def _members(name: str, text: str) -> tuple[str, tuple[_Member, ...], str]:
    """Split the outermost object, without losing a byte."""
    decoder = json.JSONDecoder(
        object_pairs_hook=lambda pairs: _once(name, pairs),
        parse_constant=lambda word: _refuse(name, word),
        parse_int=lambda digits: _whole(name, digits),
    )
    start = _skip(text, 0)
    if text[start : start + 1] != "{":
        raise invalid(name, f"byte {start}", "is not the beginning of an object")
    at = start + 1
    members: list[_Member] = []
    try:
        while True:
            key_at = _skip(text, at + (text[at : at + 1] == "," and bool(members)))
            if text[key_at : key_at + 1] == "}" and not members:
                break
            key, end = decoder.raw_decode(text, key_at)
            colon = _skip(text, end)
            if not isinstance(key, str) or text[colon : colon + 1] != ":":
                raise invalid(name, f"byte {key_at}", "is not a key with a colon after it")
            value, end = decoder.raw_decode(text, _skip(text, colon + 1))
            members.append(_Member(key, value, text[at:key_at], text[key_at:end]))
            if len(members) > MAX_ROWS:
                raise invalid(name, "the whole", f"has more than {MAX_ROWS} rows")
            at = end
            after = _skip(text, at)
            if text[after : after + 1] == ",":
                if after != at:  # space before a comma belongs to the next member
                    members[-1] = _Member(key, value, members[-1].lead, text[key_at:after])
                    at = after
                continue
            if text[after : after + 1] == "}":
                break
            raise invalid(name, f"byte {after}", "is neither a comma nor the end; cut off?")
    except (ValueError, RecursionError) as error:
        raise invalid(
            name, f"byte {getattr(error, 'pos', at)}", f"is not JSON ({error})"
        ) from error
    tail = text[at:]
    close = tail.index("}") + 1
    if tail[close:].strip(" \t\r\n"):
        raise invalid(name, f"byte {at + close}", "something follows the end")
    return text[: start + 1], tuple(members), tail


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _once(name: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise invalid(name, "a row", "names a parameter twice")
    return found


def _refuse(name: str, word: str) -> Any:  # noqa: ANN401 - never returns
    raise invalid(name, "a row", f"has {word}, which is not a JSON number")


def _whole(name: str, digits: str) -> int:
    if len(digits) > 12:
        raise invalid(name, "a row", f"has a number of {len(digits)} digits")
    return int(digits)


def _batch(name: str, key: str) -> int:
    if not _M.match(key) or int(key) > MAX_M:
        raise invalid(name, f"key {key!r:.80}", f"is not a batch size from 1 to {MAX_M}")
    return int(key)


def _config(name: str, key: str, value: object) -> Config:
    place = f"row {key:.40}"
    if not isinstance(value, Mapping) or not 0 < len(value) <= MAX_PARAMETERS:
        raise invalid(name, place, f"is not an object of 1 to {MAX_PARAMETERS} parameters")
    for parameter, choice in value.items():
        if not isinstance(parameter, str) or not _PARAMETER.match(parameter):
            raise invalid(name, place, f"{parameter!r:.80} is not a name of a parameter")
        if isinstance(choice, bool):
            continue
        if isinstance(choice, int) and 0 <= choice < _MAX_NUMBER:
            continue
        if isinstance(choice, str) and _WORD.match(choice):
            continue
        problem = f"{parameter} is not a whole number below {_MAX_NUMBER}, a word, true or false"
        raise invalid(name, place, problem)
    return dict(value)


def same(one: Config, other: Config) -> bool:
    """Whether two rows are equal; true differs from 1, and the order does not matter."""
    return {k: (type(v), v) for k, v in one.items()} == {k: (type(v), v) for k, v in other.items()}
