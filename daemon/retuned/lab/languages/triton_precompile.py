"""Precompiled code in a Triton artifact, so that its server need not compile.

Each code is audited as it is, so a server loads exactly the code that gate G2 checked. It is
compiled in the compiler's limited process.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retuned.contract import Definition, Solution
from retuned.lab.audit import refusal
from retuned.lab.languages.cpp_contract import ContractViolated
from retuned.lab.languages.limits import CompileLimits
from retuned.lab.languages.triton import LIMITS, run_compiler, task_of
from retuned.lab.languages.triton_audit import report_of
from retuned.lab.languages.triton_contract import check_contract
from retuned.runtime.artifacts.precompiled import MAX_ENTRIES, PrecompiledEntry
from retuned.runtime.schema import Refused
from retuned.runtime.triton.contract import check_source
from retuned.runtime.triton.plan import Plan

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

    `shapes` are the variable axes that it will run at. Without any, only code that does not depend
    on lengths is compiled.

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

    `entry` is the function of the source that gets a launch's own arguments. `intercept` is how the
    artifact binds; see `retuned.runtime.intercept.rules`. If the function gets an integer argument,
    its width depends on the launch, and no code is compiled.

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
        If the function is missing, or the source is outside the contract.
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
    """Return lengths of all axes, one set per code, up to an artifact's maximum, largest first.

    Without `shapes`, none are returned for code that depends on lengths.
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


_PATHS = "extern_libs"
_KINDS = ("cubin", "hsaco")


def compile_entries(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    import triton
    from triton.backends.compiler import GPUTarget

    target = GPUTarget(*task["target"])
    triton.runtime.driver.set_active(_driver(target))
    made = _served(task) if "served" in task else _steps(task)
    version = str(triton.__version__)
    return [
        each | {"triton": version, **_compiled_entry(code, lanes=target.warp_size)}
        for each, code in made
    ]


def _steps(task: Mapping[str, Any]) -> list[tuple[dict[str, Any], Any]]:
    from retuned.runtime.triton.launch import TritonSteps

    steps = TritonSteps(
        task["source"],
        entry=task["entry"],
        params=task["params"],
        grid=task["grid"],
        tensors=[name for name, _ in task["tensors"]],
        axes=task["axes"],
        scratch_bytes=task["scratch_bytes"],
        steps=task.get("steps", ()),
        scratch=task.get("scratch", ()),
    )
    dtypes = [dtype for _, dtype in task["tensors"]]
    return [
        ({"lengths": list(lengths), "entry": step.entry}, compiled)
        for lengths in task["lengths"]
        for step, compiled in zip(
            steps.plan.steps, steps.compile_at(lengths, dtypes=dtypes), strict=True
        )
    ]


def _served(task: Mapping[str, Any]) -> list[tuple[dict[str, Any], Any]]:
    import torch

    from retuned.runtime.intercept.compiled import compiled_source
    from retuned.runtime.triton.bind import LAUNCH_OPTIONS
    from retuned.runtime.triton.contract import check_source
    from retuned.runtime.triton.importer import import_source, unspecialised

    entry, arguments = task["served"]["entry"], task["served"]["arguments"]
    check_source(task["source"], entry=entry)
    module, _ = import_source(task["source"])
    args = [value if how == "fixed" else _like(torch, value) for _, how, value in arguments]
    free = [name for name, how, value in arguments if how == "handed" and value == "float"]
    options = {name: value for name, value in task["params"].items() if name in LAUNCH_OPTIONS}
    compiled = compiled_source(unspecialised(getattr(module, entry), free), args, options)
    return [({"lengths": [], "entry": entry}, compiled)]


def _like(torch: Any, kind: str) -> Any:  # noqa: ANN401 - the module; an element type or a number
    return 0.5 if kind == "float" else getattr(torch, kind)


def _compiled_entry(compiled: Any, *, lanes: int) -> dict[str, Any]:  # noqa: ANN401 - CompiledKernel
    from retuned.lab.languages.triton_build import figures

    files = {Path(name).suffix[1:]: Path(path) for name, path in compiled.metadata_group.items()}
    (kind,) = (name for name in _KINDS if name in files)
    meta = json.loads(files["json"].read_text("utf-8"))
    if _PATHS in meta:
        meta[_PATHS] = []
    found = figures(compiled, lanes)
    if base64.b64decode(found["object"]) != files[kind].read_bytes():
        raise ValueError("what Triton keeps is not what it would load")
    return {**found, "key": str(compiled.hash), "kind": kind, "meta": meta}


def _driver(target: Any) -> Any:  # noqa: ANN401 - of Triton's interface, whatever the version asks
    from triton.backends.driver import DriverBase

    class Compiling(DriverBase):  # type: ignore[misc]
        """A device that is only a compile target."""

        def __init__(self) -> None:
            self.utils = self

        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            return ty

        def get_current_target(self) -> Any:  # noqa: ANN401 - GPUTarget
            return target

        def get_active_torch_device(self) -> Any:  # noqa: ANN401 - none is here
            return None

        def get_benchmarker(self) -> Any:  # noqa: ANN401 - nothing is launched
            raise NotImplementedError

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            del device
            return 0

    return Compiling()
