"""``retuned policy check``: may this policy be used, and if not, what is wrong on which line?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retuned.adapters.policy_files import check_policy
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
    """Check a policy; exit 0 valid, 1 invalid, 3 unreadable."""
    code = 0
    try:
        problems = check_policy(file)
        code = 1 if problems else 0
    except UnreadableInput as error:
        text = f"{error.message} [{error.code}]"
        problems = (Problem(path="", line=getattr(error, "line", None), message=text),)
        code = error.exit_code
    if json:
        emit_json(
            {
                "valid": not problems,
                "problems": [
                    {"path": p.path, "line": p.line, "message": p.message} for p in problems
                ],
            }
        )
    else:
        _print(file, problems)
    raise typer.Exit(code)


def _print(file: Path, problems: tuple[Problem, ...]) -> None:
    out = stdout()
    for problem in problems:
        place = f"{file}:{problem.line}" if problem.line else str(file)
        path = f"{problem.path}: " if problem.path else ""
        out.print(safe(f"{place}: {path}{problem.message}", limit=1000), soft_wrap=True)
    if not problems:
        out.print(f"{file}: valid", soft_wrap=True)
