"""What differs between the languages of variants; gates, statistics and verdict do not.

A toolchain checks and compiles (gates G1 and G2), names the environment that evidence is bound to,
brings the program that runs variants, and says how fast and how patiently to measure.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from retuned.contract import Definition, Environment, Language, Solution
from retuned.errors import UsageError
from retuned.lab.harness.processes import ChildLimits, ChildProgram, ForkServer, Starter
from retuned.lab.harness.variant import Variant, variant_of
from retuned.lab.harness.worker import CPU_PROGRAM, cache_of
from retuned.lab.languages import cpu_cpp, gpu, triton, triton_contract
from retuned.lab.languages.limits import CompileLimits
from retuned.lab.physics import floor_us, gpu_floor_us

_ROOT = Path(__file__).resolve().parents[2]
_GPU_CHILD = Path(__file__).with_name("harness") / "gpu_child.py"
_ZONE_ROWS = 64
"""Tiles of a GPU kernel reach this far past a tensor whose mask or bounds were forgotten."""

Shapes = Sequence[Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long measuring takes beside the launches."""

    unit_overhead_us: float = 60.0
    """What an ABBA unit costs beside its launches: poison, swaps, the interpreter."""
    start_s: float = 0.0
    """What may pass before the first candidate is looked at: imports, the incumbent's compilation.
    """
    launch_timeout_s: float = 2.0
    """Bound of one launch, beyond twenty times the incumbent's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """What a server loads."""

    variant: Variant
    """Compiled and audited."""
    sha256: str
    """Hex digest of its file."""
    file_name: str
    """How the file is called in the artifact's folder."""
    manifest: Mapping[str, Any]
    """Fields of the manifest that only this language has."""


class Toolchain(Protocol):
    """One language on this machine."""

    language: Language
    """Of the variants."""
    program: ChildProgram
    """Runs them."""
    pace: Pace
    """How long measuring takes."""

    def environment(self) -> Environment:
        """Describe what evidence is bound to; see `cpu_environment` and `gpu_environment`."""
        ...

    def build(
        self,
        solution: Solution,
        definition: Definition,
        *,
        folder: Path,
        shapes: Shapes = (),
        limits: CompileLimits | None = None,
    ) -> Artifact:
        """Check, compile and audit; raises `CandidateError`, `ContractViolated` among them."""
        ...

    def floor_us(self, definition: Definition, axes: Mapping[str, int], *, parts: int) -> float:
        """Return a time that no launch can beat; 0 where unknown."""
        ...


class CpuCpp:
    """C++ for this machine's processor."""

    language = Language.CPU_CPP
    program = CPU_PROGRAM
    pace = Pace()

    def environment(self) -> Environment:
        """See `cpu_environment`."""
        return cpu_cpp.cpu_environment()

    def build(
        self,
        solution: Solution,
        definition: Definition,
        *,
        folder: Path,
        shapes: Shapes = (),
        limits: CompileLimits | None = None,
    ) -> Artifact:
        """See `compile_solution`; the code does not depend on shapes."""
        del shapes
        built = cpu_cpp.compile_solution(solution, cache_dir=folder, limits=limits)
        variant = variant_of(solution, definition, library=built.path)
        return Artifact(variant=variant, sha256=built.sha256, file_name="kernel.so", manifest={})

    def floor_us(self, definition: Definition, axes: Mapping[str, int], *, parts: int) -> float:
        """See `physics`."""
        return floor_us(definition, axes, parts=parts)


def gpu_server(environment: Mapping[str, str], *, paths: Sequence[str] = ()) -> ForkServer:
    """Return what forks children that drive a GPU.

    Parameters
    ----------
    environment
        Beside what a GPU's runtimes need.
    paths
        What children may read beside this package and Python's.
    """
    readable = [str(_ROOT), *sys.path, *paths]
    return ForkServer(_GPU_CHILD, paths=readable, environment={**gpu.variables(), **environment})


def gpu_program(
    found: gpu.Gpu | None, *, start: Starter, warm: Callable[[], None], **settings: object
) -> ChildProgram:
    """Return the program that runs variants on a GPU, or on a processor in its place."""
    return ChildProgram(
        start=start,
        warm=warm,
        limits=ChildLimits(start_s=120.0, cpu_s=600, memory_bytes=8 * 2**30),
        mirrored=True,
        fences=False,
        zone_rows=_ZONE_ROWS,
        settings={"device": "cpu" if found is None else "cuda", **settings},
    )


def gpu_pace(found: gpu.Gpu | None) -> Pace:
    """Return how long measuring takes where the GPU is, or a processor in its place."""
    # Flushing the caches and the lead that launching needs take their time before every call.
    overhead_us = 1_000.0 if found is None else 2_500.0
    return Pace(unit_overhead_us=overhead_us, start_s=60.0, launch_timeout_s=5.0)


def floor_on(found: gpu.Gpu | None, definition: Definition, axes: Mapping[str, int]) -> float:
    """Return a time that no launch on this GPU can beat; 0 without one."""
    if found is None:
        return 0.0
    return gpu_floor_us(definition, axes, arch=found.arch, cache=found.cache_bytes)


class TritonGpu:
    """Triton for this machine's GPU; without one, the interpreter."""

    language = Language.TRITON

    def __init__(self) -> None:
        self._gpu = gpu.find_gpu()
        server = gpu_server({} if self._gpu is not None else {"TRITON_INTERPRET": "1"})
        self.program = gpu_program(self._gpu, start=server.start, warm=server.warm)
        self.pace = gpu_pace(self._gpu)

    def environment(self) -> Environment:
        """See `gpu_environment`."""
        return gpu.gpu_environment()

    def build(
        self,
        solution: Solution,
        definition: Definition,
        *,
        folder: Path,
        shapes: Shapes = (),
        limits: CompileLimits | None = None,
    ) -> Artifact:
        """See `triton.build`."""
        built = triton.build(solution, definition, cache_dir=folder, shapes=shapes, limits=limits)
        launch = triton_contract.launch_of(solution, definition)
        variant = variant_of(solution, definition, library=built.path)
        return Artifact(
            variant=replace(
                variant,
                launch=launch,
                note=built.note,
                audit=tuple(report.model_dump(mode="json") for report in built.reports),
            ),
            sha256=built.sha256,
            file_name="kernel.py",
            manifest={"grid": list(solution.grid), **triton_contract.manifest_of(solution)},
        )

    def floor_us(self, definition: Definition, axes: Mapping[str, int], *, parts: int) -> float:
        """See `gpu_floor_us`; the interpreter has no physics."""
        del parts
        return floor_on(self._gpu, definition, axes)


def _gpu_cpp() -> Toolchain:
    from retuned.lab.toolchain_gpu_cpp import GpuCpp  # it imports this module

    return GpuCpp()


_TOOLCHAINS: Mapping[Language, Callable[[], Toolchain]] = {
    Language.CPU_CPP: CpuCpp,
    Language.TRITON: TritonGpu,
    Language.GPU_CPP: _gpu_cpp,
}


def measured() -> tuple[Language, ...]:
    """Return the languages that variants can be measured in by this version."""
    return tuple(_TOOLCHAINS)


@cache
def toolchain_for(language: Language) -> Toolchain:
    """Return this machine's toolchain of a language; one per process.

    Raises
    ------
    UsageError
        If this version has none.
    """
    try:
        return _TOOLCHAINS[language]()
    except KeyError:
        raise UsageError(f"variants in {language} cannot be measured by this version") from None


def environment_of(language: Language) -> Environment:
    """Describe this machine as evidence about variants in a language is bound to it.

    Raises
    ------
    MissingDependency
        If the compiler or package it needs is absent.
    """
    return toolchain_for(language).environment()


def clone_of(variant: Variant) -> Variant:
    """Return the same bytes under another path, so that they are loaded a second time."""
    path = variant.library.with_suffix(f".clone{variant.library.suffix}")
    if not path.exists():
        partial = path.with_suffix(".partial")
        shutil.copyfile(variant.library, partial)
        partial.replace(path)
    return replace(variant, library=path)


def lend_tools(source: Variant, target: Variant) -> None:
    """Give a variant's children what compiling the other one left: launchers, the vendor's stubs.

    Each variant's children keep compiled code in a folder of its own, so that no candidate finds
    what another left. What a C compiler builds for every launch is the same for all; it comes from
    the incumbent's folder, and costs seconds otherwise.
    """
    given, wanted = cache_of(source.library), cache_of(target.library)
    if wanted.exists() or not given.is_dir():
        return
    partial = wanted.with_suffix(f".{os.getpid()}.partial")
    try:
        shutil.copytree(given, partial)
        partial.rename(wanted)
    except OSError:  # only slower without
        shutil.rmtree(partial, ignore_errors=True)


def is_timed(environment: Environment) -> bool:
    """Whether times measured there mean anything: an interpreter's do not."""
    return environment.arch != gpu.INTERPRETED
