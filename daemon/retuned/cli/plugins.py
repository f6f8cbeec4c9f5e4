"""Plug-ins of the command line: what other distributions add through entry points.

The group ``retuned.commands`` holds functions that get the typer app and add commands to it; the
group ``retuned.trace_formats`` holds one `TraceFormat`. The extra ``retuned[bench]`` has both. If
no plug-in has added a command of that extra, the command reports that the extra is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from importlib.metadata import entry_points
from typing import Protocol, cast

import typer

from retuned.contract import Definition, Environment, Workload
from retuned.errors import MissingDependency
from retuned.ports import Finding
from retuned.text import say

_COMMANDS = "retuned.commands"
_TRACE_FORMATS = "retuned.trace_formats"
_INSTALL = "install retuned[bench]"
_OF_BENCH = ("bench", "dataset")
_OF_KERNELS = ("import", "export")
_ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}


class TraceFormat(Protocol):
    """Yields findings as lines of a file."""

    def __call__(
        self,
        findings: Iterable[Finding],
        workloads: Sequence[Workload],
        *,
        definition: Definition,
        environment: Environment,
        measured_at: datetime,
    ) -> Iterator[str]:
        """Yield one line per finding and shape that can be published."""
        ...


def add_commands(app: typer.Typer, *, kernels: typer.Typer) -> None:
    """Add the commands of all plug-ins, and a report for each missing one of ``retuned[bench]``."""
    for point in entry_points(group=_COMMANDS):
        try:
            add = point.load()
        except ImportError as error:
            say(f"plug-in not loaded: {point.value}: {error}")
            continue
        add(app)
    wanted = ((app, "retuned", _OF_BENCH), (kernels, "retuned kernels", _OF_KERNELS))
    for group, prefix, names in wanted:
        present = {each.name for each in group.registered_groups}
        present |= {each.name for each in group.registered_commands}
        for name in names:
            if name not in present:
                _add_report(group, name, command=f"{prefix} {name}")


def trace_format() -> TraceFormat:
    """Return the format in which measurements are published.

    Raises
    ------
    MissingDependency
        If no plug-in has one.
    """
    for point in entry_points(group=_TRACE_FORMATS):
        try:
            return cast(TraceFormat, point.load())
        except ImportError as error:
            raise MissingDependency(f"plug-in not loaded: {point.value}: {error}") from error
    raise MissingDependency(f"no format of traces is installed: {_INSTALL}")


def _add_report(group: typer.Typer, name: str, *, command: str) -> None:
    def report() -> None:
        raise MissingDependency(f"`{command}` is not installed: {_INSTALL}")

    add: Callable[[Callable[[], None]], object] = group.command(
        name,
        help=f"Not installed: {_INSTALL}.",
        context_settings=_ANY_ARGUMENTS,
        add_help_option=False,
    )
    add(report)
