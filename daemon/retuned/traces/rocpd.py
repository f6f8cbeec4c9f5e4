"""SQLite databases: rocprofv3's rocpd, rocmProfileData's .rpd and rocprof v1's KERN table.

A database is untrusted input: read-only, base tables only (views may hold
anything), and an authorizer that denies every column but those asked for. The column
``environment`` of rocpd, where the tokens of the inference server land, is denied by name.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from retuned.errors import UnreadableInput
from retuned.stages.trace import Skip
from retuned.traces.blocks import BlockMaker, LaunchBlock
from retuned.traces.rocprof_columns import ALIASES, KIND_FIELDS, Row, kind_of
from retuned.traces.source import ReadLimits

_SECRET = "environment"
_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ})
_DISPATCH = re.compile(r"rocpd_kernel_dispatch(_\w+)?", re.ASCII)
_SYMBOLS_MAX = 1_000_000
"""Kernel symbols and strings held; a server has some thousands."""
_NAME_CHARS = 65_536

_ERRORS = (sqlite3.Error, OverflowError, UnicodeError)

Format = str


class Database:
    """One database, opened so that it can do no harm.

    Parameters
    ----------
    path
        The file.
    limits
        Bounds.

    Raises
    ------
    UnreadableInput
        ``unfinished-database``, ``damaged-database``, ``empty-database`` or ``not-a-trace``.
    """

    def __init__(self, path: Path, *, limits: ReadLimits) -> None:
        self._where = str(path)
        self._limits = limits
        for suffix in ("-wal", "-journal"):
            beside = path.with_name(path.name + suffix)
            if beside.is_file() and beside.stat().st_size:
                raise self._refuse(
                    "unfinished-database", f"{beside.name} lies beside it; let the writer close it"
                )
        uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
        try:
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None)
        except sqlite3.Error as error:
            raise self._damaged(error) from None
        self._connection.text_factory = _text
        try:
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._connection.execute("PRAGMA cell_size_check = ON")
            self._tables = self._list_tables()
            self.format = self._format()
        except _ERRORS as error:
            self.close()
            raise self._damaged(error) from None
        except UnreadableInput:
            self.close()
            raise
        self._connection.set_authorizer(_authorize)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def read(self, skipped: Counter[str]) -> Iterator[LaunchBlock]:
        """Yield the launches.

        Raises
        ------
        UnreadableInput
            ``damaged-database`` or ``too-large``.
        """
        try:
            if self.format == "rocpd":
                for table in self._dispatch_tables():
                    yield from self._rocpd(table, skipped)
            elif self.format == "rpd":
                yield from self._rpd(skipped)
            else:
                yield from self._kern(skipped)
        except _ERRORS as error:
            raise self._damaged(error) from None

    def _list_tables(self) -> dict[str, list[str]]:
        rows = self._connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 10000"
        )
        tables = {}
        for (name,) in rows.fetchall():
            if not isinstance(name, str) or '"' in name:
                continue
            columns = self._connection.execute(f'PRAGMA table_info("{name}")').fetchall()
            tables[name] = [str(column[1]) for column in columns]
        return tables

    def _dispatch_tables(self) -> list[str]:
        return [name for name in self._tables if _DISPATCH.fullmatch(name)]

    def _format(self) -> Format:
        if self._dispatch_tables():
            return "rocpd"
        if {"rocpd_op", "rocpd_string"} <= self._tables.keys():
            return "rpd"
        if "KERN" in self._tables:
            return "rocprof-v1-db"
        if not self._tables:
            raise self._refuse("empty-database", "a database without tables; was it written?")
        names = ", ".join(ascii(name[:40]) for name in sorted(self._tables)[:6])
        raise self._refuse(
            "not-a-trace",
            f"a database of another tool (tables {names}); expected rocpd_kernel_dispatch, "
            "rocpd_op or KERN",
        )

    def _rocpd(self, table: str, skipped: Counter[str]) -> Iterator[LaunchBlock]:
        suffix = table.removeprefix("rocpd_kernel_dispatch")
        symbols = self._lookup(
            f"rocpd_info_kernel_symbol{suffix}",
            ("display_name", "kernel_name", "arch_vgpr_count"),
        )
        agents = self._lookup(f"rocpd_info_agent{suffix}", ("absolute_index", "logical_index"))
        self._need(table, ("kernel_id", "start", "end"))
        fields = (
            *("kernel_id", "agent_id", "queue_id", "stream_id"),
            *("grid_size_x", "grid_size_y", "grid_size_z"),
            *("workgroup_size_x", "workgroup_size_y", "workgroup_size_z"),
            *("group_segment_size", "private_segment_size"),
        )

        def row_of(key: tuple[Any, ...]) -> Row:
            kernel, agent, queue, stream, *sizes = key
            display, raw, vgprs = symbols.get(kernel, (None, None, None))
            index = agents.get(agent, (None, None))[0]
            device = agent if index is None else f"Agent {index}"
            return _cells(display or raw, device, queue, stream, *sizes, vgprs)

        sql = f'SELECT {self._columns(table, fields)}, "start", "end" FROM "{table}"'
        yield from self._blocks(sql, row_of, skipped)

    def _rpd(self, skipped: Counter[str]) -> Iterator[LaunchBlock]:
        """Read ops; geometry sits on the API row that launched them, if there is one."""
        self._need("rocpd_op", ("id", "start", "end", "description_id", "opType_id"))
        strings = self._lookup("rocpd_string", ("string",))
        linked = {"rocpd_api_ops", "rocpd_kernelapi", "rocpd_api"} <= self._tables.keys()
        launched = self._api_launches() if linked else {}

        def row_of(key: tuple[Any, ...]) -> Row | Skip:
            description, kind, gpu, queue, op = key
            if strings.get(kind, (None,))[0] != "KernelExecution":
                return Skip.NOT_A_KERNEL
            api, grid, group, lds, scratch = launched.get(op, _NO_LAUNCH)
            if not str(api or "").startswith("hipExt"):  # these count blocks: give work-items
                grid = tuple(_times(a, b) for a, b in zip(grid, group, strict=True))
            name = strings.get(description, (None,))[0]
            return _cells(name, gpu, queue, None, *grid, *group, lds, scratch, None)

        fields = ("description_id", "opType_id", "gpuId", "queueId", "id")
        sql = f'SELECT {self._columns("rocpd_op", fields)}, "start", "end" FROM "rocpd_op"'
        yield from self._blocks(sql, row_of, skipped)

    def _api_launches(self) -> dict[Any, tuple[Any, ...]]:
        axes = ("gridX", "gridY", "gridZ", "workgroupX", "workgroupY", "workgroupZ")
        extra = ("groupSegmentSize", "privateSegmentSize")
        self._need("rocpd_kernelapi", ("api_ptr_id", *axes, *extra))
        columns = ", ".join(f'k."{name}"' for name in (*axes, *extra))
        cursor = self._connection.execute(
            f'SELECT o."op_id", s."string", {columns} FROM "rocpd_api_ops" o '
            'JOIN "rocpd_kernelapi" k ON k."api_ptr_id" = o."api_id" '
            'LEFT JOIN "rocpd_api" a ON a."id" = o."api_id" '
            'LEFT JOIN "rocpd_string" s ON s."id" = a."apiName_id" '
            f"LIMIT {_SYMBOLS_MAX + 1}"
        )
        found = {row[0]: (row[1], row[2:5], row[5:8], row[8], row[9]) for row in cursor}
        return self._bounded(found)

    def _kern(self, skipped: Counter[str]) -> Iterator[LaunchBlock]:
        names = {name.lower(): name for name in self._tables["KERN"]}
        found = {
            field: next((names[alias] for alias in aliases if alias in names), "")
            for field, aliases in ALIASES.items()
        }
        self._need("KERN", [found[field] or field for field in ("name", "start", "end")])
        fields = [found[field] for field in KIND_FIELDS]
        sql = (
            f"SELECT {self._columns('KERN', fields)}, "
            f'"{found["start"]}", "{found["end"]}" FROM "KERN"'
        )
        yield from self._blocks(sql, lambda key: _cells(*key), skipped)

    def _blocks(self, sql: str, row_of: Any, skipped: Counter[str]) -> Iterator[LaunchBlock]:  # noqa: ANN401
        def kind(key: tuple[Any, ...]) -> Any:  # noqa: ANN401
            row = row_of(key)
            return row if isinstance(row, Skip) else kind_of(row)

        maker: BlockMaker[tuple[Any, ...]] = BlockMaker(kind, skipped=skipped)
        with closing(self._connection.execute(sql)) as cursor:
            while rows := cursor.fetchmany(self._limits.block_rows // 4):
                starts, ends = _times_of(rows, -2), _times_of(rows, -1)
                yield maker.block([row[:-2] for row in rows], starts, ends)

    def _lookup(self, table: str, fields: Sequence[str]) -> dict[Any, tuple[Any, ...]]:
        """Read a table by id; empty where it is absent, so that rows stay and lack the name."""
        if "id" not in self._tables.get(table, ()):
            return {}
        columns = self._columns(table, fields)
        cursor = self._connection.execute(
            f'SELECT "id", {columns} FROM "{table}" LIMIT {_SYMBOLS_MAX + 1}'
        )
        return self._bounded({row[0]: row[1:] for row in cursor})

    def _bounded(self, found: dict[Any, tuple[Any, ...]]) -> dict[Any, tuple[Any, ...]]:
        if len(found) > _SYMBOLS_MAX:
            raise self._refuse("too-large", f"more than {_SYMBOLS_MAX} names or API rows")
        return found

    def _columns(self, table: str, fields: Sequence[str]) -> str:
        """Columns to select; those that the table lacks read as NULL."""
        have = self._tables[table]
        return ", ".join(
            f'substr("{field}", 1, {_NAME_CHARS})'
            if field in ("display_name", "kernel_name", "string")
            else f'"{field}"'
            if field in have
            else "NULL"
            for field in fields
        )

    def _need(self, table: str, fields: Sequence[str]) -> None:
        missing = [field for field in fields if field not in self._tables[table]]
        if missing:
            raise self._refuse(
                "missing-column", f"table {table} lacks {', '.join(missing)}; an unknown version"
            )

    def _damaged(self, error: Exception) -> UnreadableInput:
        return self._refuse(
            "damaged-database", f"cannot be read ({str(error)[:200]}); copy the file again"
        )

    def _refuse(self, code: str, message: str) -> UnreadableInput:
        return UnreadableInput(code, where=self._where, message=message)


_NO_LAUNCH: tuple[Any, ...] = (None, (0, 0, 0), (0, 0, 0), 0, 0)


def _authorize(
    action: int, first: str | None, second: str | None, schema: str | None, trigger: str | None
) -> int:
    if action not in _ALLOWED and not (action == sqlite3.SQLITE_FUNCTION and second == "substr"):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_DENY if second == _SECRET else sqlite3.SQLITE_OK


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _cells(*values: object) -> Row:
    """Values as a table would write them; one that is neither text nor a whole number becomes ?."""
    return tuple(
        "" if value is None else str(value) if isinstance(value, int | str) else "?"
        for value in values
    )


def _times(a: object, b: object) -> object:
    return a * b if isinstance(a, int) and isinstance(b, int) else "?"


def _times_of(rows: Sequence[Sequence[object]], column: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    cells = [row[column] for row in rows]
    return np.array([cell if isinstance(cell, int) else -1 for cell in cells], dtype=np.int64)
