"""A row of a fused-MoE file as a variant of the lab's kernel, and back.

The lab measures the catalog's mixture of experts in stages, whose parameters are those of a row one
by one. What a row has beside them (GROUP_SIZE_M, SPLIT_K, ...) has no counterpart there: it is
carried over from the row that the server picks today, never chosen.
"""

from __future__ import annotations

from collections.abc import Mapping

from retuned import catalog
from retuned.configured.records import Row, Value
from retuned.contract import Language, Solution, TrustClass
from retuned.errors import CandidateError

STAGES = "stages"
"""Structure of the catalog that is what servers launch."""
NAMES: Mapping[str, str] = {
    "BLOCK_SIZE_M": "BLOCK_M",
    "BLOCK_SIZE_N": "BLOCK_N",
    "BLOCK_SIZE_K": "BLOCK_K",
    "num_warps": "num_warps",
    "num_stages": "num_stages",
}
"""Parameter of a row -> parameter of the lab's kernel."""
USUAL: Mapping[str, int] = {"num_warps": 4, "num_stages": 3}
"""What Triton launches with where a row does not say."""
_LEAST, _MOST = 16, 512
_MOST_STAGES = 10
AUTHOR = "row of a file"


def incumbent_of(definition: str, row: Mapping[str, Value]) -> Solution:
    """Return what a server's row is in the lab.

    Raises
    ------
    CandidateError
        ``row-does-not-map``: it lacks a parameter, or has one that no such kernel has.
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
    """Return the row that says what a variant is.

    Parameters
    ----------
    solution
        From an experiment on the row's definition.
    today
        What the server picks now; has all that the lab's kernel does not know.

    Raises
    ------
    CandidateError
        ``not-a-row``: it is another algorithm, or other source, which no row can say.
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
        detail = f"{solution.name} is not {STAGES} with other parameters, so no row says it"
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
