"""When the daemon of one machine lets Retuned's wrappers leave the server: not in every case."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.standalone.local_world import World, auto_policy

from retuned.errors import UnreadableInput
from retuned.node.own_overhead import OverheadKeeper
from retuned.stages.gate import KernelTuningPolicy
from retuned.standalone.proofs.server_pace import measure_own_overhead


class Asks:
    """A keeper that only asks whether it may measure."""

    may = False

    def keep_up(self, stop: threading.Event, *, wanted: Callable[[], bool]) -> None:
        self.may = wanted()


def policy(rule: dict[str, Any], **selector: str) -> KernelTuningPolicy:
    body = auto_policy().model_dump(mode="json", by_alias=True)
    body["spec"]["liveProof"] = rule
    body["spec"]["selector"] = {"matchLabels": selector}
    return KernelTuningPolicy.model_validate(body)


def may_measure(world: World) -> bool:
    asks = Asks()
    ctx = replace(world.loop.ctx, own_overhead=cast("OverheadKeeper", asks))
    measure_own_overhead(ctx, threading.Event())
    return asks.may


@pytest.mark.parametrize(
    ("rules", "may"),
    [
        ((), True),
        (({},), True),
        (({"ownOverhead": "off"},), False),
        (({"ownOverhead": False},), False),
        (({}, {"ownOverhead": "off"}), False),
        (({"mode": "off"},), False),
        (({"mode": "off"}, {"mode": "observe"}), True),
    ],
)
def test_policies_say_whether_it_may(
    tmp_path: Path, rules: tuple[dict[str, Any], ...], may: bool
) -> None:
    world = World(tmp_path)
    world.policies = tuple(map(policy, rules))
    assert may_measure(world) is may


def test_a_policy_of_other_servers_says_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.policies = (policy({"ownOverhead": "off"}, env="elsewhere"),)
    assert may_measure(world)


def test_a_policy_that_cannot_be_read_says_no(tmp_path: Path) -> None:
    world = World(tmp_path)

    def unreadable() -> tuple[KernelTuningPolicy, ...]:
        raise UnreadableInput("policy-invalid", where="policy.yaml", message="no YAML")

    world.loop.ctx = replace(world.loop.ctx, policies=unreadable)
    assert not may_measure(world)
