"""The child that runs a problem: it imports PyTorch, gives up all other rights, then executes it.

`processes.ForkServer` runs it with ``serve``: one process imports, its forks answer. The first line
on descriptor 0 has the settings. Then comes the problem's text as a command, and per command one
JSON line with the bytes of its arrays; each answer is one JSON line with the bytes of its arrays.
Output of the problem is discarded: the pipes move to other descriptors before it runs.

PyTorch writes code at run time and opens parts of itself when they are first used. So neither the
closed list of system calls nor the ban on all files that guards kernels can hold. Beside the
restrictions of `sandbox.confine_device` and `sandbox.deny_files`, the filter here refuses every
socket, new processes and programs, and every change of a file. Linux only.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import socket
import sys
from typing import Any

_WARM = (
    "torch", "torch.nn.functional", "torch.overrides", "numpy",
    "retuned_bench.kernelbench.model",
    "retuned.lab.harness.landlock", "retuned.lab.harness.sandbox", "retuned.lab.harness.syscalls",
)  # fmt: skip
_IN, _OUT = 10, 11
_CHUNK = 1 << 20
_MOST_PROCESSES = 4096


def main() -> None:
    """Serve commands until the parent closes the pipe."""
    os.dup2(0, _IN)
    os.dup2(1, _OUT)
    settings = json.loads(_line())
    from retuned.lab.harness import sandbox
    from retuned_bench.kernelbench.model import Problem
    from retuned_bench.kernelbench.tensors import Refused

    sandbox.enter(parent=settings["parent"], cores=settings["cores"])
    _quiet()
    _warm(settings)
    _write(_confined(settings))
    problem: Any = None
    while line := _line():
        command = json.loads(line)
        arrays = [_array(each) for each in command.get("arrays", [])]
        given: list[Any] = []
        answer: dict[str, Any] = {}
        try:
            if command["op"] == "load":
                problem = Problem(command["text"], device=settings["device"])
            elif command["op"] == "describe":
                answer = problem.describe(command["seed"])
            elif command["op"] == "draw":
                given = problem.draw(command["seed"])
            elif command["op"] == "forward":
                given = problem.forward(arrays, double=command["double"])
            elif command["op"] == "place":
                problem.place(arrays)
            elif command["op"] == "threads":
                problem.threads(command["count"])
            elif command["op"] == "compile":
                problem.compile()
            elif command["op"] == "time":
                words = (command["calls"], command["first"], command["group"])
                answer = {"ns": problem.time(*words)}
        except Refused as error:
            answer = {"refused": error.args[0], "detail": error.args[1]}
        except MemoryError:
            answer = {"refused": "out-of-memory", "detail": "needs more memory than it may have"}
        except BaseException as error:  # anything that untrusted code raises, SystemExit included
            answer = _told(error)
        heads = [{"dtype": dtype, "shape": shape} for _, dtype, shape in given]
        _write({**answer, "arrays": heads})
        for data, _, _ in given:
            _send(data)


def _quiet() -> None:
    """Point the usual descriptors to /dev/null: prints are lost, and reads return nothing."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2, 3):
        os.dup2(nothing, descriptor)
    os.closerange(4, _IN)
    os.closerange(_OUT + 1, 1024)


def _warm(settings: dict[str, Any]) -> None:
    """Set up what PyTorch sets up when first used, while it may; in one thread on a processor.

    What confines a process confines the thread that asks and those that it starts, so that pools of
    threads begin afterwards.
    """
    import tempfile

    import torch

    if not settings["compile"]:
        tempfile.tempdir = "/nowhere"  # modules that ask for it write nothing there
    torch.set_num_threads(1)
    device = settings["device"]
    one = torch.ones(8, 64, 64, device=device)
    torch.nn.functional.conv2d(one @ one, torch.ones(8, 8, 3, 3, device=device))
    torch.linalg.norm(one.double()[0] @ one.double()[0])
    if settings["compile"]:
        import torch._dynamo
        import torch._inductor.config


def _confined(settings: dict[str, Any]) -> dict[str, Any]:
    import torch

    from retuned.lab.harness import sandbox
    from retuned.lab.harness.landlock import Allowed

    compiles, on_device = bool(settings["compile"]), settings["device"] != "cpu"
    threads = len(os.listdir("/proc/self/task"))
    if compiles:
        _limit_processes()
    files = sandbox.deny_files(Allowed(**{k: tuple(v) for k, v in settings["files"].items()}))
    kept = _deny_calls(compiles=compiles, on_device=on_device)
    kept = kept and bool(
        sandbox.confine_device(
            memory_bytes=settings["memory_bytes"],
            cpu_s=settings["cpu_s"],
            on_device=on_device,
            programs=compiles,
        )
    )
    torch.set_num_threads(max(1, settings["threads"]))
    return {
        "ready": True,
        "confined": kept and (bool(files) or not compiles),
        "open": _open_walls(compiles=compiles),
        "landlock": files,
        "threads": threads,
        "arrays": [],
    }


def _deny_calls(*, compiles: bool, on_device: bool) -> bool:
    """Filter system calls; return whether that is possible here.

    Parameters
    ----------
    compiles
        Whether compilers are started and files written; then only Landlock guards the files.
    on_device
        Whether a device's files are opened for writing when it is used.
    """
    from retuned.lab.harness.sandbox import filter_system_calls
    from retuned.lab.harness.syscalls import ARCHITECTURES, interpreting_program

    machine = platform.machine()
    if machine not in ARCHITECTURES:
        return False
    steps = interpreting_program(machine, compiles=compiles, on_device=on_device)
    return filter_system_calls(steps, machine=machine)


def _limit_processes() -> None:
    """Bound the number of this user's processes and threads; without effect for root."""
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if hard == resource.RLIM_INFINITY or hard > _MOST_PROCESSES:
        resource.setrlimit(resource.RLIMIT_NPROC, (_MOST_PROCESSES, _MOST_PROCESSES))


def _open_walls(*, compiles: bool) -> list[str]:
    """Try what is forbidden; return which walls do not stand."""
    open_walls = []
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()
        open_walls.append("network")
    except OSError:
        pass
    own = os.environ.get("TMPDIR", "")  # where a compiler may write
    folders = ("/tmp", "/var/tmp", "/dev/shm", "/", os.path.expanduser("~"))
    for folder in (each for each in folders if each != own):
        path = f"{folder}/.retuned-{os.getpid()}"
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            open_walls.append("files")
            os.unlink(path)
            break
        except OSError:
            continue
    if not compiles:
        try:
            if os.fork() == 0:
                os._exit(0)
            open_walls.append("processes")
        except OSError:
            pass
    return open_walls


def _told(error: BaseException) -> dict[str, Any]:
    text = str(error)
    if any(words in text.lower() for words in ("allocate memory", "out of memory")):
        return {"refused": "out-of-memory", "detail": text[:300]}
    line, frame = 0, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == "problem":
            line = frame.tb_lineno
        frame = frame.tb_next
    where = f"line {line}: " if line else ""
    return {"refused": "fails", "detail": f"{where}{type(error).__name__}: {text[:300]}"}


def _array(head: dict[str, Any]) -> tuple[bytearray, str, list[int]]:
    data = bytearray(head["bytes"])
    view = memoryview(data)
    while view:
        count = os.readv(_IN, [view[:_CHUNK]])
        if not count:
            os._exit(1)
        view = view[count:]
    return data, head["dtype"], head["shape"]


def _line() -> bytes:
    """Read one line, byte by byte: what follows it is data."""
    found = bytearray()
    while not found.endswith(b"\n"):
        byte = os.read(_IN, 1)
        if not byte:
            return b""
        found += byte
    return bytes(found)


def _write(answer: dict[str, Any]) -> None:
    _send(json.dumps(answer).encode() + b"\n")


def _send(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(_OUT, view[:_CHUNK]) :]


if __name__ == "__main__" and sys.argv[1:2] == ["serve"]:
    sys.path[:0] = sys.argv[4:]
    from retuned.lab.harness.gpu_child import serve

    serve(int(sys.argv[2]), int(sys.argv[3]), warm=_WARM, program=main)
