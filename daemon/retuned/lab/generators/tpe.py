"""Optuna's tree-structured Parzen estimator as a generator, for whoever prefers it to ours.

Optuna is imported when the generator is made. Its study is made anew from the history each time,
so that the same seed and history give the same proposals, and nothing has to survive a kill.
"""

from __future__ import annotations

import importlib
import math
import random
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from retuned.contract import Definition, Solution, Workload
from retuned.errors import MissingDependency
from retuned.lab.generators.priors import FAILED
from retuned.lab.generators.spaces import Grid, Point, Tunable, merit, require_definition
from retuned.ports import Finding

_STRUCTURE = "structure"
_TRIES = 16
"""Times that it is asked for one new point that can be built, before chance helps out."""


class TpeGenerator:
    """Proposes what optuna's TPE samples; deterministic for a seed and a history.

    Parameters
    ----------
    tunable
        Kernel to propose variants of.
    cores
        Cores a launch may use.
    seed
        Decides what is left to chance.
    structures
        Only these; empty means all.

    Raises
    ------
    MissingDependency
        If optuna is not installed.
    """

    name = "tpe"

    def __init__(
        self, tunable: Tunable, *, cores: int, seed: int, structures: Sequence[str] = ()
    ) -> None:
        self._optuna = _optuna()
        self._grid = Grid(tunable, cores=cores, structures=structures)
        self._seed = seed
        self._order = sorted(self._grid.points)

    def propose(
        self,
        definition: Definition,
        workloads: Sequence[Workload],
        *,
        history: Sequence[Finding],
        count: int,
    ) -> Sequence[Solution]:
        """Return up to `count` variants not in `history`; empty means the space is exhausted.

        Raises
        ------
        UsageError
            If this generator was made for another definition.
        """
        del workloads
        require_definition(definition, self._grid.tunable)
        known = self._known(history)
        study = self._study(known, calls=len(history))
        taken = set(known)
        chance = random.Random(f"{self._seed}:{len(history)}")
        chosen: list[Point] = []
        while len(chosen) < count and len(taken) < len(self._order):
            point = self._ask(study, taken) or chance.choice(
                [each for each in self._order if each not in taken]
            )
            taken.add(point)
            chosen.append(point)
        return [self._grid.solution(point) for point in chosen]

    def _known(self, history: Sequence[Finding]) -> dict[Point, float]:
        known: dict[Point, float] = {}
        incumbent = self._grid.tunable.incumbent
        point = self._grid.point(incumbent.structure, incumbent.params)
        if point is not None:
            known[point] = 0.0
        for finding in history:
            point = self._grid.point(finding.solution.structure, finding.solution.params)
            ratio = merit(finding)
            if point is not None:
                known[point] = FAILED if ratio is None else math.log(ratio)
        return known

    def _study(self, known: Mapping[Point, float], *, calls: int) -> Any:  # noqa: ANN401 - optuna's
        optuna = self._optuna
        seed = random.Random(f"{self._seed}:{calls}").getrandbits(32)
        study = optuna.create_study(
            direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed)
        )
        for point, value in known.items():
            study.add_trial(
                optuna.trial.create_trial(
                    params=self._params(point),
                    distributions=self._distributions(point.structure),
                    value=value,
                )
            )
        return study

    def _ask(self, study: Any, taken: set[Point]) -> Point | None:  # noqa: ANN401 - optuna's
        """Return a new point; None if it insists on what is taken or cannot be built."""
        for _ in range(_TRIES):
            trial = study.ask()
            structure = str(trial.suggest_categorical(_STRUCTURE, sorted(self._grid.spaces)))
            places = tuple(
                trial.suggest_int(self._label(structure, name), 0, len(choices) - 1)
                for name, choices in self._grid.spaces[structure].params.items()
            )
            point = Point(structure, places)
            if point in self._grid.points and point not in taken:
                return point
            study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        return None

    def _params(self, point: Point) -> dict[str, Any]:
        names = self._grid.spaces[point.structure].params
        own = zip(names, point.places, strict=True)
        return {
            _STRUCTURE: point.structure,
            **{self._label(point.structure, name): place for name, place in own},
        }

    def _distributions(self, structure: str) -> dict[str, Any]:
        kinds = self._optuna.distributions
        return {
            _STRUCTURE: kinds.CategoricalDistribution(sorted(self._grid.spaces)),
            **{
                self._label(structure, name): kinds.IntDistribution(0, len(choices) - 1)
                for name, choices in self._grid.spaces[structure].params.items()
            },
        }

    def _label(self, structure: str, name: str) -> str:
        return f"{structure}.{name}"


def _optuna() -> ModuleType:
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:
        raise MissingDependency(
            "the generator 'tpe' needs optuna: pip install optuna, or name another generator"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
