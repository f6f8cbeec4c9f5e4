"""Accounts of tuning: GPU-hours spent against GPU-hours saved, by month.

Spent is the time in which candidates occupied the lab's device. Saved is what live proofs have
shown: if the kernels of a server took T and a step takes exp(effect) of its former time, T times
(exp(-effect) - 1) was saved. Swaps without such an effect are claims of experiments, counted apart:
if a swapped kernel took T on the device, its predecessor would have taken T times the speedup, so T
times (speedup - 1) is claimed. The bounds
are those of the proof or of the verdict, each at its own confidence. Sums of bounds are wider than
the bound of a sum, which errs to the safe side. A swap that was rolled back saved nothing. Hours
without a profile count as nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from retuned.stages.verdict import Interval
from retuned.stages.watch.proof import EffectInterval, Verdict

NS_PER_HOUR = 3.6e12
SIZED = (Verdict.HELPS, Verdict.HARMS, Verdict.NO_MEASURABLE_EFFECT)
"""Verdicts that have shown an effect; the others leave the claim of the experiment."""
S_PER_HOUR = 3600.0

METHOD = (
    "Spent is the device time of every candidate that was tried. Saved counts swaps whose effect "
    "on the time of a step was measured by a live proof: for each month, the device time of all "
    "kernels that profiles saw while the swap was in force, times (1 / change of step time - 1); "
    "lower and upper use the interval of the proof. Claimed is what experiments claim for the "
    "other swaps, which no server has confirmed: the device time of the swapped shapes times "
    "(speedup - 1), with the bounds of the verdict. Net is saved less spent. The bounds of several "
    "swaps are added up. Swaps that were rolled back count as nothing saved. "
    "Hours without a profile count as nothing saved, and so does everything outside the guard; of "
    "windows that were only sampled the sampled part counts, and of swaps that began with a part "
    "of the launches only the time after that. In a cluster a pod counts with every GPU that it "
    "requests, for each of its ranks runs the kernel: counted windows hold the launches of all "
    "ranks, and in sampled ones the ranks that were looked at stand for the others."
)
"""Explanation of the numbers, shown with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapUsage:
    """Device time of one swap in one month."""

    target: str
    definition: str
    month: str
    """Such as ``2026-11``, UTC."""
    proposal: str
    """Id of its proposal."""
    gpu_ns: float
    """Device time of the swapped shapes that profiles saw, nanoseconds."""
    speedup: Interval
    """Of the verdict, weighted by production."""
    taken_back: bool = False
    """Whether it was rolled back."""
    server_ns: float = 0.0
    """Device time of all kernels in the same profiles, nanoseconds."""
    effect: EffectInterval | None = None
    """What a live proof measured; None if there is only the experiment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentUsage:
    """Device time of one experiment in one month."""

    target: str
    """Server that it was for."""
    definition: str
    month: str
    """Such as ``2026-11``, UTC."""
    experiment: str
    device_s: float
    """Time in which candidates occupied the lab's device, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """A number of GPU-hours with its bounds."""

    lower: float = 0.0
    """By the lower bound of each gain."""
    point: float = 0.0
    """By the estimates."""
    upper: float = 0.0
    """By the upper bounds."""

    def __add__(self, other: Hours) -> Hours:
        return Hours(
            lower=self.lower + other.lower,
            point=self.point + other.point,
            upper=self.upper + other.upper,
        )

    def less(self, spent: float) -> Hours:
        """Subtract the hours that were spent."""
        return Hours(lower=self.lower - spent, point=self.point - spent, upper=self.upper - spent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One kernel of one target in one month."""

    target: str
    """Server; empty in a total over several."""
    definition: str
    """Kernel; empty in a total over several."""
    month: str
    """Such as ``2026-11``, UTC; empty in a total over several."""
    spent_h: float = 0.0
    """GPU-hours that experiments took."""
    experiments: int = 0
    saved_h: Hours = field(default_factory=Hours)
    """GPU-hours that swaps saved, by live proofs."""
    claimed_h: Hours = field(default_factory=Hours)
    """GPU-hours that experiments claim for other swaps."""
    swaps: int = 0
    proven: int = 0
    """Swaps whose effect was measured by a live proof."""
    taken_back: int = 0
    """Swaps that were rolled back and count as nothing saved."""

    @property
    def net_h(self) -> Hours:
        """GPU-hours saved less those spent."""
        return self.saved_h.less(self.spent_h)


def of_all_gpus(gpu_ns: int, *, gpus: int, traced: int) -> int:
    """Return the device time of all GPUs of a server, from a window that sampled some.

    Parameters
    ----------
    gpu_ns
        Device time in the profile, nanoseconds.
    gpus
        GPUs that the server has.
    traced
        GPUs whose launches the profile has; 0 if unknown, and then nothing is added.

    Examples
    --------
    A rank of eight was looked at, or all of them:

    >>> of_all_gpus(100, gpus=8, traced=1), of_all_gpus(800, gpus=8, traced=8)
    (800, 800)
    >>> of_all_gpus(100, gpus=8, traced=0), of_all_gpus(100, gpus=1, traced=2)
    (100, 100)
    """
    return gpu_ns * gpus // traced if 0 < traced < gpus else gpu_ns


def saved(ran: SwapUsage) -> Hours:
    """Return what one swap saved in one month by its live proof; nothing without one.

    An open end of the interval counts as no gain below, and as the effect above.
    """
    live = ran.effect
    if ran.taken_back or live is None:
        return Hours()
    hours = max(ran.server_ns, 0.0) / NS_PER_HOUR
    gains = [
        math.expm1(-each)
        for each in (
            live.high if live.high is not None else max(live.effect, 0.0),
            live.effect,
            live.low if live.low is not None else live.effect,
        )
    ]
    return Hours(lower=hours * gains[0], point=hours * gains[1], upper=hours * gains[2])


def claimed(ran: SwapUsage) -> Hours:
    """Return what one swap without a live effect saves in one month if its experiment is right.

    Examples
    --------
    >>> speedup = Interval(lower=1.5, point=2.0, upper=2.5, confidence=0.99)
    >>> hour = SwapUsage(
    ...     target="t",
    ...     definition="d",
    ...     month="2026-11",
    ...     proposal="p",
    ...     gpu_ns=3.6e12,
    ...     speedup=speedup,
    ... )
    >>> claimed(hour)
    Hours(lower=0.5, point=1.0, upper=1.5)
    """
    if ran.taken_back or ran.effect is not None:
        return Hours()
    hours = max(ran.gpu_ns, 0.0) / NS_PER_HOUR
    speedup = ran.speedup
    return Hours(
        lower=hours * (speedup.lower - 1.0),
        point=hours * (speedup.point - 1.0),
        upper=hours * (speedup.upper - 1.0),
    )


def settle(ran: Iterable[SwapUsage], tried: Iterable[ExperimentUsage]) -> tuple[Account, ...]:
    """Return one account per month, target and kernel; newest month first, then by name.

    Parameters
    ----------
    ran
        Usage of swaps; several records of one swap and month add up.
    tried
        Usage of experiments; several records of one experiment and month add up.
    """
    runs: dict[tuple[str, str, str], list[SwapUsage]] = {}
    tries: dict[tuple[str, str, str], list[ExperimentUsage]] = {}
    for each in ran:
        runs.setdefault((each.month, each.target, each.definition), []).append(each)
    for one in tried:
        tries.setdefault((one.month, one.target, one.definition), []).append(one)
    places = sorted({*runs, *tries}, key=lambda place: place[1:])
    places.sort(key=lambda place: place[0], reverse=True)
    return tuple(_account(place, runs.get(place, []), tries.get(place, [])) for place in places)


def _account(
    place: tuple[str, str, str], runs: Sequence[SwapUsage], tries: Sequence[ExperimentUsage]
) -> Account:
    month, target, definition = place
    swaps = {each.proposal for each in runs}
    back = {each.proposal for each in runs if each.taken_back}
    return Account(
        target=target,
        definition=definition,
        month=month,
        spent_h=sum(each.device_s for each in tries) / S_PER_HOUR,
        experiments=len({each.experiment for each in tries}),
        saved_h=sum((saved(each) for each in runs), Hours()),
        claimed_h=sum((claimed(each) for each in runs), Hours()),
        swaps=len(swaps),
        proven=len({each.proposal for each in runs if each.effect is not None} - back),
        taken_back=len(back),
    )


def total(accounts: Iterable[Account]) -> Account:
    """Return the sum of accounts, without target, kernel and month."""
    every = tuple(accounts)
    return Account(
        target="",
        definition="",
        month="",
        spent_h=sum(each.spent_h for each in every),
        experiments=sum(each.experiments for each in every),
        saved_h=sum((each.saved_h for each in every), Hours()),
        claimed_h=sum((each.claimed_h for each in every), Hours()),
        proven=sum(each.proven for each in every),
        swaps=sum(each.swaps for each in every),
        taken_back=sum(each.taken_back for each in every),
    )
