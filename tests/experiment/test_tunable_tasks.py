"""The task of an experiment on a tunable is untrusted: bounded, checked, and refused by place."""

from __future__ import annotations

import base64
import json
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.expect import raises_code, raises_naming
from tests.tunables import test_tune

from retuned.contract import Environment, Workload
from retuned.errors import UnreadableInput, UsageError
from retuned.experiment.__main__ import read_task
from retuned.experiment.messages import MAX_TURNS, LabTask, done_line, read_line, stood_of, turns_of
from retuned.experiment.pod_task import MAX_TASK_BYTES, PodRole, for_pod, pod_settings, read_mounted
from retuned.experiment.pod_tunables import open_tunable_lab, task_from
from retuned.experiment.tunable_task import MAX_RECIPES_BYTES, MAX_REPORT_BYTES, TunableInputs
from retuned.experiment.tunables import TunableTask, environment_differences
from retuned.stages.experiment import ExperimentPlan, Turn, TurnOutcome, plan
from retuned.stages.hypothesis import Hypothesis
from retuned.tunables.process import ServerHost

NAME = "tunable:autotune:_scaled:00000000"
H200 = Environment(
    arch="sm_90",
    torch="2.11.0",
    triton="3.6.0",
    driver="570.1",
    numerics={"GPU_NAME": "NVIDIA H200", "TRITON_F32_DEFAULT": "ieee"},
)
FACTS: dict[str, Any] = {
    "pid": 17,
    "executable": "/usr/bin/python3",
    "path": ["/usr/lib/python3/dist-packages"],
    "flags": {"no_site": 0},
    "versions": {"python": "3.12.3", "torch": "2.11.0+cu130", "triton": "3.6.0", "vllm": "0.26.0"},
    "variables": {"VLLM_USE_V1": "1"},
    "device": {"index": 3, "name": "NVIDIA H200", "uuid": "GPU-1", "memory_free_bytes": 1},
}
REPORT = {
    **test_tune.report(),
    "kernel": "_scaled",
    "module": "server_kernels",
    "source": "sha256:" + "1" * 64,
    "geometry": {"more": 1},
    "asked": [{"axes": {"elements": 1024}, "launches": 3}],
}
RULE = {"when": {"elements": [513, 1024]}, "config": {"BLOCK": 1}}


def inputs(**changed: Any) -> TunableInputs:
    given: dict[str, Any] = {"environment": FACTS, "measured_in": H200, "in_force": [RULE]}
    return TunableInputs.of(REPORT, [test_tune.recipe()], **(given | changed))


def a_plan(name: str = NAME) -> ExperimentPlan:
    belief = Hypothesis(
        id="h",
        definition=name,
        workloads=(Workload(definition=name, axes={"elements": 1000}),),
        share=0.5,
        expected_gain_ratio=1.3,
        expected_saving=0.1,
        because="a test",
    )
    return plan(belief, incumbent="sha256:" + "2" * 64, environment=H200.digest)


def task(**changed: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "plan": a_plan().model_dump(mode="json"),
        "root": "/work",
        "tunable": inputs().model_dump(mode="json", exclude_unset=True),
    }
    return body | changed


def changed(**parts: Any) -> dict[str, Any]:
    """Return a task with other parts of its tunable."""
    return task(tunable=task()["tunable"] | parts)


def packed(value: object) -> str:
    return base64.b64encode(zlib.compress(json.dumps(value).encode())).decode()


def test_a_task_is_read_as_it_was_written() -> None:
    found = read_task(json.dumps(task()), where="task.json")
    assert found.tunable == inputs()
    assert found.tunable is not None
    given = task_from(found.tunable, host=ServerHost(Path("/s"), wait_s=0.0))
    assert given.recipes == [test_tune.recipe()]
    assert given.report == {key: REPORT[key] for key in REPORT if key != "asked"}
    assert given.in_force == [RULE]
    assert given.environment["variables"] == {"VLLM_USE_V1": "1", "TRITON_F32_DEFAULT": "ieee"}
    assert (given.device, given.measured_in) == ("0", H200)


def test_a_server_without_a_gpu_gets_none() -> None:
    here = Environment(arch="cpu:a", triton="3.6.0")
    found = inputs(environment=FACTS | {"device": None}, measured_in=here)
    assert task_from(found, host=ServerHost(Path("/s"), wait_s=0.0)).device == ""


def test_recipes_of_other_size_classes_are_left_out() -> None:
    other = test_tune.recipe() | {"axes": {"elements": 4000}}
    every = TunableInputs.of(
        REPORT, [other, test_tune.recipe()], environment=FACTS, measured_in=H200
    )
    assert [each.axes for each in every.for_plan(a_plan()).recipes] == [{"elements": 1024}]


def test_recipes_with_much_recorded_data_fit_into_a_config_map() -> None:
    table = base64.b64encode(b"".join(n.to_bytes(4, "little") for n in range(300_000))).decode()
    long = test_tune.recipe(arguments=[["table", test_tune.tensor("int32", [300_000], table)]])
    assert len(json.dumps(long)) > 1_500_000
    made = TunableInputs.of(REPORT, [long], environment=FACTS, measured_in=H200)
    text = json.dumps(task(tunable=made.model_dump(mode="json")))
    assert len(text) < 900_000
    assert read_task(text, where="task.json").tunable == made


def test_variables_that_no_experiment_gets_stay_in_the_server() -> None:
    found = inputs(environment=FACTS | {"variables": {"HF_TOKEN": "s", "TRITON_A": "1"}})
    assert set(found.environment.variables) == {"TRITON_A", "TRITON_F32_DEFAULT"}


MALFORMED: list[tuple[Callable[[], dict[str, Any]], str]] = [
    (lambda: task(tunable=None), "tunable"),
    (lambda: task(tunable=[]), "tunable"),
    (lambda: task(plan=a_plan("rmsnorm_h512").model_dump(mode="json")), "rmsnorm_h512"),
    (lambda: task(plan=a_plan(NAME[:-1] + "1").model_dump(mode="json")), "tunable.report.id"),
    (lambda: changed(more=1), "tunable.more"),
    (lambda: changed(report={}), "tunable.report.id"),
    (lambda: changed(report=REPORT | {"filler": "x" * MAX_REPORT_BYTES}), "tunable.report"),
    (lambda: changed(recipes=packed([{"tunable": NAME}])), "tunable.recipes.0.family"),
    (lambda: changed(recipes=packed([test_tune.recipe() | {"axes": {"elements": "9"}}])),
     "tunable.recipes.0.axes.elements"),
    (lambda: changed(recipes=packed([test_tune.recipe() | {"module": "os;x"}])),
     "tunable.recipes.0.module"),
    (lambda: changed(recipes=packed([test_tune.recipe() | {"tunable": "tunable:other"}])),
     "recipes.0"),
    (lambda: changed(recipes=packed([test_tune.recipe()] * 257)), "tunable.recipes"),
    (lambda: changed(recipes="????"), "tunable.recipes"),
    (lambda: changed(recipes=packed([test_tune.recipe()])[:-12]), "tunable.recipes"),
    (lambda: changed(recipes=base64.b64encode(b"nothing packed").decode()), "tunable.recipes"),
    (lambda: changed(recipes=packed("x" * (MAX_RECIPES_BYTES + 1))), str(MAX_RECIPES_BYTES)),
    (lambda: changed(recipes=base64.b64encode(zlib.compress(b"[" * 10**6)).decode()),
     "tunable.recipes"),
    (lambda: changed(recipes=base64.b64encode(zlib.compress(b"[NaN]")).decode()), "NaN"),
    (lambda: changed(in_force=[RULE] * 65), "tunable.in_force"),
    (lambda: changed(in_force=[RULE | {"when": {"elements": [9, 8]}}]), "when.elements"),
    (lambda: changed(in_force=[RULE | {"config": {}}]), "tunable.in_force.0.config"),
    (lambda: changed(measured_in=Environment(arch="sm_90").model_dump()), "GPU_NAME"),
]  # fmt: skip


@pytest.mark.parametrize(("made", "place"), MALFORMED)
def test_a_malformed_task_is_refused_by_place(
    made: Callable[[], dict[str, Any]], place: str
) -> None:
    with raises_code(UnreadableInput, "bad-task", "task.json", place):
        read_task(json.dumps(made()), where="task.json")


def test_recipes_are_unpacked_no_further_than_they_are_read() -> None:
    bomb = base64.b64encode(zlib.compress(bytes(8 * MAX_RECIPES_BYTES), level=1)).decode()
    text = json.dumps(changed(recipes=bomb))
    tracemalloc.start()
    try:
        with raises_code(UnreadableInput, "bad-task", "tunable.recipes"):
            read_task(text, where="task.json")
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 4 * MAX_RECIPES_BYTES


@pytest.mark.parametrize(
    ("part", "place"),
    [
        ({"executable": "python3"}, "executable"),
        ({"executable": "/usr/bin/py\0thon"}, "executable"),
        ({"variables": {"LD_PRELOAD": "/tmp/x.so"}}, "LD_PRELOAD"),
        ({"variables": {"TRITON_A": "a" * 4097}}, "TRITON_A"),
        ({"path": ["/a"] * 257}, "path"),
        ({"versions": {"torch": "2.11.0"}}, "triton"),
        ({"device": {}}, "device"),
    ],
)
def test_a_malformed_environment_is_refused_by_place(part: dict[str, Any], place: str) -> None:
    server = task()["tunable"]["environment"] | part
    with raises_code(UnreadableInput, "bad-task", place):
        read_task(json.dumps(changed(environment=server)), where="task.json")


def test_what_a_runtime_reports_wrongly_makes_no_task() -> None:
    with raises_naming(ValidationError, "executable"):
        inputs(environment={"variables": {}})


def test_a_task_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "task.json").write_text(" " * (MAX_TASK_BYTES + 1))
    with raises_code(UnreadableInput, "bad-task", str(MAX_TASK_BYTES)):
        read_mounted(tmp_path / "task.json")


@pytest.mark.parametrize("role", [each for each in PodRole if each is not PodRole.VERIFY])
def test_a_tunable_is_for_the_trusted_role_alone(tmp_path: Path, role: PodRole) -> None:
    found = LabTask.model_validate(task())
    with raises_code(UnreadableInput, "bad-task", "plan.definition", str(role)):
        for_pod(found, role=role, root=tmp_path, here=H200.digest)


def test_the_plan_of_a_tunable_keeps_the_servers_environment(tmp_path: Path) -> None:
    found = LabTask.model_validate(task())
    asked = for_pod(found, role=PodRole.VERIFY, root=tmp_path, here="sha256:" + "9" * 64)
    assert (asked.plan, asked.root) == (found.plan, str(tmp_path))


def test_a_tunable_needs_the_container_of_the_server(tmp_path: Path) -> None:
    with raises_naming(UsageError, "RETUNED_HOST_SOCKET"):
        open_tunable_lab(inputs(), tmp_path, host=None)


def test_the_socket_of_the_host_is_named_by_the_manifest() -> None:
    named = {"RETUNED_ROLE": "verify", "RETUNED_RESULTS_DIR": "/results"}
    plain, beside = pod_settings(named), pod_settings(named | {"RETUNED_HOST_SOCKET": "/h/s"})
    assert plain is not None
    assert beside is not None
    assert (plain.host, beside.host) == (None, Path("/h/s"))
    with raises_naming(UsageError, "RETUNED_HOST_SOCKET", "h/s"):
        pod_settings(named | {"RETUNED_HOST_SOCKET": "h/s"})


# --- where it runs --------------------------------------------------------------------------------

ABOUT: dict[str, Any] = {
    "environment": {
        "cpu": "cpu:a",
        "device": "sm_90",
        "device_name": "NVIDIA H200",
        "driver": "580.1",
        "torch": "2.11.0",
        "triton": "3.6.0",
        "numerics": {"TRITON_F32_DEFAULT": "ieee"},
    },
    "versions": {"torch": "2.11.0+cu130", "triton": "3.6.0", "vllm": "0.26.0", "sglang": "1"},
}


def compared(**changes: Any) -> list[str]:
    given = TunableTask(report={}, recipes=[], environment=FACTS, measured_in=H200)
    about = {
        "environment": ABOUT["environment"] | changes.pop("environment", {}),
        "versions": ABOUT["versions"] | changes,
    }
    return environment_differences(given, about)


def test_the_servers_own_environment_fits_with_another_driver() -> None:
    assert compared() == []


def test_a_servers_package_may_have_a_local_part_that_its_module_lacks() -> None:
    assert compared(vllm="0.26.0+cpu") == []


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"environment": {"device_name": "NVIDIA H100"}}, "NVIDIA H100"),
        ({"environment": {"device": ""}}, "arch"),
        ({"environment": {"triton": "3.7.0"}}, "3.7.0"),
        ({"environment": {"torch": "2.12.0"}}, "2.12.0"),
        ({"environment": {"numerics": {}}}, "TRITON_F32_DEFAULT"),
        ({"torch": "2.11.0+cu128"}, "2.11.0+cu128"),
        ({"torch": "2.11.0"}, "torch is 2.11.0"),
        ({"vllm": "0.27.0"}, "0.27.0"),
    ],
)
def test_each_fact_that_changes_code_or_times_is_compared(
    changes: dict[str, Any], names: str
) -> None:
    (found,) = compared(**changes)
    assert names in found


def test_a_package_that_only_the_server_has_is_a_difference() -> None:
    about = ABOUT | {"versions": {"torch": "2.11.0+cu130", "triton": "3.6.0"}}
    given = TunableTask(report={}, recipes=[], environment=FACTS, measured_in=H200)
    (found,) = environment_differences(given, about)
    assert "vllm" in found


# --- turns ----------------------------------------------------------------------------------------


def a_turn(number: int = 1) -> Turn:
    return Turn(
        number=number, generator="search", because="elements 64", outcome=TurnOutcome.TRIED, tried=6
    )


def test_turns_are_on_the_last_line_which_still_ends_the_findings() -> None:
    line = json.dumps(done_line(turns=[a_turn()])).encode()
    assert turns_of(line) == (a_turn(),)
    assert read_line(line) is None
    assert stood_of(line).words == ""
    assert done_line(turns=()) == {"done": True}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b'{"turns": 3}',
        b'{"turns": {}}',
        b'{"turns": [{"number": 0}]}',
        b'{"turns": "a"}',
    ],
)
def test_turns_that_cannot_be_read_are_none(line: bytes) -> None:
    assert turns_of(line) == ()


def test_there_are_no_more_turns_than_are_read() -> None:
    every = [a_turn(n) for n in range(1, MAX_TURNS + 9)]
    body = done_line(turns=every)
    assert len(body["turns"]) == MAX_TURNS
    body["turns"] = [each.model_dump(mode="json") for each in every]
    assert len(turns_of(json.dumps(body).encode())) == MAX_TURNS
