"""What a launch of Liger's kernels costs the host: stock, intercepted, swapped.

    python -m benchmarks.gpu.live.costs [--blocks 15] [--calls 1500] [--device cuda]

Subjects are Liger's RMSNorm and SwiGLU kernels at the shapes of a decode step, launched as Liger
launches them. The variant is the lifted kernel of the same launches, with another number of warps.
States are interleaved, in a new random order per block; wall clock of the host,
between two waits for the device. In the same blocks the launch alone, without Liger's call around
it, is taken apart into layers (`benchmarks/segments.py`). Prints one JSON object.

``--device cpu`` is a dry run: Triton compiles for a device that launches nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu.live.variants import build_all

from benchmarks import segments
from retuned.runtime.core.host import RuntimeHost
from retuned.runtime.intercept.hook import Interceptor
from retuned.runtime.intercept.observed import joined
from retuned.runtime.intercept.registry import Kernel
from retuned.runtime.intercept.service import Interception

ROWS = (1, 3, 16)
"""Rows that are launched to be lifted; the last is measured."""
SUBJECTS = ("norm", "swiglu")
MOST_TAKEN_APART = 200
"""Calls of one layer between two waits: fewer than a device queues."""


class Subjects:
    """Liger's launches, at the sizes of the served model.

    Parameters
    ----------
    device
        ``cuda``, or ``cpu`` for a dry run.
    hidden, intermediate
        Widths.
    """

    def __init__(self, *, device: str, hidden: int, intermediate: int) -> None:
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self._norm = importlib.import_module("liger_kernel.ops.rms_norm").rms_norm_forward
        self._swiglu = importlib.import_module("liger_kernel.ops.swiglu").swiglu_forward
        rows = max(ROWS)
        self._x = torch.randn(rows, hidden, device=device, dtype=dtype)
        self._w = torch.ones(hidden, device=device, dtype=dtype)
        self._a = torch.randn(rows, intermediate, device=device, dtype=dtype)
        self.device = device

    def norm(self, rows: int = ROWS[-1]) -> object:
        """Liger's call around its RMSNorm kernel."""
        return self._norm(self._x[:rows], self._w, 1e-6, 0.0, "llama", None)

    def swiglu(self, rows: int = ROWS[-1]) -> object:
        """Liger's call around its SwiGLU kernel."""
        return self._swiglu(self._a[:rows], self._a[:rows])

    def wait(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()


class Bench:
    """The subjects in three states.

    Parameters
    ----------
    subjects
        What is launched.
    folder
        For variants.
    """

    def __init__(self, subjects: Subjects, folder: Path) -> None:
        self.subjects = subjects
        self._hook = Interceptor()
        self._host = RuntimeHost("costs", interception=Interception(self._hook))
        self._epoch = 0
        self.counted()
        records = joined(self._host.answer({"op": "observed"}))
        self._built, self.kept = build_all(records, folder)

    def stock(self) -> None:
        """Intercept nothing."""
        self._host.reset()
        self._hook.uninstall()

    def counted(self) -> None:
        """Intercept, and swap nothing."""
        self.stock()
        self._hook.install()
        for rows in ROWS:
            for name in SUBJECTS:
                getattr(self.subjects, name)(rows)

    def swapped(self) -> None:
        """Put every variant in force."""
        self.counted()
        for one in self._built:
            self._epoch += 1
            order = one.order(epoch=self._epoch, shadow_every=10**9)
            request = {"op": "prepare", "order": order, "artifact_dir": str(one.folder)}
            self._host.answer(request)
            self._host.answer({"op": "commit", "order": order})
        self.subjects.wait()

    def engaged(self) -> dict[str, int]:
        """Return launches that ran a variant, by definition."""
        samples = self._host.answer({"op": "samples"})["samples"]
        return {each["definition"]: each["swapped_launches"] for each in samples}

    def caught(self) -> dict[str, segments.Caught]:
        """Return each subject's launch; while every variant is in force."""
        found = {}
        for name in SUBJECTS:
            call = getattr(self.subjects, name)
            found[name] = segments.catch(self._launched_by(call), call)
        return found

    def _launched_by(self, call: Callable[[], object]) -> Kernel:
        before = {kernel: kernel.slot.total() for kernel in self._hook.kernels() if kernel.slot}
        call()
        for kernel, total in before.items():
            if kernel.slot.total() > total:
                return kernel
        raise SystemExit("a subject's launch went through no slot")


def measure(
    bench: Bench, *, blocks: int, calls: int, seed: int = 0
) -> tuple[dict[str, list[float]], dict[str, dict[str, list[float]]]]:
    """Return ns a call per block by subject and state, and by subject and layer."""
    found: dict[str, list[float]] = {}
    apart: dict[str, dict[str, list[float]]] = {name: {} for name in SUBJECTS}
    chance = random.Random(seed)
    states: Mapping[str, Callable[[], None]] = {
        "stock": bench.stock, "intercepted": bench.counted, "swapped": bench.swapped
    }  # fmt: skip
    bench.swapped()
    caught = bench.caught()
    for _ in range(blocks):
        for state in chance.sample(list(states), len(states)):
            states[state]()
            for subject in SUBJECTS:
                whole, alone = getattr(bench.subjects, subject), caught[subject].launch
                for name, call in ((subject, whole), (f"{subject}'s launch alone", alone)):
                    took_ns = _time(call, calls=calls, wait=bench.subjects.wait)
                    found.setdefault(f"{name}, {state}", []).append(took_ns)
                if state == "intercepted":
                    continue
                if state == "stock":
                    thunks = segments.stock(caught[subject])
                else:
                    thunks = segments.swapped(caught[subject])
                raw = segments.timed(
                    thunks,
                    rounds=3,
                    calls=min(calls, MOST_TAKEN_APART),
                    wait=bench.subjects.wait,
                    seed=chance.randrange(2**32),
                )
                for name, values in raw.items():
                    apart[subject].setdefault(name, []).extend(values)
            if state == "swapped" and min(bench.engaged().values(), default=0) < calls:
                raise SystemExit(f"a variant did not run: {bench.engaged()}")
    bench.stock()
    return found, apart


def _time(call: Callable[[], object], *, calls: int, wait: Callable[[], None]) -> float:
    """Return ns a call, after some that settle the interpreter."""
    for _ in range(max(3, calls // 10)):
        call()
    wait()
    start_ns = time.perf_counter_ns()
    for _ in range(calls):
        call()
    took_ns = (time.perf_counter_ns() - start_ns) / calls
    wait()
    return took_ns


def summary(raw: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return medians, and those of the difference to stock within each block; us."""
    found: dict[str, Any] = {}
    for name, values in raw.items():
        subject = name.partition(",")[0]
        over = [a - b for a, b in zip(values, raw[f"{subject}, stock"], strict=True)]
        ordered = sorted(over)
        off = max(0, round(len(ordered) / 2 - 0.98 * len(ordered) ** 0.5))
        found[name] = {
            "median_us": round(statistics.median(values) / 1e3, 3),
            "over_stock_us": round(statistics.median(over) / 1e3, 3),
            "over_stock_95": [round(ordered[off] / 1e3, 3), round(ordered[-1 - off] / 1e3, 3)],
        }
    return found


def _launch_nothing() -> None:
    """Have Triton compile for a device that launches nothing."""
    os.environ["TRITON_INTERPRET"] = "0"
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    driver = importlib.import_module("benchmarks.intercept").Silent()
    importlib.import_module("triton").runtime.driver.set_active(driver)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--calls", type=int, default=1500)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--intermediate", type=int, default=5632)
    given = parser.parse_args()
    if given.device == "cpu":
        _launch_nothing()
    subjects = Subjects(device=given.device, hidden=given.hidden, intermediate=given.intermediate)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        bench = Bench(subjects, Path(folder))
        raw, apart = measure(bench, blocks=given.blocks, calls=given.calls)
    body = {
        "method": (__doc__ or "").split("\n\n")[2],
        "blocks": given.blocks,
        "calls": given.calls,
        "rows": ROWS[-1],
        "not_lifted": bench.kept,
        "launch": summary(raw),
        "layers_us": {name: segments.split(values) for name, values in apart.items()},
        "raw_ns": {name: [round(value) for value in values] for name, values in raw.items()},
    }
    sys.stdout.write(json.dumps(body) + "\n")


if __name__ == "__main__":
    main()
