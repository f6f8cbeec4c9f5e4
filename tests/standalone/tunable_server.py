"""A server whose kernel is autotuned, as a process: Triton's interpreter, a real `Autotuner`.

Run as ``python -m tests.standalone.tunable_server SOCKET_DIR FOLDER``, or as a fork of a process
that has imported PyTorch (`forked_servers`); `FOLDER` gets the module of the kernel. Prints
``ready``. Each line on stdin is ``[size, launches]``; each line on stdout the largest difference
from the right answer and the largest block that ran. Ends with stdin.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

from retuned.runtime import attach

MODULE = "tuned_server_kernels"
KERNEL = """

import triton
import triton.language as tl

@triton.jit
def _doubled(x_ptr, out_ptr, n, wide, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(out_ptr + at, x * 2.0, mask=at < n)

CONFIGS = [
    triton.Config({"BLOCK": block}, num_warps=2, num_stages=1) for block in (16, 64, 256)
]
doubled = triton.autotune(configs=CONFIGS, key=["wide"])(_doubled)
"""


def serve(sockets: Path, folder: Path) -> None:
    """Answer until stdin ends."""
    import torch

    # which of the configurations the server has chosen once, at a warm-up size
    frozen = int(os.environ.get("RETUNED_TEST_FROZEN", "0"))
    indexed = bool(os.environ.get("RETUNED_TEST_INDEX"))
    text = KERNEL
    if indexed:  # whole numbers, whose values an experiment needs
        text = text.replace("out_ptr, n,", "out_ptr, index_ptr, n,")
        text = text.replace("x * 2.0", "x * 2.0 + tl.load(index_ptr)")
    text = text.replace("x * 2.0", os.environ.get("RETUNED_TEST_PRODUCT", "x * 2.0"))
    (folder / f"{MODULE}.py").write_text(text)
    sys.path.insert(0, str(folder))
    import tuned_server_kernels as kernels  # type: ignore[import-not-found]

    types = ("torch.float32", "torch.float32", *(("torch.int64",) if indexed else ()))
    kernels.doubled.cache[(1, *types)] = kernels.CONFIGS[frozen]
    runtime = attach(server="tuned-test", socket_dir=sockets)
    runtime.tune_tables()
    ran: list[int] = []

    launch = kernels.doubled.fn.run

    def spied(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("warmup"):  # else it only compiles
            ran.append(kwargs["BLOCK"])
        return launch(*args, **kwargs)

    kernels.doubled.fn.run = spied

    def grid(meta: dict[str, int]) -> tuple[int]:
        return (-(-size // meta["BLOCK"]),)

    print("ready", flush=True)  # noqa: T201
    for line in sys.stdin:
        size, times = json.loads(line)
        x, out = torch.randn(size), torch.empty(size)
        ran.clear()
        index = (torch.zeros(1, dtype=torch.int64),) if indexed else ()
        for _ in range(times):
            kernels.doubled[grid](x, out, *index, n=size, wide=1)
        worst = float((out - 2.0 * x).abs().max())
        print(json.dumps([worst, max(ran)]), flush=True)  # noqa: T201
    runtime.close()


if __name__ == "__main__":
    serve(*map(Path, sys.argv[1:3]))
