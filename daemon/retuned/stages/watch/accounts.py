"""Accounts of tuning: GPU-hours spent against GPU-hours saved, by month.

Spent is the time in which candidates occupied the lab's device. Saved follows from the profiles: if
a swapped kernel took T on the device, its predecessor would have taken T times the speedup, so T
times (speedup - 1) was saved. The bounds are those of the verdict, each at its own confidence. Sums
of bounds are wider than the bound of a sum, which errs to the safe side. A swap that was rolled
back saved nothing. Hours without a profile count as nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from retuned.stages.verdict import Interval

NS_PER_HOUR = 3.6e12
S_PER_HOUR = 3600.0

METHOD = (
    "Spent is the device time of every candidate that was tried. Saved is, for each month, the "
    "device time that profiles saw of the swapped shapes while a swap was in force, times "
    "(speedup - 1); lower and upper use the bounds of the verdict that the swap rests on, and the "
    "bounds of several swaps are added up. Swaps that were rolled back count as nothing saved. "
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
    """By the lower bound of each speedup."""
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
    """GPU-hours that swaps saved."""
    swaps: int = 0
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
    """Return what one swap saved in one month.

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
    >>> saved(hour)
    Hours(lower=0.5, point=1.0, upper=1.5)
    """
    if ran.taken_back:
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
        swaps=len(swaps),
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
        swaps=sum(each.swaps for each in every),
        taken_back=sum(each.taken_back for each in every),
    )
