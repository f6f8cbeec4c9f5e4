"""The survey for the terminal, as rich renderables."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from retuned import text as words
from retuned.report.profiles import Json, named, records, section
from retuned.report.survey_records import REMARKS, ROOF_REASONS
from retuned.report.text import add_row, heading, more, new_table


def gain_words(row: Json) -> str:
    """Return the gain of a row or key with its range and where it comes from."""
    gain = section(row, "gain")
    if not gain or gain.get("source") == "none":
        return words.NOTHING
    low, high = words.significant(gain.get("low")), words.significant(gain.get("high"))
    return f"{_span(low, high)}{words.TIMES} ({words.label(gain.get('source'))})"


def roof_words(row: Json) -> str:
    """Return which part of its time physics needs, as a range, or the code why it is unknown."""
    roof = section(row, "roof")
    if not roof or roof.get("reason"):
        return words.label(roof.get("reason"))
    return _span(words.share(roof.get("low")), words.share(roof.get("high")))


def allowed_words(row: Json) -> str:
    """Return the time of one launch that physics allows, as a range."""
    roof = section(row, "roof")
    return _span(words.micros(roof.get("low_us")), words.micros(roof.get("high_us")))


def roof_reasons(rows: list[Json]) -> dict[str, str]:
    """Return the codes why some tunables or keys have no distance to the roof, with meanings."""
    every = [*rows, *(key for row in rows for key in records(row, "asked"))]
    codes = {str(section(each, "roof").get("reason") or "") for each in every}
    return {code: meaning for code, meaning in ROOF_REASONS.items() if code in codes}


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def resolved_words(row: Json) -> str:
    """Return how configurations were chosen, most launches first."""
    parts = (f"{words.count(n)} {words.label(how)}" for how, n in section(row, "resolved").items())
    return ", ".join(parts) or words.NOTHING


def ways_words(row: Json) -> str:
    """Return the ways of change, each with the code that keeps it shut."""
    parts = []
    for way in records(row, "ways"):
        state = words.label(way.get("state"))
        seconds = way.get("cost_s")
        cost = f" {words.seconds(seconds)}" if words.finite(seconds) is not None else ""
        parts.append(f"{words.label(way.get('way'))}{cost if state == 'on' else f': {state}'}")
    refused = words.label(row.get("refused")) if row.get("refused") else ""
    return ", ".join([*parts, *([f"refused: {refused}"] if refused else [])]) or words.NOTHING


def axes_words(key: Json) -> str:
    """Return a key's axes, or its shape in a trace."""
    axes = section(key, "axes")
    return words.label(axes) if axes else words.label(key.get("shape"))


def difference_lines(row: Json) -> list[str]:
    """Return one line for each key that processes or starts resolved differently."""
    return [
        f"{words.label(each.get('axes'))}: {words.label(each.get('configs'))}"
        for each in records(row, "differences")
    ]


def adapter_lines(data: Json) -> list[str]:
    """Return one line for each part of the runtime that does not work, and for failures."""
    lines = []
    for each in records(data, "adapters"):
        process, part = words.label(each.get("process")), words.label(each.get("part"))
        if each.get("state") != "on":
            lines.append(f"process {process}: {part} off ({words.label(each.get('state'))})")
        failures = words.finite(each.get("failures"))
        if failures:
            count = words.plural(failures, "launch")
            lines.append(
                f"process {process}: code of Retuned failed at {count}; the server's own ran"
            )
    return lines[:64]


def table_counts(data: Json) -> list[tuple[str, int, int]]:
    """Return code, tables and rows of findings, most tables first."""
    tables: dict[str, int] = {}
    rows: dict[str, int] = {}
    for table in records(data, "tables"):
        found = records(table, "findings")
        for code in {str(each.get("code")) for each in found}:
            tables[code] = tables.get(code, 0) + 1
        for each in found:
            code = str(each.get("code"))
            rows[code] = rows.get(code, 0) + len(each.get("rows") or ())
    return sorted(
        ((code, count, rows.get(code, 0)) for code, count in tables.items()),
        key=lambda each: (-each[1], each[0]),
    )


def survey_text(data: Json, *, top: int = 20) -> list[RenderableType]:
    """Return tunables, families that cannot be changed, features, tables and the conclusion.

    Parameters
    ----------
    data
        JSON object of ``retuned survey``.
    top
        Most rows of each list.
    """
    found: list[RenderableType] = []
    rows = records(data, "tunables")
    if rows:
        found += [heading("Tunables"), _tunables(rows[:top]), *more(len(rows) - top, "tunable")]
        found += _keys(rows[:top])
        found += _roofs(rows[:top], card=words.label(data.get("card") or "unknown card"))
        codes = sorted({str(code) for row in rows for code in row.get("remarks") or ()})
        found += [Text(f"{code}: {REMARKS.get(code, code)}", style="dim") for code in codes]
    fixed = records(data, "fixed")
    if fixed:
        found += [heading("Not changeable in the running server"), _fixed(fixed[:top])]
        found += more(len(fixed) - top, "family")
    found += [Text(line) for line in adapter_lines(data)]
    features = records(data, "features")
    if features:
        found += [heading("Features that concern tuning"), _features(features)]
    if records(data, "tables"):
        found += _tables(data, top=top)
    sentence = words.label(section(data, "conclusion").get("sentence"))
    return [*found, heading(sentence)]


def _tunables(rows: list[Json]) -> Table:
    table = new_table(
        "Kernel", "Family", ">Share", "Resolved", "Expected", ">Saving", "Ways", "Remarks"
    )
    names = words.kernels((named(row) for row in rows), 48)
    for row in rows:
        add_row(
            table,
            names[named(row)],
            words.label(row.get("family")),
            words.share(row.get("share")),
            resolved_words(row),
            gain_words(row),
            words.share(row.get("saving")),
            ways_words(row),
            ", ".join(
                [*(f"table {t}" for t in [row.get("table")] if t), *(row.get("remarks") or ())]
            )
            or words.NOTHING,
        )
    return table


def _keys(rows: list[Json]) -> list[RenderableType]:
    keys = [(row, key) for row in rows for key in records(row, "asked")[:8]]
    if not keys:
        return []
    table = new_table(
        "Kernel", "Key", ">Launches", ">Captured", ">Part", "Resolved", "Configuration", "Expected"
    )
    for row, key in keys:
        detail = f" ({words.label(key.get('detail'))})" if key.get("detail") else ""
        add_row(
            table,
            words.kernel(named(row), 40),
            words.short(axes_words(key), 60),
            words.count(key.get("launches")),
            words.count(key.get("captured")),
            words.share(key.get("weight")),
            f"{words.label(key.get('how'))}{detail}",
            words.short(key.get("config") or words.NOTHING, 80),
            gain_words(key),
        )
    return [heading("Keys that occurred in traffic"), table]


def _roofs(rows: list[Json], *, card: str) -> list[RenderableType]:
    """Return the distance to the roof of each tunable, and of its keys where there is one."""
    table = new_table("Kernel", "Key", ">Measured", ">Physics allows", ">Roof", "Remarks")
    for row in rows:
        name = words.kernel(named(row), 32)
        keys = [
            k for k in records(row, "asked")[:8] if section(k, "roof").get("low_us") is not None
        ]
        if len(keys) != 1:
            note = words.label(section(row, "roof").get("note") or words.NOTHING)
            add_row(table, name, "all timed keys", *2 * [words.NOTHING], roof_words(row), note)
        for key in keys:
            notes = [words.label(code) for code in key.get("remarks") or ()]
            sampled = section(key, "roof").get("sampled")
            if sampled is not None:
                notes.insert(0, f"sampled {words.share(sampled)}")
            add_row(
                table,
                name,
                words.short(axes_words(key), 60),
                words.micros(section(key, "roof").get("each_us")),
                allowed_words(key),
                roof_words(key),
                ", ".join(notes) or words.NOTHING,
            )
    meanings = [
        Text(f"{code}: {meaning}", style="dim") for code, meaning in roof_reasons(rows).items()
    ]
    return [heading(f"Distance to the roof ({card}; 100 % is at the roof)"), table, *meanings]


def _fixed(rows: list[Json]) -> Table:
    table = new_table("Family", ">Share", ">Kernels", "Largest", "Reason", "Expected")
    for row in rows:
        add_row(
            table,
            words.label(row.get("title")),
            words.share(row.get("share")),
            words.count(row.get("kernels")),
            words.kernel(named(row, "largest"), 40),
            f"{words.label(row.get('why'))} [{words.label(row.get('reason'))}]",
            gain_words(row),
        )
    return table


def _features(rows: list[Json]) -> Table:
    table = new_table("=Code", "=State", "Evidence", "Effect")
    for row in rows:
        keys = ("code", "state", "evidence", "effect")
        add_row(table, *(words.label(row.get(key)) for key in keys))
    return table


def _tables(data: Json, *, top: int) -> list[RenderableType]:
    tables = records(data, "tables")
    counts = new_table("=Finding", ">Tables", ">Rows")
    for code, number, rows in table_counts(data):
        add_row(counts, code, words.count(number), words.count(rows))
    faulty = [table for table in tables if records(table, "findings")]
    listed = new_table("Table", ">Rows", "Triton", "Findings")
    for table in sorted(faulty, key=lambda t: -len(records(t, "findings")))[:top]:
        add_row(
            listed,
            words.short(table.get("name"), 100),
            words.count(table.get("rows")),
            words.label(table.get("version")),
            "; ".join(finding_words(each) for each in records(table, "findings")[:6]),
        )
    return [
        heading(f"{words.plural(len(tables), 'table')}, {len(faulty)} with findings"),
        *([counts, listed] if faulty else []),
        *more(len(faulty) - top, "table"),
    ]


def finding_words(finding: Json) -> str:
    """Return one finding: its code, its rows and the values."""
    rows = finding.get("rows") or ()
    at = f" {words.short(', '.join(str(row) for row in rows), 60)}" if rows else ""
    return f"{words.label(finding.get('code'))}{at}: {words.short(finding.get('detail'), 80)}"
