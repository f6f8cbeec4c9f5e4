"""Options that many commands have, and how answers are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from retuned.text import emit_json, emit_yaml, safe, stdout


class OutputFormat(StrEnum):
    """How an answer is written."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


NamespaceOption = Annotated[
    str, typer.Option("--namespace", "-n", help="Namespace; else the context's.")
]
EverywhereOption = Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.")]
ContextOption = Annotated[str, typer.Option(help="Context of the kubeconfig.")]
KubeconfigOption = Annotated[
    Path | None, typer.Option(help="File; by default KUBECONFIG, then ~/.kube/config.")
]
FormOption = Annotated[
    OutputFormat,
    typer.Option("--output", "-o", help="How the answer is written.", show_default=False),
]
ProposalArgument = Annotated[
    str, typer.Argument(help="Name, NAMESPACE/NAME, or the beginning of a name.")
]
CommentOption = Annotated[
    str, typer.Option("--comment", "--reason", "-m", help="Why, for the record.")
]


def print_answer(
    form: OutputFormat,
    body: Mapping[str, Any],
    *,
    names: Sequence[str],
    text: Callable[[], None],
) -> None:
    """Print an answer.

    Parameters
    ----------
    form
        How.
    body
        As JSON data.
    names
        What it is about, one a line, as kubectl writes names.
    text
        Prints it for people.
    """
    if form is OutputFormat.JSON:
        emit_json(body)
    elif form is OutputFormat.YAML:
        emit_yaml(body)
    elif form is OutputFormat.NAME:
        for name in names:
            stdout().print(safe(name, limit=600), soft_wrap=True)
    else:
        text()
