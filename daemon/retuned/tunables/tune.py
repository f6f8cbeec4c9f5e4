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
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from retuned.errors import CandidateError
from retuned.runtime.tunables.records import canonical
from retuned.tunables.edges import Edge, edges_of, narrowed
from retuned.tunables.search import Config, key_of, proposals, space_of

log = logging.getLogger(__name__)

MIN_GAIN_RATIO = 1.03
"""Least lower bound of a speedup for a rule."""
MAX_ERROR = 1e-2
"""Distance of outputs over their norm; bf16 configurations differ by up to 4e-3. The child scales
the distance of other element types."""
MAX_WORST = 0.05
"""Largest difference of an element over the largest element."""
MAX_FLOAT64_RATIO = 2.0
"""Distance from float64, over that of the server's own choice."""
LEAST_FLOAT64 = 4e-3
"""Distances from float64 up to this are rounding of the outputs."""
MAX_OWN_FLOAT64 = 0.1
"""If the server's own choice is farther from float64, the reference is not of this launch."""
CHECK_S = 90.0
"""Longest time for one request of the search, compilation included."""
MAX_RESTARTS = 3
"""Children that one size class may use up after the first."""
ENDED = ("crashed", "hangs", "device-memory")
"""Reasons after which a process is not used again: its device context may be damaged."""
_PAIRS_S = 30.0
_QUICK, _CONFIRM = 6, 25
_SLICE = 5
"""Pairs within one pause of a server."""
Exclusive = Callable[[], AbstractContextManager[None]]
Recipe = Mapping[str, Any]


class Runner(Protocol):
    """A process that answers; a `Child` is one."""

    def ask(self, request: Mapping[str, Any], *, limit_s: float) -> dict[str, Any]:
        """Return the answer to a request."""
        ...

    def restart(self) -> None:
        """End the process and start another one, without any case."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far outputs of a configuration lie apart from others, over their norm."""

    error: float = 0.0
    """From those of the server's own choice."""
    own_float64: float | None = None
    """The server's own choice from float64; None where the function is not known."""
    float64: float | None = None
    """The configuration from float64."""

    def farthest(self, other: Distance) -> Distance:
        """Return the larger of both distances; those from float64 stay together."""
        one, two = (-1.0 if each.float64 is None else each.float64 for each in (self, other))
        kept = self if one >= two else other
        return replace(kept, error=max(self.error, other.error))


def checked(
    child: Runner, case: int, config: Config | None, *, seed: int, limit_s: float = CHECK_S
) -> Distance:
    """Compare a configuration with the server's own choice, and both with float64.

    Inputs are fresh.

    Raises
    ------
    CandidateError
        ``wrote-outside``, ``wrong-result``, or the child's reason.
    """
    request = {"op": "check", "case": case, "config": config, "seed": seed}
    said = child.ask(request, limit_s=limit_s)
    if not said["intact"]:
        raise CandidateError("wrote-outside", detail="a guard zone was overwritten")
    error = float(said["error"])
    if not error <= max(MAX_ERROR, 4.0 * float(said["spread"])) or said["worst"] > MAX_WORST:
        raise CandidateError("wrong-result", detail=f"outputs differ by {error:.2e}")
    distance = Distance(error=error)
    if said.get("float64") is not None:
        own, found = float(said["float64"]["own"]), float(said["float64"]["found"])
        distance = Distance(error=error, own_float64=own, float64=found)
        known = own <= MAX_OWN_FLOAT64
        if known and not found <= max(LEAST_FLOAT64, MAX_FLOAT64_RATIO * own):
            detail = f"{found:.2e} from float64, the server's own choice {own:.2e}"
            raise CandidateError("wrong-result", detail=detail)
    return distance


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
    """Reason code of a class without a rule; else empty."""
    seconds: float = 0.0
    space: int = 0
    edges: Mapping[str, str] = field(default_factory=dict, hash=False)
    """By end of the class: empty if the winner is right and no slower there, else the reason."""

    @property
    def when(self) -> dict[str, tuple[int, int]]:
        """Ranges of the class's rule."""
        return narrowed(self.axes, [end for end, reason in self.edges.items() if reason])


def tune_class(
    child: Runner,
    report: Mapping[str, Any],
    recipe: Recipe,
    *,
    base: Config | None = None,
    exclusive: Exclusive = contextlib.nullcontext,
    slice_s: float = 0.4,
    deadline_s: float = math.inf,
    most: int = 2**31,
    seed: int = 1,
    recorded: Sequence[Recipe] = (),
) -> ClassResult:
    """Search one size class.

    Parameters
    ----------
    base
        Configuration of the table in force, which candidates are timed against; None is the
        server's own choice. Outputs are compared with the server's own choice.
    exclusive
        Entered around each slice of timing.
    slice_s
        Longest slice, seconds.
    most
        Most candidates.
    deadline_s
        Moment of the monotonic clock after which no candidate begins.
    recorded
        Launches that the server described beside the recipe; see `edges_of`.
    """
    begin_s = time.monotonic()
    axes = dict(recipe["axes"])
    bench = _Bench(child, recipe, base=base, exclusive=exclusive, slice_s=slice_s)
    try:
        bench.open()
    except CandidateError as error:
        log.info("%s at %s is not tried: %s", report["id"], axes, error)
        return ClassResult(axes=axes, in_force_us=0.0, reason=error.reason)
    space = space_of(report, axes=axes, in_force=recipe["call"].get("in_force"))
    tried: dict[str, float] = {}
    trials: list[Trial] = []
    while len(trials) < most and time.monotonic() < deadline_s:
        config = proposals(space, tried)
        if config is None:
            break
        trial = bench.trial(config, seed=seed)
        tried[key_of(config)] = trial.us
        trials.append(trial)
        if not bench.usable:
            break
    good = [each for each in trials if each.us < math.inf]
    result = ClassResult(
        axes=axes,
        in_force_us=bench.in_force_us,
        trials=tuple(trials),
        space=len(space.configs),
        reason="nothing-to-gain" if good else "nothing-works" if trials else "no-time-left",
    )
    if not bench.usable:
        result = _with(result, reason="child-ended")
    elif good:
        result = bench.confirm(result, min(good, key=lambda each: each.us), seed=seed + 1)
    bench.close()
    if result.best is not None:
        result = _at_edges(result, bench, edges_of(recipe, recorded), deadline_s=deadline_s)
    return _with(result, seconds=round(time.monotonic() - begin_s, 2))


def _at_edges(
    result: ClassResult, bench: _Bench, edges: Sequence[Edge], *, deadline_s: float
) -> ClassResult:
    """Hold the winner against the server's choice at both ends of its class.

    An end that could not be built or measured stays in the rule: it says nothing.
    """
    assert result.best is not None, "asked before"
    found: dict[str, str] = {}
    for number, edge in enumerate(edges):
        if time.monotonic() < deadline_s:
            reason = bench.at_edge(edge.recipe, result.best, seed=101 + number)
            if reason is not None:  # each process of a server can have other ends: one is enough
                found[edge.end] = found.get(edge.end) or reason
    return _with(result, edges=found)


def _with(result: ClassResult, **changed: Any) -> ClassResult:  # noqa: ANN401
    fields = {name: getattr(result, name) for name in result.__dataclass_fields__}
    return ClassResult(**{**fields, **changed})


class _Bench:
    """One size class in a child that may have to be replaced."""

    def __init__(
        self,
        child: Runner,
        recipe: Recipe,
        *,
        base: Config | None,
        exclusive: Exclusive,
        slice_s: float,
    ) -> None:
        self._child, self._recipe, self._exclusive = child, recipe, exclusive
        self._base, self._slice_s = base, slice_s
        self._restarts = 0
        self._case = -1
        self.in_force_us = 0.0
        self.usable = True

    def open(self) -> None:
        """Build the class's private tensors in the child."""
        request = {"op": "open", "recipe": self._recipe}
        self._case = self._child.ask(request, limit_s=CHECK_S)["case"]

    def close(self) -> None:
        """Free them; a child that has ended holds none."""
        with contextlib.suppress(CandidateError):
            self._child.ask({"op": "close", "case": self._case}, limit_s=CHECK_S)

    def trial(self, config: Config, *, seed: int) -> Trial:
        """Check and time one configuration; replace a child that it ended."""
        try:
            error = checked(self._child, self._case, config, seed=seed).error
            pairs = self._pairs(config, count=_QUICK, seed=seed)
        except CandidateError as failure:
            if failure.reason in ENDED:
                self._replace(failure)
            return Trial(config=config, us=math.inf, reason=failure.reason)
        self.in_force_us = self.in_force_us or statistics.median(base for base, _ in pairs)
        ratio = statistics.median(a / b for a, b in pairs)
        return Trial(config=config, us=self.in_force_us / ratio, error=error)

    def _replace(self, failure: CandidateError) -> None:
        log.warning(
            "%s at %s: the child is replaced: %s, %r",
            self._recipe["tunable"],
            self._recipe["axes"],
            failure.reason,
            failure.detail[-300:],
        )
        self._restarts += 1
        try:
            self.usable = self._restarts <= MAX_RESTARTS
            if self.usable:
                self._child.restart()
                self.open()
        except CandidateError as error:
            log.warning("no other child for %s: %s", self._recipe["tunable"], error)
            self.usable = False

    def _pairs(self, config: Config, *, count: int, seed: int) -> list[tuple[float, float]]:
        found: list[tuple[float, float]] = []
        while len(found) < count:
            request = {
                "op": "pairs",
                "case": self._case,
                "configs": [self._base, config],
                "pairs": min(_SLICE, count - len(found)),
                "seed": seed + len(found),
                "seconds": self._slice_s,
            }
            if not found:  # compile and capture outside of a pause
                self._child.ask({**request, "pairs": 1}, limit_s=_PAIRS_S)
            with self._exclusive():
                said = self._child.ask(request, limit_s=_PAIRS_S)
            found += [(float(a), float(b)) for a, b in said["pairs"]]
        return found

    def at_edge(self, recipe: Recipe, config: Config, *, seed: int) -> str | None:
        """Return why a configuration loses at another size; empty if it does not.

        None if nothing was measured there.
        """
        beside = _Bench(
            self._child,
            recipe,
            base=self._base,
            exclusive=self._exclusive,
            slice_s=self._slice_s,
        )
        try:
            beside.open()
        except CandidateError as error:  # such as no memory for the larger one
            log.info("%s is not measured at %s: %s", recipe["tunable"], recipe["axes"], error)
            return None
        try:
            checked(self._child, beside._case, config, seed=seed)
            pairs = beside._pairs(config, count=_CONFIRM, seed=seed)
        except CandidateError as failure:
            if failure.reason in ENDED:
                with contextlib.suppress(CandidateError):  # the next request meets it again
                    self._child.restart()
            return failure.reason
        finally:
            beside.close()
        logs = [math.log(a / b) for a, b in pairs]
        return "slower" if math.exp(-_low_median([-each for each in logs])) < 1.0 else ""

    def confirm(self, result: ClassResult, best: Trial, *, seed: int) -> ClassResult:
        """Measure the winner again on fresh inputs."""
        try:
            error = checked(self._child, self._case, best.config, seed=seed).error
            pairs = self._pairs(best.config, count=_CONFIRM, seed=seed)
        except CandidateError as failure:
            if failure.reason in ENDED:
                self._replace(failure)
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
            "when": {name: list(ends) for name, ends in each.when.items()},
            "config": dict(each.best),
        }
        for each in results
        if each.best is not None
    ]
    rules = list({canonical(each["when"]): each for each in reversed(rules)}.values())[::-1]
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
    return rules


def chosen(rules: Sequence[Mapping[str, Any]], axes: Mapping[str, int]) -> Config | None:
    """Return the configuration of the first rule that matches; None keeps the server's."""
    for rule in rules:
        if all(low <= axes[name] <= high for name, (low, high) in rule["when"].items()):
            found: Config = rule["config"]
            return found
    return None


def _joins(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two rules with one configuration differ in one axis only, and touch there."""
    if one["config"] != other["config"] or set(one["when"]) != set(other["when"]):
        return False
    differing = [name for name in one["when"] if one["when"][name] != other["when"][name]]
    if len(differing) != 1:
        return False
    (first, last), (begin, end) = one["when"][differing[0]], other["when"][differing[0]]
    return bool(begin == last + 1 or first == end + 1)
