"""Optuna's sampler behind our protocol."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from retuned import catalog
from retuned.contract import Solution, Workload
from retuned.errors import MissingDependency
from retuned.lab.generators import TpeGenerator
from retuned.lab.generators.spaces import Grid
from retuned.ports import Finding
from retuned.stages.verdict import Interval, Reason, Status, Verdict

ENTRY = catalog.get("linear_w8_n512_k512")
WORKLOADS = [Workload(definition=ENTRY.definition.name, axes={"M": 64})]


def finding(solution: Solution, ratio: float | None) -> Finding:
    speedup = None
    if ratio is not None:
        speedup = Interval(lower=ratio, point=ratio, upper=ratio, confidence=0.95)
    verdict = Verdict(
        status=Status.REJECT,
        reason=Reason.LOST_SEARCH if ratio else Reason.COMPILE_FAILED,
        gate="G5",
        candidate=solution.digest,
        incumbent=ENTRY.incumbent.digest,
        speedup=speedup,
    )
    return Finding(solution=solution, verdict=verdict, seconds=0.1)


def test_without_optuna_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def absent(name: str, package: str | None = None) -> ModuleType:
        if name == "optuna":
            raise ModuleNotFoundError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(MissingDependency, match="pip install optuna"):
        TpeGenerator(ENTRY, cores=1, seed=0)


class TestWithOptuna:
    """What needs the package."""

    @pytest.fixture(autouse=True)
    def optuna(self) -> None:
        pytest.importorskip("optuna", reason="optuna is not installed")

    def propose(
        self, generator: TpeGenerator, history: list[Finding], count: int
    ) -> list[Solution]:
        return list(generator.propose(ENTRY.definition, WORKLOADS, history=history, count=count))

    def test_the_same_seed_and_history_give_the_same_proposals(self) -> None:
        history: list[Finding] = []
        for _ in range(2):
            one = self.propose(TpeGenerator(ENTRY, cores=1, seed=3), history, 4)
            two = self.propose(TpeGenerator(ENTRY, cores=1, seed=3), history, 4)
            assert [each.digest for each in one] == [each.digest for each in two]
            history += [finding(each, 0.5 + 0.1 * len(history)) for each in one]

    def test_it_stays_on_the_grid_repeats_nothing_and_ends(self) -> None:
        entry = catalog.get("rmsnorm_h64")
        generator = TpeGenerator(entry, cores=1, seed=0)
        workloads = [Workload(definition=entry.definition.name, axes={"M": 64})]
        history: list[Finding] = []
        while proposed := generator.propose(entry.definition, workloads, history=history, count=5):
            history += [finding(each, None) for each in proposed]
        digests = [each.solution.digest for each in history]
        assert len(set(digests)) == len(digests) == len(Grid(entry, cores=1).points) - 1

    def test_it_learns_which_values_are_good(self) -> None:
        generator = TpeGenerator(ENTRY, cores=1, seed=0, structures=("packed-panels",))
        history: list[Finding] = []
        for _ in range(12):
            for each in self.propose(generator, history, 4):
                history.append(finding(each, 2.0 if each.params["STAGE"] == 1 else 0.5))
        late = [each.solution.params["STAGE"] for each in history[-20:]]
        assert late.count(1) > 12
