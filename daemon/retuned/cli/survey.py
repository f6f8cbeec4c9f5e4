"""``retuned survey``: which configurations a server uses, and what a change could gain.

It reads reports, traces and tables, and runs no experiment.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from retuned.cli.analyze import analyzed_files
from retuned.cli.output import (
    JsonFlag,
    check_writable,
    emit_json,
    say,
    stdout,
    write_page,
)
from retuned.cli.session import ConfigOption
from retuned.errors import MissingDependency, RetunedError, UnreadableInput, UsageError
from retuned.files import read_plain
from retuned.report.profiles import Json, amount, records, section
from retuned.report.survey import PastResult, survey_of
from retuned.report.survey_files import MOST_BYTES, SurveyedTable, is_table, survey_table
from retuned.report.tunable_families import family_of
from retuned.runtime_client.processes import RuntimeProcesses
from retuned.settings import load_settings
from retuned.store.sqlite import DATABASE, SqliteStore
from retuned.traces import ReadLimits
from retuned.traces.source import ByteSource

_TIMEOUT_S = 10.0
_DEPTH = 3
"""Folders below a folder that are read."""
_ENTRIES, _TRACES, _TABLES = 20_000, 256, 4096
"""Most entries, traces and tables of a folder."""
_EXPERIMENTS = 1000
"""Most experiments of a state folder that are read."""
_SURVEY_BYTES = 32 << 20
_END_BYTES = 64 << 10
"""Beginning and end of a trace that are searched for its devices."""
_NO_TRACE = frozenset(("not-a-trace", "unknown-format"))
"""Codes of files that only lie beside traces."""


@dataclass(slots=True)
class _Found:
    """What the places hold."""

    sockets: list[Path] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)
    tables: list[Path] = field(default_factory=list)
    beside: set[str] = field(default_factory=set)
    """Files of folders; one that is not a trace is left out without an error."""


def survey(
    places: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Folders of control sockets, traces, folders of traces or of tuned files; by "
            "default the settings' socket folder. Given together, one explains the other."
        ),
    ] = None,
    *,
    as_json: JsonFlag = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write a self-contained page here.", dir_okay=False),
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--state", help="State folder with past experiments.")
    ] = None,
    before: Annotated[
        Path | None,
        typer.Option(
            help="JSON of an earlier survey: shows what another start chose.", dir_okay=False
        ),
    ] = None,
    triton: Annotated[
        str, typer.Option(help="Triton version of the server, for tables without a server.")
    ] = "",
    top: Annotated[int, typer.Option(help="Rows of each list.", min=1)] = 20,
    config: ConfigOption = None,
) -> None:
    """Show every configuration that a server uses, its share of time, and what a change could gain.

    Nothing is changed and no experiment is run. Gains without an experiment of this installation
    are priors from measurements on an H200. Exit code 3 if a trace or table could not be read; the
    others are reported all the same.
    """
    if html:
        check_writable(html)
    found = _sorted_places(places or [load_settings(config, {}).sockets])
    reports, unanswered = _reports(found.sockets)
    entries, profile = _profile(found)
    environment = section(next(iter(reports.values()), {}), "environment")
    version = triton or str(section(environment, "versions").get("triton") or "")
    asked = asked_sizes(reports, profile)
    tables, unread = _tables(found.tables, triton=version, asked=asked)
    result = survey_of(
        reports=reports,
        profile=profile,
        tables=tables,
        past=past_results(state) if state else None,
        before=_earlier(before) if before else None,
        card=card_of_traces(Path(each["path"]) for each in entries if not each["error"]),
    )
    body = {
        **result.model_dump(mode="json"),
        "files": entries,
        "unread": unread,
        "unanswered": unanswered,
    }
    if html:
        from retuned.report.pages import survey_page

        write_page(html, survey_page(body))
    if as_json:
        emit_json(body)
    else:
        from retuned.report.survey_text import survey_text

        stdout().print(*survey_text(body, top=top), sep="\n")
    _end(body)


def _end(body: Json) -> None:
    """Write down what is missing; exit with 3 if a file could not be read."""
    for each in records(body, "unanswered"):
        say(f"retuned: {each['process']} is left out: {each['message']} [{each['code']}]")
    errors = [e["error"] for e in records(body, "files") if e.get("error")]
    errors += records(body, "unread")
    for error in errors:
        say(f"retuned: {error['where']}: {error['message']} [{error['code']}]")
    if errors:
        raise typer.Exit(UnreadableInput.exit_code)


# --- places ---------------------------------------------------------------------------------------


def _sorted_places(places: Sequence[Path]) -> _Found:
    """Sort what was named into sockets, traces and tables.

    Raises
    ------
    MissingDependency
        If a place does not exist, or a folder has nothing to survey.
    UsageError
        If there are too many files.
    """
    found = _Found()
    for place in places:
        if not place.exists():
            raise MissingDependency(f"{place}: no such file or folder")
        if place.is_socket():
            found.sockets.append(place)
        elif not place.is_dir():
            (found.tables if is_table(place.name) else found.traces).append(place)
        elif any(each.is_socket() for each in place.glob("*.sock")):
            found.sockets.append(place)
        else:
            _sort_folder(place, found)
    for paths, most, noun in ((found.traces, _TRACES, "traces"), (found.tables, _TABLES, "tables")):
        if len(paths) > most:
            raise UsageError(f"{len(paths)} {noun}; at most {most} are surveyed together")
    return found


def _sort_folder(place: Path, found: _Found) -> None:
    files = list(_files_below(place))
    if not files:
        raise MissingDependency(
            f"{place}: no server listens there, and it holds neither a trace nor a tuned file"
        )
    tables = [path for path in files if is_table(path.name)]
    found.tables += tables
    if not tables:  # a folder of tables has other JSON beside them
        found.traces += files
        found.beside |= {str(path) for path in files}


def _files_below(place: Path) -> Iterator[Path]:
    """Yield plain files, a few folders deep, in order of their names; links are not followed."""
    seen = 0
    for folder, below, names in os.walk(place):
        depth = len(Path(folder).relative_to(place).parts)
        below[:] = sorted(each for each in below if not each.startswith(".")) * (depth < _DEPTH)
        for name in sorted(names):
            seen += 1
            if seen > _ENTRIES:
                raise UsageError(f"{place} has more than {_ENTRIES} files; name a smaller folder")
            path = Path(folder, name)
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path


# --- reading --------------------------------------------------------------------------------------


def _reports(sockets: Sequence[Path]) -> tuple[dict[str, Json], list[dict[str, str]]]:
    """Return the answers of processes, and those that gave none.

    Raises
    ------
    RetunedError
        If a server was named and no process answers.
    """
    answers: dict[str, Json] = {}
    silent: list[RetunedError] = []
    for place in sockets:
        found, errors = RuntimeProcesses(place, timeout_s=_TIMEOUT_S).tell({"op": "tunables"})
        silent += errors
        for name, answer in found.items():
            process = name.removesuffix(".sock")
            answers[process if process not in answers else f"{place}/{process}"] = answer
    if sockets and not answers:
        raise silent[0]
    return answers, [
        {"process": error.where or "a process", "code": error.code, "message": str(error)}
        for error in silent
    ]


def _profile(found: _Found) -> tuple[list[dict[str, Any]], Json]:
    """Return an entry for each trace, and the profile of all."""
    if not found.traces:
        return [], {}
    entries, profile = analyzed_files(found.traces, ReadLimits())
    kept = [
        entry
        for entry in entries
        if entry["path"] not in found.beside
        or not entry["error"]
        or entry["error"]["code"] not in _NO_TRACE
    ]
    if not kept:
        raise MissingDependency(
            f"{found.traces[0].parent}: no server listens there, and it holds neither a trace "
            "nor a tuned file"
        )
    return kept, profile


def card_of_traces(paths: Iterable[Path]) -> str:
    """Return the name of the card that all traces name; empty if one names none or another."""
    names = {name for path in paths for name in _devices(path)}
    return names.pop() if len(names) == 1 else ""


def _devices(path: Path) -> set[str]:
    """Return the names of the devices of a PyTorch trace; an empty name if it names none.

    Kineto writes them before the events; tools that sort the keys write them after.
    """
    before, after = _ends(path)
    for part in (before.partition(b'"traceEvents"')[0], after):
        text = part.rpartition(b'"deviceProperties"')[2].decode("utf-8", "replace")
        try:
            devices, _ = json.JSONDecoder().raw_decode(text.lstrip(" \t\r\n:"))
        except (ValueError, RecursionError):
            continue
        found = {str(e.get("name") or "") for e in records({"devices": devices}, "devices")}
        if found:
            return found
    return {""}


def _ends(path: Path) -> tuple[bytes, bytes]:
    """Return the beginning and the end of a JSON file; nothing of other files."""
    source = ByteSource(path, limits=ReadLimits())
    try:
        start = end = source.read(_END_BYTES)
        if not start.lstrip().startswith(b"{"):
            return b"", b""
        if b'"deviceProperties"' in start.partition(b'"traceEvents"')[0]:
            return start, b""
        while more := source.read(_END_BYTES):
            end = (end + more)[-_END_BYTES:]
    except UnreadableInput:  # the reader of launches reports it
        return b"", b""
    finally:
        source.close()
    return start, end


def _tables(
    paths: Sequence[Path], *, triton: str, asked: Mapping[str, Sequence[int]]
) -> tuple[list[SurveyedTable], list[dict[str, Any]]]:
    """Return judged tables, and the errors of those that could not be read."""
    tables: list[SurveyedTable] = []
    unread: list[dict[str, Any]] = []
    for path in paths:
        try:
            data = read_plain(path, max_bytes=MOST_BYTES)
        except (OSError, ValueError) as error:
            unread.append({"code": "unreadable", "where": str(path), "message": str(error)})
            continue
        if data is None:
            message = f"more than {MOST_BYTES} bytes"
            unread.append({"code": "file-too-large", "where": str(path), "message": message})
            continue
        tables.append(
            survey_table(path.name, data, folder=path.parent.name, triton=triton, asked=asked)
        )
    return tables, unread


def asked_sizes(reports: Mapping[str, Json], profile: Json) -> dict[str, list[int]]:
    """Return the sizes that traffic asks tables for, by ``E,N``, and ``*`` for all families.

    A server's sampled steps have exact sizes; its counters only have ends of buckets.
    """
    found: dict[str, set[int]] = defaultdict(set)
    for answer in reports.values():
        steps = records(section(answer, "steps"), "recent")
        exact = {int(amount(step, "tokens")) for step in steps[:64]}
        found["*"] |= exact
        for report in records(answer, "tunables")[:1024]:
            if report.get("family") != "moe":
                continue
            geometry = section(report, "geometry")
            named = f"{geometry.get('E')},{geometry.get('N')}"[:40]
            asked = (section(a, "axes") for a in records(report, "asked")[:256])
            found[named] |= exact or {int(amount(axes, "tokens")) for axes in asked}
    found["*"] |= _traced_sizes(records(profile, "signatures"))
    return {name: sorted(sizes - {0}) for name, sizes in found.items() if sizes - {0}}


def _traced_sizes(signatures: Iterable[Json]) -> set[int]:
    """Return the rows of products that read tables, where a trace has shapes."""
    sizes = set()
    for each in signatures:
        dims = each.get("dims")
        if dims and dims[0] and family_of(str(each.get("kernel"))).name == "block-product":
            sizes.add(int(dims[0][0]))
    return sizes


def _earlier(path: Path) -> Json:
    """Read the JSON of an earlier survey.

    Raises
    ------
    UnreadableInput
        ``not-a-survey``
    """
    try:
        body = json.loads(read_plain(path, max_bytes=_SURVEY_BYTES) or b"")
    except (OSError, ValueError, RecursionError) as error:
        raise UnreadableInput("not-a-survey", where=str(path), message=str(error)) from None
    if not isinstance(body, dict) or body.get("schema_version") != 1:
        message = "not the JSON of `retuned survey --json`, schema version 1"
        raise UnreadableInput("not-a-survey", where=str(path), message=message)
    return body


def past_results(folder: Path) -> dict[str, PastResult]:
    """Return the best result of past experiments by tunable.

    Raises
    ------
    UnreadableInput
        ``no-state``
    """
    if not (folder / DATABASE).is_file():
        raise UnreadableInput(
            "no-state", where=str(folder), message="no state here; `retuned run` makes it"
        )
    store = SqliteStore(folder)
    found: dict[str, PastResult] = {}
    try:
        for stored in store.list("experiment", limit=_EXPERIMENTS):
            definition = str(stored.body.get("definition"))
            if not definition.startswith("tunable:"):
                continue
            for finding in store.list("finding", prefix=f"{stored.id}/"):
                result = _result(section(finding.body, "verdict"))
                before = found.get(definition)
                if before is None or not before.promoted or result.promoted:
                    found[definition] = result
    finally:
        store.close()
    return found


def _result(verdict: Json) -> PastResult:
    promoted = verdict.get("status") == "promote"
    speedup = section(verdict, "speedup") if promoted else {}
    return PastResult(
        promoted=promoted,
        low=amount(speedup, "lower") or 1.0,
        high=amount(speedup, "upper") or 1.0,
        expected=amount(speedup, "point") or 1.0,
        reason=str(verdict.get("reason") or "unknown"),
    )
