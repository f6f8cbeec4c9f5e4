"""Commands that the entry point `retuned.commands` adds to `retuned`."""

from __future__ import annotations

import typer

from retuned_bench.dataset import commands as dataset
from retuned_bench.flashinfer import commands as flashinfer
from retuned_bench.kernelbench import commands as kernelbench


def add_commands(app: typer.Typer) -> None:
    """Add ``bench`` and ``dataset``, and ``import`` and ``export`` to ``kernels``."""
    app.add_typer(dataset.app, name="dataset")
    app.add_typer(kernelbench.app, name="bench")
    (kernels,) = (each.typer_instance for each in app.registered_groups if each.name == "kernels")
    assert kernels is not None, "typer keeps the app of a group"
    kernels.command("import")(flashinfer.import_file)
    kernels.command("export")(flashinfer.export)
