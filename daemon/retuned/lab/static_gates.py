"""Gates G1 and G2: the form of a candidate, then its compilation and audit. Nothing is launched.

The lab asks where it measures; `compiled_for` asks on a machine without the device, for somebody
else's. Both give the same answers for one architecture and one version of the compiler.
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
    """What was compiled, as far as a gate tells of it."""

    @property
    def note(self) -> str:
        """The figures in one sentence; empty where the language has none."""
        ...

    @property
    def audit(self) -> tuple[Mapping[str, Any], ...]:
        """The audit of each binary; empty where the language has none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A candidate that was compiled for a device that need not be here."""

    note: str
    """The figures in one sentence."""
    audit: tuple[Mapping[str, Any], ...] = ()
    """The audit of each binary."""


_AuditedT = TypeVar("_AuditedT", bound=Audited)


def admitted(build: Callable[[], _AuditedT]) -> tuple[_AuditedT | None, tuple[Check, ...]]:
    """Return what was compiled, and what the two gates say; None where one of them refuses.

    Parameters
    ----------
    build
        Checks, compiles and audits; raises `CandidateError`, `ContractViolated` among them.
    """
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
    """Refuse what is no candidate of this experiment, before any compiler reads it.

    Parameters
    ----------
    incumbent
        The variant in production: where it alone says what is right, no other source is judged.
    cores
        Cores that a launch may use; 0 does not ask.

    Raises
    ------
    ContractViolated
        With what it may not be.
    """
    if solution.definition != definition.name:
        raise ContractViolated(f"is for '{solution.definition}', not '{definition.name}'")
    if JUDGED_BY_INCUMBENT in definition.tags and (solution.entry, solution.sources) != (
        incumbent.entry,
        incumbent.sources,
    ):
        raise ContractViolated(
            "is another source, and there is no reference: only parameters of the source "
            "that runs are judged by what runs; attach a float64 reference for others"
        )
    parts = parts_of(solution)
    if cores and parts > cores:
        raise ContractViolated(f"wants {parts} threads, the lab may use {cores} cores")


def compiles_for(language: Language, arch: str) -> bool:
    """Whether variants in a language can be compiled here for an architecture.

    C++ for a processor is compiled for the one that is here: another one's refusals say nothing.
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

    Parameters
    ----------
    folder
        Private folder; compiled code is kept in it.
    shapes
        Variable axes that it will run at.

    Raises
    ------
    CandidateError
        As the language's `build`, `ContractViolated` among them.
    MissingDependency
        If nothing here compiles the language for it.
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
