"""The ``retuned`` command: one module per group; errors become one line and an exit code."""

from __future__ import annotations

import sys

import typer

from retuned.cli import (
    analyze,
    demo,
    doctor,
    evidence,
    freezes,
    kernels,
    policy,
    review,
    run,
    validate,
)
from retuned.cli.output import JSON_FLAG, say, say_error
from retuned.errors import RetunedError

app = typer.Typer(
    name="retuned",
    help="Keep the GPU kernels of a running inference server tuned to the traffic it really sees.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command("analyze")(analyze.analyze)
app.command("diff")(analyze.diff)
app.command("demo")(demo.demo)
app.command("run")(run.run)
app.command("validate")(validate.validate)
for command in (
    review.proposals,
    review.show,
    review.approve,
    review.reject,
    review.abort,
    review.rollback,
    review.history,
    freezes.freeze,
    freezes.thaw,
    doctor.doctor,
):
    app.command(command.__name__)(command)
app.add_typer(kernels.app, name="kernels")
app.add_typer(evidence.app, name="evidence")
app.add_typer(policy.app, name="policy")


def main() -> None:
    """Run the command line; `retuned.errors` lists the exit codes.

    With ``--json`` an error is one object on stdout too: ``{"error": {code, where, message}}``.
    """
    try:
        app()
    except RetunedError as error:
        sys.exit(say_error(error, as_json=JSON_FLAG in sys.argv[1:]))
    except KeyboardInterrupt:
        say("retuned: interrupted")
        sys.exit(130)
