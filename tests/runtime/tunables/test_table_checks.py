"""Launches under a table are compared with the server's choice; a wrong table ends."""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from tests.runtime.test_shadow_aside import Box, Played

from retuned.runtime.artifacts.trust import Trust
from retuned.runtime.core.epochs import Fence
from retuned.runtime.core.orders import CheckRates
from retuned.runtime.shadow.async_check import CAPTURING, INCUMBENT_FAILED, LATE, CheckSite
from retuned.runtime.shadow.input_copies import InputCopier
from retuned.runtime.shadow.pending_checks import NO_ROOM, TOO_LARGE, Checks
from retuned.runtime.tunables import checks as table_checks
from retuned.runtime.tunables.autotune import _Call, _sides
from retuned.runtime.tunables.checks import (
    ALIASED,
    STRIDED,
    UNKNOWN,
    Sides,
    TableChecks,
    _is_dense,
)
from retuned.runtime.tunables.records import canonical
from retuned.runtime.tunables.service import Tunables

RIGHT, WRONG, NONFINITE, RAISES = range(4)
CONFIGS = [
    triton.Config({"BLOCK": size, "MODE": mode}, num_warps=2, num_stages=1)
    for size, mode in [(16, RIGHT), (32, RIGHT), (32, WRONG), (32, NONFINITE), (32, RAISES)]
]
KEY = (1, "torch.float32", "torch.float32")


@triton.jit
def _doubled(x_ptr, out_ptr, n, wide, BLOCK: tl.constexpr, MODE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write twice the input, as far as the mode is right."""
    tl.static_assert(MODE != 3)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    y = x * 2
    if MODE == 1:
        y = tl.where(at == 5, -10 * x, y)
    if MODE == 2:
        y = tl.where(at == 5, float("nan"), y)
    tl.store(out_ptr + at, y, mask=at < n)


@triton.jit
def _added(state_ptr, x_ptr, n, wide, BLOCK: tl.constexpr, MODE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Add the input to a state that the server keeps."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    state = tl.load(state_ptr + at, mask=at < n, other=0.0)
    tl.store(state_ptr + at, state + tl.load(x_ptr + at, mask=at < n, other=0.0), mask=at < n)


def tuner(kernel: Any = _doubled) -> Any:
    made = triton.autotune(configs=CONFIGS, key=["wide"])(kernel)
    made.cache[KEY] = CONFIGS[0]
    return made


def launch(kernel: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    n = x.numel()
    kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n=n, wide=1)
    return out


def doubles(kernel: Any, count: int = 40) -> bool:
    """Launch, and return whether the answer is right."""
    x = torch.arange(1.0, count + 1)
    return bool(torch.equal(launch(kernel, x, torch.full((count,), -1.0)), 2 * x))


@pytest.fixture
def tunables() -> Iterator[Tunables]:
    fence = Fence()
    made = Tunables(trust=Trust(), fence=lambda: fence)
    assert made.turn_on(lambda: None)["autotune"] == "on"
    yield made
    made.close()


_EPOCHS = itertools.count(1)


def swap(tunables: Tunables, mode: int, *, every: int = 1) -> None:
    """Put a table in force that has one configuration for all sizes."""
    (report,) = tunables.state({})["tunables"]
    configs = [each for each in report["space"]["configs"] if each["kwargs"]["BLOCK"] == 32]
    config = next(each for each in configs if each["kwargs"]["MODE"] == mode)
    text = {
        "format": "table",
        "tunable": report["id"],
        "family": "autotune",
        "source": report["source"],
        "rules": [{"when": {"elements": [0, 2**40]}, "config": config}],
        "captures": [],
        "before": report["table"] and report["table"]["digest"],
    }
    epoch = next(_EPOCHS)
    order = {
        "id": f"order-{epoch}",
        "kind": "swap",
        "definition": report["id"],
        "target": "chat",
        "epoch": epoch,
        "change": canonical(text),
        "artifact": "sha256:" + "a" * 64,
        "shadow_every": every,
    }
    tunables.prepare({"order": order})
    assert tunables.commit({"order": order})["outcome"] == "engaged"


def table(tunables: Tunables) -> dict[str, Any]:
    (report,) = tunables.state({})["tunables"]
    return dict(report["table"])


def test_a_bypassed_table_neither_serves_nor_is_checked(tunables: Tunables) -> None:
    kernel = tuner()
    assert doubles(kernel)
    swap(tunables, WRONG)  # it would end at its first launch
    (tunable,) = tunables.registry
    assert tunables.bypass({"definition": tunable.id, "on": True})["bypassed"] is True
    assert all(doubles(kernel) for _ in range(3))
    assert (table(tunables)["matched"], table(tunables)["state"]) == (0, "engaged")
    tunables.bypass({"definition": tunable.id, "on": False})
    assert doubles(kernel)
    assert (table(tunables)["matched"], table(tunables)["state"]) == (1, "lost")


def test_a_right_table_is_checked_and_serves(tunables: Tunables) -> None:
    kernel = tuner()
    assert doubles(kernel)
    swap(tunables, RIGHT)
    assert all(doubles(kernel) for _ in range(5))
    found = table(tunables)
    assert (found["state"], found["matched"]) == ("engaged", 5)
    assert (found["checks"]["checks"], found["checks"]["mismatches"]) == (5, 0)
    assert not found["checks"]["dropped"]


@pytest.mark.parametrize(
    ("mode", "reason"), [(WRONG, "shadow-mismatch"), (NONFINITE, "shadow-nonfinite")]
)
def test_a_wrong_table_ends_before_its_answer_is_served(
    tunables: Tunables, mode: int, reason: str
) -> None:
    kernel = tuner()
    assert doubles(kernel)
    swap(tunables, mode)
    assert all(doubles(kernel) for _ in range(3))
    found = table(tunables)
    assert (found["state"], found["reason"], found["matched"]) == ("lost", reason, 1)
    (status,) = tunables.state({"orders": True})["files"]
    assert (status["state"], status["reason"]) == ("lost", reason)
    assert json.dumps(status["checks"])
    swap(tunables, RIGHT)
    assert doubles(kernel)
    assert table(tunables)["state"] == "engaged"


def test_a_configuration_that_fails_in_its_check_leaves_the_servers_choice(
    tunables: Tunables,
) -> None:
    kernel = tuner()
    assert doubles(kernel)
    swap(tunables, RAISES)
    assert all(doubles(kernel) for _ in range(3))
    assert table(tunables)["checks"]["checks"] == 0
    assert table(tunables)["matched"] == 1
    assert tunables.registry.failures == 1


def test_a_state_is_updated_once_for_each_launch(tunables: Tunables) -> None:
    kernel, state = tuner(_added), torch.zeros(40)
    launch(kernel, state, torch.ones(40))
    swap(tunables, RIGHT)
    for number in range(2, 9):
        launch(kernel, state, torch.ones(40))
        assert state.unique().tolist() == [number]
    assert table(tunables)["checks"]["checks"] == 7


def test_an_output_that_is_an_input_as_well_is_not_checked(tunables: Tunables) -> None:
    kernel = tuner()
    assert doubles(kernel)
    swap(tunables, RIGHT)
    both = torch.ones(40)
    assert launch(kernel, both, both).unique().tolist() == [2.0]
    assert table(tunables)["checks"]["dropped"] == {ALIASED: 1}


class Described:
    """As Triton's descriptor of a tensor: an argument that leads to memory."""

    def __init__(self, base: torch.Tensor) -> None:
        self.base = base


class Wrapped(torch.Tensor):  # type: ignore[misc]
    """As servers' own kinds of tensors: a copy of it may be no copy."""


def test_what_may_lead_to_the_servers_memory_is_not_run_twice(tunables: Tunables) -> None:
    kernel = tuner()
    assert doubles(kernel)
    swap(tunables, RIGHT)
    (tunable,) = tunables.registry
    x, out = torch.arange(40.0), torch.full((40,), -1.0).as_subclass(Wrapped)
    launch(kernel, x, out)
    assert torch.equal(out.as_subclass(torch.Tensor), 2 * x)
    assert table(tunables)["checks"]["dropped"] == {UNKNOWN: 1}
    call = _Call(tunable, tunable.sized({"elements": 40, "programs": 3}), {}, {}, KEY, False)
    for hidden in (Described(out), (out,), torch.zeros(4, dtype=torch.int64)):
        given = {"out_ptr": torch.ones(40), "x_ptr": hidden}
        sides = _sides(kernel, call, (), given, lambda _config, _outputs: None)
        assert (sides.unfit, sides.outputs) == (UNKNOWN, {})


def test_an_output_with_gaps_is_not_checked(tunables: Tunables) -> None:
    """Its copy would have none, and the launch has the strides as numbers."""
    kernel = tuner()
    assert doubles(kernel)
    swap(tunables, RIGHT)
    whole = torch.full((8, 20), -1.0)
    launch(kernel, torch.ones(40), whole[:, :5])
    assert table(tunables)["checks"]["dropped"] == {STRIDED: 1}


@pytest.mark.parametrize(
    ("tensor", "dense"),
    [
        (torch.zeros(4, 8), True),
        (torch.zeros(4, 8).t(), True),
        (torch.zeros(3, 1, 5).permute(2, 1, 0), True),
        (torch.zeros(0, 8), True),
        (torch.zeros(4, 8)[:, :4], False),
        (torch.zeros(1, 8).expand(4, 8), False),
        (torch.zeros(16)[::2], False),
    ],
)
def test_dense_tensors_are_those_that_a_copy_is_alike(tensor: torch.Tensor, *, dense: bool) -> None:
    assert _is_dense(tensor) is dense
    if dense and tensor.numel():
        assert tensor.clone().stride() == tensor.stride()


def test_a_rule_that_failed_stays_out_after_housekeeping(tunables: Tunables) -> None:
    kernel = tuner()
    assert doubles(kernel)
    swap(tunables, RAISES)
    for _ in range(4):
        assert doubles(kernel)
        tunables.housekeeping()
    assert tunables.registry.failures == 1


def test_a_check_never_lets_an_autotuner_choose(tunables: Tunables) -> None:
    kernel = tuner()
    assert doubles(kernel)
    swap(tunables, RIGHT)
    kernel.cache.clear()
    assert doubles(kernel)
    assert table(tunables)["checks"]["dropped"] == {"incumbent-unknown": 1}
    assert not kernel.cache


def test_a_kernel_whose_outputs_are_unknown_is_not_checked(
    tunables: Tunables, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tuner()
    assert doubles(kernel)
    swap(tunables, RIGHT)
    (tunable,) = tunables.registry
    monkeypatch.setattr(tunable, "written", None)
    assert doubles(kernel)
    assert table(tunables)["checks"]["dropped"] == {UNKNOWN: 1}


def test_every_block_of_launches_has_one_check(tunables: Tunables) -> None:
    kernel = tuner()
    assert doubles(kernel)
    swap(tunables, RIGHT, every=10)
    assert all(doubles(kernel) for _ in range(101))
    assert table(tunables)["checks"]["checks"] == 11


def test_each_size_class_is_checked_at_its_first_launch(tunables: Tunables) -> None:
    kernel = tuner()
    assert doubles(kernel)
    swap(tunables, RIGHT, every=1_000)
    assert all(doubles(kernel, count) for count in (40, 41, 300, 310, 5_000))
    assert table(tunables)["checks"]["checks"] == 3


def test_a_check_without_memory_serves_the_servers_choice_and_not_forever(
    tunables: Tunables, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tuner()
    assert doubles(kernel)
    swap(tunables, RIGHT)
    (tunable,) = tunables.registry
    assert tunable.checks is not None
    full = InputCopier(1 << 20)
    assert full.take(1 << 20)
    monkeypatch.setattr(tunable.checks, "_keeper", full)
    assert all(doubles(kernel, 40 + n) for n in range(4))  # of one class
    assert table(tunables)["checks"]["dropped"] == {NO_ROOM: 4}
    assert table(tunables)["checks"]["checks"] == 0
    assert tunable.checks._unserved == {(6, 2): 4}


def test_outputs_beyond_the_budget_are_never_checked(
    tunables: Tunables, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tuner()
    assert doubles(kernel)
    swap(tunables, RIGHT)
    (tunable,) = tunables.registry
    monkeypatch.setattr(tunable.checks, "_keeper", InputCopier(16))
    assert doubles(kernel)
    assert table(tunables)["checks"]["dropped"] == {TOO_LARGE: 1}


def test_while_a_graph_is_captured_the_servers_choice_runs(
    tunables: Tunables, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tuner()
    assert doubles(kernel)
    swap(tunables, RIGHT)
    monkeypatch.setattr(table_checks, "captures_under_way", lambda: True)
    assert doubles(kernel)
    monkeypatch.setattr(table_checks, "captures_under_way", lambda: False)
    assert doubles(kernel)
    counts = table(tunables)["checks"]
    assert (counts["dropped"], counts["checks"]) == ({CAPTURING: 1}, 1)


# --- on a device ----------------------------------------------------------------------------------


class Output(Box):
    """A tensor with an address."""

    device = "played"

    def data_ptr(self) -> int:
        return id(self.memory)

    def stride(self) -> tuple[int, ...]:
        return (1,)


class Aside:
    """Checks on a played device, after the first one of their size class."""

    def __init__(self, *, factor: float = 2.0) -> None:
        self.device, self.factor, self.now_s = Played(), factor, 0.0
        self.tripped: list[str] = []
        self.stands = True
        self.keeper = InputCopier(1 << 20)
        self.pending = Checks(8, keeper=self.keeper, clock=lambda: self.now_s)
        self.table = TableChecks(
            "tunable:t",
            rates=CheckRates(shadow_every=1),
            on_trip=self._trip,
            stands=lambda: self.stands,
            keeper=self.keeper,
            checks=self.pending,
            device_of=lambda _inputs, dense=True: self.device,
            clock=lambda: self.now_s,
            chance=random.Random(0),
            plain=lambda value: isinstance(value, Output),
        )
        self.incumbent_fails = False

    def _trip(self, reason: str, _detail: str) -> None:
        self.tripped.append(reason)
        self.stands = False

    def launch(self, *, in_workspace: bool = False) -> Output:
        """Launch under the table; the kernel writes a multiple of its input.

        Parameters
        ----------
        in_workspace
            Whether the output lies in a workspace that the launch writes before.
        """
        at = self.table.due({"rows": 4})
        assert at is not None, "every launch is due"
        at.stratum.checks = max(1, at.stratum.checks)
        served, x = Output([0.0] * 4), Output([1.0, 2.0, 3.0, 4.0])
        scratch = {"work": Output([0.0] * 4)} if in_workspace else {}
        for each in scratch.values():
            each.memory = served.memory

        def run(config: Mapping[str, Any] | None, outputs: Mapping[str, Any]) -> None:
            if config is None and self.incumbent_fails:
                raise RuntimeError("the server's own kernel failed")
            out, gain = outputs.get("out", served), self.factor if config else 2.0
            source, target = x.memory, out.memory
            spare = [outputs.get(name, own).memory for name, own in scratch.items()]

            def work() -> None:
                for memory in spare:
                    memory.data = [math.nan] * 4
                target.data = [gain * value for value in source.data]

            self.device.run("table" if config else "incumbent", work, x, out)

        sides = Sides({"out": served}, (), run, scratch=scratch)
        self.table.launch(at, {"a": 1}, sides)
        return served

    def play(self) -> None:
        self.device.play(random.Random(1))
        self.pending.settle()

    @property
    def counts(self) -> dict[str, Any]:
        return self.table.report()


def test_both_sides_run_on_the_servers_stream_and_are_compared_aside() -> None:
    world = Aside()
    served = world.launch()
    kinds = [kind for kind, _ in world.device.streams["aside"]]
    assert kinds[0] == "wait", "the comparison waits for the server's stream"
    world.device.play(only="served")
    assert {"table", "incumbent"} <= set(world.device.order), "neither runs on the checks' stream"
    assert world.counts["checks"] == 0, "no thread waited for a result"
    world.play()
    assert served.memory.data == [2.0, 4.0, 6.0, 8.0]
    assert (world.counts["checks"], world.counts["worst_ratio"]) == (1, 0.0)
    assert not world.device.faults
    assert not world.keeper.held_bytes


def test_a_table_that_becomes_wrong_ends_when_its_numbers_arrive() -> None:
    world = Aside()
    world.launch()
    world.play()
    world.factor = 5.0
    world.launch()
    world.play()
    assert world.tripped == ["shadow-mismatch"]


def test_the_order_of_both_sides_is_random() -> None:
    world = Aside()
    for _ in range(40):
        world.launch()
        world.play()
    sides = [each for each in world.device.order if each in ("table", "incumbent")]
    firsts = [sides[at] for at in range(0, len(sides), 2)]
    assert 8 < firsts.count("table") < 32


def test_the_other_side_has_workspaces_of_its_own() -> None:
    world = Aside()
    for _ in range(10):  # in either order
        served = world.launch(in_workspace=True)
        world.play()
        assert served.memory.data == [2.0, 4.0, 6.0, 8.0]
    assert (world.counts["checks"], world.counts["worst_ratio"]) == (10, 0.0)
    assert not world.keeper.held_bytes


def test_a_result_for_a_table_that_was_replaced_is_ignored() -> None:
    world = Aside(factor=9.0)
    world.launch()
    world.stands = False
    world.play()
    assert (world.tripped, world.counts["dropped"]) == ([], {LATE: 1})


def test_a_failure_of_the_servers_side_does_not_reach_the_server() -> None:
    world = Aside()
    world.incumbent_fails = True
    served = world.launch()
    world.play()
    assert served.memory.data == [2.0, 4.0, 6.0, 8.0]
    assert world.counts["dropped"] == {INCUMBENT_FAILED: 1}
    assert not world.keeper.held_bytes


@pytest.mark.parametrize(
    ("span_ns", "slow"), [(lambda table: 900_000 if table else 300_000, True),
                          (lambda table: 90_000 if table else 30_000, False)],
)  # fmt: skip
def test_a_table_that_is_slower_live_ends_unless_launches_are_too_short_to_tell(
    span_ns: Callable[[bool], int], *, slow: bool
) -> None:
    world = Aside()
    # the incumbent's is read first, the comparison's last
    spans = itertools.cycle([span_ns(False), span_ns(True), 50_000])
    world.device.span_ns = lambda: next(spans)
    for _ in range(80):
        if world.stands:
            world.launch()
            world.play()
    assert world.tripped == (["slow"] if slow else [])


def test_without_memory_on_the_device_the_table_serves_unchecked() -> None:
    world = Aside()
    world.device.no_copies = True
    served = world.launch()
    world.play()
    assert served.memory.data == [2.0, 4.0, 6.0, 8.0]
    assert world.counts["dropped"] == {NO_ROOM: 1}
    assert not world.keeper.held_bytes


def test_checks_stay_within_their_share_of_time() -> None:
    world = Aside()
    limited = TableChecks(
        "tunable:t",
        rates=CheckRates(shadow_every=1, shadow_share=0.1),
        on_trip=lambda *_: None,
        stands=lambda: True,
        clock=lambda: world.now_s,
    )
    first = limited.due({"rows": 4})
    assert isinstance(first, CheckSite)
    first.stratum.checks = 1
    limited._judge.cost.spend(5.0)
    assert limited.due({"rows": 4}) is None
    world.now_s = 100.0
    assert limited.due({"rows": 4}) is not None
    assert limited.report()["throttled"] == 1
