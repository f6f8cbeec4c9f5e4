"""A server that outlives the daemon: one slotted kernel, called all the time, every answer checked.

Run as ``python -m tests.standalone.kill_server SOCKET_DIR CACHE_DIR``. Prints ``ready``; ends when
stdin is closed, with one JSON object of what it counted. What the runtime logs goes to stderr.
"""

from __future__ import annotations

import json
import logging
import select
import sys
import time
from pathlib import Path

import torch

from retuned import catalog
from retuned.demo.kernels import Incumbent
from retuned.lab.languages.cpu_cpp import compile_solution
from retuned.runtime import attach

DEFINITION = "linear_w8_n128_k128"
ROWS = (8, 64)
_PAUSE_S = 0.002


def serve(sockets: Path, cache: Path) -> dict[str, int]:
    """Call the slot until stdin closes; return calls and wrong answers."""
    torch.manual_seed(3)
    entry = catalog.get(DEFINITION)
    library = compile_solution(entry.incumbent, cache_dir=cache).path
    original = Incumbent(entry.definition, entry.incumbent, library=library)
    runtime = attach(server="kill-test", socket_dir=sockets)
    slot = runtime.slot(entry.definition.model_dump(mode="json"), original=original)
    weight = torch.randint(-127, 128, (128, 128), dtype=torch.int8)
    scale = torch.rand(128) * 0.01 + 0.001
    inputs = [torch.randn(m, 128) for m in ROWS]
    expected = [original(x, weight, scale) for x in inputs]
    calls = wrong = 0
    print("ready", flush=True)  # noqa: T201
    with torch.inference_mode():
        while not select.select([sys.stdin], [], [], _PAUSE_S)[0]:
            for x, right in zip(inputs, expected, strict=True):
                calls += 1
                wrong += not torch.allclose(slot(x, weight, scale), right, rtol=1e-4, atol=1e-4)
    runtime.close()
    return {"calls": calls, "wrong": wrong}


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(created)f %(message)s")
    started = time.monotonic()
    counted = serve(Path(sys.argv[1]), Path(sys.argv[2]))
    print(json.dumps(counted | {"seconds": time.monotonic() - started}))  # noqa: T201
