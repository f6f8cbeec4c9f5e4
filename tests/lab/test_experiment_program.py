"""The experiment as a program: a task in, findings out, one line each."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from retuned import catalog
from retuned.contract import Workload
from retuned.errors import UnreadableInput
from retuned.experiment.__main__ import read_task, run
from retuned.experiment.messages import FindingRecord
from retuned.lab.languages.cpu_cpp import cpu_environment
from retuned.stages.experiment import Budget, ExperimentPlan

NAME = "softmax_n32"


def task(root: Path, **changes: object) -> str:
    plan = ExperimentPlan(
        id="program",
        hypothesis="h",
        definition=NAME,
        workloads=(Workload(definition=NAME, axes={"M": 8}),),
        incumbent=catalog.get(NAME).incumbent.digest,
        budget=Budget(max_candidates=2, max_seconds=90.0, finalists=1),
        environment=cpu_environment().digest,
    )
    return json.dumps({"plan": plan.model_dump(mode="json"), "root": str(root), **changes})


def test_findings_come_as_lines_and_a_known_one_does_not_come_again(tmp_path: Path) -> None:
    out = io.StringIO()
    assert run(read_task(task(tmp_path), where="test"), out) == 0
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines[-1] == {"done": True}
    records = [FindingRecord.model_validate(line["finding"]) for line in lines[:-1]]
    assert len(records) == 2
    known = [record.model_dump(mode="json") for record in records]
    again = io.StringIO()
    assert run(read_task(task(tmp_path, known=known), where="test"), again) == 0
    assert again.getvalue() == '{"done":true}\n'


def test_a_lab_that_cannot_run_the_plan_says_so_and_fails(tmp_path: Path) -> None:
    body = json.loads(task(tmp_path))
    body["plan"]["environment"] = "sha256:" + "0" * 64
    out = io.StringIO()
    assert run(read_task(json.dumps(body), where="test"), out) == 5
    assert json.loads(out.getvalue())["failed"]["code"] == "harness-failed"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"plan": {}, "root": "x"}', '{"plan"'])
def test_a_task_that_cannot_be_read_names_the_place(text: str) -> None:
    with pytest.raises(UnreadableInput) as caught:
        read_task(text, where="stdin")
    assert caught.value.where == "stdin"


def test_the_program_refuses_an_unreadable_task_with_exit_code_three() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "retuned.experiment"],
        input="no task",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "failed" in json.loads(done.stdout)
