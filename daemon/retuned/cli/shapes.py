"""What the commands that measure share: which kernel, at which shapes, in which folder."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from retuned import catalog
from retuned.catalog.own import load_definition, load_definitions
from retuned.catalog.own.making import allows
from retuned.contract import Definition, Workload
from retuned.errors import UsageError
from retuned.lab.subject import numpy_dtype, shape_of
from retuned.settings import load_settings

LENGTHS = (1, 64, 256)
"""Lengths of the first variable axis where nobody says which shapes matter."""
_OTHER_LENGTH = 256
"""Length of every other variable axis."""
_MOST_BYTES = 2 * 2**30
"""Most tensors of one launch: the lab keeps several sets of them in memory."""
_YAML = (".yaml", ".yml")
DefinitionFileOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--definition-file",
        help="File or folder of your own definitions, beside those in the settings; may be given "
        "again.",
    ),
]


def learn(config: Path | None, files: Sequence[Path] = ()) -> None:
    """Make the users' own definitions known: those that the settings name, and `files`.

    Raises
    ------
    UnreadableInput
        If one cannot be read or used.
    UsageError
        If the catalog has one of their names, or the settings are wrong.
    """
    settings = load_settings(config)
    catalog.learn(
        load_definitions([*settings.definition_files, *files]),
        unconfined_references=settings.allow_unconfined_references,
    )


def named(text: str) -> str:
    """Return the name of the definition that a name or a YAML file means; a file is learned.

    Raises
    ------
    UnreadableInput
        If it is a file that cannot be read or used.
    UsageError
        If the catalog has the file's name.
    """
    path = Path(text)
    if path.suffix not in _YAML:
        return text
    own = load_definition(path)
    catalog.learn([own])
    return own.name


def shape_of_text(text: str, *, option: str) -> dict[str, int]:
    """Read a shape such as ``T=1,S=512``.

    Raises
    ------
    UsageError
        If it is none.
    """
    pairs = [part.partition("=") for part in text.split(",")]
    names = [name.strip() for name, _, _ in pairs]
    if not all(name and sign and digits.strip().isdecimal() for name, sign, digits in pairs):
        raise UsageError(f"{option} {text}: write a shape like M=64 or T=1,S=512")
    if len(set(names)) != len(names):
        raise UsageError(f"{option} {text}: names an axis twice")
    return {name.strip(): int(digits) for name, _, digits in pairs}


def workloads_for(definition: Definition, shapes: Sequence[dict[str, int]]) -> tuple[Workload, ...]:
    """Return one workload per shape; some usual ones where none is said.

    Raises
    ------
    UsageError
        If a shape names other axes than the variable ones, or one that the definition is not for.
    """
    variable = definition.variable_axes
    if not shapes:
        first, others = variable[:1], dict.fromkeys(variable[1:], _OTHER_LENGTH)
        shapes = [{**dict.fromkeys(first, length), **others} for length in LENGTHS]
    for shape in shapes:
        if set(shape) != set(variable):
            raise UsageError(f"{definition.name} needs the axes {', '.join(variable)}, got {shape}")
        size = _tensor_bytes(definition, shape)
        if size > _MOST_BYTES:
            raise UsageError(f"{shape} is {size / 2**30:.1f} GiB of tensors; the lab takes 2 GiB")
        own = catalog.own_definition(definition.name)
        if own is not None and not allows(own, definition.lengths(shape)):
            raise UsageError(
                f"{definition.name} is only for lengths where {own.where}; not {shape}"
            )
    unique = {tuple(sorted(shape.items())): shape for shape in shapes}
    return tuple(Workload(definition=definition.name, axes=axes) for axes in unique.values())


def _tensor_bytes(definition: Definition, shape: Mapping[str, int]) -> int:
    lengths = definition.lengths(shape)
    tensors = (*definition.inputs.values(), *definition.outputs.values())
    return sum(math.prod(shape_of(each, lengths)) * numpy_dtype(each).itemsize for each in tensors)


def lab_folder() -> Path:
    """Return where compiled kernels of commands are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "retuned" / "lab"
