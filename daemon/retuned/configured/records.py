"""What a server says of its file, what is tuned of it, and what an order changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from retuned.contract import Digest, Name, Record
from retuned.errors import UnreadableInput

Format = Literal["moe-vllm", "moe-sglang", "aiter", "tunable-op"]
"""Files that the daemon orders changes of."""
FORMATS: tuple[Format, ...] = ("moe-vllm", "moe-sglang", "aiter", "tunable-op")
MAX_M = 2**31 - 1
"""Stands for all batch sizes that follow, as in the runtime."""
MOST_RUNS = 2048
"""Most steps of a file; the runtime reads 1024 rows, and each may be two steps."""

Value = Annotated[int, Field(strict=True, ge=-(2**31), le=2**31)] | bool | str
"""What a row says of one parameter."""
Row = dict[Annotated[str, Field(max_length=64)], Value]
"""Launch parameters as the file spells them."""


class PickedRun(Record):
    """Batch sizes from `first` to `last`, both included, for which a server picks one row."""

    first: int = Field(ge=1, le=MAX_M)
    """Least."""
    last: int = Field(ge=1, le=MAX_M)
    """Largest; `MAX_M` is without end."""
    row: Row = Field(max_length=64)
    """What is picked; of a table empty where it has no row, and the server takes its default."""


class Look(Record):
    """What a server picks today, for every batch size."""

    path: str = Field(max_length=4096)
    """The file that may be written; a stranger's text, for people only."""
    digest: Digest | None
    """Of the file that is read now; None where there is none and the server takes its defaults."""
    runs: tuple[PickedRun, ...] = Field(min_length=1, max_length=MOST_RUNS)
    """Steps, from size 1 without a gap to `MAX_M`."""
    reload: Literal["now", "at-restart"] = "now"
    """When the server reads what is written."""
    rule: Annotated[str, Field(max_length=64)] = ""
    """How AITER pads batch sizes; empty for others."""
    cells: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] = (
        Field(default_factory=dict, max_length=64)
    )
    """Of a table: what new rows have beside what is chosen."""

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
    """One step of a file, as a kernel that experiments are about."""

    definition: Name
    """Kernel of the catalog that stands for the server's in the lab."""
    format: Format
    """Whose file it is."""
    lookup: dict[str, Any] = Field(max_length=16)
    """What the server's own lookup is asked with."""
    path: str = Field(max_length=4096)
    """The file, for people."""
    digest: Digest | None
    """Of the file that the step was read from; None is no file."""
    run: PickedRun
    """The step: its batch sizes and its row."""
    choices: tuple[Row, ...] = Field(default=(), max_length=64)
    """Of a table: rows that it has for this product, which are all that may be tried."""


class FileChange(Record):
    """What a proposal writes into a server's file; kept under the proposal's id."""

    definition: Name
    """Kernel."""
    format: Format
    """Whose file it is."""
    digest: Digest
    """Of `text`; what is signed, and what the proposal names."""
    text: str = Field(max_length=192 << 10)
    """The change as the server gets it, JSON: guard, rows, lookup, and the file's digest before."""
    path: str = Field(max_length=4096)
    """The file, for people."""
    under: str = ""
    """Proposal whose change the file has already, which this one is made on; empty is none."""


def read_look(answer: Mapping[str, Any]) -> Look:
    """Read what a server said.

    Raises
    ------
    UnreadableInput
        ``look-invalid``: it says something else than it should.
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
        raise TypeError(f"'runs' is no list of at most {MOST_RUNS}")
    return value


def _run(each: object) -> dict[str, Any]:
    if not isinstance(each, list) or len(each) != 3:
        raise TypeError("a step is no list of first, last and row")
    return {"first": each[0], "last": each[1], "row": each[2]}
