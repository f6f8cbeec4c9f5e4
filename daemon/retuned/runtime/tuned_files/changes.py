"""Changes of tuned-config files, from an order or from a person's file, and the resulting files."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retuned.runtime.schema import Refused
from retuned.runtime.tuned_files.moe_json import Config, Rows, check_config, read_moe, write_moe
from retuned.runtime.tuned_files.rules import (
    GEMM_RULES,
    MOE_RULES,
    TOP,
    Chain,
    Guard,
    Run,
    gemm_chain,
    moe_chain,
    picked,
    pin,
    plan_padded,
)
from retuned.runtime.tuned_files.strict import MAX_M
from retuned.runtime.tuned_files.table_formats import (
    Row,
    Table,
    kind_of,
    new_row,
    plan_results,
    read_results,
    read_table,
    write_table,
)

MOE_VLLM, MOE_SGLANG, AITER, TUNABLE_OP = FORMATS = (
    *("moe-vllm", "moe-sglang", "aiter", "tunable-op"),
)
MAX_NEW_ROWS = 256
_MAX_RANGES = 64
_MAX_DEFAULTS = 1024
PERFORMANCE = frozenset(
    ("us", "us1", "us2", "tflops", "bw", "err_ratio", "errRatio", "err1", "err2")
)
"""Columns that do not affect the choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What must be picked for some batch sizes; every field is checked."""

    format: str
    guard: Guard = ()
    """Batch sizes that may change; empty for TunableOp, whose rows are matched exactly."""
    rows: tuple[Any, ...]
    defaults: tuple[Run, ...] = ()
    """What the server picks without a file."""
    rule: str = ""
    """How the server pads, for AITER."""
    lookup: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the server's own lookup; their meaning is the server's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """New content of a file, and how to verify that a server uses it."""

    data: bytes
    rows: tuple[str, ...]
    inside: Mapping[Hashable, Any]
    """Guarded batch sizes (or keys) to check, with what must be picked."""
    outside: Mapping[Hashable, Any]
    """The same outside the guard, with what was and must be picked; None is the default."""
    was: Mapping[Hashable, Any]
    """What was picked before at `inside`; None is the default."""


def parse_change(body: object) -> Change:
    """Parse a change.

    Raises
    ------
    Refused
        ``change-invalid``, naming the field.
    """
    if not isinstance(body, Mapping):
        raise _bad("the change is not an object")
    kind = body.get("format")
    if kind not in FORMATS:
        raise _bad(f"'format' is not one of {list(FORMATS)}")
    rows = body.get("rows")
    if not isinstance(rows, (list, tuple)) or not 0 < len(rows) <= MAX_NEW_ROWS:
        raise _bad(f"'rows' is not a list of 1 to {MAX_NEW_ROWS}")
    lookup = body.get("lookup", {})
    if not isinstance(lookup, Mapping) or len(lookup) > 32:
        raise _bad("'lookup' is not an object of at most 32 entries")
    rule = body.get("rule", "")
    if rule not in ("", *GEMM_RULES, *MOE_RULES):
        raise _bad(f"'rule' is not one of {[*GEMM_RULES, *MOE_RULES]}")
    return Change(
        format=str(kind),
        guard=() if kind == TUNABLE_OP else _guard(body.get("guard")),
        rows=tuple(rows),
        defaults=_defaults(body.get("defaults") or ()),
        rule=str(rule),
        lookup=dict(lookup),
    )


def plan(name: str, data: bytes | None, change: Change) -> Plan:
    """Return the new content of a file.

    Parameters
    ----------
    data
        What the server reads now; None if the file does not exist.

    Raises
    ------
    Refused
        ``nothing-to-change``, ``file-missing``, or as the readers and the rules of each format.
    """
    if change.format in (MOE_VLLM, MOE_SGLANG):
        found = _plan_moe(name, data, change)
    elif data is None:
        detail = f"{name} does not exist; only the servers' MoE files can be created"
        raise Refused("file-missing", detail=detail)
    elif change.format == AITER:
        found = _plan_table(read_table(name, data), change)
    else:
        found = _plan_results(name, data, change)
    if found.data == data:
        raise Refused("nothing-to-change", detail=f"{name} has all of this already")
    return found


def _plan_moe(name: str, data: bytes | None, change: Change) -> Plan:
    version_key = change.format == MOE_VLLM
    file = None if data is None else read_moe(name, data, version_key=version_key)
    old: Rows = file.rows if file else ()
    new = tuple(_moe_row(name, row) for row in change.rows)
    if len({m for m, _ in new}) != len(new):
        raise _bad("'rows' has two rows for one M")
    pinned = pin(old, new, guard=change.guard, defaults=change.defaults)
    written = write_moe(file, pinned.rows)
    if read_moe(name, written, version_key=version_key).rows != pinned.rows:
        raise Refused("tuned-invalid", detail=f"{name} cannot be written so that it reads the same")
    ends = {m for run in (*pinned.before, *pinned.after) for m in (run.first, run.last)}
    probes = {m for end in ends for m in (end - 1, end, end + 1) if 1 <= m <= MAX_M}
    inside = {m for m in probes | {m for m, _ in new} if _guarded(change.guard, m)}
    return Plan(
        data=written,
        rows=_moe_summary(old, pinned.rows, pinned.pins),
        inside={m: picked(pinned.after, m) for m in sorted(inside)},
        outside={m: picked(pinned.before, m) for m in sorted(probes - inside)},
        was={m: picked(pinned.before, m) for m in sorted(inside)},
    )


def _moe_summary(old: Rows, new: Rows, pins: Sequence[int]) -> tuple[str, ...]:
    before, after = dict(old), dict(new)
    written = [
        f"M={m}: {'pinned' if m in pins else 'replaced' if m in before else 'added'}"
        for m in after
        if m in pins or before.get(m) != after[m]
    ]
    return (*written, *(f"M={m}: removed" for m in before if m not in after))


def _plan_table(table: Table, change: Change) -> Plan:
    rows = [new_row(table, _cells(row)) for row in change.rows]
    shapes = {table.shape_of(row) for row in rows}
    if len(shapes) != 1:
        raise _bad("'rows' are for more than one shape")
    (shape,) = shapes
    new = {int(row[table.m]): row for row in rows}
    places = {int(r[table.m]): i for i, r in enumerate(table.rows) if table.shape_of(r) == shape}
    moe = table.header[table.m] == "token"
    if change.rule not in (MOE_RULES if moe else GEMM_RULES):
        raise _bad(f"'rule' must be one of {list(MOE_RULES if moe else GEMM_RULES)}")
    width = 0 if moe else _width(table, shape)
    chain = moe_chain(change.rule) if moe else gemm_chain(change.rule, width)
    padded = plan_padded(places, new, guard=change.guard, chain=chain)
    changed: dict[int, Row] = {}
    added: list[Row] = []
    for m, origin in padded.rows.items():
        source, _, key = origin.partition(":")
        cells = list(new[int(key)] if source == "new" else table.rows[places[int(key)]])
        cells[table.m] = str(m)
        if m in places:
            changed[places[m]] = tuple(cells)
        else:
            added.append(tuple(cells))
    data = write_table(table, changed, added)
    after = read_table(table.name, data)
    return Plan(
        data=data,
        rows=tuple(
            f"{table.header[table.m]}={m}: {'pinned' if o.startswith('old') else 'written'}"
            for m, o in padded.rows.items()
        ),
        inside=_table_probes(after, shape, change.guard, chain, set(padded.rows), inside=True),
        outside=_table_probes(table, shape, change.guard, chain, set(padded.rows), inside=False),
        was=_table_probes(table, shape, change.guard, chain, set(padded.rows), inside=True),
    )


def _table_probes(
    table: Table, shape: Row, guard: Guard, chain: Chain, written: set[int], *, inside: bool
) -> dict[Hashable, Any]:
    rows = {int(r[table.m]): r for r in table.rows if table.shape_of(r) == shape}
    ends = written | {m for ends in guard for m in ends}
    near = {m for end in ends for m in (end - 1, end, end + 1) if 1 <= m <= 2 * TOP}
    found: dict[Hashable, Any] = {}
    for m in sorted(near):
        if _guarded(guard, m) == inside:
            row = next((rows[key] for key in chain(m) if key in rows), None)
            found[m] = None if row is None else deciding(table, row)
    return found


def deciding(table: Table, row: Row) -> dict[str, str]:
    """Return the cells that determine the launch."""
    return {
        column: row[index]
        for index, column in enumerate(table.header)
        if index not in table.key and index != table.m and column not in PERFORMANCE
    }


def _plan_results(name: str, data: bytes, change: Change) -> Plan:
    file = read_results(name, data)
    if not all(isinstance(row, (list, tuple)) for row in change.rows):
        raise _bad("'rows' must have lists of operator, parameters, solution and time")
    new = [tuple(str(cell) for cell in row) for row in change.rows]
    written = plan_results(file, new)
    before = file.solutions()
    after = read_results(name, written).solutions()
    keys = {(row[0], row[1]) for row in new}
    summary = (f"{op},{params}: {after[op, params]}" for op, params in sorted(keys))
    return Plan(
        data=written,
        rows=tuple(summary),
        inside={key: after[key] for key in sorted(keys)},
        outside={key: solution for key, solution in before.items() if key not in keys},
        was={key: before.get(key) for key in sorted(keys)},
    )


def _width(table: Table, shape: Row) -> int:
    text = dict(zip(table.shape_columns, shape, strict=True))["N"]
    if kind_of(text) != "whole":
        raise _bad(f"N is {text!r:.40}, not a whole number")
    return int(text)


def _moe_row(name: str, row: object) -> tuple[int, Config]:
    m = row.get("M") if isinstance(row, Mapping) else None
    if not isinstance(row, Mapping) or type(m) is not int or not 1 <= m <= MAX_M:
        raise _bad(f"'rows' must have objects with an M from 1 to {MAX_M} and a config")
    return m, check_config(name, m, row.get("config"))


def _cells(row: object) -> Mapping[str, str]:
    if not isinstance(row, Mapping) or not all(isinstance(cell, str) for cell in row.values()):
        raise _bad("'rows' must have objects of text by column")
    return row


def _guard(value: object) -> Guard:
    if not isinstance(value, (list, tuple)) or not 0 < len(value) <= _MAX_RANGES:
        raise _bad(f"'guard' is not a list of 1 to {_MAX_RANGES} ranges")
    found: list[tuple[int, int]] = []
    for ends in value:
        low, high = _range("guard", ends)
        if found and low <= found[-1][1]:
            raise _bad("'guard' has ranges that overlap or are not rising")
        found.append((low, high))
    return tuple(found)


def _range(field_name: str, ends: object) -> tuple[int, int]:
    if not isinstance(ends, (list, tuple)) or len(ends) != 2:
        raise _bad(f"'{field_name}' needs pairs of lowest and highest")
    low, high = ends[0], MAX_M if ends[1] is None else ends[1]
    if type(low) is not int or type(high) is not int or not 1 <= low <= high <= MAX_M:
        raise _bad(f"'{field_name}' has {ends!r:.80}, which is not a range of batch sizes")
    return low, high


def _defaults(value: object) -> tuple[Run, ...]:
    if not isinstance(value, (list, tuple)) or len(value) > _MAX_DEFAULTS:
        raise _bad(f"'defaults' is not a list of at most {_MAX_DEFAULTS}")
    found = []
    for each in value:
        if not isinstance(each, (list, tuple)) or len(each) != 3:
            raise _bad("'defaults' needs lists of lowest, highest and config")
        low, high = _range("defaults", each[:2])
        found.append(Run(low, high, check_config("defaults", low, each[2])))
    return tuple(found)


def _guarded(guard: Guard, m: int) -> bool:
    return any(low <= m <= high for low, high in guard)


def _bad(problem: str) -> Refused:
    return Refused("change-invalid", detail=problem)
