"""``kubectl retuned policy check``: may this policy be used, and what does it permit?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retuned.cli.render import examine, exit_code, policies_body, print_policies
from retuned_operator.kubectl.options import FormOption, OutputFormat, print_answer

app = typer.Typer(help="Gate policies.", no_args_is_help=True)


@app.callback()
def policy() -> None:
    """Gate policies."""


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="Policy in YAML, or a folder of them.")],
    output: FormOption = OutputFormat.TABLE,
) -> None:
    """Check a policy, or all of a folder, as the operator will read it. Asks no cluster.

    Exit 0 valid, 1 invalid, 3 unreadable.
    """
    found = examine(file, one_machine=False)
    print_answer(
        output,
        policies_body(found),
        names=[str(each.file) for each in found if not each.problems],
        text=lambda: print_policies(found),
    )
    raise typer.Exit(exit_code(found))
