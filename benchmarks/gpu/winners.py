"""How long one GPU takes from a kernel's name to a winner that the whole judge has validated.

    OUT=/tmp/out python benchmarks/gpu/winners.py [--seconds 150]

Runs ``retuned kernels bench`` as a user would, one kernel family after the other: search, all gates
from G0 to G6, the finalist measured again from zero beside the incumbent and its clone. The clock
is the wall's and includes imports and compilations; each family begins with empty caches.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FAMILIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("silu_mul_bf16_i14336", ("M=32", "M=256", "M=2048")),
    ("softmax_bf16_n32768", ("M=1", "M=32", "M=256")),
    ("paged_attention_bf16_h32_g8_d128_p16", ("B=1,C=2048,W=128", "B=16,C=2048,W=128")),
)
"""Kernels with headroom, and the shapes that the traffic is made of."""


def find(name: str, shapes: Sequence[str], *, seconds: float) -> dict[str, Any]:
    """Run one family; the answer of the command, with the wall's clock."""
    with tempfile.TemporaryDirectory(prefix="retuned-winners-") as home:
        words = [sys.executable, "-m", "retuned.cli", "kernels", "bench", name, "--json"]
        words += ["--language", "triton", "--seconds", str(seconds), "--candidates", "24"]
        for shape in shapes:
            words += ["--shape", shape]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT / "daemon"), str(ROOT), os.environ.get("PYTHONPATH", "")]
            ),
            "XDG_CACHE_HOME": home,
            "TRITON_CACHE_DIR": f"{home}/triton",
        }
        began_s = time.monotonic()
        done = subprocess.run(
            words, capture_output=True, text=True, env=environment, timeout=4 * seconds + 120
        )
        wall_s = time.monotonic() - began_s
    print(done.stderr[-1500:], flush=True)
    body: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"error": done.stderr[-800:]}
    return {"kernel": name, "wall_s": round(wall_s, 1), "exit": done.returncode, **body}


def main() -> int:
    """Run every family and write the answers; 0 if each has a promoted winner."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--only", nargs="*")
    chosen = parser.parse_args()
    out = Path(os.environ.get("OUT", "gpu-results")).resolve()
    out.mkdir(parents=True, exist_ok=True)
    found = []
    for name, shapes in FAMILIES:
        if chosen.only and name not in chosen.only:
            continue
        found.append(find(name, shapes, seconds=chosen.seconds))
        text = json.dumps({"method": __doc__, "seconds": chosen.seconds, "families": found})
        (out / "gpu_winners.json").write_text(text + "\n", encoding="utf-8")
        best = found[-1].get("best") or {}
        print(name, found[-1]["wall_s"], "s:", best.get("reason"), best.get("speedup"), flush=True)
    return 0 if all((row.get("best") or {}).get("status") == "promote" for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
