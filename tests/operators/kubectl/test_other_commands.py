from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.fakeapi.access import Identity
from tests.fakeapi.faults import Fault
from tests.operators.examples import ARTIFACT
from tests.operators.kubectl.conftest import ROLES, Cluster, Run
from typer.testing import CliRunner

from retuned_operator.kube.resources import FREEZES, TARGETS
from retuned_operator.kubectl import completion
from retuned_operator.kubectl.commands import app
from retuned_operator.kubectl.completion import completed

ROOT = Path(__file__).resolve().parents[3]
POLICIES = ROOT / "policies"
NAME = "swp-0123456789abcdef0123"


def test_status_says_what_is_looked_after_and_what_stands_in_the_way(
    cluster: Cluster, run: Run
) -> None:
    active = {
        "kernel": "rmsnorm_h512",
        "digest": ARTIFACT,
        "epoch": 1,
        "proposal": "swp-1",
        "since": "2026-03-02T10:00:00Z",
        "guard": {"bounds": {}},
    }
    cluster.target(pods=4, reportingPods=3, sampledKernels=17, activeKernels=[active])
    cluster.policy()
    cluster.proposal(None, phase="Promoted")
    cluster.experiment()
    text = run("status")
    for part in ("serving/chat", "Swap", "MI300X", "rmsnorm_h512", "1 Promoted", "1 Running"):
        assert part in text
    assert "policy serving/prod is not in use: the operator has not reconciled it" in text
    assert "target serving/chat is not ready: the operator has not reconciled it" in text
    body = run("status", "-A", "-o", "json")
    assert body["targets"][0]["ready"] is False
    assert body["targets"][0]["status"]["reportingPods"] == 3
    assert body["policies"][0]["ready"] is False
    assert body["proposals"] == {"Promoted": 1}
    assert run("status", "-o", "name") == "tuningtarget.retuned.dev/chat\n"
    assert f"rmsnorm_h512={ARTIFACT[7:19]}" in run("status", "-o", "wide")


def test_status_shows_tunables_and_why_there_is_no_experiment(cluster: Cluster, run: Run) -> None:
    states = [
        {"name": "tunable:autotune:chunk_scan:0123abcd", "reason": "all-tried", "detail": "2 of 2"},
        {"name": "tunable:attention:unified:0123abcd"},
    ]
    cluster.target(tunables=states)
    text = run("status")
    for part in ("autotune:chunk_scan:0123abcd", "all-tried: 2 of 2", "an experiment was asked"):
        assert part in text
    body = run("status", "-o", "json")
    assert body["targets"][0]["status"]["tunables"][0]["reason"] == "all-tried"


LESSON = {
    "kernel": "rmsnorm_h512",
    "guard": {"bounds": {}},
    "kind": "harms",
    "sentence": "harms (slower): steps take 3.0 % more time",
    "claimedSaving": 0.03,
    "at": "2026-03-02T10:00:00Z",
}


def test_status_shows_what_retuned_itself_costs(cluster: Cluster, run: Run) -> None:
    sentence = "Retuned adds 0.12 % (0.02 to 0.21 %) to a step"
    found = {"name": "chat-0", "uid": "u-0", "reported": "2026-03-02T10:00:00Z"}
    cluster.target(ownOverhead=[found | {"sentence": sentence}, {"name": "chat-1", "uid": "u-1"}])
    text = run("status")
    assert f"serving/chat (chat-0): {sentence}." in text
    assert "(chat-1)" not in text, "nothing is known of it yet"
    body = run("status", "-o", "json")
    assert body["targets"][0]["status"]["ownOverhead"][0]["sentence"] == sentence


def lifted(cluster: Cluster) -> list[dict[str, Any]]:
    (body,) = cluster.fake.api().list(TARGETS).items
    found: list[dict[str, Any]] = body["spec"].get("liftedLessons", [])
    return found


def test_status_shows_the_lessons_in_force_and_how_to_lift_them(cluster: Cluster, run: Run) -> None:
    cluster.target(lessons=[LESSON])
    text = run("status")
    assert "rmsnorm_h512 (all shapes) is not proposed again (live-lesson): harms" in text
    assert "`kubectl retuned rearm rmsnorm_h512 --lessons --reason ...` lifts it" in text


def test_a_person_with_the_role_lifts_the_lessons_on_a_kernel(cluster: Cluster, run: Run) -> None:
    cluster.target(lessons=[LESSON, LESSON | {"kernel": "rope_h512"}])
    words = ("rearm", "rmsnorm_h512", "--lessons", "--reason", "another model")
    assert "ClusterRole retuned-admin" in run(*words, who="eve", code=1)
    assert lifted(cluster) == []
    text = run(*words, who="grace")
    assert "Lifted in serving/chat" in text
    assert "rmsnorm_h512: harms (slower)" in text
    (entry,) = lifted(cluster)
    assert (entry["kernel"], entry["reason"]) == ("rmsnorm_h512", "another model")
    body = run(*words[:-1], "once more", "-o", "json", who="grace")
    assert body["target"] == "serving/chat"
    assert [each["reason"] for each in lifted(cluster)] == ["once more"]
    run("rearm", "rope_h512", "--lessons", "--target", "chat", "-m", "why", who="grace")
    assert [each["kernel"] for each in lifted(cluster)] == ["rmsnorm_h512", "rope_h512"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("rmsnorm_h512", "-m", "why"), 2, "--lessons is needed"),
        (("rmsnorm_h512", "--lessons"), 2, "--reason is needed"),
        (("rmsnorm_h512", "--lessons", "-m", "w" * 1001), 2, "1000 are kept"),
        (("rope_h512", "--lessons", "-m", "why"), 1, "no lesson on rope_h512 holds"),
        (("rmsnorm_h512", "--lessons", "-m", "why", "--target", "x"), 2, "no target 'x'"),
    ],
)
def test_what_lifts_no_lesson_is_refused(
    cluster: Cluster, run: Run, words: tuple[str, ...], code: int, says: str
) -> None:
    cluster.target(lessons=[LESSON])
    assert says in run("rearm", *words, who="grace", code=code)
    assert lifted(cluster) == []


def test_a_role_in_one_namespace_is_enough_to_look_at_it(cluster: Cluster, run: Run) -> None:
    cluster.fake.access.add("lin", Identity(name="lin"))
    cluster.fake.access.bind("lin", ROLES["retuned-viewer"], namespace="serving")
    cluster.proposal(cluster.policy())
    text = run("proposals", who="lin")
    assert NAME in text
    assert "whether something is frozen cannot be seen" in text
    assert "-n NAMESPACE" in run("proposals", "-A", who="lin", code=1)


def test_status_of_an_empty_namespace_says_what_to_do(cluster: Cluster, run: Run) -> None:
    assert "No targets in namespace other" in run("status", "-n", "other")


def test_a_freeze_stands_at_once_shows_and_is_lifted(cluster: Cluster, run: Run) -> None:
    made = run("freeze", "-m", "launch day", "--kernel", "rms*", who="grace", code=0)
    assert "for kernels 'rms*'" in made
    (found,) = cluster.fake.api().list(FREEZES).items
    assert (found["spec"]["user"], found["spec"]["stopPolicy"]) == ("grace", "Hold")
    assert "FROZEN by grace" in run("proposals")
    assert "Lifted" in run("thaw", who="grace")
    assert "nothing is frozen" in run("thaw", who="grace", code=1)


def test_of_several_freezes_one_is_named_or_all_are_meant(cluster: Cluster, run: Run) -> None:
    first = run("freeze", "-o", "json", who="grace")["freeze"]["id"]
    run("freeze", "--until", "2h", "--stop", "HoldAndDrain", who="grace")
    assert "2 freezes are in force" in run("thaw", who="grace", code=2)
    assert run("thaw", first, "-o", "json", who="grace") == {"thawed": [first]}
    run("freeze", who="grace")
    assert len(run("thaw", "--all", "-o", "json", who="grace")["thawed"]) == 2


def test_whoever_may_not_freeze_is_told_which_role_is_missing(cluster: Cluster, run: Run) -> None:
    assert "ClusterRole retuned-admin" in run("freeze", who="eve", code=1)
    run("freeze", who="grace")
    assert "ClusterRole retuned-admin" in run("thaw", who="eve", code=1)


def test_a_freeze_that_would_end_in_the_past_is_refused(cluster: Cluster, run: Run) -> None:
    assert "already past" in run("freeze", "--until", "2020-01-01T00:00+00:00", who="grace", code=2)


@pytest.mark.parametrize("path", sorted(POLICIES.glob("*.yaml")), ids=lambda p: p.stem)
def test_the_policies_that_ship_are_valid_for_a_cluster(run: Run, path: Path) -> None:
    body = run("policy", "check", str(path), "-o", "json")
    assert (body["valid"], body["not_enforced"]) == (True, [])


def test_what_is_wrong_with_a_policy_is_told_with_its_line(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    good = (POLICIES / "production-two-person.yaml").read_text()
    path.write_text(good.replace("mode: Enforce", "mode: Sometimes"))
    text = run("policy", "check", str(path), code=1)
    assert "spec.mode" in text
    assert f"{path}:" in text
    assert run("policy", "check", str(tmp_path / "no.yaml"), code=3)


def test_a_bare_word_that_kubernetes_takes_for_a_truth_makes_a_policy_invalid(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "p.yaml"
    good = (POLICIES / "production-two-person.yaml").read_text()
    path.write_text(good.replace('"on":', "on:"))
    text = run("policy", "check", str(path), code=1)
    assert "spec.rollout.autoRollback.on: Kubernetes reads a bare on as true" in text


def words() -> Iterator[tuple[str, ...]]:
    waiting: list[tuple[tuple[str, ...], Any]] = [((), typer.main.get_command(app))]
    while waiting:
        name, command = waiting.pop()
        yield name
        waiting += [((*name, sub), each) for sub, each in getattr(command, "commands", {}).items()]


def test_every_help_is_written_for_people() -> None:
    found = list(words())
    assert len(found) > 12
    for name in found:
        page = CliRunner().invoke(app, [*name, "--help"], prog_name="kubectl retuned").stdout
        assert page.startswith(" ".join(("Usage: kubectl retuned", *name))), name
        for word in ("----\n", "Raises", "Parameters", "Returns", "``"):
            assert word not in page, name


COMPLETIONS = [
    (["ap"], ["approve"]),
    (["policy", ""], ["check"]),
    (["show", ""], ["swp-a", "swp-b"]),
    (["approve", "swp-b"], ["swp-b"]),
    (["proposals", "-o", "j"], ["json"]),
    (["proposals", "--output", ""], ["json", "name", "table", "wide", "yaml"]),
    (["freeze", "--stop", "Hold"], ["Hold", "HoldAndDrain", "HoldAndRollback"]),
    (["approve", "--di"], ["--digest"]),
    (["approve", "--digest", ""], []),
    (["status", ""], []),
]


@pytest.mark.parametrize(("typed", "offered"), COMPLETIONS)
def test_the_shell_is_offered_what_fits(typed: list[str], offered: list[str]) -> None:
    found, ending = completed(
        typer.main.get_command(app), typed, proposals=lambda: ["swp-a", "swp-b"]
    )
    assert (found, ending) == (offered, ":4")


@pytest.mark.parametrize("typed", [["inject", "-f", ""], ["policy", "check", "p"]])
def test_files_are_offered_where_a_file_is_wanted(typed: list[str]) -> None:
    command = typer.main.get_command(app)
    assert completed(command, typed, proposals=list) == ([], ":0")


def test_names_are_completed_from_the_cluster_and_its_absence_is_no_error(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster.proposal(None)
    cluster.proposal(None, name="swp-ended", phase="Expired")
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig("eve")))
    completion.run_completion(["show", "swp-"])
    assert capsys.readouterr().out == f"{NAME}\n:4\n"
    cluster.fake.faults.add(Fault(verb="list", status=500))
    completion.run_completion(["show", "swp-"])
    assert capsys.readouterr().out == ":4\n"


def test_the_names_that_are_installed_lead_to_functions() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name in ("kubectl-retuned", "kubectl_complete-retuned"):
        module, function = scripts[name].split(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_the_entry_imports_nothing_that_takes_time() -> None:
    code = "import sys, retuned_operator.kubectl; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"typer", "rich", "pydantic", "kubernetes", "yaml"}


def test_files_are_changed_without_the_kubernetes_client() -> None:
    code = (
        "import sys\n"
        "sys.modules['kubernetes'] = None\n"
        "from retuned_operator.kubectl.commands import app\n"
        "from typer.testing import CliRunner\n"
        "args = ['inject', '-f', '-', '--image', 'i', '--agent-url', 'https://a']\n"
        "print(CliRunner().invoke(app, args, input='a: b\\n').stdout)\n"
        "print(repr(CliRunner().invoke(app, ['proposals']).exception))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("a: b")
    assert "MissingDependency" in done.stdout
    assert "retuned[operator]" in done.stdout
