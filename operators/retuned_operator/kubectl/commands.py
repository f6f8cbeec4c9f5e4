"""All commands of ``kubectl retuned``."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import typer

from retuned.errors import RetunedError
from retuned.text import say_error, stdout
from retuned_operator.kubectl import freezes, inject, lessons, policy, report, review, status

app = typer.Typer(
    name="kubectl-retuned",
    no_args_is_help=True,
    add_completion=False,  # kubectl asks `kubectl_complete-retuned`
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_FORMS = ("-o", "--output")


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        found = importlib.metadata.version("retuned")
    except importlib.metadata.PackageNotFoundError:  # run from a folder, never installed
        found = "unknown"
    stdout().print(f"kubectl-retuned {found}")
    raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """See and decide what Retuned proposes in a cluster, as yourself."""


for command in (
    status.status,
    review.proposals,
    review.show,
    review.approve,
    review.reject,
    review.abort,
    review.rollback,
    report.report,
    freezes.freeze,
    freezes.thaw,
    lessons.rearm,
    inject.inject,
):
    app.command(command.__name__)(command)
app.add_typer(policy.app, name="policy")


def wants_json(words: Sequence[str]) -> bool:
    """Whether the answer is to be one JSON object, as far as the arguments show.

    Examples
    --------
    >>> wants_json(["show", "a", "-o", "json"]), wants_json(["show", "-ojson"]), wants_json(["-o"])
    (True, True, False)
    """
    pairs = pairwise(words)
    return any(option in _FORMS and value == "json" for option, value in pairs) or any(
        word in ("-ojson", "--output=json", "-o=json") for word in words
    )


def run_command_line() -> None:
    """Run one command; errors become one line, or with ``-o json`` one object, and an exit code."""
    try:
        app()
    except RetunedError as error:
        words = sys.argv[1:]
        sys.exit(say_error(error, as_json=wants_json(words), program="kubectl retuned"))
