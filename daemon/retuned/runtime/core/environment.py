"""Environment of this process, to which evidence is bound.

No device is initialised to read it: PyTorch is queried only if it is loaded and its device is
already in use.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import sys
from functools import cache
from typing import Any

SWITCHES = (
    "TRITON_DEFAULT_FP_FUSION",
    "TRITON_F32_DEFAULT",
    "TRITON_ALLOW_NON_CONSTEXPR_GLOBALS",
    "NVIDIA_TF32_OVERRIDE",
    "AMDGCN_USE_BUFFER_OPS",
    "DISABLE_LLVM_OPT",
)
"""Variables that change what Triton compiles; the lab's evidence lists the same."""
_DRIVERS = (
    ("/proc/driver/nvidia/version", r"Module.*?\s(\d+\.[\d.]+)"),
    ("/sys/module/amdgpu/version", r"(\S+)"),
)


def environment() -> dict[str, Any]:
    """Return the known facts as JSON data for the control socket.

    Empty text for an unknown fact.
    """
    torch = sys.modules.get("torch")
    return {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": _torch_version(torch),
        "triton": _version("triton"),
        "cpu": f"cpu:{_processor()}",
        **_device(torch),
        "numerics": {name: os.environ[name] for name in SWITCHES if name in os.environ},
    }


def device_in_use(torch: Any) -> int | None:  # noqa: ANN401 - a module
    """Return the device that this process works on, without creating a context."""
    for index in range(torch.cuda.device_count()):
        if torch.cuda.memory_reserved(index) > 0:
            return index
    return None


def _device(torch: Any) -> dict[str, str]:  # noqa: ANN401 - a module, or None
    unknown = dict.fromkeys(("device", "device_name", "driver", "runtime"), "")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return unknown
        facts = torch.cuda.get_device_properties(torch.cuda.current_device())
        hip = getattr(torch.version, "hip", None)
        gfx = str(getattr(facts, "gcnArchName", "")).partition(":")[0]
        return {
            "device": gfx if hip else f"sm_{facts.major}{facts.minor}",
            "device_name": str(facts.name),
            "driver": _driver(),
            "runtime": f"rocm {hip}" if hip else f"cuda {torch.version.cuda}",
        }
    except (AttributeError, RuntimeError, AssertionError, TypeError):
        # a PyTorch without devices, a lost device, another object under the name torch
        return unknown


def _torch_version(torch: Any) -> str:  # noqa: ANN401 - a module, or None
    """Return the version as the lab reads it; ``__version__`` of the same wheel adds +cu130."""
    if torch is None:
        return ""
    return _version("torch") or str(getattr(torch, "__version__", ""))


@cache
def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


@cache
def _processor() -> str:
    """Name the processor as the lab does: its model, and a hash of its feature flags."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return "unknown"
    models = re.findall(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.findall(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    stamp = hashlib.sha256((flags[0] if flags else "").encode()).hexdigest()[:8]
    return f"{models[0].strip() if models else 'unknown'} ({stamp})"


@cache
def _driver() -> str:
    for path, pattern in _DRIVERS:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                found = re.search(pattern, file.read(1 << 16))
        except OSError:
            continue
        if found:
            return found[1]
    return ""


_ENGINES = ("vllm", "sglang")


def engine() -> str:
    """Return name and version of the inference engine that is loaded; empty if none is known."""
    for name in _ENGINES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            return f"{name} {version}"[:100]
    return ""
