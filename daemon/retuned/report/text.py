"""Reports for the terminal, as rich renderables. Names are `Text`, never markup."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from retuned import text as words
from retuned.report import profiles
from retuned.report.profiles import Json, amount, named, records, section
from retuned.report.story_text import demo_text

__all__ = ["add_row", "analyze_text", "demo_text", "diff_text", "heading", "more", "new_table"]


def new_table(*columns: str, title: str = "") -> Table:
    """Return an empty table.

    A column whose name starts with ``>`` is right-aligned; neither that nor one that starts with
    ``=`` is ever broken: half a number reads as another one.
    """
    made = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=Text(title) if title else None,
        title_justify="left",
        header_style="bold",
    )
    for column in columns:
        right, whole = column.startswith(">"), column.startswith((">", "="))
        made.add_column(
            Text(column.removeprefix(">").removeprefix("=")),
            justify="right" if right else "left",
            no_wrap=whole,
            overflow="ellipsis" if whole else "fold",
        )
    return made


def add_row(table: Table, *cells: str) -> None:
    """Add cells as data, never as markup."""
    table.add_row(*(Text(words.clean(cell)) for cell in cells))


def heading(text: str) -> Text:
    """Return a line that stands out."""
    return Text(text, style="bold")


def more(hidden: int, noun: str) -> list[RenderableType]:
    """Return how many rows are not listed; nothing if all are."""
    return [Text(f"and {words.plural(hidden, f'more {noun}')}", style="dim")] if hidden > 0 else []


def analyze_text(data: Json, *, top: int = 20) -> list[RenderableType]:
    """Return files, share of kernel time by kernel and the largest signatures.

    Parameters
    ----------
    data
        JSON object of ``retuned analyze``.
    top
        Most kernels and most signatures to list.
    """
    profile = section(data, "profile")
    kernels = profiles.by_kernel(profile)
    rows = sorted(records(profile, "signatures"), key=lambda s: -amount(s, "gpu_time_ns"))
    shares = new_table("Kernel", ">Share", ">Cumulative", ">Kernel time", ">Launches")
    names = words.kernels((k.kernel for k in kernels[:top]), 72)
    for k in kernels[:top]:
        add_row(
            shares,
            names[k.kernel],
            words.share(k.share),
            words.share(k.cumulative),
            words.duration(k.gpu_time_ns),
            words.count(k.launches),
        )
    return [
        _files(data),
        heading(profiles.profile_sentence(kernels)),
        *([shares] if kernels else []),
        *more(len(kernels) - top, "kernel"),
        *([_signatures(rows[:top])] if rows else []),
        *more(len(rows) - top, "signature"),
    ]


def _files(data: Json) -> Table:
    table = new_table("File", "Format", ">Launches", ">Kernels", ">Span", "Not counted")
    for entry in records(data, "files"):
        error = section(entry, "error")
        problem = f"not read: {words.label(error.get('code'))}"  # the whole of it is on stderr
        add_row(
            table,
            words.short(entry.get("path"), 80),
            words.label(entry.get("format")),
            words.count(entry.get("launches")),
            words.count(entry.get("kernels")),
            words.duration(entry.get("span_ns")),
            problem if error else profiles.skipped(entry.get("skipped")),
        )
    return table


def _signatures(rows: Sequence[Json]) -> Table:
    table = new_table("Kernel", "=Shape", "Types", "From", ">Sure", ">Launches", ">Each", ">Share")
    names = words.kernels((named(s) for s in rows), 48)
    for s in rows:
        add_row(
            table,
            names[named(s)],
            words.short(profiles.geometry(s) or words.NOTHING, 60),
            profiles.types(s),
            words.label(s.get("shape_source") or "none"),
            profiles.sure(s),
            words.count(s.get("launches")),
            profiles.mean_duration(s),
            words.share(s.get("share")),
        )
    return table


def diff_text(data: Json) -> list[RenderableType]:
    """Return the sentence, the reasons, and shares before and after.

    Parameters
    ----------
    data
        ``drift`` as ``retuned diff`` prints it; ``before`` and ``after`` where known.
    """
    drift = section(data, "drift")
    found: list[RenderableType] = [
        Text(f"warning: {words.label(warning.get('message'))}.")
        for warning in records(data, "warnings")
    ]
    found.append(heading(profiles.sentence(drift)))
    found.append(
        Text(f"distance {words.significant(drift.get('distance'))} (0 same mix, 1 disjoint)")
    )
    reasons = records(drift, "reasons")
    if reasons:
        table = new_table("Kernel", "Reason", ">Before", ">After", "In numbers")
        for r in reasons[:40]:
            add_row(
                table,
                profiles.about(r, limit=60),
                words.label(r.get("code")),
                words.share(r.get("share_before")) if r.get("kernel") else words.NOTHING,
                words.share(r.get("share_after")) if r.get("kernel") else words.NOTHING,
                words.label(r.get("detail")),
            )
        found += [table, *more(len(reasons) - 40, "reason")]
    before, after = section(data, "before"), section(data, "after")
    pairs = profiles.pairs(before, after, top=12)
    if pairs:
        table = new_table("Largest changes of share", ">Before", ">After")
        for p in pairs:
            add_row(table, p.label, words.share(p.before), words.share(p.after))
        found.append(table)
    for name, rows in (
        ("new", profiles.only_in(after, before)),
        ("gone", profiles.only_in(before, after)),
    ):
        if rows:
            took = words.share(sum(amount(s, "share") for s in rows))
            found.append(
                Text(f"{name}: {words.plural(len(rows), 'signature')}, {took} of kernel time")
            )
    return found
