"""Definitions in FlashInfer-Bench JSON.

Weights (`constant`) travel in one tag, ``retuned:{...}``. Our reference computes over NumPy arrays
and returns a dict; theirs gets PyTorch tensors and returns tensors. So an exported reference ends
with a few lines that call ours, and an imported one loses those lines again.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retuned.contract import AxisConst, AxisVar, Definition, DType, TensorSpec
from retuned.errors import UnreadableInput
from retuned.lab.reference.check import ReferenceRefused, check_reference
from retuned_bench.flashinfer.schema import (
    NAMESPACE,
    NotExportable,
    parse_object,
    unreadable,
    validated,
)

_TAG = f"{NAMESPACE}:"
_MARK = "# --- from here on: made by Retuned, so that PyTorch tensors may come and go ---"
_THEIRS = frozenset(
    {
        "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1", "int64",
        "int32", "int16", "int8", "bool",
    }
)  # fmt: skip
"""Element types that their schema knows."""
_SPELT = {"float8_e4m3": "float8_e4m3fn"}
"""Element types as earlier versions spelt them."""
Text = Annotated[str, Field(min_length=1, max_length=1000)]


class _Axis(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    type: str
    value: int | None = None
    description: str | None = None


class _Tensor(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    shape: list[Text] | None
    dtype: str
    description: str | None = None


class _Definition(BaseModel):
    """Their record; fields that are not named here are of newer versions, and left out."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: Text
    op_type: Text
    axes: dict[Text, _Axis] = Field(min_length=1, max_length=64)
    inputs: dict[Text, _Tensor] = Field(min_length=1, max_length=64)
    outputs: dict[Text, _Tensor] = Field(min_length=1, max_length=64)
    reference: Annotated[str, Field(min_length=1, max_length=1_000_000)]
    tags: Annotated[list[str], Field(max_length=256)] | None = None
    description: str | None = None
    constraints: Annotated[list[str], Field(max_length=256)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedDefinition:
    """A definition, and what of it can be used here."""

    definition: Definition
    """The record; its reference is text, and nothing of it was run."""
    reference_problem: str
    """Why the reference cannot be an oracle here; empty where it can."""
    dropped: tuple[str, ...] = ()
    """What our record has no field for."""


def export_definition(definition: Definition) -> dict[str, Any]:
    """Return a definition as their JSON.

    Raises
    ------
    NotExportable
        If an element type or a name is one that their schema or Python has not, or an output
        updates an input, which their schema cannot say.
    """
    if definition.updated:
        told = ", ".join(definition.updated.values())
        raise NotExportable(f"{definition.name} changes {told} in place, which the format lacks")
    for name, spec in (*definition.inputs.items(), *definition.outputs.items()):
        if not name.isidentifier() or keyword.iskeyword(name):
            raise NotExportable(f"{definition.name}: '{name}' is not a Python identifier")
        if str(spec.dtype) not in _THEIRS:
            raise NotExportable(
                f"{definition.name}: '{name}' is {spec.dtype}, an element type that the format "
                f"lacks; it has {', '.join(sorted(_THEIRS))}"
            )
    constant = [name for name, spec in definition.inputs.items() if spec.constant]
    tags = list(definition.tags)
    tags.append(_TAG + json.dumps({"constant": constant}, separators=(",", ":")))
    return {
        "name": definition.name,
        "op_type": definition.op_type,
        "description": definition.description,
        "tags": tags,
        "axes": {
            name: axis.model_dump(mode="json", exclude_defaults=False)
            for name, axis in definition.axes.items()
        },
        "inputs": {name: _tensor(spec) for name, spec in definition.inputs.items()},
        "outputs": {name: _tensor(spec) for name, spec in definition.outputs.items()},
        "reference": f"{definition.reference}\n\n{_MARK}\n{_around(definition)}",
    }


def import_definition(body: Mapping[str, Any], *, where: str) -> ImportedDefinition:
    """Read a definition.

    Parameters
    ----------
    body
        One JSON object.
    where
        Its place, for messages.

    Raises
    ------
    UnreadableInput
        If it is none, or says what our record cannot.
    """
    if "op_type" not in body and isinstance(body.get("type"), str):
        body = {**body, "op_type": body["type"]}  # as their first versions called it
    found = validated(_Definition, body, where=where, code="bad-definition")
    own = [tag for tag in found.tags or () if tag.startswith(_TAG)]
    constant = _constant(own, where=where)
    reference = found.reference.rpartition(f"\n\n{_MARK}\n")[0] if own else ""
    try:
        definition = Definition(
            name=found.name,
            op_type=found.op_type,
            description=found.description or "",
            axes={name: _axis_of(name, axis) for name, axis in found.axes.items()},
            inputs=dict(_specs(found.inputs, constant)),
            outputs=dict(_specs(found.outputs, frozenset())),
            reference=reference or found.reference,
            tags=tuple(tag for tag in found.tags or () if not tag.startswith(_TAG)),
        )
    except ValidationError as error:
        raise unreadable(error, where=where, code="bad-definition") from None
    except ValueError as error:
        raise UnreadableInput("bad-definition", where=where, message=str(error)) from None
    return ImportedDefinition(
        definition=definition,
        reference_problem=_problem(definition.reference),
        dropped=("constraints",) if found.constraints else (),
    )


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"shape": list(spec.shape), "dtype": str(spec.dtype)}


def _specs(
    tensors: Mapping[str, _Tensor], constant: frozenset[str]
) -> Iterator[tuple[str, TensorSpec]]:
    for name, each in tensors.items():
        spelt = _SPELT.get(each.dtype, each.dtype)
        if spelt not in {str(dtype) for dtype in DType}:
            raise ValueError(f"'{name}' is {each.dtype[:40]}, which this version does not know")
        yield (
            name,
            TensorSpec(
                shape=tuple(each.shape or ()), dtype=DType(spelt), constant=name in constant
            ),
        )


def _axis_of(name: str, axis: _Axis) -> AxisConst | AxisVar:
    if axis.type == "const" and axis.value is not None:
        return AxisConst(value=axis.value)
    if axis.type == "var":
        return AxisVar(description=axis.description or "")
    raise ValueError(f"axis '{name[:40]}' is neither `const` with a `value` nor `var`")


def _constant(tags: list[str], *, where: str) -> frozenset[str]:
    if not tags:
        return frozenset()
    said = parse_object(tags[0].removeprefix(_TAG), where=f"{where}: tag '{_TAG}'")
    names = said.get("constant")
    if len(tags) > 1 or not isinstance(names, list) or not all(type(n) is str for n in names):
        raise UnreadableInput(
            "bad-definition",
            where=where,
            message=f"the tag '{_TAG}...' is not as Retuned writes it",
        )
    return frozenset(names)


def _problem(reference: str) -> str:
    try:
        check_reference(reference)
    except ReferenceRefused as error:
        return str(error)
    return ""


def _around(definition: Definition) -> str:
    """Return the lines with which PyTorch tensors go in and come out."""
    names = ", ".join(definition.inputs)
    given = ", ".join(f"{name}=_array({name})" for name in definition.inputs)
    outputs = ", ".join(
        f'_tensor(_found["{name}"], _torch.{spec.dtype}, {next(iter(definition.inputs))})'
        for name, spec in definition.outputs.items()
    )
    return f"""import torch as _torch

_reference = run


def _array(tensor):
    wide = tensor.detach().cpu()
    return (wide.to(_torch.float64) if wide.is_floating_point() else wide).numpy()


def _tensor(array, dtype, like):
    return _torch.as_tensor(array).to(dtype).to(like.device)


def run({names}):
    _found = _reference({given})
    return {outputs}
"""
