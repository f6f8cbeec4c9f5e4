"""Gates G3 and G4 for one variant: memory, determinism and numerics; they return evidence only."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np

from retuned.contract import Definition
from retuned.errors import CandidateError
from retuned.lab.harness.cases import EXACT_FAMILY, Case, CaseCache, CaseKey
from retuned.lab.harness.row_independence import check_rows
from retuned.lab.harness.run import POISON_MIXED, POISON_ONES, Fill, Runner
from retuned.lab.number_formats import is_float
from retuned.lab.oracle import (
    Tolerance,
    allowed_difference,
    bit_equal,
    compare,
    exact_mismatch,
    reduced_elements,
)
from retuned.lab.subject import Array
from retuned.runtime.shadow.sampler import bucket
from retuned.stages.verdict import Check, IncumbentNoise, Reason

_RUNS = 3
"""Equal launches that must give equal bits, besides those with other fills."""


def check_memory(runner: Runner, case: Case, *, timeout_s: float) -> tuple[Check, dict[str, Array]]:
    """Gate G3: check red zones, two fills, fences and repeated launches; also return the outputs.

    Raises
    ------
    CandidateError
        If the child died.
    """
    inputs, axes = case.inputs, case.cell.axes
    ones = runner.run(inputs, axes, fill=Fill(value=POISON_ONES), timeout_s=timeout_s)
    mixed = runner.run(inputs, axes, fill=Fill(value=POISON_MIXED), timeout_s=timeout_s)
    again = [
        runner.run(inputs, axes, fill=Fill(value=POISON_MIXED), timeout_s=timeout_s)
        for _ in range(_RUNS - 1)
    ]
    where = f"at {dict(axes)}"
    for name in mixed:
        if not all(bit_equal(mixed[name], other[name]) for other in again):
            return _failed("G3", Reason.NONDETERMINISTIC, f"'{name}' differs {where}"), mixed
        if not bit_equal(ones[name], mixed[name]):
            return _failed("G3", *_explain_fill(name, ones[name], mixed[name], where)), mixed
    kept = _keeps_state(runner, case, timeout_s=timeout_s)
    if kept:
        return _failed("G3", Reason.NONDETERMINISTIC, f"{kept} {where}"), mixed
    secret = Fill(value=_secret_fill())
    unknown = runner.run(inputs, axes, fill=secret, timeout_s=timeout_s)
    if not all(bit_equal(mixed[name], unknown[name]) for name in mixed):
        detail = f"depends on what lay in and around its tensors before {where}"
        return _failed("G3", Reason.OUT_OF_BOUNDS, detail), mixed
    try:
        fence = Fill(value=POISON_ONES, fenced=True)
        fenced = runner.run(inputs, axes, fill=fence, timeout_s=timeout_s)
    except CandidateError as error:
        if error.reason != "crashed":
            raise
        detail = f"touches the page after a tensor {where}"
        return _failed("G3", Reason.OUT_OF_BOUNDS, detail), mixed
    if not all(bit_equal(mixed[name], fenced[name]) for name in mixed):
        return _failed("G3", Reason.NONDETERMINISTIC, f"depends on addresses {where}"), mixed
    detail = f"{_RUNS + 3} launches {where}, {runner.memory_check}"
    return Check(gate="G3", detail=detail), mixed


def _keeps_state(runner: Runner, case: Case, *, timeout_s: float) -> str:
    """Return a message if the scratch of the last launch changes the next output.

    The last launch used the inputs of the same case, over `POISON_MIXED`.
    """
    if not runner.has_scratch:
        return ""
    others = {name: _moved(array) for name, array in case.inputs.items()}
    fills = (Fill(value=POISON_MIXED, left=True), Fill(value=POISON_MIXED))
    left, fresh = (
        runner.run(others, case.cell.axes, fill=fill, timeout_s=timeout_s) for fill in fills
    )
    if all(bit_equal(left[name], fresh[name]) for name in left):
        return ""
    return "its answer depends on what an earlier launch left in its scratch"


def _moved(array: Array) -> Array:
    return np.roll(array, 1) if is_float(array.dtype) else array


def check_numerics(
    runner: Runner,
    book: CaseCache,
    *,
    definition: Definition,
    cells: Sequence[CaseKey],
    tolerance: Tolerance,
    timeout_s: float,
) -> Check:
    """Gate G4: compare every case with float64, relative to the incumbent's own error.

    Raises
    ------
    CandidateError
        If the child died or wrote outside its tensors.
    """
    worst = 0.0
    noise: dict[tuple[int, ...], float] = {}
    for cell in cells:
        case = book.case(cell)
        _note_noise(noise, definition, case, tolerance=tolerance)
        got = runner.run(case.inputs, cell.axes, timeout_s=timeout_s)
        check = compare_case(definition, case, got, tolerance=tolerance, gate="G4")
        if check.reason is not None:
            return check
        worst = max(worst, check.error_ratio or 0.0)
    rows = check_rows(
        runner,
        book,
        cells=cells,
        batch_invariant=tolerance.batch_invariant,
        timeout_s=timeout_s,
    )
    if rows is not None and rows.reason is not None:
        return rows
    detail = f"{len(cells)} cells" + (f"; {rows.detail}" if rows else "")
    noisy = tuple(IncumbentNoise(bucket=key, rms=rms) for key, rms in sorted(noise.items()))
    return Check(gate="G4", detail=detail, error_ratio=worst, incumbent_noise=noisy)


def _note_noise(
    noise: dict[tuple[int, ...], float],
    definition: Definition,
    case: Case,
    *,
    tolerance: Tolerance,
) -> None:
    key = bucket(tuple(case.cell.axes[axis] for axis in definition.variable_axes))
    depth = reduced_elements(definition, definition.lengths(case.cell.axes))
    for name, incumbent in case.incumbent.items():
        share = allowed_difference(
            incumbent, reference=case.reference[name], depth=depth, tolerance=tolerance
        )
        if share is not None:
            noise[key] = max(share, noise.get(key, 0.0))


def compare_case(
    definition: Definition,
    case: Case,
    got: dict[str, Array],
    *,
    tolerance: Tolerance,
    gate: str,
    reason: Reason | None = None,
) -> Check:
    """Compare all outputs of one case; on failure, `reason` replaces the oracle's reason."""
    depth = reduced_elements(definition, definition.lengths(case.cell.axes))
    where = f"{case.cell.family} at {dict(case.cell.axes)}"
    worst = 0.0
    for name, output in got.items():
        reference, incumbent = case.reference[name], case.incumbent[name]
        judged = compare(
            output,
            incumbent,
            reference=reference,
            depth=depth,
            tolerance=tolerance,
            degraded_rms=case.degraded_rms.get(name, 0.0),
        )
        if case.cell.family == EXACT_FAMILY and judged.reason is None:
            judged = exact_mismatch(output, incumbent, reference=reference) or judged
        if judged.reason is not None:
            detail = f"'{name}', {where}: {judged.detail}"
            ratio = judged.error_ratio if np.isfinite(judged.error_ratio) else None
            return _failed(gate, reason or judged.reason, detail, error_ratio=ratio)
        worst = max(worst, judged.error_ratio)
    return Check(gate=gate, detail=where, error_ratio=worst)


def failed_check(gate: str, error: CandidateError) -> Check:
    known = {reason.value: reason for reason in Reason}
    return _failed(gate, known.get(error.reason, Reason.CRASHED), error.detail)


def _failed(gate: str, reason: Reason, detail: str, *, error_ratio: float | None = None) -> Check:
    return Check(gate=gate, reason=reason, detail=detail[:400], error_ratio=error_ratio)


def _secret_fill() -> int:
    return secrets.choice([n for n in range(1, 255) if n not in (POISON_ONES, POISON_MIXED)])


def _explain_fill(name: str, ones: Array, mixed: Array, where: str) -> tuple[Reason, str]:
    """Distinguish an unwritten output from one that depends on memory around it."""
    left, right = _bytes(ones), _bytes(mixed)
    stale = (left == POISON_ONES).all(axis=-1) & (right == POISON_MIXED).all(axis=-1)
    count = int(stale.sum())
    if count:
        detail = f"{count} of {ones.size} elements of '{name}' were not written {where}"
        return Reason.OUTPUT_NOT_WRITTEN, detail
    return Reason.OUT_OF_BOUNDS, f"'{name}' depends on memory outside its inputs {where}"


def _bytes(array: Array) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    flat = np.ascontiguousarray(array).view(np.uint8)
    return flat.reshape(array.size, array.itemsize)
