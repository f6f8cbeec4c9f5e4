"""Tunables in a cluster: from pods' posts to an experiment, or to the reason why there is none."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_code
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.server_pods import WORLD

from retuned.api.agent import PodRef, TunablePost
from retuned.api.experiment import KernelExperiment
from retuned.errors import Refused
from retuned.stages.hypothesis import Hypothesis, NotTried, Untried
from retuned_operator.agent_api.ports import PodRecord
from retuned_operator.controllers.tunables import TunableFacts, believed, fresh
from retuned_operator.kube.resources import EXPERIMENTS, POLICIES, TARGETS
from retuned_operator.schema import ExperimentPhase
from retuned_operator.store.tunables import MAX_TUNABLES, PodTunables

OPEN = datetime(2026, 3, 3, 0, 30, tzinfo=UTC)
NAME = "tunable:attention:kernel_unified_attention:0123abcd"
TARGET = "serving/chat"
SOURCE = "sha256:" + "1" * 64
AXES = {"rows": 8192, "sequences": 1, "decode": 0, "longest": 8192}


def report(name: str = NAME, **changed: Any) -> dict[str, Any]:
    return {"id": name, "family": "attention", "source": SOURCE} | changed


def text(name: str = NAME, **changed: Any) -> str:
    body = {
        "report": report(name),
        "environment": {"executable": "/usr/bin/python3"},
        "recipes": [{"axes": AXES}],
    }
    return json.dumps(body | changed)


def post(pod: str = "chat-0", **changed: Any) -> TunablePost:
    body: dict[str, Any] = {
        "pod": PodRef(namespace="serving", name=pod, uid=f"uid-{pod}"),
        "target": TARGET,
        "name": NAME,
        "family": "attention",
        "kernel": "kernel_unified_attention",
        "module": "vllm.attention",
        "source": SOURCE,
        "facts": {"process": "1", "device": "gfx942", "triton": "3.9.0"},
        "observed_s": 300.0,
        "busy_us": 200e6,
        "used": [{"axes": AXES, "launches": 900.0, "time_us": 90e6, "how": "literal"}],
        "text": text(),
    }
    return TunablePost.model_validate(body | changed)


def record(pod: str = "chat-0") -> PodRecord:
    return PodRecord(namespace="serving", name=pod, uid=f"uid-{pod}", target=TARGET)


def facts(*posts: TunablePost, **changed: Any) -> TunableFacts:
    kept = PodTunables()
    kept.take(record(), post(), at=OPEN)
    launched = kept.launched(TARGET, NAME)
    assert launched is not None
    own = launched.incumbent
    return replace(
        TunableFacts(
            name=NAME,
            posts=posts or (post(),),
            earlier=(),
            proposals=False,
            baseline=own.digest,
            incumbent=own.digest,
            environment=WORLD,
        ),
        **changed,
    )


def reason(answer: Hypothesis | Untried) -> NotTried:
    assert isinstance(answer, Untried), answer
    return answer.reason


def test_pods_with_the_same_traffic_are_believed_together() -> None:
    answer = believed(facts(post("a"), post("b")), now=OPEN)
    assert isinstance(answer, Hypothesis)
    assert answer.share == pytest.approx(180e6 / 400e6)
    (shape,) = answer.workloads
    assert (shape.axes, shape.weight) == (AXES, 1800.0 / 300.0)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"posts": ()}, NotTried.NO_TRAFFIC),
        ({"environment": None}, NotTried.NO_TRAFFIC),
        ({"baseline": None}, NotTried.NO_TRAFFIC),
        ({"posts": (post(refused="batch-invariant"),)}, NotTried.SERVER_REFUSES),
        ({"posts": (post(differs=True),)}, NotTried.PROCESSES_DIFFER),
        ({"posts": (post("a"), post("b", source=SOURCE[:-1] + "2"))}, NotTried.PROCESSES_DIFFER),
        ({"proposals": True}, NotTried.UNDER_WAY),
        ({"posts": (post(used=()),)}, NotTried.NO_TRAFFIC),
        ({"posts": (post(busy_us=1e12),)}, NotTried.SAVING_TOO_SMALL),
    ],
)
def test_a_tunable_without_an_experiment_has_a_reason(
    changed: dict[str, Any], why: NotTried
) -> None:
    assert reason(believed(facts(**changed), now=OPEN)) is why


def test_what_runs_a_table_already_is_left() -> None:
    used = [{"axes": AXES, "launches": 900.0, "time_us": 90e6, "how": "table"}]
    assert reason(believed(facts(post(used=used)), now=OPEN)) is NotTried.IN_FORCE


def test_old_posts_do_not_count() -> None:
    kept = PodTunables()
    kept.take(record(), post(), at=OPEN)
    assert len(fresh(kept.of(TARGET), now=OPEN + timedelta(minutes=14))[NAME]) == 1
    assert fresh(kept.of(TARGET), now=OPEN + timedelta(minutes=16)) == {NAME: []}


# --- in the cluster -------------------------------------------------------------------------------


def asked(cluster: Cluster) -> KernelExperiment:
    for pod in ("chat-0", "chat-1"):
        cluster.posts.take(record(pod), post(pod), at=cluster.clock.now())
    cluster.until(lambda: bool(cluster.experiments()))
    (experiment,) = cluster.experiments()
    return experiment


def test_posts_become_one_experiment_without_any_drift() -> None:
    cluster = Cluster(OPEN)
    experiment = asked(cluster)
    assert experiment.spec.kernel.name == NAME
    assert [shape.axes for shape in experiment.spec.kernel.shapes] == [AXES]
    assert experiment.spec.environment == WORLD
    assert experiment.spec.search.generators == ("search",)
    assert experiment.spec.search.structures == ("table",)
    assert experiment.spec.policy_ref.name == "prod"
    launched = cluster.posts.launched(TARGET, NAME)
    assert launched is not None
    assert experiment.spec.baseline.digest == launched.incumbent.digest
    for pod in ("chat-0", "chat-1"):
        cluster.posts.take(record(pod), post(pod), at=cluster.clock.now())
    cluster.turn()
    assert len(cluster.experiments()) == 1
    assert cluster.posts.untried(TARGET)[NAME].reason is NotTried.UNDER_WAY
    cluster.turn()
    (target,) = cluster.all(TARGETS)
    (state,) = target["status"]["tunables"]
    assert (state["name"], state["reason"]) == (NAME, "under-way")


def ended(cluster: Cluster, phase: ExperimentPhase, *, reason: str = "") -> None:
    """End the experiment, whatever its pods do."""
    (experiment,) = cluster.experiments()
    status = experiment.status.model_copy(
        update={"phase": phase, "reason": reason, "finished_at": cluster.clock.now()}
    )
    cluster.server.writes.patch_status(
        EXPERIMENTS,
        experiment.metadata.name,
        status=status.model_dump(mode="json", by_alias=True, exclude_none=True),
        namespace=experiment.metadata.namespace,
    )


def look(cluster: Cluster, minutes: float = 1.0) -> Untried | None:
    cluster.clock.advance(60.0 * minutes)
    cluster.posts.take(record(), post(), at=cluster.clock.now())
    cluster.turn()
    return cluster.posts.untried(TARGET).get(NAME)


def test_what_was_searched_without_a_gain_is_not_searched_again() -> None:
    cluster = Cluster(OPEN)
    asked(cluster)
    ended(cluster, ExperimentPhase.NO_IMPROVEMENT)
    answer = look(cluster)
    assert answer is not None
    assert answer.reason is NotTried.ALL_TRIED
    assert len(cluster.experiments()) == 1


@pytest.mark.parametrize("phase", [ExperimentPhase.FAILED, ExperimentPhase.REFUSED])
def test_an_experiment_that_searched_nothing_is_repeated_later_as_another_one(
    phase: ExperimentPhase,
) -> None:
    cluster = Cluster(OPEN)
    asked(cluster)
    ended(cluster, phase)
    answer = look(cluster)
    assert answer is not None
    assert answer.reason is NotTried.FAILED
    assert look(cluster, minutes=10.0) is None
    assert len(cluster.experiments()) == 2


def test_an_outdated_experiment_says_nothing_about_the_idea() -> None:
    cluster = Cluster(OPEN)
    asked(cluster)
    ended(cluster, ExperimentPhase.OUTDATED)
    assert look(cluster) is None
    assert len(cluster.experiments()) == 2


def test_a_failure_of_days_ago_does_not_keep_the_name_of_the_next_experiment() -> None:
    cluster = Cluster(OPEN)
    asked(cluster)
    ended(cluster, ExperimentPhase.FAILED)
    assert look(cluster, minutes=60.0 * 24.0 * 3.0) is None
    assert len(cluster.experiments()) == 2


@pytest.mark.parametrize(
    "reason",
    ["server-image-differs", "server-image-invalid", "table-unknown", "tunable-malformed"],
)
def test_an_experiment_that_servers_made_impossible_is_repeated_later(reason: str) -> None:
    cluster = Cluster(OPEN)
    asked(cluster)
    ended(cluster, ExperimentPhase.REFUSED, reason=reason)
    answer = look(cluster)
    assert answer is not None
    assert answer.reason is NotTried.FAILED
    assert look(cluster, minutes=10.0) is None
    assert len(cluster.experiments()) == 2


def test_an_experiment_that_is_too_large_is_not_repeated() -> None:
    cluster = Cluster(OPEN)
    asked(cluster)
    ended(cluster, ExperimentPhase.REFUSED, reason="task-too-large")
    answer = look(cluster, minutes=11.0)
    assert answer is not None
    assert answer.reason is NotTried.FAILED
    assert answer.detail.startswith("task-too-large")
    assert len(cluster.experiments()) == 1


def test_without_a_policy_that_allows_it_nothing_is_tried_and_that_is_the_reason() -> None:
    cluster = Cluster(OPEN)
    for body in cluster.all(POLICIES):
        cluster.server.writes.delete(
            POLICIES, body["metadata"]["name"], namespace=body["metadata"]["namespace"]
        )
    answer = look(cluster)
    assert answer is not None
    assert answer.reason is NotTried.NO_POLICY
    assert cluster.experiments() == []


# --- posts are untrusted --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {"text": "[]"},
        {"text": "{ "},
        {"text": text(report=[])},
        {"text": text(environment="x")},
        {"text": text(environment={"variables": 3})},
        {"text": text(environment={"variables": ["ab"]})},
        {"text": text(environment={"path": "/usr"})},
        {"text": text(recipes=[1])},
        {"text": text("tunable:attention:other:0123abcd")},
        {"text": json.dumps({"report": {}})},
        {"text": text(report=report(asked=[{"axes": "x"}]))},
        {"text": text(report=report(asked=[{"axes": AXES, "sizes": [-1]}]))},
        {"text": text(report=report(ways={"next-call": 3}))},
        {"text": '{"report": ' + "[" * 5000},
        {"frozen": "["},
        {"frozen": "[1]"},
    ],
)
def test_a_malformed_post_is_refused_and_the_last_one_stays(changed: dict[str, Any]) -> None:
    kept = PodTunables()
    kept.take(record(), post(), at=OPEN)
    with raises_code(Refused, "tunable-malformed"):
        kept.take(record(), post(**changed), at=OPEN)
    assert kept.needs(TARGET, NAME) == json.loads(text())


def test_a_target_has_so_many_tunables() -> None:
    kept = PodTunables()
    names = [f"tunable:attention:k{n}:0123abcd" for n in range(MAX_TUNABLES + 1)]
    for name in names[:-1]:
        kept.take(record(), post(name=name, text=text(name)), at=OPEN)
    with raises_code(Refused, "too-many-tunables"):
        kept.take(record(), post(name=names[-1], text=text(names[-1])), at=OPEN)


def test_a_tunable_that_no_pod_posts_any_more_makes_room() -> None:
    kept = PodTunables()
    names = [f"tunable:attention:k{n}:0123abcd" for n in range(MAX_TUNABLES + 1)]
    for minutes, name in enumerate(names[:-1]):
        at = OPEN + timedelta(minutes=minutes / 10.0)
        kept.take(record(), post(name=name, text=text(name)), at=at)
    later = OPEN + timedelta(minutes=15, seconds=1)
    kept.take(record(), post(name=names[-1], text=text(names[-1])), at=later)
    assert set(kept.of(TARGET)) == set(names[1:])
    assert kept.needs(TARGET, names[0]) is None


def test_the_size_classes_with_the_most_time_are_kept() -> None:
    kept = PodTunables()
    used = [
        {"axes": {**AXES, "rows": n}, "launches": 9.0, "time_us": float(n), "how": "literal"}
        for n in range(200)
    ]
    kept.take(record(), post(used=used), at=OPEN)
    (posted,) = kept.of(TARGET)[NAME]
    assert {each.axes["rows"] for each in posted.post.used} == set(range(136, 200))


def test_what_experiments_need_is_bounded_and_comes_again() -> None:
    kept = PodTunables(most_bytes=2 * len(text()))
    names = [f"tunable:attention:kernel_unified_attention:0123abc{n}" for n in range(3)]
    for name in names:
        kept.take(record(), post(name=name, text=text(name)), at=OPEN)
    assert [kept.needs(TARGET, name) is None for name in names] == [True, False, False]
    kept.take(record(), post(name=names[0], text=text(names[0])), at=OPEN)
    assert kept.needs(TARGET, names[0]) is not None


def test_the_servers_choice_stays_while_some_pod_has_it() -> None:
    """Each pod asks its autotuners itself, and a table hides what they chose."""
    kept = PodTunables()

    def chosen() -> object:
        launched = kept.launched(TARGET, NAME)
        assert launched is not None
        return launched.frozen

    kept.take(record("a"), post("a", frozen='{"b": 1}'), at=OPEN)
    kept.take(record("b"), post("b", frozen='{"a": 1}'), at=OPEN)
    assert chosen() == {"b": 1}
    kept.take(record("a"), post("a"), at=OPEN)
    kept.take(record("b"), post("b"), at=OPEN)
    assert chosen() == {"b": 1}, "a table hides it"
    kept.forget_all_but({"uid-b"})
    kept.take(record("b"), post("b"), at=OPEN)
    assert chosen() == {"a": 1}


def test_pods_that_are_gone_are_forgotten() -> None:
    kept = PodTunables()
    for pod in ("a", "b"):
        kept.take(record(pod), post(pod), at=OPEN)
    kept.forget_all_but({"uid-b"})
    assert [each.pod for each in kept.of(TARGET)[NAME]] == ["uid-b"]
    kept.forget_all_but(())
    assert kept.of(TARGET) == {}
    assert kept.needs(TARGET, NAME) is None


@given(st.text(min_size=2, max_size=40))
def test_text_that_is_no_account_of_the_tunable_is_refused(data: str) -> None:
    with raises_code(Refused, "tunable-malformed"):
        PodTunables().take(record(), post(text=data), at=OPEN)
