"""Alerts: each fires when it should and only then, resolves, and says where to look."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.dashboards.rules import (
    RULES,
    RUNBOOKS,
    Rule,
    alerts,
    cases,
    files,
    matchers_in,
    metrics_in,
)
from tests.expect import raises_naming

from retuned.telemetry import CATALOGUE

ALERTS = alerts()
NAMES = sorted({each.name for each in ALERTS})
SCRAPED = {"namespace", "pod", "job", "instance", "container"}
"""Labels that come from the scrape."""
ASKED_FOR = {
    "latency drift": "RetunedKernelLatencyDrift",
    "sampler down": "RetunedSamplerDown",
    "overhead above budget": "RetunedSamplerOverheadHigh",
    "experiment backlog": "RetunedExperimentBacklog",
    "experiment failure rate": "RetunedExperimentFailureRate",
    "proposal awaiting approval": "RetunedSwapAwaitingApproval",
    "expiring soon": "RetunedSwapApprovalExpiringSoon",
    "canary regressed": "RetunedSwapCanaryRegressed",
    "rolled back": "RetunedSwapRolledBack",
    "rollback failed": "RetunedSwapRollbackFailed",
    "freeze too long": "RetunedFreezeActiveTooLong",
    "break-glass used": "RetunedBreakGlassUsed",
    "operator not leading": "RetunedOperatorNotLeading",
    "policy invalid": "RetunedPolicyInvalid",
    "channel hangs": "RetunedChannelHangs",
    "not scraped": "RetunedNotScraped",
}


def run(tool: Path, *words: str | Path) -> str:
    done = subprocess.run(
        [tool, *map(str, words)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.monitoring
def test_promtool_finds_nothing_to_complain_about(monitoring: Path) -> None:
    run(monitoring / "promtool", "check", "rules", "--lint=all", "--lint-fatal", *files())


@pytest.mark.monitoring
@pytest.mark.parametrize("path", sorted(RULES.glob("*_test.yaml")), ids=lambda path: path.stem)
def test_alerts_fire_and_resolve_as_their_tests_say(monitoring: Path, path: Path) -> None:
    run(monitoring / "promtool", "test", "rules", path)


@pytest.mark.monitoring
def test_a_test_that_expects_something_else_fails(monitoring: Path, tmp_path: Path) -> None:
    for path in files():
        (tmp_path / path.name).write_text(path.read_text("utf-8"))
    text = (RULES / "operator_test.yaml").read_text("utf-8")
    wrong = tmp_path / "operator_test.yaml"
    wrong.write_text(text.replace("eval_time: 20m", "eval_time: 3m"))
    with raises_naming(AssertionError, "FAILED", "RetunedOperatorNotLeading"):
        run(monitoring / "promtool", "test", "rules", wrong)


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_is_tested_silent_firing_and_resolved_in_one_story(name: str) -> None:
    stories = []
    for _, block in cases():
        looks = [each for each in block["alert_rule_test"] if each["alertname"] == name]
        stories.append([bool(each["exp_alerts"]) for each in looks])
    assert any(_rises_and_falls(story) for story in stories), stories


def _rises_and_falls(story: list[bool]) -> bool:
    return True in story and not story[0] and not story[-1]


@pytest.mark.parametrize("what", ASKED_FOR)
def test_what_people_must_hear_of_has_an_alert(what: str) -> None:
    assert ASKED_FOR[what] in NAMES


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule.id)
def test_an_alert_names_metrics_and_labels_that_there_are(rule: Rule) -> None:
    named = metrics_in(rule.expr) | metrics_in(str(rule.body["annotations"]))
    assert named or "up{" in rule.expr
    assert named <= set(CATALOGUE)
    for metric, label in matchers_in(rule.expr):
        assert label in set(CATALOGUE[metric].label_names) | SCRAPED


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule.id)
def test_an_alert_says_how_grave_it_is_and_where_to_look(rule: Rule) -> None:
    assert rule.body["labels"]["severity"] in {"critical", "warning", "info"}
    notes = rule.body["annotations"]
    assert notes["summary"]
    assert notes["description"]
    assert notes["runbook_url"] == f"https://runbooks.invalid/{rule.name}.md"
    assert (RUNBOOKS / f"{rule.name}.md").is_file()
    dashboard = re.fullmatch(r"https://grafana.invalid/d/(retuned-[a-z]+)", notes["dashboard_url"])
    assert dashboard is not None


def test_only_harm_of_a_kept_swap_and_a_way_back_that_fails_wake_somebody() -> None:
    critical = {each.name for each in ALERTS if each.body["labels"]["severity"] == "critical"}
    assert critical == {"RetunedSwapRollbackFailed", "RetunedSwapRolledBack"}
    kept = [
        each
        for each in ALERTS
        if (each.name, each.body["labels"]["severity"]) == ("RetunedSwapRolledBack", "critical")
    ]
    assert ['reason=~"(attribution|sentinel)-.*"' in each.body["expr"] for each in kept] == [True]


def test_every_page_has_its_alert_and_the_index_has_all() -> None:
    pages = {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == set(NAMES)
    index = (RUNBOOKS / "README.md").read_text("utf-8")
    rows = dict(re.findall(r"\| \[(\w+)\]\(\1\.md\) \| ([a-z, ]+) \|", index))
    grave: dict[str, list[str]] = {}
    for each in ALERTS:
        grave.setdefault(each.name, []).append(each.body["labels"]["severity"])
    assert rows == {name: ", ".join(words) for name, words in grave.items()}
