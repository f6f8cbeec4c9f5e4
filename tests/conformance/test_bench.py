"""Every Bench keeps the same promises: the lab of this machine and the fake beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.expect import raises_naming

from retuned import catalog
from retuned.contract import Digest, Solution, Workload
from retuned.errors import HarnessError, UsageError
from retuned.experiment.fake import FakeBench
from retuned.experiment.local import LocalLab
from retuned.lab.generators.fixed import GivenGenerator
from retuned.lab.languages.cpu_cpp import cpu_environment
from retuned.lab.resources import LabSettings
from retuned.ports import Bench, Finding
from retuned.runtime.artifacts.artifact import read_artifact
from retuned.stages.experiment import Budget, ExperimentPlan
from retuned.stages.verdict import Reason, Status, Verdict

NAME = "rmsnorm_h64"
QUICK = LabSettings(search_s=0.1, final_s=0.3, launch_timeout_s=60.0)


def candidates() -> list[Solution]:
    entry = catalog.get(NAME)
    found = {entry.incumbent.digest: entry.incumbent}
    for space in entry.spaces:
        for params in space.starts({"M": 16}):
            solution = entry.solution(space.name, params)
            found[solution.digest] = solution
    del found[entry.incumbent.digest]
    return list(found.values())[:3]


def plan(**changes: object) -> ExperimentPlan:
    body = {
        "id": "conformance",
        "hypothesis": "h",
        "definition": NAME,
        "workloads": (Workload(definition=NAME, axes={"M": 16}),),
        "incumbent": catalog.get(NAME).incumbent.digest,
        "generators": ("given",),
        "budget": Budget(max_candidates=8, max_seconds=250.0),
        "environment": cpu_environment().digest,
    }
    return ExperimentPlan.model_validate({**body, **changes})


def lost(solution: Solution) -> Finding:
    verdict = Verdict(
        status=Status.REJECT,
        reason=Reason.LOST_SEARCH,
        gate="G5",
        candidate=solution.digest,
        incumbent=catalog.get(NAME).incumbent.digest,
    )
    return Finding(solution=solution, verdict=verdict, seconds=0.1)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


def local(root: Path) -> LocalLab:
    incumbent = catalog.get(NAME).incumbent
    return LocalLab(
        root / "local",
        subjects=catalog.get,
        solutions={incumbent.digest: incumbent}.get,
        generators={"given": lambda _plan: GivenGenerator(candidates())},
        lab=QUICK,
    )


def fake(root: Path) -> FakeBench:
    return FakeBench(script={NAME: [lost(each) for each in candidates()]}, root=root / "fake")


BENCHES: Sequence[Callable[[Path], Bench]] = (local, fake)
each_bench = pytest.mark.parametrize("bench", BENCHES, ids=["local", "fake"])


@each_bench
def test_each_candidate_has_one_finding_about_the_plan_s_incumbent(
    bench: Callable[[Path], Bench], root: Path
) -> None:
    found = list(bench(root).run(plan(), known={}))
    digests = [finding.solution.digest for finding in found]
    assert sorted(digests) == sorted(each.digest for each in candidates())
    for finding in found:
        assert finding.verdict.candidate == finding.solution.digest
        assert finding.verdict.incumbent == plan().incumbent
        assert finding.seconds >= 0.0


@each_bench
def test_what_is_known_is_not_paid_again(bench: Callable[[Path], Bench], root: Path) -> None:
    known: dict[Digest, Finding] = {each.digest: lost(each) for each in candidates()[:2]}
    found = list(bench(root).run(plan(), known=known))
    assert [finding.solution.digest for finding in found] == [candidates()[2].digest]
    everything = {each.digest: lost(each) for each in candidates()}
    assert list(bench(root).run(plan(), known=everything)) == []


@each_bench
def test_a_run_may_be_left_early_and_taken_up_again(
    bench: Callable[[Path], Bench], root: Path
) -> None:
    running = iter(bench(root).run(plan(), known={}))
    first = next(running)
    running.close()  # type: ignore[attr-defined]
    rest = list(bench(root).run(plan(), known={first.solution.digest: first}))
    assert first.solution.digest not in {finding.solution.digest for finding in rest}
    assert len(rest) == len(candidates()) - 1


@each_bench
def test_an_artifact_names_what_it_is_and_is_built_once(
    bench: Callable[[Path], Bench], root: Path
) -> None:
    solution = candidates()[0]
    folder = bench(root).build(solution)
    body = json.loads((folder / "artifact.json").read_text())
    assert body["digest"] == solution.digest
    assert solution.digest.endswith(folder.name)
    binary = (folder / body["binary"]).read_bytes()
    assert body["binary_sha256"] == hashlib.sha256(binary).hexdigest()
    before = (folder / "artifact.json").stat().st_mtime_ns
    if bench is local:
        assert body["definition"] == catalog.get(NAME).definition.model_dump(mode="json")
        assert bench(root).build(solution) == folder
        assert (folder / "artifact.json").stat().st_mtime_ns == before


def test_the_server_s_runtime_reads_what_the_lab_built(root: Path) -> None:
    solution = candidates()[0]
    artifact = read_artifact(local(root).build(solution), digest=solution.digest)
    assert artifact.entry == solution.entry


def test_a_plan_for_another_machine_is_not_run(root: Path) -> None:
    with raises_naming(HarnessError, "environment", "sha256:000000000000"):
        list(local(root).run(plan(environment="sha256:" + "0" * 64), known={}))


def test_a_plan_without_the_incumbent_s_source_is_not_run(root: Path) -> None:
    with raises_naming(HarnessError, "incumbent", "sha256:000000000000"):
        list(local(root).run(plan(incumbent="sha256:" + "0" * 64), known={}))


def test_an_unknown_generator_is_a_usage_error_that_lists_the_known(root: Path) -> None:
    with raises_naming(UsageError, "['dream']", "['given']"):
        list(local(root).run(plan(generators=("dream",)), known={}))


def test_a_budget_of_one_candidate_tries_one(root: Path) -> None:
    budget = Budget(max_candidates=1, max_seconds=250.0)
    assert len(list(local(root).run(plan(budget=budget), known={}))) == 1


def test_a_broken_incumbent_is_the_lab_s_failure_and_not_the_candidate_s(root: Path) -> None:
    good = catalog.get(NAME).incumbent
    broken = good.model_copy(update={"entry": "missing"})
    lab = LocalLab(
        root / "broken",
        subjects=catalog.get,
        solutions={broken.digest: broken}.get,
        generators={"given": lambda _plan: GivenGenerator(candidates())},
        lab=QUICK,
    )
    with raises_naming(HarnessError, "incumbent", "contract-violated", "'missing'"):
        list(lab.run(plan(incumbent=broken.digest), known={}))


@each_bench
def test_a_plan_that_nobody_ran_has_no_turns(bench: Callable[[Path], Bench], root: Path) -> None:
    assert list(bench(root).turns("sha256:" + "0" * 64)) == []


def test_every_candidate_came_in_a_turn_that_is_on_record(root: Path) -> None:
    here = local(root)
    wanted = plan(id="turns")
    found = list(here.run(wanted, known={}))
    turns = here.turns(wanted.id)
    proposed = {digest for turn in turns for digest in turn.proposed}
    assert {finding.solution.digest for finding in found} <= proposed
    assert {turn.generator for turn in turns} == {"given"}
