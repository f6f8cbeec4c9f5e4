"""A server with strangers' kernels under Triton's interpreter: it shows its launches, then swaps.

Run as a program with ``TRITON_INTERPRET=1``; it speaks JSON lines with the test.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.lifting import live

from retuned.runtime.core.host import RuntimeHost
from retuned.runtime.intercept.hook import Interceptor
from retuned.runtime.intercept.observed import joined
from retuned.runtime.intercept.service import Interception

COLS = 96
Answers = dict[str, list[Any]]


def strangers(folder: Path) -> Any:
    """Write the kernels to a file, as a package has them, and import it."""
    path = folder / "thirdparty_ops.py"
    path.write_text(
        live.HEADER
        + live.SCALE
        + live.GROWING
        + live.RMSNORM.replace("rsqrt(mean", "tl.rsqrt(mean").replace(
            "from triton.language.extra.libdevice import rsqrt as rsqrt\n", ""
        )
    )
    spec = importlib.util.spec_from_file_location("thirdparty_ops", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["thirdparty_ops"] = module
    spec.loader.exec_module(module)
    return module


def scale(ops: Any, count: int) -> torch.Tensor:
    x = torch.linspace(-1.0, 1.0, count)
    out = torch.empty_like(x)
    ops.scale_kernel[lambda meta: (-(-count // meta["BLOCK"]),)](x, out, count, 0.5, BLOCK=64)
    return out


def normalise(ops: Any, rows: int) -> torch.Tensor:
    x = torch.linspace(-1.0, 1.0, rows * COLS).reshape(rows, COLS)
    y, w, rstd = torch.empty_like(x), torch.ones(COLS), torch.empty(rows)
    ops._rms_norm_forward[(rows,)](
        y, y.stride(0), x, x.stride(0), w, w.stride(0), rstd, rstd.stride(0), COLS, 1e-6, 0.0,
        0, BLOCK_SIZE=128, num_warps=4,
    )  # fmt: skip
    return y


def grow(ops: Any, count: int) -> torch.Tensor:
    x = torch.linspace(-1.0, 1.0, count)
    ops.growing_kernel[(-(-count // 64),)](x, count, BLOCK=64)
    return x


def answers(ops: Any) -> Answers:
    """What the server gives for the same requests each time."""
    found = {"scale": scale(ops, 200), "rows": normalise(ops, 5), "grown": grow(ops, 200)}
    return {name: tensor.tolist() for name, tensor in found.items()}


def say(body: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(body) + "\n")
    sys.stdout.flush()


def serve(ask: Callable[[], None], answers: Callable[[], Answers], *, hook: Interceptor) -> None:
    """Show launches, then carry out orders and say whether the answers stayed the same.

    Parameters
    ----------
    ask
        Makes the launches that are shown.
    answers
        What the server gives for the same requests.
    hook
        Installed.
    """
    host = RuntimeHost("server", interception=Interception(hook))
    ask()
    before = answers()
    answer = host.answer({"op": "observed"})
    say({"states": hook.install(), "records": joined(answer)})
    for number, line in enumerate(sys.stdin, start=1):
        asked = json.loads(line)
        order = {
            "id": f"order-{number}", "kind": "swap", "definition": asked["definition"],
            "artifact": asked["digest"], "previous": None, "guard": {"bounds": {}},
            "epoch": number, "shadow_every": asked.get("every", 10**9), "shadow_tolerance": 1e-3,
        }  # fmt: skip
        prepared = host.answer({"op": "prepare", "order": order, "artifact_dir": asked["folder"]})
        committed = host.answer({"op": "commit", "order": order})
        after = answers()
        for _ in range(asked.get("more", 0)):
            after = answers()
        samples = host.answer({"op": "samples"})["samples"]
        say({"prepared": prepared, "committed": committed, "same": after == before,
             "samples": samples})  # fmt: skip


def main() -> None:
    """Launch, show, swap, launch again."""
    ops = strangers(Path(sys.argv[1]))
    hook = Interceptor()
    hook.install()

    def ask() -> None:
        for count in (200, 7, 300, 200):
            scale(ops, count)
            grow(ops, count)
        for rows in (1, 5):
            normalise(ops, rows)

    serve(ask, lambda: answers(ops), hook=hook)


if __name__ == "__main__":
    main()
