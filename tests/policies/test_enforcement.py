"""What one machine leaves aside of a policy is listed; the list is held against what is read."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.standalone.local_world import KERNEL, World

from retuned.stages.gate import (
    CLUSTER_ONLY,
    DecisionKind,
    KernelTuningPolicy,
    SwapDecision,
    cluster_only_fields,
    limits_of,
    policy_for,
)
from retuned.stages.gate.values import PolicyModel
from retuned.standalone.context import RecordKind
from retuned.standalone.facts import target_status
from retuned.store.approvals import Approvals
from retuned.store.policy_files import cluster_only_in, load_policy

POLICIES = Path(__file__).resolve().parents[2] / "policies"
NOTES = {"apiVersion", "kind", "metadata.labels", "metadata.annotations"}
"""They promise nothing: what the file is, and free text."""

DAEMON = Path(__file__).resolve().parents[2] / "daemon" / "retuned"
READERS = (
    *(DAEMON / "control").glob("*.py"),
    DAEMON / "stages" / "watch" / "own_overhead.py",
    DAEMON / "stages" / "watch" / "proof" / "service_level.py",
    DAEMON / "standalone" / "proofs" / "sentinel.py",
    DAEMON / "standalone" / "tunables" / "experiments.py",
)
CONDITIONAL = {
    "spec.breakGlass.maxPods": "break_glass.max_pods",
    "spec.liveProof.ownOverhead": "rule.own_overhead",
    "spec.liveProof.sentinel": "rule.sentinel",
    "spec.liveProof.slo.itlP99Ms": "bounds.itl_p99_ms",
    "spec.liveProof.slo.maxQueue": "bounds.max_queue",
    "spec.liveProof.slo.ttftP99Ms": "bounds.ttft_p99_ms",
    "spec.liveProof.switching": "rule.switching",
    "spec.liveProof.whenNotSwitchable": "rule.when_not_switchable",
    "spec.pauses.experiments": "limits.pauses.experiments",
    "spec.pauses.longestMs": "limits.pauses.longest_ms",
    "spec.pauses.maxShare": "limits.pauses.max_share",
    "spec.pauses.recapture": "limits.pauses.recapture",
    "spec.pauses.recaptureAfter": "limits.pauses.recapture_after",
    "spec.rollout.analysis.metrics.max": "judge(metric",
    "spec.rollout.analysis.metrics.minSamples": "judge(metric",
    "spec.rollout.minInterval": "rule.min_interval",
    "spec.rollout.postPromotionWatch": "rule.post_promotion_watch",
    "spec.rollout.waves": "rule.waves",
    "spec.windows.overrun": "may_finish",
}
"""Fields that are read only in other stories, which tests/control, test_own_cost_loop,
test_sentinel_loop and test_tunable_loop have; and how."""

Fields = dict[str, tuple[type[PolicyModel], str]]


def leaves(model: type[PolicyModel], path: str = "") -> Fields:
    """Every field of the schema that is no part of its own, by its path in YAML."""
    found: Fields = {}
    for name, info in model.model_fields.items():
        here = f"{path}{info.serialization_alias or name}"
        inner = next(parts(info.annotation), None)
        if inner is None:
            found[here] = (model, name)
        else:
            found |= leaves(inner, f"{here}.")
    return found


def parts(annotation: Any) -> Iterator[type[PolicyModel]]:
    if isinstance(annotation, type) and issubclass(annotation, PolicyModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from parts(argument)


def whole() -> KernelTuningPolicy:
    """A policy in which every field is written."""
    body = load_policy(POLICIES / "break-glass.yaml").model_dump(mode="json", by_alias=True)
    spec = body["spec"]
    spec["selector"]["matchLabels"] = {}
    spec["validation"]["minSpeedup"] = 1.02
    spec["gates"] = [
        {
            "name": "one",
            "when": {"risk": ["low", "medium", "high"], "env": ["prod"]},
            "approvals": {"required": 1, "from": [{"user": "ada"}, {"group": "sre"}]},
        }
    ]
    spec["windows"] = [
        {"kind": "allow", "schedule": "* * * * *", "duration": "2m", "overrun": "Stop"}
    ]
    spec["liveProof"]["windows"] = [{"kind": "allow", "schedule": "* * * * *", "duration": "2m"}]
    spec["rollout"]["canary"]["steps"] = [
        {"fraction": 0.5, "minChecks": 1, "minSeconds": 0, "patience": "1h"}
    ]
    spec["rollout"] |= {"minInterval": "0s", "postPromotionWatch": "0s"}
    spec["rollout"]["canary"]["bake"] = "0s"
    spec["rollout"]["analysis"] = {
        "interval": "1s",
        "inconclusiveLimit": 1000,
        "metrics": [{"name": "p99", "query": "up", "max": "1.02x baseline"}],
    }
    spec["gpuModels"] = []
    spec["experiments"]["maxConcurrent"] = 1
    again = KernelTuningPolicy.model_validate(body).model_dump(mode="json", by_alias=True)
    return KernelTuningPolicy.model_validate(again)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> set[tuple[type[PolicyModel], str]]:
    """Every field of a policy that is read from now on."""
    seen: set[tuple[type[PolicyModel], str]] = set()
    plain = PolicyModel.__getattribute__

    def watched(self: PolicyModel, name: str) -> Any:
        seen.add((type(self), name))
        return plain(self, name)

    monkeypatch.setattr(PolicyModel, "__getattribute__", watched, raising=False)
    return seen


def break_glass(world: World) -> None:
    """Without a comment, so it does not count."""
    for stored in world.store.list(RecordKind.PROPOSAL, phase="AwaitingApproval"):
        Approvals(world.store).give(
            SwapDecision(
                proposal=stored.id,
                digest=stored.body["artifact"],
                decision=DecisionKind.BREAK_GLASS,
                user="grace",
                groups=("sre-leads",),
                at=stored.created_at + timedelta(microseconds=1),
                policy_digest=world.policies[0].digest,
            )
        )


def a_whole_life(world: World) -> None:
    """Drift, experiments, a swap by approval, a fault, the way back and the quarantine."""
    for m in (8,) * 5 + (256,) * 4:
        world.window(m)
        world.loop.turn()
    for _ in range(6):
        break_glass(world)
        world.approve_what_waits()
        world.clock.advance(2.0)
        if world.server.slots()[0].active is not None:
            world.server.counts[KERNEL] = {"swapped_launches": 900, "shadow_checks": 30}
        world.loop.turn()
    world.server.counts[KERNEL] = {
        "swapped_launches": 2_000,
        "shadow_checks": 60,
        "shadow_mismatches": 1,
        "worst_ratio": 3.0,
    }
    world.loop.turn()
    assert world.phases(RecordKind.PROPOSAL) == ["RolledBack"]
    assert len(target_status(world.loop.ctx).quarantine) == 1


def test_the_list_is_exactly_what_the_loop_on_one_machine_does_not_read(
    tmp_path: Path, read: set[tuple[type[PolicyModel], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new field, a new reader and a reader that goes away all have to touch the list."""
    policy = whole()
    world = World(tmp_path)
    world.policies = (policy,)
    monkeypatch.setattr("tests.standalone.local_world.auto_policy", lambda: policy)
    world.loop.ctx.labels["env"] = "prod"  # type: ignore[index]
    read.clear()
    a_whole_life(world)
    world.store.close()
    schema = leaves(KernelTuningPolicy)
    idle = {path for path, field in schema.items() if field not in read} - NOTES
    listed = {path for path in schema for row in CLUSTER_ONLY if f"{path}.".startswith(f"{row}.")}
    assert listed <= idle
    assert idle - listed == CONDITIONAL.keys()
    readers = "".join(path.read_text() for path in READERS)
    for field, reader in CONDITIONAL.items():
        assert reader in readers, f"{field} is not read any more"


def test_every_row_names_a_field_and_says_what_holds_instead() -> None:
    schema = leaves(KernelTuningPolicy)
    for row, instead in CLUSTER_ONLY.items():
        assert any(f"{path}.".startswith(f"{row}.") for path in schema), row
        assert len(instead.split()) >= 4
        assert not instead.endswith(".")


def test_a_policy_that_writes_everything_is_told_every_row() -> None:
    found = cluster_only_fields(whole())
    names = [".".join(p for p in one.place if isinstance(p, str)) for one in found]
    assert sorted(names) == sorted(CLUSTER_ONLY)
    query = "spec.rollout.analysis.metrics.0.query"
    assert next(one.path for one in found if "metrics" in one.place) == query


def test_what_is_not_written_promises_nothing() -> None:
    for name in ("laptop-demo", "observe-only"):
        assert cluster_only_in(POLICIES / f"{name}.yaml") == ()


def test_each_field_comes_with_its_line() -> None:
    path = POLICIES / "production-two-person.yaml"
    found = {problem.path: problem for problem in cluster_only_in(path)}
    lines = path.read_text().splitlines()
    assert found.keys() >= {"spec.experiments.budget.trialDeadline", "spec.experiments.pauseWhen"}
    for problem in found.values():
        assert problem.line is not None
        assert problem.path.rpartition(".")[2] in lines[problem.line - 1]
    assert "max_experiment_s" in found["spec.experiments.budget.trialDeadline"].message


@pytest.mark.parametrize(
    ("experiments", "allowed"),
    [
        ({}, True),
        ({"maxConcurrent": 0}, False),
        ({"budget": {"gpuHoursPerDay": 0}}, False),
        ({"maxConcurrent": 2, "budget": {"gpuHoursPerDay": 0.5}}, True),
    ],
)
def test_limits_say_whether_experiments_may_begin(
    experiments: dict[str, Any], allowed: bool
) -> None:
    body = load_policy(POLICIES / "laptop-demo.yaml").model_dump(mode="json", by_alias=True)
    body["spec"]["experiments"] = experiments
    body["spec"]["rollout"] = {"autoRollback": {"quarantine": "1h"}}
    policy = KernelTuningPolicy.model_validate(body)
    limits = limits_of(policy)
    assert limits.experiments is allowed
    assert limits.quarantine == timedelta(hours=1)
    assert limits.max_trials == 64
    assert policy_for([policy], "any", labels={}).policy == policy


@pytest.mark.parametrize(("said", "asked"), [(None, True), ("ifIncumbent", True), (False, False)])
def test_rows_keep_their_bits_unless_the_policy_lets_them_go(
    said: str | bool | None, asked: bool
) -> None:
    body = load_policy(POLICIES / "laptop-demo.yaml").model_dump(mode="json", by_alias=True)
    del body["spec"]["validation"]["batchInvariance"]
    if said is not None:
        body["spec"]["validation"]["batchInvariance"] = said
    assert limits_of(KernelTuningPolicy.model_validate(body)).batch_invariant is asked
