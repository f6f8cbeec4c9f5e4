"""``retuned analyze`` and ``retuned diff``: recorded traces to a profile or a drift report.

Files given twice: the same content would count twice as traffic.

``retuned rocprof-command``: how to start a server under rocprofv3, recorded in periods.
"""

from __future__ import annotations

import hashlib
import stat
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import typer

from retuned.cli.output import (
    JsonFlag,
    check_writable,
    emit_json,
    error_body,
    say,
    stdout,
    write_page,
)
from retuned.errors import UnreadableInput
from retuned.files import open_plain
from retuned.stages.drift import OneSided, alike, compare
from retuned.stages.profile import ProfileBuilder, SignatureStat, WorkloadProfile, merge
from retuned.stages.trace import CapturedLaunch, ShapeSource, align_capture
from retuned.text import plural, share
from retuned.traces import ReadLimits, TraceStream, open_trace, read_capture, read_trace
from retuned.traces.rocprof_command import SCRATCH, Periods, Table, line, rocprof_command


class DuplicateFiles:
    """Remembers files and finds the earlier one with the same content.

    Content is read only where two files have one size. Pipes and devices are never duplicates.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, list[Path]] = {}
        self._digests: dict[Path, bytes] = {}

    def earlier(self, path: Path) -> Path | None:
        """Return the earliest remembered file of this content; None without one."""
        size = _size_bytes(path)
        if size is None:
            return None
        for other in self._sizes.get(size, ()):
            try:
                if self._digest(other) == self._digest(path):
                    return other
            except OSError:  # it says so itself when it is read
                return None
        return None

    def remember(self, path: Path) -> None:
        """Keep a file that was read."""
        size = _size_bytes(path)
        if size is not None:
            self._sizes.setdefault(size, []).append(path)

    def _digest(self, path: Path) -> bytes:
        if path not in self._digests:
            with open_plain(path) as file:
                self._digests[path] = hashlib.file_digest(file, "sha256").digest()
        return self._digests[path]


def _size_bytes(path: Path) -> int | None:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


_KERNELS_MAX = 100_000
_ALIGNED_MAX = 1_000_000
_Body = dict[str, Any]

Html = Annotated[
    Path | None, typer.Option("--html", help="Write a self-contained page here.", dir_okay=False)
]


def analyze(
    files: Annotated[list[Path], typer.Argument(help="Traces of any profiler.")],
    *,
    as_json: JsonFlag = False,
    html: Html = None,
    capture: Annotated[
        Path | None,
        typer.Option(help="Trace of the graph's capture: gives replayed kernels their shapes."),
    ] = None,
    top: Annotated[int, typer.Option(help="Kernels and signatures to list.", min=1)] = 20,
) -> None:
    """Show where the kernel time of recorded traces goes, by kernel and shape.

    Exit code 3 if a file could not be read; the others are reported all the same. Files of the
    same content are counted once.
    """
    if html:
        check_writable(html)
    limits = ReadLimits()
    captured = read_capture(capture, limits=limits) if capture else ()
    entries, profiles = _all_analyzed(files, captured, limits)
    body = {"files": entries, "profile": profile_body(merge(profiles) if profiles else _EMPTY)}
    if not profiles:  # nothing at all could be read
        body["error"] = entries[0]["error"]
    if html:
        from retuned.report.pages import analyze_page

        write_page(html, analyze_page(body))
    if as_json:
        emit_json(body)
    elif profiles:  # else the errors below are all there is to say
        from retuned.report.text import analyze_text

        stdout().print(*analyze_text(body, top=top), sep="\n")
    for entry in entries:
        if entry["error"]:
            error = entry["error"]
            say(f"retuned: {error['where']}: {error['message']} [{error['code']}]")
        if "same_as" in entry:
            say(f"retuned: {entry['path']}: the same content as {entry['same_as']}; counted once")
    if any(entry["error"] for entry in entries):
        raise typer.Exit(UnreadableInput.exit_code)


def diff(
    before: Annotated[Path, typer.Argument(help="Trace of the workload that was tuned for.")],
    after: Annotated[Path, typer.Argument(help="Trace of the workload now.")],
    *,
    as_json: JsonFlag = False,
    html: Html = None,
    fail_on_drift: Annotated[
        bool, typer.Option("--fail-on-drift", help="Exit with 1 if the workload drifted.")
    ] = False,
) -> None:
    """Report whether and how the workload of one trace differs from another's.

    Kernels whose shapes only one of the traces knows are compared by name alone, and a warning
    reports it: compare traces that were recorded in the same way.
    """
    if html:
        check_writable(html)
    limits = ReadLimits()
    old, new, lacking = alike(*(_read_profile(path, limits) for path in (before, after)))
    report = compare(old, new)
    warnings = [one_sided(lacking, before, after)] if lacking else []
    body = {"drift": report.model_dump(mode="json"), "warnings": warnings}
    page = body | {
        "before": profile_body(old),
        "after": profile_body(new),
        "names": [str(before), str(after)],
    }
    if html:
        from retuned.report.pages import diff_page

        write_page(html, diff_page(page))
    if as_json:
        emit_json(body)
    else:
        from retuned.report.text import diff_text

        stdout().print(*diff_text(page), sep="\n")
    if fail_on_drift and report.detected:
        raise typer.Exit(1)


def one_sided(lacking: OneSided, before: Path, after: Path) -> _Body:
    """Return the warning about shapes that only one of two traces knows."""
    without, having = (before, after) if lacking.missing_before else (after, before)
    return {
        "code": "shapes-on-one-side",
        "message": f"{without} does not say at which shapes {plural(lacking.kernels, 'kernel')} "
        f"with {share(lacking.share)} of kernel time ran, {having} does (launches replayed from a "
        "captured graph have no shapes, those made one by one have). They are compared by name "
        "alone, so a change of their shapes does not show; compare two traces recorded alike",
    }


def profile_body(profile: WorkloadProfile) -> _Body:
    """Return a profile as the commands print it."""
    total_ns = profile.gpu_time_ns
    return {
        "launches": profile.launches,
        "gpu_time_ns": total_ns,
        "signatures": [_signature(stat, total_ns) for stat in profile.stats],
    }


def _signature(stat: SignatureStat, total_ns: int) -> _Body:
    key = stat.signature
    return {
        "kernel": key.kernel,
        "launches": stat.launches,
        "gpu_time_ns": stat.gpu_time_ns,
        "share": stat.gpu_time_ns / total_ns if total_ns else 0.0,
        "median_ns": stat.median_ns,
        "blocks": list(key.blocks),
        "threads": list(key.threads),
        "dims": [list(shape) for shape in key.dims],
        "dtypes": list(key.dtypes),
        "layout": key.layout,
        "mode": key.mode,
        "shape_source": str(stat.shape_source),
        "shape_confidence": stat.shape_confidence,
    }


def analyzed_files(files: Sequence[Path], limits: ReadLimits) -> tuple[list[_Body], _Body]:
    """Return an entry for each file, and the profile of those that could be read."""
    entries, profiles = _all_analyzed(files, (), limits)
    return entries, profile_body(merge(profiles) if profiles else _EMPTY)


def _all_analyzed(
    files: Sequence[Path], captured: Sequence[CapturedLaunch], limits: ReadLimits
) -> tuple[list[_Body], list[WorkloadProfile]]:
    """Return an entry for each file, and the profiles of those that count."""
    entries: list[_Body] = []
    profiles: list[WorkloadProfile] = []
    twins = DuplicateFiles()
    for path in files:
        twin = twins.earlier(path)
        if twin is not None:
            entries.append(_entry(path) | {"same_as": str(twin)})
            continue
        entry, profile = _analyzed(path, captured, limits)
        entries.append(entry)
        if profile is not None:
            profiles.append(profile)
            twins.remember(path)
    return entries, profiles


def _entry(path: Path) -> _Body:
    return {
        "path": str(path),
        "format": None,
        "launches": 0,
        "kernels": 0,
        "span_ns": 0,
        "skipped": {},
        "error": None,
    }


def _analyzed(
    path: Path, captured: Sequence[CapturedLaunch], limits: ReadLimits
) -> tuple[_Body, WorkloadProfile | None]:
    """Return a file's entry, and its profile unless it could not be read to its end."""
    entry = _entry(path)
    try:
        if captured:
            profile, facts = _aligned(path, captured, limits)
        else:
            with open_trace(path, limits=limits) as stream:
                entry["format"] = stream.format
                profile, facts = _folded(stream)
    except UnreadableInput as error:
        entry["error"] = error_body(error)
        return entry, None
    return entry | facts, profile


def _folded(stream: TraceStream) -> tuple[WorkloadProfile, _Body]:
    """Fold a stream block by block, so that memory does not grow with the file."""
    folder = ProfileBuilder()
    kernels: set[str] = set()
    for block in stream.blocks():
        if len(kernels) < _KERNELS_MAX:
            kernels |= block.kernels()
        for launch in block.records():
            folder.add(launch)
    profile = _profile(folder, stream.span_ns)
    return profile, {
        "format": stream.format,
        "launches": stream.launches,
        "kernels": len(kernels),
        "span_ns": stream.span_ns,
        "skipped": {str(reason): count for reason, count in sorted(stream.skipped.items())},
    }


def _aligned(
    path: Path, captured: Sequence[CapturedLaunch], limits: ReadLimits
) -> tuple[WorkloadProfile, _Body]:
    batch = read_trace(path, max_launches=_ALIGNED_MAX, limits=limits)
    launches = align_capture(captured, batch.launches)
    folder = ProfileBuilder()
    for launch in launches:
        folder.add(launch)
    return _profile(folder, batch.span_ns), {
        "format": batch.format,
        "launches": len(launches),
        "kernels": len({launch.kernel for launch in launches}),
        "span_ns": batch.span_ns,
        "skipped": dict(batch.skipped),
        "aligned": sum(launch.shape_source is ShapeSource.CAPTURE for launch in launches),
    }


def _profile(folder: ProfileBuilder, span_ns: int) -> WorkloadProfile:
    return folder.profile(window_start_ns=0, window_ns=span_ns, observed_ns=span_ns)


_EMPTY = _profile(ProfileBuilder(), 0)


def _read_profile(path: Path, limits: ReadLimits) -> WorkloadProfile:
    with open_trace(path, limits=limits) as stream:
        return _folded(stream)[0]


_USUAL = Periods()


def command(
    server: Annotated[
        list[str] | None, typer.Argument(help="The server's command, after --.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Folder that is watched for traces.")] = Path(
        "/retuned/traces"
    ),
    every: Annotated[
        float, typer.Option(help="Seconds from one period to the next.")
    ] = _USUAL.every_s,
    length: Annotated[float, typer.Option(help="Seconds that a period records.")] = _USUAL.length_s,
    hours: Annotated[float, typer.Option(help="For how long periods are repeated.")] = _USUAL.for_s
    / 3600.0,
    table: Annotated[
        Table, typer.Option("--format", help="What rocprofv3 writes; rocpd needs ROCm 7.0.")
    ] = Table.CSV,
    scratch: Annotated[
        Path, typer.Option(help="Folder of records until the server ends; not the watched one.")
    ] = Path(SCRATCH),
    as_json: JsonFlag = False,
) -> None:
    """Print the command that starts a server under rocprofv3, recorded in short periods.

    It runs nothing. It is for servers on AMD GPUs whose own runtime takes no profiler windows. The
    traces come when the server ends: rocprofv3 writes none before. Needs ROCm 6.4 or newer.
    """
    periods = Periods(every_s=every, length_s=length, for_s=hours * 3600.0)
    words = rocprof_command(
        server or [],
        PurePosixPath(folder),
        periods=periods,
        table=table,
        scratch=PurePosixPath(scratch),
    )
    if table is Table.ROCPD:
        say("retuned: a rocpd database holds the server's whole environment, secrets included")
    if as_json:
        emit_json({"command": words, "line": line(words)})
    else:
        sys.stdout.write(line(words) + "\n")
