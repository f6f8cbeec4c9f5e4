"""Runbooks: every command in them exists, with its options."""

from __future__ import annotations

import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.dashboards.rules import RUNBOOKS, cases
from tests.expect import raises_naming
from tests.plane.control_plane import tools
from typer.core import TyperGroup

from retuned.cli.commands import app as retuned
from retuned_operator.kubectl.commands import app as kubectl_retuned

PAGES = sorted(path for path in RUNBOOKS.glob("*.md") if path.stem != "README")
SECTIONS = ["What it means", "Impact", "Look", "Decide", "Mend"]
_FENCE = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILES = {"FILE", "TRACE"}
"""Places for a file that is there."""


def commands(page: Path) -> list[list[str]]:
    return [
        shlex.split(line)
        for block in _FENCE.findall(page.read_text("utf-8"))
        for line in block.replace("\\\n", " ").splitlines()
        if line.strip()
    ]


def in_alerts() -> set[tuple[str, ...]]:
    """Return the commands that alerts carry, as their tests expect them."""
    return {
        tuple(shlex.split(text))
        for _, block in cases()
        for look in block["alert_rule_test"]
        for alert in look["exp_alerts"]
        for name, text in alert["exp_annotations"].items()
        if name.endswith("_command")
    }


ALERTED = in_alerts()
ALL = sorted({tuple(words) for page in PAGES for words in commands(page)} | ALERTED)
OURS = [each for each in ALL if each[0] == "retuned" or each[:2] == ("kubectl", "retuned")]
THEIRS = [each for each in ALL if each[0] == "kubectl" and each[1] != "retuned"]


def understood(app: typer.Typer, words: list[str]) -> Any:
    """Read a command line to its end without doing anything; what is unknown raises."""
    command = typer.main.get_command(app)
    context = command.make_context("program", list(words))
    while isinstance(command, TyperGroup):
        rest = [*context._protected_args, *context.args]
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None, f"no command {name}"
        command, context = found, found.make_context(name, list(rest), parent=context)
    return context


def our(words: tuple[str, ...], there: Path) -> Any:
    app = retuned if words[0] == "retuned" else kubectl_retuned
    rest = words[1:] if words[0] == "retuned" else words[2:]
    return understood(app, [str(there) if word in _FILES else word for word in rest])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_runbook_has_its_parts_in_order_and_commands_to_look_and_to_mend(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text.startswith(f"# {page.stem}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    assert commands(page)
    assert all(words[0] in ("retuned", "kubectl") for words in commands(page))
    for link in re.findall(r"\]\((\w+\.md)\)", text):
        assert (RUNBOOKS / link).is_file()


def test_alerts_that_ask_a_person_to_act_carry_commands() -> None:
    asking = {
        each["alertname"]
        for _, block in cases()
        for each in block["alert_rule_test"]
        for alert in each["exp_alerts"]
        if any(name.endswith("_command") for name in alert["exp_annotations"])
    }
    assert asking == {
        "RetunedSwapApprovalExpiringSoon",
        "RetunedSwapAwaitingApproval",
        "RetunedSwapPaused",
        "RetunedSwapRollbackFailed",
        "RetunedSwapRolledBack",
    }
    assert {words[0] for words in ALERTED} == {"kubectl", "retuned"}


@pytest.mark.parametrize("words", OURS, ids=" ".join)
def test_a_command_of_ours_exists_with_its_options(words: tuple[str, ...], tmp_path: Path) -> None:
    there = tmp_path / "file"
    there.write_text("x")
    assert our(words, there) is not None


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("retuned rollbak PROPOSAL", "'rollbak'"),
        ("retuned rollback --force PROPOSAL", "--force"),
        ("retuned freeze --stop Never", "'Never'"),
        ("retuned policy chek FILE", "'chek'"),
        ("kubectl retuned approve", "proposal"),
        ("kubectl retuned approve A B", "(B)"),
        ("kubectl retuned show PROPOSAL --all", "--all"),
    ],
)
def test_a_command_that_is_none_is_found_out(line: str, named: str, tmp_path: Path) -> None:
    there = tmp_path / "file"
    there.write_text("x")
    with raises_naming(Exception, named) as caught:
        our(tuple(shlex.split(line)), there)
    assert getattr(caught.value, "exit_code", None) == 2


@cache
def help_of(kubectl: Path, words: tuple[str, ...]) -> str:
    done = subprocess.run(
        [kubectl, *words, "--help"], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


_SUB = frozenset({"rollout", "top"})
_GLOBAL = re.compile(r"(?:^\s+|, )(-\w|--[\w-]+)(?:=|, )", re.MULTILINE)


@pytest.mark.plane
@pytest.mark.parametrize("words", THEIRS, ids=" ".join)
def test_a_command_of_kubectl_exists_with_its_options(words: tuple[str, ...]) -> None:
    folder = tools()
    if folder is None:
        pytest.skip("Kubernetes is not built here: make cluster-tools")
    verb = words[1 : 3 if words[1] in _SUB else 2]
    text = help_of(folder / "kubectl", verb)
    assert f"kubectl {' '.join(verb)}" in text
    known = set(_GLOBAL.findall(text)) | {"-n", "--namespace"}
    asked = {word.partition("=")[0] for word in words if word.startswith("-")}
    assert asked <= known, asked - known


def test_a_kind_that_kubectl_is_asked_for_is_one_of_ours_or_of_kubernetes() -> None:
    theirs = {"pods", "pod", "networkpolicies", "jobs", "events", "lease", "configmap"}
    ours = {
        "tuningtargets", "kernelexperiments", "kernelexperiment", "swapproposal", "swapdecisions",
        "swapdecision", "tuningfreezes", "tuningfreeze", "kerneltuningpolicy",
    }  # fmt: skip
    asked = {w[2].partition("/")[0] for w in THEIRS if w[1] in ("get", "describe", "delete")}
    assert asked <= theirs | ours, asked - theirs - ours
