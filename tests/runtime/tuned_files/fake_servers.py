"""Servers as far as they read tuned-config files: caches, folders and lookups, invented here.

`test_real_servers` runs the servers' own functions through the same service.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

VLLM = "vllm.model_executor.layers.fused_moe.fused_moe"
SGLANG = "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_config"
AITER = "aiter.tuned_gemm"
TUNABLE = "torch.cuda.tunable"


def default(m: int) -> dict[str, int]:
    return {"BLOCK_SIZE_M": 16 if m <= 64 else 128}


def nearest(configs: dict[int, Any] | None, m: int) -> Any:
    if not configs:
        return default(m)
    return configs[min(configs.keys(), key=lambda x: abs(x - m))]


def read(path: Path) -> dict[int, Any]:
    body = json.loads(path.read_text())
    body.pop("triton_version", None)
    return {int(key): value for key, value in body.items()}


def vllm(folder: Path | None, package: Path) -> Any:
    module: Any = ModuleType(VLLM)
    module.__file__ = str(package / "fused_moe.py")
    module.envs = SimpleNamespace(VLLM_TUNED_CONFIG_FOLDER=str(folder) if folder else None)

    def name(e: int, n: int, dtype: str | None, block: list[int] | None = None) -> str:
        return f"E={e},N={n},device_name=X{f',dtype={dtype}' if dtype else ''}.json"

    @functools.lru_cache
    def configs(e: int, n: int, dtype: str | None, bn: int = 0, bk: int = 0) -> Any:
        for at in (folder, package / "configs"):
            if at is not None and (at / name(e, n, dtype)).exists():
                return read(at / name(e, n, dtype))
        return None

    def optimal(w1: Any, w2: Any, top_k: int, dtype: Any, m: int, block: Any = None) -> Any:
        wide = w2[2] * 2 if dtype == "int4_w4a16" else w2[2]
        return nearest(module.get_moe_configs(w2[0], wide, dtype, 0, 0), m)

    module.get_config_file_name = name
    module.get_moe_configs = configs
    module.try_get_optimal_moe_config = optimal
    return module


def sglang(root: Path, version: str) -> Any:
    module: Any = ModuleType(SGLANG)

    def name(e: int, n: int, dtype: Any, block: Any, channel: bool, down_moe: bool = False) -> str:
        return f"E={e},N={n},device_name=X{'_down' if down_moe else ''}.json"

    @functools.lru_cache
    def configs(e: int, n: int, down: bool) -> Any:
        versions = [version.replace(".", "_"), "3_6_0", "3_1_0"]
        for each in versions:
            path = root / "configs" / f"triton_{each}" / name(e, n, None, None, False, down)
            if path.exists():
                return read(path)
        return configs(e, n, False) if down else None

    def optimal(
        w1: Any, w2: Any, top_k: int, dtype: Any, m: int, *, block_shape: Any,
        per_channel_quant: bool, return_down_config: bool,
    ) -> Any:  # fmt: skip
        found = nearest(configs(w2[0], w2[2], False), m)
        if return_down_config:
            return found, (nearest(configs(w2[0], w2[2], True), m), 0)
        return found

    module.get_config_file_name = name
    module.get_moe_configs = configs
    module.try_get_optimal_moe_config = optimal
    return module


class AiterConfigs:
    def __init__(self, path: Path) -> None:
        self._path = path

    @functools.lru_cache(maxsize=20)  # noqa: B019 - as it is there
    def get_config_file(self) -> str:
        return str(self._path)


def aiter(path: Path) -> Any:
    module: Any = ModuleType(AITER)
    module.AITER_CONFIGS = AiterConfigs(path)

    def padded(m: int, n: int, k: int, level: int) -> int:
        if level == 1:
            return 8192 if m > 8192 and n > 4096 else 1 << max(m - 1, 0).bit_length()
        step = 16 if m <= 256 else 32 if m <= 1024 else 64 if m <= 4096 else 128
        return (m + step - 1) // step * step

    @functools.lru_cache(maxsize=1)
    def table() -> dict[tuple[int, int, int], dict[str, Any]]:
        lines = Path(module.AITER_CONFIGS.get_config_file()).read_text().splitlines()
        header = lines[0].split(",")
        rows = [dict(zip(header, line.split(","), strict=True)) for line in lines[1:]]
        return {
            (int(r["M"]), int(r["N"]), int(r["K"])): r
            | {"solidx": int(r["solidx"]), "splitK": int(r["splitK"]), "us": float(r["us"])}
            for r in rows
        }

    @functools.lru_cache(maxsize=4096)
    def config(m: int, n: int, k: int, *rest: Any) -> dict[str, Any]:
        for key in (m, padded(m, n, k, 0), padded(m, n, k, 1)):
            if (key, n, k) in table():
                return table()[key, n, k]
        return {"libtype": "torch", "solidx": 0}

    module.get_padded_m = padded
    module.get_GEMM_A16W16_config_ = table
    module.get_GEMM_A16W16_config = config
    return module


class Tunable(ModuleType):
    """PyTorch's results: rows that are there are never replaced, only all of them cleared."""

    def __init__(self, path: Path) -> None:
        super().__init__(TUNABLE)
        self.path = path
        self.on, self.tuning = True, False
        self.rows: dict[tuple[str, str], str] = {}
        self.read_file(str(path))

    def is_enabled(self) -> bool:
        return self.on

    def tuning_is_enabled(self) -> bool:
        return self.tuning

    def get_filename(self) -> str:
        return str(self.path)

    def get_results(self) -> list[tuple[str, str, str, float]]:
        return [(*key, solution, 0.0) for key, solution in self.rows.items()]

    def read_file(self, path: str) -> bool:
        for line in Path(path).read_text().splitlines():
            cells = line.split(",")
            if cells[0] != "Validator":
                self.rows.setdefault((cells[0], cells[1]), cells[2])
        return True

    def _clear_all(self) -> None:
        self.rows.clear()
