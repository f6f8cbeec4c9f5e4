"""A row as a variant and a variant as a row, whatever file it is of."""

from __future__ import annotations

from collections.abc import Mapping

from retuned.configured import rows, tables
from retuned.configured.records import Format, Row, TunedFileStep, Value
from retuned.contract import Solution


def incumbent_of(definition: str, row: Mapping[str, Value], *, format: Format) -> Solution:
    """Return what a server's row is in the lab.

    Raises
    ------
    CandidateError
        ``row-does-not-map``.
    UsageError
        If the catalog has no such definition.
    """
    if format in tables.TABLES:
        return tables.variant_of(definition, row)
    return rows.incumbent_of(definition, row)


def row_of(solution: Solution, subject: TunedFileStep) -> Row:
    """Return the row that says what a variant is.

    Raises
    ------
    CandidateError
        ``not-a-row``.
    """
    if subject.format in tables.TABLES:
        return tables.table_row(solution, subject)
    return rows.stages_row(solution, today=subject.run.row)


def structure_of(format: Format) -> str:
    """Return the one structure that variants of a file's rows have."""
    return tables.TABLE_ROW if format in tables.TABLES else rows.STAGES
