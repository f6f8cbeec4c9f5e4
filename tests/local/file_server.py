"""A server whose one kernel is configured by a file, as a process: vLLM's lookup, its caches.

Run as ``python -m tests.local.file_server SOCKET_DIR CONFIG_FOLDER PACKAGE_FOLDER``. Prints
``ready``. Each line on stdin is a list of batch sizes; each line on stdout what is picked for them.
Ends when stdin is closed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.runtime.tuned import fake_servers as fakes

from retuned.runtime import attach

SHAPES = ((8, 256, 256), (8, 256, 128))
"""Weights of a mixture of 8 experts of width 128 over 256."""


def serve(sockets: Path, folder: Path, package: Path) -> None:
    """Answer until stdin ends."""
    module = fakes.vllm(folder, package)
    if os.environ.get("RETUNED_TEST_READS") != "nothing":
        sys.modules[fakes.VLLM] = module
    if os.environ.get("RETUNED_TEST_CACHE") == "stuck":
        module.get_moe_configs = _stuck(module.get_moe_configs)
    if defaults := json.loads(os.environ.get("RETUNED_TEST_DEFAULTS", "null")):
        vars(fakes)["default"] = lambda m: defaults[m > 64]
    runtime = attach(server="file-test", socket_dir=sockets)
    runtime.tune_files()
    print("ready", flush=True)  # noqa: T201
    for line in sys.stdin:
        pick = module.try_get_optimal_moe_config
        found = [pick(*SHAPES, 2, None, m, None) for m in json.loads(line)]
        print(json.dumps(found), flush=True)  # noqa: T201
    runtime.close()


def _stuck(read: Any) -> Any:
    """Return a cache that says that it was emptied, and was not."""

    def configs(*key: Any) -> Any:
        return read(*key)

    configs.cache_clear = lambda: None  # type: ignore[attr-defined]
    return configs


if __name__ == "__main__":
    serve(*map(Path, sys.argv[1:4]))
