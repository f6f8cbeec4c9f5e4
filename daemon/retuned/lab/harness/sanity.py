"""Sanity checks of a definition: a constant output proves nothing about a kernel.

A kernel that writes a constant is correct where the output is constant, and a copy is correct where
the definition does nothing. Then the definition is at fault, and it must not support a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from retuned.errors import HarnessError, UsageError
from retuned.lab.harness.cases import Case
from retuned.lab.number_formats import widened
from retuned.lab.subject import Array, KernelUnderTest, make_inputs

_LENGTH = 5
_LEAST_ELEMENTS = 8
"""With fewer numbers, equality may be chance."""
DISAGREES = "incumbent-disagrees"
MEANINGLESS = "definition-proves-nothing"
_ROUGHLY = 0.25
"""Largest error of an incumbent (`_distance`). The coarsest formats in use stay below a tenth."""


def telling_shape(
    subject: KernelUnderTest, shapes: Sequence[Mapping[str, int]]
) -> Mapping[str, int]:
    """Return a small shape without short axes, else the best of those given.

    Attention to a single key returns its value, and a rotation at position 0 changes nothing. Such
    a shape tests nothing.
    """
    small = dict.fromkeys(subject.definition.variable_axes, _LENGTH)
    try:
        make_inputs(subject, small, seed=0, family=subject.families[0])
    except (UsageError, ValueError):  # lengths that do not fit together
        by_size = sorted(shapes, key=lambda shape: math.prod(shape.values()))
        wide = [shape for shape in by_size if min(shape.values()) >= _LENGTH]
        return (wide or by_size[-1:])[0]
    return small


def require_meaning(subject: KernelUnderTest, axes: Mapping[str, int], *, seed: int) -> None:
    """Require that the output varies, and that it varies with every input.

    `axes` is one shape (see `telling_shape`); other seeds are derived from `seed`.

    Raises
    ------
    HarnessError
        With code ``definition-proves-nothing``, if a kernel could be right without computing.
    """
    family = subject.families[0]
    name = subject.definition.name
    one = make_inputs(subject, axes, seed=seed, family=family)
    two = make_inputs(subject, axes, seed=seed + 1, family=family)
    if max(array.size for array in one.values()) < _LEAST_ELEMENTS:
        return
    answer = subject.reference(one, axes)
    if all(_constant(array) for array in answer.values()):
        raise _meaningless(f"{name}: every output is one number over and over; see its reference")
    # What is updated in place may stay as it was, if another output shows the launch.
    kept = {out for out, n in subject.definition.updated.items() if _same(one[n], answer[out])}
    told = [array for out, array in answer.items() if out not in kept]
    if not told:
        raise _meaningless(f"{name}: nothing that it updates in place changes")
    copied = [n for n, array in one.items() if any(_same(array, out) for out in told)]
    if copied:
        raise _meaningless(f"{name}: input '{copied[0]}' comes out unchanged; nothing is computed")
    for changed, array in two.items():
        if _same(array, one[changed]):
            continue  # made without random numbers: tables, lengths
        other = _answer(subject, {**one, changed: array}, axes)
        if other is not None and all(_same(other[out], answer[out]) for out in answer):
            raise _meaningless(f"{name}: no output depends on input '{changed}'")


def require_agreement(case: Case, *, name: str) -> None:
    """Require that the incumbent roughly computes the reference.

    A candidate's error is measured relative to the incumbent's. If the two disagree, that error is
    as large as the output itself, and nearly every kernel would pass.

    Raises
    ------
    HarnessError
        With code ``incumbent-disagrees``, if most of an output is something else.
    """
    for output, reference in case.reference.items():
        answer = case.incumbent[output]
        if not _distance(widened(answer), reference, whole=answer.dtype.kind in "iu") <= _ROUGHLY:
            error = HarnessError(
                f"{name}: the incumbent's '{output}' is something else than the reference's at "
                f"{dict(case.cell.axes)}; one of the two is wrong"
            )
            error.code = DISAGREES
            raise error


def _distance(answer: Array, reference: Array, *, whole: bool) -> float:
    """Return the error's rms over the reference's; for integers, the share that differs."""
    with np.errstate(invalid="ignore", over="ignore"):
        there = np.isfinite(reference)
        truth = np.where(there, reference, 0.0)
        far = np.where(np.isfinite(answer), np.abs(answer - truth), np.abs(truth))
        wrong = np.where(there, far, 0.0)
        if whole:  # one off is a rounding that went the other way
            return float(np.mean(wrong > 1.0))
        return float(np.sqrt(np.mean(wrong**2) / np.mean(truth**2))) if truth.any() else 0.0


def _answer(
    subject: KernelUnderTest, inputs: dict[str, Array], axes: Mapping[str, int]
) -> dict[str, Array] | None:
    """Compute the reference, or return None where inputs of two draws do not fit together."""
    try:
        return subject.reference(inputs, axes)
    except (ValueError, IndexError, KeyError):
        return None


def _meaningless(message: str) -> HarnessError:
    error = HarnessError(message)
    error.code = MEANINGLESS
    return error


def _constant(array: Array) -> bool:
    return array.size >= _LEAST_ELEMENTS and bool((array == array.reshape(-1)[0]).all())


def _same(left: Array, right: Array) -> bool:
    return left.shape == right.shape and bool(
        np.array_equal(left.astype(np.float64), right.astype(np.float64), equal_nan=True)
    )
