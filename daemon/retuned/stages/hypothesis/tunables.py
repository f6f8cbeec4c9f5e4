"""Hypotheses about tunables: which size classes of recent traffic are worth a search. Pure.

A tunable is a kernel of the server whose launch parameters a table sets by size class. Nothing has
to drift: a choice that was never right is as good a reason as traffic that moved away from it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from retuned.contract import Workload
from retuned.stages.hypothesis.records import Hypothesis, HypothesisSettings, lengths, named

TABLE_STRUCTURE = "table"
"""The only source structure of a tunable."""
LEAST_LAUNCHES = 8
"""Fewest launches of a size class in the observed time."""


class NotTried(StrEnum):
    """Why a tunable gets no experiment; stable codes."""

    NO_TRAFFIC = "no-traffic"
    """No size class was launched often enough in the observed time."""
    NOT_DESCRIBED = "not-described"
    """No launch is described so that an experiment can repeat it."""
    NO_TIME = "time-unknown"
    """The device time of its launches is not known yet."""
    STREAM_IDLE = "stream-idle"
    """The device waited for the host at every launch that was due to be timed."""
    SAVING_TOO_SMALL = "saving-too-small"
    """What a table could save is below `min_saving`."""
    IN_FORCE = "table-in-force"
    """A table is in force for the size classes that matter."""
    ALL_TRIED = "all-tried"
    """Every size class that matters was tried against what the server launches."""
    UNDER_WAY = "under-way"
    """A hypothesis, an experiment or a proposal about it is under way."""
    FAILED = "experiment-failed"
    """The last experiment failed; the next one waits, longer after each failure."""
    SERVER_REFUSES = "server-refuses"
    """The server's runtime cannot change it; the detail has its reason."""
    NO_GPU = "no-gpu-for-experiments"
    """No GPU of the server's model is free, and the policy allows none of the server's time."""
    NO_POLICY = "no-policy"
    """No policy of the cluster allows an experiment on it."""
    PROCESSES_DIFFER = "processes-differ"
    """Processes of the server run different sources, or on different devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Untried:
    """Why a tunable gets no experiment now."""

    reason: NotTried
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedClass:
    """One size class in the observed time."""

    axes: Mapping[str, int] = field(hash=False)
    launches: float
    time_us: float
    """Device time of these launches; an estimate for replays of graphs."""
    gain_ratio: float
    """Expected time of the server's choice over that of the best configuration."""
    ready: bool = True
    """Whether an experiment can repeat a launch of it."""
    how: str = ""
    """How the server chose its configuration; ``table`` under a table."""
    idle: int = 0
    """Launches that were due to be timed, and for which the device waited."""

    @property
    def key(self) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(self.axes.items()))


def together(used: Sequence[UsedClass]) -> list[UsedClass]:
    """Add up the same size classes of several processes or pods."""
    found: dict[tuple[tuple[str, int], ...], UsedClass] = {}
    for each in used:
        other = found.get(each.key)
        found[each.key] = UsedClass(
            axes=each.axes,
            launches=each.launches + (other.launches if other else 0.0),
            time_us=each.time_us + (other.time_us if other else 0.0),
            gain_ratio=each.gain_ratio,
            ready=each.ready or (other is not None and other.ready),
            how=each.how,
            idle=each.idle + (other.idle if other else 0),
        )
    return list(found.values())


def believe_in_table(
    definition: str,
    used: Sequence[UsedClass],
    *,
    busy_us: float,
    observed_s: float,
    tried: Collection[tuple[tuple[str, int], ...]] = (),
    in_force: Collection[tuple[tuple[str, int], ...]] = (),
    world: str = "",
    settings: HypothesisSettings | None = None,
) -> Hypothesis | Untried:
    """Return a hypothesis about a tunable, or why there is none.

    Parameters
    ----------
    used
        Size classes of recent traffic.
    busy_us
        Time in which the server computed, microseconds.
    observed_s
        Length of the observed time, seconds.
    tried
        Keys of classes that an experiment has searched already, see `UsedClass.key`.
    in_force
        Keys of classes that run a table's rules.
    world
        Digest of what runs in production and of the environment.

    Examples
    --------
    >>> used = [UsedClass(axes={"rows": 8192}, launches=100, time_us=4e5, gain_ratio=2.0)]
    >>> belief = believe_in_table("tunable:a", used, busy_us=1e6, observed_s=1.0)
    >>> belief.share, belief.expected_saving, belief.workloads[0].weight
    (0.4, 0.2, 100.0)
    >>> believe_in_table("tunable:a", used, busy_us=1e6, observed_s=1.0,
    ...     tried=[(("rows", 8192),)]).reason.value
    'all-tried'
    """
    settings = settings or HypothesisSettings()
    launched = [each for each in used if each.launches >= LEAST_LAUNCHES]
    if not launched:
        return Untried(
            reason=NotTried.NO_TRAFFIC,
            detail=f"no size class was launched {LEAST_LAUNCHES} times in {observed_s:.0f} s",
        )
    ready = [each for each in launched if each.ready]
    if not ready:
        detail = (
            f"no launch of {len(launched)} size classes can be repeated: none is described yet, or "
            "its whole numbers were not recorded (RETUNED_CAPTURE, capture_inputs, spec.capture)"
        )
        return Untried(reason=NotTried.NOT_DESCRIBED, detail=detail)
    if not any(each.time_us > 0.0 for each in launched):
        return _untimed(launched)
    # rounded once, so that a part is never more than the whole, whatever the order
    total_us = max(busy_us, math.fsum(each.time_us for each in launched))
    fresh = [each for each in ready if each.key not in tried]
    saving = math.fsum(map(_saved_us, fresh)) / total_us
    if saving < settings.min_saving:
        if any(each.key in in_force for each in ready):
            detail = f"{len(in_force)} of {len(launched)} size classes run its rules"
            return Untried(reason=NotTried.IN_FORCE, detail=detail)
        return _too_little(ready, fresh, saving=saving, total_us=total_us, settings=settings)
    kept = sorted(fresh, key=lambda each: -_saved_us(each))[: settings.max_shapes]
    spent_us = math.fsum(each.time_us for each in kept)
    saved_us = math.fsum(map(_saved_us, kept))
    share = spent_us / total_us
    gain = spent_us / (spent_us - saved_us)
    workloads = tuple(
        Workload(definition=definition, axes=dict(each.axes), weight=each.launches / observed_s)
        for each in kept
    )
    where = ", ".join(lengths(each) for each in workloads)
    return named(
        {
            "definition": definition,
            "workloads": workloads,
            "share": share,
            "expected_gain_ratio": gain,
            "expected_saving": saved_us / total_us,
            "because": f"{definition} takes {share:.1%} of the server's time at {where}; "
            f"measurements of its family suggest {gain:.2f}x",
            "structures": (TABLE_STRUCTURE,),
            "world": world,
            "busy_ratio": min(1.0, busy_us / (1e6 * observed_s)) if busy_us else 1.0,
            "whole_us": total_us / observed_s,
        }
    )


def _untimed(launched: Sequence[UsedClass]) -> Untried:
    idle = sum(each.idle for each in launched)
    if not idle:
        detail = f"{len(launched)} size classes were launched and none was timed"
        return Untried(reason=NotTried.NO_TIME, detail=detail)
    detail = (
        f"the device waited for the host at all {idle} launches that were due to be timed: the "
        "host sets the pace, and a faster kernel would wait, too"
    )
    return Untried(reason=NotTried.STREAM_IDLE, detail=detail)


def _saved_us(used: UsedClass) -> float:
    return used.time_us * (1.0 - 1.0 / max(used.gain_ratio, 1.0))


def _too_little(
    ready: Sequence[UsedClass],
    fresh: Sequence[UsedClass],
    *,
    saving: float,
    total_us: float,
    settings: HypothesisSettings,
) -> Untried:
    every = math.fsum(map(_saved_us, ready)) / total_us
    if every >= settings.min_saving:
        detail = f"{len(ready) - len(fresh)} of {len(ready)} size classes were tried"
        return Untried(reason=NotTried.ALL_TRIED, detail=detail)
    share = math.fsum(each.time_us for each in ready) / total_us
    detail = (
        f"takes {share:.1%} of the server's time; a table is expected to save {saving:.2%}, and "
        f"{settings.min_saving:.2%} are required"
    )
    return Untried(reason=NotTried.SAVING_TOO_SMALL, detail=detail)
