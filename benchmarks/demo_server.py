"""What the demo's engine does with its time: ``python benchmarks/demo_server.py``.

One process on one core, no HTTP: the engine is kept full with each kind of traffic. Blocks with
and without profiler windows alternate, each pair with the same requests; the windows' cost is taken
from tokens per second of processor time (all threads), which other work on the machine disturbs
less than wall time. Shares of operators come from the windows' own trace files.
Writes benchmarks/results/demo_server.json.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import random
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retuned.demo.batches import Progress, StepReport
    from retuned.demo.engine import Engine
    from retuned.demo.model import Cache
    from retuned.demo.operators import Operators
    from retuned.demo.profiler import ProfilerWindows
    from retuned.demo.traffic import Phase

Run = tuple["list[StepReport]", float, float]
"""Steps, seconds of wall time, seconds of processor time."""
Block = tuple[bool, "list[StepReport]", float, float]
"""Windows on?, and the run."""

RESULT = Path(__file__).parent / "results" / "demo_server.json"


class Gate:
    """Profiler windows that can be switched off between blocks."""

    def __init__(self, windows: ProfilerWindows) -> None:
        self.windows = windows
        self.on = False

    def before_step(self) -> None:
        """Begin a window only while switched on."""
        if self.on:
            self.windows.before_step()

    def after_step(self, report: StepReport) -> None:
        """End a window that was begun."""
        self.windows.after_step(report)

    def stopped(self) -> None:
        """Write what is open."""
        self.windows.stopped()


class Load:
    """Keeps an engine full, without HTTP.

    Parameters
    ----------
    in_flight
        Requests that are open at any time.
    seed
        Of lengths and tokens.
    """

    def __init__(self, in_flight: int, seed: int) -> None:
        self._in_flight = in_flight
        self._rng = random.Random(seed)
        self._open = 0

    def again(self, seed: int) -> None:
        """Draw from here on what this seed gives."""
        self._rng.seed(seed)

    def deliver(self, news: Sequence[Progress]) -> None:
        """Count what ended."""
        self._open -= sum(item.finish is not None for item in news)

    def run(self, engine: Engine[Cache], phase: Phase, seconds: float) -> Run:
        """Step for some time."""
        from retuned.demo.traffic import Traffic

        traffic, reports = Traffic(phase), []
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        while (elapsed_s := time.perf_counter() - started_s) < seconds:
            while self._open < self._in_flight:
                request = traffic.draw(self._rng)
                prompt = [self._rng.randrange(2048) for _ in range(request.prompt_tokens)]
                engine.submit(prompt, max_tokens=request.output_tokens)
                self._open += 1
            report = engine.step()
            if report is not None:
                reports.append(report)
        return reports, elapsed_s, time.process_time() - started_cpu_s


def blocks(
    engine: Engine[Cache], gate: Gate, load: Load, phase: Phase, options: argparse.Namespace
) -> Iterator[Block]:
    """Run alternating blocks, after two seconds to get warm."""
    load.run(engine, phase, 2.0)
    for number in range(2 * options.blocks):
        gate.on = number % 2 == 1
        load.again(options.seed + number // 2)
        yield (gate.on, *load.run(engine, phase, options.block_s))
    gate.on = False


def shares(folder: Path) -> dict[str, float]:
    """Share of step time per operator that reaches a slot, and of everything else, from traces."""
    spent: Counter[str] = Counter()
    span_us = 0.0
    for path in folder.glob("*.json.gz"):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        operators = [e for e in events if e.get("cat") == "cpu_op"]
        if not operators:
            continue
        span_us += max(e["ts"] + e["dur"] for e in operators) - min(e["ts"] for e in operators)
        for event in operators:
            if event["name"].startswith("retuned::"):
                spent[event["name"]] += event["dur"]
        path.unlink()
    found = {name: round(us / span_us, 4) for name, us in spent.most_common()}
    return {**found, "everything else": round(1 - sum(found.values()), 4)}


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Median and the middle 80 %."""
    ordered = sorted(values)
    return {
        name: round(ordered[min(int(q * len(ordered)), len(ordered) - 1)], 5)
        for name, q in (("p10", 0.1), ("p50", 0.5), ("p90", 0.9))
    }


def summary(results: Sequence[Block]) -> dict[str, Any]:
    """Numbers of one phase."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    cpu_rates: dict[bool, list[float]] = {True: [], False: []}
    for on, reports, seconds, cpu_s in results:
        done = sum(r.prefill_tokens + r.output_tokens for r in reports)
        rates[on].append(done / seconds)
        cpu_rates[on].append(done / cpu_s)
    off_reports = [r for on, reports, _, _ in results if not on for r in reports]
    off_s = sum(seconds for on, _, seconds, _ in results if not on)
    pairs = [1 - b / a for a, b in zip(cpu_rates[False], cpu_rates[True], strict=True)]
    return {
        "tokens_per_s": {"windows_off": rates[False], "windows_on": rates[True]},
        "tokens_per_cpu_s": {"windows_off": cpu_rates[False], "windows_on": cpu_rates[True]},
        "windows_cost_ratio": {"each_pair": pairs, "median": statistics.median(pairs)},
        "output_tokens_per_s": sum(r.output_tokens for r in off_reports) / off_s,
        "step_s": quantiles([r.duration_s for r in off_reports]),
        "tokens_per_step": quantiles([r.prefill_tokens + r.output_tokens for r in off_reports]),
    }


def operators(options: argparse.Namespace, folder: Path) -> Operators:
    """Build what the server would."""
    from retuned.demo.operators import plain_operators
    from retuned.demo.shapes import SHAPES

    if options.kernels == "plain":
        return plain_operators()
    from retuned.demo.kernels import slotted_operators
    from retuned.runtime import attach

    runtime = attach(server="benchmark", socket_dir=folder / "sockets")
    return slotted_operators(SHAPES["demo"], runtime, cache_dir=folder / "cache").operators


def processor() -> str:
    found = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    return found[0] if found else platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", choices=("catalog", "plain"), default="catalog")
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--window-steps", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=4, help="of each kind and phase")
    parser.add_argument("--block-s", type=float, default=5.0)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")

    import torch

    from retuned.demo.batches import EngineLimits
    from retuned.demo.engine import Engine
    from retuned.demo.model import DecoderModel
    from retuned.demo.profiler import ProfilerWindows, WindowSettings
    from retuned.demo.shapes import SHAPES
    from retuned.demo.traffic import Phase

    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "machine": {"processor": processor(), "cores_used": 1, "torch": torch.__version__},
        "method": __doc__,
        "settings": {k: v for k, v in vars(options).items() if k != "out"},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        limits = EngineLimits(max_running=options.in_flight)
        model = DecoderModel(
            SHAPES["demo"], operators(options, folder), max_sequences=options.in_flight
        )
        settings = WindowSettings(max_steps=options.window_steps)
        windows = ProfilerWindows(folder / "traces", settings=settings)
        windows.warm_up()
        gate = Gate(windows)
        load = Load(options.in_flight, options.seed)
        engine = Engine(model, limits=limits, deliver=load.deliver, hooks=[gate])
        for phase in Phase:
            result[phase] = summary(list(blocks(engine, gate, load, phase, options)))
            result[phase]["share_of_step_time"] = shares(folder / "traces")
            brief = {k: result[phase][k] for k in ("step_s", "tokens_per_step")}
            off = statistics.median(result[phase]["tokens_per_s"]["windows_off"])
            cpu = statistics.median(result[phase]["tokens_per_cpu_s"]["windows_off"])
            cost = result[phase]["windows_cost_ratio"]["median"]
            rate = f"{off:.0f} tokens/s, {cpu:.0f} per processor second"
            print(phase, f"{rate}, windows cost {cost:.1%}", brief)
            print("   ", result[phase]["share_of_step_time"])
        gate.stopped()
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
