"""Experiments on autotuned kernels, in a real child process with Triton's interpreter."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_code

from retuned.errors import CandidateError, HarnessError
from retuned.tunables.process import ChildProcess
from retuned.tunables.tune import ClassResult, chosen, rules_of, tune_class

KERNEL = """

import triton
import triton.language as tl

@triton.jit
def _scaled(x_ptr, out_ptr, index_ptr, n, MODE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    shift = tl.load(index_ptr)
    if MODE == 3:
        undefined(x)
    if MODE == 4:
        tl.store(index_ptr, 7)
    if MODE == 1:
        tl.store(out_ptr + at, x * 3.0 + shift, mask=at < n)
    else:
        if MODE == 2:
            tl.store(out_ptr + n + at, x, mask=at < n)
        tl.store(out_ptr + at, x * 2.0 + shift, mask=at < n)

CONFIGS = [
    triton.Config({"BLOCK": block, "MODE": mode}, num_warps=2, num_stages=1)
    for block, mode in ((16, 0), (64, 3), (256, 0), (64, 1), (64, 2), (64, 4))
]
scaled = triton.autotune(configs=CONFIGS, key=["n"])(_scaled)
"""
N = 1024


def tensor(dtype: str, shape: list[int], data: str | None = None) -> dict[str, Any]:
    return {"tensor": {"dtype": dtype, "shape": shape, "stride": [1], "data": data}}


def recipe(**changed: Any) -> dict[str, Any]:
    configs = [
        {
            "kwargs": {"BLOCK": b, "MODE": m},
            "num_warps": 2,
            "num_stages": 1,
            "num_ctas": 1,
            "maxnreg": None,
        }
        for b, m in ((16, 0), (64, 3), (256, 0), (64, 1), (64, 2), (64, 4))
    ]
    call = {
        "arguments": [
            ["x_ptr", tensor("float32", [N])],
            ["out_ptr", tensor("float32", [N])],
            ["index_ptr", tensor("int64", [1], "AAAAAAAAAAA=")],
            ["n", {"value": N}],
        ],
        "configs": configs,
        "grids": [[N // 16], [N // 64], [N // 256], [N // 64], [N // 64], [N // 64]],
        "in_force": configs[0],
        "reset_to_zero": [],
        "restore_value": [],
    }
    return {
        "tunable": "tunable:autotune:_scaled:00000000",
        "family": "autotune",
        "module": "server_kernels",
        "name": "_scaled",
        "axes": {"elements": N},
        "call": {**call, **changed},
    }


def report() -> dict[str, Any]:
    return {
        "id": "tunable:autotune:_scaled:00000000",
        "family": "autotune",
        "space": {"configs": recipe()["call"]["configs"]},
    }


def environment(folder: Path) -> dict[str, Any]:
    (folder / "server_kernels.py").write_text(KERNEL)
    return {
        "executable": sys.executable,
        "path": [str(folder)],
        "variables": {"TRITON_INTERPRET": "1"},
    }


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildProcess]:
    folder = tmp_path_factory.mktemp("server")
    with ChildProcess(environment(folder), device="", folder=folder / "child") as made:
        yield made


def test_the_faster_of_the_kernels_own_configurations_wins(child: ChildProcess) -> None:
    """The interpreter's time grows with the number of programs: 64 of them against 4."""
    found = tune_class(child, report(), recipe())
    assert found.best is not None
    assert found.best["kwargs"] == {"BLOCK": 256, "MODE": 0}
    assert found.low > 1.5
    assert rules_of([found]) == [{"when": {"elements": [513, 1024]}, "config": dict(found.best)}]
    reasons = {each.config["kwargs"]["MODE"]: each.reason for each in found.trials}
    assert reasons == {
        0: "",
        1: "wrong-result",
        2: "wrote-outside",
        3: "crashed",
        4: "wrong-result",
    }


def test_a_choice_that_the_server_has_not_made_is_not_guessed(child: ChildProcess) -> None:
    found = tune_class(child, report(), recipe(in_force=None))
    assert (found.reason, found.trials) == ("incumbent-unknown", ())


def test_whole_numbers_that_were_not_recorded_are_not_guessed(child: ChildProcess) -> None:
    arguments = [
        [name, tensor("int64", [1]) if name == "index_ptr" else spec]
        for name, spec in recipe()["call"]["arguments"]
    ]
    found = tune_class(child, report(), recipe(arguments=arguments))
    assert (found.reason, found.trials) == ("inputs-not-recorded", ())


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"module": "no_such_module"}, "module-missing"),
        ({"name": "nothing"}, "module-missing"),
        ({"family": "other"}, "family-unknown"),
    ],
)
def test_what_the_server_does_not_have_is_named(
    child: ChildProcess, changed: dict[str, Any], code: str
) -> None:
    assert tune_class(child, report(), {**recipe(), **changed}).reason == code


def test_a_child_that_hangs_is_ended(tmp_path: Path) -> None:
    made = environment(tmp_path)
    (tmp_path / "server_kernels.py").write_text("import time\ntime.sleep(600.0)\n")
    with ChildProcess(made, device="", folder=tmp_path / "child") as child:
        with raises_code(CandidateError, "hangs"):
            child.ask({"op": "open", "recipe": recipe()}, limit_s=2.0)
        assert not child.alive
        with raises_code(CandidateError, "crashed"):
            child.ask({"op": "hello"}, limit_s=2.0)


def test_an_interpreter_that_does_not_start_is_the_harness_fault(tmp_path: Path) -> None:
    made = environment(tmp_path) | {"executable": "/bin/false"}
    with pytest.raises(HarnessError), ChildProcess(made, device="", folder=tmp_path / "child"):
        pass


def result(tokens: int, config: dict[str, Any] | None) -> ClassResult:
    return ClassResult(axes={"tokens": tokens}, in_force_us=1.0, best=config, best_us=math.inf)


def test_two_winners_of_one_class_give_one_rule_that_the_measurement_uses() -> None:
    found = rules_of([result(65, {"a": 1}), result(120, {"a": 2}), result(200, {"a": 3})])
    assert found == [
        {"when": {"tokens": [65, 128]}, "config": {"a": 1}},
        {"when": {"tokens": [129, 256]}, "config": {"a": 3}},
    ]
    assert [chosen(found, {"tokens": n}) for n in (120, 200, 300)] == [{"a": 1}, {"a": 3}, None]


def test_neighbouring_classes_with_one_winner_share_a_rule() -> None:
    one, other = {"a": 1}, {"a": 2}
    found = rules_of([result(16, one), result(32, one), result(64, other), result(128, None)])
    assert found == [
        {"when": {"tokens": [9, 32]}, "config": one},
        {"when": {"tokens": [33, 64]}, "config": other},
    ]
