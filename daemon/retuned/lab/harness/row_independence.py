"""Row independence (gate G4): whether a row's result depends on the rows beside it.

In a server, rows are tokens of different users. A kernel whose row changes with its neighbours
leaks data between users. A kernel whose row changes with the batch size gives different results
under load. Both are refused unless the incumbent does the same. The second is allowed where
`Tolerance.batch_invariant` permits it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retuned.contract import Definition
from retuned.lab.harness.cases import EXACT_FAMILY, CaseCache, CaseKey
from retuned.lab.harness.run import Runner
from retuned.lab.oracle import bit_equal
from retuned.lab.subject import Array
from retuned.stages.verdict import Check, Reason

_REAL = ("float", "bfloat")


def row_axis(definition: Definition) -> str | None:
    """Return the axis whose elements are computed independently, or None.

    It is a variable axis that comes first in every output and in an input of real numbers.
    """
    firsts = {spec.shape[0] if spec.shape else "" for spec in definition.outputs.values()}
    if len(firsts) != 1:
        return None
    (axis,) = firsts
    if axis not in definition.variable_axes or not _rowwise(definition, axis):
        return None
    return axis


def check_rows(
    runner: Runner,
    book: CaseCache,
    *,
    cells: Sequence[CaseKey],
    batch_invariant: bool,
    timeout_s: float,
) -> Check | None:
    """Compare one row beside other rows, and alone if requested.

    Return None if the definition has no rows, no shape has two, or the incumbent fails the check
    itself.

    Raises
    ------
    CandidateError
        If the child died or wrote outside its tensors.
    """
    definition = book.subject.definition
    axis = row_axis(definition)
    found = [cell for cell in cells if axis and cell.axes[axis] > 1 and cell.family != EXACT_FAMILY]
    if axis is None or not found:
        return None
    cell = found[0]
    row = cell.axes[axis] - 1
    inputs = book.case(cell).inputs
    others = book.redraw(cell)
    beside = {
        name: _with_row(others[name], array, row) if name in _rowwise(definition, axis) else array
        for name, array in inputs.items()
    }
    where = f"row {row} at {dict(cell.axes)}"
    failed = _differs(runner, book, (inputs, cell.axes, row), (beside, cell.axes, row), timeout_s)
    if failed:
        detail = f"'{failed}', {where}: changes with the content of other rows"
        return Check(gate="G4", reason=Reason.ROW_DEPENDENT, detail=detail)
    if not batch_invariant:
        return Check(gate="G4", detail=f"{where}: the same beside other rows")
    leading = [name for name, spec in definition.inputs.items() if spec.shape[:1] == (axis,)]
    alone = {n: array[row:] if n in leading else array for n, array in inputs.items()}
    axes = {**cell.axes, axis: 1}
    failed = _differs(runner, book, (inputs, cell.axes, row), (alone, axes, 0), timeout_s)
    if failed:
        detail = f"'{failed}', {where}: changes with the size of the batch"
        return Check(gate="G4", reason=Reason.ROW_DEPENDENT, detail=detail)
    return Check(gate="G4", detail=f"{where}: the same beside other rows and alone")


_Question = tuple[Mapping[str, Array], Mapping[str, int], int]


def _differs(
    runner: Runner, book: CaseCache, one: _Question, two: _Question, timeout_s: float
) -> str:
    """Return an output whose row differs between two runs, where the incumbent's does not."""
    for name in _unequal(
        runner.run(one[0], one[1], timeout_s=timeout_s),
        runner.run(two[0], two[1], timeout_s=timeout_s),
        rows=(one[2], two[2]),
    ):
        own = _unequal(
            book.incumbent_answer(one[0], one[1]),
            book.incumbent_answer(two[0], two[1]),
            rows=(one[2], two[2]),
        )
        if name not in own:
            return name
    return ""


def _unequal(
    left: Mapping[str, Array], right: Mapping[str, Array], *, rows: tuple[int, int]
) -> list[str]:
    return [n for n in left if not bit_equal(left[n][rows[0]], right[n][rows[1]])]


def _rowwise(definition: Definition, axis: str) -> list[str]:
    """Return inputs of real numbers with one part per row; integers may be indices or lengths."""
    return [
        name
        for name, spec in definition.inputs.items()
        if spec.shape[:1] == (axis,) and not spec.constant and str(spec.dtype).startswith(_REAL)
    ]


def _with_row(others: Array, own: Array, row: int) -> Array:
    made = others.copy()
    made[row] = own[row]
    return made
