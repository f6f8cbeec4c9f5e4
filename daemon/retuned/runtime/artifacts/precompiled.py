"""Precompiled code of an artifact, so that nothing is compiled in the server.

::

    "precompiled": {
      "file": "precompiled.bin",                 all codes, one after the other
      "entries": [{
        "key": "<64 hex digits>",                Triton's own key of the compilation
        "entry": "rows", "arch": "sm_90", "triton": "3.9.0", "kind": "cubin" | "hsaco",
        "lengths": [64, 128],                    of all axes, one set that uses this code
        "offset": 0, "bytes": 5968, "sha256": "...",
        "meta": {...}                            what Triton's launcher reads: name, shared bytes,
      }]                                         warps, scratch, target
    }

The key is a digest of all inputs of the compilation: the source with everything it calls, the types
and alignment of its arguments, constants, options, the target, the versions of Triton and of its
back ends, and the variables that change what they do. So an entry is used only where the key is the
same. All data is untrusted until its digest is checked: sizes are bounded, fields are strict, and
invalid data is refused before it reaches a driver.
"""

from __future__ import annotations

import hashlib
import keyword
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retuned.runtime.schema import Refused

PRECOMPILED_FILE = "precompiled.bin"
MAX_PRECOMPILED_BYTES = 48 << 20
"""Largest file of codes; with the rest of the artifact it still fits into a delivery."""
MAX_ENTRIES = 64
MAX_ENTRY_BYTES = 16 << 20
"""Largest code of one entry."""
BACKENDS = {"cubin": "cuda", "hsaco": "hip"}
"""Triton's back end per kind of code."""

_MAX_FIELDS = 128
_MAX_ITEMS = 64
_MAX_DEPTH = 4
_MAX_TEXT = 400
_MAX_AXES = 64
_MAX_LENGTH = 2**40
_FIELDS = frozenset(
    ("key", "entry", "arch", "triton", "kind", "lengths", "offset", "bytes", "sha256", "meta")
)
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_SYMBOL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,127}\Z")
_ARCH = re.compile(r"(sm_[0-9]{2,3}|gfx[0-9a-f]{3,5})\Z")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]{0,63}\Z")
_FIELD = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,63}\Z")
_BOUNDS = {
    "shared": (0, 1 << 20),
    "num_warps": (1, 64),
    "num_ctas": (1, 32),
    "warp_size": (32, 64),
    "global_scratch_size": (0, 1 << 30),
    "profile_scratch_size": (0, 1 << 30),
    "tmem_size": (0, 1 << 20),
}
"""Sizes that a launcher allocates or requests from the driver.

Absent in some versions of Triton.
"""
_NEEDED = ("shared", "num_warps")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecompiledEntry:
    key: str
    """Triton's key of it, 64 hex digits."""
    entry: str
    arch: str
    """``sm_90``, ``gfx942``."""
    triton: str
    """Version that compiled it."""
    kind: str
    """``cubin`` or ``hsaco``."""
    lengths: tuple[int, ...]
    """Lengths of all axes, one set that uses this code."""
    sha256: str
    code: bytes
    """Bytes that a driver loads."""
    meta: Mapping[str, Any]
    """Metadata that Triton's launcher reads."""


def parse_precompiled(body: object, data: bytes) -> tuple[PrecompiledEntry, ...]:
    """Parse the entries of a manifest and check each code against its digest.

    Raises
    ------
    Refused
        ``artifact-invalid`` naming the field, or ``entry-digest-differs``.
    """
    rows = declared_entries(body)
    found: dict[str, PrecompiledEntry] = {}
    end = 0
    for number, row in enumerate(rows):
        entry, start = _entry(row, data, where=f"precompiled[{number}]")
        if start != end or entry.key in found:
            raise _invalid(f"precompiled[{number}]", "repeats a key, or leaves bytes between codes")
        end = start + len(entry.code)
        found[entry.key] = entry
    if end != len(data):
        raise _invalid("precompiled", f"describes {end} bytes of a file of {len(data)}")
    return tuple(found.values())


def declared_entries(body: object) -> list[Any]:
    """Return the unchecked rows of ``precompiled``.

    Raises
    ------
    Refused
        ``artifact-invalid``.
    """
    if not isinstance(body, Mapping) or set(body) != {"file", "entries"}:
        raise _invalid("precompiled", "is not an object of 'file' and 'entries'")
    if body["file"] != PRECOMPILED_FILE:
        raise _invalid("precompiled", f"is in another file than {PRECOMPILED_FILE}")
    rows = body["entries"]
    if not isinstance(rows, list) or not 0 < len(rows) <= MAX_ENTRIES:
        raise _invalid("precompiled", f"has no list of 1 to {MAX_ENTRIES} entries")
    return rows


def describe(entry: PrecompiledEntry, *, offset: int) -> dict[str, Any]:
    """Return the row of an entry whose code starts at `offset`, for `parse_precompiled`."""
    return {
        "key": entry.key,
        "entry": entry.entry,
        "arch": entry.arch,
        "triton": entry.triton,
        "kind": entry.kind,
        "lengths": list(entry.lengths),
        "offset": offset,
        "bytes": len(entry.code),
        "sha256": entry.sha256,
        "meta": dict(entry.meta),
    }


def pack(entries: tuple[PrecompiledEntry, ...]) -> tuple[dict[str, Any], bytes]:
    """Return ``precompiled`` of a manifest and the file that it describes.

    Raises
    ------
    Refused
        As `parse_precompiled`, which checks the result.
    """
    rows, end = [], 0
    for entry in entries:
        rows.append(describe(entry, offset=end))
        end += len(entry.code)
    body = {"file": PRECOMPILED_FILE, "entries": rows}
    data = b"".join(entry.code for entry in entries)
    if len(data) > MAX_PRECOMPILED_BYTES:
        raise _invalid("precompiled", f"has {len(data)} bytes, more than {MAX_PRECOMPILED_BYTES}")
    parse_precompiled(body, data)
    return body, data


def _entry(row: object, data: bytes, *, where: str) -> tuple[PrecompiledEntry, int]:
    if not isinstance(row, Mapping) or set(row) != _FIELDS:
        raise _invalid(where, f"is not an object of {sorted(_FIELDS)}")
    for name, pattern in (
        ("key", _SHA256),
        ("sha256", _SHA256),
        ("entry", _SYMBOL),
        ("arch", _ARCH),
        ("triton", _VERSION),
    ):
        if not isinstance(row[name], str) or not pattern.match(row[name]):
            raise _invalid(where, f"has a '{name}' that is not valid")
    start = _whole(row["offset"], where, "offset", low=0, high=MAX_PRECOMPILED_BYTES)
    size = _whole(row["bytes"], where, "bytes", low=1, high=MAX_ENTRY_BYTES)
    code = data[start : start + size]
    if len(code) != size or hashlib.sha256(code).hexdigest() != row["sha256"]:
        detail = f"the code of '{row['entry']}' for {row['arch']} does not match its sha256"
        raise Refused("entry-digest-differs", detail=detail)
    entry = PrecompiledEntry(
        key=row["key"],
        entry=row["entry"],
        arch=row["arch"],
        triton=row["triton"],
        kind=str(row["kind"]),
        lengths=_lengths(row["lengths"], where),
        sha256=row["sha256"],
        code=code,
        meta=_meta(row["meta"], where),
    )
    _check_agreement(entry, where)
    return entry, start


def _check_agreement(entry: PrecompiledEntry, where: str) -> None:
    """Refuse an entry whose fields differ from its metadata for Triton's launcher."""
    meta, target = entry.meta, entry.meta.get("target")
    backend = BACKENDS.get(entry.kind)
    if backend is None or not isinstance(target, Mapping) or target.get("backend") != backend:
        raise _invalid(
            where, f"has a 'kind' not in {sorted(BACKENDS)}, or another backend's target"
        )
    arch = target.get("arch")
    if (f"sm_{arch}" if backend == "cuda" else arch) != entry.arch:
        raise _invalid(where, "has another target than 'arch'")
    _whole(target.get("warp_size"), where, "warp_size", low=32, high=64)
    named = (meta.get("hash"), meta.get("name"), meta.get("triton_version"))
    if named != (entry.key, entry.entry, entry.triton):
        raise _invalid(where, "has a 'meta' of another compilation")
    for name, (low, high) in _BOUNDS.items():
        value = meta.get(name)
        if value is not None or name in _NEEDED:
            _whole(value, where, name, low=low, high=high)


def _meta(body: object, where: str) -> dict[str, Any]:
    """Check the future fields of a named tuple: plain names, plain values, not too many."""
    if not isinstance(body, Mapping) or len(body) > _MAX_FIELDS:
        raise _invalid(where, f"has a 'meta' that is not an object of at most {_MAX_FIELDS} fields")
    for name in body:
        if not isinstance(name, str) or not _FIELD.match(name) or keyword.iskeyword(name):
            raise _invalid(where, f"has the field {name!r:.80} in 'meta'")
    if not all(_is_plain(value, _MAX_DEPTH) for value in body.values()):
        raise _invalid(where, "contains something in 'meta' that is not a plain value")
    return dict(body)


def _is_plain(value: object, depth: int) -> bool:
    if value is None or type(value) is bool:
        return True
    if type(value) is int:
        return abs(value) < 2**63
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is str:
        return len(value) <= _MAX_TEXT
    if depth == 0 or not isinstance(value, (list, Mapping)) or len(value) > _MAX_ITEMS:
        return False
    if isinstance(value, Mapping):
        return all(type(name) is str and len(name) <= _MAX_TEXT for name in value) and all(
            _is_plain(each, depth - 1) for each in value.values()
        )
    return all(_is_plain(each, depth - 1) for each in value)


def _lengths(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MAX_AXES:
        raise _invalid(where, f"has no list of at most {_MAX_AXES} lengths")
    return tuple(_whole(each, where, "lengths", low=0, high=_MAX_LENGTH) for each in value)


def _whole(value: object, where: str, name: str, *, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise _invalid(where, f"has a '{name}' that is not a whole number from {low} to {high}")
    return value


def _invalid(where: str, problem: str) -> Refused:
    return Refused("artifact-invalid", detail=f"artifact.json: '{where}' {problem}")
