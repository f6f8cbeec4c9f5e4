"""``retuned policy check``: may this policy be used, what is wrong, what has no effect here?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from retuned.adapters.policy_files import check_policy, unenforced_in
from retuned.cli.output import JsonFlag, emit_json, safe, stdout
from retuned.errors import Problem, UnreadableInput

app = typer.Typer(help="Gate policies.", no_args_is_help=True)


@app.callback()
def policy() -> None:
    """Gate policies."""


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="Policy in YAML.")], json: JsonFlag = False
) -> None:
    """Check a policy, and say what of it one machine does not enforce.

    Exit 0 valid, 1 invalid, 3 unreadable.
    """
    code = 0
    idle: tuple[Problem, ...] = ()
    try:
        problems = check_policy(file)
        code = 1 if problems else 0
        idle = () if problems else unenforced_in(file)
    except UnreadableInput as error:
        text = f"{error.message} [{error.code}]"
        problems = (Problem(path="", line=getattr(error, "line", None), message=text),)
        code = error.exit_code
    if json:
        emit_json(
            {
                "valid": not problems,
                "problems": _bodies(problems),
                "not_enforced": _bodies(idle),
            }
        )
    else:
        _print(file, problems, idle)
    raise typer.Exit(code)


def _bodies(problems: tuple[Problem, ...]) -> list[dict[str, Any]]:
    return [{"path": p.path, "line": p.line, "message": p.message} for p in problems]


def _print(file: Path, problems: tuple[Problem, ...], idle: tuple[Problem, ...]) -> None:
    out = stdout()
    for problem in problems + idle:
        place = f"{file}:{problem.line}" if problem.line else str(file)
        path = f"{problem.path}: " if problem.path else ""
        out.print(safe(f"{place}: {path}{problem.message}", limit=1000), soft_wrap=True)
    if not problems:
        out.print(safe(f"{file}: valid", limit=1000), soft_wrap=True)
