"""The host code that an exported Triton variant needs elsewhere, made from its launch data."""

from __future__ import annotations

import keyword
import re

from retuned.contract import AxisConst, Definition, Solution
from retuned.runtime.schema import Refused
from retuned.runtime.triton.bind import LAUNCH_OPTIONS, SCRATCH
from retuned.runtime.triton.contract import check_source
from retuned_bench.flashinfer.schema import NotExportable

_HELPERS = """

def _cdiv(a, b):
    return -(-a // b)


def _next_pow2(a):
    return 1 if a <= 1 else 1 << (a - 1).bit_length()

"""


def launcher_text(solution: Solution, definition: Definition) -> str:
    """Return a module with the kernel and ``run(inputs..., outputs...)``, which launches it.

    Raises
    ------
    NotExportable
        If the variant wants its weights repacked, has several launches or named scratch, or a name
        is none in Python.
    """
    if solution.steps or solution.scratch:
        raise NotExportable(
            f"{solution.name} has {len(solution.launches)} launches and {len(solution.scratch)} "
            "pieces of scratch, which the exported launcher, one launch over the definition's "
            "tensors, cannot express"
        )
    repacked = [name for name, layout in solution.layouts.items() if layout != "as-is"]
    if repacked:
        raise NotExportable(
            f"{solution.name} wants {', '.join(repacked)} repacked before the first launch, which "
            "a launcher over the definition's tensors cannot do"
        )
    tensors = [*definition.inputs, *definition.outputs]
    for name in (*tensors, *definition.axes):
        taken = name.startswith("_") or name in (solution.entry, "run")
        if not name.isidentifier() or keyword.iskeyword(name) or taken:
            raise NotExportable(f"{solution.name}: '{name}' cannot be a name in a launcher")
    try:
        text = solution.sources[0].content
        wanted = [each.name for each in check_source(text, entry=solution.entry).parameters]
    except Refused as error:
        raise NotExportable(f"{solution.name}: {error.detail}") from error
    body = [*_lengths(definition), *_guard(solution), *_values(solution)]
    if SCRATCH in wanted:
        body.append(
            f"{SCRATCH} = _torch.empty({solution.scratch_bytes}, dtype=_torch.uint8, "
            f"device={tensors[0]}.device)"
        )
    options = [f"{n}={v!r}" for n, v in solution.params.items() if n in LAUNCH_OPTIONS]
    arguments = ", ".join([*(f"{name}={name}" for name in wanted), *options])
    body.append(f"_grid = ({', '.join(map(_python, solution.grid))},)")
    body.append(f"{solution.entry}[_grid]({arguments})")
    lines = "\n".join(f"    {line}" for line in body)
    run = f"\ndef run({', '.join(tensors)}):\n{lines}\n"
    return f"{text.rstrip()}\n\n\nimport torch as _torch\n{_HELPERS}{run}"


def _lengths(definition: Definition) -> list[str]:
    found = {
        name: str(axis.value)
        for name, axis in definition.axes.items()
        if isinstance(axis, AxisConst)
    }
    for name, spec in (*definition.inputs.items(), *definition.outputs.items()):
        for place, axis in enumerate(spec.shape):
            found.setdefault(axis, f"{name}.shape[{place}]")
    return [f"{axis} = {value}" for axis, value in found.items()]


def _guard(solution: Solution) -> list[str]:
    """Refuse shapes that the variant is not for: there, nothing else would."""
    return [
        line
        for axis, (low, high) in solution.guard.bounds.items()
        for line in (
            f"if not {low} <= {axis} <= {high}:",
            f'    raise ValueError(f"is for {low} <= {axis} <= {high}, not {{{axis}}}")',
        )
    ]


def _values(solution: Solution) -> list[str]:
    return [f"{n} = {v!r}" for n, v in solution.params.items() if n not in LAUNCH_OPTIONS]


def _python(expression: str) -> str:
    """Return a grid expression with the helpers' names."""
    return re.sub(r"\b(cdiv|next_pow2)\b", r"_\1", f"({expression})")
