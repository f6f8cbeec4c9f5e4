"""GPU of this machine, as part of the environment of evidence, queried in a separate process.

The lab's process must not import PyTorch: it would hold device memory, and children must fork from
a process that did not touch the device.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from retuned.contract import Environment
from retuned.errors import MissingDependency

INTERPRETED = "interpreter"
"""Architecture without a GPU: kernels are interpreted, and times are meaningless."""
NUMERICS = (
    "TRITON_DEFAULT_FP_FUSION",
    "TRITON_F32_DEFAULT",
    "TRITON_ALLOW_NON_CONSTEXPR_GLOBALS",
    "NVIDIA_TF32_OVERRIDE",
    "AMDGCN_USE_BUFFER_OPS",
    "DISABLE_LLVM_OPT",
)
"""Variables that change Triton's output; children inherit them and evidence names them."""
_DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")
_VISIBLE = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "ROCM_PATH",
    "PATH",
)
_PROBE_S = 180.0
_PROBE = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
import torch
body = None
if torch.cuda.is_available():
    p = torch.cuda.get_device_properties(0)
    gfx = getattr(p, "gcnArchName", "").partition(":")[0]
    hip = getattr(torch.version, "hip", None)
    body = {
        "name": p.name,
        "arch": gfx if hip else f"sm_{p.major}{p.minor}",
        "runtime": f"rocm {hip}" if hip else f"cuda {torch.version.cuda}",
        "memory_bytes": p.total_memory,
        "cache_bytes": getattr(p, "L2_cache_size", 0),
        "units": p.multi_processor_count,
        "shared_bytes": getattr(p, "shared_memory_per_block_optin", 0),
        "api": str(getattr(torch._C, "_cuda_getDriverVersion", lambda: "")()),
    }
print(json.dumps(body))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The first visible GPU."""

    name: str
    arch: str
    driver: str
    runtime: str
    """CUDA or ROCm version of PyTorch."""
    memory_bytes: int
    cache_bytes: int
    """Last-level cache that the device reports; 0 where unknown."""
    units: int
    shared_bytes: int
    """Maximum of shared memory per program; 0 where unknown."""

    @property
    def target(self) -> tuple[str, int | str, int]:
        """Backend, architecture and lanes, as in Triton's ``GPUTarget``."""
        return target_of(self.arch)


def target_of(arch: str) -> tuple[str, int | str, int]:
    """Return Triton's target of an architecture.

    Examples
    --------
    >>> target_of("sm_90"), target_of("gfx942")
    (('cuda', 90, 32), ('hip', 'gfx942', 64))
    """
    if arch.startswith("sm_"):
        return "cuda", int(arch.removeprefix("sm_")), 32
    return "hip", arch, 64 if arch.startswith("gfx9") else 32


@cache
def find_gpu() -> Gpu | None:
    """Return this machine's GPU; None without one, or if PyTorch cannot use it.

    Raises
    ------
    MissingDependency
        If there is a GPU and the query process fails.
    """
    if not any(Path(path).exists() for path in _DEVICES):
        return None
    words = [sys.executable, "-I", "-S", "-B", "-c", _PROBE, json.dumps(sys.path)]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_PROBE_S, check=False, env=variables()
        )
        body = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise MissingDependency(
            "this machine has a GPU, but PyTorch cannot query it; is torch installed for "
            f"its vendor? ({type(error).__name__})"
        ) from error
    if body is None:
        return None
    api = body.pop("api")
    return Gpu(driver=_driver() or f"api {api}", **body)


def shared_limit(arch: str) -> int | None:
    gpu = find_gpu()
    if gpu is not None and gpu.arch == arch and gpu.shared_bytes:
        return gpu.shared_bytes
    return None


@cache
def gpu_environment() -> Environment:
    """Describe this machine's GPU and the compilers; the interpreter without a GPU.

    Raises
    ------
    MissingDependency
        If PyTorch or Triton is not installed.
    """
    versions = {name: _version(name) for name in ("torch", "triton")}
    numerics = {name: os.environ[name] for name in NUMERICS if name in os.environ}
    gpu = find_gpu()
    compiler = f"triton {versions['triton']}"
    if gpu is None:
        return Environment(arch=INTERPRETED, compiler=compiler, numerics=numerics, **versions)
    return Environment(
        arch=gpu.arch,
        driver=gpu.driver,
        runtime=gpu.runtime,
        compiler=compiler,
        numerics={"GPU_NAME": gpu.name, **numerics},
        **versions,
    )


def variables() -> dict[str, str]:
    base = {"LC_ALL": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"}
    named: Mapping[str, str] = os.environ
    return base | {name: named[name] for name in (*_VISIBLE, *NUMERICS) if name in named}


def _driver() -> str:
    for path, pattern in (
        ("/proc/driver/nvidia/version", r"Module.*?\s(\d+\.[\d.]+)"),
        ("/sys/module/amdgpu/version", r"(\S+)"),
    ):
        try:
            found = re.search(pattern, Path(path).read_text("utf-8", "replace"))
        except OSError:
            continue
        if found:
            return found[1]
    return ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise MissingDependency(
            f"{package} is not installed: pip install 'retuned[experiment]'"
        ) from None
