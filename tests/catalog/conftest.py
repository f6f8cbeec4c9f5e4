from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from retuned.contract import Definition, Solution, digest_of
from retuned.runtime.native.cpu import CpuKernel

Build = Callable[[Definition, Solution], CpuKernel]

FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-ffp-contract=fast", "-std=c++17")


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compile each source and point once a session, with the flags of production.

    The sources do not know which definition they are compiled for, nor into how many parts a
    launch is split, so that one object serves all of these.
    """
    folder = tmp_path_factory.mktemp("kernels")
    libraries: dict[str, Path] = {}

    def load(definition: Definition, solution: Solution) -> CpuKernel:
        point = {name: value for name, value in solution.params.items() if name != "THREADS"}
        texts = [[source.path, source.content] for source in solution.sources]
        assert not any("THREADS" in text for _, text in texts)
        key = digest_of([texts, point]).removeprefix("sha256:")
        library = libraries.setdefault(key, folder / f"{key}.so")
        if not library.exists():
            _compile(solution, folder, library, FLAGS)
        return CpuKernel(
            library,
            solution.entry,
            tensors=len(definition.inputs) + len(definition.outputs),
            axes=len(definition.axes),
            parts=int(solution.params["THREADS"]),
            scratch_bytes=solution.scratch_bytes,
        )

    return load


@pytest.fixture(scope="session")
def compile_plain() -> Callable[[Solution, Path, Path, tuple[str, ...]], None]:
    """Compile with other flags."""
    return _compile


def _compile(solution: Solution, folder: Path, library: Path, flags: tuple[str, ...]) -> None:
    for source in solution.sources:
        (folder / source.path).write_text(source.content)
    defines = [f"-D{key}={value}" for key, value in solution.params.items()]
    main = str(folder / solution.sources[0].path)
    command = ["g++", *flags, *defines, "-shared", "-fPIC", "-w", main, "-o", str(library)]
    subprocess.run(command, check=True, timeout=250)
