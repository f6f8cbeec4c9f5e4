"""Toolchains per language of variants; gates, statistics and verdict do not depend on them.

A toolchain checks and compiles (gates G1 and G2), describes the environment that evidence is bound
to, provides the program that runs variants, and sets pace and time-outs of measurements.
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
"""Tiles of a GPU kernel reach this far past a tensor without a mask or bounds."""

Shapes = Sequence[Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Time overheads of measurement, in addition to launches."""

    unit_overhead_us: float = 60.0
    """Overhead of an ABBA unit: poison, swaps, the interpreter."""
    start_s: float = 0.0
    """Maximum before the first candidate: imports, the incumbent's compilation."""
    launch_timeout_s: float = 2.0
    """Bound of one launch, beyond twenty times the incumbent's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """The file that a server loads."""

    variant: Variant
    sha256: str
    file_name: str
    manifest: Mapping[str, Any]


class Toolchain(Protocol):
    """One language on this machine."""

    language: Language
    program: ChildProgram
    pace: Pace

    def environment(self) -> Environment:
        """Describe the environment of evidence; see `cpu_environment` and `gpu_environment`."""
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
        del shapes
        built = cpu_cpp.compile_solution(solution, cache_dir=folder, limits=limits)
        variant = variant_of(solution, definition, library=built.path)
        return Artifact(variant=variant, sha256=built.sha256, file_name="kernel.so", manifest={})

    def floor_us(self, definition: Definition, axes: Mapping[str, int], *, parts: int) -> float:
        return floor_us(definition, axes, parts=parts)


def gpu_server(environment: Mapping[str, str], *, paths: Sequence[str] = ()) -> ForkServer:
    """Return the server that forks children that drive a GPU.

    Children get `environment` in addition to the variables of GPU runtimes, and may read `paths` in
    addition to this package and Python's.
    """
    readable = [str(_ROOT), *sys.path, *paths]
    return ForkServer(_GPU_CHILD, paths=readable, environment={**gpu.variables(), **environment})


def gpu_program(
    found: gpu.Gpu | None, *, start: Starter, warm: Callable[[], None], **settings: object
) -> ChildProgram:
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
    # Flushing the caches and the lead that launching needs take their time before every call.
    overhead_us = 1_000.0 if found is None else 2_500.0
    return Pace(unit_overhead_us=overhead_us, start_s=60.0, launch_timeout_s=5.0)


def floor_on(found: gpu.Gpu | None, definition: Definition, axes: Mapping[str, int]) -> float:
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
    """Describe this machine as the environment of evidence about a language.

    Raises
    ------
    MissingDependency
        If a required compiler or package is absent.
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
    """Give a variant's children the launchers and vendor stubs that another compilation left.

    Each variant's children use a separate cache folder, so that a candidate cannot read what
    another left. The C compiler's output per launch is the same for all. It comes from the
    incumbent's folder, which saves seconds.
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
    """Whether times measured there are meaningful: an interpreter's are not."""
    return environment.arch != gpu.INTERPRETED
