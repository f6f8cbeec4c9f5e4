"""Live proofs in a real vLLM of arms whose effect is known: nothing, a slower table, Retuned.

    OUT=/tmp/out python -m benchmarks.gpu.vllm_live.proofs --case attention same slow overhead

The runner, the pilot and the verdicts are the product's; only the orders are this program's. Arms:
``same`` (a table with the server's own configuration: no effect), ``slow`` and ``fast`` (tables
with a configuration of a known time, for `attention`), ``overhead`` (Retuned's wrappers leave and
return), ``overhead-launches`` and the like (one of them does). Each is proven in turn under one
load, and the server's rate is measured beside it with the arm off and on, from the client. Results
are written after each proof.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import math
import os
import random
import statistics
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.catalog_cpu import machine
from benchmarks.gpu.vllm_live.__main__ import CASES, Case
from benchmarks.gpu.vllm_live.load import Load, interval
from benchmarks.gpu.vllm_live.server import Vllm
from benchmarks.gpu.vllm_live.toggles import Toggles

from retuned.clock import SystemClock
from retuned.node.live_proof import ProofRunner, UnstoredProof
from retuned.ports import SlotState
from retuned.report.live_proof import sentence_of
from retuned.runtime.tunables.records import canonical
from retuned.runtime.tunables.service import FAMILIES
from retuned.runtime_client.live_steps import ServerSteps
from retuned.stages.gate import LiveProof, LiveProofMode
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.stages.watch import own_overhead, proof
from retuned.tunables.tune import ClassResult, rules_of

HERE = Path(__file__).resolve().parent
OVERHEAD = "overhead"
PARTS = tuple(f"{OVERHEAD}-{each}" for each in ("launches", *FAMILIES, "graphs"))
CONFIGS: Mapping[str, Mapping[str, int]] = {
    "same": {"BLOCK_M": 16, "TILE_SIZE": 32, "num_warps": 4, "num_stages": 3},
    "slow": {"BLOCK_M": 32, "TILE_SIZE": 16, "num_warps": 4, "num_stages": 3},
    "fast": {"BLOCK_M": 128, "TILE_SIZE": 64, "num_warps": 8, "num_stages": 2},
}
"""Of vLLM 0.26's prefill attention; `same` is what its launcher passes where nothing is set."""
CASES_HERE = CASES | {
    "prefill": Case(
        model="dense",
        options=(
            *("--attention-backend", "TRITON_ATTN", "--max-model-len", "4096"),
            *("--max-num-batched-tokens", "2048", "--max-num-seqs", "64"),
            *("--gpu-memory-utilization", "0.5"),
        ),
        chat=((128, 256, 384, 512), 64, 16),
        drifted=((2048,), 1, 8),
        per_block=16,
    ),
    "eager": Case(
        model="dense",
        options=(
            *("--attention-backend", "TRITON_ATTN", "--enforce-eager", "--max-model-len", "4096"),
            *("--max-num-seqs", "64", "--gpu-memory-utilization", "0.5"),
        ),
        chat=((128, 256, 384, 512), 64, 16),
        drifted=((128, 256, 384, 512), 64, 16),
        per_block=16,
    ),
}
_ARTIFACT = "sha256:" + "0" * 64


class Arms:
    """Switches one tunable's table, or Retuned's wrappers, as a `Swapper` does."""

    def __init__(self, toggles: Toggles, definition: str) -> None:
        self._toggles, self.definition = toggles, definition
        self._off = False
        self.held_us: list[float] = []
        self.parts_us: list[Any] = []

    def slots(self) -> Sequence[SlotState]:
        """Return the one slot, with the arm that was set last."""
        return [
            SlotState(
                definition=self.definition,
                active=_ARTIFACT,
                epoch=1,
                launches={},
                bypassed=self._off,
            )
        ]

    def bypass(self, definition: str, *, on: bool, arm: str | None = None) -> None:
        """Take the arm out, or put it back, and label the steps after it."""
        label = {} if arm is None else {"arm": arm}
        if definition.startswith(OVERHEAD):
            request = self._overhead(on=not on)
        else:
            request = {"op": "tunable-bypass", "definition": definition, "on": on, "term": 2**51}
        said = self._toggles.ask(request | label)
        self._off = on
        self.held_us.append(float(said.get("pause_us") or 0.0))
        self.parts_us.append(said.get("parts_us"))

    def take_turns(self, turns: Sequence[tuple[str, bool]], *, steps: int) -> None:
        """Let the server switch Retuned's wrappers itself; see `TurnTaker.take_turns`."""
        self._toggles.ask(self._overhead(on=False) | {"turns": list(turns), "steps": steps})

    def _overhead(self, *, on: bool) -> dict[str, Any]:
        part = self.definition.removeprefix(OVERHEAD).removeprefix("-")
        return {"op": "overhead-arm", "on": on, **({"parts": [part]} if part else {})}


class TeedSteps(ServerSteps):
    """Keeps every step that the proof reads, in a file of one line each.

    Parameters
    ----------
    sockets
        A socket, or a folder of them.
    path
        Where the lines go, compressed.
    """

    def __init__(self, sockets: Path, path: Path) -> None:
        super().__init__(sockets)
        self._path = path

    def read(self) -> Sequence[tuple[str, proof.StepRecord]]:
        """See `ServerSteps.read`."""
        found = super().read()
        with gzip.open(self._path, "at", encoding="utf-8") as file:
            for label, step in found:
                times = (step.period_s, step.busy_s, step.host_s, step.ended_s)
                work = (step.prefill, step.decode, step.context, step.graph)
                row = (label, *work, *(each and round(each, 7) for each in times))
                file.write(json.dumps(row) + "\n")
        return found


class Kept(UnstoredProof):
    """States of one proof in memory, with the fit of an earlier one where there is one."""

    def __init__(
        self, settings: proof.ProofSettings, earlier: proof.ProofState | None = None
    ) -> None:
        super().__init__()
        self._settings, self._earlier = settings, earlier

    def known(self) -> proof.ProofState:
        """Return a fresh state with the settings of this arm."""
        return proof.begin_again(self._earlier, self._settings, at_s=time.time())


def series(doc: str | None) -> dict[str, Any]:
    """Return the head of a file of proofs on this machine: how, where, and the load."""
    return {
        "method": " ".join((doc or "").split("\n\n", 2)[2].split()),
        "machine": machine(),
        "load_average": [os.getloadavg()[0]],
        "proofs": [],
    }


def out_folder() -> Path:
    """Return where results go."""
    return Path(os.environ.get("OUT", "."))


def keep_steps(number: int, name: str) -> None:
    """Let the next proof write to a separate file."""
    written = out_folder() / f"steps-{name}.jsonl.gz"
    if written.exists():
        written.rename(out_folder() / f"steps-{number}-{name}.jsonl.gz")


async def prove(
    toggles: Toggles,
    sockets: Path,
    name: str,
    *,
    definition: str,
    earlier: proof.ProofState | None,
    deadline_s: float,
) -> tuple[dict[str, Any], proof.ProofState | None]:
    """Prove one arm until there is a verdict or the time is over; return also the last state."""
    settings = proof.ProofSettings(max_duration_s=600.0, long_blocks=0)
    if name.startswith(OVERHEAD):
        settings = own_overhead.SETTINGS
    if name.startswith(OVERHEAD):
        earlier = None  # turns have another noise than blocks
    arms, kept = Arms(toggles, definition), Kept(settings, earlier)
    found = await measured(
        arms,
        kept,
        sockets,
        name,
        deadline_s=deadline_s,
        steps=out_folder() / f"steps-{name}.jsonl.gz",
    )
    return found, kept.state


async def measured(
    arms: Arms,
    kept: Kept,
    sockets: Path,
    name: str,
    *,
    deadline_s: float,
    steps: Path | None = None,
) -> dict[str, Any]:
    """Run the product's runner over two arms; return what it came to.

    With `steps`, every step is kept in that file.
    """
    rule = LiveProof(mode=LiveProofMode.OBSERVE)  # the arm stays on, whatever is shown
    order = SwapOrder.model_construct(
        id=name,
        kind=SwapKind.SWAP,
        proposal=name,
        target="chat",
        definition=arms.definition,
        artifact=_ARTIFACT,
        epoch=1,
    )
    stop = threading.Event()
    runner = ProofRunner(
        order,
        rule,
        record=kept,
        swapper=arms,
        live=ServerSteps(sockets) if steps is None else TeedSteps(sockets, steps),
        clock=SystemClock(),
        turns=arms,
    )
    begin_s = time.monotonic()
    work = asyncio.create_task(asyncio.to_thread(runner.run, stop))
    while not work.done():
        if time.monotonic() > deadline_s:
            stop.set()
        await asyncio.sleep(0.2)
    await work
    state = kept.state
    assert state is not None, "it has begun"
    shams = [each.d for each in state.of(proof.PairKind.SHAM) if each.d is not None]
    pairs = state.of(proof.PairKind.SHORT)
    found: dict[str, Any] = {
        "arm": name,
        "seconds": round(time.monotonic() - begin_s, 1),
        "switches": len(arms.held_us),
        "held_us_median": statistics.median(arms.held_us) if arms.held_us else None,
        "held_us_max": max(arms.held_us, default=None),
        "last_parts_us": arms.parts_us[-2:],
        "sham_d": [round(d, 6) for d in shams],
        "d": [round(each.d or 0.0, 6) for each in pairs],
        "scales": [round(each.scale or 0.0, 6) for each in pairs],
        "steps": sum(each.on.steps + each.off.steps for each in pairs),
        "busy_share": _busy_share(pairs),
    }
    if state.report is not None:
        facts = state.report.facts()
        found |= {key: facts[key] for key in ("verdict", "reason", "effect", "low", "high")}
        found |= {"pairs": facts["pairs"], "account": facts["account"]}
        found |= {"evidence": facts["evidence"], "sentence": sentence_of(state.report)}
    return found


def _busy_share(pairs: Sequence[proof.PairResult]) -> float | None:
    sums = [arm for each in pairs for arm in (each.on, each.off)]
    if not sums or any(each.busy_s is None for each in sums):
        return None
    busy_s = sum(each.busy_s or 0.0 for each in sums)
    return round(busy_s / sum(each.seconds for each in sums), 4)


async def rates(load: Load, switch: Callable[[bool], object], *, pairs: int) -> dict[str, Any]:
    """Measure tokens/s from the client in pairs of blocks of 4 s, off and on in random order."""
    chance, rows = random.Random(7), []
    for _ in range(pairs):
        arms = [False, True]
        chance.shuffle(arms)
        row = {}
        for on in arms:
            await asyncio.to_thread(switch, on)
            await asyncio.sleep(0.5)
            begin_s = time.monotonic()
            await asyncio.sleep(4.0)
            row["on" if on else "off"] = _rate(load, begin_s, time.monotonic())
        rows.append(row)
    return {
        "rows": rows,
        "speed": interval([math.log(row["on"] / row["off"]) for row in rows]),
    }


def _rate(load: Load, begin_s: float, end_s: float) -> float:
    """Return tokens per second, each request's spread over the time it was under way."""
    total = 0.0
    for each in load.done:
        within = min(each.ended_s, end_s) - max(each.sent_s, begin_s)
        if within > 0.0:
            total += (each.prompt_tokens + each.tokens) * within / (each.ended_s - each.sent_s)
    return total / (end_s - begin_s)


def table_of(
    report: Mapping[str, Any], config: Mapping[str, Any], *, least_rows: int | None = None
) -> str:
    """Return a table with one configuration for the classes that were launched.

    With `least_rows` only for the prefill classes of attention from there on.
    """
    results = [
        ClassResult(axes=each["axes"], in_force_us=1.0, best=dict(config))
        for each in report["asked"]
        if each["launches"] and (least_rows is None or _prefills(each["axes"], least_rows))
    ]
    return canonical(
        {
            "format": "table",
            "tunable": report["id"],
            "family": report["family"],
            "source": report["source"],
            "rules": rules_of(results),
            "captures": [],
            "before": None,
        }
    )


def _prefills(axes: Mapping[str, int], least_rows: int) -> bool:
    return not axes["decode"] and axes["rows"] >= least_rows


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start the server, and prove all arms."""
    case, begin_s = CASES_HERE[options.case], time.monotonic()
    out = out_folder() / f"proofs-{options.case}-{options.gpu}.json"
    results: dict[str, Any] = {"case": options.case, "proofs": [], "errors": []}
    folder = Path(options.work)
    models = str(folder / "models")
    module = "benchmarks.gpu.vllm_live.models"
    command = [options.python, "-m", module, models, case.model]
    process = await asyncio.create_subprocess_exec(*command, cwd=HERE.parents[2])
    assert await process.wait() == 0, "the model was not made"
    server = Vllm(
        Path(options.vllm),
        folder / "models" / case.model,
        folder / "proofs",
        options=case.options,
        gpu=options.gpu,
    )
    try:
        results["healthy_s"] = server.start()
        toggles = Toggles(server.sockets)
        lengths, output, concurrency = case.drifted
        load = await Load(server.url, concurrency, lengths, output, seed="proofs").start()
        await load.until(6 * concurrency)
        deadline_s = begin_s + options.until
        earlier: proof.ProofState | None = None  # its pilot serves all
        for number, name in enumerate(options.arms):
            if time.monotonic() > deadline_s - 20.0:
                break
            try:
                most_s = options.each_s + (0.0 if earlier else options.pilot_s)
                found, state = await _one(
                    name,
                    load,
                    toggles,
                    server.sockets,
                    earlier=earlier,
                    deadline_s=min(deadline_s, time.monotonic() + most_s),
                )
                keep_steps(number, name)
                results["proofs"].append(found)
                earlier = earlier or (None if name.startswith(OVERHEAD) else state)
            except Exception:
                results["errors"].append(traceback.format_exc()[-3000:])
            shown = results["proofs"][-1:] or results["errors"][-1:]
            print(json.dumps(shown, default=str)[:2500], flush=True)
            out.write_text(json.dumps(results, indent=1, default=str))
        await load.stop()
        results["requests"] = {"done": len(load.done), "failed": load.failed[:5]}
        results["steps"] = (await asyncio.to_thread(toggles.report))["steps"] | {"recent": None}
    except Exception:
        results["errors"].append(traceback.format_exc()[-3000:])
    finally:
        results["server_log"] = server.notable()[-20:]
        server.stop()
        results["seconds"] = round(time.monotonic() - begin_s, 1)
        out.write_text(json.dumps(results, indent=1, default=str))
    return results


async def _one(
    name: str,
    load: Load,
    toggles: Toggles,
    sockets: Path,
    *,
    earlier: proof.ProofState | None,
    deadline_s: float,
) -> tuple[dict[str, Any], proof.ProofState | None]:
    definition, table = name, ""
    if not name.startswith(OVERHEAD):
        reports = (await asyncio.to_thread(toggles.report))["tunables"]
        report = next(each for each in reports if each["family"] == "attention")
        least_rows = 1 if name == "same" else 1024
        table = table_of(report, CONFIGS[name], least_rows=least_rows)
        definition = report["id"]
        await asyncio.to_thread(toggles.on, table)
        await asyncio.sleep(1.0)
    found, state = await prove(
        toggles, sockets, name, definition=definition, earlier=earlier, deadline_s=deadline_s
    )
    arms = Arms(toggles, definition)
    if name in CONFIGS:
        found["table"] = json.loads(table)["rules"]
        if name != "same" and time.monotonic() < deadline_s - 60.0:
            switch = lambda on: arms.bypass(definition, on=not on)  # noqa: E731
            found["client"] = await rates(load, switch, pairs=5)
        report = (await asyncio.to_thread(toggles.report))["tunables"]
        held = next(each["table"] for each in report if each["id"] == definition)
        found["matched"] = held and held["matched"]
        await asyncio.to_thread(toggles.off, definition)
    return found, state


def main() -> int:
    """Prove the arms named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("arms", nargs="+", choices=[*CONFIGS, OVERHEAD, *PARTS])
    parser.add_argument("--case", choices=sorted(CASES_HERE), default="attention")
    parser.add_argument("--vllm", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--work", default="/tmp/vllm_proofs")
    parser.add_argument("--until", type=float, default=480.0, help="seconds")
    parser.add_argument("--each-s", type=float, default=600.0, help="most seconds of one arm")
    parser.add_argument("--pilot-s", type=float, default=130.0, help="more for the first arm")
    parser.add_argument("--gpu", default="0")
    results = asyncio.run(run(parser.parse_args()))
    return int(bool(results["errors"]))


if __name__ == "__main__":
    raise SystemExit(main())
