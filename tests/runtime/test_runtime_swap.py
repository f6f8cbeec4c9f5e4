"""Prepare, commit, launch, check and go back, with real kernels and without a socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from retuned.runtime import step
from retuned.runtime.core.active_order import MAX_ERRORS, Swapped
from retuned.runtime.core.attach import Runtime, attach
from retuned.runtime.core.slots import Slot
from retuned.runtime.schema import Refused
from retuned.runtime.steps.launch_times import EVERY_S


class Server:
    """One slot in a runtime without a socket."""

    def __init__(self, kit: Any, layer: Any) -> None:
        self.kit = kit
        self.layer = layer
        self.originals = 0
        self.runtime: Runtime = attach(server="test")
        self.slot: Slot = self.runtime.slot(kit.definition(), self.original)

    def original(self, *inputs: Any) -> Any:
        self.originals += 1
        return self.kit.original(*inputs)

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return self.runtime._host.answer({"op": op, **fields})

    def launch(self, rows: int = 4, **changed: Any) -> tuple[Any, Any]:
        """Return the slot's answer and the right one."""
        with torch.inference_mode():
            x = changed.get("x", torch.randn(rows, 32))
            inputs = (x, changed.get("wq", self.layer.wq), changed.get("scale", self.layer.scale))
            expected = self.kit.original(*inputs)
            return self.slot(*inputs), expected

    def prepare(self, built: Any, **fields: Any) -> dict[str, Any]:
        order = self.kit.order(built.digest, **fields)
        return self.ask("prepare", order=order, artifact_dir=str(built.folder))

    def swap(self, built: Any, **fields: Any) -> None:
        self.prepare(built, **fields)
        self.ask("commit", order=self.kit.order(built.digest, **fields))

    def sample(self) -> dict[str, Any]:
        (sample,) = self.ask("samples")["samples"]
        return dict(sample)

    def state(self) -> dict[str, Any]:
        (state,) = self.ask("slots")["slots"]
        return dict(state)


@pytest.fixture
def server(linear_test_kit: Any, layer: Any) -> Iterator[Server]:
    server = Server(linear_test_kit, layer)
    server.launch(4)
    yield server
    server.runtime.close()


def refused(server: Server, op: str, **fields: Any) -> str:
    with pytest.raises(Refused) as caught:
        server.ask(op, **fields)
    return caught.value.reason


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"panel": 8},
        {"parts": 3},
        {"scratch_bytes": 64},
        {"panel": 16, "parts": 2, "scratch_bytes": 4096},
    ],
)
def test_a_swapped_kernel_serves_right_answers_within_its_guard(
    server: Server, build: Any, fields: dict[str, Any]
) -> None:
    server.swap(build(**fields), guard={"bounds": {"M": [2, 8]}}, shadow_every=10**9)
    before = server.originals
    for rows in (1, 2, 8, 9):
        answer, expected = server.launch(rows)
        torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-3)
    sample = server.sample()
    assert sample["swapped_launches"] == 2
    assert sample["fallback_launches"] == 2
    assert sample["shadow_checks"] == 2  # the first launch of each shape bucket
    assert server.originals - before == 4
    server.launch(8)
    assert server.originals - before == 4, "a swapped launch does not run the original"


def test_inputs_the_kernel_was_not_made_for_go_to_the_original(server: Server, build: Any) -> None:
    server.swap(build())
    server.launch(4)
    wide = torch.randn(4, 64)
    odd: list[dict[str, Any]] = [
        {"x": wide[:, ::2]},
        {"x": torch.randn(32, 4).T},
        {"wq": server.layer.wq.to(torch.int16)},
    ]
    for changed in odd:
        answer, expected = server.launch(4, **changed)
        torch.testing.assert_close(answer, expected)
    server.launch(4, scale=torch.nn.Parameter(server.layer.scale))
    sample = server.sample()
    assert sample["swapped_launches"] == 2, "a parameter is an ordinary tensor"
    assert sample["ineligible_launches"] == {"tensor-kind": 3}
    assert sample["errors"] == 0


def test_other_constant_lengths_never_reach_the_kernel(server: Server, build: Any) -> None:
    """A slot handed the wrong layer's weights: the kernel would read past their end."""
    server.swap(build())
    small = torch.ones(8, 32, dtype=torch.int8)
    answer, expected = server.launch(4, wq=small, scale=torch.ones(8))
    torch.testing.assert_close(answer, expected)
    assert server.sample()["ineligible_launches"] == {"shape": 1}


def test_a_launch_that_needs_gradients_goes_to_the_original(server: Server, build: Any) -> None:
    server.swap(build())
    x = torch.randn(4, 32, requires_grad=True)
    server.slot(x, server.layer.wq, server.layer.scale).sum().backward()
    assert x.grad is not None
    assert server.sample()["ineligible_launches"] == {"autograd": 1}
    with torch.no_grad():
        server.slot(x, server.layer.wq, server.layer.scale)
    assert server.sample()["swapped_launches"] == 1


def test_an_empty_batch_goes_to_the_original(server: Server, build: Any) -> None:
    server.swap(build())
    answer, _ = server.launch(0)
    assert answer.shape == (0, 16)
    assert server.sample()["swapped_launches"] == 0


def test_a_weight_never_seen_is_served_by_the_original_until_it_is_packed(
    server: Server, build: Any
) -> None:
    server.swap(build(panel=8))
    other = torch.randint(-5, 5, (16, 32), dtype=torch.int8)
    answer, expected = server.launch(4, wq=other)
    torch.testing.assert_close(answer, expected)
    assert server.sample()["ineligible_launches"] == {"weight-not-packed": 1}
    server.runtime._host.housekeeping()
    answer, expected = server.launch(4, wq=other)
    torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-3)
    assert server.sample()["swapped_launches"] == 1


def test_a_weight_written_to_after_packing_is_not_served_from_the_old_copy(
    server: Server, build: Any
) -> None:
    server.swap(build(panel=8))
    server.launch(4)
    server.layer.wq.mul_(-1)
    answer, expected = server.launch(4)
    torch.testing.assert_close(answer, expected)
    assert server.sample()["ineligible_launches"] == {"weight-not-packed": 1}
    server.runtime._host.housekeeping()
    answer, expected = server.launch(4)
    torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-3)
    assert server.sample()["swapped_launches"] == 2


def test_packed_copies_die_with_their_weights(server: Server, build: Any) -> None:
    server.swap(build(panel=8))
    packed = server.runtime._host._seating.seats["linear_n16_k32"].packed
    assert len(packed) == 1
    server.launch(4, wq=torch.ones(16, 32, dtype=torch.int8))
    server.runtime._host.housekeeping()
    assert len(packed) == 1, "a weight that died meanwhile is not packed"


def test_orders_are_carried_out_once_and_old_ones_refused(server: Server, build: Any) -> None:
    built = build()
    kit = server.kit
    said = server.prepare(built)
    assert (said["already"], said["shapes"]) == (False, 1)
    assert server.prepare(built)["already"] is True
    first = kit.order(built.digest)
    flip_ns = server.ask("commit", order=first)["flip_ns"]
    assert flip_ns > 0
    assert server.ask("commit", order=first) == {"already": True, "flip_ns": flip_ns}
    assert refused(server, "commit", order=kit.order(None, epoch=1, id="other")) == "stale-epoch"
    back = kit.order(None, epoch=2)
    assert server.ask("commit", order=back)["already"] is False
    assert server.state()["active"] is None
    assert server.ask("commit", order=first)["already"] is True, "repeated, not carried out again"
    assert server.state()["active"] is None
    again = kit.order(built.digest, epoch=3, kind="rollback")
    server.ask("commit", order=again)
    assert server.state()["active"] == built.digest, "still loaded: no prepare needed"
    assert server.state()["epoch"] == 3


def test_what_was_not_prepared_or_is_not_there_is_refused(server: Server, build: Any) -> None:
    built = build()
    kit = server.kit
    assert refused(server, "commit", order=kit.order(built.digest)) == "not-prepared"
    unknown = kit.order(built.digest, definition="nothing")
    assert refused(server, "commit", order=unknown) == "unknown-slot"
    assert refused(server, "dance") == "unknown-op"
    assert refused(server, "prepare", order=kit.order(built.digest)) == "order-invalid"
    wrong = build(definition=kit.definition(n=32))
    order = kit.order(wrong.digest)
    assert (
        refused(server, "prepare", order=order, artifact_dir=str(wrong.folder))
        == "definition-mismatch"
    )
    foreign = build(language="fortran")
    order = kit.order(foreign.digest)
    assert (
        refused(server, "prepare", order=order, artifact_dir=str(foreign.folder))
        == "language-unsupported"
    )
    assert server.state()["active"] is None


@pytest.mark.parametrize(
    ("fault", "what"),
    [(1, "ratio"), (2, "NaN or Inf"), (3, "outside"), (4, "its inputs"), (5, "NaN or Inf")],
)
def test_a_kernel_that_is_wrong_here_is_refused_before_it_serves(
    server: Server, build: Any, fault: int, what: str
) -> None:
    with pytest.raises(Refused, match=what) as caught:
        server.prepare(build(fault=fault))
    assert caught.value.reason == "self-check-failed"
    answer, expected = server.launch(4)
    assert torch.equal(answer, expected)


def test_a_guard_that_nothing_can_be_tried_on_is_refused(linear_test_kit: Any, build: Any) -> None:
    runtime = attach(server="test")
    runtime.slot(linear_test_kit.definition(), linear_test_kit.original)
    built = build()
    order = linear_test_kit.order(built.digest, guard={"bounds": {"M": [2**30, 2**31]}})
    with pytest.raises(Refused) as caught:
        runtime._host.answer({"op": "prepare", "order": order, "artifact_dir": str(built.folder)})
    assert caught.value.reason == "self-check-no-shape"
    order = linear_test_kit.order(built.digest, guard={"bounds": {"M": [2, 3]}})
    answer = runtime._host.answer(
        {"op": "prepare", "order": order, "artifact_dir": str(built.folder)}
    )
    assert answer["shapes"] == 2, "no traffic yet: both corners of the guard"
    runtime.close()


def test_the_self_check_leaves_the_servers_random_numbers_alone(server: Server, build: Any) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    server.prepare(build())
    assert torch.equal(torch.rand(3), expected)


def in_force(server: Server) -> Swapped:
    order = server.slot.table.in_force
    assert isinstance(order, Swapped)
    return order


def distort(server: Server, change: Any) -> None:
    order = in_force(server)
    order.distortion = lambda launch: lambda inputs: change(launch(inputs))
    assert server.slot.replace(order, state="swapped")


def test_a_kernel_that_turns_badly_wrong_is_taken_back_by_the_runtime_itself(
    server: Server, build: Any
) -> None:
    server.swap(build(), shadow_every=10)
    for _ in range(20):
        server.launch(4)
    distort(server, lambda output: output * 1.5)
    for _ in range(20):
        server.launch(4)
    sample = server.sample()
    assert sample["tripped"] == "shadow-mismatch"
    assert (sample["artifact"], sample["epoch"]) == (None, 1)
    assert sample["shadow_mismatches"] == 1
    assert sample["worst_ratio"] > 4
    answer, expected = server.launch(4)
    assert torch.equal(answer, expected)
    server.ask("commit", order=server.kit.order(None, epoch=2))
    assert server.sample()["tripped"] == ""


def test_the_launch_that_trips_serves_the_incumbents_output(server: Server, build: Any) -> None:
    server.swap(build(), shadow_every=1)
    distort(server, lambda output: output.fill_(float("nan")))
    answer, expected = server.launch(4)
    assert torch.equal(answer, expected)
    sample = server.sample()
    assert (sample["tripped"], sample["shadow_nonfinite"]) == ("shadow-nonfinite", 1)


def test_a_small_mismatch_is_reported_and_left_to_the_daemon(server: Server, build: Any) -> None:
    server.swap(build(), shadow_every=1, shadow_tolerance=1e-2)

    def off(output: Any) -> Any:
        rms = output.square().mean().sqrt()
        output[0, 0] += 2e-2 * rms
        return output

    distort(server, off)
    answer, expected = server.launch(4)
    assert not torch.equal(answer, expected)
    sample = server.sample()
    assert sample["tripped"] == ""
    assert sample["shadow_mismatches"] == 1
    assert 1.9 < sample["worst_ratio"] < 2.1
    assert sample["last_mean_ratio"] == pytest.approx(sample["worst_ratio"])


def test_a_kernel_that_writes_to_its_inputs_trips(server: Server, build: Any) -> None:
    server.swap(build(), shadow_every=1)
    x = torch.randn(4, 32)

    def meddle(output: Any) -> Any:
        x[0, 0] += 1
        return output

    distort(server, meddle)
    server.launch(x=x)
    assert server.sample()["tripped"] == "input-modified"


def test_a_kernel_that_raises_is_replaced_for_that_launch_and_then_for_good(
    server: Server, build: Any
) -> None:
    server.swap(build(), shadow_every=10**9)
    server.launch(4)

    def raises(_: Any) -> Any:
        raise OSError("no such luck")

    distort(server, raises)
    for number in range(1, MAX_ERRORS + 1):
        answer, expected = server.launch(4)
        assert torch.equal(answer, expected)
        assert server.sample()["errors"] == number
    assert server.sample()["tripped"] == "launch-errors"


def test_bypass_serves_the_original_and_keeps_order_and_counts(server: Server, build: Any) -> None:
    built = build()
    server.swap(built)
    server.launch(4)
    name = "linear_n16_k32"
    assert server.ask("bypass", definition=name, on=True) == {"bypassed": True}
    server.launch(4)
    state = server.state()
    assert (state["active"], state["epoch"], state["bypassed"]) == (built.digest, 1, True)
    assert server.sample()["swapped_launches"] == 1
    assert server.ask("bypass", definition=name, on=False) == {"bypassed": False}
    server.launch(4)
    sample = server.sample()
    assert (sample["swapped_launches"], sample["fallback_launches"]) == (2, 1)
    server.ask("bypass", definition=name, on=True)
    server.ask("commit", order=server.kit.order(None, epoch=2))
    assert server.state()["bypassed"] is False
    assert refused(server, "bypass", definition=name, on="yes") == "bad-request"


def test_a_bypass_with_a_label_waits_for_the_end_of_the_step(server: Server, build: Any) -> None:
    server.swap(build())
    name, log = server.slot.spec.name, server.runtime.steps.log
    said = server.ask("bypass", definition=name, on=True, arm="off")  # no steps are known yet
    assert (said["bypassed"], said["arm"]) == (True, "off")
    answers: list[dict[str, Any]] = []

    def bypass() -> None:
        answers.append(server.ask("bypass", definition=name, on=False, arm="on"))

    with step(decode=4):
        thread = threading.Thread(target=bypass)
        thread.start()
        thread.join(0.1)
        assert (server.state()["bypassed"], log.arm, answers) == (True, "off", [])
    thread.join(10.0)
    assert (server.state()["bypassed"], log.arm) == (False, "on")
    assert answers[0]["bypassed"] is False
    server.ask("bypass", definition=name, on=True)  # without a label: at once, and none changes
    assert (server.state()["bypassed"], log.arm) == (True, "on")
    assert refused(server, "bypass", definition=name, on=True, arm="") == "bad-request"
    server.ask("commit", order=server.kit.order(None, epoch=9, kind="rollback"))
    assert log.arm == ""
    log.arm = "on"
    assert server.ask("bypass", definition=name, on=True, arm="off") == {"bypassed": False}
    assert log.arm == ""


def test_a_tripped_slot_gets_no_label(server: Server, build: Any) -> None:
    server.swap(build())
    in_force = server.slot.table.in_force
    server.slot.replace(in_force, state="tripped:errors")
    said = server.ask("bypass", definition=server.slot.spec.name, on=False, arm="on")
    assert (said["bypassed"], said["arm"]) == (False, "")


def test_threads_launch_a_kernel_with_scratch_while_it_is_swapped_back_and_forth(
    server: Server, build: Any
) -> None:
    """The scratch of one launch must not be another's, and every answer is right."""
    built = build(scratch_bytes=64, parts=2)
    server.prepare(built)
    x = torch.randn(4, 32)
    expected = server.kit.original(x, server.layer.wq, server.layer.scale)
    wrong: list[float] = []
    done = threading.Event()

    def work() -> None:
        with torch.inference_mode():
            while not done.is_set():
                answer = server.slot(x, server.layer.wq, server.layer.scale)
                if not torch.allclose(answer, expected, rtol=1e-4, atol=1e-3):
                    wrong.append(float((answer - expected).abs().max()))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for epoch in range(1, 201):
        digest = built.digest if epoch % 2 else None
        server.ask("commit", order=server.kit.order(digest, epoch=epoch))
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert server.sample()["errors"] == 0


def test_variants_stay_loaded_for_the_way_back_but_not_without_end(
    server: Server, build: Any
) -> None:
    digests: list[str] = []
    for epoch in range(1, 8):
        built = build(scratch_bytes=64 * epoch)
        previous = digests[-1] if digests else None
        server.swap(built, epoch=epoch, previous=previous)
        digests.append(built.digest)
    resident = server.runtime._host._seating.seats["linear_n16_k32"].resident
    assert list(resident) == digests[-4:]
    server.ask("commit", order=server.kit.order(digests[-2], epoch=8, kind="rollback"))
    assert server.state()["active"] == digests[-2]


def test_launches_of_a_proven_slot_are_timed_in_both_arms(server: Server, build: Any) -> None:
    server.swap(build())
    server.launch(4)
    name = server.slot.spec.name
    assert server.ask("steps", record=True, launches=True)["launches"] == []
    for label, on in (("0-0-off", True), ("0-1-on", False)):
        server.ask("bypass", definition=name, on=on, arm=label)
        for _ in range(3):
            server.launch(4)
            time.sleep(EVERY_S)
    rows = server.ask("steps", launches=True)["launches"]
    assert {(row["arm"], tuple(row["lengths"]), row["launches"]) for row in rows} == {
        ("off", (4,), 3),
        ("on", (4,), 3),
    }
    assert all(row["us"] for row in rows)
    server.ask("steps", record=False)
    assert server.slot.times is None
    assert "launches" not in server.ask("steps")
    assert server.ask("steps", record=True, launches=True)["launches"] == [], "a new recording"
