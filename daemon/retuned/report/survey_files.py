"""Tuned JSON files of vLLM and SGLang: rows and files without effect, and rows to doubt.

Judged without an experiment: from the file's name, its rows, and the sizes that traffic asks for.
Files are untrusted input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from retuned.contract import Record
from retuned.text import clean, plural, short

MOST_BYTES = 8 << 20
"""Largest file that is read."""
MOST_FINDINGS = 64
"""Findings of a file that are listed."""
_MOST_ROWS = 1024
_JUMP = 8
"""Ratio of two neighbours' tiles from which a row is doubtful."""
_FAR = 1.5
"""Ratio of an asked size to the row's from which the nearest row is far."""
_VERSION = "triton_version"
_MOE_WORDS = frozenset(
    ("", "float32", "fp8_w8a8", "fp8_w8a16", "int8_w8a8", "int8_w8a16", "int4_w4a16")
)
"""Words of ``dtype=`` that vLLM or SGLang put into a file's name."""

FINDINGS: Mapping[str, str] = MappingProxyType(
    {
        "asked-beyond-rows": "traffic asks for sizes beyond the last row",
        "asked-far-from-row": "traffic asks for a size whose nearest row is for another size",
        "equals-default": "rows equal what the server chooses without a file",
        "field-unknown": "a field that no launcher of this family reads",
        "fields-defaulted": "a row lacks fields, so Triton's own defaults are used for them",
        "file-invalid": "the server cannot read the file",
        "keys-missing": "a row lacks fields that the launcher needs",
        "name-never-asked": "no server builds this file name, so the file is never read",
        "neighbour-jump": "neighbouring rows have very different tiles",
        "row-never-matches": "no size resolves to this row",
        "row-not-asked": "no size of the observed traffic resolves to these rows",
        "row-null": "a row is null",
        "version-differs": "the file was tuned with another Triton",
        "version-forbidden": "SGLang fails on the key triton_version",
        "version-missing": "the file names no Triton version",
    }
)
"""Codes of findings, each with its meaning."""

_MOE = re.compile(
    r"E=(?P<E>\d{1,9}),N=(?P<N>\d{1,9}),device_name=(?P<device>[^,]{1,128})"
    r"(?:,dtype=(?P<dtype>\w{1,64}))?"
    r"(?:,block_shape=\[(?P<bn>\d{1,6}),(?P<gap> ?)(?P<bk>\d{1,6})\])?"
    r"(?P<more>(?:,per_channel_quant=True)?)(?P<rest>[^/]{0,128})\.json"
)
_BLOCK = re.compile(
    r"N=(?P<N>\d{1,9}),K=(?P<K>\d{1,9}),device_name=(?P<device>[^,]{1,128})"
    r"(?:,dtype=(?P<dtype>\w{1,64}))?"
    r"(?:,block_shape=\[(?P<bn>\d{1,6}),(?P<gap> ?)(?P<bk>\d{1,6})\])?"
    r"(?P<rest>[^/]{0,128})\.json"
)
_SSM = re.compile(
    r"headdim=\d{1,9},dstate=\d{1,9},device_name=(?P<device>[^,]{1,128})[^/]{0,128}\.json"
)
_LORA = re.compile(r"(?P<device>\w{1,128})_(?:SHRINK|EXPAND_TRUE|EXPAND_FALSE)\.json")
_TILES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M")
_LAUNCH = ("num_warps", "num_stages")
_MORE = (
    "SPLIT_K",
    "USE_TMA",
    "SWAP_AB",
    "waves_per_eu",
    "matrix_instr_nonkdim",
    "kpack",
    "num_ctas",
)
_SSM_FIELDS = ("BLOCK_SIZE_M", "num_warps")


class TableFinding(Record):
    """One thing in a table that has no effect, or that is doubtful."""

    code: str
    """Code of `FINDINGS`."""
    rows: tuple[str, ...] = ()
    """Keys of the rows; empty for the file."""
    detail: str
    """The values."""


class SurveyedTable(Record):
    """One tuned file."""

    name: str
    """Its file name."""
    family: str
    """``moe``, ``block-product``, ``mamba-table``, ``lora`` or ``unknown``."""
    rows: int
    """Rows that were read."""
    version: str
    """Triton version; empty if it names none."""
    asked: int
    """Sizes of observed traffic that it was compared with."""
    findings: tuple[TableFinding, ...]
    """What was found, worst kind first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    name: str
    family: str
    match: Mapping[str, str]
    sglang: bool
    version: str
    rows: tuple[tuple[str, Any], ...]


def is_table(name: str) -> bool:
    """Return whether a file name has the form of a tuned file.

    Examples
    --------
    >>> is_table("E=8,N=1024,device_name=X.json"), is_table("run.pt.trace.json")
    (True, False)
    """
    return any(pattern.fullmatch(name) for pattern in (_MOE, _BLOCK, _SSM, _LORA))


def survey_table(
    name: str,
    data: bytes,
    *,
    folder: str = "",
    triton: str = "",
    asked: Mapping[str, Sequence[int]] | None = None,
) -> SurveyedTable:
    """Judge one file.

    Parameters
    ----------
    name
        File name.
    data
        Its bytes.
    folder
        Name of its folder; ``triton_3_4_0`` is SGLang's way to name a version.
    triton
        Triton version of the server; empty if unknown.
    asked
        Sizes that traffic asks for, by ``E,N`` (experts) or ``*`` (any family).
    """
    family, match = _family(name)
    found: list[TableFinding] = []
    sglang = folder.startswith("triton_") or bool(match.get("gap")) or "_down" in name
    rows, version = _read(data, found, sglang=sglang)
    if sglang and folder.startswith("triton_"):
        version = folder.removeprefix("triton_").replace("_", ".")
    table = _Table(name=name, family=family, match=match, sglang=sglang, version=version, rows=rows)
    sizes = _sizes_for(table, asked or {})
    if rows:
        found += _of_name(table)
        found += _of_version(table, triton)
        if family != "lora":
            found += _of_rows(table)
            found += _of_neighbours(table)
            found += _of_default(table)
            found += _of_asked(table, sizes)
    return SurveyedTable(
        name=short(name, 300),
        family=family,
        rows=len(rows),
        version=short(version, 40) if version else "",
        asked=len(sizes),
        findings=tuple(found[:MOST_FINDINGS]),
    )


def _family(name: str) -> tuple[str, Mapping[str, str]]:
    for family, pattern in (("moe", _MOE), ("block-product", _BLOCK), ("mamba-table", _SSM)):
        match = pattern.fullmatch(name)
        if match:
            return family, {key: value or "" for key, value in match.groupdict().items()}
    return ("lora" if _LORA.fullmatch(name) else "unknown"), {}


class _TwiceError(ValueError):
    """A value that JSON allows and the servers do not."""


def _constant(word: str) -> object:
    raise _TwiceError(f"{word} is not a number of JSON")


def _read(
    data: bytes, found: list[TableFinding], *, sglang: bool
) -> tuple[tuple[tuple[str, Any], ...], str]:
    """Return rows with their keys as spelled, and the version."""
    try:
        if len(data) > MOST_BYTES:
            raise _TwiceError(f"{len(data)} bytes")
        pairs = json.loads(data, object_pairs_hook=_Pairs, parse_constant=_constant)
        if not isinstance(pairs, _Pairs):
            raise _TwiceError("not an object")
    except (ValueError, RecursionError) as error:
        found.append(_finding("file-invalid", detail=str(error)))
        return (), ""
    version, rows = "", []
    for key, value in pairs.items[:_MOST_ROWS]:
        if key == _VERSION:
            version = value if isinstance(value, str) else ""
            if sglang:
                found.append(_finding("version-forbidden", detail=key))
        else:
            rows.append((key, value))
    return tuple(rows), version


class _Pairs:
    """A JSON object with its keys in order, duplicates included."""

    def __init__(self, items: list[tuple[str, Any]]) -> None:
        self.items = items

    def row(self) -> dict[str, Any]:
        """Return it as a row."""
        return dict(self.items)


def _finding(code: str, rows: Sequence[str] = (), *, detail: str) -> TableFinding:
    cut = tuple(short(row, 40) for row in rows[:MOST_FINDINGS])
    return TableFinding(code=code, rows=cut, detail=short(clean(detail), 200))


def _of_name(table: _Table) -> list[TableFinding]:
    """Return why no server builds this file name."""
    match, why = table.match, ""
    if not match:
        return []
    device = match.get("device", "")
    dtype = match.get("dtype", "")
    if "H200" in device.split("_") and device != "NVIDIA_H200" and not table.sglang:
        why = f"vLLM names every H200 NVIDIA_H200, the file has {device}"
    elif " " in device:
        why = "servers write device names with underscores"
    elif table.family == "moe" and dtype not in _MOE_WORDS and "mxfp" not in dtype:
        why = f"dtype={dtype} is not a word of the servers; bf16 and fp16 have none"
    elif table.family == "moe" and match.get("rest") not in ("", "_down", ",backend=flydsl"):
        why = f"{match['rest']} is not a part of the servers' names"
    elif table.family == "moe" and "0" in (match["E"], match["N"]):
        why = "no layer has 0 experts or columns"
    return [_finding("name-never-asked", detail=why)] if why else []


def _of_version(table: _Table, triton: str) -> list[TableFinding]:
    if not table.version:
        return [_finding("version-missing", detail="tuned with an unknown Triton")]
    if triton and _minor(table.version) != _minor(triton):
        return [
            _finding("version-differs", detail=f"tuned with {table.version}, runs with {triton}")
        ]
    return []


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split("+")[0].split(".")[:2])


def _number(key: str) -> int | None:
    try:
        number = int(key)
    except ValueError:
        return None
    return number if abs(number) < 2**31 else None


def _of_rows(table: _Table) -> list[TableFinding]:
    found = []
    keys = [key for key, _ in table.rows]
    bad = [key for key in keys if _number(key) is None]
    if bad:
        found.append(_finding("file-invalid", bad, detail="a key is not a number"))
    for index, key in enumerate(keys):
        later = [other for other in keys[index + 1 :] if _number(other) == _number(key)]
        if later and _number(key) is not None:
            found.append(
                _finding("row-never-matches", [key], detail="a later row has the same size")
            )
    sizes = [n for key in keys if (n := _number(key)) is not None]
    low = [str(n) for n in sizes if n < 1 and (not sizes or nearest(sizes, 1) != n)]
    if low:
        found.append(_finding("row-never-matches", low, detail="no launch has this size"))
    nulls = [key for key, value in table.rows if value is None]
    if nulls:
        found.append(_finding("row-null", nulls, detail=plural(len(nulls), "row")))
    found += _of_fields(table)
    return found


def _of_fields(table: _Table) -> list[TableFinding]:
    mamba = table.family == "mamba-table"
    needed = set(_SSM_FIELDS if mamba else _TILES)
    defaulted = set() if mamba else set(_LAUNCH)
    allowed = needed | set(_TILES) | set(_LAUNCH) | set(_MORE)
    grouped = table.match.get("dtype", "").endswith(("w4a16", "w8a16")) and table.match.get("bn")
    if table.family == "moe" and (grouped or table.match.get("dtype", "") == "int4_w4a16"):
        needed |= {"SPLIT_K"}
    if table.match.get("rest", "").endswith("backend=flydsl"):
        return []
    lacking: dict[tuple[str, ...], list[str]] = {}
    unknown: dict[tuple[str, ...], list[str]] = {}
    left: dict[tuple[str, ...], list[str]] = {}
    for key, value in table.rows:
        if not isinstance(value, _Pairs):
            if value is not None:
                lacking.setdefault(("an object",), []).append(key)
            continue
        row = value.row()
        missing = tuple(sorted(needed - row.keys()))
        unset = tuple(sorted(defaulted - row.keys()))
        foreign = tuple(sorted(short(name, 40) for name in row.keys() - allowed))
        if missing:
            lacking.setdefault(missing, []).append(key)
        if unset and not missing:
            left.setdefault(unset, []).append(key)
        if foreign:
            unknown.setdefault(foreign[:8], []).append(key)
    kinds = (("keys-missing", lacking), ("fields-defaulted", left), ("field-unknown", unknown))
    return [
        _finding(code, rows, detail=", ".join(fields))
        for code, groups in kinds
        for fields, rows in list(groups.items())[:8]
    ]


def _ordered(table: _Table) -> list[tuple[int, dict[str, Any]]]:
    """Return rows by size, as the servers have them: of two of one size the later one."""
    found = {
        number: value.row()
        for key, value in table.rows
        if (number := _number(key)) is not None and isinstance(value, _Pairs)
    }
    return sorted(found.items())


def _tile(row: Mapping[str, Any], sides: Sequence[str]) -> int:
    """Return the elements of a row's tile; 0 if the row does not give its sides."""
    product = 1
    for name in sides:
        side = row.get(name)
        product *= side if isinstance(side, int) and 0 < side <= 65_536 else 0
    return product


def _of_neighbours(table: _Table) -> list[TableFinding]:
    found = []
    sides = ("BLOCK_SIZE_M",) if table.family == "mamba-table" else ("BLOCK_SIZE_M", "BLOCK_SIZE_N")
    for (small, one), (large, other) in pairwise(_ordered(table)):
        before, after = _tile(one, sides), _tile(other, sides)
        low, high = sorted((before, after))
        if low and high >= _JUMP * low:
            found.append(
                _finding(
                    "neighbour-jump",
                    [str(small), str(large)],
                    detail=f"tiles of {before} and {after} elements",
                )
            )
    return found


def _of_default(table: _Table) -> list[TableFinding]:
    if table.family != "moe" or table.sglang or table.match.get("device", "").startswith("AMD"):
        return []
    match = table.match
    block = (int(match["bn"]), int(match["bk"])) if match.get("bn") else None
    same = [
        str(size)
        for size, row in _ordered(table)
        if (default := default_row(size, int(match["E"]), dtype=match["dtype"], block=block))
        and {k: v for k, v in row.items() if k != "SPLIT_K"} == default
    ]
    if not same:
        return []
    return [_finding("equals-default", same, detail="as vLLM 0.26 chooses without a file")]


def default_row(
    size: int, experts: int, *, dtype: str, block: tuple[int, int] | None
) -> dict[str, int] | None:
    """Return what vLLM 0.26 chooses on an NVIDIA GPU without a file; None if unknown here."""
    if dtype == "fp8_w8a8" and block:
        narrow = size <= 8 and block[0] % 64 == 0
        return {
            "BLOCK_SIZE_M": 16 if size <= 64 else 64,
            "BLOCK_SIZE_N": 64 if narrow else block[0],
            "BLOCK_SIZE_K": block[1],
            "GROUP_SIZE_M": 1 if size <= 16 else 32,
            "num_warps": 4,
            "num_stages": 4 if narrow and size <= 4 else 3,
        }
    if block or dtype not in ("", "fp8_w8a8"):
        return None
    steps = ((32, 16), (96, 32), (512, 64))
    return {
        "BLOCK_SIZE_M": next((tile for most, tile in steps if size <= most), 128),
        "BLOCK_SIZE_N": 64 if size <= 64 else 128,
        "BLOCK_SIZE_K": 128 if dtype == "fp8_w8a8" or size <= 64 else 64,
        "GROUP_SIZE_M": 16 if size // max(experts, 1) > 128 else 1,
        "num_warps": 4 if size <= 128 else 8,
        "num_stages": 4 if size <= 32 else 3,
    }


def nearest(sizes: Sequence[int], size: int) -> int:
    """Return the row that both servers choose: nearest, of two as near the first in the file."""
    return min(sizes, key=lambda each: abs(each - size))


def _sizes_for(table: _Table, asked: Mapping[str, Sequence[int]]) -> list[int]:
    """Return the observed sizes that this table answers; experts need the same E and N."""
    if table.family == "moe":
        wanted = f"{table.match.get('E')},{table.match.get('N')}"
        found = asked.get(wanted, ())
    elif table.family == "block-product":
        found = asked.get("*", ())
    else:
        found = ()
    return sorted({size for size in found if 0 < size < 2**31})[:4096]


def _of_asked(table: _Table, asked: Sequence[int]) -> list[TableFinding]:
    sizes = list(dict.fromkeys(n for key, _ in table.rows if (n := _number(key)) is not None))
    if not asked or not sizes:
        return []
    picked = {size: nearest(sizes, size) for size in asked}
    found = []
    beyond = [str(size) for size in asked if size > max(sizes) * _FAR]
    far = [
        f"{size}->{row}"
        for size, row in picked.items()
        if str(size) not in beyond and max(size, row, 1) / max(min(size, row), 1) >= _FAR
    ]
    if beyond:
        found.append(_finding("asked-beyond-rows", beyond, detail=f"last row {max(sizes)}"))
    if far:
        found.append(_finding("asked-far-from-row", far, detail="asked size -> row"))
    idle = [str(size) for size in sizes if size not in picked.values()]
    if idle:
        found.append(_finding("row-not-asked", idle, detail=f"{len(asked)} sizes observed"))
    return found
