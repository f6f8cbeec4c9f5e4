"""Graphs that are captured again beside requests: what a capture changes of them.

    python -m benchmarks.gpu.vllm_live.beside MODEL-FOLDER OUT.json [--first-runner]

The engine runs in this process, so that the moment of a capture is known: after some steps of a
batch that decodes, sizes are captured again, and all keys, values and states in the device's memory
are compared bit by bit with a copy from before. Servers that the product captures only without
requests are captured beside requests all the same, to see what changes. The tokens of the batch are
compared with those of the same batch without a capture. A control captures without the step that
the product takes for state-space layers. `--first-runner` takes vLLM's first runner.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from retuned.runtime.tunables import graphs
from retuned.runtime.tunables.records import Capture
from retuned.runtime.tunables.state import Registry

LENGTHS = (33, 64, 150, 400, 7, 260, 90, 511)
TOKENS = 96
AT = (20, 40, 60)
"""Steps before which sizes are captured."""
SIZES = (1, 2, 4, 8, 16)


def main() -> int:
    """Run all parts, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--first-runner", action="store_true")
    options = parser.parse_args()
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "0" if options.first_runner else "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    found: dict[str, Any] = {"model": options.model.name, "first_runner": options.first_runner}
    try:
        _run(options.model, found, first_runner=options.first_runner)
    except Exception:  # whatever vLLM raises: the parts before it are results
        found["error"] = traceback.format_exc()[-4000:]
    options.out.write_text(json.dumps(found, indent=1))
    print(json.dumps(found)[:4000], flush=True)
    return int("error" in found)


def _run(model: Path, found: dict[str, Any], *, first_runner: bool) -> None:
    begin_s = time.monotonic()
    engine, worker = _engine(model)
    found["start_s"] = round(time.monotonic() - begin_s, 1)
    found["runner"] = f"{type(worker.model_runner).__module__}.{type(worker.model_runner).__name__}"
    vars(graphs)["_needs_idle"] = lambda _worker: ""
    sets = graphs.GraphSets(Registry())
    found["way"] = sets.way(worker)
    wanted = [Capture(size=size, axes={}) for size in SIZES]

    def capture() -> dict[str, Any]:
        return _captured(sets, worker, wanted)

    plain = _batch(engine)
    found["plain_again"] = _alike(plain, _batch(engine))
    idle = capture()
    found["idle"] = idle | {"tokens": _alike(plain, _batch(engine))}
    taken: list[dict[str, Any]] = []
    tokens = _batch(engine, lambda: taken.append(capture()))
    found["beside"] = {"captures": taken, "tokens": _alike(plain, tokens)}
    sets.restore(worker, SIZES)
    found["restored"] = _alike(plain, _batch(engine))
    if not first_runner:
        vars(graphs)["_zero_block_tables"] = lambda _runner: None
        control: list[dict[str, Any]] = []
        tokens = _batch(engine, lambda: control.append(capture()))
        found["without_zeroed_blocks"] = {"captures": control, "tokens": _alike(plain, tokens)}


def _engine(model: Path) -> tuple[Any, Any]:
    vllm = importlib.import_module("vllm")
    made = vllm.LLM(
        model=str(model),
        max_model_len=2048,
        max_num_seqs=16,
        max_num_batched_tokens=2048,
        gpu_memory_utilization=0.25,
        enable_prefix_caching=False,
        seed=0,
        compilation_config={
            "mode": 0,
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": list(SIZES),
        },
    )
    engine = made.llm_engine
    return engine, engine.model_executor.driver_worker.worker


def _batch(engine: Any, interrupt: Callable[[], object] | None = None) -> dict[str, list[int]]:  # noqa: ANN401 - vLLM's
    """Decode one batch; return its tokens. `interrupt` is called before some steps."""
    vllm = importlib.import_module("vllm")
    for index, length in enumerate(LENGTHS):
        ids = [4 + (17 * index + 31 * place) % 8000 for place in range(length)]
        chosen = vllm.SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
        engine.add_request(f"{index}", {"prompt_token_ids": ids}, chosen)
    tokens: dict[str, list[int]] = {}
    count = 0
    while engine.has_unfinished_requests():
        if interrupt is not None and count in AT:
            interrupt()
        for each in engine.step():
            if each.finished:
                tokens[each.request_id.partition("-")[0]] = list(each.outputs[0].token_ids)
        count += 1
    return tokens


def _alike(ours: Mapping[str, list[int]], theirs: Mapping[str, list[int]]) -> dict[str, int]:
    equal = sum(ours[name] == theirs.get(name) for name in ours)
    return {"equal": equal, "of": len(ours), "tokens": sum(map(len, ours.values()))}


def _captured(sets: Any, worker: Any, wanted: list[Any]) -> dict[str, Any]:  # noqa: ANN401
    """Capture sizes again, and compare the device's memory with a copy from before."""
    torch.cuda.synchronize()
    before = {name: each.clone() for name, each in _caches(worker.model_runner)}
    took: list[float] = []
    done: list[int] = []
    for each in wanted:
        begin_s = time.monotonic()
        done += sets.capture(worker, [each], tables="t", beside=True)
        took.append(round(time.monotonic() - begin_s, 4))
    torch.cuda.synchronize()
    changed = []
    for name, each in _caches(worker.model_runner):
        if torch.equal(each, before[name]):
            continue
        places = (each != before[name]).nonzero()
        ends = [int(places.min()), int(places.max())]
        changed.append({"cache": name, "bytes": len(places), "first_and_last": ends})
    return {
        "captured": done,
        "seconds": took,
        "caches": len(before),
        "bytes": sum(each.numel() for each in before.values()),
        "changed": len(changed),
        "examples": changed[:4],
    }


def _caches(runner: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """Yield keys, values and states, each memory once, and what the runner has of its requests."""
    seen: set[int] = set()

    def tensors(value: object, name: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            if storage.nbytes() and storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                yield name, torch.tensor([], dtype=torch.uint8, device=value.device).set_(storage)
        elif isinstance(value, (list, tuple)):
            for index, each in enumerate(value):
                yield from tensors(each, f"{name}.{index}")

    yield from tensors(runner.kv_caches, "kv")
    for holder in ("req_states", "sampler", "input_batch"):
        for name, value in vars(getattr(runner, holder, None) or object.__new__(_Empty)).items():
            inner = getattr(value, "gpu", value)
            yield from tensors(inner, f"{holder}.{name}")


class _Empty:
    pass


if __name__ == "__main__":
    raise SystemExit(main())
