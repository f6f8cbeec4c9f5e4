"""Numbers of gate G7: ratios of paired blocks and shares of tokens, with their bounds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log, sqrt
from statistics import fmean, stdev

from pydantic import Field

from retuned.contract import Record
from retuned.stages.watch.blocks import Block

_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t at 97.5 %, by degrees of freedom from one on; the last holds from there on."""
_Z_975 = 1.960


class Gain(Record):
    """Share of time saved; below zero time is lost."""

    lower: float = Field(lt=1.0)
    """Lower bound, at 97.5 % on its own."""
    point: float = Field(lt=1.0)
    """Estimate."""
    upper: float = Field(lt=1.0)
    """Upper bound, at 97.5 % on its own."""


def gain_of(off: Sequence[Block], on: Sequence[Block]) -> Gain | None:
    """Return the share of time saved per token: one minus the ratio of times."""
    ratio = interval_of(off, on, lambda b: b.wall_s / b.tokens if b.tokens else None)
    if ratio is None:
        return None
    low, middle, high = ratio
    return Gain(lower=1.0 - exp(high), point=1.0 - exp(middle), upper=1.0 - exp(low))


def interval_of(
    off: Sequence[Block], on: Sequence[Block], value: Callable[[Block], float | None]
) -> tuple[float, float, float] | None:
    """Return bounds and mean of log(on / off) over pairs; None where a block has no value."""
    logs = []
    for before, after in zip(off, on, strict=True):
        one, other = value(before), value(after)
        if one is None or other is None:
            return None
        logs.append(log(other / one))
    if len(logs) < 2:
        return None
    middle = fmean(logs)
    reach = _T_975[min(len(logs) - 1, len(_T_975)) - 1] * stdev(logs) / sqrt(len(logs))
    return middle - reach, middle, middle + reach


def compared_in(blocks: Sequence[Block]) -> float:
    """Return the tokens compared in one pass: passes repeat them and are no further evidence."""
    return fmean(block.compared for block in blocks) if blocks else 0.0


def divergence_of(blocks: Sequence[Block]) -> float:
    """Return the share of compared tokens that differ; 0 where none was compared."""
    compared = sum(block.compared for block in blocks)
    return sum(block.diverged for block in blocks) / compared if compared else 0.0


def share_bounds(rate: float, count: float) -> tuple[float, float]:
    """Return the bounds of a share, at 97.5 % each (Wilson 1927)."""
    if count <= 0.0:
        return 0.0, 1.0
    square = _Z_975**2 / count
    centre = (rate + square / 2.0) / (1.0 + square)
    reach = _Z_975 * sqrt(rate * (1.0 - rate) / count + square / (4.0 * count)) / (1.0 + square)
    return max(0.0, centre - reach), min(1.0, centre + reach)


def mean_of(blocks: Sequence[Block], value: Callable[[Block], float | None]) -> float | None:
    """Return the mean of what blocks have; None where none has it."""
    found = [each for each in map(value, blocks) if each is not None]
    return fmean(found) if found else None


def off_and_on(
    off: Sequence[Block], on: Sequence[Block], value: Callable[[Block], float | None]
) -> tuple[float, float] | None:
    """Return the means off and on; None where either is missing."""
    before, after = mean_of(off, value), mean_of(on, value)
    return (before, after) if before is not None and after is not None else None
