"""Triton contract: a static check of candidates, and their launches as plain JSON.

Servers and children of the lab use the same launch data. No candidate code runs here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retuned.contract import Definition, Language, Solution
from retuned.lab.languages.cpp_contract import ContractViolated
from retuned.runtime.schema import Refused
from retuned.runtime.triton.launch import TritonSteps
from retuned.runtime.triton.plan import Plan, plan_launches

_GRID_YZ = 65_535
"""Programs along the second and third dimension of a launch, on NVIDIA GPUs."""


def check_contract(
    solution: Solution, definition: Definition, *, shapes: Sequence[Mapping[str, int]] = ()
) -> Plan:
    """Gate G1: text, names, parameters, and the grids and scratch at every shape, of every step.

    Raises
    ------
    ContractViolated
        On the first violation.
    """
    if solution.language is not Language.TRITON:
        raise ContractViolated(f"language {solution.language} is not {Language.TRITON}")
    if len(solution.sources) != 1 or not solution.sources[0].path.endswith(".py"):
        raise ContractViolated("a Triton variant is one .py file")
    try:
        plan = plan_launches(solution.sources[0].content, **_arguments(solution, definition))
        for axes in shapes:
            for grid in plan.check_at(list(definition.lengths(axes).values())):
                if max(grid[1:]) > _GRID_YZ:
                    detail = f"the grid {grid} at {dict(axes)} is wider than any device"
                    raise ContractViolated(detail)
    except Refused as error:
        raise ContractViolated(error.detail[:400]) from error
    return plan


def load(solution: Solution, definition: Definition) -> TritonSteps:
    """Import a trusted variant into this process, as a server does.

    Raises
    ------
    Refused
        As `TritonSteps`.
    """
    return TritonSteps(solution.sources[0].content, **_arguments(solution, definition))


def _arguments(solution: Solution, definition: Definition) -> dict[str, Any]:
    launch = launch_of(solution, definition)
    return {
        **launch,
        "entry": solution.entry,
        "tensors": [name for name, _, _ in launch["tensors"]],
        "steps": launch.get("steps", ()),
        "scratch": launch.get("scratch", ()),
    }


def launch_of(solution: Solution, definition: Definition) -> dict[str, Any]:
    tensors = {**definition.inputs, **definition.outputs}
    return {
        **steps_of(solution),
        "params": dict(solution.params),
        "grid": list(solution.grid),
        "axes": list(definition.axes),
        "scratch_bytes": solution.scratch_bytes,
        "tensors": [
            [
                name,
                str(spec.dtype),
                {
                    "shape": list(spec.shape),
                    "repacked": solution.layouts.get(name, "as-is") != "as-is",
                },
            ]
            for name, spec in tensors.items()
        ],
    }


def steps_of(solution: Solution) -> dict[str, Any]:
    body = solution.model_dump(mode="json", include={"steps", "scratch"})
    return {name: value for name, value in body.items() if value}


def manifest_of(solution: Solution) -> dict[str, Any]:
    """Return additional manifest fields of a variant with steps or scratch; else empty.

    With the source's name, a server can compute the digest of the variant itself.
    """
    extra = steps_of(solution)
    return {**extra, "source_path": solution.sources[0].path} if extra else {}
