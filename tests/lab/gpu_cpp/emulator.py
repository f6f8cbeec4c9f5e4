"""Plays a GPU in this processor's memory: a driver made of C++, and device sources made for it."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

from retuned.contract import Definition, Solution
from retuned.lab.languages.gpu_cpp_contract import HEADER, header_text
from retuned.lab.languages.limits import CompileLimits
from retuned.lab.toolchain import Artifact, Shapes
from retuned.lab.toolchain_gpu_cpp import GpuCpp

HERE = Path(__file__).resolve().parent
_FLAGS = ("-std=c++17", "-shared", "-fPIC", "-w", "-fvisibility=default")
_DYNAMIC = re.compile(r"extern\s+__shared__\s+(\w+)\s+(\w+)\[\];")


def build_driver(folder: Path) -> Path:
    """Compile the driver; kernels are looked for beside it."""
    path = folder / "libfakegpu.so"
    _compile([*_FLAGS, "-O1", "-o", str(path), str(HERE / "fake_driver.cpp"), "-ldl"])
    return path


def emulate(solution: Solution, image: bytes, *, driver: Path) -> Path:
    """Compile a device source for this processor, and put it where the driver finds it."""
    path = driver.with_name(f"{hash_of(image):016x}.so")
    if path.exists():
        return path
    folder = driver.with_name(f"{path.stem}.src")
    folder.mkdir(exist_ok=True)
    (folder / HEADER).write_text(header_text())
    for source in solution.sources:
        text = _DYNAMIC.sub(r"\1* \2 = (\1*)emulated::dynamic_shared;", source.content)
        (folder / source.path).write_text(text)
    main = folder / "main.cpp"
    main.write_text(f'#include "{solution.sources[0].path}"\n#include "emulated_run.h"\n')
    defines = [f"-D{name}={value}" for name, value in solution.params.items()]
    words = [*_FLAGS, "-O2", "-ffp-contract=off", *defines, f"-DENTRY={solution.entry}"]
    words += ["-include", str(HERE / "emulated_device.h"), f"-I{HERE}", f"-I{folder}"]
    _compile([*words, "-o", str(path), str(main)])
    return path


def hash_of(image: bytes) -> int:
    """Hash an ELF file up to the end of its section table, as the driver does: FNV-1a, 64 bits."""
    (offset,) = struct.unpack_from("<Q", image, 40)
    size, count = struct.unpack_from("<HH", image, 58)
    found = 14695981039346656037
    for byte in image[: offset + size * count]:
        found = (found ^ byte) * 1099511628211 % 2**64
    return found


class EmulatedGpuCpp(GpuCpp):
    """The toolchain of GPU C++ with a played device: compiled and audited as ever, and played."""

    def __init__(self, driver: Path) -> None:
        super().__init__(driver=str(driver))
        self._path = driver

    def build(
        self,
        solution: Solution,
        definition: Definition,
        *,
        folder: Path,
        shapes: Shapes = (),
        limits: CompileLimits | None = None,
    ) -> Artifact:
        """Build, and make what the driver runs."""
        built = super().build(solution, definition, folder=folder, shapes=shapes, limits=limits)
        emulate(solution, built.variant.library.read_bytes(), driver=self._path)
        return built


def _compile(words: list[str]) -> None:
    done = subprocess.run(["g++", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
