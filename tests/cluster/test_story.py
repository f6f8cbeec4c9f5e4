"""The whole loop in real pods: drift, experiments, two people, a swap, a fault, the way back.

The tests tell one story in their order. Parts of us are taken away in the middle of it; the server
serves all the time, and what they were about to do is done once.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cluster.cluster import NODE, Cluster
from tests.cluster.fleet import (
    EXPERIMENTS,
    IN_REPLICAS,
    NAMESPACE,
    Fleet,
    fleet_in,
    injected,
    like,
    story_values,
)
from tests.cluster.installing import NAMESPACE as SYSTEM
from tests.cluster.installing import OPERATOR, uninstall, upgrade
from tests.cluster.reporting import Report
from tests.cluster.serving import traffic
from tests.cluster.strangers import other_pod, said_by, token_of
from tests.plane.control_plane import Failed

from retuned.stages.watch.proof import Verdict
from retuned_operator.manifests.jobs import RUNNER
from retuned_operator.manifests.names import ROLE
from retuned_operator.manifests.sidecar import SIDECAR
from retuned_operator.schema import ExperimentPhase

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STORE = "by-hand"
VALUES = story_values(STORE, live_proof=IN_REPLICAS)


def again(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return values that make another pod of the operator and change nothing else."""
    operator = {**given["operator"], "podAnnotations": {"tests/again": "yes"}}
    return {**given, "operator": operator}


@pytest.fixture(scope="module")
def fleet(
    cluster: Cluster, report: Report, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("client")
    with fleet_in(cluster, VALUES, volume=STORE, folder=folder, report=report) as made:
        yield made


def ours(fleet: Fleet) -> list[str]:
    """Return what of us is there that belongs to no namespace."""
    kinds = (
        "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,priorityclasses,"
        "validatingadmissionpolicies,validatingadmissionpolicybindings"
    )
    lines = fleet.cluster.kubectl("get", kinds, "-o", "name").split()
    return [line for line in lines if "retuned" in line]


def of_chart(fleet: Fleet) -> list[str]:
    """Return what there is in the operator's namespace."""
    kinds = (
        "deployments,services,configmaps,secrets,leases,roles,rolebindings,networkpolicies,"
        "poddisruptionbudgets,pods,pvc"
    )
    return fleet.cluster.kubectl("get", kinds, "-n", SYSTEM, "-o", "name").split()


def end_experiments(fleet: Fleet, person: Path, *, but: str = "") -> None:
    """Abort, as somebody, whatever experiment has not ended, one of them left out."""
    for each in fleet.all("kernelexperiments"):
        name, phase = each["metadata"]["name"], each.get("status", {}).get("phase", "Pending")
        if name == but or ExperimentPhase(phase).is_terminal:
            continue
        abort = ("abort", f"experiment/{name}", "-n", NAMESPACE, "-m", "one is enough")
        try:
            fleet.cluster.retuned(*abort, kubeconfig=person)
        except subprocess.CalledProcessError as refused:
            if "there is nothing to stop" not in refused.stderr:  # it ended just then
                raise


def test_an_operator_leads_and_the_chart_tests_itself(fleet: Fleet) -> None:
    fleet.cluster.helm("test", "retuned", "--namespace", SYSTEM, "--timeout=400s")
    assert fleet.operator()["ready"]
    (lease,) = fleet.cluster.get("leases", "-n", SYSTEM)["items"]
    assert lease["spec"]["holderIdentity"]


def test_the_webhook_put_the_sidecar_into_the_pod_that_asks_and_into_no_other(
    fleet: Fleet,
) -> None:
    found = {each["name"]: each for each in fleet.server()["status"]["initContainerStatuses"]}
    assert "running" in found[SIDECAR]["state"]
    assert injected(fleet.cluster, annotations={}) == ""


def test_the_operator_hears_of_the_pod_and_of_its_kernels(fleet: Fleet, report: Report) -> None:
    report.seconds["sidecar reports"] = fleet.cluster.eventually(
        lambda: fleet.status().get("reportingPods") == 1, "the sidecar reports"
    )
    fleet.cluster.eventually(lambda: fleet.status().get("sampledKernels", 0) > 0, "a profile came")


def test_a_person_sees_it_with_the_rights_of_a_viewer(fleet: Fleet) -> None:
    viewer = fleet.cluster.person("vera", "retuned-viewer", namespace=NAMESPACE)
    said = fleet.cluster.retuned("status", "-n", NAMESPACE, "-o", "json", kubeconfig=viewer)
    assert "demo" in json.dumps(json.loads(said))


def test_a_token_speaks_for_its_own_pod_and_no_other(fleet: Fleet) -> None:
    with other_pod(fleet) as stranger:
        of_server = said_by(fleet, token_of(fleet, fleet.pod), about=stranger)
        its_own = token_of(fleet, stranger.name)
        fleet.cluster.eventually(
            lambda: said_by(fleet, its_own, about=fleet.ref) != (403, "pod-unknown"),
            "the operator has seen the pod, too",
        )
        of_stranger = said_by(fleet, its_own, about=fleet.ref)
    assert of_server == (403, "not-your-pod")
    assert of_stranger == (403, "no-target")
    assert said_by(fleet, "not.a.token", about=fleet.ref) == (401, "token-refused")


def test_traffic_that_changes_is_found_and_asks_for_an_experiment(
    fleet: Fleet, report: Report
) -> None:
    report.seconds["baseline learned"] = fleet.cluster.eventually(
        lambda: "baseline learned" in fleet.log(), "a baseline is learned", within_s=600
    )
    assert fleet.all("kernelexperiments") == []
    fleet.client.ask("phase code")
    report.seconds["drift to experiment"] = fleet.cluster.eventually(
        lambda: bool(fleet.all("kernelexperiments")), "an experiment is asked for", within_s=600
    )


def asked_for(pod: Mapping[str, Any]) -> list[str]:
    """Return how many accelerators each container of a pod asks for, of those that do."""
    limits = [each["resources"]["limits"] for each in pod["spec"]["containers"]]
    return [each["amd.com/gpu"] for each in limits if "amd.com/gpu" in each]


def test_the_experiment_runs_in_a_pod_that_asks_for_an_accelerator(
    fleet: Fleet, report: Report
) -> None:
    running: list[dict[str, Any]] = []

    def measures() -> bool:
        running[:] = filter(asked_for, fleet.running())
        return bool(running)

    report.seconds["experiment to pod"] = fleet.cluster.eventually(
        measures, "a pod on an accelerator runs", within_s=600
    )
    for each in fleet.cluster.get("pods", "-n", EXPERIMENTS)["items"]:
        role = each["metadata"]["labels"][ROLE]
        assert asked_for(each) == ([] if role == "compile" else ["1"])
    pod = running[0]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["priorityClassName"] == "retuned-experiment"


def test_an_experiment_whose_pod_is_evicted_waits_for_room_and_begins_again(
    fleet: Fleet, report: Report
) -> None:
    (pod,) = filter(asked_for, fleet.running())
    name = pod["metadata"]["annotations"]["retuned.dev/experiment"].partition("/")[2]

    def status() -> dict[str, Any]:
        found: dict[str, Any] = fleet.experiment(name)["status"]
        return found

    def waits() -> bool:
        found = status()
        said = (found["phase"], found["reason"], found["preemptions"])
        return said == ("Queued", "waits-for-room", 1) and "Unschedulable" in found["detail"]

    with fleet.cluster.cordoned(NODE):
        fleet.cluster.evict(pod["metadata"]["name"], namespace=EXPERIMENTS)
        report.seconds["eviction to waiting"] = fleet.cluster.eventually(
            waits, "it waits for room, and says what the scheduler says"
        )
        fleet.cluster.eventually(fleet.client.served(10), "the server serves")
    fleet.cluster.eventually(lambda: any(map(asked_for, fleet.running())), "another pod searches")


def test_an_upgrade_in_the_middle_of_it_loses_nothing(fleet: Fleet) -> None:
    before = {each["metadata"]["uid"] for each in fleet.all("kernelexperiments")}
    jobs = {each["metadata"]["uid"] for each in fleet.jobs()}
    pods = {each["metadata"]["uid"] for each in fleet.cluster.get("pods", *OPERATOR)["items"]}
    upgrade(fleet.cluster, again(VALUES))
    assert before <= {each["metadata"]["uid"] for each in fleet.all("kernelexperiments")}
    assert jobs <= {each["metadata"]["uid"] for each in fleet.jobs()}
    after = {each["metadata"]["uid"] for each in fleet.cluster.get("pods", *OPERATOR)["items"]}
    assert after - pods, "the operator is another one"
    assert fleet.server()["metadata"]["uid"] == fleet.ref.uid


def test_an_operator_that_is_killed_goes_on_where_it_was(fleet: Fleet) -> None:
    name = fleet.operators_pod()["metadata"]["name"]
    before = fleet.operator()["restartCount"]
    fleet.cluster.kill(name, "operator", namespace=SYSTEM)

    def ready_again() -> bool:
        status = fleet.operator()
        return status["restartCount"] > before and bool(status["ready"])

    fleet.cluster.eventually(ready_again, "the operator is back")


def test_a_store_that_is_full_or_held_by_another_makes_the_operator_wait(
    fleet: Fleet, report: Report
) -> None:
    before = fleet.operator()
    # one that has just begun has certificates to write, before pods tell it anything to keep
    full = ("No space left on device", "database or disk is full")
    faults = (
        ("disk full", fleet.store.full, full),
        ("database held", fleet.store.held, ("database is locked",)),
    )
    for name, fault, words in faults:
        refused = fleet.said_anew(*words)
        with fault():
            report.seconds[f"{name} to refusal"] = fleet.cluster.eventually(
                refused, f"{name}: what cannot be kept is refused"
            )
            fleet.cluster.eventually(fleet.client.served(10), "the server serves")
    fleet.cluster.eventually(lambda: bool(fleet.operator()["ready"]), "it is ready")
    assert fleet.operator()["restartCount"] == before["restartCount"], fleet.operators_last_words()


def test_a_win_is_measured_proven_and_proposed(fleet: Fleet, report: Report) -> None:
    report.seconds["win to proposal"] = fleet.cluster.eventually(
        lambda: bool(fleet.all("swapproposals")), "a swap is proposed", within_s=900
    )
    fleet.cluster.eventually(lambda: fleet.phase() == "AwaitingApproval", "people are asked")
    proposal = fleet.proposal()
    experiment = fleet.experiment(proposal["spec"]["experimentRef"])
    evicted = experiment["status"]["preemptions"]
    late = [("compile", 1), ("search", 1), ("verify", 1), ("verify", 2)]  # its search had ended
    made = [(each["role"], each["attempt"]) for each in experiment["status"]["jobRefs"]]
    again = [("search", 2)] if evicted else []
    expected = [("compile", 1), ("search", 1), *again, ("verify", 1 + evicted)]
    assert made == expected or (evicted and made == late), "each once"
    every = [each["status"] for each in fleet.all("kernelexperiments") if "status" in each]
    assert sum(each["preemptions"] for each in every) == 1, "one pod was evicted"
    report.note(proposed=1)
    admin = fleet.cluster.person("olga", "retuned-admin", namespace=NAMESPACE)
    end_experiments(fleet, admin)  # one story is enough


def test_who_asked_for_the_swap_may_not_approve_it(fleet: Fleet) -> None:
    asker = str(fleet.proposal()["spec"]["requestedBy"])
    with pytest.raises(subprocess.CalledProcessError) as refused:
        fleet.approve(asker, "gpu-platform")
    assert "the user who asked for a swap cannot approve it" in refused.value.stderr
    assert fleet.all("swapdecisions") == []


def test_one_person_is_not_enough_and_nothing_is_swapped(fleet: Fleet) -> None:
    fleet.approve("ada", "gpu-platform")

    def counted() -> bool:
        gate = fleet.proposal()["status"].get("gate", {})
        return "ada" in json.dumps(gate)

    fleet.cluster.eventually(counted, "her word counts")
    assert fleet.phase() == "AwaitingApproval"
    assert all(slot["active"] is None for slot in fleet.slots().values())


def test_canary_replicas_are_measured_before_the_server_is_swapped(
    fleet: Fleet, report: Report
) -> None:
    fleet.approve("ben", "sre-oncall")
    report.seconds["approval to replicas"] = fleet.cluster.eventually(
        lambda: len(fleet.replicas()) == 2, "two replicas are made"
    )
    status = fleet.proposal()["status"]
    assert (status["phase"], status["reason"]) == ("Proving", "canary-replicas-running")
    owners = [each["metadata"]["ownerReferences"] for each in fleet.replicas()]
    uid = fleet.proposal()["metadata"]["uid"]
    assert {each["uid"] for every in owners for each in every} == {uid}
    with traffic(lambda: fleet.url, clients=6, tokens=24) as counted:
        report.seconds["replicas to measured pair"] = fleet.cluster.eventually(
            lambda: fleet.proposal()["status"]["replicas"]["shamPairs"] >= 1,
            "a pair of boots counts",
            within_s=900,
        )
        assert all(slot["active"] is None for slot in fleet.slots().values())
        assert fleet.status()["pods"] == 1, "replicas are no pods of the target"
        workload = fleet.cluster.get("deployment", "demo", "-n", NAMESPACE)
        assert workload["status"]["replicas"] == 1, "no workload has adopted them"
        upgrade(fleet.cluster, story_values(STORE))
        report.seconds["other policy to no replicas"] = fleet.cluster.eventually(
            lambda: not fleet.replicas(going=True), "the replicas are gone"
        )
    report.add(counted)
    assert counted.failed == [], "a replica that is deleted ends its requests"


def test_another_policy_asks_people_again(fleet: Fleet) -> None:
    fleet.cluster.eventually(lambda: fleet.phase() == "AwaitingApproval", "people are asked again")
    end_experiments(fleet, fleet.cluster.admin)  # the traffic for replicas was new, too
    fleet.approve("ada", "gpu-platform")


def test_an_artifact_that_was_tampered_with_is_loaded_nowhere_though_two_people_agreed(
    fleet: Fleet, report: Report
) -> None:
    def held() -> list[str]:
        rollout = fleet.proposal()["status"].get("rollout", {})
        return [each.get("held", "") for each in rollout.get("pods", ())]

    with fleet.store.tampered(fleet.proposal()["spec"]["artifact"]["digest"]):
        fleet.approve("ben", "sre-oncall")
        report.seconds["approval to tampering seen"] = fleet.cluster.eventually(
            lambda: held() == ["artifact-damaged"], "the pod waits for a sound one", within_s=600
        )
        assert all(slot["active"] is None for slot in fleet.slots().values())
        fleet.cluster.eventually(fleet.client.served(10), "the server serves")


def test_with_two_people_the_running_server_has_the_kernel_and_launches_run_it(
    fleet: Fleet, report: Report
) -> None:
    spec = fleet.proposal()["spec"]
    report.seconds["sound artifact to swap"] = fleet.cluster.eventually(
        lambda: fleet.slots()[spec["kernel"]]["active"] == spec["artifact"]["digest"],
        "the slot has the kernel",
    )
    fleet.cluster.eventually(
        lambda: fleet.slots("samples")[spec["kernel"]]["shadow_checks"] > 0,
        "it is checked in the shadow",
    )


def test_with_the_api_server_away_for_a_minute_the_canary_goes_on_and_is_told_of_later(
    fleet: Fleet, report: Report
) -> None:
    kernel = fleet.proposal()["spec"]["kernel"]
    assert fleet.phase() in ("Canary", "Analyzing")
    epoch = fleet.slots()[kernel]["epoch"]
    fleet.cluster.plane.stop_process("kube-apiserver", with_signal=signal.SIGKILL)
    fleet.client.serves(20, at_least_s=60)
    fleet.cluster.plane.start_api()
    fleet.cluster.eventually(
        lambda: fleet.status().get("reportingPods") == 1, "the pod is heard again", within_s=600
    )
    sample = fleet.slots("samples")[kernel]
    assert sample["epoch"] == epoch, "what was ordered was carried out once"
    report.seconds["canary to all launches"] = fleet.cluster.eventually(
        lambda: fleet.slots("samples")[kernel]["fraction"] == 1.0,
        "all launches run it",
        within_s=600,
    )
    assert fleet.slots("samples")[kernel]["swapped_launches"] > 0


def test_a_sidecar_that_is_killed_while_no_kubelet_runs_finds_the_swap_as_it_left_it(
    fleet: Fleet,
) -> None:
    kernel = fleet.proposal()["spec"]["kernel"]
    before = fleet.slots()[kernel]
    # a promoted one is found as well: how soon that comes is not what this is about
    assert fleet.phase() in ("Canary", "Analyzing", "Watching", "Promoted"), "it is swapped"
    with fleet.cluster.without_kubelet():  # who would start it again
        fleet.cluster.kill(fleet.pod, SIDECAR, namespace=NAMESPACE)
        fleet.client.serves(20, at_least_s=20)

    def back() -> bool:
        found = {each["name"]: each for each in fleet.server()["status"]["initContainerStatuses"]}
        return found[SIDECAR]["restartCount"] > 0 and "running" in found[SIDECAR]["state"]

    fleet.cluster.eventually(back, "the sidecar is back")
    after = fleet.slots()[kernel]
    assert (after["active"], after["epoch"]) == (before["active"], before["epoch"])


def test_a_swap_that_stays_clean_is_kept(fleet: Fleet, report: Report) -> None:
    report.seconds["swap to promotion"] = fleet.cluster.eventually(
        lambda: fleet.phase() == "Promoted", "it is promoted", within_s=1200
    )
    proposal = fleet.proposal()
    digest = proposal["spec"]["artifact"]["digest"]
    fleet.cluster.eventually(
        lambda: [each["digest"] for each in fleet.status()["activeKernels"]] == [digest],
        "the target says that it ought to run",
    )
    (told,) = proposal["status"]["rollout"]["pods"]
    slot = fleet.slots()[proposal["spec"]["kernel"]]
    assert (slot["active"], slot["epoch"]) == (digest, told["epoch"])
    assert [each["to"] for each in proposal["status"]["history"]].count("Promoted") == 1
    (proof,) = proposal["status"]["liveProofs"]
    assert (proof["uid"], proof["verdict"] in set(Verdict)) == (told["uid"], True)
    report.note(promoted=1, live_proofs=1)


def test_a_kernel_that_turns_wrong_is_found_and_goes_back_by_itself(
    fleet: Fleet, report: Report
) -> None:
    proposal = fleet.proposal()
    kernel, digest = proposal["spec"]["kernel"], proposal["spec"]["artifact"]["digest"]
    answer = httpx.post(
        f"{fleet.url}/demo/fault", json={"slot": kernel}, timeout=100, trust_env=False
    )
    answer.raise_for_status()
    report.seconds["fault to rollback in the server"] = fleet.cluster.eventually(
        lambda: fleet.slots()[kernel]["active"] is None, "the original serves"
    )
    report.seconds["rollback known"] = fleet.cluster.eventually(
        lambda: fleet.phase() == "RolledBack", "the cluster knows"
    )
    fleet.cluster.eventually(
        lambda: digest in {each["digest"] for each in fleet.status()["quarantine"]},
        "it is not proposed again",
    )
    fleet.cluster.eventually(
        lambda: fleet.status()["activeKernels"] == [], "nothing ought to run but the original"
    )
    report.note(rolled_back=1)
    report.note_phases(fleet.proposal())


def killed_at_work(fleet: Fleet, experiment: str, role: str) -> bool:
    """Kill what an experiment's pod of a role runs, from outside, as soon as it runs.

    Returns whether it was still at it: no look comes before everybody's end.
    """
    selector, found = ("-n", EXPERIMENTS, "-l", f"{ROLE}={role}"), list[str]()

    def begun() -> bool:
        found[:] = [
            each["metadata"]["name"]
            for each in fleet.cluster.get("pods", *selector)["items"]
            if each["metadata"]["annotations"]["retuned.dev/experiment"].endswith(f"/{experiment}")
            for container in each["status"].get("containerStatuses", ())
            if "waiting" not in container["state"]
        ]
        if not found:  # one runs at a time
            end_experiments(fleet, fleet.cluster.admin, but=experiment)
        return bool(found)

    fleet.cluster.eventually(begun, f"{experiment} runs its {role}", within_s=600)
    try:
        fleet.cluster.kill(found[0], RUNNER, namespace=EXPERIMENTS)
    except (Failed, subprocess.CalledProcessError):
        return False
    return True


def all_killed(fleet: Fleet, before: Mapping[str, Any], name: str) -> bool:
    """Ask for an experiment like one before and kill its pods; say whether all were at work."""
    fleet.cluster.kubectl("apply", "-f", "-", given=[like(before, name)])
    return all(killed_at_work(fleet, name, role) for role in ("compile", "search"))


def test_an_experiment_whose_pods_are_killed_fails_with_its_reason_and_the_target_goes_on(
    fleet: Fleet, report: Report
) -> None:
    before, target = fleet.experiment(fleet.proposal()["spec"]["experimentRef"]), fleet.status()
    tries = ("killed", "killed-again", "killed-at-last")
    name = next((each for each in tries if all_killed(fleet, before, each)), None)
    assert name is not None, "every pod ended before it could be killed"
    report.seconds["killed to failed"] = fleet.cluster.eventually(
        lambda: fleet.experiment(name).get("status", {}).get("phase") == "Failed",
        "it has failed",
    )
    status = fleet.experiment(name)["status"]
    helper, search = sorted(status["jobRefs"], key=lambda each: str(each["role"]))
    assert status["reason"] == "job-failed"
    assert status["detail"].startswith(search["name"])
    for why in (helper["givenUp"], status["detail"]):
        assert "with code 137" in why
    fleet.cluster.eventually(lambda: fleet.status()["reportingPods"] == 1, "the pod is heard")
    assert fleet.status()["quarantine"] == target["quarantine"]
    proposed = {each["spec"]["experimentRef"] for each in fleet.all("swapproposals")}
    assert name not in proposed, "it proposed nothing"


def written(fleet: Fleet, resource: str, verbs: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the requests that somebody made to write objects of a kind, oldest first."""
    return [
        each
        for each in fleet.cluster.plane.audited()
        if each["verb"] in verbs
        and each["objectRef"]["resource"] == resource
        and each["stage"] == "ResponseComplete"
    ]


def test_the_audit_log_says_that_a_swap_and_a_way_back_were_ordered_once(fleet: Fleet) -> None:
    asked = written(fleet, "swapproposals", ("patch", "update"))
    after = [each["responseObject"] for each in asked if each["responseStatus"]["code"] == 200]
    rollouts = [
        each["status"]["rollout"] for each in after if each.get("status", {}).get("rollout")
    ]
    told = {
        (each["uid"], each["epoch"], each["wants"]) for every in rollouts for each in every["pods"]
    }
    assert sorted(wants for _, _, wants in told) == ["back", "swap"]
    assert len({epoch for _, epoch, _ in told}) == 2
    assert {uid for uid, _, _ in told} == {fleet.ref.uid}


def test_the_audit_log_says_who_decided(fleet: Fleet) -> None:
    made = [
        (each["user"]["username"], each["responseStatus"]["code"])
        for each in written(fleet, "swapdecisions", ("create",))
    ]
    asker = str(fleet.proposal()["spec"]["requestedBy"])
    twice = [("ada", 201), ("ben", 201)] * 2
    assert made == [(asker, 403), *twice], "for each of two policies"


def test_an_uninstall_leaves_the_definitions_and_the_record_and_the_server(fleet: Fleet) -> None:
    assert ours(fleet)
    uninstall(fleet.cluster)
    assert ours(fleet) == []
    kinds = [
        each["metadata"]["name"]
        for each in fleet.cluster.get("crds")["items"]
        if each["spec"]["group"] == "retuned.dev"
    ]
    assert len(kinds) == 6
    decisions = [each["spec"]["user"] for each in fleet.all("swapdecisions")]
    assert sorted(decisions) == ["ada", "ada", "ben", "ben"]
    assert fleet.phase() == "RolledBack"
    stay = {"configmap/kube-root-ca.crt", "persistentvolumeclaim/retuned-store"}
    fleet.cluster.eventually(lambda: set(of_chart(fleet)) == stay, "all else is gone")
    served = fleet.client.served(20)
    fleet.cluster.eventually(served, "the server serves without us")


def test_after_all_of_that_no_request_has_failed_and_nothing_was_restarted(fleet: Fleet) -> None:
    pod = fleet.server()
    (server,) = pod["status"]["containerStatuses"]
    assert (pod["metadata"]["uid"], server["restartCount"]) == (fleet.ref.uid, 0)
    told = fleet.client.ask("mark")
    assert told["failed"] == 0, told["failures"]
    assert told["ok"] > 100
