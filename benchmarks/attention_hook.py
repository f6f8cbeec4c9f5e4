"""Host cost of the hook on vLLM's Triton attention: a call with it, over the same call without it.

    python -m benchmarks.attention_hook [--blocks 40] [--calls 2000]

vLLM's own launcher runs with kernels that do nothing, so that its Python code alone is timed, on
the thread's processor time. No table is in force, and all calls are of one size class, as those of
the layers of one step are. The hook is taken out and put back in a new random order for each
block. The report has the median over blocks, and of the difference within each block the interval
of 95 % from order statistics. `pass_us` is what a Python function costs that passes these arguments
on. Needs the sources of vLLM that the contract tests unpack.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.catalog_cpu import machine
from benchmarks.slots import interval
from tests.servers import attention
from tests.servers.test_attention_tables import Unrun
from tests.servers.wheels import PINNED, unpacked

from retuned.runtime.tunables.attention import AttentionHook
from retuned.runtime.tunables.state import Registry

RESULT = Path(__file__).resolve().parent / "results" / "attention_hook.json"


def measured(module: ModuleType, *, blocks: int, calls: int) -> dict[str, Any]:
    """Time the launcher of one version of vLLM."""
    vars(module).update(
        kernel_unified_attention=Unrun(module.kernel_unified_attention),
        reduce_segments=Unrun(module.reduce_segments),
    )
    hook = AttentionHook(Registry())
    assert hook.install() == "on", hook.state
    given = attention.arguments([1] * 16, [100] * 16, segments=0)
    order, rows = random.Random(1), []
    for number in range(blocks + 2):
        row = {}
        for on in order.sample([True, False], 2):
            (hook.resume if on else hook.suspend)()
            row[on] = _us(module.unified_attention, given, calls=calls)
        if number > 1:  # the first ones fill caches
            rows.append(row)
    hook.uninstall()
    return {
        "call_us": round(statistics.median(row[False] for row in rows), 3),
        "over_us": interval([row[True] - row[False] for row in rows]),
        "pass_us": round(_passing_us(given, calls=calls), 3),
    }


def _us(call: Callable[..., Any], given: Mapping[str, Any], *, calls: int) -> float:
    begin_ns = time.thread_time_ns()
    for _ in range(calls):
        call(**given)
    return (time.thread_time_ns() - begin_ns) / calls / 1e3


def _passing_us(given: Mapping[str, Any], *, calls: int) -> float:
    def inner(**_: object) -> None: ...

    def outer(**given: object) -> None:
        inner(**given)

    pairs = [_us(outer, given, calls=calls) - _us(inner, given, calls=calls) for _ in range(9)]
    return statistics.median(pairs)


def main() -> None:
    """Time every version of vLLM that is pinned, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    found = {}
    for wheel in (each for each in PINNED.values() if each.name == "vllm"):
        with attention.attention(unpacked(wheel)) as module:
            found[str(wheel)] = measured(module, blocks=options.blocks, calls=options.calls)
    body = {"method": " ".join((__doc__ or "").split()), "machine": machine(), "vllm": found}
    options.out.write_text(json.dumps(body, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
