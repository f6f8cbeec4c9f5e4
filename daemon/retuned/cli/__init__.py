"""The ``retuned`` command: one module per group; errors become one line and an exit code."""

from __future__ import annotations

import sys

import typer

from retuned.cli import analyze, demo, doctor, freezes, policy, review, run, validate
from retuned.cli.output import stderr
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
app.add_typer(policy.app, name="policy")


def main() -> None:
    """Run the command line; exit codes are those of DESIGN section 11."""
    try:
        app()
    except RetunedError as error:
        stderr().print(f"retuned: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        stderr().print("retuned: interrupted")
        sys.exit(130)
