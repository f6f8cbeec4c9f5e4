"""What is wrong with a policy, or with all of a folder, and how that is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retuned.adapters.policy_files import (
    check_policy,
    load_policies,
    misread_in,
    permissions_in,
    policy_paths,
    unenforced_in,
)
from retuned.errors import PolicyInvalid, Problem, UnreadableInput
from retuned.terminal.output import error_body, safe, stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFileResult:
    """What was found in one file."""

    file: Path
    problems: tuple[Problem, ...] = ()
    idle: tuple[Problem, ...] = ()
    permits: tuple[Problem, ...] = ()
    unreadable: UnreadableInput | None = None


def examine(path: Path, *, one_machine: bool) -> list[PolicyFileResult]:
    """Check a file, or the files of a folder, as the setting ``policy_files`` reads them.

    Parameters
    ----------
    path
        File or folder.
    one_machine
        Whether it is for a machine without a cluster, which does not enforce all that it says;
        else it goes through a YAML reader of Kubernetes, which takes other words for truth values.
    """
    try:
        files = policy_paths([path])
    except UnreadableInput as error:
        return [_unreadable(path, error)]
    if not files:
        text = "no policy is in this folder: none of its files ends with .yaml or .yml"
        return [PolicyFileResult(file=path, problems=(Problem(path="", line=None, message=text),))]
    found = [_examine_one(file, one_machine=one_machine) for file in files]
    if len(files) > 1 and not any(each.problems for each in found):
        try:
            load_policies(files)  # each is good; are they together?
        except PolicyInvalid as error:
            found.append(PolicyFileResult(file=Path(error.where), problems=error.problems))
    return found


def exit_code(found: Sequence[PolicyFileResult]) -> int:
    """Return 0 where all is valid, 1 where something is not, 3 where it cannot be read."""
    if any(each.unreadable is not None for each in found):
        return UnreadableInput.exit_code
    return int(any(each.problems for each in found))


def policies_body(found: Sequence[PolicyFileResult]) -> dict[str, Any]:
    """Return the stable JSON of a check."""
    body: dict[str, Any] = {
        "valid": not any(each.problems for each in found),
        "problems": [b for each in found for b in _bodies(each.file, each.problems)],
        "not_enforced": [b for each in found for b in _bodies(each.file, each.idle)],
        "permits": [b for each in found for b in _bodies(each.file, each.permits)],
    }
    unread = [each.unreadable for each in found if each.unreadable is not None]
    if len(unread) == len(found):  # nothing at all could be read
        body["error"] = error_body(unread[0])
    return body


def print_policies(found: Sequence[PolicyFileResult]) -> None:
    """Print a line for each thing that is wrong, and which files are valid."""
    for each in found:
        _print(each)


def _examine_one(file: Path, *, one_machine: bool) -> PolicyFileResult:
    try:
        problems = check_policy(file) or (() if one_machine else misread_in(file))
        idle = unenforced_in(file) if one_machine and not problems else ()
        permits = () if problems else permissions_in(file)
    except UnreadableInput as error:
        return _unreadable(file, error)
    return PolicyFileResult(file=file, problems=problems, idle=idle, permits=permits)


def _unreadable(file: Path, error: UnreadableInput) -> PolicyFileResult:
    text = f"{error.message} [{error.code}]"
    problem = Problem(path="", line=getattr(error, "line", None), message=text)
    return PolicyFileResult(file=file, problems=(problem,), unreadable=error)


def _bodies(file: Path, problems: tuple[Problem, ...]) -> list[dict[str, Any]]:
    return [
        {"file": str(file), "path": p.path, "line": p.line, "message": p.message} for p in problems
    ]


def _print(found: PolicyFileResult) -> None:
    out = stdout()
    for problem in found.problems + found.idle + found.permits:
        place = f"{found.file}:{problem.line}" if problem.line else str(found.file)
        path = f"{problem.path}: " if problem.path else ""
        out.print(safe(f"{place}: {path}{problem.message}", limit=1000), soft_wrap=True)
    if not found.problems:
        out.print(safe(f"{found.file}: valid", limit=1000), soft_wrap=True)
