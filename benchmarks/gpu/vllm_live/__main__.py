"""Retuned beside a real vLLM: drift, experiment, approval, swap, proof, rollback.

    OUT=/tmp/out python -m benchmarks.gpu.vllm_live --vllm BIN/vllm --python BIN/python CASE

Cases: ``attention`` (Triton attention, chat turns into long prompts), ``decode`` (the same, into
long answers to long prompts, decoded in captured graphs), ``mamba2`` and ``hybrid`` (autotuners
that were asked once at a warm-up size), ``moe`` (block-FP8 experts without a file on this card,
prefill of 1,024 tokens a step and decode of 256 in captured graphs), ``moe-prefill`` (the same
experts, from short chats into prompts of 1,024 tokens, one a step), ``default`` (a server with
nothing to gain: FlashAttention). The program writes ``OUT/CASE.json`` after each part, and
``OUT/CASE-described.json`` for `surfaces`. A part that fails is in the file with its error, and the
parts after it run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu.vllm_live import direct
from benchmarks.gpu.vllm_live.load import Load, answers, compared, decoding, durations, interval
from benchmarks.gpu.vllm_live.server import Daemon, Vllm
from benchmarks.gpu.vllm_live.toggles import Toggles

from retuned.runtime.artifacts.trust import SIGNATURE_FILE
from retuned.store.artifact_folder import MANIFEST

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, its server's options, and its traffic before and after the drift."""

    model: str
    options: Sequence[str]
    chat: tuple[Sequence[int], int, int]
    """Prompt lengths, tokens of an answer, requests under way."""
    drifted: tuple[Sequence[int], int, int]
    per_block: int
    """Requests whose time makes one block."""
    decode: tuple[int, int] | None = None
    """Streams and their prompt length, where decode in graphs is measured."""
    seek_s: float = 220.0
    """How long the loop has to find, try and swap."""
    expected: int = 1
    """Tables after which it has done so."""


def _mamba(model: str) -> Case:
    return Case(
        model=model,
        options=(
            *("--max-model-len", "32768", "--max-num-batched-tokens", "16384"),
            *("--max-num-seqs", "64", "--gpu-memory-utilization", "0.5"),
        ),
        chat=((128, 256, 384, 512), 64, 16),
        drifted=((16384,), 1, 4),
        per_block=16,
        seek_s=300.0,
        expected=4,
    )


CASES = {
    "attention": Case(
        model="dense",
        options=(
            *("--attention-backend", "TRITON_ATTN", "--max-model-len", "16384"),
            *("--max-num-batched-tokens", "8192", "--max-num-seqs", "64"),
            *("--gpu-memory-utilization", "0.5"),
        ),
        chat=((128, 256, 384, 512), 64, 16),
        drifted=((8192,), 1, 4),
        per_block=10,
        decode=(16, 8192),
    ),
    "decode": Case(
        model="dense",
        options=(
            *("--attention-backend", "TRITON_ATTN", "--max-model-len", "16384"),
            *("--max-num-batched-tokens", "8192", "--max-num-seqs", "64"),
            *("--gpu-memory-utilization", "0.5"),
        ),
        chat=((128, 256, 384, 512), 64, 16),
        drifted=((8192,), 400, 16),
        per_block=16,
        decode=(16, 8192),
    ),
    "mamba2": _mamba("mamba2"),
    "hybrid": _mamba("hybrid"),
    "moe": Case(
        model="moe_fp8",
        options=(
            *("--max-model-len", "8192", "--max-num-batched-tokens", "1024"),
            *("--max-num-seqs", "256", "--gpu-memory-utilization", "0.6"),
            *("--api-server-count", "4"),  # one takes 26 ms for 256 tokens, several times a step
        ),
        chat=((64,), 64, 8),
        drifted=((64,), 256, 256),
        per_block=256,
        decode=(256, 64),
    ),
    "moe-prefill": Case(
        model="moe_fp8",
        options=(
            *("--max-model-len", "8192", "--max-num-batched-tokens", "1024"),
            *("--max-num-seqs", "64", "--gpu-memory-utilization", "0.6"),
        ),
        chat=((64,), 64, 8),
        drifted=((1024,), 1, 8),
        per_block=64,
    ),
    "default": Case(
        model="dense",
        options=(
            *("--max-model-len", "16384", "--max-num-batched-tokens", "8192"),
            *("--max-num-seqs", "64", "--gpu-memory-utilization", "0.5"),
        ),
        chat=((128, 256, 384, 512), 64, 16),
        drifted=((8192,), 1, 4),
        per_block=10,
        seek_s=45.0,
    ),
}


class Signed(NamedTuple):
    """A table, and the daemon's signature; empty where the search was done without a daemon."""

    text: str
    signature: str = ""


class Show:
    """One case, and its results so far."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.case, self.options = name, CASES[name], options
        self.out = Path(os.environ.get("OUT", ".")) / f"{name}.json"
        self.begin_s = time.monotonic()
        self.results: dict[str, Any] = {"case": name, "errors": {}, "timeline": []}
        self.chance = random.Random(20261126)

    @property
    def left_s(self) -> float:
        """Seconds until this case must end."""
        return float(self.options.until) - (time.monotonic() - self.begin_s)

    def note(self, what: str, **detail: object) -> None:
        """Add a line to the timeline."""
        at_s = round(time.monotonic() - self.begin_s, 2)
        self.results["timeline"].append({"at_s": at_s, "what": what, **detail})
        print(
            f"[{at_s:7.1f}] {self.name}: {what} {json.dumps(detail, default=str)[:1500]}",
            flush=True,
        )

    def save(self) -> None:
        """Write what there is."""
        self.results["seconds"] = round(time.monotonic() - self.begin_s, 1)
        self.out.write_text(json.dumps(self.results, indent=1, default=str))

    async def part(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Do one part; its failure is a result."""
        try:
            found = await work()
            if found is not None:
                self.results[name] = found
                self.note(name, result=found)
        except Exception as error:
            self.results["errors"][name] = traceback.format_exc()[-3000:]
            self.note(f"{name} FAILED", error=repr(error)[:600])
        self.save()


async def run(show: Show) -> None:
    """Play one case."""
    case, options = show.case, show.options
    model = _model_name(case.model)
    folder = Path(options.work)
    begin_s = time.monotonic()
    subprocess.run(
        [options.python, "-m", "benchmarks.gpu.vllm_live.models", str(folder / "models"), model],
        check=True,
        cwd=HERE.parents[2],
    )
    show.note("model", kind=model, seconds=round(time.monotonic() - begin_s, 1))
    server = Vllm(
        Path(options.vllm),
        folder / "models" / model,
        folder / show.name,
        options=case.options,
        gpu=options.gpu,
    )
    daemon = Daemon(
        Path(options.python),
        server,
        folder / f"{show.name}-daemon",
        policy=HERE / ("policy_live_proof.yaml" if options.live_proof else "policy.yaml"),
        gpus=options.experiments,
    )
    try:
        show.note("healthy", seconds=server.start())
        toggles = Toggles(server.sockets)
        await show.part("first_report", lambda: _report(toggles))
        if options.direct:
            tables = await _direct(show, server, toggles)
        else:
            daemon.start()
            await _traffic(show, server, daemon, toggles)
            daemon.stop()
            tables = _tables(daemon)
        await show.part("survey", lambda: _survey(daemon, server))
        await _proof(show, server, tables, toggles)
    except Exception:
        show.results["errors"]["run"] = traceback.format_exc()[-4000:]
    finally:
        show.results["daemon_log"] = daemon.tail(120)
        show.results["server_log"] = server.notable()
        daemon.stop()
        server.stop()
        show.save()


def _model_name(model: str) -> str:
    if model != "moe_fp8":
        return model
    named = subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return "moe_fp8_e512" if "H200" in named else "moe_fp8_e256"


async def _report(toggles: Toggles) -> dict[str, Any]:
    said = await asyncio.to_thread(toggles.report)
    return {
        "environment": said.get("environment"),
        "steps": {k: v for k, v in said.get("steps", {}).items() if k != "recent"},
        "tunables": [
            {k: v for k, v in each.items() if k not in ("space", "asked")}
            | {"asked": each.get("asked", [])[:12]}
            for each in said.get("tunables", [])
        ],
    }


async def _traffic(show: Show, server: Vllm, daemon: Daemon, toggles: Toggles) -> None:
    """Chat, then the drift; approve what the daemon proposes until time is over."""
    lengths, output, concurrency = show.case.chat
    chat = await Load(server.url, concurrency, lengths, output, seed="chat").start()
    await asyncio.sleep(show.options.chat_s)
    await chat.stop()
    show.note("chat ended", requests=len(chat.done), failed=chat.failed[:3])
    await show.part("after_chat", lambda: _report(toggles))
    lengths, output, concurrency = show.case.drifted
    drifted = await Load(server.url, concurrency, lengths, output, seed="drifted").start()
    show.note("drift begins")
    seek_s = min(show.case.seek_s, show.left_s - 130)
    begin_s, seen, approved = time.monotonic(), set[str](), set[str]()
    while time.monotonic() - begin_s < seek_s:
        daemon.check()
        listed = await asyncio.to_thread(daemon.json, "proposals")
        for each in listed["proposals"] if listed else ():
            state = f"{each['id']}:{each.get('phase') or each.get('status')}"
            if state not in seen:
                seen.add(state)
                show.note(
                    "proposal",
                    **{
                        k: each.get(k)
                        for k in ("id", "phase", "status", "definition", "speedup", "risk")
                    },
                )
            if each["id"] not in approved:
                status, said = await asyncio.to_thread(
                    daemon.command, "approve", each["id"], "-m", "benchmark"
                )
                if status == 0:
                    approved.add(each["id"])
                    show.note("approved", id=each["id"])
                else:
                    show.note("not approved yet", status=status, said=said[-300:])
        report = await asyncio.to_thread(toggles.report)
        engaged = {t["id"]: t["table"] for t in report["tunables"] if t.get("table")}
        for name, table in engaged.items():
            if name not in seen:
                seen.add(name)
                show.note("in force", tunable=name, table=table)
        if len(drifted.failed) > 20 or len(engaged) >= show.case.expected:
            break
        await asyncio.sleep(1.0)
    loads = [chat, drifted]
    if approved:
        if show.options.live_proof:
            if show.case.decode is not None:
                await show.part("captured_beside", lambda: _captured_beside(toggles, drifted))
            await show.part("live_proof", lambda: _verdicts(show, daemon, approved))
            if show.case.decode is not None:
                show.results["requests_after_captures"] = durations(
                    drifted.done, after_s=time.monotonic() - 60.0
                )
        await asyncio.sleep(5.0)
        if show.case.decode is not None:
            await drifted.stop()
            await show.part("by_itself", lambda: _by_itself(show, server, toggles))
            drifted = await Load(server.url, concurrency, lengths, output, seed="drifted").start()
            loads.append(drifted)
            await drifted.until(concurrency)
        await show.part("rollback", lambda: _rollback(daemon, toggles, approved))
    show.results["history"] = await asyncio.to_thread(daemon.json, "history", "--limit", "400")
    show.results["status"] = await asyncio.to_thread(daemon.json, "status")
    show.results["requests"] = _counted(loads)  # should the time be over before the end
    await show.part("described", lambda: _described(show, drifted, toggles))
    await drifted.stop()
    show.results["requests"] = _counted(loads)
    await show.part("after_drift", lambda: _report(toggles))


def _counted(loads: Sequence[Load]) -> dict[str, Any]:
    """Count the requests of chat, the first load, and of what came after it."""
    failed = [error for each in loads for error in each.failed]
    return {
        "chat": len(loads[0].done),
        "drifted": sum(len(each.done) for each in loads[1:]),
        "failed": len(failed),
        "errors": failed[:5],
    }


async def _verdicts(show: Show, daemon: Daemon, proposals: Collection[str]) -> dict[str, Any]:
    """Wait for the daemon's live proofs; return their events and what `retuned show` says."""
    begin_s, found = time.monotonic(), dict[str, Any]()
    while len(found) < len(proposals) and show.left_s > 40.0:
        daemon.check()
        history = await asyncio.to_thread(daemon.json, "history", "--limit", "400")
        for event in history["history"] if history else ():
            if event["id"] in proposals and event["what"].startswith("live-proof-"):
                found[event["id"]] = event
        await asyncio.sleep(2.0)
    shown = [await asyncio.to_thread(daemon.json, "show", each) for each in proposals]
    return {"seconds": round(time.monotonic() - begin_s, 1), "verdicts": found, "shown": shown}


async def _by_itself(show: Show, server: Vllm, toggles: Toggles) -> dict[str, Any]:
    """Decode under the daemon's table, after graphs were captured in an idle moment."""
    assert show.case.decode is not None, "asked for"
    count, length = show.case.decode
    captured = await _captured(toggles)
    return captured | await decoding(server.url, count=count, length=length, tokens=100)


async def _captured(toggles: Toggles, *, most_s: float = 40.0) -> dict[str, Any]:
    """Wait until nothing more is captured."""
    begin_s = changed_s = time.monotonic()
    sizes: list[list[int]] = []
    progress: list[tuple[float, int]] = []
    while time.monotonic() < min(changed_s + 8.0, begin_s + most_s):
        report = await asyncio.to_thread(toggles.report)
        now = [each["table"]["captured"] for each in report["tunables"] if each["table"]]
        if now != sizes:
            sizes, changed_s = now, time.monotonic()
            progress.append((round(changed_s - begin_s, 2), sum(map(len, now))))
        await asyncio.sleep(0.2)
    return {"captured": sizes, "seconds": round(changed_s - begin_s, 2), "progress": progress}


async def _captured_beside(toggles: Toggles, load: Load) -> dict[str, Any]:
    """Wait until nothing more is captured beside requests; say how long requests took meanwhile."""
    begin_s = time.monotonic()
    before = durations(load.done, after_s=begin_s - 60.0)
    found = await _captured(toggles, most_s=150.0)
    return found | {
        "requests_before": before,
        "requests_meanwhile": durations(load.done, after_s=begin_s),
    }


async def _described(show: Show, load: Load, toggles: Toggles) -> None:
    """Write what `surfaces` needs, whole numbers of recorded launches among it."""
    report = await asyncio.to_thread(toggles.report)
    recorded = [each["id"] for each in report["tunables"] if each["family"] == "autotune"]
    for name in recorded:
        request = {"op": "tunable-record", "id": name, "on": True}
        await asyncio.to_thread(toggles.ask, request)
    await load.until(len(load.done) + 4 * show.case.drifted[2])
    found = await asyncio.to_thread(direct.described, toggles)
    for name in recorded:
        request = {"op": "tunable-record", "id": name, "on": False}
        await asyncio.to_thread(toggles.ask, request)
    (show.out.parent / f"{show.name}-described.json").write_text(json.dumps(found))


async def _rollback(daemon: Daemon, toggles: Toggles, proposals: Collection[str]) -> dict[str, Any]:
    """Let the daemon take all tables back by command; return the seconds until none is in force."""
    begin_s = time.monotonic()
    said = [
        await asyncio.to_thread(daemon.command, "rollback", each, "-m", "benchmark")
        for each in proposals
    ]
    commanded_s = time.monotonic() - begin_s
    while time.monotonic() - begin_s < 30.0:
        report = await asyncio.to_thread(toggles.report)
        if not any(each["table"] for each in report["tunables"]):
            return {
                "commands_s": round(commanded_s, 2),
                "original_s": round(time.monotonic() - begin_s, 2),
                "outcomes": [o for o in report["outcomes"].items() if ":back:" in o[0]],
            }
        await asyncio.sleep(0.2)
    raise RuntimeError(f"tables are still in force: {said}")


async def _survey(daemon: Daemon, server: Vllm) -> object:
    status, said = await asyncio.to_thread(daemon.command, "survey", str(server.sockets), "--json")
    try:
        return {"status": status, "survey": json.loads(said)}
    except ValueError:
        return {"status": status, "said": said[-3000:]}


def _tables(daemon: Daemon) -> list[Signed]:
    """Return the signed changes of the daemon, the newest of each tunable."""
    found: dict[str, tuple[float, Signed]] = {}
    for path in (daemon.state / "lab" / "files").glob(f"*/{MANIFEST}"):
        text = path.read_text("utf-8")
        signature = (path.parent / SIGNATURE_FILE).read_text("utf-8")
        name, at = json.loads(text)["tunable"], path.stat().st_mtime
        if at > found.get(name, (0.0, None))[0]:
            found[name] = (at, Signed(text, signature))
    return [signed for _, signed in found.values()]


async def _direct(show: Show, server: Vllm, toggles: Toggles) -> list[Signed]:
    """Play the traffic, and search without the daemon."""
    lengths, output, concurrency = show.case.chat
    chat = await Load(server.url, concurrency, lengths, output, seed="chat").start()
    await asyncio.sleep(show.options.chat_s)
    await chat.stop()
    if show.case.decode is not None:
        count, length = show.case.decode
        await show.part(
            "first_decode", lambda: decoding(server.url, count=count, length=length, tokens=60)
        )
    lengths, output, concurrency = show.case.drifted
    load = await Load(server.url, concurrency, lengths, output, seed="drifted").start()
    await load.until(4 * concurrency)
    report = await asyncio.to_thread(toggles.report)
    for each in report["tunables"]:
        if each["family"] == "autotune":
            await asyncio.to_thread(
                toggles.ask, {"op": "tunable-record", "id": each["id"], "on": True}
            )
    await load.until(len(load.done) + 4 * concurrency)
    await show.part("before_search", lambda: _report(toggles))
    found: list[Signed] = []

    async def searched() -> list[dict[str, Any]]:
        limit_s = min(show.case.seek_s, show.left_s - 170.0)
        tables, measured = await asyncio.to_thread(
            direct.search,
            toggles,
            Path(show.options.work) / "child",
            device=show.options.experiments.rpartition(",")[2],
            pausing=show.options.experiments == show.options.gpu,
            until_s=time.monotonic() + limit_s,
        )
        found.extend(map(Signed, tables))
        return measured

    await show.part("search", searched)
    await load.stop()
    show.results["requests"] = {
        "chat": len(chat.done),
        "drifted": len(load.done),
        "failed": len(chat.failed) + len(load.failed),
        "errors": [*chat.failed, *load.failed][:5],
    }
    return found


async def _proof(show: Show, server: Vllm, tables: list[Signed], toggles: Toggles) -> None:
    show.results["tables"] = [json.loads(each.text) for each in tables]
    if not tables:
        show.note("no table: nothing was won")
        return

    def switch(on: bool) -> list[dict[str, Any]]:
        if on:
            return [toggles.on(each.text, signature=each.signature) for each in tables]
        return [toggles.off(json.loads(each.text)["tunable"]) for each in tables]

    await show.part("first_switch", lambda: asyncio.to_thread(switch, True))
    if show.case.decode is not None:
        await show.part("captured", lambda: _captured(toggles))
    await show.part("pairs", lambda: _pairs(show, server, switch))
    await show.part("answers", lambda: _answers(show, server, switch, toggles))
    if show.case.decode is not None:
        await show.part("decode", lambda: _decode(show, server, switch))
    show.results["switching"] = toggles.summary()
    await show.part("last_report", lambda: _report(toggles))


Switch = Callable[[bool], list[dict[str, Any]]]


async def _pairs(show: Show, server: Vllm, switch: Switch) -> dict[str, Any]:
    """Measure pairs of blocks in random order, with on/on and off/off controls among them."""
    lengths, output, concurrency = show.case.drifted
    load = await Load(server.url, concurrency, lengths, output, seed="pairs").start()
    await load.until(2 * concurrency)
    plan = [("on/off", (False, True))] * 16 + [("off/off", (False, False))] * 4
    show.chance.shuffle(plan)
    rows: list[dict[str, Any]] = []
    reserve_s = 100.0 if show.case.decode else 45.0
    for label, arms in plan:
        if show.left_s < reserve_s:
            break
        order = [0, 1] if show.chance.random() < 0.5 else [1, 0]
        blocks: list[dict[str, Any]] = [{}, {}]
        for index in order:
            await asyncio.to_thread(switch, arms[index])
            blocks[index] = await _block(show, load)
        rows.append({"label": label, "order": order, "off": blocks[0], "on": blocks[1]})
    await load.stop()
    summary = {}
    for label in sorted({row["label"] for row in rows}):
        own = [row for row in rows if row["label"] == label]
        summary[label] = {
            name: interval([math.log(row["on"][name] / row["off"][name]) for row in own])
            for name in ("tokens_per_s", "latency_ms")
        } | {
            f"median_{name}": [
                statistics.median(row[arm][name] for row in own) for arm in ("off", "on")
            ]
            for name in ("tokens_per_s", "latency_ms")
        }
    return {
        "summary": summary,
        "requests": len(load.done),
        "failed": len(load.failed),
        "errors": load.failed[:5],
        "rows": rows,
    }


async def _block(show: Show, load: Load) -> dict[str, Any]:
    """Time the next requests that began after the switch."""
    switched_s = time.monotonic()
    while not any(each.sent_s >= switched_s for each in load.done):
        await asyncio.sleep(0.002)
    first = len(load.done) - 1
    await load.until(first + show.case.per_block + 1)
    own = load.done[first : first + show.case.per_block + 1]
    took_s = own[-1].ended_s - own[0].ended_s
    tokens = sum(each.prompt_tokens + each.tokens for each in own[1:])
    return {
        "tokens_per_s": round(tokens / took_s, 1),
        "latency_ms": round(1e3 * statistics.median(x.ended_s - x.sent_s for x in own[1:]), 2),
        "seconds": round(took_s, 3),
    }


async def _answers(show: Show, server: Vllm, switch: Switch, toggles: Toggles) -> dict[str, Any]:
    """Compare greedy answers; prompts of the drifted traffic are among them.

    ``matched`` counts the launches under the tables in each pass: without any, equal answers say
    nothing about a table.
    """
    wanted = {300, 700, 1200, 2000, 3000, 4500, 6000, 8000, *show.case.drifted[0]}
    longest = max(map(int, re.findall(r"--max-model-len (\d+)", " ".join(server.words))))
    lengths = sorted({min(length, longest - 16) for length in wanted})
    found, matched = [], []
    for on in (False, True, False, True):
        await asyncio.to_thread(switch, on)
        found.append(await answers(server.url, lengths))
        report = await asyncio.to_thread(toggles.report)
        tables = [each["table"] for each in report["tunables"] if each["table"]]
        matched.append(sum(each["matched"] for each in tables))
    return {
        "lengths": lengths,
        "matched": matched,
        "off_off": compared(found[0], found[2]),
        "on_on": compared(found[1], found[3]),
        "off_on": compared(found[0], found[1]),
        "least_gaps": [min(each["gaps"], default=None) for each in found[0]],
    }


async def _decode(show: Show, server: Vllm, switch: Switch) -> dict[str, Any]:
    assert show.case.decode is not None, "asked for"
    count, length = show.case.decode
    rows: list[dict[str, Any]] = []
    while show.left_s > 25.0 and len(rows) < 8:
        on = len(rows) % 2 == 1
        await asyncio.to_thread(switch, on)
        rows.append({"on": on} | await decoding(server.url, count=count, length=length, tokens=100))
    ratios = [
        math.log(a["ms_per_token"] / b["ms_per_token"])
        for a, b in zip(rows[::2], rows[1::2], strict=False)
    ]
    return {"rows": rows, "speed": interval(ratios)}


def main() -> int:
    """Run the cases named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("cases", nargs="+", choices=sorted(CASES))
    parser.add_argument("--vllm", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--work", default="/tmp/vllm_live")
    parser.add_argument("--until", type=float, default=480.0, help="seconds of each case")
    parser.add_argument("--chat-s", type=float, default=25.0)
    parser.add_argument("--direct", action="store_true", help="search without the daemon")
    parser.add_argument("--live-proof", action="store_true", help="the policy requires one")
    parser.add_argument("--gpu", default="0", help="GPU of the server")
    parser.add_argument(
        "--experiments", default="", help="GPUs of experiments, such as 0,1; default: the server's"
    )
    options = parser.parse_args()
    # a limit of time ends the server too, and leaves the results so far
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.experiments = options.experiments or options.gpu
    failed = False
    for name in options.cases:
        show = Show(name, options)
        asyncio.run(run(show))
        failed = failed or bool(show.results["errors"])
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
