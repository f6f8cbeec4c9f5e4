"""vLLM's look-up of configurations for fused mixture-of-experts kernels, run without a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import triton
import triton.language as tl
from tests.servers.sources import running

PACKAGE = "vllm.model_executor.layers.fused_moe"
MODULE = f"{PACKAGE}.fused_moe"


@contextmanager
def fused_moe(folder: Path, tuned: Path | None = None) -> Iterator[ModuleType]:
    """Import the look-up's module of one version, on an H200; with a user's folder where given."""
    names: dict[str, Mapping[str, Any]] = {
        "vllm.envs": {
            "VLLM_BATCH_INVARIANT": False,
            "VLLM_TUNED_CONFIG_FOLDER": tuned and str(tuned),
        },
        "vllm.platforms": {"current_platform": SimpleNamespace(is_rocm=lambda: False)},
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        "vllm.utils.platform_utils": {"get_device_name_as_file_name": lambda: "NVIDIA_H200"},
        PACKAGE: {"get_config": lambda: None},
    }
    with running(folder, [MODULE], names) as modules:
        yield modules[MODULE]


def asked(module: ModuleType, tokens: int, *, experts: int = 128) -> dict[str, int]:
    """Ask as the layer does; 128 experts have a file in the package, and 7 have none."""
    answer: dict[str, int] = module.try_get_optimal_moe_config(
        (experts, 1536, 2048), (experts, 2048, 768), 8, None, tokens
    )
    return answer
