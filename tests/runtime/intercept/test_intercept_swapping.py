"""A variant takes over launches of a stranger's kernel, shape by shape, and gives them back."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.expect import raises_code
from tests.runtime.intercept import strangers
from tests.runtime.intercept.strangers import cdiv_grid, launch_affine, launch_rows

from retuned.runtime.core.host import RuntimeHost
from retuned.runtime.intercept.hook import Interceptor
from retuned.runtime.intercept.observed import source_of
from retuned.runtime.intercept.service import Interception
from retuned.runtime.schema import Refused

AFFINE = {
    "name": "lifted_affine",
    "op_type": "lifted",
    "axes": {"N": {"type": "var"}},
    "inputs": {"x_ptr": {"shape": ["N"], "dtype": "float32"}},
    "outputs": {"y_ptr": {"shape": ["N"], "dtype": "float32"}},
}
ROWS = {
    "name": "lifted_rows",
    "op_type": "lifted",
    "axes": {"M": {"type": "var"}, "N": {"type": "var"}},
    "inputs": {"x_ptr": {"shape": ["M", "N"], "dtype": "float32"}},
    "outputs": {"y_ptr": {"shape": ["M", "N"], "dtype": "float32"}},
}
FASTER = '''"""Another source for affine: names of its own."""

import triton
import triton.language as tl


@triton.jit
def affine_two(x, out, n, factor, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) * factor * 3 + 2, mask=inside)
'''
UNKNOWN = "sha256:" + "0" * 64
WRONG = FASTER.replace("* 3 + 2", "* 3 + 4")
LAZY = FASTER.replace("mask=inside)\n", "mask=inside & (at > 0))\n")


class World:
    """A server whose launches are intercepted, and a daemon that orders."""

    def __init__(self, hook: Interceptor, folder: Path) -> None:
        self.hook = hook
        self.folder = folder
        self.host = RuntimeHost("server", interception=Interception(hook))
        self.epoch = 0

    def artifact(
        self, name: str, *, definition: dict[str, Any], source: str = "pass\n", **fields: Any
    ) -> tuple[str, str]:
        """Deliver an artifact for a kernel of `strangers`."""
        rule = fields.pop("intercept")
        if "source_digest" not in rule:
            (kernel,) = [each for each in self.hook.kernels() if each.name.endswith(f":{name}")]
            rule = {"kernel": kernel.name, "source_digest": source_of(kernel).digest} | rule
        pointers = {"x_ptr": "float32", "y_ptr": "float32"}
        rule = {"dtypes": pointers, "stores": {"y_ptr": "write"}} | rule
        body = {
            "definition": definition,
            "language": "triton",
            "entry": name,
            "binary": "kernel.py",
            "binary_sha256": hashlib.sha256(source.encode()).hexdigest(),
            **fields,
            "intercept": rule,
        }
        body["digest"] = "sha256:" + hashlib.sha256(json.dumps(body).encode()).hexdigest()
        folder = self.folder / body["digest"][7:]
        folder.mkdir()
        (folder / "kernel.py").write_text(source)
        (folder / "artifact.json").write_text(json.dumps(body))
        return body["digest"], str(folder)

    def live_affine(self, **fields: Any) -> tuple[str, str]:
        """The server's own code with another block."""
        given: dict[str, Any] = {
            "params": {"BLOCK": 32, "num_warps": 2},
            "intercept": {"code": "live", "axes": {"N": "n"}, "grid": "kept"},
        }
        return self.artifact("affine", definition=AFFINE, **(given | fields))

    def other_affine(self, source: str = FASTER, **fields: Any) -> tuple[str, str]:
        """Another source."""
        rule = {"code": "artifact", "axes": {"N": "n"}, "constexprs": {"BLOCK": 16}}
        given: dict[str, Any] = {
            "source": source,
            "entry": "affine_two",
            "params": {"TILE": 64},
            "grid": ["cdiv(n, TILE)"],
            "intercept": rule | {"bind": {"x": "x_ptr", "out": "y_ptr"}},
        }
        return self.artifact("affine", definition=AFFINE, **(given | fields))

    def order(self, definition: str, digest: str | None, **fields: Any) -> dict[str, Any]:
        self.epoch += 1
        return {
            "id": f"order-{self.epoch}",
            "kind": "swap" if digest else "rollback",
            "definition": definition,
            "artifact": digest,
            "previous": None,
            "guard": {"bounds": {}},
            "epoch": self.epoch,
            "shadow_every": 10**9,
            "shadow_tolerance": 1e-3,
        } | fields

    def swap(
        self, delivered: tuple[str, str], definition: str = "lifted_affine", **fields: Any
    ) -> None:
        order = self.order(definition, delivered[0], **fields)
        self.host.answer({"op": "prepare", "order": order, "artifact_dir": delivered[1]})
        self.host.answer({"op": "commit", "order": order})

    def back(self, definition: str = "lifted_affine") -> None:
        self.host.answer({"op": "commit", "order": self.order(definition, None)})

    def sample(self) -> dict[str, Any]:
        (found,) = self.host.answer({"op": "samples"})["samples"]
        return dict(found)


@pytest.fixture
def world(hook: Interceptor, tmp_path: Path) -> World:
    return World(hook, tmp_path)


def right(interpreted: bool, made: tuple[Any, Any]) -> None:
    """Check what a launch made, where kernels compute."""
    assert not interpreted or torch.equal(*made)


def test_other_parameters_of_the_servers_code_take_over_and_give_back(
    world: World, interpreted: bool, device: Any
) -> None:
    for n in (100, 40):
        right(interpreted, launch_affine(n))
    world.swap(world.live_affine())
    for _ in range(3):
        right(interpreted, launch_affine(100))
    assert world.sample()["swapped_launches"] == 3
    assert world.sample()["shadow_checks"] == 1  # the first of the bucket; the server's code served
    assert world.sample()["shadow_mismatches"] == 0
    if device is not None:
        assert device.launches[-1]["grid"] == (4, 1, 1)  # 100 in blocks of 32
        assert device.launches[-1]["num_warps"] == 2
        assert device.launches[-1]["args"][-1] == 32
    world.back()
    right(interpreted, launch_affine(100))
    assert world.sample()["swapped_launches"] == 0
    if device is not None:
        assert device.launches[-1]["grid"] == (7, 1, 1)
        assert device.launches[-1]["num_warps"] == 4


def test_another_source_takes_over_by_the_names_it_binds(
    world: World, interpreted: bool, device: Any
) -> None:
    right(interpreted, launch_affine(100))
    world.swap(world.other_affine())
    for _ in range(3):
        right(interpreted, launch_affine(100))
    assert world.sample()["swapped_launches"] == 3
    if device is not None:
        assert device.launches[-1]["name"] == "affine_two"
        assert device.launches[-1]["grid"] == (2, 1, 1)


def test_the_guard_and_what_was_not_seen_leave_launches_to_the_server(
    world: World, interpreted: bool
) -> None:
    for n in (40, 100):
        launch_affine(n)
    world.swap(world.live_affine(), guard={"bounds": {"N": [50, 1000]}})
    for n in (40, 100, 100, 208):
        right(interpreted, launch_affine(n))
    x = torch.arange(104, dtype=torch.float32)
    y = torch.zeros(104)
    strangers.affine[cdiv_grid(100)](x[1:101], y[4:], 100, 0.5, BLOCK=16)  # not 16-byte aligned
    assert not interpreted or torch.equal(y[4:], x[1:101] * 1.5 + 2)
    half = torch.ones(100, dtype=torch.float16)
    strangers.affine[cdiv_grid(100)](half, torch.zeros_like(half), 100, 0.5, BLOCK=16)
    sample = world.sample()
    assert sample["swapped_launches"] == 2
    assert sample["ineligible_launches"] == {"not-compiled": 1, "unaligned": 1, "dtype": 1}


def test_what_launches_asked_for_is_compiled_off_the_request_path(world: World) -> None:
    launch_affine(100)
    world.swap(world.live_affine())
    launch_affine(208)
    assert world.sample()["swapped_launches"] == 0
    world.host.housekeeping()
    launch_affine(208)
    launch_affine(208)
    assert world.sample()["swapped_launches"] == 2


@pytest.mark.parametrize("source", [WRONG, LAZY])
def test_a_wrong_variant_is_taken_back_at_its_first_launch_and_served_nobody(
    world: World, interpreted: bool, source: str
) -> None:
    if not interpreted:
        pytest.skip("nothing is computed")
    launch_affine(100)
    world.swap(world.other_affine(source))
    for _ in range(3):
        right(interpreted, launch_affine(100))
    assert world.sample()["tripped"] in ("shadow-mismatch", "shadow-nonfinite")


def test_the_rows_are_read_from_the_grid(world: World, interpreted: bool) -> None:
    for _ in range(2):
        launch_rows(3, 8)
    rule = {"code": "live", "axes": {"M": "grid_0", "N": "n_cols"}, "constexprs": {"DOUBLE": True}}
    delivered = world.artifact(
        "rows", definition=ROWS, params={"BLOCK": 32}, intercept=rule | {"grid": "kept"}
    )
    world.swap(delivered, "lifted_rows", guard={"bounds": {"M": [2, 4]}})
    for m in (3, 3, 5, 3):
        right(interpreted, launch_rows(m, 8))
    assert world.sample()["swapped_launches"] == 3
    (state,) = world.host.answer({"op": "slots"})["slots"]
    assert state["launches"] == [((3, 8), 3), ((5, 8), 1)]


def test_a_launch_whose_arguments_are_not_the_definitions_is_the_servers(
    world: World, interpreted: bool
) -> None:
    for n in (100, 96):
        launch_affine(n)
    rule = {"code": "live", "axes": {"N": "param:n"}}
    delivered = world.live_affine(
        intercept=rule | {"ints": {"n": "N // 4 * 4"}, "numels": {"x_ptr": "N"}},
        grid=["cdiv(N, BLOCK)"],
    )
    world.swap(delivered)
    for n in (100, 100, 96, 96, 99):
        right(interpreted, launch_affine(n))
    x, y = torch.ones(128), torch.zeros(128)
    strangers.affine[cdiv_grid(100)](x, y, 100, 0.5, BLOCK=16)  # a larger tensor
    sample = world.sample()
    assert sample["swapped_launches"] == 4
    new = "not-compiled" if interpreted else "other-arguments"  # 99 compiles as 100
    assert sample["ineligible_launches"] in ({new: 2}, {new: 1, "other-arguments": 1})


def test_a_canary_of_nobody_is_only_shadowed(world: World, interpreted: bool, device: Any) -> None:
    launch_affine(100)
    delivered = world.live_affine()
    step = {"fraction": 0.0, "min_seconds": 0, "min_checks": 1}
    world.swap(delivered, canary=[step, step | {"fraction": 1.0}], shadow_every=1)
    for _ in range(4):
        right(interpreted, launch_affine(100))
    sample = world.sample()
    assert (sample["swapped_launches"], sample["errors"]) == (0, 0)
    assert sample["shadow_checks"] >= 1
    assert sample["shadow_mismatches"] == 0


def test_memory_that_is_read_and_written_is_never_changed_twice(
    world: World, interpreted: bool
) -> None:
    x = torch.zeros(40)
    strangers.grow[cdiv_grid(40)](x, 40, BLOCK=16)
    definition = AFFINE | {
        "name": "lifted_grow",
        "outputs": {"x_out": {"shape": ["N"], "dtype": "float32"}},
    }
    rule = {
        "code": "live",
        "axes": {"N": "n"},
        "grid": "kept",
        "dtypes": {"x_ptr": "float32"},
        "stores": {"x_ptr": "update"},
    }
    delivered = world.artifact("grow", definition=definition, params={"BLOCK": 8}, intercept=rule)
    world.swap(delivered, "lifted_grow", shadow_every=1)
    for _ in range(5):
        strangers.grow[cdiv_grid(40)](x, 40, BLOCK=16)
    assert not interpreted or torch.equal(x, torch.full((40,), 6.0))
    sample = world.sample()
    assert (sample["shadow_checks"], sample["shadow_mismatches"]) == (5, 0)


def test_an_autotuned_kernel_is_swapped_at_the_launch_the_tuner_makes(
    world: World, interpreted: bool
) -> None:
    x, y = torch.ones(32), torch.zeros(32)
    strangers.tuned[cdiv_grid(32)](x, y, 32)
    definition = AFFINE | {"name": "lifted_tuned"}
    delivered = world.artifact(
        "tuned",
        definition=definition,
        params={"BLOCK": 32},
        intercept={"code": "live", "axes": {"N": "n"}, "grid": "kept"},
    )
    world.swap(delivered, "lifted_tuned")
    for _ in range(2):
        y.zero_()
        strangers.tuned[cdiv_grid(32)](x, y, 32)
        assert not interpreted or torch.equal(y, x + 1)
    assert world.sample()["swapped_launches"] == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"source_digest": UNKNOWN, "kernel": f"{strangers.__name__}:affine"}, "kernel-changed"),
        ({"source_digest": UNKNOWN, "kernel": "elsewhere:affine"}, "kernel-unseen"),
        ({"code": "other"}, "artifact-invalid"),
        ({"stores": {}}, "artifact-invalid"),
        ({"stores": {"y_ptr": "write", "z": "write"}}, "artifact-invalid"),
        ({"axes": {}}, "artifact-invalid"),
        ({"axes": {"N": "__import__('os')"}}, "grid-invalid"),
        ({"dtypes": {"x_ptr": "float32", "y_ptr": "float32", "q": "int8"}}, "launch-mismatch"),
        ({"constexprs": {"WIDTH": 3}}, "launch-mismatch"),
        ({"bind": {"a": "x_ptr"}}, "launch-mismatch"),
        ({"dtypes": {"x_ptr": "float16", "y_ptr": "float16"}}, "kernel-unseen"),
        ({"more": 1}, "artifact-invalid"),
    ],
)
def test_what_does_not_fit_the_servers_kernel_is_refused_and_leaves_no_slot(
    world: World, interpreted: bool, change: dict[str, Any], reason: str
) -> None:
    launch_affine(100)
    rule = {"code": "live", "axes": {"N": "n"}, "grid": "kept"} | change
    delivered = world.live_affine(intercept=rule)
    with pytest.raises(Refused) as refused:
        world.swap(delivered)
    assert refused.value.reason == reason
    assert world.host.answer({"op": "slots"})["slots"] == []
    right(interpreted, launch_affine(100))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"params": {"TILE": 64, "more": 1}}, "launch-mismatch"),
        ({"grid": []}, "grid-invalid"),
        ({"grid": ["cdiv(n, OTHER)"]}, "grid-invalid"),
        ({"source": FASTER + "\nimport os\n"}, "contract-violated"),
        ({"language": "cpu_cpp"}, "language-unsupported"),
    ],
)
def test_a_source_that_does_not_fit_is_refused(
    world: World, fields: dict[str, Any], reason: str
) -> None:
    launch_affine(100)
    with pytest.raises(Refused) as refused:
        world.swap(world.other_affine(**fields))
    assert refused.value.reason == reason


def test_a_process_tells_people_what_runs_as_the_server_wrote_it(world: World) -> None:
    launch_affine(40)
    for _ in range(3):
        launch_rows(5, 7)
    told = world.host.answer({"op": "status"})
    names = [
        (each["kernel"].rpartition(":")[2], each["launches"]) for each in told["stock_kernels"]
    ]
    assert names == [("rows", 3), ("affine", 1)]
    assert told["stock_kernels_left_out"] == 0
    assert told["unvisited_s"] is None  # a person has asked, no daemon
    world.swap(world.live_affine())
    told = world.host.answer({"op": "status"})
    assert [each["kernel"].rpartition(":")[2] for each in told["stock_kernels"]] == ["rows"]
    assert told["unvisited_s"] < 60


def test_the_socket_lists_kernels_and_what_was_observed(world: World) -> None:
    launch_affine(100)
    launch_rows(2, 8)
    answer = world.host.answer({"op": "kernels"})
    assert [each["launches"] for each in answer["kernels"]] == [1, 1]
    assert answer["next"] is None
    observed = world.host.answer({"op": "observed", "kernel": answer["kernels"][0]["kernel"]})
    assert len(observed["records"]) == 1
    assert json.loads(json.dumps(observed)) == observed
    with raises_code(Refused, "bad-request"):
        world.host.answer({"op": "observed", "after": -1})
    assert "on" in world.host.answer({"op": "hello"})["interception"].values()


def test_hooks_of_launches_are_still_called_and_hooks_before_them_refuse(
    world: World, device: Any
) -> None:
    import triton

    if device is None:
        pytest.skip("the interpreter calls no launch hooks")
    launch_affine(100)
    world.swap(world.live_affine())
    launch_affine(100)
    told: list[Any] = []
    triton.knobs.runtime.launch_enter_hook.add(told.append)
    try:
        launch_affine(100)
        assert len(told) == 1
        assert world.sample()["swapped_launches"] == 2
        called: list[Any] = []
        strangers.affine.add_pre_run_hook(lambda *args, **_: called.append(args))
        launch_affine(100)
        assert len(called) == 1
        assert world.sample()["ineligible_launches"] == {"pre-run-hooks": 1}
    finally:
        strangers.affine.pre_run_hooks.clear()
        triton.knobs.runtime.launch_enter_hook.remove(told.append)
