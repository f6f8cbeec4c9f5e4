"""``retuned dataset export``: what experiments showed, as data for training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retuned.cli.kernels_bench import DefinitionFileOption
from retuned.cli.output import JsonFlag
from retuned.cli.session import ConfigOption, StateOption
from retuned_bench.dataset.options import SEED, UNKNOWN_LICENSE, Format

app = typer.Typer(no_args_is_help=True, help="Export training data from the experiments.")


@app.callback()
def dataset() -> None:
    """Export training data from the experiments."""


@app.command()
def export(
    out: Annotated[Path, typer.Option(help="Folder to make; it must not be there yet.")],
    format: Annotated[
        Format, typer.Option(help="Questions with winners, or all attempts with rewards.")
    ] = Format.SFT,
    license: Annotated[
        str,
        typer.Option(help="SPDX expression of sources outside the catalog; it is not verified."),
    ] = UNKNOWN_LICENSE,
    seed: Annotated[str, typer.Option(help="Of the split between training and test.")] = SEED,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    definition_file: DefinitionFileOption = None,
    json: JsonFlag = False,
) -> None:
    """Write what experiments showed as JSON lines, by split, with a manifest.

    Exit codes: 1 nothing to export, 2 wrong options or OUT cannot be written, 3 the state cannot be
    read, 5 another process locks it for too long. No files are left behind then.
    """
    from retuned_bench.dataset.export import export_dataset  # `retuned --help` stays cheap

    export_dataset(
        out,
        format=format,
        license=license,
        seed=seed,
        config=config,
        state_dir=state_dir,
        definition_files=definition_file or (),
        json=json,
    )
