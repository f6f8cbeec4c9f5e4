"""Search over the size classes of one tunable, and the table that follows.

Each class is searched by itself, against what the server launches there. A winner is confirmed on
fresh inputs; a class without a clear gain keeps the server's choice.
"""

from __future__ import annotations

import contextlib
import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from retuned.errors import CandidateError
from retuned.tunables.search import Config, key_of, proposals, space_of

log = logging.getLogger(__name__)

MIN_GAIN_RATIO = 1.03
"""Least lower bound of a speedup for a rule."""
MAX_ERROR = 1e-2
"""Distance of outputs over their norm; bf16 configurations differ by up to 3e-3."""
MAX_WORST = 0.05
"""Largest difference of an element over the largest element."""
_CHECK_S = 90.0
_PAIRS_S = 30.0
_QUICK, _CONFIRM = 6, 25
_SLICE = 5
"""Pairs within one pause of a server."""
Exclusive = Callable[[], AbstractContextManager[None]]
Recipe = Mapping[str, Any]


class Runner(Protocol):
    """A process that answers; `ChildProcess` is one."""

    def ask(self, request: Mapping[str, Any], *, limit_s: float) -> dict[str, Any]:
        """Return the answer to a request."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One configuration at one size class."""

    config: Config = field(hash=False)
    us: float
    """Infinite for one that failed."""
    reason: str = ""
    error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassResult:
    """Outcome of one size class."""

    axes: Mapping[str, int] = field(hash=False)
    in_force_us: float
    best: Config | None = field(default=None, hash=False)
    best_us: float = math.inf
    ratio: float = 1.0
    low: float = 1.0
    """Lower bound of the ratio, 95 %."""
    pairs: tuple[tuple[float, float], ...] = field(default=(), hash=False)
    error: float = 0.0
    trials: tuple[Trial, ...] = ()
    reason: str = ""
    """Why there is no rule; empty where there is one."""
    seconds: float = 0.0
    space: int = 0


def tune_class(
    child: Runner,
    report: Mapping[str, Any],
    recipe: Recipe,
    *,
    exclusive: Exclusive = contextlib.nullcontext,
    deadline_s: float = math.inf,
    seed: int = 1,
) -> ClassResult:
    """Search one size class.

    Parameters
    ----------
    exclusive
        Entered around each slice of timing.
    deadline_s
        Moment of the monotonic clock after which no candidate begins.
    """
    begin_s = time.monotonic()
    axes = dict(recipe["axes"])
    try:
        case = child.ask({"op": "open", "recipe": recipe}, limit_s=_CHECK_S)["case"]
    except CandidateError as error:
        log.info("%s at %s is not tried: %s", report["id"], axes, error)
        return ClassResult(axes=axes, in_force_us=0.0, reason=error.reason)
    space = space_of(report, axes=axes, in_force=recipe["call"].get("in_force"))
    bench = _Bench(child, case, exclusive=exclusive)
    tried: dict[str, float] = {}
    trials: list[Trial] = []
    while (config := proposals(space, tried)) is not None and time.monotonic() < deadline_s:
        trial = bench.trial(config, seed=seed)
        tried[key_of(config)] = trial.us
        trials.append(trial)
        if trial.reason in ("hangs", "crashed") and not bench.alive:
            break
    good = [each for each in trials if each.us < math.inf]
    result = ClassResult(
        axes=axes,
        in_force_us=bench.in_force_us,
        trials=tuple(trials),
        space=len(space.configs),
        reason="nothing-works" if not good else "nothing-to-gain",
    )
    if good and bench.alive:
        result = bench.confirm(result, min(good, key=lambda each: each.us), seed=seed + 1)
    with contextlib.suppress(CandidateError):
        child.ask({"op": "close", "case": case}, limit_s=_CHECK_S)
    return _with(result, seconds=round(time.monotonic() - begin_s, 2))


def _with(result: ClassResult, **changed: Any) -> ClassResult:  # noqa: ANN401
    fields = {name: getattr(result, name) for name in result.__dataclass_fields__}
    return ClassResult(**{**fields, **changed})


class _Bench:
    def __init__(self, child: Runner, case: int, *, exclusive: Exclusive) -> None:
        self._child, self._case, self._exclusive = child, case, exclusive
        self.in_force_us = 0.0
        self.alive = True

    def trial(self, config: Config, *, seed: int) -> Trial:
        """Check and time one configuration."""
        try:
            checked = self._checked(config, seed=seed)
            pairs = self._pairs(config, count=_QUICK, seed=seed)
        except CandidateError as error:
            self.alive = self.alive and error.reason not in ("hangs", "crashed")
            return Trial(config=config, us=math.inf, reason=error.reason)
        self.in_force_us = self.in_force_us or statistics.median(base for base, _ in pairs)
        ratio = statistics.median(a / b for a, b in pairs)
        return Trial(config=config, us=self.in_force_us / ratio, error=checked)

    def _checked(self, config: Config, *, seed: int) -> float:
        said = self._child.ask(
            {"op": "check", "case": self._case, "config": config, "seed": seed}, limit_s=_CHECK_S
        )
        if not said["intact"]:
            raise CandidateError("wrote-outside", detail="a guard zone was overwritten")
        error = float(said["error"])
        if not error <= max(MAX_ERROR, 4.0 * float(said["spread"])) or said["worst"] > MAX_WORST:
            raise CandidateError("wrong-result", detail=f"outputs differ by {error:.2e}")
        return error

    def _pairs(self, config: Config, *, count: int, seed: int) -> list[tuple[float, float]]:
        found: list[tuple[float, float]] = []
        while len(found) < count:
            request = {
                "op": "pairs",
                "case": self._case,
                "configs": [None, config],
                "pairs": min(_SLICE, count - len(found)),
                "seed": seed + len(found),
                "seconds": 0.4,
            }
            if not found:  # compile and capture outside of a pause
                self._child.ask({**request, "pairs": 1}, limit_s=_PAIRS_S)
            with self._exclusive():
                said = self._child.ask(request, limit_s=_PAIRS_S)
            found += [(float(a), float(b)) for a, b in said["pairs"]]
        return found

    def confirm(self, result: ClassResult, best: Trial, *, seed: int) -> ClassResult:
        """Measure the winner again on fresh inputs."""
        try:
            error = self._checked(best.config, seed=seed)
            pairs = self._pairs(best.config, count=_CONFIRM, seed=seed)
        except CandidateError as failure:
            return _with(result, reason=failure.reason)
        logs = [math.log(a / b) for a, b in pairs]
        middle = statistics.median(logs)
        low = math.exp(_low_median(logs))
        found = _with(
            result,
            in_force_us=statistics.median(a for a, _ in pairs),
            best_us=statistics.median(b for _, b in pairs),
            ratio=math.exp(middle),
            low=low,
            pairs=tuple(pairs),
            error=error,
        )
        if low < MIN_GAIN_RATIO:
            return found
        return _with(found, best=best.config, reason="")


def _low_median(values: Sequence[float]) -> float:
    """Return a lower bound of the median at 97.5 %: an order statistic of the sign test."""
    ordered = sorted(values)
    count, below, index = len(ordered), 0.0, 0
    while index < count:
        below += math.comb(count, index) / 2**count
        if below > 0.025:
            break
        index += 1
    return ordered[max(0, index - 1)]


def rules_of(results: Sequence[ClassResult]) -> list[dict[str, Any]]:
    """Return the rules of a table: one for each class with a winner, neighbours merged.

    Examples
    --------
    >>> found = [ClassResult(axes={"tokens": n}, in_force_us=2.0, best={"a": 1}) for n in (64, 100)]
    >>> rules_of(found)
    [{'when': {'tokens': [33, 128]}, 'config': {'a': 1}}]
    """
    rules = [
        {
            "when": {name: _range(name, value) for name, value in each.axes.items()},
            "config": dict(each.best),
        }
        for each in results
        if each.best is not None
    ]
    merged = True
    while merged:
        merged = False
        for one in rules:
            other = next((each for each in rules if each is not one and _joins(one, each)), None)
            if other is not None:
                axis = next(n for n in one["when"] if one["when"][n] != other["when"].get(n))
                low, high = zip(one["when"][axis], other["when"][axis], strict=True)
                one["when"][axis] = [min(low), max(high)]
                rules.remove(other)
                merged = True
                break
    unique = []
    for each in rules:
        if each not in unique:
            unique.append(each)
    return unique


def _range(axis: str, value: int) -> list[int]:
    if axis == "decode" or value <= 1:
        return [value, value]
    upper = 1 << (value - 1).bit_length()
    return [upper // 2 + 1, upper]


def _joins(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two rules with one configuration differ in one axis only, and touch there."""
    if one["config"] != other["config"] or set(one["when"]) != set(other["when"]):
        return False
    differing = [name for name in one["when"] if one["when"][name] != other["when"][name]]
    if len(differing) != 1:
        return False
    (first, last), (begin, end) = one["when"][differing[0]], other["when"][differing[0]]
    return bool(begin == last + 1 or first == end + 1)
