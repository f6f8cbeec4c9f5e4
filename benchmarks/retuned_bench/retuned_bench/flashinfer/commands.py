"""``retuned kernels import`` and ``export``: FlashInfer-Bench JSON in and out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retuned.cli.kernels_bench import DefinitionFileOption
from retuned.cli.output import JsonFlag
from retuned.cli.session import ConfigOption

ForceFlag = Annotated[
    bool, typer.Option("--force", help="Replace files that are there already, each at once.")
]


def import_file(
    file: Annotated[
        Path,
        typer.Argument(
            help="A definition, solution or trace of FlashInfer-Bench (.json), or traces (.jsonl)."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Write what can be used here: for `retuned validate`, one JSON a file."),
    ] = None,
    force: ForceFlag = False,
    json: JsonFlag = False,
) -> None:
    """Read FlashInfer-Bench JSON and say what of it can be used here; nothing in it is run."""
    from retuned_bench.flashinfer.exchange import import_documents  # `retuned --help` stays cheap

    import_documents(file, out=out, force=force, json=json)


def export(
    name: Annotated[
        str, typer.Argument(help="A definition such as rmsnorm_h1024, or a YAML file of your own.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder of a data set; without it, all on stdout.")
    ] = None,
    solution: Annotated[
        list[Path] | None,
        typer.Option(help="A variant as JSON to export with it; else the incumbents."),
    ] = None,
    config: ConfigOption = None,
    definition_file: DefinitionFileOption = None,
    force: ForceFlag = False,
    json: JsonFlag = False,
) -> None:
    """Write a definition and its incumbents as FlashInfer-Bench JSON."""
    from retuned_bench.flashinfer.exchange import export_kernel  # `retuned --help` stays cheap

    export_kernel(
        name,
        out=out,
        solution=solution or (),
        config=config,
        definition_files=definition_file or (),
        force=force,
        json=json,
    )
