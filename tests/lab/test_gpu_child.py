"""The second child: a device's mirror of the shared memory, forked from a warmed interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.expect import raises_naming
from tests.hostile.triton_kernels import LINEAR, ROW, SOFTMAX, changed, linear, softmax

import retuned
from retuned import catalog
from retuned.contract import Language, Solution
from retuned.errors import CandidateError, CandidateTimedOut, HarnessError
from retuned.lab.harness import gpu_child
from retuned.lab.harness.arena import Arena
from retuned.lab.harness.processes import ForkServer
from retuned.lab.harness.run import Fill, Runner, arena_bytes
from retuned.lab.harness.variant import Variant
from retuned.lab.harness.worker import Worker
from retuned.lab.subject import make_inputs
from retuned.lab.toolchain import toolchain_for
from retuned.runtime.schema import Refused

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

PROGRAM = toolchain_for(Language.TRITON).program
Open = Callable[[Solution], Runner]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("triton")


def compiled(solution: Solution, folder: Path) -> Variant:
    definition = catalog.get(solution.definition).definition
    return toolchain_for(Language.TRITON).build(solution, definition, folder=folder).variant


@pytest.fixture
def opened(folder: Path) -> Iterator[Open]:
    runners: list[Runner] = []
    arenas: list[Arena] = []

    def start(solution: Solution) -> Runner:
        definition = catalog.get(solution.definition).definition
        variant = compiled(solution, folder)
        size = arena_bytes(
            definition,
            {"M": 9},
            scratch_bytes=variant.scratch_bytes,
            parts=1,
            zone_rows=PROGRAM.zone_rows,
        )
        arenas.append(Arena(size))
        runners.append(Runner(definition, variant, arena=arenas[-1], program=PROGRAM))
        return runners[-1]

    yield start
    for runner in runners:
        runner.__exit__(None, None, None)
    for arena in arenas:
        arena.close()


@pytest.mark.parametrize("solution", [softmax(), linear()], ids=[SOFTMAX, LINEAR])
def test_a_triton_variant_gives_its_answer_under_every_fill(
    solution: Solution, opened: Open
) -> None:
    entry, runner = catalog.get(solution.definition), opened(solution)
    inputs = make_inputs(entry, {"M": 9}, seed=3, family="randn")
    want = entry.reference(inputs, {"M": 9})["y"]
    for fill in (Fill(), Fill(value=0x5A), Fill(fenced=True)):
        got = runner.run(inputs, {"M": 9}, fill=fill, timeout_s=20.0)["y"]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_scratch_lies_in_the_arena_and_is_poisoned_before_every_launch(opened: Open) -> None:
    counts = changed(
        "    tl.store(y",
        "    seen = tl.load(scratch)\n    tl.store(scratch, seen + 1.0)\n"
        "    out = at * 0.0 + seen\n    tl.store(y",
        source=ROW.replace("(x, y, M,", "(x, y, scratch, M,"),
    )
    runner = opened(softmax(counts, scratch_bytes=64, grid=("1",)))
    inputs = make_inputs(catalog.get(SOFTMAX), {"M": 1}, seed=3, family="randn")
    poison = np.frombuffer(b"\x5a" * 4, dtype=np.float32)[0]
    for _ in range(2):
        got = runner.run(inputs, {"M": 1}, fill=Fill(value=0x5A), timeout_s=20.0)["y"]
        assert (got == poison).all()


def test_red_zones_of_a_device_are_as_wide_as_a_tile(opened: Open) -> None:
    row = 32 * 4
    runner = opened(softmax())
    placed = runner._place_outputs({"M": 9, "N": 32}, Fill())["y"]
    assert placed.start - placed.low >= PROGRAM.zone_rows * row
    assert placed.high - placed.end >= PROGRAM.zone_rows * row
    assert "fences" not in runner.memory_check


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Refused("out-of-resources", detail="shared memory"), "over-limit"),
        (Refused("grid-invalid", detail="zero"), "contract-violated"),
        (Refused("compile-failed", detail="no"), "compile-failed"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "crashed"),
    ],
)
def test_what_a_device_reports_is_named_and_its_text_is_plain(
    error: Exception, reason: str, opened: Open
) -> None:
    runner = opened(softmax())
    told = gpu_child.failure(error)
    told["detail"] = f"{told['detail']}\x1b[31m\n"

    def answer(*_: object) -> dict[str, object]:
        return {**told, "nonce": sent[-1]["nonce"]}

    sent: list[dict[str, object]] = []
    worker = runner._worker
    worker._send, worker._receive = sent.append, answer  # type: ignore[method-assign,assignment]
    with pytest.raises(CandidateError) as caught:
        worker.command({"op": "run"}, timeout_s=1.0)
    assert caught.value.reason == reason
    assert caught.value.detail.isprintable()


@pytest.mark.parametrize("layout", ["as-is", "transposed", "panels-8"])
def test_wide_zones_leave_room_for_weights_in_every_layout(layout: str, folder: Path) -> None:
    entry = catalog.get("linear_w8_n512_k32")
    solution = linear(layouts={"wq": layout}).model_copy(
        update={"definition": entry.definition.name}
    )
    variant = compiled(solution, folder)
    size = arena_bytes(
        entry.definition, {"M": 3}, scratch_bytes=0, parts=1, zone_rows=PROGRAM.zone_rows
    )
    inputs = make_inputs(entry, {"M": 3}, seed=3, family="randn")
    with (
        Arena(size) as arena,
        Runner(entry.definition, variant, arena=arena, program=PROGRAM) as runner,
    ):
        assert set(runner.run(inputs, {"M": 3}, timeout_s=20.0)) == {"y"}


def test_a_kernel_that_never_ends_is_killed_in_time(opened: Open) -> None:
    body = (
        "    turn = M\n    while turn > 0:\n        turn += M - M\n"
        "        tl.atomic_add(y + at, 0.0, mask=mask)\n    tl.store(y"
    )
    runner = opened(softmax(changed("    tl.store(y", body)))
    inputs = make_inputs(catalog.get(SOFTMAX), {"M": 2}, seed=3, family="randn")
    begin = time.monotonic()
    with pytest.raises(CandidateTimedOut):
        runner.run(inputs, {"M": 2}, timeout_s=0.4)
    assert time.monotonic() - begin < 60.0


def test_the_child_has_no_network_and_no_way_to_others() -> None:
    seen = confined("""
import json, os, socket, ctypes
found = {}
for name, kind in (("inet", socket.AF_INET), ("netlink", socket.AF_NETLINK)):
    try:
        socket.socket(kind).close()
        found[name] = "open"
    except OSError as error:
        found[name] = error.errno
for name, act in (("kill", lambda: os.kill(os.getppid(), 0)), ("unshare", lambda: check(272))):
    try:
        act()
        found[name] = "done"
    except OSError as error:
        found[name] = error.errno
socket.socket(socket.AF_UNIX).close()
print(json.dumps(found))
""")
    assert seen == {"inet": 1, "netlink": 1, "kill": 1, "unshare": 1}


def confined(script: str) -> object:
    """Run a script after `confine_device`; return the object it prints."""
    import json

    prelude = f"""
import ctypes, os, sys
sys.path.insert(0, {str(Path(retuned.__file__).parent.parent)!r})
from retuned.lab.harness import sandbox
def check(number):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, 0) < 0:
        raise OSError(ctypes.get_errno(), "refused")
if not sandbox.confine_device(memory_bytes=2**28, cpu_s=20, on_device=False):
    sys.exit(77)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", prelude + script],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": "/"},
    )
    if done.returncode == 77:
        pytest.skip("system calls are filtered on x86-64 only")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_host_memory_beyond_the_limit_is_refused_to_the_child() -> None:
    script = (
        "\ntry:\n    bytearray(2**30)\n    print('true')\nexcept MemoryError:\n    print('false')"
    )
    assert confined(script) is False


def test_every_child_is_a_process_of_its_own_that_the_parent_reaps(folder: Path) -> None:
    libraries = [compiled(softmax(), folder).as_library(catalog.get(SOFTMAX).definition)]
    pids, folders = set(), list[Path]()
    for _ in range(2):
        with Arena(1 << 20) as arena, Worker(libraries, arena, program=PROGRAM) as worker:
            pid = worker._process.pid
            assert os.getpgid(pid) == pid
            assert parent_of(pid) == os.getpid()
            assert worker._temp is not None
            folders.append(Path(worker._temp.name))
            assert any(folders[-1].iterdir())  # the source, as Triton wants to read it
            pids.add(pid)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert len(pids) == 2
    assert not any(folder.exists() for folder in folders)


def test_a_fork_server_that_cannot_import_says_so(tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text("raise SystemExit(1)\n")
    server = ForkServer(script, paths=[], environment={})
    with raises_naming(HarnessError, "torch", "triton"), Arena(4096) as arena:
        server.start(arena.fd)
    server.close()


def test_a_fork_server_that_has_died_says_so_leaves_nothing_open_and_starts_anew(
    tmp_path: Path,
) -> None:
    script, mark = tmp_path / "serve.py", tmp_path / "mark"
    script.write_text(
        f"""
import os, socket, sys
requests = socket.socket(fileno=int(sys.argv[2]))
requests.send(b"ready")
socket.recv_fds(requests, 1, 3)
if not os.path.exists({str(mark)!r}):
    open({str(mark)!r}, "w").close()
    sys.exit(1)  # between a request and its answer
requests.send(b"%d" % os.getpid())
requests.recv(1)
"""
    )
    server = ForkServer(script, paths=[], environment={})
    with Arena(4096) as arena:
        before = len(os.listdir("/proc/self/fd"))
        with raises_naming(HarnessError, "is gone"):
            server.start(arena.fd)
        assert len(os.listdir("/proc/self/fd")) <= before
        child, _ = server.start(arena.fd)
        os.close(child.stdin)
        os.close(child.stdout)
    server.close()


def test_a_fork_server_that_nobody_closes_ends_in_order_with_its_program(tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text("import signal\nsignal.pause()\n")
    program = f"""
from pathlib import Path
from retuned.lab.harness.processes import ForkServer
kept = ForkServer(Path({str(script)!r}), paths=[], environment={{}})
kept.warm()
"""
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_dies_with_its_parent(folder: Path) -> None:
    path = compiled(softmax(), folder).library
    script = f"""
import os, signal
from pathlib import Path
from retuned.contract import Language
from retuned.lab.harness import gpu_child
from retuned.lab.harness.arena import Arena
from retuned.lab.harness.worker import Library, Worker
from retuned.lab.toolchain import toolchain_for
from retuned.runtime.schema import Refused
from tests.hostile.triton_kernels import softmax
from retuned.lab.languages.triton_contract import launch_of
from retuned import catalog
definition = catalog.get("{SOFTMAX}").definition
library = Library(path=Path({str(path)!r}), entry="kernel", tensors=2, axes=2,
                  launch=launch_of(softmax(), definition))
worker = Worker([library], Arena(1 << 20), program=toolchain_for(Language.TRITON).program)
print(worker._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(retuned.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{root}:{root.parent}"},
        check=False,
    )
    pid = int(done.stdout)
    deadline = time.monotonic() + 60.0
    while parent_of(pid) is not None:
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.01)


def parent_of(pid: int) -> int | None:
    """Return the parent's number; None for a process that is gone or only waits to be reaped."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state in {"Z", "X"} else int(parent)
