"""Small pure statistics that several stages share. Arrays and numbers in, numbers out; no records.

Nothing here draws random numbers without a generator from its caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BIN_RATIO = 1.02
"""Width of one finest bin of a duration sketch: quantiles are right within 1 %."""
BINS_MAX = 64
"""Bins a sketch holds before it halves its resolution; bounds its memory."""
_PER_LOG = 1.0 / log(BIN_RATIO)


class DurationSketch:
    """Quantiles of positive integers in bounded memory: a log-scale histogram.

    Value ``x`` falls in bin ``floor(ln x / ln 1.02)``. When more than 64 bins are filled,
    neighbours are joined in pairs until they fit: the relative error is 1 % while values span up to
    64 filled bins and doubles with each joining. Sum and count are exact.

    Source: Masson, Rim, Lee, "DDSketch", VLDB 2019; the joining is UDDSketch, Epicoco et al. 2020.

    Examples
    --------
    >>> sketch = DurationSketch()
    >>> for ns in (100, 100, 105, 9_000):
    ...     sketch.add(ns)
    >>> (sketch.count, sketch.total, 99 <= sketch.quantile(0.5) <= 106)
    (4, 9305, True)
    """

    __slots__ = ("bins", "count", "shift", "total")

    def __init__(self) -> None:
        self.bins: dict[int, int] = {}
        self.shift = 0
        self.count = 0
        self.total = 0

    def add(self, value: int) -> None:
        """Count one value.

        Raises
        ------
        ValueError
            If `value` is not positive.
        """
        index = int(log(value) * _PER_LOG) >> self.shift
        self.count += 1
        self.total += value
        try:
            self.bins[index] += 1
        except KeyError:
            self.bins[index] = 1
            if len(self.bins) > BINS_MAX:
                self._coarsen()

    def _coarsen(self) -> None:
        while len(self.bins) > BINS_MAX:
            self.bins = _halved(self.bins)
            self.shift += 1

    def merge(self, other: DurationSketch) -> None:
        """Add all that `other` has counted."""
        while self.shift < other.shift:
            self.bins = _halved(self.bins)
            self.shift += 1
        lift = self.shift - other.shift
        for index, count in other.bins.items():
            self.bins[index >> lift] = self.bins.get(index >> lift, 0) + count
        self.count += other.count
        self.total += other.total
        self._coarsen()

    def middle(self, index: int) -> float:
        """Geometric middle of a bin."""
        return exp((index + 0.5) * (1 << self.shift) / _PER_LOG)

    def quantile(self, share: float) -> int:
        """Return the value below which `share` (0 to 1) of the counted values lie; 0 when empty."""
        seen = 0
        for index in sorted(self.bins):
            seen += self.bins[index]
            if seen >= share * self.count:
                return round(self.middle(index))
        return 0

    def clusters(
        self, *, gap_ratio: float, count_min: int, clusters_max: int
    ) -> tuple[DurationSketch, ...]:
        """Split where no value lies for a factor of `gap_ratio`; shortest first.

        A part with fewer than `count_min` values is an outlier and joins its nearest neighbour, and
        so does the smallest part while there are more than `clusters_max`.
        """
        parts: list[list[int]] = []
        for index in sorted(self.bins):
            if parts and self.middle(index) / self.middle(parts[-1][-1]) < gap_ratio:
                parts[-1].append(index)
            else:
                parts.append([index])
        while len(parts) > 1:
            sizes = [sum(self.bins[i] for i in part) for part in parts]
            smallest = sizes.index(min(sizes))
            if sizes[smallest] >= count_min and len(parts) <= clusters_max:
                break
            _join_nearest(parts, smallest)
        return (self,) if len(parts) == 1 else tuple(self._part(part) for part in parts)

    def _part(self, indexes: Sequence[int]) -> DurationSketch:
        part = DurationSketch()
        part.shift = self.shift
        part.bins = {index: self.bins[index] for index in indexes}
        part.count = sum(part.bins.values())
        part.total = round(sum(self.middle(i) * n for i, n in part.bins.items()))
        return part


def _halved(bins: dict[int, int]) -> dict[int, int]:
    joined: dict[int, int] = {}
    for index, count in bins.items():
        joined[index >> 1] = joined.get(index >> 1, 0) + count
    return joined


def _join_nearest(parts: list[list[int]], at: int) -> None:
    """Join part `at` with the neighbour that is nearer on the log scale, in place."""
    left = parts[at][0] - parts[at - 1][-1] if at > 0 else None
    right = parts[at + 1][0] - parts[at][-1] if at + 1 < len(parts) else None
    into = at - 1 if right is None or (left is not None and left <= right) else at
    parts[into : into + 2] = [parts[into] + parts[into + 1]]


def jensen_shannon(shares: Floats, rows: Floats) -> Floats:
    """Jensen-Shannon divergence, base 2, of one distribution to each row; 0 same, 1 disjoint.

    ``JSD(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2``.

    Parameters
    ----------
    shares
        Shape (keys,), sums to one.
    rows
        Shape (profiles, keys), each row sums to one.

    Returns
    -------
    ndarray
        Shape (profiles,), clipped to [0, 1] against rounding.

    Examples
    --------
    >>> jensen_shannon(np.array([1.0, 0.0]), np.array([[1.0, 0.0], [0.0, 1.0]])).tolist()
    [0.0, 1.0]
    """
    mixed = _entropy((rows + shares) / 2)
    divergence: Floats = np.clip(mixed - (_entropy(rows) + _entropy(shares)) / 2, 0.0, 1.0)
    return divergence


def _entropy(rows: Floats) -> Floats:
    """Shannon entropy over the last axis, bits."""
    entropy: Floats = -np.sum(rows * np.log2(np.maximum(rows, 1e-300)), axis=-1)
    return entropy


def median(values: npt.ArrayLike) -> float:
    """Return the median of all values, bit for bit as numpy's, which loads six megabytes for it.

    ``np.median`` looks for masks, and so imports ``numpy.ma``; a sidecar has little memory.

    Raises
    ------
    ValueError
        Without values.

    Examples
    --------
    >>> median([3.0, 1.0, 2.0]), median([4, 1, 2, 8])
    (2.0, 3.0)
    """
    ordered = np.sort(np.asarray(values), axis=None)
    if not ordered.size:
        raise ValueError("no median without values")
    if np.isnan(ordered[-1]):  # NaN sorts last
        return float("nan")
    middle = ordered.size // 2
    if ordered.size % 2:
        return float(ordered[middle])
    return float(np.mean(ordered[middle - 1 : middle + 1]))


def robust_centre(values: Floats) -> tuple[float, float]:
    """Median, and median absolute deviation scaled to a normal's standard deviation.

    Examples
    --------
    >>> robust_centre(np.array([1.0, 2.0, 3.0, 4.0, 1000.0]))
    (3.0, 1.4826)
    """
    centre = median(values)
    return centre, 1.4826 * median(np.abs(values - centre))


def medoids(distances: Floats, count: int) -> list[int]:
    """Indexes of at most `count` rows such that every row has a medoid near; deterministic.

    Starts from the overall medoid and the farthest-first rows, then alternates assignment and
    re-centring (Park & Jun 2009) until nothing moves, at most 20 rounds.

    Parameters
    ----------
    distances
        Shape (n, n), symmetric, zero diagonal.
    count
        Medoids wanted; all rows when there are not more.

    Examples
    --------
    >>> points = np.array([0.0, 0.1, 0.2, 9.0, 9.1])
    >>> medoids(np.abs(points[:, None] - points[None, :]), 2)
    [1, 3]
    """
    if len(distances) <= count:
        return list(range(len(distances)))
    chosen = [int(np.argmin(distances.sum(axis=1)))]
    while len(chosen) < count:
        chosen.append(int(np.argmax(distances[:, chosen].min(axis=1))))
    for _ in range(20):
        nearest = np.argmin(distances[:, chosen], axis=1)
        groups = [np.flatnonzero(nearest == i) for i in range(count)]
        moved = [
            int(group[np.argmin(distances[np.ix_(group, group)].sum(axis=1))])
            if len(group)
            else old
            for group, old in zip(groups, chosen, strict=True)
        ]
        if moved == chosen:
            break
        chosen = moved
    return sorted(set(chosen))


def cusum_threshold(
    scores: Sequence[Floats],
    *,
    slack: float,
    run_length: float,
    grid: Floats,
    generator: np.random.Generator,
) -> float:
    """Smallest threshold in `grid` at which a CUSUM alarms at most once per `run_length` steps.

    ``S = max(0, S + score - slack)``; an alarm is ``S > threshold`` and sets S back to 0. Blocks of
    consecutive scores are drawn with replacement, which keeps what is correlated within a block
    (Künsch 1989). Returns the largest of the grid where none is enough.

    Parameters
    ----------
    scores
        In-control scores, one array per block of consecutive steps.
    slack
        What is forgiven in every step, in units of the scores (k in the literature).
    run_length
        Wanted mean number of steps between false alarms.
    grid
        Thresholds to choose from, rising.
    generator
        Source of the draws.
    """
    runs, steps = 200, max(64, 4 * round(run_length))
    longest = max(len(block) for block in scores)
    padded = np.stack([np.resize(block, longest) for block in scores])
    picks = generator.integers(len(scores), size=(runs, steps // longest + 1))
    stream = padded[picks].reshape(runs, -1)[:, :steps]
    sums = np.zeros((runs, len(grid)))
    alarms = np.zeros(len(grid))
    for step in range(stream.shape[1]):
        sums = np.maximum(0.0, sums + stream[:, step, None] - slack)
        fired = sums > grid
        alarms += fired.sum(axis=0)
        sums[fired] = 0.0
    allowed = runs * stream.shape[1] / run_length
    enough = np.flatnonzero(alarms <= allowed)
    return float(grid[enough[0]] if len(enough) else grid[-1])
