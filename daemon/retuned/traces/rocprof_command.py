"""The command line by which rocprofv3 records a server in periods. Pure: nothing is run.

Option names are those of ROCm 6.4 and newer; the short ones have changed between versions, so only
long ones are written. rocprofv3 writes its tables when the server ends, whatever the periods are:
they bound what recording costs and how much lies on disk until then.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from retuned.errors import UsageError

SCRATCH = PurePosixPath("/tmp")
"""Default folder of records until the server ends."""
MAX_REPEATS = 1_000_000
"""Periods of one run of a server at most."""
_LONGEST_S = 86_400.0
_FILE = "rocprof-%hostname%-%pid%"
"""Processes of a server would write over each other's files without their numbers."""


class Table(StrEnum):
    """What rocprofv3 writes; all of it can be read."""

    CSV = "csv"
    JSON = "json"
    ROCPD = "rocpd"
    """From ROCm 7.0 on. The database holds the server's whole environment, secrets included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Periods:
    """When rocprofv3 records."""

    every_s: float = 90.0
    """From the start of one period to the start of the next, seconds."""
    length_s: float = 0.5
    """Of a period, seconds."""
    for_s: float = 6 * 3600.0
    """How long periods are repeated, seconds: records lie on disk until the server ends."""

    def __post_init__(self) -> None:
        if not 0.001 <= self.length_s <= self.every_s / 2.0:
            raise UsageError("a period is at least 1 ms long, and at most half of the time between")
        if not self.every_s <= self.for_s or self.every_s > _LONGEST_S:
            raise UsageError("periods come at most a day apart, and the first fits into the whole")
        if self.for_s > self.every_s * MAX_REPEATS:
            raise UsageError(f"more than {MAX_REPEATS} periods: make them rarer, or the whole less")

    @property
    def repeats(self) -> int:
        """How many periods there are; never 0, which rocprofv3 takes for one."""
        return max(1, int(self.for_s / self.every_s))


def rocprof_command(
    server: Sequence[str],
    folder: PurePosixPath,
    *,
    periods: Periods,
    table: Table = Table.CSV,
    scratch: PurePosixPath = SCRATCH,
) -> list[str]:
    """Return the words of the command that starts a server under rocprofv3.

    Parameters
    ----------
    server
        The server's own command.
    folder
        Where tables go: one that is watched.
    periods
        When it records.
    table
        What it writes.
    scratch
        Folder of records until the server ends; not in a watched folder, whose unreadable files
        are cleared away.

    Raises
    ------
    UsageError
        If the command is empty, a folder is not absolute, or `scratch` is inside of `folder`.

    Examples
    --------
    >>> from pathlib import PurePosixPath
    >>> words = rocprof_command(["serve"], PurePosixPath("/traces"), periods=Periods())
    >>> words[words.index("--collection-period") + 1], words[-2:]
    ('89500:500:240', ['--', 'serve'])
    """
    if not server or not server[0]:
        raise UsageError("name the server's command after `--`")
    for each in (folder, scratch):
        if not each.is_absolute() or ".." in each.parts or "%" in str(each):
            raise UsageError(f"{each} must be an absolute path without '..' and '%'")
    if scratch == folder or folder in scratch.parents:
        raise UsageError(f"{scratch} is watched with {folder}: Retuned would read unfinished files")
    length_ms = round(periods.length_s * 1e3)
    delay_ms = max(1, round(periods.every_s * 1e3) - length_ms)
    return [
        "env",
        f"ROCPROF_TMPDIR={scratch}",
        "rocprofv3",
        "--kernel-trace",
        "--collection-period",
        f"{delay_ms}:{length_ms}:{periods.repeats}",
        "--collection-period-unit",
        "msec",
        "--output-format",
        str(table),
        "--output-directory",
        str(folder),
        "--output-file",
        _FILE,
        "--",
        *server,
    ]


def line(words: Sequence[str]) -> str:
    """Return a command as a line for a shell.

    Examples
    --------
    >>> line(["serve", "a model"])
    "serve 'a model'"
    """
    return shlex.join(words)
