"""Expected times of steps: exact where they can be, and steady where steps are odd."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from retuned.stages.watch.proof import StepColumns
from retuned.stages.watch.proof.normaliser import (
    MOST_ROWS,
    ROWS_PER_BLOCK,
    FitRows,
    fit,
    sums_of,
)


def steps(count: int, *, seed: int = 0, noise: float = 0.0, graphs: bool = True) -> StepColumns:
    """Return steps whose time follows the model of the fit."""
    rng = np.random.default_rng(seed)
    decode = rng.integers(1, 100, count).astype(float)
    prefill = np.where(rng.random(count) < 0.2, rng.integers(8, 2000, count), 0).astype(float)
    context = decode * rng.uniform(200, 900, count)
    padded = (np.ceil(decode / 32) * 32).astype(np.int64)
    graph = np.where(prefill > 0, 0, padded) if graphs else np.zeros(count, dtype=np.int64)
    tokens = prefill + decode
    period = 5e-3 + 2e-5 * decode + 3e-8 * context + 1e-3 * (prefill > 0) + 2e-5 * prefill
    period += 1e-5 * np.maximum(tokens - 60, 0) + 1e-5 * np.maximum(tokens - 200, 0)
    period += 1e-5 * graph
    period *= np.exp(noise * rng.standard_normal(count))
    empty = np.full(count, np.nan)
    return StepColumns(
        on=np.zeros(count, dtype=np.bool_),
        prefill=prefill,
        decode=decode,
        context=context,
        graph=graph,
        period_s=period,
        busy_s=empty,
        host_s=empty,
        ended_s=np.cumsum(period),
    )


def rows_of(columns: StepColumns) -> FitRows:
    """Return all steps as rows, in blocks that are small enough to be kept whole."""
    rows = FitRows()
    for at in range(0, len(columns), ROWS_PER_BLOCK):
        rows = rows.extend(columns.pick(np.arange(at, min(at + ROWS_PER_BLOCK, len(columns)))))
    return rows


def error(columns: StepColumns, rows: FitRows) -> float:
    """Return the largest relative error of expected times."""
    expected = fit(rows).expected_s(columns)
    return float(np.max(np.abs(expected / columns.period_s - 1.0)))


@pytest.mark.parametrize("graphs", [True, False])
def test_a_fit_recovers_times_that_follow_its_model(graphs: bool) -> None:
    known, later = steps(1500, graphs=graphs), steps(500, seed=1, graphs=graphs)
    assert error(later, rows_of(known)) < 0.005


def test_a_few_stalls_do_not_move_the_fit() -> None:
    known, later = steps(1500, noise=0.02), steps(500, seed=1)
    period = known.period_s.copy()
    period[::100] += 0.5
    clean, stalled = fit(rows_of(known)), fit(rows_of(replace(known, period_s=period)))
    ratio = stalled.expected_s(later) / clean.expected_s(later)
    assert np.abs(ratio - 1.0).max() < 0.02


def test_expected_and_measured_times_have_the_same_sum() -> None:
    known = steps(2000, noise=0.02)
    expected = fit(rows_of(known)).expected_s(known)
    assert float(expected.sum()) == pytest.approx(float(known.period_s.sum()), rel=0.003)


def test_steps_of_one_composition_do_not_need_a_full_rank() -> None:
    one = steps(1, graphs=False)
    many = one.pick(np.zeros(50, dtype=np.int64))
    assert error(many, rows_of(many)) < 1e-6
    assert error(one, rows_of(one)) < 1e-6


def test_a_graph_size_that_was_not_fitted_has_the_common_intercept() -> None:
    known = steps(1500)
    seen = known.pick(known.graph != 64)
    unseen, found = known.pick(known.graph == 64), fit(rows_of(seen))
    expected = found.expected_s(unseen)
    assert np.abs(expected / unseen.period_s - 1.0).max() < 0.10
    common = found.model_copy(update={"graphs": (), "deviations_s": ()})
    assert expected.tolist() == common.expected_s(unseen).tolist()
    assert found.graphs == (0, 32, 96, 128)


def test_no_expected_time_is_zero_or_less() -> None:
    known = steps(1500)
    zeros = np.zeros(3)
    odd = replace(known.pick(np.arange(3)), prefill=zeros, decode=zeros, context=np.full(3, -1e9))
    assert (fit(rows_of(known)).expected_s(odd) > 0.0).all()


def test_sums_of_a_block_have_the_expected_time_of_its_steps() -> None:
    known, later = fit(rows_of(steps(1500))), steps(80, seed=2)
    sums = sums_of(later, wall_s=1.0)
    assert sums.steps == 80
    assert math.isclose(
        known.expected_of_sums(sums), float(known.expected_s(later).sum()), rel_tol=1e-9
    )


def test_rows_of_a_block_are_chosen_by_position_and_bounded() -> None:
    known = steps(500)
    one = FitRows().extend(known)
    assert len(one.rows) == ROWS_PER_BLOCK
    slower = replace(known, period_s=3.0 * known.period_s)
    assert [row[:4] for row in one.rows] == [row[:4] for row in FitRows().extend(slower).rows]
    many = FitRows()
    for _ in range(100):
        many = many.extend(known)
    assert len(many.rows) == MOST_ROWS
    assert FitRows().extend(known.pick(np.arange(0))) == FitRows()


def test_a_fit_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one step"):
        fit(FitRows())


def test_a_fit_survives_json() -> None:
    known = fit(rows_of(steps(300)))
    assert type(known).model_validate_json(known.model_dump_json()) == known
