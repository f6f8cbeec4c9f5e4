"""What tried points say of untried ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retuned.lab.generators.surrogate import (
    Field,
    Prediction,
    Shape,
    coordinates_of,
    covariance,
    expected_improvement,
    fit,
)

CHOICES: dict[str, dict[str, tuple[int | str, ...]]] = {
    "s": {"BLOCK": (16, 32, 64, 128), "FLAG": (0, 1)},
    "t": {"BLOCK": (16, 32, 64, 128)},
}
Named = tuple[str, dict[str, int | str]]
LINE: list[Named] = [
    ("s", {"BLOCK": size, "FLAG": flag}) for flag in (0, 1) for size in (16, 32, 64, 128)
]


def test_a_doubling_is_about_one_step_and_an_absent_parameter_is_no_number() -> None:
    found = coordinates_of([*LINE[:2], ("t", {"BLOCK": 16})], CHOICES)
    assert found.places[1, 0] - found.places[0, 0] == pytest.approx(1.0, abs=0.1)
    assert math.isnan(found.places[2, 1])
    assert found.structures.tolist() == [0, 0, 1]


WORDS = ("table", "polynomial", "exact", "split")


@given(st.permutations(WORDS))
@settings(max_examples=10, deadline=None)
def test_in_which_order_words_are_declared_means_nothing(order: list[str]) -> None:
    named: list[Named] = [
        ("s", {"EXP": word, "BLOCK": size}) for word in WORDS for size in (16, 32)
    ]
    shape = Shape(lengths=(1.2, 0.4), weights=(0.2, 0.3, 0.3, 0.2))
    found = [
        coordinates_of(named, {"s": {"EXP": tuple(words), "BLOCK": (16, 32)}})
        for words in (WORDS, order)
    ]
    first, second = (covariance(points, points, shape) for points in found)
    assert np.allclose(first, second)
    assert found[0].unordered.tolist() == [False, True]
    apart = first[0, 2::2]  # the first word at 16 against the other words at 16
    assert np.allclose(apart, apart[0])


def test_numbers_that_are_declared_in_no_order_have_none() -> None:
    choices = {"s": {"SWIZZLE": (0, 3, 1), "FLAG": (0, 1), "MODE": (True, False)}}
    found = coordinates_of([("s", {"SWIZZLE": 3, "FLAG": 1, "MODE": True})], choices)
    assert found.unordered.tolist() == [False, True, True]  # FLAG, MODE, SWIZZLE


@given(st.integers(0, 2**16), st.integers(2, 8))
@settings(max_examples=30, deadline=None)
def test_covariances_are_symmetric_and_positive(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(LINE), size=min(count, len(LINE)), replace=False)
    points = coordinates_of([LINE[row] for row in rows] + [("t", {"BLOCK": 32})], CHOICES)
    shape = Shape(lengths=(1.2, 0.4), weights=(0.2, 0.3, 0.3, 0.2))
    found = covariance(points, points, shape)
    assert np.allclose(found, found.T)
    assert np.linalg.eigvalsh(found).min() > -1e-9
    assert np.allclose(np.diag(found), 1.0)


def test_tried_points_are_believed_and_far_ones_are_uncertain() -> None:
    points = coordinates_of(LINE, CHOICES)
    values = np.array([0.0, 0.2, 0.4])
    field = Field(points, shape=Shape(lengths=(1.2, 1.2), noise=1e-4))
    belief = field.believe([0, 1, 2], values)
    assert np.allclose(belief.mean[:3], values, atol=0.02)
    assert belief.deviation[4:].min() > belief.deviation[:3].max()
    assert np.array_equal(field.believe([0, 1, 2], values).mean, belief.mean)


def test_improvement_is_expected_of_the_good_and_of_the_unknown() -> None:
    belief = Prediction(mean=np.array([0.1, 0.0, 0.0]), deviation=np.array([0.01, 0.2, 0.01]))
    promising = expected_improvement(belief, best=0.05)
    assert promising[0] > promising[2]
    assert promising[1] > promising[2]
    assert promising[2] == pytest.approx(0.0, abs=1e-6)


def test_hyperparameters_tell_a_parameter_that_matters_from_one_that_does_not() -> None:
    points = coordinates_of(LINE, CHOICES)
    values = np.array([0.0, 0.5, 0.1, 0.9] * 2)  # FLAG does nothing
    found = fit(points, values)
    assert found.lengths[1] > found.lengths[0]


def test_few_points_or_equal_ones_do_not_break_it() -> None:
    points = coordinates_of(LINE[:4], CHOICES)
    shape = fit(points, np.zeros(4))
    belief = Field(points, shape=shape).believe(range(4), np.zeros(4))
    assert np.isfinite(belief.mean).all()
    assert np.isfinite(belief.deviation).all()
    one = coordinates_of(LINE[:1], CHOICES)
    alone = Field(points, shape=fit(one, np.zeros(1))).believe([0], np.zeros(1))
    assert np.isfinite(alone.mean).all()
