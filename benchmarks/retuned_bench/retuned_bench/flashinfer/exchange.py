"""One run of ``retuned kernels import`` or ``export``: documents in and out."""

from __future__ import annotations

import json as json_module
import os
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from retuned import catalog
from retuned.catalog.entry import KernelEntry
from retuned.cli.kernels_bench import learn, named
from retuned.cli.output import emit_json, safe, say, stdout
from retuned.cli.validate import read_candidate
from retuned.contract import Solution
from retuned.errors import UsageError
from retuned_bench.flashinfer.definitions import export_definition, import_definition
from retuned_bench.flashinfer.schema import DocumentType, NotExportable, kind_of, read_documents
from retuned_bench.flashinfer.solutions import export_solution, import_solution
from retuned_bench.flashinfer.traces import import_trace

_MOST_SHOWN = 40


def import_documents(file: Path, *, out: Path | None, force: bool, json: bool) -> None:
    """Do what `commands.import_file` describes.

    Raises
    ------
    UnreadableInput
        If the file is not FlashInfer-Bench JSON.
    UsageError
        If nothing can be written to `out`.
    """
    found = [_imported(body, where) for where, body in read_documents(file)]
    usable = [each for each in found if each["usable"] and each["kind"] != DocumentType.TRACE]
    if out is not None and not usable:
        why = next((each["detail"] for each in found if each["detail"]), "traces are only read")
        raise UsageError(f"nothing in {file} can be used here, so nothing is written: {why}")
    names = Counter(each["name"] for each in usable)
    for name, count in names.items():
        if out is not None and count > 1:
            raise UsageError(f"{file}: {count} documents are called '{name}'; write them apart")
    if out is not None:
        _write_folder(out, {f"{each['name']}.json": each["record"] for each in usable}, force=force)
    if json:
        emit_json({"documents": found})
        return
    console = stdout()
    for each in found[:_MOST_SHOWN]:
        word = "usable" if each["usable"] else f"not a candidate here ({each['reason']})"
        if each["kind"] != DocumentType.SOLUTION:
            word = "read" if each["usable"] else f"read, but {each['reason']}"
        text = f"{each['kind']} {each['name']}: {word}"
        console.print(safe(f"{text}. {each['detail']}".rstrip(". "), limit=1000), soft_wrap=True)
    if len(found) > _MOST_SHOWN:
        console.print(f"and {len(found) - _MOST_SHOWN} more")


def export_kernel(
    name: str,
    *,
    out: Path | None,
    solution: Sequence[Path],
    config: Path | None,
    definition_files: Sequence[Path],
    force: bool,
    json: bool,
) -> None:
    """Do what `commands.export` describes.

    Raises
    ------
    NotExportable
        If the format cannot hold the definition or a named solution.
    UsageError
        If a file exists and `force` is not set, or cannot be written.
    """
    learn(config, definition_files)
    known = named(name)
    definition = catalog.get(known).definition
    body = export_definition(definition)
    solutions: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = []
    for each in _solutions(known, solution):
        try:
            solutions.append(export_solution(each, definition))
        except NotExportable as error:
            if solution:
                raise
            skipped.append({"name": each.name, "reason": str(error)})
    for left in skipped:
        say(f"left out: {left['reason']}")
    if out is not None:
        files = {f"definitions/{definition.op_type}/{definition.name}.json": body}
        for each_body in solutions:
            path = f"solutions/{definition.op_type}/{definition.name}/{each_body['name']}.json"
            files[path] = each_body
        _write_folder(out, files, force=force)
        say(f"{len(files)} files are in {out}")
    if json or out is None:
        emit_json({"definition": body, "solutions": solutions, "skipped": skipped})


def _imported(body: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = kind_of(body, where=where)
    if kind is DocumentType.DEFINITION:
        found = import_definition(body, where=where)
        dropped = f"left out: {', '.join(found.dropped)}" if found.dropped else ""
        return {
            "kind": kind,
            "name": found.definition.name,
            "usable": not found.reference_problem,
            "reason": "reference-not-runnable" if found.reference_problem else "",
            "detail": found.reference_problem or dropped,
            "record": found.definition.model_dump(mode="json"),
        }
    if kind is DocumentType.SOLUTION:
        read = import_solution(body, where=where)
        record = read.solution.model_dump(mode="json") if read.solution is not None else None
        return {
            "kind": kind,
            "name": read.name,
            "usable": read.solution is not None,
            "reason": read.reason,
            "detail": read.detail,
            "record": record,
        }
    outcome = import_trace(body, where=where)
    trace = outcome.trace
    return {
        "kind": kind,
        "name": f"{trace.solution or 'workload'} on {trace.definition}",
        "usable": True,
        "reason": "",
        "detail": f"left out: {', '.join(outcome.dropped)}" if outcome.dropped else "",
        "record": trace.model_dump(mode="json"),
    }


def _solutions(name: str, files: Sequence[Path]) -> Iterator[Solution]:
    for path in files:
        yield read_candidate(path, definition=name)[0]
    if not files:
        for language in catalog.languages(name):
            entry: KernelEntry = catalog.get(name, language=language)
            yield entry.incumbent


def _write_folder(folder: Path, files: Mapping[str, Any], *, force: bool) -> None:
    """Write JSON files below a folder; names come from records, whose names hold no separators.

    Each file is written whole or not at all. `force` replaces existing files.

    Raises
    ------
    UsageError
        If a file is there already, before any is written, or one cannot be written.
    """
    there = [name for name in files if os.path.lexists(folder / name)]
    if there and not force:
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        raise UsageError(
            f"{folder / there[0]}{more}: is already there; name another folder, or say --force"
        )
    for name, body in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_file(path, json_module.dumps(body, indent=2) + "\n", force=force)
        except FileExistsError as error:
            raise UsageError(f"{path}: came to be there meanwhile; it is left") from error
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be written: {error.strerror}; name another folder with --out"
            ) from error


def _write_file(path: Path, text: str, *, force: bool) -> None:
    """Write beside, then put in place: by renaming, or by a link, which replaces nothing."""
    beside = path.with_name(f".retuned-{secrets.token_hex(8)}")
    try:
        with beside.open("xb") as stream:
            stream.write(text.encode())
            stream.flush()
            os.fsync(stream.fileno())
        if force:
            os.replace(beside, path)
        else:
            os.link(beside, path)
    finally:
        beside.unlink(missing_ok=True)
