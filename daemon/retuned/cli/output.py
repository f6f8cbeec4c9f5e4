"""What commands print: one JSON object on stdout with ``--json``, else text; messages on stderr."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


def emit_json(body: Any) -> None:  # noqa: ANN401 - any JSON-able object
    """Print one object on stdout and nothing else."""
    json.dump(body, sys.stdout, ensure_ascii=False, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def stdout() -> Console:
    """Console for the answer. Names from traces are data, never markup: pass them as ``Text``."""
    return Console(markup=False, highlight=False, soft_wrap=False)


def stderr() -> Console:
    """Console for messages and progress."""
    return Console(stderr=True, markup=False, highlight=False)
