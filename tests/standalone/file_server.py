"""A server whose one kernel is configured by a file, as a process: its lookup, its caches.

It reads as vLLM does, or what `RETUNED_TEST_READS` names: `aiter`, `tunable-op`, or `nothing`.

Run as ``python -m tests.standalone.file_server SOCKET_DIR CONFIG_FOLDER PACKAGE_FOLDER``. Prints
``ready``. Each line on stdin is a list of batch sizes; each line on stdout what is picked for them.
Ends when stdin is closed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.runtime.tuned_files import fake_servers as fakes

from retuned.runtime import attach

PRODUCT = (512, 256)
"""Columns and depth of a linear layer."""
SHAPES = ((8, 256, 256), (8, 256, 128))
"""Weights of a mixture of 8 experts of width 128 over 256."""


def serve(sockets: Path, folder: Path, package: Path) -> None:
    """Answer until stdin ends."""
    reads = os.environ.get("RETUNED_TEST_READS")
    module = fakes.vllm(folder, package)
    if reads is None:
        sys.modules[fakes.VLLM] = module
    if os.environ.get("RETUNED_TEST_CACHE") == "stuck":
        module.get_moe_configs = _stuck(module.get_moe_configs)
    if defaults := json.loads(os.environ.get("RETUNED_TEST_DEFAULTS", "null")):
        vars(fakes)["default"] = lambda m: defaults[m > 64]
    runtime = attach(server="file-test", socket_dir=sockets)
    runtime.tune_files()
    pick = _table(reads, folder) or (
        lambda m: module.try_get_optimal_moe_config(*SHAPES, 2, None, m, None)
    )
    print("ready", flush=True)  # noqa: T201
    for line in sys.stdin:
        found = [pick(m) for m in json.loads(line)]
        print(json.dumps(found), flush=True)  # noqa: T201
    runtime.close()


def _table(reads: str | None, folder: Path) -> Callable[[int], Any] | None:
    """Load what reads a table; return its lookup for products of `PRODUCT`."""
    n, k = PRODUCT
    if reads == "aiter":
        path = Path(os.environ["AITER_CONFIG_GEMM_BF16"])
        aiter = sys.modules[fakes.AITER] = fakes.aiter(path)
        return lambda m: aiter.get_GEMM_A16W16_config(m, n, k).get("kernelName")
    if reads == "tunable-op":
        results = sys.modules[fakes.TUNABLE] = fakes.Tunable(folder / "tunableop_results0.csv")
        params = "tn_{n}_{m}_{k}_ld_{k}_{k}_{n}"
        operator = "GemmTunableOp_BFloat16_TN"
        return lambda m: results.rows.get((operator, params.format(n=n, m=m, k=k)))
    return None


def _stuck(read: Any) -> Any:
    """Return a cache that says that it was emptied, and was not."""

    def configs(*key: Any) -> Any:
        return read(*key)

    configs.cache_clear = lambda: None  # type: ignore[attr-defined]
    return configs


if __name__ == "__main__":
    serve(*map(Path, sys.argv[1:4]))
