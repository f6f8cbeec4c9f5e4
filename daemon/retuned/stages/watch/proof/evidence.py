"""Evidence by bets on a coin: E-values that are valid at any time, and the interval. Pure.

The order of a pair is a coin. If the swap changes nothing, the sign of the pair's difference is
that coin, whatever the size of the difference and whatever came before. A bet that multiplies a
capital by 1 + h, with h odd in the difference, has mean 1 then. The capital exceeds 100 with a
probability of at most 1 %, however often it is compared (Ville). The bets are the best for
noise of Student's t with 3 degrees of freedom and a shift of u scales; the capital is split over
twelve u. Five of them are far and share an eighth of it: pairs of a quiet server differ by 0.01 %,
so that a swap that halves a step is thousands of scales away, and bets on nearer shifts take it for
an outlier. All capitals are kept as logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from retuned.contract import Record
from retuned.stages.watch.proof.records import Floats

_NEAR = (0.15, 0.3, 0.6, 1.2, 2.4, 4.8, 9.6)
_FAR = (38.4, 153.6, 614.4, 2457.6, 9830.4)
SHIFTS = (*_NEAR, *_FAR)
"""Shifts that are bet on, in scales."""
FASTER, SLOWER = -1, 1
_U = np.array(SHIFTS)
_WEIGHTS = np.array([1 / 8] * len(_NEAR) + [1 / (8 * len(_FAR))] * len(_FAR))
"""Share of the capital that is bet on each shift; they add up to 1."""
_START = (0.0,) * len(_U)
_LEAST_BET = -1.0 + 1e-12
_LEAST_SCALE = 1e-4
_FIRST_SCALE = 0.01
_LEAST_FOR_SCALE = 4
_VISIBLE = 6.0
_FARTHEST = 0.5


def bet(z: Floats) -> Floats:
    """Return h for each difference and shift, of shape (differences, 12): odd, within -1 to 1.

    Examples
    --------
    >>> both = bet(np.array([2.0, -2.0]))
    >>> bool(np.all(both[0] == -both[1]))
    True
    """
    column = np.asarray(z, dtype=np.float64)[:, None]
    near, far = 3.0 + (column - _U) ** 2, 3.0 + (column + _U) ** 2
    return np.asarray(np.tanh(np.log(far) - np.log(near)))  # of logarithms: odd to the last bit


def factors(z: Floats) -> Floats:
    """Return log(1 + h), of shape (differences, 12)."""
    return np.asarray(np.log1p(np.maximum(bet(z), _LEAST_BET)))


class Capital(Record):
    """Logarithms of what each shift's bets have grown to, for one hypothesis and side."""

    logs: tuple[float, ...] = Field(default=_START, min_length=len(_U), max_length=len(_U))

    @property
    def log_e(self) -> float:
        """Logarithm of the E-value: the weighted mean over the shifts."""
        return float(_mixed(np.array([self.logs]))[0])


class Capitals(Record):
    """Capitals of all hypotheses of one proof."""

    faster: Capital = Capital()
    slower: Capital = Capital()
    above_margin: Capital = Capital()
    below_margin: Capital = Capital()
    busy_faster: Capital = Capital()
    slow_steps: Capital = Capital()
    long_faster: Capital = Capital()
    long_slower: Capital = Capital()

    def sides(self, *, long: bool) -> tuple[float, float]:
        """Return the evidence for faster and for slower; `long` says that long pairs were bet on.

        A capital without bets is 0, which is more than one that has lost.
        """
        if not long:
            return self.faster.log_e, self.slower.log_e
        return (
            max(self.faster.log_e, self.long_faster.log_e),
            max(self.slower.log_e, self.long_slower.log_e),
        )

    def after(self, **differences: float) -> Capitals:
        """Return the capitals after one bet each, on differences by the capital's name, in scales.

        A positive difference supports the side that the capital is named after.
        """
        logs = factors(np.array(list(differences.values())))
        new = {
            name: Capital.model_construct(
                logs=tuple((np.array(getattr(self, name).logs) + row).tolist())
            )
            for name, row in zip(differences, logs, strict=True)
        }
        return self.model_copy(update=new)

    def after_short(self, d: float, *, scale: float, margin: float) -> Capitals:
        """Return the capitals after the difference of a pair of short blocks."""
        return self.after(
            faster=-d / scale,
            slower=d / scale,
            above_margin=(d + margin) / scale,
            below_margin=(margin - d) / scale,
        )

    def after_long(self, d: float, *, scale: float) -> Capitals:
        """Return the capitals after the difference of a pair of long blocks."""
        return self.after(long_faster=-d / scale, long_slower=d / scale)

    def after_busy(self, d_busy: float, *, scale: float) -> Capitals:
        """Return the capitals after the difference of GPU time of a pair."""
        return self.after(busy_faster=-d_busy / scale)

    def after_slow_steps(self, *, on: int, off: int) -> Capitals:
        """Return the capitals after the numbers of slow steps of a pair; the scale is one step."""
        if on == off:
            return self
        return self.after(slow_steps=float(on - off))


@dataclass(frozen=True, slots=True)
class Bets:
    """How the capital of one hypothesis is bet."""

    shifts: tuple[int, ...]
    """Which of `SHIFTS`."""
    weights: Floats
    """Share of the capital that is bet on each of them; they add up to 1."""
    farthest_z: float = math.inf
    """A larger difference counts as this one, in scales."""


BETS = Bets(tuple(range(len(SHIFTS))), _WEIGHTS)
"""Of pairs of blocks."""


def log_e(
    d: Sequence[float], scales: Sequence[float], *, m: float, side: int, bets: Bets = BETS
) -> float:
    """Return log E(m, side) after all pairs: against an effect of at most m, or at least m.

    Parameters
    ----------
    d
        Log ratios of the pairs.
    scales
        Their scales, each known before its pair.
    m
        Effect of the hypothesis.
    side
        `SLOWER` rejects effects up to m, `FASTER` effects from m on.
    bets
        How the capital is bet.
    """
    return float(log_es(np.asarray(d), np.asarray(scales), np.array([m]), side=side, bets=bets)[0])


def log_es(d: Floats, scales: Floats, ms: Floats, *, side: int, bets: Bets = BETS) -> Floats:
    """Return log E(m, side) for each of several m; see `log_e`."""
    if not len(d):
        return np.zeros(len(ms))
    z = side * (d[None, :] - ms[:, None]) / scales[None, :]
    z = np.clip(z, -bets.farthest_z, bets.farthest_z)
    logs = factors(z.ravel())[:, bets.shifts].reshape(len(ms), len(d), len(bets.shifts))
    return _mixed(logs.sum(axis=1), bets.weights)


def _mixed(logs: Floats, weights: Floats = _WEIGHTS) -> Floats:
    """Return log E of each row of capitals, of shape (rows, shifts)."""
    top = logs.max(axis=1)
    return np.asarray(top + np.log((np.exp(logs - top[:, None]) * weights).sum(axis=1)))


def scale_of(sham: Sequence[float] | Floats, earlier: Sequence[float] | Floats) -> float:
    """Return the scale for the next pair: 1.4826 x the median absolute deviation.

    Sham pairs deviate from 0, earlier pairs from their median, since the swap may have an effect.
    """
    before = np.asarray(earlier, dtype=np.float64)
    centred = before - _middle(before) if len(before) else before
    pool = np.abs(np.concatenate([np.asarray(sham, dtype=np.float64), centred]))
    if len(pool) < _LEAST_FOR_SCALE:
        return _FIRST_SCALE
    return max(1.4826 * _middle(pool), _LEAST_SCALE)


def location(d: Sequence[float], scales: Sequence[float]) -> float:
    """Return the effect: the location for noise of Student's t with 3 degrees of freedom.

    Raises
    ------
    ValueError
        If `d` is empty.
    """
    values, widths = np.asarray(d, dtype=np.float64), np.asarray(scales, dtype=np.float64)
    if not len(values):
        raise ValueError("an effect needs at least one pair")
    at = _middle(values)
    for _ in range(20):
        weight = 1.0 / (3.0 * widths**2 + (values - at) ** 2)
        at = float((weight * values).sum() / weight.sum())
    return at


def interval(
    d: Sequence[float], scales: Sequence[float], *, log_bound: float
) -> tuple[float | None, float | None]:
    """Return the effects that neither side rejects: an interval around `location`.

    From the location outwards, in steps that grow from a tenth of a scale by a tenth each, the
    first rejected effect is searched on each side, up to a log ratio of 0.5; bisection then finds
    the border. Effects beyond a rejected one count as rejected. An end is None if no effect on its
    side is rejected.
    """
    if not len(d):
        return None, None
    values, widths = np.asarray(d, dtype=np.float64), np.asarray(scales, dtype=np.float64)
    at, width = location(d, scales), float(widths[-1])
    offsets = [0.1 * width]
    while offsets[-1] < _FARTHEST:
        offsets.append(offsets[-1] * 1.1)
    ends: list[float | None] = []
    for side in (SLOWER, FASTER):
        ms = at - side * np.array([0.0, *offsets])
        rejected = log_es(values, widths, ms, side=side) >= log_bound
        ends.append(
            _border(values, widths, ms, rejected=rejected, side=side, log_bound=log_bound)
            if rejected.any()
            else None
        )
    return ends[0], ends[1]


def _border(
    d: Floats,
    scales: Floats,
    ms: Floats,
    *,
    rejected: np.typing.NDArray[np.bool_],
    side: int,
    log_bound: float,
) -> float:
    first = int(rejected.argmax())
    outer, inner = float(ms[first]), float(ms[max(first - 1, 0)])
    for _ in range(30):
        middle = 0.5 * (outer + inner)
        if log_es(d, scales, np.array([middle]), side=side)[0] >= log_bound:
            outer = middle
        else:
            inner = middle
    return outer


def visible_effect(scale: float, pairs: float) -> float:
    """Return the least effect that so many pairs show in four of five proofs, log ratio.

    The factor 6 is that of the simulations in ``benchmarks/live_proof.py``.
    """
    return _VISIBLE * scale / math.sqrt(max(pairs, 1.0))


def _middle(values: Floats) -> float:
    """Return the median; numpy's own would load its masked arrays, six megabytes."""
    ordered = np.sort(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return float(ordered[half])
    return float(0.5 * (ordered[half - 1] + ordered[half]))
