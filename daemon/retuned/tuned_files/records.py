"""Records of a server's files and tables: what a server reports, and what a proposal writes.

They need no catalog: a sidecar loads them, and it has no room for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from retuned.contract import Digest, Name, Record
from retuned.errors import UnreadableInput

Format = Literal["moe-vllm", "moe-sglang", "aiter", "tunable-op", "table"]
"""What the daemon orders changes of: files, and tables of tunables in a server's memory."""
TABLE: Format = "table"
FORMATS: tuple[Format, ...] = ("moe-vllm", "moe-sglang", "aiter", "tunable-op", TABLE)
MAX_M = 2**31 - 1
"""Stands for all larger batch sizes, as in the runtime."""
MOST_RUNS = 2048
"""Maximum of steps of a file; the runtime reads 1024 rows, and each may be two steps."""

Value = Annotated[int, Field(strict=True, ge=-(2**31), le=2**31)] | bool | str
Row = dict[Annotated[str, Field(max_length=64)], Value]


class PickedRun(Record):
    """Batch sizes from `first` to `last`, inclusive, with the same row."""

    first: int = Field(ge=1, le=MAX_M)
    last: int = Field(ge=1, le=MAX_M)
    """Largest; `MAX_M` means no upper bound."""
    row: Row = Field(max_length=64)
    """The row; for a table it is empty if the server uses its default."""


class Look(Record):
    path: str = Field(max_length=4096)
    """The writable file; untrusted text, for display only."""
    digest: Digest | None
    """Of the file in use; None without one, if the server uses its defaults."""
    runs: tuple[PickedRun, ...] = Field(min_length=1, max_length=MOST_RUNS)
    reload: Literal["now", "at-restart"] = "now"
    rule: Annotated[str, Field(max_length=64)] = ""
    """AITER's padding of batch sizes; empty for others."""
    cells: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] = (
        Field(default_factory=dict, max_length=64)
    )
    """For a table: the other fields of new rows."""

    @model_validator(mode="after")
    def _whole(self) -> Look:
        at = 1
        for run in self.runs:
            if run.first != at or run.last < run.first:
                raise ValueError(f"the steps have a gap or overlap at M={at}")
            at = run.last + 1
        if at != MAX_M + 1:
            raise ValueError(f"the steps end at M={at - 1}")
        return self


class TunedFileStep(Record):
    """One step of a file, as a kernel for experiments."""

    definition: Name
    format: Format
    lookup: dict[str, Any] = Field(max_length=16)
    path: str = Field(max_length=4096)
    digest: Digest | None
    run: PickedRun
    choices: tuple[Row, ...] = Field(default=(), max_length=64)
    """For a table: its rows for this product, the only candidates."""


class FileChange(Record):
    """A proposal's change of a file or of a tunable's table, stored under the proposal's id."""

    definition: Name
    format: Format
    digest: Digest
    """Of `text`; it is signed, and the proposal names it."""
    text: str = Field(max_length=192 << 10)
    """The change as sent to the server, JSON: guard, rows, lookup, previous file digest."""
    path: str = Field(max_length=4096)
    """The file; of a table, the module whose kernel it configures. For display only."""
    under: str = ""
    """Proposal whose change is in force and which this one extends or replaces; may be empty."""


def read_look(answer: Mapping[str, Any]) -> Look:
    """Parse a server's report.

    Raises
    ------
    UnreadableInput
        ``look-invalid``
    """
    try:
        return Look.model_validate(
            {
                "path": answer.get("path"),
                "digest": answer.get("digest"),
                "reload": answer.get("reload", "now"),
                "rule": answer.get("rule", ""),
                "cells": answer.get("cells", {}),
                "runs": [_run(each) for each in _list(answer.get("runs"))],
            }
        )
    except (ValidationError, TypeError, ValueError) as error:
        first = str(error).splitlines()[0][:200]
        raise UnreadableInput(
            "look-invalid", where="the server's runtime", message=f"{first}; update the runtime"
        ) from error


def _list(value: object) -> list[Any]:
    if not isinstance(value, list) or len(value) > MOST_RUNS:
        raise TypeError(f"'runs' is not a list of at most {MOST_RUNS}")
    return value


def _run(each: object) -> dict[str, Any]:
    if not isinstance(each, list) or len(each) != 3:
        raise TypeError("a step is not a list of first, last and row")
    return {"first": each[0], "last": each[1], "row": each[2]}
