"""A lab without the accelerator: what it refuses, and what it leaves to others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.expect import raises_naming
from tests.operators.program.test_experiment_pods import INCUMBENT, NAME, variant

from retuned import catalog
from retuned.contract import Definition, Language, Solution, Workload
from retuned.errors import TemporaryError, UsageError
from retuned.experiment.__main__ import occasion_of
from retuned.experiment.messages import FindingRecord, LabTask
from retuned.experiment.pod_task import PodRole, for_pod
from retuned.experiment.roles import AHEAD, CompilingLab
from retuned.lab.generators.inputs import make_search
from retuned.lab.languages import cpu_cpp
from retuned.lab.rejected_cache import definition_digest, remembered, sameness
from retuned.ports import Finding
from retuned.stages.experiment import Budget, ExperimentPlan, plan
from retuned.stages.hypothesis import Hypothesis
from retuned.stages.verdict import Reason, Status

HERE = "sha256:" + "c" * 64
BROKEN = variant("broken", old="float sum", new="flaot sum")
SNEAKY = variant("sneaky", old="#include <cstdint>", new="#include <cstdint>\n#include <fstream>")
FINE = variant("fine")


def a_plan(name: str, incumbent: Solution, **budget: Any) -> ExperimentPlan:
    axes = {"M": 8}
    belief = Hypothesis(
        id="sha256:" + "b" * 64,
        definition=name,
        workloads=(Workload(definition=name, axes=axes, weight=1.0),),
        share=0.3,
        expected_gain_ratio=2.0,
        expected_saving=0.1,
        because="a test",
    )
    return plan(belief, incumbent=incumbent.digest, environment=HERE, budget=Budget(**budget))


class Given:
    """A generator that proposes what the test says, and notes how much it was asked for."""

    name = "given"

    def __init__(self, *solutions: Solution, breaks: bool = False) -> None:
        self.solutions, self.breaks = solutions, breaks
        self.counts: list[int] = []

    def propose(
        self,
        definition: Definition,
        workloads: Sequence[Workload],
        *,
        history: Sequence[Finding],
        count: int,
    ) -> Sequence[Solution]:
        assert history == ()
        self.counts.append(count)
        if self.breaks:
            raise TemporaryError("nothing was measured yet", delay_s=0.0)
        return self.solutions


def on_this_processor(root: Path, *generators: Given, **changes: Any) -> CompilingLab:
    given: dict[str, Any] = {
        "arch": cpu_cpp.cpu_environment().arch,
        "subject": catalog.get(NAME, language=Language.CPU_CPP),
        "incumbent": INCUMBENT,
        "generators": [lambda _, each=each: each for each in generators],
    }
    return CompilingLab(root, **(given | changes))


def found(lab: CompilingLab, asked: ExperimentPlan | None = None) -> dict[str, Finding]:
    findings = lab.run(asked or a_plan(NAME, INCUMBENT), known={})
    return {each.solution.name: each for each in findings}


def test_what_does_not_compile_or_breaks_the_contract_is_refused_and_the_rest_is_not_judged(
    tmp_path: Path,
) -> None:
    generator = Given(SNEAKY, FINE, FINE, INCUMBENT)
    lab = on_this_processor(tmp_path, Given(breaks=True), generator, written=(BROKEN,))
    findings = found(lab, a_plan(NAME, INCUMBENT, max_candidates=5))
    said = {n: (f.verdict.status, f.verdict.reason, f.verdict.gate) for n, f in findings.items()}
    assert said["broken"] == (Status.REJECT, Reason.COMPILE_FAILED, "G2")
    assert said["sneaky"] == (Status.REJECT, Reason.CONTRACT, "G1")
    assert said["fine"][:2] == (Status.AMBIGUOUS, Reason.TOO_FEW_SAMPLES)
    assert list(said) == ["broken", "sneaky", "fine"]  # the incumbent is no candidate
    assert findings["fine"].verdict.detail.startswith("compiled for ")
    assert generator.counts == [5 * AHEAD]
    with raises_naming(UsageError, "fine", "artifact"):
        lab.build(FINE)


def test_another_processors_code_is_left_to_the_search(tmp_path: Path) -> None:
    assert found(on_this_processor(tmp_path, Given(BROKEN), arch="cpu:another")) == {}
    assert found(on_this_processor(tmp_path, Given(BROKEN), arch="")) == {}


def test_time_ends_it_and_what_was_not_reached_is_left_to_the_search(tmp_path: Path) -> None:
    lab = on_this_processor(tmp_path, Given(BROKEN))
    assert found(lab, a_plan(NAME, INCUMBENT, max_seconds=1e-9)) == {}


def test_a_gpu_that_is_not_here_is_compiled_for_as_the_search_would_begin(tmp_path: Path) -> None:
    name = "rmsnorm_h4096"
    entry = catalog.get(name, language=Language.TRITON)
    asked = a_plan(name, entry.incumbent, max_candidates=1)
    occasion = occasion_of(asked, entry.incumbent, cores=1, arch="gfx942")
    assert occasion.device.lanes == 64
    lab = CompilingLab(
        tmp_path,
        arch="gfx942",
        subject=entry,
        incumbent=entry.incumbent,
        generators=[lambda _: make_search(occasion)],
    )
    first = next(iter(lab.run(asked, known={})))
    assert first.verdict.status is Status.AMBIGUOUS
    assert first.verdict.detail.startswith("compiled for gfx942: ")


def the_task(**changes: Any) -> LabTask:
    asked = a_plan(NAME, INCUMBENT).model_copy(update={"environment": "sha256:" + "d" * 64})
    return LabTask(plan=asked, root="/work", solutions=(INCUMBENT,), **changes)


def test_what_was_refused_is_not_tried_by_the_search_and_nothing_else_is_believed(
    tmp_path: Path,
) -> None:
    findings = found(on_this_processor(tmp_path, Given(BROKEN, FINE)))
    slow = findings["fine"].verdict.model_copy(
        update={"status": Status.REJECT, "reason": Reason.SLOWER, "gate": "G5"}
    )
    lie = FindingRecord.of(findings["fine"]).model_copy(update={"verdict": slow})
    told = (FindingRecord.of(findings["broken"]), FindingRecord.of(findings["fine"]), lie)
    task = for_pod(
        the_task(refused=told, written=(FINE,)), role=PodRole.SEARCH, root=tmp_path, here=HERE
    )
    (kept,) = task.earlier
    assert kept.solution == BROKEN
    subject = catalog.get(NAME, language=Language.CPU_CPP)
    rejected = remembered(
        [kept.restore()], task.plan, definition=definition_digest(subject.definition)
    )
    assert set(rejected) == {sameness(BROKEN)}
    assert task.written == (FINE,)


def test_the_trusted_pod_takes_nothing_of_what_was_compiled_or_written(tmp_path: Path) -> None:
    findings = found(on_this_processor(tmp_path, Given(BROKEN)))
    told = (FindingRecord.of(findings["broken"]),)
    given = the_task(refused=told, written=(FINE,))
    given = given.model_copy(update={"solutions": (INCUMBENT, BROKEN)})
    task = for_pod(given, role=PodRole.VERIFY, root=tmp_path, here=HERE)
    assert (task.refused, task.written, task.earlier) == ((), (), ())
    assert task.plan.generators == ("handed",)
