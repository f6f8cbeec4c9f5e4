"""Tables of matrix products: what a server picks, for every batch size of one shape.

AITER's tuned table and TunableOp's results have rows for many shapes; the rows and columns of the
weights select one. A size without a row gets the server's own default, which has no name and is
reported as an empty row. Reported rows are compared with the server's own lookup, as for all files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from retuned.runtime.schema import Refused
from retuned.runtime.tuned_files.changes import AITER, PERFORMANCE, Change, deciding
from retuned.runtime.tuned_files.rules import GEMM_RULES, Chain, Run, gemm_chain, joined
from retuned.runtime.tuned_files.servers import Server, find
from retuned.runtime.tuned_files.strict import MAX_M
from retuned.runtime.tuned_files.table_formats import Row, Table, kind_of, read_results, read_table

_STEPS = (1, 16, 32, 64, 128)
"""Padding granularities of AITER."""
_EDGES = (257, 1025, 4097, 8193)
"""Batch sizes at which its padding changes."""
_PLAIN = {"bias": "bias", "scaleAB": "scaleAB", "bpreshuffle": "bpreshuffle"}
_OPERATOR = re.compile(r"GemmTunableOp_BFloat16_([NT])N\Z")
_NOTHING: dict[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    runs: tuple[Run, ...]
    """Steps from 1 to `MAX_M`; an empty row is the server's default."""
    rule: str = ""
    """How the server pads; AITER only."""
    cells: Mapping[str, str] = field(default_factory=dict)
    """Cells that every new row has in addition to the choice.

    For AITER's table, its other columns without the batch size. For TunableOp's results,
    ``operator``, and the parameters ``before`` and ``after`` the batch size.
    """


def server_of(kind: str, lookup: Mapping[str, Any]) -> tuple[Server, str]:
    """Return the server of a table, and its padding rule.

    Raises
    ------
    Refused
        As `find`; ``padding-unknown`` only if it follows no known rule.
    """
    change = Change(format=kind, rows=(), lookup=dict(lookup))
    if kind != AITER:
        return find(change), ""
    problem: Refused | None = None
    for rule in reversed(GEMM_RULES):
        try:
            return find(replace(change, rule=rule)), rule
        except Refused as error:
            if error.reason != "padding-unknown":
                raise
            problem = error
    assert problem is not None, "there are rules"
    raise problem


def picked_of(server: Server, data: bytes, *, lookup: Mapping[str, Any], rule: str) -> Picked:
    """Return the picks of a table for one shape.

    Parameters
    ----------
    server
        Server of the table; called if the table has the shape for several devices.
    lookup
        With ``N`` and ``K``, the columns and the depth of the product.
    rule
        How AITER pads; empty for TunableOp.

    Raises
    ------
    Refused
        ``shape-absent`` (no row has it), ``shape-ambiguous`` (rows of several kinds have it),
        ``picks-differ``, or as the readers.
    """
    name = server.target.name
    if not rule:
        return _of_results(name, data, n=lookup["N"], k=lookup["K"])
    table = read_table(name, data)
    shapes = sorted({table.shape_of(r) for r in table.rows if _is_of(table, r, lookup)})
    if not shapes:
        raise Refused("shape-absent", detail=f"{name} has no row for {_shape_text(lookup)}")
    chain = gemm_chain(rule, lookup["N"])
    found = [_of_table(table, shape, chain, rule=rule) for shape in shapes]
    right = [each for each in found if len(found) == 1 or not wrong(server, each.runs)]
    if len(right) != 1:
        detail = f"{name} has {_shape_text(lookup)} for {len(shapes)} devices or element types"
        raise Refused("shape-ambiguous", detail=detail)
    return right[0]


def wrong(server: Server, runs: Sequence[Run]) -> list[str]:
    """Return where a server's picks differ from its table, at the ends of each step."""
    pick = server.pick
    if pick is None:
        return []
    return [
        f"{m}: {found!r:.100} for {run.config!r:.100}"
        for run in runs
        if run.config
        for m in (run.first, run.last)
        if not server.matches(run.config, found := pick(m))
    ]


def _of_table(table: Table, shape: Row, chain: Chain, *, rule: str) -> Picked:
    rows = {int(r[table.m]): r for r in table.rows if table.shape_of(r) == shape}

    def picked(m: int) -> Mapping[str, str]:
        row = next((rows[key] for key in chain(m) if key in rows), None)
        return _NOTHING if row is None else deciding(table, row)

    first = next(iter(rows.values()))
    cells = dict(zip(table.shape_columns, shape, strict=True))
    for index, column in enumerate(table.header):
        if column in PERFORMANCE:
            cells[column] = _unmeasured(first[index])
    return Picked(runs=_runs(_edges(rows), picked), rule=rule, cells=cells)


def _edges(keys: Iterable[int]) -> set[int]:
    """Return every batch size whose row may differ from that of the size below."""
    edges = {1, *_EDGES}
    for key in keys:
        edges |= {key + 1, key // 2 + 1, *(key - step + 1 for step in _STEPS)}
    return {edge for edge in edges if 1 <= edge <= MAX_M}


def _runs(edges: set[int], picked: Callable[[int], Mapping[str, str]]) -> tuple[Run, ...]:
    rising = sorted(edges)
    ends = [*(edge - 1 for edge in rising[1:]), MAX_M]
    return tuple(joined(Run(a, b, picked(a)) for a, b in zip(rising, ends, strict=True)))


def _unmeasured(cell: str) -> str:
    """Return a cell of the same kind for a row that the server's own tuner did not measure."""
    return {"whole": "0", "real": "0.0"}.get(kind_of(cell), cell)


def _is_of(table: Table, row: Row, lookup: Mapping[str, Any]) -> bool:
    """Whether a row is for the requested shape and the plain product."""
    cells = dict(zip(table.header, row, strict=True))
    wanted = {name: str(lookup[name]) for name in ("N", "K")}
    wanted |= {column: str(lookup.get(name) is True) for name, column in _PLAIN.items()}
    wanted |= {name: str(lookup.get(name, "torch.bfloat16")) for name in ("dtype", "outdtype")}
    return all(cells.get(column, value) == value for column, value in wanted.items())


def _of_results(name: str, data: bytes, *, n: int, k: int) -> Picked:
    """Read results of one product: PyTorch writes its columns first, and then the batch size.

    Only if the batch is not transposed, the batch size occurs nowhere else in the parameters.
    """
    shape = re.compile(rf"([nt]n_{n}_)([1-9][0-9]{{0,9}})(_{k}(?:_[A-Za-z0-9_]*)?)\Z")
    found: dict[tuple[str, str, str], dict[int, str]] = {}
    for row in read_results(name, data).rows:
        match = shape.match(row[1])
        if match and _OPERATOR.match(row[0]) and int(match[2]) <= MAX_M:
            rows = found.setdefault((row[0], match[1], match[3]), {})
            rows[int(match[2])] = row[2]
    if len(found) != 1:
        reason = "shape-ambiguous" if found else "shape-absent"
        raise Refused(reason, detail=f"{name} has {len(found)} kinds of rows for N={n}, K={k}")
    ((operator, before, after), rows), *_ = found.items()

    def picked(m: int) -> Mapping[str, str]:
        return {"solution": rows[m]} if m in rows else _NOTHING

    edges = {1, *rows, *(m + 1 for m in rows if m < MAX_M)}
    cells = {"operator": operator, "before": before, "after": after}
    return Picked(runs=_runs(edges, picked), cells=cells)


def _shape_text(lookup: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={lookup.get(name)}" for name in ("N", "K"))
