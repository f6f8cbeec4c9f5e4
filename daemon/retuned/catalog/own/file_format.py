"""The YAML file of a definition, as people write it; `loading` turns it into a record."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from retuned.catalog.own.records import InputRecipe, Params, Text
from retuned.contract import AxisConst, AxisVar, DType, Language, Name, Record, TensorSpec

FILE_NAME = r"^[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}$"
"""Files lie beside the definition: a name without folders."""
FileName = Annotated[str, Field(pattern=FILE_NAME)]


def _axis(value: object) -> object:
    """Read ``H: 1024`` as a constant axis and ``M: rows in the step`` as a variable one."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return {"type": "const", "value": value}
    if value is None or isinstance(value, str):
        return {"type": "var", "description": value or ""}
    return value


def _made(value: object) -> object:
    """Read ``made: normal`` as ``made: {like: normal}``."""
    return {"like": value} if isinstance(value, str) else value


def _one_or_more(value: object) -> object:
    """Read a single value as a list of one."""
    return value if isinstance(value, (list, tuple, dict)) or value is None else [value]


def _text(value: object) -> object:
    """Read a plain number as an expression, and ``true`` as one that always holds."""
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
    """How its numbers are made: a name or a mapping."""


class TracesField(Record):
    """How a trace shows the kernel, where that is not as the inputs are."""

    op: str | None = None
    """Operator; ``retuned::<op_type>`` where not said."""
    shapes: tuple[tuple[Name, ...], ...] | None = None
    """Axes of each tensor that the trace shows; those of the inputs where not said."""
    dtypes: tuple[DType, ...] | None = None
    """Element type of each; those of the inputs where not said."""


class VariantField(Record):
    """One source structure."""

    structure: Name
    """Which algorithm it is."""
    language: Language
    """Language of the sources."""
    files: Annotated[tuple[FileName, ...], BeforeValidator(_one_or_more)] = ()
    """Source files beside the definition; the first is compiled, the others are headers."""
    source: str | None = None
    """Or the source itself."""
    entry: Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,127}$")]
    """Symbol to launch."""
    params: dict[Name, Choices] = Field(default_factory=dict, max_length=16)
    """Choices of each compile-time parameter."""
    incumbent: Params | None = None
    """The point that runs in production today."""
    starts: tuple[Params, ...] = Field(default=(), max_length=16)
    """Points worth trying first."""
    valid: ExpressionText = ""
    """Which points can be built, over parameters and constant axes."""
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
            raise ValueError("say either `files` (beside this file) or `source` (the text itself)")
        return self


class DefinitionFile(Record):
    """The whole file."""

    name: Name
    """Unique, for example ``scale_bias_h1024``; slots in a server are called the same."""
    op_type: Name
    """Family, for example ``scale_bias``."""
    description: str = Field(default="", max_length=1000)
    """One sentence for people."""
    axes: dict[Name, Axis] = Field(min_length=1, max_length=32)
    """Axes: a number is a constant length, a text says what a variable one counts."""
    inputs: dict[Name, InputField] = Field(min_length=1, max_length=32)
    """Inputs in launch order."""
    outputs: dict[Name, TensorSpec] = Field(min_length=1, max_length=16)
    """Outputs in launch order."""
    reference: str | None = None
    """Python with ``def run(...)`` over NumPy arrays in float64."""
    reference_file: FileName | None = None
    """Or the file beside this one that holds it."""
    families: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Families of inputs; the usual ones where not said."""
    where: ExpressionText = ""
    """Which lengths are allowed, such as ``T <= S``."""
    flops: ExpressionText = "0"
    """Floating-point operations of one launch, such as ``2 * M * N * K``."""
    traces: TracesField = TracesField()
    """How a trace shows it."""
    tags: tuple[str, ...] = ()
    """Free labels."""
    variants: tuple[VariantField, ...] = Field(min_length=1, max_length=32)
    """What may run; one of each language is the incumbent."""

    @model_validator(mode="after")
    def _one_place_for_reference(self) -> DefinitionFile:
        if (self.reference is None) == (self.reference_file is None):
            raise ValueError("say either `reference` (the text) or `reference_file` (its file)")
        return self


def schema() -> dict[str, Any]:
    """Return the JSON schema, for names that were perhaps meant."""
    return DefinitionFile.model_json_schema()
