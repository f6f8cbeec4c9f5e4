"""What an artifact of a Triton variant brings along, so that its server need not compile.

Each code is audited as it is: what a server loads is what gate G2 has looked at.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from retuned.contract import Definition, Solution
from retuned.lab.audit import refusal
from retuned.lab.languages.cpp_contract import ContractViolated
from retuned.lab.languages.limits import CompileLimits
from retuned.lab.languages.triton import LIMITS, run_compiler, task_of
from retuned.lab.languages.triton_audit import report_of
from retuned.lab.languages.triton_contract import check_contract
from retuned.runtime.precompiled import MAX_ENTRIES, PrecompiledEntry
from retuned.runtime.spec import Refused
from retuned.runtime.triton_plan import Plan
from retuned.runtime.triton_source import check_source

Shapes = Sequence[Mapping[str, int]]


def precompile(
    solution: Solution,
    definition: Definition,
    *,
    arch: str,
    shapes: Shapes = (),
    limits: CompileLimits | None = None,
) -> tuple[PrecompiledEntry, ...]:
    """Compile a variant for servers with an architecture and this version of Triton.

    Parameters
    ----------
    solution
        The variant.
    definition
        What it computes.
    arch
        ``sm_90``, ``gfx942``.
    shapes
        Variable axes it will run at. Without any, only code that no length decides is compiled.
    limits
        Bounds of the compiler.

    Raises
    ------
    ContractViolated
        If it is outside the contract.
    CompileFailed
        If the compiler refuses it, dies or exceeds its limits.
    CandidateError
        As `retuned.lab.languages.triton.build`, from the audit of each code.
    """
    plan = check_contract(solution, definition, shapes=shapes)
    lengths = needed_lengths(plan, definition, shapes)
    if not lengths:
        return ()
    task = task_of(solution, definition, lengths, arch)
    return _entries(task, arch=arch, limits=limits or LIMITS)


def precompile_served(
    solution: Solution,
    definition: Definition,
    *,
    arch: str,
    entry: str,
    intercept: Mapping[str, Any],
    limits: CompileLimits | None = None,
) -> tuple[PrecompiledEntry, ...]:
    """Compile a variant that takes over launches of a server's own kernel.

    Parameters
    ----------
    solution, definition, arch, limits
        As `precompile`.
    entry
        Function of the source that gets a launch's own arguments.
    intercept
        How the artifact binds; see `retuned.runtime.intercept.rules`. Where the function is handed
        a whole number, whose width is the launch's, nothing is compiled.

    Raises
    ------
    CandidateError
        As `precompile`.
    """
    arguments = served_arguments(solution, entry=entry, intercept=intercept)
    if arguments is None:
        return ()
    check_contract(solution, definition)
    served = {"entry": entry, "arguments": arguments}
    task = task_of(solution, definition, (), arch) | {"served": served}
    return _entries(task, arch=arch, limits=limits or LIMITS)


def served_arguments(
    solution: Solution, *, entry: str, intercept: Mapping[str, Any]
) -> list[tuple[str, str, Any]] | None:
    """Return name, ``fixed`` or ``handed``, and value or kind of each argument; None if unknown.

    Kinds are element types of tensors, and ``float``.

    Raises
    ------
    ContractViolated
        If the source has no such function, or is outside the contract.
    """
    try:
        parameters = check_source(solution.sources[0].content, entry=entry).parameters
    except Refused as error:
        raise ContractViolated(error.detail[:400]) from error
    bind, constants = intercept.get("bind", {}), intercept["constexprs"]
    whole = {*intercept.get("ints", {}), *intercept["axes"].values()}
    found: list[tuple[str, str, Any]] = []
    for each in parameters:
        bound = bind.get(each.name, each.name)
        if each.name in solution.params:
            found.append((each.name, "fixed", solution.params[each.name]))
        elif each.constexpr and bound in constants:
            found.append((each.name, "fixed", constants[bound]))
        elif each.constexpr or bound in constants or bound in whole:
            return None
        else:
            found.append((each.name, "handed", intercept["dtypes"].get(bound, "float")))
    return found


def _entries(
    task: Mapping[str, Any], *, arch: str, limits: CompileLimits
) -> tuple[PrecompiledEntry, ...]:
    made = run_compiler({**task, "ship": True}, limits)
    error = refusal([report_of(each, arch=arch) for each in made])
    if error is not None:
        raise error
    by_key = {entry.key: entry for entry in (_entry(each, arch) for each in made)}
    return tuple(by_key.values())  # steps may share one function with its parameters


def needed_lengths(plan: Plan, definition: Definition, shapes: Shapes) -> list[list[int]]:
    """Return lengths of all axes, one set per code: as many as an artifact takes, largest first.

    Parameters
    ----------
    plan
        The variant's launches.
    definition
        What it computes.
    shapes
        Variable axes; without any, none are returned where code depends on them.
    """
    every = sorted((list(definition.lengths(axes).values()) for axes in shapes), reverse=True)
    if not every:
        low, high = (
            list(definition.lengths(dict.fromkeys(definition.variable_axes, length)).values())
            for length in (128, 256)
        )
        if plan.specialisation(low) != plan.specialisation(high):
            return []
        every = [low]
    distinct = {plan.specialisation(lengths): lengths for lengths in every}
    return list(distinct.values())[: MAX_ENTRIES // len(plan.steps)]


def _entry(made: Mapping[str, Any], arch: str) -> PrecompiledEntry:
    code = base64.b64decode(made["object"], validate=True)
    return PrecompiledEntry(
        key=made["key"],
        entry=made["entry"],
        arch=arch,
        triton=made["triton"],
        kind=made["kind"],
        lengths=tuple(made["lengths"]),
        sha256=hashlib.sha256(code).hexdigest(),
        code=code,
        meta=made["meta"],
    )
