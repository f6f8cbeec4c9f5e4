"""All commands of ``retuned``: one module per group."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Annotated

import typer

from retuned.cli import (
    analyze,
    attach,
    audit,
    demo,
    doctor,
    evidence,
    kernels,
    review,
    run,
    sidecar,
    status,
    stops,
    survey,
    tuned,
    validate,
)
from retuned.cli import analyze as rocprof
from retuned.cli import status as report
from retuned.cli.output import JSON_FLAG, say_error, stdout
from retuned.cli.plugins import add_commands
from retuned.errors import RetunedError

app = typer.Typer(
    name="retuned",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        found = importlib.metadata.version("retuned")
    except importlib.metadata.PackageNotFoundError:  # run from a folder, never installed
        found = "unknown"
    stdout().print(f"retuned {found}")
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
    """Keep the GPU kernels of a running inference server tuned to the traffic it really sees."""


app.command("analyze")(analyze.analyze)
app.command("diff")(analyze.diff)
app.command("survey")(survey.survey)
app.command("demo")(demo.demo)
app.command("run")(run.run)


@app.command("sidecar", help=sidecar.sidecar.__doc__)
def _sidecar(
    config: Annotated[Path | None, typer.Option(help=sidecar.CONFIG_HELP)] = None,
) -> None:
    sidecar.sidecar(config)


app.command("validate")(validate.validate)
app.command("attach")(attach.attach)
app.command("detach")(attach.detach)
app.command("rocprof-command")(rocprof.command)
app.command("audit")(audit.audit)
for command in (
    review.proposals,
    review.show,
    review.approve,
    review.reject,
    review.abort,
    review.rollback,
    review.history,
    stops.freeze,
    stops.thaw,
    report.report,
    stops.rearm,
    status.status,
    doctor.doctor,
):
    app.command(command.__name__)(command)
app.add_typer(kernels.app, name="kernels")
app.add_typer(evidence.app, name="evidence")
app.add_typer(validate.policy_app, name="policy")
app.add_typer(tuned.app, name="tuned")
add_commands(app, kernels=kernels.app)


def run_command_line() -> None:
    """Run one command; errors become one line, or with ``--json`` one object, and an exit code."""
    try:
        app()
    except RetunedError as error:
        sys.exit(say_error(error, as_json=JSON_FLAG in sys.argv[1:]))
