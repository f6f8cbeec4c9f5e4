"""Windows of PyTorch's own profiler, in a server of its own: a process with two busy threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retuned.traces import read_trace

SERVER = r"""
import json, os, sys, threading, time
from pathlib import Path
import torch
from retuned.runtime import attach
from retuned.runtime.profiler import recorder

torch.set_num_threads(1)
folder = Path(os.environ["RETUNED_TRACE_DIR"])
definition = {
    "name": "relu_n48", "op_type": "relu",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 48}},
    "inputs": {"x": {"shape": ["M", "N"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["M", "N"], "dtype": "float32"}}, "reference": "def run(x): ...",
}
runtime = attach(server="test")
slot = runtime.slot(definition, torch.relu)
serving = threading.Event()

def worker(n):
    x = torch.ones(n, 48)
    while not serving.wait(0.001):
        slot(x @ torch.ones(48, 48))

workers = [threading.Thread(target=worker, args=(n,)) for n in (32, 64)]
for each in workers:
    each.start()

def until(written):
    deadline_s = time.monotonic() + 90.0
    while runtime._windows.state()["written"] < written and time.monotonic() < deadline_s:
        time.sleep(0.02)

until(1)
first = runtime._windows.state()

# The server's own profiler, while a window is open: it must come through, whole.
turns, own = runtime._windows._recorder.turns, []
yielded = 0
deadline_s = time.monotonic() + 90.0
while not yielded and time.monotonic() < deadline_s:
    time.sleep(0.002)
    if turns._ours is not None:
        with torch.autograd.profiler.profile() as profile:
            torch.ones(3).add(1)
        own.append(sum(event.name == "aten::add" for event in profile.function_events))
    yielded = runtime._windows.state()["skipped"].get("yielded", 0)
until(runtime._windows.state()["written"] + 1)

# A fork in the middle of it: the child neither records nor takes windows.
child = os.fork()
if child == 0:
    alone = torch.autograd.profiler._is_profiler_enabled or len(threading.enumerate()) > 1
    os._exit(7 if alone else 0)
forked = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

serving.set()
for each in workers:
    each.join()
runtime.close()
names = [torch.autograd.profiler._prepare_profiler, torch.autograd.profiler._disable_profiler]
print(json.dumps({
    "first": first, "own": own, "yielded": yielded, "forked": forked,
    "last": runtime._windows.state(),
    "seams": [hasattr(each, "_retuned_seam") for each in names],
    "compiler": "torch._inductor.config" in sys.modules,
    "left": [each.name for each in threading.enumerate()],
}))
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("windows")
    traces = folder / "traces"
    traces.mkdir()
    environment = os.environ | {
        "RETUNED_TRACE_DIR": str(traces),
        "RETUNED_SOCKET_DIR": str(folder / "sockets"),
        "RETUNED_PROFILE_EVERY_S": "1",
        "RETUNED_PROFILE_MS": "1600",
    }
    # A test cannot wait for one percent of time: the same rule with another budget. Nor may the
    # windows of a busy machine become so short that nothing begins while one is open.
    hurried = SERVER.replace(
        "runtime = attach", "import retuned.runtime.profiler.schedule as p\n"
        "p.Rule.__init__.__kwdefaults__.update(budget_ratio=1000.0)\n"
        "p.MAX_STALL_S = 1000.0\nruntime = attach"
    )  # fmt: skip
    child = subprocess.run(
        [sys.executable, "-c", hurried],
        capture_output=True,
        text=True,
        timeout=290,
        env=environment,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-4000:]
    return json.loads(child.stdout.splitlines()[-1]), traces


def test_a_window_shows_the_operators_of_all_threads_with_their_shapes(
    served: tuple[dict[str, Any], Path],
) -> None:
    told, traces = served
    files = sorted(traces.iterdir())
    assert len(files) == told["last"]["written"] >= 2
    shapes = set()
    for file in files:
        batch = read_trace(file)
        shapes |= {
            launch.dims[0] for launch in batch.launches if launch.kernel == "aten::clamp_min"
        }
    assert shapes == {(32, 48), (64, 48)}, "one thread has 32 rows, the other 64"
    assert told["first"]["spent_s"] > 0.0
    assert not told["compiler"], "recording imports nothing that the server did not"


def test_the_servers_own_profiler_ends_a_window_and_is_not_disturbed(
    served: tuple[dict[str, Any], Path],
) -> None:
    told, _ = served
    assert told["yielded"] >= 1
    assert set(told["own"]) == {1}, "each time it saw what it recorded"


def test_a_forked_child_neither_records_nor_takes_windows(
    served: tuple[dict[str, Any], Path],
) -> None:
    assert served[0]["forked"] == 0


def test_closing_leaves_pytorch_as_it_was(served: tuple[dict[str, Any], Path]) -> None:
    told, _ = served
    assert told["seams"] == [False, False]
    assert told["left"] == ["MainThread"]
    assert told["last"]["off"] == ""
