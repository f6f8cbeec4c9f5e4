"""``retuned rocprof-command``: how to start a server under rocprofv3, recorded in periods."""

from __future__ import annotations

import sys
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from retuned.adapters.rocprof_command import SCRATCH, Periods, Table, line, rocprof_command
from retuned.cli.output import JsonFlag, emit_json, say

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
        Path, typer.Option(help="Where records lie until the server ends; not in the folder.")
    ] = Path(SCRATCH),
    as_json: JsonFlag = False,
) -> None:
    """Print the command that starts a server under rocprofv3, recorded in short periods.

    Nothing is run. For servers on AMD GPUs whose runtime takes no profiler windows of its own. The
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
