"""Times beside PyTorch: blocks of baselines and a candidate, and the ratios they give."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from retuned.errors import HarnessError
from retuned.lab.harness.timing import Duel, units_for
from retuned.lab.statistics import ShapeSamples, estimate
from retuned.lab.subject import Array
from retuned.stages.verdict import Interval
from retuned_bench.kernelbench.problem import EagerModel, ProblemSubject
from retuned_bench.kernelbench.process import ProblemRefused

EAGER, COMPILED = "eager", "compiled"

OpenModel = Callable[[], EagerModel]
"""Opens a baseline when it is needed; raises `ProblemRefused`."""

_CONFIDENCE = 0.95

_LEAST_BLOCKS = 5

_MOST_BLOCKS = 25

_UNIT_US = 10_000.0

_SETTLE_S = 0.005
"""Threads of PyTorch wait for more work before they sleep; the candidate is not timed beside them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A candidate's time beside one baseline's."""

    baseline_us: float
    """Median time of the baseline, microseconds."""
    candidate_us: float
    """Median time of the candidate, microseconds."""
    speedup: Interval
    """Baseline over candidate."""
    blocks: int
    """Blocks it rests on."""
    threads: int = 1
    """Threads of the baseline: all, or one where that is faster."""


class EagerDuel(Duel):
    """Times a candidate beside its own bytes; outputs are compared with what eager answers."""

    def _incumbent_answer(self, index: int, lengths: dict[str, int]) -> dict[str, Array]:
        del lengths
        subject = self._subject
        assert isinstance(subject, ProblemSubject)
        return subject.eager.run(self.placed.model[index], {}, timeout_s=60.0)


def open_baselines(
    baselines: Mapping[str, OpenModel], sets: Sequence[Mapping[str, Array]]
) -> tuple[dict[str, EagerModel], dict[str, str]]:
    """Open baselines and give them their inputs; say of each that fails why."""
    models: dict[str, EagerModel] = {}
    missing: dict[str, str] = {}
    for name, opened in baselines.items():
        try:
            model = opened()
            model.place(sets, compiles=name == COMPILED)
        except ProblemRefused as error:
            if name == EAGER:
                raise HarnessError(f"the problem's model cannot be timed: {error}") from error
            missing[name] = str(error)
            continue
        models[name] = model
    return models, missing


def time_blocks(
    duel: Duel, baselines: Mapping[str, EagerModel], *, one_us: float, seconds: float
) -> tuple[dict[str, Ratio], float]:
    """Time blocks until the time is over; return the ratios and the candidate's median."""
    units = max(1, min(16, round(_UNIT_US / (4.0 * max(one_us, 20.0)))))
    before: dict[str, list[float]] = {name: [] for name in baselines}
    ours: list[float] = []
    deadline = time.monotonic() + seconds
    while len(ours) < _LEAST_BLOCKS or (time.monotonic() < deadline and len(ours) < _MOST_BLOCKS):
        around = {name: [model.batch_us()] for name, model in baselines.items()}
        time.sleep(_SETTLE_S)
        pairs = duel.block(units_for(units, 0))
        ours.append(float(np.median([t for pair in pairs for t in pair[1:]])))
        for name, model in reversed(list(baselines.items())):
            around[name].append(model.batch_us())
            before[name].append(float(np.sqrt(np.prod(around[name]))))
    median_us = float(np.median(ours))
    ratios = {name: _ratio(times, ours) for name, times in before.items()}
    return {n: replace(r, threads=baselines[n].threads) for n, r in ratios.items()}, median_us


def _ratio(baseline_us: Sequence[float], candidate_us: Sequence[float]) -> Ratio:
    samples = ShapeSamples(
        weight=1.0,
        incumbent_us=np.array(baseline_us),
        candidate_us=np.array(candidate_us),
        block=np.arange(len(candidate_us)),
    )
    found = estimate(samples)
    assert found is not None, "there are several blocks"
    return Ratio(
        baseline_us=float(np.median(baseline_us)),
        candidate_us=float(np.median(candidate_us)),
        speedup=found.interval(_CONFIDENCE),
        blocks=len(candidate_us),
    )
