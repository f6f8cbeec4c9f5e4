"""Launches configured by a file: their definitions, and rows as variants in any format.

The definition of a fused mixture of experts follows from the tensors of its launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from retuned import catalog
from retuned.contract import Solution
from retuned.errors import UsageError
from retuned.tuned_files import formats
from retuned.tuned_files import formats as tables
from retuned.tuned_files.records import Format, Row, TunedFileStep, Value

__all__ = ["KERNEL", "Launch", "lookup_of", "read_launch"]


def incumbent_of(definition: str, row: Mapping[str, Value], *, format: Format) -> Solution:
    """Return the lab variant of a server's row.

    Raises
    ------
    CandidateError
        ``row-does-not-map``.
    UsageError
        If the catalog has no such definition.
    """
    if format in formats.TABLES:
        return formats.variant_of(definition, row)
    return formats.incumbent_of(definition, row)


def row_of(solution: Solution, subject: TunedFileStep) -> Row:
    """Return the row of a variant.

    Raises
    ------
    CandidateError
        ``not-a-row``.
    """
    if subject.format in formats.TABLES:
        return formats.table_row(solution, subject)
    return formats.stages_row(solution, today=subject.run.row)


def structure_of(format: Format) -> str:
    return formats.TABLE_ROW if format in formats.TABLES else formats.STAGES


KERNEL = "fused_moe_kernel"
"""Triton kernel that vLLM and SGLang configure by their files; both products launch it."""
_OPERATOR = "retuned::fused_moe_bf16"
_TYPES = ("bfloat16", "bfloat16", "bfloat16", "int32", "float32")
_SPELLED = {"c10::bfloat16": "bfloat16", "bf16": "bfloat16", "float": "float32", "int": "int32"}
_ROUTES = {"int32", "int64", "long", "long int", "uint32", "unsigned int"}
_TENSORS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch that a file configures."""

    definition: str
    tokens: int
    lookup: dict[str, Any] = field(hash=False)
    formats: tuple[Format, ...] = ("moe-vllm", "moe-sglang")


def read_launch(
    kernel: str, dims: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
) -> Launch | None:
    """Return the launch of a fused mixture of experts; None for other kernels or unknown types.

    Parameters
    ----------
    kernel
        Name of the kernel as a trace has it.
    dims
        Tensors of the operator that launched it: tokens, both weights, then routes and their
        weights in either order; further tensors are ignored.
    dtypes
        Element type of each.

    Examples
    --------
    >>> found = read_launch("fused_moe_kernel", ((64, 256), (8, 256, 256), (8, 256, 128), (64, 2),
    ...     (64, 2)), ("bfloat16", "bfloat16", "bfloat16", "float32", "int32"))
    >>> found.definition, found.tokens, found.lookup["N"]
    ('fused_moe_bf16_e8_t2_f128_k256', 64, 128)
    """
    product = tables.read_product(kernel, dims, dtypes)
    if product is not None:
        lookup = tables.lookup_of(product[0])
        return Launch(
            definition=product[0], tokens=product[1], lookup=lookup, formats=tables.TABLES
        )
    if kernel != KERNEL or len(dims) < _TENSORS or not _types_fit(dtypes):
        return None
    bound = catalog.recognise(_OPERATOR, dims[:_TENSORS], _TYPES)
    if bound is None:
        return None
    return Launch(
        definition=bound.definition, tokens=bound.axes["M"], lookup=lookup_of(bound.definition)
    )


def lookup_of(definition: str) -> dict[str, Any]:
    """Return the arguments of the server's lookup for a definition of the catalog.

    Raises
    ------
    UsageError
        If it is not a mixture of experts.
    """
    found = catalog.get(definition).definition
    if found.op_type != "fused_moe_bf16":
        raise UsageError(f"{definition} is not configured by a known file")
    lengths = found.lengths({"M": 1})
    return {
        "E": lengths["E"],
        "N": lengths["F"],
        "K": lengths["K"],
        "top_k": lengths["T"],
        "dtype": None,
    }


def _types_fit(dtypes: tuple[str, ...]) -> bool:
    plain = [each.lower().removeprefix("torch.") for each in dtypes[:_TENSORS]]
    plain = [_SPELLED.get(each, each) for each in plain]
    routes = plain[3:]
    return plain[:3] == list(_TYPES[:3]) and any(
        one in _ROUTES and other == "float32" for one, other in (routes, routes[::-1])
    )
