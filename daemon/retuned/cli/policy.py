"""``retuned policy check``: may this policy be used, what is wrong, what has no effect here?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retuned.cli.output import JsonFlag, emit_json
from retuned.cli.render import examine, exit_code, policies_body, print_policies

app = typer.Typer(help="Gate policies.", no_args_is_help=True)


@app.callback()
def policy() -> None:
    """Gate policies."""


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="Policy in YAML, or a folder of them.")],
    json: JsonFlag = False,
) -> None:
    """Check a policy, or all of a folder, and say what of it one machine does not enforce.

    Exit 0 valid, 1 invalid, 3 unreadable.
    """
    found = examine(file, one_machine=True)
    if json:
        emit_json(policies_body(found))
    else:
        print_policies(found)
    raise typer.Exit(exit_code(found))
