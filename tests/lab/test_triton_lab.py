"""The whole lab over Triton: a plan in, a judged candidate and an artifact out."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from tests.expect import raises_naming
from tests.hostile.triton_kernels import ROW, SOFTMAX, changed, softmax

from retuned import catalog
from retuned.contract import Language, Solution, Workload
from retuned.errors import HarnessError
from retuned.experiment.__main__ import read_task, run
from retuned.experiment.local import LocalLab
from retuned.experiment.messages import FindingRecord
from retuned.lab.generators.fixed import GivenGenerator
from retuned.lab.resources import LabSettings
from retuned.lab.toolchain import environment_of
from retuned.ports import Finding
from retuned.runtime.artifacts.artifact import read_artifact
from retuned.stages.experiment import Budget, ExperimentPlan
from retuned.stages.verdict import Reason, Status

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

QUICK = LabSettings(search_s=0.1, search_blocks=3, final_s=0.2)
AGAIN = "    for _turn in range(6):\n        e = tl.exp(v - tl.max(v, axis=0))\n    out = e"
SLOW = softmax(changed("    out = e", AGAIN))


def plan(incumbent: Solution, **changes: object) -> ExperimentPlan:
    body: dict[str, object] = {
        "id": "triton",
        "hypothesis": "h",
        "definition": SOFTMAX,
        "workloads": (Workload(definition=SOFTMAX, axes={"M": 4}),),
        "incumbent": incumbent.digest,
        "generators": ("given",),
        "budget": Budget(max_candidates=1, max_seconds=240.0, finalists=1),
        "environment": environment_of(Language.TRITON).digest,
    }
    return ExperimentPlan.model_validate({**body, **changes})


def lab(root: Path, candidate: Solution, incumbent: Solution) -> LocalLab:
    return LocalLab(
        root,
        subjects=catalog.get,
        solutions={incumbent.digest: incumbent}.get,
        generators={"given": lambda _plan: GivenGenerator([candidate])},
        lab=QUICK,
    )


def judged(root: Path, candidate: Solution, incumbent: Solution) -> Finding:
    (finding,) = lab(root, candidate, incumbent).run(plan(incumbent), known={})
    return finding


def test_a_faster_triton_variant_goes_through_every_gate(tmp_path: Path) -> None:
    verdict = judged(tmp_path, softmax(), SLOW).verdict
    assert verdict.status is Status.PROMOTE, verdict
    assert verdict.speedup is not None
    assert verdict.speedup.lower > 1.0
    assert verdict.evidence is not None
    (raw,) = (tmp_path / "evidence").glob("*.json")
    checks = json.loads(raw.read_text())["evidence"]["checks"]
    assert {check["gate"] for check in checks} == {f"G{number}" for number in range(7)}
    assert json.loads(raw.read_text())["environment"]["triton"]


def test_a_slower_triton_variant_is_refused_as_slower(tmp_path: Path) -> None:
    verdict = judged(tmp_path, SLOW, softmax()).verdict
    assert verdict.status is Status.REJECT
    assert verdict.reason in {Reason.SLOWER, Reason.NOT_FASTER_ENOUGH}


def test_a_triton_artifact_is_what_the_server_reads(tmp_path: Path) -> None:
    solution = softmax(params={"BLOCK": 64, "num_warps": 2})
    folder = lab(tmp_path, solution, SLOW).build(solution)
    artifact = read_artifact(folder, digest=solution.digest)
    assert artifact.language == "triton"
    assert artifact.binary == ROW.encode()
    assert artifact.grid == ("M",)
    assert artifact.params == {"BLOCK": 64, "num_warps": 2}


def test_a_plan_for_another_languages_machine_is_not_run(tmp_path: Path) -> None:
    other = environment_of(Language.CPU_CPP).digest
    with raises_naming(HarnessError, "environment", other[:19]):
        list(lab(tmp_path, softmax(), SLOW).run(plan(SLOW, environment=other), known={}))


def test_the_experiment_program_searches_in_the_incumbents_language(tmp_path: Path) -> None:
    incumbent = catalog.get(SOFTMAX, language=Language.TRITON).incumbent
    task = {
        "plan": plan(
            incumbent,
            generators=("search",),
            budget=Budget(max_candidates=2, max_seconds=160.0, finalists=1),
            workloads=(Workload(definition=SOFTMAX, axes={"M": 2}),),
        ).model_dump(mode="json"),
        "root": str(tmp_path),
    }
    out = io.StringIO()
    assert run(read_task(json.dumps(task), where="test"), out) == 0, out.getvalue()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines[-1] == {"done": True}
    records = [FindingRecord.model_validate(line["finding"]) for line in lines[:-1]]
    assert records
    assert {record.solution.language for record in records} == {Language.TRITON}
