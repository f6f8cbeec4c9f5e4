"""Finds GPU C++ compilers on a machine without a GPU: NVRTC, hipRTC, or clang.

NVRTC comes with PyTorch for CUDA, hipRTC with ROCm and its PyTorch. Without either, a clang that
supports AMD's GPUs is used. This process loads none of them: versions are queried in the compiler's
process.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from retuned.errors import MissingDependency

Kind = Literal["nvrtc", "hiprtc", "clang"]

NVIDIA_OPTIONS = (
    "-std=c++17",
    "--fmad=true",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--extra-device-vectorization",
    "--no-source-include",
)
"""Options of NVRTC; some affect rounding, so all belong to the environment."""
AMD_OPTIONS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-fno-fast-math")
CLANG_OPTIONS = (
    *("-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib"),
    "-fuse-cuid=none",
    *("-fno-exceptions", "-fno-rtti", "-ferror-limit=3", "-w", "-I."),
)
_NVRTC = re.compile(r"libnvrtc\.so\.(\d+)(\.\d+)*")
_HIPRTC = re.compile(r"libhiprtc\.so(\.\d+)*")
_CLANGS = ("amdclang++", *(f"clang-{version}" for version in range(22, 16, -1)), "clang")
_ROCM = "/opt/rocm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    kind: Kind
    path: str

    def options(self, arch: str, *, threads: int) -> tuple[str, ...]:
        if self.kind == "nvrtc":
            return (f"--gpu-architecture={arch}", *NVIDIA_OPTIONS)
        bound = f"--gpu-max-threads-per-block={threads}"
        own = CLANG_OPTIONS if self.kind == "clang" else ()
        return (*own, f"--offload-arch={arch}", *AMD_OPTIONS, bound)


def compiler_for(arch: str) -> Compiler:
    """Return an installed compiler for an architecture.

    Raises
    ------
    MissingDependency
        If there is none; the message names what to install.
    """
    if arch.startswith("sm_"):
        library = find_nvrtc()
        if library is None:
            raise MissingDependency(
                "no libnvrtc: GPU C++ for NVIDIA is compiled by it; PyTorch for CUDA brings it "
                "(pip install torch), and so does a CUDA toolkit that CUDA_HOME names"
            )
        return Compiler(kind="nvrtc", path=str(library))
    library = find_hiprtc()
    if library is not None:
        return Compiler(kind="hiprtc", path=str(library))
    program = find_clang()
    if program is None:
        raise MissingDependency(
            "no libhiprtc and no clang: GPU C++ for AMD is compiled by one of them; ROCm brings "
            "the first (ROCM_PATH names it), Debian has the second as clang-19 with lld-19"
        )
    return Compiler(kind="clang", path=program)


@cache
def find_nvrtc() -> Path | None:
    folders = [
        folder
        for path in sys.path
        if path
        for folder in (*Path(path).glob("nvidia/*/lib"), *Path(path).glob("nvidia/*/lib64"))
    ]
    toolkit = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    return _newest(_NVRTC, folders) or _newest(_NVRTC, _library_folders(toolkit))


@cache
def find_hiprtc() -> Path | None:
    folders = [Path(path) / "torch/lib" for path in sys.path if path]
    rocm = os.environ.get("ROCM_PATH") or _ROCM
    return _newest(_HIPRTC, folders) or _newest(_HIPRTC, _library_folders(rocm))


@cache
def find_clang() -> str | None:
    rocm = os.environ.get("ROCM_PATH") or _ROCM
    where = os.pathsep.join([f"{rocm}/llvm/bin", os.environ.get("PATH", os.defpath)])
    return next(filter(None, (shutil.which(name, path=where) for name in _CLANGS)), None)


def _library_folders(root: str) -> list[Path]:
    places = [Path(root, name) for name in ("lib64", "lib")]
    return [*places, Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64")]


def _newest(pattern: re.Pattern[str], folders: Sequence[Path]) -> Path | None:
    found = [path for folder in folders for path in _listed(folder) if pattern.fullmatch(path.name)]
    return max(found, key=lambda path: _numbers(path.name), default=None)


def _listed(folder: Path) -> Iterator[Path]:
    try:
        yield from folder.iterdir()
    except OSError:  # absent, or not ours to read
        return


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", name))
