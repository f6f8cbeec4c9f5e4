"""Definition file in YAML, and its conversion to a record.

Every problem is reported with its line and a correction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from retuned.catalog.user.inputs import ORDINARY_FAMILIES, rule_of
from retuned.catalog.user.records import (
    InputRecipe,
    OwnDefinition,
    OwnTraces,
    OwnVariant,
    Params,
    Text,
)
from retuned.catalog.user.validation import Fault, faults
from retuned.contract import (
    AxisConst,
    AxisVar,
    Definition,
    DType,
    Language,
    Name,
    Record,
    SourceFile,
    TensorSpec,
)
from retuned.errors import Problem, UnreadableInput
from retuned.strict_yaml import Tree, parse, problems_of, read_text

FILE_NAME = r"^[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}$"
"""Files are in the definition's folder: a name without folders."""
FileName = Annotated[str, Field(pattern=FILE_NAME)]


def _axis(value: object) -> object:
    """Parse ``H: 1024`` as a constant axis and ``M: rows in the step`` as a variable one."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return {"type": "const", "value": value}
    if value is None or isinstance(value, str):
        return {"type": "var", "description": value or ""}
    return value


def _made(value: object) -> object:
    """Parse ``made: normal`` as ``made: {like: normal}``."""
    return {"like": value} if isinstance(value, str) else value


def _one_or_more(value: object) -> object:
    return value if isinstance(value, (list, tuple, dict)) or value is None else [value]


def _text(value: object) -> object:
    """Parse a plain number as an expression, and ``true`` as one that always holds."""
    if isinstance(value, bool):
        return str(int(value))
    return str(value) if isinstance(value, int) else value


Axis = Annotated[
    Annotated[AxisConst | AxisVar, Field(discriminator="type")], BeforeValidator(_axis)
]
Choices = Annotated[
    tuple[int | str, ...], Field(min_length=1, max_length=256), BeforeValidator(_one_or_more)
]
ExpressionText = Annotated[Text, BeforeValidator(_text)]


class InputField(TensorSpec):
    """One input."""

    made: Annotated[InputRecipe, BeforeValidator(_made)] = InputRecipe()
    """Distribution of its numbers: a name or a mapping."""


class TracesField(Record):
    """Appearance of the kernel in a trace, if it differs from the inputs."""

    op: str | None = None
    """Operator; default ``retuned::<op_type>``."""
    shapes: tuple[tuple[Name, ...], ...] | None = None
    """Axes of each tensor that the trace shows; default those of the inputs."""
    dtypes: tuple[DType, ...] | None = None
    """Element type of each; default those of the inputs."""


class VariantField(Record):
    """One source structure."""

    structure: Name
    """Name of the algorithm."""
    language: Language
    """Language of the sources."""
    files: Annotated[tuple[FileName, ...], BeforeValidator(_one_or_more)] = ()
    """Source files beside the definition; the first is compiled, the others are headers."""
    source: str | None = None
    """The source itself, instead of files."""
    entry: Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,127}$")]
    """Symbol to launch."""
    params: dict[Name, Choices] = Field(default_factory=dict, max_length=16)
    """Choices of each compile-time parameter."""
    incumbent: Params | None = None
    """The point in production today."""
    starts: tuple[Params, ...] = Field(default=(), max_length=16)
    """Points worth trying first."""
    valid: ExpressionText = ""
    """Condition of points that can be built, over parameters and constant axes."""
    grid: Annotated[
        tuple[ExpressionText, ...], Field(max_length=3), BeforeValidator(_one_or_more)
    ] = ()
    """Programs per dimension of a GPU launch."""
    layouts: dict[
        Name, Annotated[str, Field(pattern=r"^(as-is|transposed|panels-[0-9]{1,4})$")]
    ] = Field(default_factory=dict)
    """Layout of weights."""
    scratch_bytes: ExpressionText = "0"
    """Workspace."""

    @model_validator(mode="after")
    def _one_place_for_source(self) -> VariantField:
        if bool(self.files) == (self.source is not None):
            raise ValueError("set either `files` (beside this file) or `source` (the text itself)")
        return self


class DefinitionFile(Record):
    """The whole file."""

    name: Name
    """Unique, for example ``scale_bias_h1024``; slots in a server have the same name."""
    op_type: Name
    """Family, for example ``scale_bias``."""
    description: str = Field(default="", max_length=1000)
    """One sentence for people."""
    axes: dict[Name, Axis] = Field(min_length=1, max_length=32)
    """Axes: a number is a constant length, a text describes a variable one."""
    inputs: dict[Name, InputField] = Field(min_length=1, max_length=32)
    """Inputs in launch order."""
    outputs: dict[Name, TensorSpec] = Field(min_length=1, max_length=16)
    """Outputs in launch order."""
    reference: str | None = None
    """Python with ``def run(...)`` over NumPy arrays in float64."""
    reference_file: FileName | None = None
    """A file in the same folder with the reference, instead of `reference`."""
    families: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Families of inputs; default the usual ones."""
    where: ExpressionText = ""
    """Allowed lengths, such as ``T <= S``."""
    flops: ExpressionText = "0"
    """Floating-point operations of one launch, such as ``2 * M * N * K``."""
    traces: TracesField = TracesField()
    """Appearance of the kernel in a trace."""
    tags: tuple[str, ...] = ()
    """Free labels."""
    variants: tuple[VariantField, ...] = Field(min_length=1, max_length=32)
    """Variants; one of each language is the incumbent."""

    @model_validator(mode="after")
    def _one_place_for_reference(self) -> DefinitionFile:
        if (self.reference is None) == (self.reference_file is None):
            raise ValueError("set either `reference` (the text) or `reference_file` (its file)")
        return self


def schema() -> dict[str, Any]:
    return DefinitionFile.model_json_schema()


_MOST_SHOWN = 8
_INLINE = {Language.TRITON: "kernel.py", Language.CPU_CPP: "kernel.cpp"}
"""File name of an inline source, by language; `kernel.cu` otherwise."""


class DefinitionInvalid(UnreadableInput):
    """A definition file that cannot be used, with all its problems in the order of the file."""

    def __init__(self, path: Path, *, problems: tuple[Problem, ...]) -> None:
        shown = [_sentence(problem) for problem in problems[:_MOST_SHOWN]]
        if len(problems) > _MOST_SHOWN:
            shown.append(f"and {len(problems) - _MOST_SHOWN} more")
        super().__init__("definition-invalid", where=str(path), message="; ".join(shown))
        self.problems = problems


def load_definition(path: Path) -> OwnDefinition:
    """Read a definition file and the source files beside it, without executing them.

    Raises
    ------
    UnreadableInput
        If a file cannot be read, or is not YAML.
    DefinitionInvalid
        If it is invalid; with the line of each problem.
    """
    tree = parse(read_text(path), path=path)
    try:
        written = DefinitionFile.model_validate(tree.data)
        own = _assemble(written, path)
    except ValidationError as error:
        found = problems_of(error, schema=schema(), tree=tree)
        raise DefinitionInvalid(path, problems=_placed(found, tree)) from None
    except _Unusable as error:
        problem = Problem(path=error.place, line=None, message=error.message)
        raise DefinitionInvalid(path, problems=_placed((problem,), tree)) from error
    wrong = tuple(_problems(faults(own), written))
    if wrong:
        raise DefinitionInvalid(path, problems=_placed(wrong, tree))
    return own


class _Unusable(Exception):
    """A problem that prevents a record, and its place."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(message)
        self.place = place
        self.message = message


def _assemble(written: DefinitionFile, path: Path) -> OwnDefinition:
    _check_tensors(written)
    specs = {
        name: TensorSpec(
            shape=each.shape,
            dtype=each.dtype,
            constant=each.constant,
            values=each.values or rule_of(each.made),
        )
        for name, each in written.inputs.items()
    }
    reference = written.reference
    if reference is None:
        assert written.reference_file is not None, "one of the two is set"
        reference = _beside(path, written.reference_file, place="reference_file")
    traces = written.traces
    shapes = tuple(spec.shape for spec in specs.values())
    dtypes = tuple(spec.dtype for spec in specs.values())
    return OwnDefinition(
        definition=Definition(
            name=written.name,
            op_type=written.op_type,
            description=written.description,
            axes=written.axes,
            inputs=specs,
            outputs=written.outputs,
            reference=reference,
            tags=written.tags,
        ),
        made={name: each.made for name, each in written.inputs.items()},
        families=written.families or ORDINARY_FAMILIES,
        where=written.where,
        flops=written.flops,
        traces=OwnTraces(
            op=traces.op or f"retuned::{written.op_type}",
            shapes=shapes if traces.shapes is None else traces.shapes,
            dtypes=tuple(map(str, dtypes if traces.dtypes is None else traces.dtypes)),
        ),
        variants=tuple(
            _variant(each, path, place=f"variants.{number}")
            for number, each in enumerate(written.variants)
        ),
    )


def _check_tensors(written: DefinitionFile) -> None:
    for side in ("inputs", "outputs"):
        for name, spec in getattr(written, side).items():
            unknown = [axis for axis in spec.shape if axis not in written.axes]
            if unknown:
                known = ", ".join(written.axes)
                message = f"names the axis '{unknown[0]}'; `axes` has {known}"
                raise _Unusable(f"{side}.{name}.shape", message)
    for name in written.outputs:
        if name in written.inputs:
            message = f"'{name}' is an input too; a kernel does not write over its inputs"
            raise _Unusable(f"outputs.{name}", message)


def _variant(written: VariantField, path: Path, *, place: str) -> OwnVariant:
    sources: tuple[SourceFile, ...]
    if written.source is not None:
        name = _INLINE.get(written.language, "kernel.cu")
        sources = (SourceFile(path=name, content=written.source),)
    else:
        sources = tuple(
            SourceFile(path=name, content=_beside(path, name, place=f"{place}.files"))
            for name in written.files
        )
    kept = written.model_dump(exclude={"files", "source"})
    return OwnVariant.model_validate({**kept, "sources": sources})


def _beside(path: Path, name: str, *, place: str) -> str:
    beside = path.parent / name
    try:
        return read_text(beside, max_bytes=1_000_000)
    except UnreadableInput as error:
        raise _Unusable(place, f"{beside}: {error.message}") from error


def _problems(found: Iterator[Fault], written: DefinitionFile) -> Iterator[Problem]:
    reference = "reference" if written.reference is not None else "reference_file"
    for fault in found:
        place = fault.place
        if place == "definition.reference":
            place = reference
        place = re.sub(r"^made\.(.*)$", r"inputs.\1.made", place)
        place = place.removeprefix("definition.")
        yield Problem(path=place, line=None, message=fault.message)


def _placed(problems: tuple[Problem, ...], tree: Tree) -> tuple[Problem, ...]:
    lines = {".".join(map(str, place)): line for place, line in tree.lines.items()}
    placed = []
    for problem in problems:
        path, line = problem.path, problem.line
        while line is None and path:
            line = lines.get(path)
            path = path.rpartition(".")[0]
        placed.append(Problem(path=problem.path, line=line, message=problem.message))
    return tuple(sorted(placed, key=lambda each: (each.line is None, each.line or 0, each.path)))


def _sentence(problem: Problem) -> str:
    line = f"line {problem.line}: " if problem.line else ""
    place = f"{problem.path}: " if problem.path else ""
    return f"{line}{place}{problem.message}"


def definition_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the definition files of some paths: a file itself, of a folder its YAML files.

    Raises
    ------
    UnreadableInput
        If a folder cannot be read.
    """
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        try:
            inside = sorted(path.iterdir())
        except OSError as error:
            message = f"cannot be read ({error.strerror})"
            raise UnreadableInput("cannot-open", where=str(path), message=message) from error
        yield from (each for each in inside if each.suffix in (".yaml", ".yml"))


def load_definitions(paths: Iterable[Path]) -> tuple[OwnDefinition, ...]:
    """Read every definition file of some paths; the first invalid one raises.

    Raises
    ------
    UnreadableInput
        As `load_definition` and `definition_files`.
    """
    return tuple(load_definition(path) for path in definition_files(paths))
