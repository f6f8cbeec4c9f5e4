"""File formats: rows as variants, and changes.

Rows of a fused-MoE file map to variants of the lab's kernel and back. Tables of libraries map
matrix products to rows in the same way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from retuned import catalog
from retuned.contract import Language, Solution, SourceFile, TrustClass
from retuned.errors import CandidateError
from retuned.tuned_files.records import MAX_M, Format, Look, PickedRun, Row, TunedFileStep, Value

STAGES = "stages"
NAMES: Mapping[str, str] = {
    "BLOCK_SIZE_M": "BLOCK_M",
    "BLOCK_SIZE_N": "BLOCK_N",
    "BLOCK_SIZE_K": "BLOCK_K",
    "num_warps": "num_warps",
    "num_stages": "num_stages",
}
USUAL: Mapping[str, int] = {"num_warps": 4, "num_stages": 3}
_LEAST, _MOST = 16, 512
_MOST_STAGES = 10
AUTHOR = "row of a file"


def incumbent_of(definition: str, row: Mapping[str, Value]) -> Solution:
    """Return the lab variant of a server's row.

    Raises
    ------
    CandidateError
        ``row-does-not-map``: a parameter is missing or unknown.
    UsageError
        If the catalog has no such definition.
    """
    entry = catalog.get(definition, language=Language.TRITON)
    if entry.incumbent.structure != STAGES:
        raise CandidateError("row-does-not-map", detail=f"{definition} has no {STAGES}")
    params = {ours: _number(row, theirs) for theirs, ours in NAMES.items()}
    point = "-".join(f"{name.lower()}{value}" for name, value in params.items())
    return entry.incumbent.model_copy(
        update={
            "name": f"{entry.definition.op_type}.row.{point}"[:128],
            "params": {**entry.incumbent.params, **params},
            "author": AUTHOR,
        }
    )


def stages_row(solution: Solution, *, today: Mapping[str, Value]) -> Row:
    """Return the row of a variant.

    `today` is the server's current row; it supplies parameters that the lab's kernel does not have.

    Raises
    ------
    CandidateError
        ``not-a-row``: it is another algorithm or source, which a row cannot express.
    """
    entry = catalog.get(solution.definition, language=Language.TRITON)
    ours = entry.incumbent
    known = {*NAMES.values()}
    same = (
        solution.structure == STAGES
        and (solution.sources, solution.steps, solution.scratch)
        == (ours.sources, ours.steps, ours.scratch)
        and solution.trust is TrustClass.PARAMETERS
        and {n: v for n, v in solution.params.items() if n not in known}
        == {n: v for n, v in ours.params.items() if n not in known}
    )
    if not same or not known <= solution.params.keys():
        detail = (
            f"{solution.name} is not {STAGES} with other parameters, so a row cannot express it"
        )
        raise CandidateError("not-a-row", detail=detail)
    said = {theirs: solution.params[mine] for theirs, mine in NAMES.items()}
    row: Row = {**today}
    for name, value in said.items():
        row[name] = _whole(name, value)
    return row


def _number(row: Mapping[str, Value], name: str) -> int:
    value = row.get(name, USUAL.get(name))
    return _whole(name, value)


def _whole(name: str, value: object) -> int:
    if type(value) is not int:
        raise CandidateError("row-does-not-map", detail=f"{name} is {value!r:.40}, no whole number")
    power = value > 0 and value & (value - 1) == 0
    fits = {
        "num_warps": power and value <= 32,
        "num_stages": 1 <= value <= _MOST_STAGES,
    }.get(name, power and _LEAST <= value <= _MOST)
    if not fits:
        detail = f"{name} is {value}, which the lab's kernel cannot be launched with"
        raise CandidateError("row-does-not-map", detail=detail)
    return value


TABLES: tuple[Format, ...] = ("aiter", "tunable-op")
TABLE_ROW = "row"
KERNEL = re.compile(r"(Cijk_|bf16gemm_)")
"""Names of the kernels that hipBLASLt, rocBLAS and AITER's own products launch."""
MOST_CHOICES = 64
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
    """Return the lookup arguments of a product of the catalog.

    Raises
    ------
    UsageError
        If the catalog has no such definition.
    """
    lengths = catalog.get(definition).definition.lengths({"M": 1})
    return {"N": lengths["N"], "K": lengths["K"]}


def variant_of(definition: str, row: Mapping[str, Value]) -> Solution:
    """Return the lab variant of a row, whose only source is the row.

    Raises
    ------
    CandidateError
        ``row-does-not-map``: without a row, the server's default has no name.
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
    """Return the row of a variant.

    Raises
    ------
    CandidateError
        ``not-a-row``: the table did not have it when it was read.
    """
    for row in subject.choices:
        if variant_of(subject.definition, row).digest == solution.digest:
            return row
    detail = f"{solution.name} is not a row that {subject.path} has for another batch size"
    raise CandidateError("not-a-row", detail=detail[:500])


def body_of(subject: TunedFileStep, row: Row, *, look: Look, low: int, high: int) -> dict[str, Any]:
    """Return the contents of a change, without the file's digest.

    `look` is the server's current selection; `low` and `high` are the batch sizes of the change.

    Raises
    ------
    CandidateError
        ``guard-beyond-step`` if it covers more sizes than the table allows.
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
