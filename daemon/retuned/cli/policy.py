"""``retuned policy check``: may this policy be used, what is wrong, what has no effect here?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from retuned.adapters.policy_files import (
    check_policy,
    load_policies,
    permissions_in,
    policy_paths,
    unenforced_in,
)
from retuned.cli.output import JsonFlag, emit_json, error_body, safe, stdout
from retuned.errors import PolicyInvalid, Problem, UnreadableInput

app = typer.Typer(help="Gate policies.", no_args_is_help=True)


@app.callback()
def policy() -> None:
    """Gate policies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What was found in one file."""

    file: Path
    problems: tuple[Problem, ...] = ()
    idle: tuple[Problem, ...] = ()
    permits: tuple[Problem, ...] = ()
    unreadable: UnreadableInput | None = None


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="Policy in YAML, or a folder of them.")],
    json: JsonFlag = False,
) -> None:
    """Check a policy, or all of a folder, and say what of it one machine does not enforce.

    Exit 0 valid, 1 invalid, 3 unreadable.
    """
    found = _examine(file)
    unread = [each.unreadable for each in found if each.unreadable is not None]
    valid = not any(each.problems for each in found)
    if json:
        body: dict[str, Any] = {
            "valid": valid,
            "problems": [b for each in found for b in _bodies(each.file, each.problems)],
            "not_enforced": [b for each in found for b in _bodies(each.file, each.idle)],
            "permits": [b for each in found for b in _bodies(each.file, each.permits)],
        }
        if len(unread) == len(found):  # nothing at all could be read
            body["error"] = error_body(unread[0])
        emit_json(body)
    else:
        for each in found:
            _print(each)
    raise typer.Exit(UnreadableInput.exit_code if unread else int(not valid))


def _examine(path: Path) -> list[_Found]:
    """Check a file, or the files of a folder, as the setting ``policy_files`` reads them."""
    try:
        files = policy_paths([path])
    except UnreadableInput as error:
        return [_unreadable(path, error)]
    if not files:
        text = "no policy is in this folder: none of its files ends with .yaml or .yml"
        return [_Found(file=path, problems=(Problem(path="", line=None, message=text),))]
    found = [_examine_one(file) for file in files]
    if len(files) > 1 and not any(each.problems for each in found):
        try:
            load_policies(files)  # each is good; are they together?
        except PolicyInvalid as error:
            found.append(_Found(file=Path(error.where), problems=error.problems))
    return found


def _examine_one(file: Path) -> _Found:
    try:
        problems = check_policy(file)
        idle = () if problems else unenforced_in(file)
        permits = () if problems else permissions_in(file)
    except UnreadableInput as error:
        return _unreadable(file, error)
    return _Found(file=file, problems=problems, idle=idle, permits=permits)


def _unreadable(file: Path, error: UnreadableInput) -> _Found:
    text = f"{error.message} [{error.code}]"
    problem = Problem(path="", line=getattr(error, "line", None), message=text)
    return _Found(file=file, problems=(problem,), unreadable=error)


def _bodies(file: Path, problems: tuple[Problem, ...]) -> list[dict[str, Any]]:
    return [
        {"file": str(file), "path": p.path, "line": p.line, "message": p.message} for p in problems
    ]


def _print(found: _Found) -> None:
    out = stdout()
    for problem in found.problems + found.idle + found.permits:
        place = f"{found.file}:{problem.line}" if problem.line else str(found.file)
        path = f"{problem.path}: " if problem.path else ""
        out.print(safe(f"{place}: {path}{problem.message}", limit=1000), soft_wrap=True)
    if not found.problems:
        out.print(safe(f"{found.file}: valid", limit=1000), soft_wrap=True)
