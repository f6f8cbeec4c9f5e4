"""Matrix products that a library carries out as a table says: launches, rows as variants, changes.

A row of AITER's table or of TunableOp's results names a solution of a library that the server has
loaded. There is no source of it: what it is in the lab is the row itself, and only a lab that can
have the server's own library carry it out may measure it. What may be tried are rows that the same
table has for other batch sizes of the same product; nothing else is ever written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from retuned import catalog
from retuned.configured.records import MAX_M, Format, Look, PickedRun, Row, TunedFileStep, Value
from retuned.contract import Language, Solution, SourceFile, TrustClass
from retuned.errors import CandidateError

TABLES: tuple[Format, ...] = ("aiter", "tunable-op")
"""Files that are tables of libraries' solutions."""
TABLE_ROW = "row"
"""Structure of such a variant."""
KERNEL = re.compile(r"(Cijk_|bf16gemm_)")
"""Names of the kernels that hipBLASLt, rocBLAS and AITER's own products launch."""
MOST_CHOICES = 64
"""Most rows of a table that an experiment may try."""
_OPERATOR = "retuned::gemm_bf16"
_TYPES = ("bfloat16", "bfloat16")
_BF16 = frozenset({"bfloat16", "bf16", "c10::bfloat16"})
_FILE = "row.json"
_TOP = 1 << 17
"""Largest batch size that a change of AITER's table may be for; as in the runtime."""
_MOST_ROWS = 256
_UNTIMED = "0.0"


def read_product(
    kernel: str, dims: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
) -> tuple[str, int] | None:
    """Return definition and tokens of a plain product in bfloat16; None for any other launch.

    Parameters
    ----------
    kernel
        Name of the kernel as a trace has it.
    dims
        Tensors of the operator that launched it: tokens, then weights in either order of axes.
    dtypes
        Element type of each.

    Examples
    --------
    >>> read_product("Cijk_Ailk_Bljk_BBS_BH", ((16, 256), (256, 512)), ("bfloat16", "bfloat16"))
    ('gemm_bf16_n512_k256', 16)
    """
    plain = [each.lower().removeprefix("torch.") for each in dtypes]
    if not KERNEL.match(kernel) or len(dims) != len(plain) or len(dims) != len(_TYPES):
        return None
    if not all(each in _BF16 for each in plain) or any(len(each) != len(_TYPES) for each in dims):
        return None
    tokens, weights = dims
    if weights[0] == tokens[1]:  # as a plain matrix product has them
        weights = (weights[1], weights[0])
    bound = catalog.recognise(_OPERATOR, (tokens, weights), _TYPES)
    return (bound.definition, bound.axes["M"]) if bound is not None else None


def lookup_of(definition: str) -> dict[str, Any]:
    """Return what a table is looked up with for a product of the catalog.

    Raises
    ------
    UsageError
        If the catalog has no such definition.
    """
    lengths = catalog.get(definition).definition.lengths({"M": 1})
    return {"N": lengths["N"], "K": lengths["K"]}


def variant_of(definition: str, row: Mapping[str, Value]) -> Solution:
    """Return what a row is in the lab: a variant whose only source is the row.

    Raises
    ------
    CandidateError
        ``row-does-not-map``: there is no row, and the server's own default has no name.
    """
    if not row:
        detail = f"no row is picked for {definition}: what the server does by itself has no name"
        raise CandidateError("row-does-not-map", detail=detail)
    text = json.dumps(dict(row), sort_keys=True)
    return Solution(
        name=f"{definition}.row"[:128],
        definition=definition,
        language=Language.LIBRARY,
        entry="row",
        sources=(SourceFile(path=_FILE, content=text),),
        structure=TABLE_ROW,
        trust=TrustClass.PARAMETERS,
        author="row of a table",
    )


def choices_of(runs: Sequence[PickedRun]) -> tuple[Row, ...]:
    """Return the different rows of a table for one product, in the order of its batch sizes."""
    found: list[Row] = []
    for run in runs:
        if run.row and run.row not in found:
            found.append(run.row)
    return tuple(found[:MOST_CHOICES])


def table_row(solution: Solution, subject: TunedFileStep) -> Row:
    """Return the row that a variant is.

    Raises
    ------
    CandidateError
        ``not-a-row``: it is no row that the table had when it was looked at.
    """
    for row in subject.choices:
        if variant_of(subject.definition, row).digest == solution.digest:
            return row
    detail = f"{solution.name} is no row that {subject.path} has for another batch size"
    raise CandidateError("not-a-row", detail=detail[:500])


def body_of(subject: TunedFileStep, row: Row, *, look: Look, low: int, high: int) -> dict[str, Any]:
    """Return what a change says, without the file's digest.

    Parameters
    ----------
    subject
        The step that was tuned.
    row
        What won.
    look
        What the server picks at this moment.
    low, high
        Batch sizes that it is for.

    Raises
    ------
    CandidateError
        ``guard-beyond-step`` where it is for more sizes than such a table takes.
    """
    cells = dict(look.cells)
    if subject.format == "aiter":
        if high > _TOP:
            detail = f"a change of AITER's table ends at M={_TOP}, not at {high}"
            raise CandidateError("guard-beyond-step", detail=detail)
        rows: list[Any] = [{**cells, **row, "M": str(high)}]
        more = {"guard": [[low, high]], "rule": look.rule}
    else:
        if high >= MAX_M or high - low >= _MOST_ROWS:
            detail = f"{low} to {high} are more sizes than the {_MOST_ROWS} rows of a change"
            raise CandidateError("guard-beyond-step", detail=detail)
        before, after = cells.get("before", ""), cells.get("after", "")
        rows = [
            [cells.get("operator", ""), f"{before}{m}{after}", row["solution"], _UNTIMED]
            for m in range(low, high + 1)
        ]
        more = {"guard": [[low, high]]}  # for people: PyTorch matches every size exactly
    return {"format": subject.format, "rows": rows, "lookup": subject.lookup, **more}
