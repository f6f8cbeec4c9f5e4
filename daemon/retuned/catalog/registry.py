"""Registry of entries by name, and the match of launches in a trace to names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache

from retuned.catalog import (
    add_rmsnorm,
    attention,
    fused_moe,
    gated,
    gemm,
    gemm_fp8,
    gpu_cpp_rows,
    layernorm,
    linear_w8,
    linear_w8_bf16,
    moe_gemm,
    paged_attention,
    quant,
    rmsnorm,
    rope,
    softmax,
    topk_gating,
)
from retuned.catalog.entry import KernelEntry, Params, Space, build_solution
from retuned.catalog.family import LONGEST, Family
from retuned.catalog.triton import attention as triton_attention
from retuned.catalog.triton import gating, linear, rows
from retuned.catalog.triton import rope as triton_rope
from retuned.catalog.triton.space import fitting
from retuned.catalog.user import OwnDefinition, entry_of
from retuned.catalog.user import registry as users
from retuned.contract import Definition, Language
from retuned.errors import UsageError

_FAMILIES: tuple[Family, ...] = (
    linear_w8.FAMILY,
    *rmsnorm.FAMILIES,
    *add_rmsnorm.FAMILIES,
    *layernorm.FAMILIES,
    *gated.SILU_MUL,
    *gated.GELU_MUL,
    *rope.FAMILIES,
    *softmax.FAMILIES,
    topk_gating.FAMILY,
    attention.FAMILY,
    gemm.FAMILY,
    gemm_fp8.FAMILY,
    gemm_fp8.FNUZ,
    linear_w8_bf16.FAMILY,
    quant.FP8,
    quant.FNUZ,
    quant.INT8,
    paged_attention.FAMILY,
    moe_gemm.FAMILY,
    fused_moe.FAMILY,
)
_TRITON: dict[str, Callable[[Definition], tuple[tuple[Space, ...], Params]]] = {
    "linear_w8": linear.linear_w8,
    "rmsnorm": rows.normalised,
    "add_rmsnorm": rows.normalised,
    "layernorm": rows.normalised,
    "silu_mul": rows.gated,
    "gelu_mul": rows.gated,
    "rope": triton_rope.rope,
    "softmax": rows.softmax,
    "topk_gating": gating.topk_gating,
    "attention": triton_attention.attention,
}
_GPU_CPP: dict[str, Callable[[Definition], tuple[tuple[Space, ...], Params]]] = {
    "rmsnorm": gpu_cpp_rows.normalised,
    "softmax": gpu_cpp_rows.softmax,
}
_OTHERS = {Language.TRITON: _TRITON, Language.GPU_CPP: _GPU_CPP}
"""Spaces of a family's kernels in further languages, and the incumbent's point in the first."""
_PREFIX = "retuned::"
_LONGEST_VARIABLE = 2**30
_SPELLINGS = {
    "float": "float32",
    "f32": "float32",
    "fp32": "float32",
    "char": "int8",
    "signed char": "int8",
    "i8": "int8",
    "s8": "int8",
    "half": "float16",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A launch, as a definition and its variable axes."""

    definition: str
    axes: dict[str, int]
    """Lengths of its variable axes, as in the trace or its buckets."""


def families() -> tuple[Family, ...]:
    return _FAMILIES


def learn(
    definitions: Sequence[OwnDefinition], *, unconfined_references: bool | None = None
) -> None:
    """Register users' own definitions in this process, so that `get` and others find them.

    `unconfined_references` allows their references to run where neither seccomp nor Landlock
    confines them. None keeps the previous setting, which is False at first.

    Raises
    ------
    UsageError
        If a name or an operator is taken, two differ under one name, or one is invalid. Then none
        is registered.
    """
    operators = frozenset(_PREFIX + family.op_type for family in _FAMILIES)
    users.add(definitions, taken=_is_taken, operators=operators)
    if unconfined_references is not None:
        users.allow_unconfined(unconfined_references)
    get.cache_clear()


def forget() -> None:
    users.clear()
    get.cache_clear()


def own_definitions() -> tuple[OwnDefinition, ...]:
    return users.every()


def own_definition(name: str) -> OwnDefinition | None:
    return users.find(name)


def _is_taken(name: str) -> bool:
    return any(family.parse(name) is not None for family in _FAMILIES)


@lru_cache(maxsize=256)
def get(definition_name: str, *, language: Language | None = None) -> KernelEntry:
    """Return the entry of a definition.

    `definition_name` is a name such as ``linear_w8_n1024_k1024``. `language` selects the spaces and
    the incumbent; definition, reference and inputs are the same in each. None uses the first that
    the family has: C++ for the CPU where there is one.

    Raises
    ------
    UsageError
        If the name or the language is unknown; the message lists the known ones.
    """
    own = users.find(definition_name)
    if own is not None:
        chosen = own.languages[0] if language is None else language
        return entry_of(own, chosen, allow_unconfined=users.unconfined_allowed())
    for family in _FAMILIES:
        constants = family.parse(definition_name)
        if constants is not None:
            return _in_language(family, family.build(definition_name, constants), language)
    raise UsageError(
        f"no definition '{definition_name[:80]}' in the catalog; {_nearest(definition_name[:80])}"
        f"lengths go up to {LONGEST}, and `retuned kernels list` prints all names"
    )


def _nearest(name: str) -> str:
    known = {family.template: re.sub(r"\{\w+\}", "", family.template) for family in _FAMILIES}
    known |= {own.name: re.sub(r"\d", "", own.name) for own in users.every()}
    bare = re.sub(r"\d", "", name)
    near = get_close_matches(bare, list(known.values()), n=3, cutoff=0.6)
    alike = [full for each in dict.fromkeys(near) for full, short in known.items() if short == each]
    return f"is it {', '.join(alike[:3])}? " if alike else ""


def languages(definition_name: str) -> tuple[Language, ...]:
    own = users.find(definition_name)
    if own is not None:
        return own.languages
    for family in _FAMILIES:
        if family.parse(definition_name) is not None:
            return family.languages
    return ()


def _in_language(family: Family, entry: KernelEntry, language: Language | None) -> KernelEntry:
    if language is None or language is family.languages[0]:
        return entry
    if language not in family.languages:
        known = " and ".join(family.languages)
        raise UsageError(
            f"{entry.definition.name} has no kernels in {language}; the catalog has it in {known}"
        )
    spaces, point = _OTHERS[language][entry.definition.op_type](entry.definition)
    incumbent = build_solution(entry.definition, spaces[0], point)
    fitted = tuple(fitting(space, entry.definition) for space in spaces)
    return replace(entry, spaces=fitted, incumbent=incumbent)


def recognise(
    op: str, dims: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
) -> Binding | None:
    """Find the definition of a launch; None if the catalog has none.

    `op` is the operator as traces spell it, ``retuned::linear_w8``. `dims` and `dtypes` describe
    each input; `dtypes` is empty if the trace lacks them.
    """
    own = users.match(op, unify=lambda shapes: _unify(shapes, dims), dtypes=_plain(dtypes))
    if own is not None:
        return Binding(definition=own[0], axes=own[1])
    if not op.startswith(_PREFIX):
        return None
    for family in _FAMILIES:
        if family.op_type != op.removeprefix(_PREFIX) or not _types_fit(family, dtypes):
            continue
        lengths = _unify(family.shapes, dims)
        settled = family.settle(lengths) if lengths is not None else None
        if settled is None:
            continue
        name = family.name(settled)
        if family.parse(name) is None:
            continue
        variable = get(name).definition.variable_axes
        if all(1 <= settled[axis] <= _LONGEST_VARIABLE for axis in variable):
            return Binding(definition=name, axes={axis: settled[axis] for axis in variable})
    return None


def _types_fit(family: Family, dtypes: tuple[str, ...]) -> bool:
    return not dtypes or _plain(dtypes) == family.dtypes


def _plain(dtypes: tuple[str, ...]) -> tuple[str, ...]:
    plain = [d.lower().removeprefix("torch.").removeprefix("c10::") for d in dtypes]
    return tuple(_SPELLINGS.get(d, d) for d in plain)


def _unify(
    shapes: tuple[tuple[str, ...], ...], dims: tuple[tuple[int, ...], ...]
) -> dict[str, int] | None:
    if len(shapes) != len(dims):
        return None
    lengths: dict[str, int] = {}
    for shape, sizes in zip(shapes, dims, strict=True):
        if len(shape) != len(sizes):
            return None
        for axis, size in zip(shape, sizes, strict=True):
            if lengths.setdefault(axis, size) != size:
                return None
    return lengths
