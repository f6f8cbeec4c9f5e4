"""GPU C++ toolchain: compiles and audits on any machine, runs and times on a GPU only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from retuned.contract import Definition, Environment, Language, Solution
from retuned.errors import MissingDependency
from retuned.lab.harness.processes import Child, ForkServer, Starter
from retuned.lab.harness.variant import variant_of
from retuned.lab.languages import gpu, gpu_cpp
from retuned.lab.languages.limits import CompileLimits
from retuned.lab.toolchain import (
    Artifact,
    Shapes,
    floor_on,
    gpu_pace,
    gpu_program,
    gpu_server,
)


class GpuCpp:
    """GPU C++ for this machine's GPU; without one, gates G1 and G2 only.

    `driver` is the path of a driver that simulates a device in host memory, for tests. None uses
    the GPU's; without a GPU variants cannot run.
    """

    language = Language.GPU_CPP

    def __init__(self, *, driver: str | None = None) -> None:
        self._gpu = gpu.find_gpu() if driver is None else None
        self._server: ForkServer | None = None
        start, warm = _needs_a_gpu, lambda: None
        if self._gpu is not None or driver is not None:
            own = [str(Path(driver).parent)] if driver is not None else []
            self._server = gpu_server({}, paths=own)
            start, warm = self._server.start, self._server.warm
        self.program = gpu_program(self._gpu, start=start, warm=warm, driver=driver)
        self.pace = gpu_pace(self._gpu)

    def close(self) -> None:
        """End the process that forks children; a toolchain may also leave it running."""
        if self._server is not None:
            self._server.close()

    def environment(self) -> Environment:
        return gpu_cpp.gpu_cpp_environment()

    def build(
        self,
        solution: Solution,
        definition: Definition,
        *,
        folder: Path,
        shapes: Shapes = (),
        limits: CompileLimits | None = None,
    ) -> Artifact:
        built = gpu_cpp.build(solution, definition, cache_dir=folder, shapes=shapes, limits=limits)
        variant = variant_of(solution, definition, library=built.path)
        return Artifact(
            variant=replace(
                variant,
                launch=gpu_cpp.launch_of(solution, definition),
                note=built.note,
                audit=(built.report.model_dump(mode="json"),),
            ),
            sha256=built.sha256,
            file_name=f"kernel{built.path.suffix}",
            manifest={"grid": list(solution.grid), "arch": built.arch},
        )

    def floor_us(self, definition: Definition, axes: Mapping[str, int], *, parts: int) -> float:
        del parts
        return floor_on(self._gpu, definition, axes)


def _refuse(memory: int) -> tuple[Child, int]:
    raise MissingDependency(
        "running and timing GPU C++ needs a GPU, and this machine has none; without one, compile "
        "and audit it: retuned audit FILE --arch sm_90"
    )


_needs_a_gpu: Starter = _refuse
