"""Static gates G1 and G2: the form of a candidate, then compilation and audit without a launch.

The lab calls them where it measures. `compiled_for` runs on a machine without the device, for
another machine's architecture. Both give the same result for one architecture and one version of
the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from retuned.contract import Definition, Language, Solution
from retuned.errors import CandidateError
from retuned.lab.audit import known_architectures
from retuned.lab.harness.checks import failed_check
from retuned.lab.harness.variant import parts_of
from retuned.lab.languages import cpu_cpp, gpu_cpp, triton
from retuned.lab.languages.cpp_contract import ContractViolated
from retuned.lab.languages.limits import CompileLimits
from retuned.lab.reference.incumbent import JUDGED_BY_INCUMBENT
from retuned.stages.verdict import Check

Shapes = Sequence[Mapping[str, int]]


class Audited(Protocol):
    """Compilation results that a gate reports."""

    @property
    def note(self) -> str: ...

    @property
    def audit(self) -> tuple[Mapping[str, Any], ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A candidate compiled for a device that may be absent."""

    note: str
    audit: tuple[Mapping[str, Any], ...] = ()


_AuditedT = TypeVar("_AuditedT", bound=Audited)


def admitted(build: Callable[[], _AuditedT]) -> tuple[_AuditedT | None, tuple[Check, ...]]:
    """Return the compiled variant and the checks of the two gates; None if one refuses."""
    try:
        built = build()
    except ContractViolated as error:
        return None, (failed_check("G1", error),)
    except CandidateError as error:
        return None, (Check(gate="G1"), failed_check("G2", error))
    figures: dict[str, Any] = {"audit": list(built.audit)} if built.audit else {}
    return built, (Check(gate="G1"), Check(gate="G2", detail=built.note, figures=figures))


def check_form(
    solution: Solution, *, definition: Definition, incumbent: Solution, cores: int
) -> None:
    """Refuse a candidate that does not fit this experiment, before any compiler reads it.

    If the `incumbent` is the only oracle, no other source is accepted. `cores` bounds the cores of
    a launch; 0 skips that check.

    Raises
    ------
    ContractViolated
        With the violated rule.
    """
    if solution.definition != definition.name:
        raise ContractViolated(f"is for '{solution.definition}', not '{definition.name}'")
    if JUDGED_BY_INCUMBENT in definition.tags and (solution.entry, solution.sources) != (
        incumbent.entry,
        incumbent.sources,
    ):
        raise ContractViolated(
            "is another source than the incumbent's, and the definition has no reference. Without "
            "a reference only other parameters of that source are judged; attach a float64 "
            "reference"
        )
    parts = parts_of(solution)
    if cores and parts > cores:
        raise ContractViolated(f"wants {parts} threads, the lab may use {cores} cores")


def compiles_for(language: Language, arch: str) -> bool:
    """Whether variants in a language can be compiled here for an architecture.

    C++ for a processor is compiled for this machine's: refusals of another processor prove nothing.
    """
    if language is Language.CPU_CPP:
        return cpu_cpp.cpu_environment().arch == arch
    return arch in known_architectures()


def compiled_for(
    arch: str,
    solution: Solution,
    definition: Definition,
    *,
    folder: Path,
    shapes: Shapes = (),
    limits: CompileLimits | None = None,
) -> Compiled:
    """Check, compile and audit one solution for an architecture of `compiles_for`.

    Compiled code is stored in `folder`, which is private. `shapes` are the variable axes that it
    will run at.

    Raises
    ------
    CandidateError
        As the language's `build`, `ContractViolated` among them.
    MissingDependency
        If no installed compiler supports it.
    """
    if solution.language is Language.CPU_CPP:
        cpu_cpp.compile_solution(solution, cache_dir=folder, limits=limits)
        return Compiled(note=f"compiled for {arch}")
    if solution.language is Language.TRITON:
        made = triton.build(
            solution, definition, cache_dir=folder, shapes=shapes, limits=limits, arch=arch
        )
        return Compiled(
            note=made.note, audit=tuple(each.model_dump(mode="json") for each in made.reports)
        )
    built = gpu_cpp.build(
        solution, definition, cache_dir=folder, shapes=shapes, limits=limits, arch=arch
    )
    return Compiled(note=built.note, audit=(built.report.model_dump(mode="json"),))
