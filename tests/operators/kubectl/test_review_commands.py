from __future__ import annotations

import sys
from typing import Any

import pytest
import yaml
from tests.fakeapi.faults import Fault
from tests.operators.examples import ARTIFACT
from tests.operators.kubectl.conftest import Cluster, Run
from tests.stages.watch_proof.blocks import proven

from retuned.api.step_accounts import account_status
from retuned.report.live_proof import account_lines
from retuned.stages.gate import LiveProof
from retuned.stages.gate.description import live_proof_words
from retuned.stages.watch.proof import KernelTime
from retuned_operator.kube.resources import DECISIONS, EXPERIMENTS, POLICIES, PROPOSALS
from retuned_operator.schema import SwapDecision, read

NAME = "swp-0123456789abcdef0123"
YES = ("--yes", "--digest", ARTIFACT, "-m", "numbers look right")


def decisions(cluster: Cluster) -> list[SwapDecision]:
    listed = cluster.fake.api().list(DECISIONS, namespace="serving")
    return [read(SwapDecision, each) for each in listed.items]


def test_the_list_says_what_each_proposal_waits_for(cluster: Cluster, run: Run) -> None:
    cluster.proposal(cluster.policy())
    text = run("proposals")
    assert NAME in text
    assert "1.25x (>= 1.20)" in text
    assert "2 more: group gpu-platform or group sre-oncall" in text


def test_every_form_of_the_list_names_the_same_proposals(cluster: Cluster, run: Run) -> None:
    cluster.proposal(cluster.policy())
    body = run("proposals", "-o", "json")
    (one,) = body["proposals"]
    assert (one["name"], one["phase"], one["artifact"]) == (NAME, "AwaitingApproval", ARTIFACT)
    assert one["speedup"]["lower"] == 1.2
    assert yaml.safe_load(run("proposals", "-o", "yaml")) == body
    assert run("proposals", "-o", "name") == f"swapproposal.retuned.dev/{NAME}\n"
    assert "MI300X" in run("proposals", "-o", "wide")
    assert "serving" in run("proposals", "-A")


def test_ended_proposals_are_shown_when_asked_for(cluster: Cluster, run: Run) -> None:
    cluster.proposal(None, phase="RolledBack")
    assert NAME not in run("proposals")
    assert NAME in run("proposals", "--all")


def test_a_rollout_says_how_far_it_is_and_what_a_pod_waits_for(cluster: Cluster, run: Run) -> None:
    at = "2026-03-02T12:00:00Z"
    pods = [
        {"name": "chat-0", "uid": "u0", "wants": "swap", "epoch": 2, "since": at, "done": True},
        {"name": "chat-1", "uid": "u1", "wants": "swap", "epoch": 2, "since": at}
        | {"done": False, "held": "artifact-damaged"},
    ]
    rollout = {"startedAt": at, "waveStartedAt": at, "lastSwapAt": at, "pods": pods}
    told = {"reason": "started", "rollout": rollout}
    cluster.proposal(cluster.policy(), phase="Canary", status=told)
    assert "started, 1 of 2 pods done" in run("proposals")
    shown = run("show", "swp-0123")
    assert "artifact-damaged" in shown
    assert "expires" not in shown, "what has begun does not"


def test_a_rollout_shows_its_live_proofs(cluster: Cluster, run: Run) -> None:
    at = "2026-03-02T12:00:00Z"
    rollout = {"startedAt": at, "waveStartedAt": at, "lastSwapAt": at, "pods": []}
    asked = {"epoch": 2, "wave": 0, "swapped": 1, "since": at, "rule": {"mode": "required"}}
    sentence = "helps (faster): steps take 4.0 % less time"
    proofs = [
        {"name": "chat-0", "uid": "u0"} | asked | {"verdict": "helps", "sentence": sentence},
        {"name": "chat-1", "uid": "u1"} | asked | {"phase": "pilot"},
    ]
    told = {"reason": "live-proof-running", "rollout": rollout, "liveProofs": proofs}
    cluster.proposal(cluster.policy(), phase="Proving", status=told)
    shown = run("show", NAME)
    assert f"chat-0: {sentence}" in " ".join(shown.split())
    assert "chat-1: pilot" in shown


def test_a_live_proof_shows_the_kernel_in_place_as_one_machine_does(
    cluster: Cluster, run: Run
) -> None:
    at = "2026-03-02T12:00:00Z"
    rollout = {"startedAt": at, "waveStartedAt": at, "lastSwapAt": at, "pods": []}
    asked = {"epoch": 2, "wave": 0, "swapped": 1, "since": at, "rule": {"mode": "required"}}
    report = proven(0.97, busy=0.006).report
    assert report is not None
    kernels = (
        KernelTime(lengths=(512, 7), launches=8.0, off_s=2.4e-3, on_s=1.2e-3),
        KernelTime(lengths=(9, 1), launches=0.1, off_s=5e-6),
    )
    account = report.account.model_copy(update={"kernels": kernels, "kernel_s": -9.6e-3})
    status = account_status(account)
    assert status is not None
    told = {"account": status.model_dump(mode="json", by_alias=True), "verdict": "helps"}
    proofs = [{"name": "chat-0", "uid": "u0"} | asked | told]
    cluster.proposal(
        cluster.policy(), phase="Promoting", status={"rollout": rollout, "liveProofs": proofs}
    )
    shown = " ".join(run("show", NAME).split())
    lines = account_lines(account)
    assert [name for name, _ in lines] == ["per step", "in place"]
    for name, line in lines:
        assert f"{name} {' '.join(line.split())}" in shown
    (entry,) = run("show", NAME, "-o", "json")["proposal"]["status"]["liveProofs"]
    assert entry["account"]["kernels"][0] == {
        "lengths": [512, 7],
        "launches": 8.0,
        "offSeconds": 2.4e-3,
        "onSeconds": 1.2e-3,
    }
    assert entry["account"]["kernelSeconds"] == -9.6e-3


def test_a_proof_by_canary_replicas_shows_what_runs(cluster: Cluster, run: Run) -> None:
    sentence = "canary replicas: A/A pair 3 of 8; 2 replicas in use"
    kept = {
        "environment": "sha256:" + 64 * "e",
        "template": "sha256:" + 64 * "7",
        "since": "2026-03-02T12:00:00Z",
        "rule": {"mode": "required"},
    }
    told = {"reason": "canary-replicas-running", "replicas": kept | {"sentence": sentence}}
    cluster.proposal(cluster.policy(), phase="Proving", status=told)
    assert sentence in " ".join(run("show", NAME).split())


def test_a_promoted_swap_shows_its_sentinel(cluster: Cluster, run: Run) -> None:
    at = "2026-03-02T12:00:00Z"
    asked = {"epoch": 2, "wave": 0, "swapped": 1, "since": at, "rule": {"mode": "required"}}
    sentence = "helps (faster): steps take 4.0 % less time"
    days = [
        {"name": "chat-0", "uid": "u0"} | asked | {"verdict": "helps", "sentence": sentence},
        {"name": "chat-1", "uid": "u1"} | asked | {"phase": "sentinel"},
        {"name": "chat-2", "uid": "u2"} | asked,
    ]
    trial = days[0] | {"verdict": "harms", "sentence": "harms (slower): as an alarm showed"}
    told = {"sentinels": days, "attributions": [trial]}
    cluster.proposal(cluster.policy(), phase="Promoted", status=told)
    shown = " ".join(run("show", NAME).split())
    assert f"sentinel chat-0: {sentence}" in shown
    assert "chat-1: waits for the end of its day" in shown
    assert "alarm chat-0: harms (slower): as an alarm showed" in shown
    assert "chat-2: is not asked for" in shown


def test_names_cannot_steer_a_terminal(cluster: Cluster, run: Run) -> None:
    cluster.proposal(None, risk={"level": "low", "reasons": ["\x1b[31mred"]})
    assert "\x1b" not in run("show", NAME)


def test_show_says_all_that_a_decision_needs_and_the_command(cluster: Cluster, run: Run) -> None:
    cluster.proposal(cluster.policy())
    run("approve", NAME, *YES)
    text = run("show", NAME)
    for part in (ARTIFACT, "MI300X", "Approve", "by ada", "numbers look right", "1 <= M <= 64"):
        assert part in text
    assert f"kubectl retuned approve serving/{NAME} --digest {ARTIFACT}" in text


def test_before_a_swap_show_says_what_its_live_proof_will_do(cluster: Cluster, run: Run) -> None:
    cluster.proposal(cluster.policy(liveProof={"mode": "required", "maxDuration": "12m"}))
    text = " ".join(run("show", NAME).split())
    assert "at most 12 minutes" in text
    plan = run("show", NAME, "-o", "json")["live_proof_plan"]
    rule = LiveProof.model_validate({"mode": "required", "maxDuration": "12m"})
    assert plan == list(live_proof_words(rule))
    assert " ".join(plan[:2]) in text


@pytest.mark.parametrize("phase", ["Canary", "Promoted"])
def test_a_swap_that_has_begun_has_no_plan(cluster: Cluster, run: Run, phase: str) -> None:
    cluster.proposal(cluster.policy(), phase=phase)
    assert run("show", NAME, "-o", "json")["live_proof_plan"] == []


def test_without_a_policy_there_is_no_plan(cluster: Cluster, run: Run) -> None:
    cluster.proposal(None)
    assert run("show", NAME, "-o", "json")["live_proof_plan"] == []


def test_an_approval_is_bound_to_artifact_policy_and_person(cluster: Cluster, run: Run) -> None:
    policy = cluster.policy()
    proposal = cluster.proposal(policy)
    body = run("approve", NAME, *YES, "-o", "json")
    (word,) = decisions(cluster)
    assert body["decision"]["name"] == word.metadata.name
    assert word.spec.user == "ada"
    assert word.spec.groups == ("gpu-platform",)
    assert word.spec.digest == ARTIFACT
    assert word.spec.proposal_ref.uid == proposal.metadata.uid
    assert word.spec.policy_generation == policy.metadata.generation
    assert word.spec.policy_digest == policy.stage_policy().digest
    assert word.spec.channel == "kubectl"


def test_saying_it_twice_is_saying_it_once(cluster: Cluster, run: Run) -> None:
    cluster.proposal(cluster.policy())
    run("approve", NAME, *YES)
    again = run("approve", NAME, *YES, "-o", "json")
    assert again["already_said"] is True
    assert len(decisions(cluster)) == 1


def test_an_approval_after_a_pause_is_another_word(cluster: Cluster, run: Run) -> None:
    policy = cluster.policy()
    cluster.proposal(policy)
    run("approve", NAME, *YES)
    at = "2026-03-02T10:00:00Z"
    step = {"from": "Analyzing", "to": "Paused", "at": at, "reason": "no-data"}
    body = {"metadata": {"name": NAME, "namespace": "serving"}}
    cluster.fake.set_status(PROPOSALS, body, phase="Paused", history=[step])
    run("approve", NAME, *YES)
    assert len(decisions(cluster)) == 2


@pytest.mark.parametrize("named", [f"serving/{NAME}", "swp-0123", "0123", NAME])
def test_a_proposal_is_named_by_its_name_or_the_beginning(
    cluster: Cluster, run: Run, named: str
) -> None:
    cluster.proposal(cluster.policy())
    assert run("show", named, "-o", "json")["name"] == NAME


def test_a_beginning_of_several_is_nobodys(cluster: Cluster, run: Run) -> None:
    policy = cluster.policy()
    cluster.proposal(policy)
    cluster.proposal(policy, name="swp-0123ffff")
    assert "the beginning of 2 proposals" in run("show", "swp-0123", code=2)
    assert "no proposal" in run("show", "swp-9999", code=2)


def test_without_somebody_to_ask_the_digest_must_be_given(cluster: Cluster, run: Run) -> None:
    cluster.proposal(cluster.policy())
    assert f"--yes --digest {ARTIFACT}" in run("approve", NAME, "-m", "why", code=2)
    assert "--yes needs --digest" in run("approve", NAME, "--yes", "-m", "why", code=2)
    assert decisions(cluster) == []


@pytest.mark.parametrize(
    ("typed", "code", "count"), [("a" * 12, 0, 1), ("b" * 12, 1, 0), ("", 1, 0)]
)
def test_a_person_types_the_beginning_of_the_digest(
    cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch, typed: str, code: int, count: int
) -> None:
    cluster.proposal(cluster.policy())
    monkeypatch.setattr("retuned_operator.kubectl.review.asks_a_person", lambda: True)
    text = run("approve", NAME, "-m", "why", code=code, given=f"{typed}\n")
    assert ARTIFACT in text
    assert len(decisions(cluster)) == count


def test_another_artifact_than_the_one_that_was_seen_is_refused(cluster: Cluster, run: Run) -> None:
    cluster.proposal(cluster.policy())
    text = run("approve", NAME, "--yes", "--digest", "sha256:" + "f" * 64, "-m", "x", code=1)
    assert "look again" in text


def test_the_policy_may_ask_for_a_comment(cluster: Cluster, run: Run) -> None:
    cluster.proposal(cluster.policy())
    text = run("approve", NAME, "--yes", "--digest", ARTIFACT, "-m", "  ", code=2)
    assert "--comment" in text


def test_under_a_policy_that_has_changed_nothing_is_approved(cluster: Cluster, run: Run) -> None:
    cluster.proposal(cluster.policy())
    change = {"spec": {"priority": 5}}
    cluster.fake.api().patch(POLICIES, "prod", change=change, namespace="serving")
    assert "has changed since" in run("approve", NAME, *YES, code=1)


def test_an_approval_without_effect_is_refused(cluster: Cluster, run: Run) -> None:
    policy = cluster.policy(mode="ObserveOnly")
    cluster.proposal(policy)
    cluster.proposal(None, name="swp-unjudged")
    cluster.proposal(policy, name="swp-uncovered", gate={"policy": "", "reason": "no-policy"})
    cluster.proposal(policy, name="swp-ended", phase="Expired")
    assert "only observes" in run("approve", NAME, *YES, code=1)
    assert "not judged" in run("approve", "swp-unjudged", *YES, code=1)
    assert "no policy covers" in run("approve", "swp-uncovered", *YES, code=1)
    assert "is Expired" in run("approve", "swp-ended", *YES, code=1)


def test_what_may_keep_a_word_from_counting_is_said_beforehand(cluster: Cluster, run: Run) -> None:
    policy = cluster.policy()
    cluster.proposal(policy, requestedBy="ADA", gate={"missingFrom": ["group sre-oncall"]})
    text = run("approve", NAME, *YES)
    assert "you requested this swap yourself" in text
    assert "approval is still needed from group sre-oncall" in text


def test_breaking_glass_needs_a_reason_and_a_policy_with_glass(cluster: Cluster, run: Run) -> None:
    policy = cluster.policy()
    cluster.proposal(policy)
    args = ("approve", NAME, "--break-glass", "--yes", "--digest", ARTIFACT)
    assert "--comment" in run(*args, who="grace", code=2)
    run(*args, "-m", "site is down", who="grace")
    (word,) = decisions(cluster)
    assert word.spec.decision.value == "BreakGlass"
    assert word.spec.groups[0] in ("sre-leads", "sre-oncall")


def test_a_policy_without_glass_has_none_to_break(cluster: Cluster, run: Run) -> None:
    cluster.proposal(cluster.policy(breakGlass={}))
    args = ("approve", NAME, "--break-glass", *YES)
    assert "has no breakGlass" in run(*args, who="grace", code=1)


def test_whoever_may_not_is_told_which_role_is_missing(cluster: Cluster, run: Run) -> None:
    cluster.proposal(cluster.policy())
    text = run("approve", NAME, *YES, who="eve", code=1)
    assert "ClusterRole retuned-approver" in text
    assert decisions(cluster) == []


def test_one_rejection_is_written_without_a_policy(cluster: Cluster, run: Run) -> None:
    cluster.proposal(None)
    run("reject", NAME, "-m", "not now")
    (word,) = decisions(cluster)
    assert (word.spec.decision.value, word.spec.policy_digest) == ("Reject", None)


@pytest.mark.parametrize("phase", ["Pending", "AwaitingApproval", "Canary", "Paused", "Promoted"])
def test_abort_works_from_every_phase_that_has_not_ended(
    cluster: Cluster, run: Run, phase: str
) -> None:
    cluster.proposal(None, phase=phase)
    run("abort", NAME)
    assert [each.spec.decision.value for each in decisions(cluster)] == ["Abort"]


@pytest.mark.parametrize(
    ("command", "phase", "code"),
    [
        ("rollback", "Promoted", 0),
        ("rollback", "Watching", 0),
        ("rollback", "AwaitingApproval", 1),
        ("rollback", "RollingBack", 1),
        ("rollback", "RolledBack", 1),
        ("abort", "Rejected", 1),
        ("reject", "Canary", 1),
        ("reject", "AwaitingApproval", 0),
    ],
)
def test_a_word_that_means_nothing_any_more_is_refused(
    cluster: Cluster, run: Run, command: str, phase: str, code: int
) -> None:
    cluster.proposal(None, phase=phase)
    run(command, NAME, code=code)
    assert len(decisions(cluster)) == 1 - code


def test_an_experiment_is_aborted_by_its_name(cluster: Cluster, run: Run) -> None:
    cluster.experiment()
    run("abort", "experiment/exp-1", "-m", "too dear", who="grace")
    found = cluster.fake.api().get(EXPERIMENTS, "exp-1", namespace="serving")
    assert found["spec"]["abort"] == {"requested": True, "reason": "too dear"}
    assert "retuned-admin" in run("abort", "experiment/exp-1", who="eve", code=1)
    assert "no experiment" in run("abort", "experiment/other", code=2)


def test_a_cluster_without_our_kinds_says_what_to_install(cluster: Cluster, run: Run) -> None:
    cluster.fake.faults.add(Fault(verb="list", plural="swapproposals", status=404))
    assert "install the Helm chart" in run("proposals", code=4)
    cluster.fake.faults.add(Fault(verb="create", plural="tuningfreezes", status=404))
    assert "install the Helm chart" in run("freeze", who="grace", code=4)


def test_a_cluster_that_is_busy_is_a_matter_of_time(cluster: Cluster, run: Run) -> None:
    cluster.fake.faults.add(Fault(verb="list", plural="swapproposals", status=503))
    run("proposals", code=5)


def test_a_cluster_that_is_not_there_is_a_missing_thing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    path = cluster.kubeconfig("nobody", url="http://127.0.0.1:1")
    assert "does not answer" in run("proposals", "--kubeconfig", str(path), code=4)


def test_whom_the_cluster_does_not_know_is_told_to_log_in(cluster: Cluster, run: Run) -> None:
    assert "log in again" in run("proposals", who="mallory", code=1)


def test_a_kubeconfig_that_is_not_there_is_wrong_usage(cluster: Cluster, run: Run) -> None:
    run("proposals", "--kubeconfig", "/nowhere/at/all", code=2)
    run("proposals", "--context", "other", code=2)
    run("proposals", "-A", "-n", "serving", code=2)


def test_an_error_is_one_object_where_json_is_asked_for(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from retuned_operator.kubectl.commands import run_command_line

    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig("ada")))
    monkeypatch.setattr(sys, "argv", ["kubectl-retuned", "show", "nothing", "-o", "json"])
    with pytest.raises(SystemExit) as ended:
        run_command_line()
    out, err = capsys.readouterr()
    body: dict[str, Any] = yaml.safe_load(out)
    assert (ended.value.code, body["error"]["code"]) == (2, "wrong-usage")
    assert err.startswith("kubectl retuned: no proposal")
