"""Processes that a server makes: each its own, none its parent's, none in the other's way."""

from __future__ import annotations

from typing import Any

SERVER = """
import json, os, pathlib, signal, socket, sys, threading, time, traceback
from retuned.runtime import attach

FOLDER = pathlib.Path(os.environ["RETUNED_SOCKET_DIR"])
HANGS_S = 200
DEFINITION = {"name": "k", "op_type": "k", "axes": {"N": {"type": "var"}},
    "inputs": {"x": {"shape": ["N"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["N"], "dtype": "float32"}}}

class Tensor:
    def __init__(self, n): self.shape = (n,)

def ask(path, **request):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(HANGS_S)
        connection.connect(str(path))
        connection.sendall(json.dumps(request).encode() + b"\\n")
        return json.loads(connection.makefile().readline())

def launches(path):
    (state,) = ask(path, op="slots")["slots"]
    return state["launches"]

children = []

def too_late(*_):
    for child in children:
        os.kill(child, signal.SIGKILL)  # it may hang before it has run a line of ours
    os.write(2, b"a child or a thread hangs")
    os._exit(9)

signal.signal(signal.SIGALRM, too_late)
signal.alarm(HANGS_S)

def in_child(work):
    child = os.fork()
    children.append(child)
    if child == 0:
        children.clear()
        signal.alarm(HANGS_S)
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return child

def wait(child):
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, f"child ended with {code}"
"""


def run(machine: Any, body: str) -> list[str]:
    program = machine.module("server", SERVER + body, where="app") / "server.py"
    said: str = machine.said("", str(program))
    return said.splitlines()


def test_a_forked_worker_listens_with_its_first_launch_and_counts_its_own(machine: Any) -> None:
    """As a preloading server makes its workers."""
    body = """
runtime = attach(server="preloading", socket_dir=FOLDER)
slot = runtime.slot(DEFINITION, original=lambda x: x)
for _ in range(5):
    slot(Tensor(8))
parent = runtime.socket

def work():
    assert runtime.socket is None and threading.active_count() == 1
    slot(Tensor(8)); slot(Tensor(9))
    path = FOLDER / f"{os.getpid()}.sock"
    assert runtime.socket == path and ask(path, op="hello")["pid"] == os.getpid()
    assert launches(path) == [[[8], 1], [[9], 1]], launches(path)
    runtime.close()

for child in [in_child(work) for _ in range(3)]:
    wait(child)
assert launches(parent) == [[[8], 5]]
assert ask(parent, op="hello")["pid"] == os.getpid()
print(sorted(path.name for path in FOLDER.iterdir()) == [parent.name])
"""
    assert run(machine, body) == ["True"]


def test_a_child_that_launches_nothing_leaves_nothing(machine: Any) -> None:
    body = """
runtime = attach(server="s", socket_dir=FOLDER)
slot = runtime.slot(DEFINITION, original=lambda x: x)

def work():
    os.execv(sys.executable, [sys.executable, "-c", "pass"])

wait(in_child(work))
print([path.name for path in FOLDER.iterdir()] == [runtime.socket.name])
"""
    assert run(machine, body) == ["True"]


def test_whoever_talks_to_a_parent_hears_of_its_death(machine: Any) -> None:
    """A forked worker must not keep the connection open that its parent had."""
    body = """
ready, told = os.pipe()

def parent():
    runtime = attach(server="s", socket_dir=FOLDER)
    slot = runtime.slot(DEFINITION, original=lambda x: x)
    os.write(told, str(runtime.socket).encode())
    while not runtime._control._silent:
        time.sleep(0.01)
    grandchild = in_child(lambda: time.sleep(2 * HANGS_S))
    os.write(told, str(grandchild).encode())
    time.sleep(2 * HANGS_S)

child = in_child(parent)
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(os.read(ready, 4096).decode())
    grandchild = int(os.read(ready, 4096))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    connection.settimeout(HANGS_S)
    print(connection.recv(1))
os.kill(grandchild, signal.SIGKILL)
"""
    assert run(machine, body) == ["b''"]


def test_a_fork_during_a_prepare_and_a_join_holds_up_nobody(machine: Any) -> None:
    """Whatever locks other threads held, the child serves, listens and joins."""
    body = """
from retuned.runtime.plugins import join
runtime = attach(server="s", socket_dir=FOLDER)
slot = runtime.slot(DEFINITION, original=lambda x: x)
slot(Tensor(1))
host, done = runtime._host, threading.Event()
held = threading.Barrier(2)

def hold():
    seat = host._seating.seats["k"]
    prepared = host._execution.preparing
    with prepared, seat.lock, slot._lock, runtime._starting, join._JOINING._lock:
        held.wait()
        done.wait()

thread = threading.Thread(target=hold, daemon=True)
thread.start()
held.wait()

def work():
    slot(Tensor(3))
    path = FOLDER / f"{os.getpid()}.sock"
    assert launches(path) == [[[3], 1]]
    order = {"id": "o", "kind": "rollback", "proposal": "p", "target": "t", "definition": "k",
        "artifact": None, "previous": None, "guard": {"bounds": {}}, "epoch": 1,
        "shadow_every": 50, "shadow_tolerance": 1e-3}
    assert ask(path, op="commit", order=order)["ok"] is True
    assert join.join() is runtime
    runtime.close()

wait(in_child(work))
done.set()
thread.join()
slot(Tensor(1))
print(launches(runtime.socket))
"""
    assert run(machine, body) == ["[[[1], 2]]"]


def test_a_daemon_that_forks_twice_serves_from_the_last(machine: Any) -> None:
    body = """
ready, told = os.pipe()
runtime = attach(server="s", socket_dir=FOLDER)
slot = runtime.slot(DEFINITION, original=lambda x: x)
first = runtime.socket

def middle():
    os.setsid()

    def serve():
        slot(Tensor(4))
        os.write(told, str(runtime.socket).encode())
        deadline = time.monotonic() + HANGS_S
        while (FOLDER / "go").exists() is False and time.monotonic() < deadline:
            time.sleep(0.01)
        runtime.close()
        os.write(told, b"closed")

    in_child(serve)

wait(in_child(middle))
path = os.read(ready, 4096).decode()
print(launches(path), path != str(first))
(FOLDER / "go").touch()
print(os.read(ready, 100) == b"closed", os.path.exists(path), first.exists())
"""
    assert run(machine, body) == ["[[[4], 1]] True", "True False True"]


def test_forks_under_load_all_serve(machine: Any) -> None:
    """Threads launch and ask while children are made; every child serves, and ends."""
    body = """
runtime = attach(server="s", socket_dir=FOLDER)
slot = runtime.slot(DEFINITION, original=lambda x: x)
stop = threading.Event()

def load():
    while not stop.is_set():
        for n in range(40):
            slot(Tensor(n))

def daemon():
    while not stop.is_set():
        assert ask(runtime.socket, op="slots")["ok"]

threads = [threading.Thread(target=each, daemon=True) for each in (load, load, daemon)]
for thread in threads:
    thread.start()

def work():
    for n in range(100):
        assert slot(Tensor(n)).shape == (n,)
    assert ask(runtime.socket, op="hello")["pid"] == os.getpid()
    runtime.close()

for _ in range(25):
    wait(in_child(work))
stop.set()
for thread in threads:
    thread.join()
print([path.name for path in FOLDER.iterdir()] == [runtime.socket.name])
"""
    assert run(machine, body) == ["True"]
