"""Host cost of an intercepted Triton launch: stock, counted, and swapped to a prepared variant.

    python benchmarks/intercept.py [--blocks 60] [--calls 2000]

Triton compiles for a device that launches nothing (tests/runtime/intercept/fake_driver.py), so that
only the host's part is timed, without the driver's call. Subjects are interleaved in a new random
order per block, after calls that settle the interpreter; the clock is the thread's
processor time. Reported are medians over blocks and their interval of 95 % from order statistics,
and the same for the difference to stock within each block. Needs no GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
os.environ["TRITON_INTERPRET"] = "0"
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import triton  # noqa: E402
from tests.runtime.intercept import strangers  # noqa: E402
from tests.runtime.intercept.fake_driver import FakeDriver  # noqa: E402

from retuned.runtime.core.host import RuntimeHost  # noqa: E402
from retuned.runtime.intercept.hook import Interceptor  # noqa: E402
from retuned.runtime.intercept.observed import source_of  # noqa: E402
from retuned.runtime.intercept.service import Interception  # noqa: E402

RESULT = Path(__file__).parent / "results" / "intercept.json"
BUDGET_US = 0.7
LENGTH = 2048
DEFINITION = {
    "name": "lifted_affine",
    "op_type": "lifted",
    "axes": {"N": {"type": "var"}},
    "inputs": {"x_ptr": {"shape": ["N"], "dtype": "float32"}},
    "outputs": {"y_ptr": {"shape": ["N"], "dtype": "float32"}},
}


class Silent(FakeDriver):
    """A device whose launcher does nothing at all."""

    def _launcher(self, src: object, metadata: object) -> Callable[..., None]:
        return lambda *args: None


class Bench:
    """One kernel, and the three states its launches can be in."""

    def __init__(self, folder: Path) -> None:
        triton.runtime.driver.set_active(Silent())
        self.x, self.y = torch.zeros(LENGTH), torch.zeros(LENGTH)
        self.rule = strangers.cdiv_grid(LENGTH)
        self.hook = Interceptor()
        self.host = RuntimeHost("bench", interception=Interception(self.hook))
        self.folder = folder
        self.epoch = 0

    def by_numbers(self, calls: int) -> float:
        """Launch with a grid of numbers; return ns a launch."""
        kernel, x, y = strangers.affine, self.x, self.y
        grid = (LENGTH // 128,)
        begin = time.thread_time_ns()
        for _ in range(calls):
            kernel[grid](x, y, LENGTH, 0.5, 128)
        return (time.thread_time_ns() - begin) / calls

    def by_rule(self, calls: int) -> float:
        """Launch with a function for a grid, options given; return ns a launch."""
        kernel, x, y, grid = strangers.affine, self.x, self.y, self.rule
        begin = time.thread_time_ns()
        for _ in range(calls):
            kernel[grid](x, y, LENGTH, 0.5, BLOCK=128, num_warps=4)
        return (time.thread_time_ns() - begin) / calls

    def stock(self) -> None:
        """Intercept nothing."""
        self.host.reset()
        self.hook.uninstall()

    def counted(self) -> None:
        """Intercept, and swap nothing."""
        self.stock()
        self.hook.install()

    def swapped(self) -> None:
        """Put a variant in force that runs with another block."""
        self.counted()
        self.by_numbers(2)
        self.by_rule(2)
        (kernel,) = self.hook.kernels()
        body = {
            "definition": DEFINITION,
            "language": "triton",
            "entry": "affine",
            "binary": "kernel.py",
            "binary_sha256": hashlib.sha256(b"pass\n").hexdigest(),
            "params": {"BLOCK": 256},
            "grid": ["cdiv(n, BLOCK)"],
            "intercept": {
                "kernel": kernel.name,
                "source_digest": source_of(kernel).digest,
                "code": "live",
                "axes": {"N": "n"},
                "dtypes": {"x_ptr": "float32", "y_ptr": "float32"},
                "stores": {"y_ptr": "write"},
            },
        }
        digest = "sha256:" + hashlib.sha256(json.dumps(body).encode()).hexdigest()
        folder = self.folder / digest[7:]
        folder.mkdir(exist_ok=True)
        (folder / "kernel.py").write_text("pass\n")
        (folder / "artifact.json").write_text(json.dumps(body | {"digest": digest}))
        self.epoch += 1
        order: dict[str, Any] = {
            "id": f"order-{self.epoch}",
            "kind": "swap",
            "definition": "lifted_affine",
            "artifact": digest,
            "previous": None,
            "guard": {"bounds": {}},
            "epoch": self.epoch,
            "shadow_every": 10**9,
        }
        self.host.answer({"op": "prepare", "order": order, "artifact_dir": str(folder)})
        self.host.answer({"op": "commit", "order": order})
        self.by_numbers(4)
        (sample,) = self.host.answer({"op": "samples"})["samples"]
        if sample["swapped_launches"] < 3:
            raise SystemExit(f"the variant does not run: {sample}")


def measure(bench: Bench, *, blocks: int, calls: int) -> dict[str, list[float]]:
    """Return ns a launch per block, by subject."""
    found: dict[str, list[float]] = {}
    states = {"stock": bench.stock, "counted": bench.counted, "swapped": bench.swapped}
    for _ in range(blocks):
        for name in random.sample(list(states), len(states)):
            states[name]()
            for grid, run in (("numbers", bench.by_numbers), ("rule", bench.by_rule)):
                run(300)
                found.setdefault(f"{name}, grid by {grid}", []).append(run(calls))
    return found


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median and its interval, us."""
    ordered = sorted(values)
    half = 0.98 * math.sqrt(len(ordered))
    low = max(0, math.floor(len(ordered) / 2 - half))
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + half))
    middle = statistics.median(ordered)
    return {
        "median": round(middle / 1e3, 3),
        "low": round(ordered[low] / 1e3, 3),
        "high": round(ordered[high] / 1e3, 3),
    }


def machine() -> dict[str, Any]:
    """CPU and its cores; no names of hosts."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    found = re.search(r"model name\s*:\s*(.+)", text)
    cpu = found.group(1) if found else platform.processor()
    return {"cpu": cpu, "cores": os.cpu_count(), "load_at_start": os.getloadavg()[0]}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--calls", type=int, default=2000)
    given = parser.parse_args()
    about = machine()
    with tempfile.TemporaryDirectory() as folder:
        raw = measure(Bench(Path(folder)), blocks=given.blocks, calls=given.calls)
    differences = {
        name: [mine - stock for mine, stock in zip(values, raw[f"stock, {grid}"], strict=True)]
        for name, values in raw.items()
        for grid in [name.partition(", ")[2]]
        if not name.startswith("stock")
    }
    result = {
        "machine": about,
        "software": {"python": platform.python_version(), "triton": triton.__version__},
        "method": {
            "clock": "thread processor time",
            "launcher": "none: the host's part without the driver's call",
            "blocks": given.blocks,
            "calls_per_block": given.calls,
            "interval": "95 % by order statistics over blocks, subjects in random order per block",
        },
        "budget_us": BUDGET_US,
        "launch_us": {name: summary(values) for name, values in raw.items()},
        "over_stock_us": {name: summary(values) for name, values in differences.items()},
        "raw_ns": {name: [round(value) for value in values] for name, values in raw.items()},
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    sys.stdout.write(
        json.dumps({k: v for k, v in result.items() if k != "raw_ns"}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
