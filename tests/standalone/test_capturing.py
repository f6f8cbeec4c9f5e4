"""Who may be sampled, what an experiment gets of it, and that it goes away."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.standalone.local_world import KERNEL, World, auto_policy

from retuned.contract import Digest
from retuned.lab.captured_files import expiry_of, read_captured, write_captured
from retuned.lab.journal import notebook_name
from retuned.ports import CapturedInputs, CapturedTensor, Finding
from retuned.runtime_client.captures import FakeInputTap
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.gate import KernelTuningPolicy
from retuned.standalone.context import Captures, RecordKind
from retuned.standalone.daemon import Loop
from retuned.standalone.tunables import captured_inputs
from retuned.store.policy_files import load_policy, permissions_in
from retuned.strict_yaml import parse

DEFINITION = {
    "name": KERNEL,
    "op_type": "linear",
    "axes": {"M": {"type": "var"}},
    "inputs": {"x": {"shape": ["M"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["M"], "dtype": "float32"}},
    "reference": "def run(x): ...",
}


def permitting(**capture: Any) -> KernelTuningPolicy:
    body = auto_policy().model_dump(mode="json", by_alias=True)
    body["spec"]["capture"] = {"enabled": True} | capture
    return KernelTuningPolicy.model_validate(body)


@pytest.fixture
def tap() -> FakeInputTap:
    tensor = CapturedTensor(dtype="float32", shape=(2,), data=b"00000000")
    sample = CapturedInputs(axes={"M": 2}, tensors={"x": tensor})
    return FakeInputTap(slots=[KERNEL], samples={KERNEL: [sample]})


@pytest.fixture
def world(world: World, tap: FakeInputTap) -> World:
    from retuned.contract import Definition

    captures = Captures(
        tap=tap,
        folder=world.folder / "captured",
        definition={KERNEL: Definition.model_validate(DEFINITION)}.get,
        enabled=True,
        every=1000,
    )
    world.loop = Loop(replace(world.loop.ctx, captures=captures))
    return world


def until_the_first_experiment(world: World) -> None:
    for m in (8,) * 5 + (256,) * 4:
        world.window(m)
        world.loop.turn()
    for _ in range(4):
        world.clock.advance(2.0)
        world.loop.turn()
    assert world.phases(RecordKind.EXPERIMENT) != []


def test_nothing_is_sampled_unless_setting_and_policy_both_say_so(
    world: World, tap: FakeInputTap
) -> None:
    world.loop.observe()
    assert tap.listening == {}, "the policy says nothing"
    world.policies = (permitting(enabled=False),)
    world.loop.observe()
    assert tap.listening == {}
    world.policies = (permitting(),)
    captures = world.loop.ctx.captures
    assert captures is not None
    off = Loop(replace(world.loop.ctx, captures=replace(captures, enabled=False)))
    off.observe()
    assert tap.listening == {}, "the machine's owner says nothing"
    world.loop.observe()
    assert tap.listening[KERNEL].every == 1000


def test_sampling_ends_when_the_policy_no_longer_permits_it(
    world: World, tap: FakeInputTap
) -> None:
    world.policies = (permitting(),)
    world.loop.observe()
    assert KERNEL in tap.listening
    world.policies_gone = True
    world.loop.observe()
    assert tap.listening == {}, "no policy can say yes"
    world.policies_gone = False
    world.loop.observe()
    assert KERNEL in tap.listening


def test_a_server_that_forbids_it_or_is_away_costs_nothing(world: World, tap: FakeInputTap) -> None:
    world.policies, tap.forbidden = (permitting(),), True
    world.loop.observe()
    assert tap.listening == {}
    tap.forbidden, tap.away = False, True
    world.loop.observe()
    until_the_first_experiment(world)


def test_an_experiment_finds_what_was_sampled_and_nothing_is_left_when_it_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.policies = (permitting(maxBytes="8", retention="1h"),)
    seen: list[tuple[int, timedelta]] = []
    ctx = world.loop.ctx
    assert ctx.captures is not None
    folder, known = ctx.captures.folder, ctx.captures.definition(KERNEL)
    assert known is not None
    run = ctx.bench.run

    def watched(plan: ExperimentPlan, *, known_: Mapping[Digest, Finding]) -> Iterator[Finding]:
        mine = folder / notebook_name(plan.id)
        assert known is not None
        until = expiry_of(mine)
        assert until is not None
        seen.append((len(read_captured(mine, known)), until - world.clock.now()))
        yield from run(plan, known=known_)

    monkeypatch.setattr(ctx.bench, "run", lambda plan, *, known: watched(plan, known_=known))
    until_the_first_experiment(world)
    assert seen == [(1, timedelta(hours=1))] * len(world.store.list(RecordKind.EXPERIMENT))
    assert seen != []
    assert list(folder.iterdir()) == []


def test_what_does_not_fit_the_budget_is_not_fetched(world: World) -> None:
    world.policies = (permitting(maxBytes="7"),)
    world.loop.observe()
    plan = a_plan(world)
    assert captured_inputs.bring(world.loop.ctx, plan) == 0


def a_plan(world: World) -> ExperimentPlan:
    until_the_first_experiment(world)
    return ExperimentPlan.model_validate(world.store.list(RecordKind.EXPERIMENT)[0].body)


def test_what_was_kept_too_long_goes(world: World) -> None:
    world.policies = (permitting(),)
    ctx = world.loop.ctx
    plan = a_plan(world)
    assert ctx.captures is not None
    assert captured_inputs.bring(ctx, plan) == 1
    folder = ctx.captures.folder / notebook_name(plan.id)
    world.clock.advance(86_300)
    world.loop.observe()
    assert folder.exists()
    world.clock.advance(200)
    world.loop.observe()
    assert not folder.exists()
    write_captured(folder, KERNEL, [])  # says nothing of an end
    world.loop.observe()
    assert not folder.exists()


def test_what_a_killed_daemon_has_begun_to_write_goes_and_what_another_one_writes_stays(
    world: World,
) -> None:
    captures = world.loop.ctx.captures
    assert captures is not None
    half, busy = captures.folder / ".partial-half", captures.folder / ".partial-busy"
    for each in (half, busy):
        each.mkdir(parents=True)
        (each / "0-0.bin").write_bytes(b"people's data")
    writer = os.open(busy, os.O_RDONLY)
    fcntl.flock(writer, fcntl.LOCK_EX)
    world.loop.observe()
    assert not half.exists()
    assert busy.exists()
    os.close(writer)
    world.loop.observe()
    assert not busy.exists()


def test_policy_check_says_what_a_policy_permits(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        """apiVersion: retuned.dev/v1alpha1
kind: KernelTuningPolicy
metadata: {name: p}
spec:
  mode: Enforce
  capture: {enabled: true, maxBytes: 8Mi, retention: 2h}
  validation: {endToEnd: off}
"""
    )
    (said,) = permissions_in(file)
    assert (said.path, said.line) == ("spec.capture", 6)
    assert "8388608 bytes" in said.message
    assert "2:00:00" in said.message
    policy = load_policy(file)
    assert policy.spec.validation.end_to_end == "off"
    file.write_text(file.read_text().replace("enabled: true", "enabled: false"))
    assert permissions_in(file) == ()
    assert parse(file.read_text(), path=file).data["spec"]["capture"]["enabled"] is False
    with_false = policy.model_dump(mode="json", by_alias=True)
    with_false["spec"]["validation"]["endToEnd"] = False
    assert KernelTuningPolicy.model_validate(with_false) == policy, "YAML of Kubernetes reads so"
