"""The statistics hold their promises under a noise model: drift, jitter and spikes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.contract import AxisVar, Definition, DType, TensorSpec, Workload
from retuned.lab.evidence import adjusted_p_values, final_timing
from retuned.lab.examiner import Timed
from retuned.lab.statistics import (
    ShapeSamples,
    bootstrap_saving,
    combine,
    confidence_sequence,
    estimate,
    holm,
    noise_floor,
    t_cdf,
    t_quantile,
)
from retuned.stages.verdict import Check, Evidence, JudgeSettings, Status, judge

DEFINITION = Definition(
    name="toy",
    op_type="toy",
    axes={"M": AxisVar()},
    inputs={"x": TensorSpec(shape=("M",), dtype=DType.FLOAT32)},
    outputs={"y": TensorSpec(shape=("M",), dtype=DType.FLOAT32)},
    reference="",
)
SHAPES = (Workload(definition="toy", axes={"M": 8}), Workload(definition="toy", axes={"M": 64}))
PASSED = tuple(Check(gate=gate) for gate in ("G0", "G1", "G2", "G3", "G4", "G5", "G6"))


def noise(random: np.random.Generator, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """AR(1) clock drift of 1.5 %, jitter of 0.5 %, a spike in every hundredth launch."""
    drift, innovation = np.empty(count), random.normal(0.0, 0.015 * math.sqrt(1 - 0.98**2), count)
    value = random.normal(0.0, 0.015)
    for index in range(count):
        value = 0.98 * value + innovation[index]
        drift[index] = value
    spikes = np.where(random.random(count) < 0.01, random.exponential(0.5, count), 0.0)
    return np.exp(drift + random.normal(0.0, 0.005, count)) * (1.0 + spikes)


def simulate(
    random: np.random.Generator, speedup: float, *, blocks: int = 12, units: int = 2
) -> tuple[ShapeSamples, ShapeSamples]:
    """ABBA units of candidate and of clone, as the schedule has them; times in microseconds."""
    kinds = [kind for _ in range(blocks) for kind in [0] * units + [1]]
    noisy = noise(random, 4 * len(kinds)).reshape(-1, 4)
    rows: tuple[list[tuple[float, float, int]], ...] = ([], [])
    for place, kind in enumerate(kinds):
        other = 100.0 / speedup if kind == 0 else 100.0
        first, second, third, fourth = noisy[place]
        block = place // (units + 1)
        rows[kind].append((100.0 * first, other * second, block))
        rows[kind].append((100.0 * fourth, other * third, block))
    candidate, clone = (
        ShapeSamples(
            weight=1.0,
            incumbent_us=np.array([row[0] for row in side]),
            candidate_us=np.array([row[1] for row in side]),
            block=np.array([row[2] for row in side]),
        )
        for side in rows
    )
    return candidate, clone


def promoted(random: np.random.Generator, speedup: float, *, units: int = 2) -> bool:
    settings = JudgeSettings()
    sides = [simulate(random, speedup, units=units) for _ in SHAPES]
    timed = Timed(
        checks=PASSED[-1:],
        samples=tuple(side[0] for side in sides),
        clones=tuple(side[1] for side in sides),
        shapes=(0, 1),
        processes=2,
    )
    (p_value,) = adjusted_p_values([timed], settings)
    measured = final_timing(
        timed,
        workloads=SHAPES,
        floor=lambda _axes: 0.0,
        adjusted_p=p_value,
        finalists=1,
        settings=settings,
    )
    evidence = Evidence(
        candidate="sha256:" + "c" * 64,
        incumbent="sha256:" + "d" * 64,
        checks=PASSED,
        finalist=True,
        timing=measured,
    )
    return judge(evidence, settings).status is Status.PROMOTE


def test_identical_kernels_are_promoted_at_most_once_in_two_hundred() -> None:
    random = np.random.default_rng(1)
    assert sum(promoted(random, 1.0) for _ in range(200)) <= 1


def test_a_regression_of_two_per_cent_is_never_promoted() -> None:
    random = np.random.default_rng(2)
    assert sum(promoted(random, 0.98) for _ in range(200)) == 0


def test_a_win_of_three_per_cent_is_found_in_nineteen_of_twenty() -> None:
    random = np.random.default_rng(3)
    assert sum(promoted(random, 1.03, units=8) for _ in range(100)) >= 95


def test_one_cheap_shape_driven_to_nothing_does_not_win() -> None:
    random = np.random.default_rng(4)
    big, _ = simulate(random, 0.98)
    small, _ = simulate(random, 50.0)
    cheap = ShapeSamples(
        weight=0.01,
        incumbent_us=small.incumbent_us,
        candidate_us=small.candidate_us,
        block=small.block,
    )
    weighted = combine([big, cheap])
    assert weighted is not None
    assert weighted.mean < 0.0


def test_one_block_is_no_estimate_and_no_floor() -> None:
    one = ShapeSamples(
        weight=1.0,
        incumbent_us=np.array([2.0, 2.0]),
        candidate_us=np.array([1.0, 1.0]),
        block=np.array([0, 0]),
    )
    assert estimate(one) is None
    assert combine([one]) is None
    assert combine([]) is None
    assert noise_floor([one]) == math.inf


def test_the_weighted_bound_covers_the_truth_as_often_as_it_says() -> None:
    random, covered = np.random.default_rng(5), 0
    for _ in range(300):
        weighted = combine([simulate(random, 1.1)[0], simulate(random, 1.12)[0]])
        assert weighted is not None
        truth = 200.0 / (100.0 / 1.1 + 100.0 / 1.12)
        covered += weighted.interval(0.95).lower <= truth
    assert covered >= 0.92 * 300


def test_the_bootstrap_agrees_with_the_truth_and_brackets_it() -> None:
    random = np.random.default_rng(6)
    lower, point, upper = bootstrap_saving([simulate(random, 1.25)[0]], confidence=0.99, seed=7)
    assert lower < 20.0 < upper
    assert point == pytest.approx(20.0, rel=0.1)


def test_looking_after_every_block_does_not_make_wins_of_nothing() -> None:
    random, wins = np.random.default_rng(8), 0
    for _ in range(200):
        ratios = random.normal(0.0, 0.01, 40)
        wins += any(
            confidence_sequence(ratios[:count].tolist(), confidence=0.99)[0] > 0.0
            for count in range(10, 41)
        )
    assert wins <= 4


def test_a_confidence_sequence_finds_a_real_effect() -> None:
    random = np.random.default_rng(9)
    assert confidence_sequence(random.normal(0.02, 0.01, 40).tolist(), confidence=0.99)[0] > 0.0
    assert confidence_sequence([0.5], confidence=0.99) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("probability", "dof", "expected"),
    [(0.975, 9, 2.2622), (0.99, 9, 2.8214), (0.99, 1, 31.8205), (0.95, 30, 1.6973)],
)
def test_quantiles_of_student_s_t_are_those_of_the_tables(
    probability: float, dof: float, expected: float
) -> None:
    assert t_quantile(probability, dof) == pytest.approx(expected, abs=5e-4)


@given(st.floats(0.01, 0.99), st.floats(1.0, 200.0))
def test_quantile_and_distribution_are_inverse(probability: float, dof: float) -> None:
    assert t_cdf(t_quantile(probability, dof), dof) == pytest.approx(probability, abs=1e-9)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6))
def test_holm_never_makes_a_p_value_smaller_and_keeps_their_order(values: list[float]) -> None:
    adjusted = holm(values)
    assert all(after >= before for before, after in zip(values, adjusted, strict=True))
    order = sorted(range(len(values)), key=lambda index: values[index])
    assert [adjusted[i] for i in order] == sorted(adjusted)
    assert adjusted[order[0]] == pytest.approx(min(1.0, len(values) * values[order[0]]))
