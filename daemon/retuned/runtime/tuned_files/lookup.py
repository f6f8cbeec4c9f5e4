"""Lookup of what a server picks now, for every batch size, so that changes can be proposed.

With a file, its rows give the answer; without one, the server itself is called size by size. In
both cases the server's own lookup must agree at the ends of every step, else nothing is reported.

The module also compares what a server picks with what it should pick.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from retuned.runtime.schema import Refused
from retuned.runtime.tuned_files.changes import FORMATS, MOE_SGLANG, MOE_VLLM, Change
from retuned.runtime.tuned_files.files import read_file
from retuned.runtime.tuned_files.moe_json import check_config, read_moe, same
from retuned.runtime.tuned_files.rules import Run, joined, runs_of
from retuned.runtime.tuned_files.servers import Server, find
from retuned.runtime.tuned_files.strict import MAX_M, digest_of
from retuned.runtime.tuned_files.tables import Picked, picked_of, server_of, wrong

ASKED = 16_384
"""Batch sizes for which a server without a file is called one by one."""
_SHOWN = 4
_TABLE = "GEMM_BF16"


def look(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file that a lookup reads, its digest, and what is picked from which size to which.

    For a table, ``rule`` and ``cells`` are what a new row also needs; see `tables.Picked`.

    Raises
    ------
    Refused
        ``picks-differ`` if the server differs from its file, ``default-unknown``, ``file-missing``
        for a table, ``format-unsupported`` for tables that no lookup here supports, or as `find`,
        `read_file`, `read_moe` and `picked_of`.
    """
    kind, lookup = request.get("format"), request.get("lookup")
    if kind not in FORMATS or not isinstance(lookup, Mapping) or len(lookup) > 32:
        raise Refused("bad-request", detail=f"no 'lookup', or 'format' is not in {list(FORMATS)}")
    if kind not in (MOE_VLLM, MOE_SGLANG):
        return _look_at_table(str(kind), lookup)
    server = find(Change(format=str(kind), rows=(), lookup=dict(lookup)))
    pick = server.pick
    data = _read(server)
    if data is None:
        if pick is None:
            raise Refused("default-unknown", detail="neither a file exists nor a lookup to call")
        runs = _asked(server.target, pick)
    else:
        name = server.target.name
        runs = runs_of(read_moe(name, data, version_key=kind == MOE_VLLM).rows)
    if pick is not None:
        _check(runs, pick)
    return {
        "path": str(server.target),
        "digest": digest_of(data),
        "runs": [[run.first, run.last, dict(run.config)] for run in runs],
        "reload": "now" if pick is not None else "at-restart",
    }


def _look_at_table(kind: str, lookup: Mapping[str, Any]) -> dict[str, Any]:
    sizes = [lookup.get(name) for name in ("N", "K")]
    if not all(type(size) is int and 0 < size <= MAX_M for size in sizes):
        raise Refused("lookup-invalid", detail="'N' and 'K' must be whole numbers above 0")
    if lookup.get("table", _TABLE) != _TABLE:
        detail = f"of AITER's tables only {_TABLE} can be looked up; others can be changed"
        raise Refused("format-unsupported", detail=detail)
    server, rule = server_of(kind, lookup)
    data = _read(server)
    if data is None:
        raise Refused("file-missing", detail=f"{server.target} does not exist")
    found = picked_of(server, data, lookup=lookup, rule=rule)
    by_size = server if rule else _by_size(server, found)
    mismatches = wrong(by_size, found.runs)
    if mismatches:
        detail = f"the server's picks differ from its table: {mismatches[:_SHOWN]}"
        raise Refused("picks-differ", detail=detail[:1000])
    return {
        "path": str(server.target),
        "digest": digest_of(data),
        "runs": [[run.first, run.last, dict(run.config)] for run in found.runs],
        "reload": "now" if server.pick is not None else "at-restart",
        "rule": found.rule,
        "cells": dict(found.cells),
    }


def _by_size(server: Server, found: Picked) -> Server:
    """Return PyTorch's results as a server with a lookup by batch size."""
    pick, cells = server.pick, found.cells
    if pick is None:
        return server

    def picked(m: Hashable) -> dict[str, Any]:
        return {"solution": pick((cells["operator"], f"{cells['before']}{m}{cells['after']}"))}

    return dataclasses.replace(server, pick=picked)


def _read(server: Server) -> bytes | None:
    source = server.source
    if source is None:
        return None
    return read_file(source if source == server.target else source.resolve())


def _asked(path: Path, pick: Callable[[Hashable], Any]) -> tuple[Run, ...]:
    """Call the lookup size by size; all sizes after the last must be one step."""

    def picked(m: int) -> Run:
        return Run(m, m, check_config(path.name, m, pick(m)))

    runs = list(joined(picked(m) for m in range(1, ASKED + 1)))
    beyond = [m for m in (ASKED + 1, *(2**n for n in range(15, 31)), MAX_M) if m > ASKED]
    if not all(same(picked(m).config, runs[-1].config) for m in beyond):
        detail = f"without a file, this server's choice still changes beyond M={ASKED}"
        raise Refused("default-unknown", detail=detail)
    return (*runs[:-1], Run(runs[-1].first, MAX_M, runs[-1].config))


def _check(runs: Sequence[Run], pick: Callable[[Hashable], Any]) -> None:
    wrong = [
        f"{m}: {found!r:.100} for {run.config!r:.100}"
        for run in runs
        for m in (run.first, run.last)
        if (found := pick(m)) != run.config
    ]
    if wrong:
        detail = f"the server's picks differ from its file: {wrong[:_SHOWN]}"
        raise Refused("picks-differ", detail=detail[:1000])


def picks_of(server: Server, probes: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """Return what the server picks at some sizes; empty if it has no lookup."""
    pick = server.pick
    return {} if pick is None else {probe: pick(probe) for probe in probes}


def wrong_picks(server: Server, expected: Mapping[Hashable, Any]) -> list[str]:
    """Return where the server's picks differ from a file; defaults are not compared."""
    known = {probe: what for probe, what in expected.items() if what is not None}
    return [
        f"{probe}: {picked!r:.100} for {known[probe]!r:.100}"
        for probe, picked in picks_of(server, known).items()
        if not server.matches(known[probe], picked)
    ]


def changed_picks(server: Server, before: Mapping[Hashable, Any]) -> list[str]:
    """Return where the server's picks differ from before."""
    return [
        f"{probe}: {picked!r:.100}, before {before[probe]!r:.100}"
        for probe, picked in picks_of(server, before).items()
        if not _same_pick(picked, before[probe])
    ]


def _same_pick(one: Any, other: Any) -> bool:  # noqa: ANN401 - the server's
    """Compare two picks of a server; two missing values of pandas are equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same_pick(one[k], other[k]) for k in one)
    return bool(one == other) or (one != one and other != other)
