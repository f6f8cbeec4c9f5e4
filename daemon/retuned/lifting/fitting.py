"""A recognised kernel with the catalog's other structures, fitted to its arguments.

The file of a fitted variant is the catalog's own text and two entries: one with the arguments of
the definition, which the lab launches, and one that gets the live launch's real numbers, which the
server launches. Both call the same function. The definition gets the pattern's float64 reference:
what is new source is judged by what ought to come out, not by what the incumbent gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from retuned.catalog.entry import source_text
from retuned.catalog.own import OwnVariant, faults
from retuned.catalog.triton_space import next_pow2
from retuned.contract import Language, SourceFile, TrustClass, digest_of
from retuned.lab.reference.incumbent import JUDGED_BY_INCUMBENT
from retuned.lifting.lift import Lifted
from retuned.lifting.pattern import Shape
from retuned.lifting.recognising import Assignment
from retuned.lifting.refusing import NotLifted

ENTRY, SERVES = "fitted", "fitted_to_a_launch"
"""What the lab launches, and what a server does."""
RECOGNISED = "recognised"
"""Tag of a definition whose kernel was recognised; the pattern's name is another."""
_BLOCKS = (128, 256, 512, 1024, 2048, 4096, 8192)
_WHOLE = 32_768
"""Longest row that one program holds."""
_LEAST_BLOCK = 16
_WARPS = (1, 2, 4, 8, 16)
_MOST_STEPS = 256
"""Most blocks of a row that is read in parts."""


def fitted(lifted: Lifted, found: Assignment) -> Lifted:
    """Return a lifted kernel with the reference and the structures of what it computes.

    Raises
    ------
    NotLifted
        ``definition-invalid`` if the catalog's source and the kernel's arguments do not fit.
    """
    own = lifted.own
    definition, origin = own.definition, own.lifted
    assert origin is not None, "only what was lifted is recognised"
    reference = _reference(found, origin.floats)
    variants = tuple(
        variant
        for shape in found.pattern.shapes
        if (variant := _variant(found, shape, origin.floats)) is not None
    )
    told = [definition.name, reference, [each.model_dump(mode="json") for each in variants]]
    name = f"{definition.name[:110]}_{digest_of(told).removeprefix('sha256:')[:10]}"
    tags = [tag for tag in definition.tags if tag != JUDGED_BY_INCUMBENT]
    made = own.model_copy(
        update={
            "definition": definition.model_copy(
                update={
                    "name": name,
                    "reference": reference,
                    "description": f"lifted from a running server; computes {found.pattern.name}",
                    "tags": (*tags, RECOGNISED, found.pattern.name),
                }
            ),
            "variants": (*own.variants, *variants),
        }
    )
    for fault in faults(made):
        raise NotLifted("definition-invalid", detail=f"{fault.place}: {fault.message}")
    workloads = tuple(each.model_copy(update={"definition": name}) for each in lifted.workloads)
    return replace(lifted, own=made, workloads=workloads)


def _reference(found: Assignment, floats: Mapping[str, float]) -> str:
    pattern = found.pattern
    said = {f"{role}": name for role, name in found.tensors.items()}
    numbers = {role: repr(value) for role, value in found.values(floats).items()}
    returned = ", ".join(
        f"{found.tensors[role]!r}: {text}"
        for role, text in pattern.returns.items()
        if role in found.tensors
    )
    return pattern.reference.format(**said, **numbers, returns=f"{{{returned}}}")


def _variant(found: Assignment, shape: Shape, floats: Mapping[str, float]) -> OwnVariant | None:
    """Return one structure; None where a row is too long for it."""
    length = found.lengths[found.pattern.row]
    width = max(_LEAST_BLOCK, next_pow2(length))
    if shape.whole and width > _WHOLE:
        return None
    parts = tuple(b for b in _BLOCKS if b <= width and length <= b * _MOST_STEPS)
    blocks = (width,) if shape.whole or not parts else parts
    lengths = {name: str(value) for name, value in found.lengths.items()}
    return OwnVariant(
        structure=shape.structure,
        language=Language.TRITON,
        entry=ENTRY,
        serves=SERVES,
        sources=(SourceFile(path="kernel.py", content=_text(found, shape, floats)),),
        params={"BLOCK": blocks, "num_warps": _WARPS},
        starts=({"BLOCK": blocks[len(blocks) // 2], "num_warps": 4},),
        valid="BLOCK <= num_warps * 4096 and BLOCK >= num_warps * 16",
        grid=(shape.grid.format(M=found.variable, **lengths),),
        trust=TrustClass.GENERATED,
    )


def _text(found: Assignment, shape: Shape, floats: Mapping[str, float]) -> str:
    tensors = list(dict.fromkeys(found.tensors.values()))
    numbers = list(found.numbers.values())
    values = found.values(floats)
    constants = {role: f"tl.full((), {value!r}, tl.float32)" for role, value in values.items()}
    handed = constants | {
        role: f"tl.full((), {name}, tl.float32)" for role, name in found.numbers.items()
    }
    return (
        f"{source_text(found.pattern.source)}\n\n"
        f"@triton.jit\ndef {ENTRY}({', '.join(tensors)}, BLOCK: tl.constexpr):\n"
        f"    {shape.function}({_passed(found, constants)})\n\n\n"
        f"@triton.jit\ndef {SERVES}({', '.join([*tensors, *numbers])}, BLOCK: tl.constexpr):\n"
        f"    {shape.function}({_passed(found, handed)})\n"
    )


def _passed(found: Assignment, numbers: Mapping[str, str]) -> str:
    """Return what the catalog's function is called with."""
    pattern = found.pattern
    first = found.tensors[next(iter(pattern.outputs))]
    parts = []
    for argument in pattern.arguments:
        role, plus, more = argument.partition(" + ")
        factor, _, symbol = argument.rpartition("*")
        if argument == "LEAVES":
            leaves = all(each in found.tensors for each in pattern.optional)
            parts.append(str(leaves))
        elif role in numbers:
            parts.append(numbers[role])
        elif symbol in found.lengths:
            parts.append(str(int(factor or 1) * found.lengths[symbol]))
        else:  # of an output that is not there another is passed, and nothing is written to it
            name = found.tensors.get(role, first)
            parts.append(f"{name}{plus}{more.format(**found.lengths)}")
    return ", ".join([*parts, "BLOCK"])
