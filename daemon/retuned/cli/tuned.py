"""``retuned tuned``: files of launch parameters that servers read, for people.

What a daemon does to them inside a running server is `runtime.tuned.service`; here a file is shown,
a change is tried on it, and written or rolled back for the server's next start.
"""

from __future__ import annotations

import difflib
import getpass
import hashlib
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.text import Text

from retuned import errors
from retuned.cli.output import JsonFlag, emit_json, safe, stdout
from retuned.errors import UnreadableInput, UsageError
from retuned.files import read_plain
from retuned.runtime.schema import Refused
from retuned.runtime.tuned_files import files
from retuned.runtime.tuned_files.changes import (
    AITER,
    FORMATS,
    MOE_SGLANG,
    MOE_VLLM,
    TUNABLE_OP,
    Change,
    Plan,
    parse_change,
    plan,
)
from retuned.runtime.tuned_files.moe_json import VERSION_KEY, read_moe
from retuned.runtime.tuned_files.strict import MAX_FILE_BYTES, digest_of, json_object
from retuned.runtime.tuned_files.table_formats import read_results, read_table
from retuned.text import print_fields, print_table

T = TypeVar("T")
app = typer.Typer(help="Tuned-config files that servers read.", no_args_is_help=True)
_ANSWERS_NO = frozenset(
    (
        *("default-unknown", "row-outside-guard", "guard-without-row", "too-many-rows"),
        *("guard-unbounded", "guard-splits-padding", "cannot-pin", "row-invalid", "tuned-busy"),
        *("nothing-to-change", "changed-by-others", "nothing-to-restore", "not-the-newest"),
    )
)
"""Reasons that are about what was asked; all others are about what was read."""
_CHANGE_FIELDS = frozenset({"defaults", "format", "guard", "lookup", "rows", "rule"})
"""What a change may say."""
_FILE = typer.Argument(help="Fused-MoE JSON, AITER's CSV or TunableOp's CSV.")
_ROWS = typer.Option("--rows", help="JSON file with guard and new rows; see docs/tuned-files.md.")
_FORMAT = typer.Option("--format", help=f"One of {', '.join(FORMATS)}; else it is guessed.")


@app.callback()
def tuned() -> None:
    """Tuned-config files that servers read."""


@app.command()
def show(
    file: Annotated[Path, _FILE], format: Annotated[str, _FORMAT] = "", json: JsonFlag = False
) -> None:
    """Show what a file says, and what Retuned has changed in it."""
    data = _bytes(file)
    if data is None:
        raise UnreadableInput("file-missing", where=str(file), message="the file does not exist")
    body = _said(lambda: _content(file, data, _format(file, data, format)), file)
    body["changes"] = [_entry(each) for each in _said(lambda: files.entries(file), file)]
    if json:
        emit_json({"file": str(file), "digest": digest_of(data), **body})
        return
    print_fields(
        [
            ("format", body["format"]),
            ("rows", str(len(body["rows"]))),
            *((name, value) for name, value in body["about"].items()),
            *(("changed by", f"{e['order']} {e['when']} {e['who']}") for e in body["changes"]),
        ]
    )
    if body["rows"]:
        columns = list(dict.fromkeys(name for row in body["rows"] for name in row))
        print_table(columns, [[str(row.get(c, "")) for c in columns] for row in body["rows"]])


@app.command()
def diff(
    file: Annotated[Path, _FILE],
    rows: Annotated[Path, _ROWS],
    format: Annotated[str, _FORMAT] = "",
    json: JsonFlag = False,
) -> None:
    """Show the effect of a change on a file; write nothing. Exit 1 if it cannot be pinned."""
    data, found, _ = _planned(file, rows, format)
    before = (data or b"").decode("ascii", "replace").splitlines()
    after = found.data.decode("ascii").splitlines()
    lines = list(difflib.unified_diff(before, after, str(file), "changed", lineterm="", n=2))
    if json:
        digests = {"before": digest_of(data), "after": digest_of(found.data)}
        emit_json({"file": str(file), **digests, "rows": list(found.rows), "diff": lines})
        return
    for line in (*found.rows, *lines):
        stdout().print(Text(safe(line, limit=4_000)), soft_wrap=True)


@app.command()
def write(
    file: Annotated[Path, _FILE],
    rows: Annotated[Path, _ROWS],
    format: Annotated[str, _FORMAT] = "",
    json: JsonFlag = False,
) -> None:
    """Write a change into a file for the server's next start; its rollback is stored beside it."""
    data, found, change = _planned(file, rows, format)
    entry = files.FileChange(
        order="by-hand-" + hashlib.sha256(found.data).hexdigest()[:16],
        epoch=0,
        who=_user(),
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        before=digest_of(data),
        after=digest_of(found.data) or "",
        rows=found.rows,
    )
    _said(lambda: files.replace(file, found.data, expected=data, entry=entry), file)
    if json:
        emit_json({"file": str(file), "format": change.format, "change": _entry(entry)})
        return
    print_fields([("written", str(file)), ("order", entry.order), ("rows", "; ".join(found.rows))])


@app.command()
def restore(file: Annotated[Path, _FILE], json: JsonFlag = False) -> None:
    """Take the newest change of a file back: exactly the bytes that were there before it."""
    changes = _said(lambda: files.entries(file), file)
    if not changes:
        raise _no(Refused("nothing-to-restore", detail=f"{file} was not changed by Retuned"))
    last = changes[-1]
    restored = _said(lambda: files.restore(file, order=last.order), file)
    if json:
        emit_json({"file": str(file), "restored": restored, "change": _entry(last)})
        return
    done = "put back" if restored else "was put back already"
    print_fields([(done, str(file)), ("order", last.order)])


def _planned(file: Path, rows: Path, format: str) -> tuple[bytes | None, Plan, Change]:
    data = _bytes(file)
    body = _change(rows)
    body.setdefault("format", format or _format(file, data, ""))
    change = _said(lambda: parse_change(body), rows)
    return data, _said(lambda: plan(str(file), data, change), file), change


def _change(path: Path) -> dict[str, Any]:
    try:
        data = read_plain(path, max_bytes=MAX_FILE_BYTES)
        if data is None:
            raise ValueError(f"it has more than {MAX_FILE_BYTES} bytes")
        return _known(json_object(data))
    except (OSError, ValueError) as error:
        message = getattr(error, "strerror", None) or str(error)
        raise UnreadableInput("change-invalid", where=str(path), message=message) from error


def _known(body: dict[str, Any]) -> dict[str, Any]:
    """Refuse unknown fields: a misspelt guard must not count as no guard."""
    unknown = sorted(body.keys() - _CHANGE_FIELDS)
    if unknown:
        names = ", ".join(repr(name[:80]) for name in unknown[:8])
        known = ", ".join(sorted(_CHANGE_FIELDS))
        raise ValueError(f"unknown field {names}; a change has {known}")
    return body


def _bytes(file: Path) -> bytes | None:
    return _said(lambda: files.read_file(file), file)


def _format(file: Path, data: bytes | None, wanted: str) -> str:
    """Return what a file is, by its name and first bytes."""
    if wanted and wanted not in FORMATS:
        raise UsageError(f"--format is one of {', '.join(FORMATS)}")
    if wanted:
        return wanted
    if file.suffix == ".json":
        versioned = file.absolute().parent.name.startswith("triton_")
        return MOE_SGLANG if versioned else MOE_VLLM
    if file.suffix == ".csv" and data is not None:
        return TUNABLE_OP if data.startswith(b"Validator,") else AITER
    raise UsageError(f"{file}: name its kind by --format; one of {', '.join(FORMATS)}")


def _content(file: Path, data: bytes, format: str) -> dict[str, Any]:
    if format in (MOE_VLLM, MOE_SGLANG):
        moe = read_moe(str(file), data, version_key=format == MOE_VLLM)
        about = {VERSION_KEY: moe.version} if moe.version is not None else {}
        return {
            "format": format,
            "about": about,
            "rows": [{"M": m, **config} for m, config in moe.rows],
        }
    if format == AITER:
        table = read_table(str(file), data)
        rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
        return {"format": format, "about": {}, "rows": rows}
    results = read_results(str(file), data)
    names = ("operator", "parameters", "solution", "time_ms")
    return {
        "format": format,
        "about": dict(results.validators),
        "rows": [dict(zip(names, row, strict=False)) for row in results.rows],
    }


def _entry(entry: files.FileChange) -> dict[str, Any]:
    said = {name: getattr(entry, name) for name in ("order", "epoch", "who", "when")}
    return said | {"before": entry.before, "after": entry.after, "rows": list(entry.rows)}


def _said(ask: Callable[[], T], path: Path) -> T:
    """Do what may be refused by the runtime's part, in the words of the commands."""
    try:
        return ask()
    except Refused as error:
        if error.reason in _ANSWERS_NO:
            raise _no(error) from error
        where = str(path)
        message = error.detail.removeprefix(where).lstrip(":, ")
        raise UnreadableInput(error.reason, where=where, message=message) from error


def _no(error: Refused) -> errors.Refused:
    said = errors.Refused(error.detail)
    said.code = error.reason
    return said


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return f"uid {os.getuid()}"
