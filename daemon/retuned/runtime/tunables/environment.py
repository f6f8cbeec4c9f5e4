"""What an experiment in the server's environment needs: interpreter, paths, variables, device."""

from __future__ import annotations

import os
import sys
from typing import Any

from retuned.runtime.core.environment import device_in_use

_VARIABLES = ("VLLM_", "SGLANG_", "TRITON_", "TORCHINDUCTOR_", "CUDA_", "HIP_", "LD_LIBRARY_PATH")
"""Variables that an experiment in this server's environment needs."""
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")


def environment() -> dict[str, Any]:
    """Return what an experiment in this server's environment needs."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("torch", "triton", "vllm", "sglang"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            versions[name] = str(version)
    variables = {
        name: value[:4096]
        for name, value in os.environ.items()
        if name.startswith(_VARIABLES) and not any(word in name.upper() for word in _SECRET)
    }
    return {
        "pid": os.getpid(),
        "executable": sys.executable,
        "path": [each for each in sys.path if each],
        "flags": {
            "no_site": sys.flags.no_site,
            "safe_path": getattr(sys.flags, "safe_path", False),
        },
        "versions": versions,
        "variables": variables,
        "device": _device(),
    }


def _device() -> dict[str, Any] | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    index = device_in_use(torch)
    if index is None:
        return None
    known = torch.cuda.get_device_properties(index)
    free, _ = torch.cuda.mem_get_info(index)
    return {
        "index": index,
        "name": known.name,
        "uuid": str(getattr(known, "uuid", "")),
        "memory_free_bytes": free,
    }
