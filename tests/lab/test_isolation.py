"""Walls that a child puts up around itself before it runs what a stranger wrote."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import retuned
from retuned.lab.harness import landlock
from retuned.lab.harness.isolation import isolation

ROOT = str(Path(retuned.__file__).resolve().parent.parent)
WITHOUT_FILES = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from retuned.lab.harness import sandbox
kept = open(sys.argv[2], "r+b")
version = sandbox.deny_files()
seen = {"version": version}
for name, act in {
    "read": lambda: open(sys.argv[2], "rb"),
    "make": lambda: open(sys.argv[2] + ".new", "wb"),
    "list": lambda: os.listdir("/"),
    "remove": lambda: os.unlink(sys.argv[2]),
    "run": lambda: os.execv("/bin/true", ["true"]),
}.items():
    try:
        act()
        seen[name] = "allowed"
    except OSError as error:
        seen[name] = type(error).__name__
kept.write(b"still open")
os.write(1, json.dumps(seen).encode())
"""


def ask(script: str, *words: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, ROOT, *words],
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_files_are_given_up_whatever_the_path_and_what_is_open_stays(tmp_path: Path) -> None:
    if not isolation().files:
        pytest.skip("this kernel has no Landlock")
    file = tmp_path / "file"
    file.write_bytes(b"some content")
    seen = ask(WITHOUT_FILES, str(file))
    assert seen.pop("version") == isolation().files
    assert set(seen.values()) == {"PermissionError"}
    assert file.read_bytes().startswith(b"still open")


DEVICE_CHILD = """
import ctypes, json, os, resource, signal, subprocess, sys, threading
sys.path.insert(0, sys.argv[1])
from retuned.lab.harness import landlock, sandbox
victim, own, secret = int(sys.argv[2]), sys.argv[3], sys.argv[4]
programs = sys.argv[5] == "programs"
libc = ctypes.CDLL(None, use_errno=True)
started = threading.Event()
asked = threading.Event()
seen = {}
def early():  # a thread that was there before the walls
    started.set()
    asked.wait(200)
    seen["early thread"] = tried(lambda: os.kill(victim, 0))
def tried(act):
    try:
        answer = act()
        return answer if isinstance(answer, str) else "allowed"
    except OSError as error:
        return os.strerror(error.errno)
def call(name, *arguments):
    from retuned.lab.harness.syscalls import number
    import platform
    if libc.syscall(number(name, platform.machine()), *map(ctypes.c_long, arguments)) < 0:
        raise OSError(ctypes.get_errno(), "")
thread = threading.Thread(target=early, daemon=True)
thread.start()
started.wait(200)
imports = [sys.argv[1], sys.prefix, sys.base_prefix]
files = sandbox.deny_files(landlock.for_device(imports=imports, read=[], own=[own]))
filtered = sandbox.confine_device(
    memory_bytes=2**28, cpu_s=20, on_device=False, programs=programs
)
asked.set()
thread.join(200)
seen["walls"] = [filtered, files]
os.mkdir(os.path.join(own, "folder"))
open(os.path.join(own, "script.new"), "w").close()
new = ctypes.create_string_buffer(16)
script = os.path.join(own, "script")
def write(path):
    with open(path, "w") as stream:
        stream.write("#!/bin/sh\\ntrue\\n")
    os.chmod(path, 0o700)
attempts = {
    "signal": lambda: call("tgkill", victim, victim, 0),
    "signal itself": lambda: call("tgkill", os.getpid(), os.getpid(), 0),
    "limits of others": lambda: resource.prlimit(victim, resource.RLIMIT_CORE),
    "its own": lambda: resource.getrlimit(resource.RLIMIT_CORE),
    "raise its own": lambda: call("prlimit64", 0, 4, ctypes.addressof(new), 0),
    "trace": lambda: call("ptrace", 16, victim, 0, 0),
    "dumpable": lambda: call("prctl", 4, 1, 0, 0, 0),
    "memory file": lambda: call("memfd_create", ctypes.addressof(new), 0),
    "mount": lambda: call("mount", 0, 0, 0, 0, 0),
    "unshare": lambda: call("unshare", 0x10000000),
    "rings": lambda: call("io_uring_setup", 1, ctypes.addressof(new)),
    "read a secret": lambda: open(secret),
    "write beside": lambda: open(secret + ".new", "w"),
    "list home": lambda: os.listdir(os.path.dirname(secret)),
    "read the system": lambda: open("/usr/bin/env", "rb").close(),
    "read packages": lambda: os.listdir(sys.argv[1]),
    "random": lambda: open("/dev/urandom", "rb").read(1) and "allowed",
    "write its own": lambda: write(script),
    "move its own": lambda: os.replace(script + ".new", os.path.join(own, "folder", "new")),
    "run its own": lambda: subprocess.run([script], check=True) and "allowed",
    "run the system's": lambda: subprocess.run(["/bin/true"], check=True) and "allowed",
}
for name, act in attempts.items():
    seen[name] = tried(act)
os.write(1, json.dumps(seen).encode())
"""
DENIED = os.strerror(errno.EACCES)
FORBIDDEN = os.strerror(errno.EPERM)


@pytest.fixture(scope="module", params=["programs", "none"])
def device_child(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, object]:
    """What a device's child was allowed; it may start programs, or not."""
    own, home = tmp_path_factory.mktemp("own"), tmp_path_factory.mktemp("home")
    secret = home / "secret"
    secret.write_text("a key")
    with subprocess.Popen(["sleep", "900"]) as victim:
        try:
            seen = ask(DEVICE_CHILD, str(victim.pid), str(own), str(secret), request.param)
        finally:
            victim.kill()
    return {**seen, "asked": request.param}


def test_a_devices_child_reaches_no_other_process_and_gains_nothing_back(
    device_child: dict[str, object],
) -> None:
    if not isolation().system_calls:
        pytest.skip("this kernel filters no system calls")
    forbidden = (
        "signal", "limits of others", "raise its own", "trace", "dumpable", "memory file",
        "mount", "unshare", "rings", "early thread",
    )  # fmt: skip
    assert {name: device_child[name] for name in forbidden} == dict.fromkeys(forbidden, FORBIDDEN)
    assert device_child["signal itself"] == "allowed"
    assert device_child["its own"] == "allowed"


def test_a_devices_child_sees_packages_and_its_own_folder_and_no_other_file(
    device_child: dict[str, object],
) -> None:
    if not isolation().files:
        pytest.skip("this kernel has no Landlock")
    assert device_child["walls"] == [isolation().system_calls, isolation().files]
    for name in ("read a secret", "write beside", "list home"):
        assert device_child[name] == DENIED
    for name in ("read the system", "read packages", "random", "write its own", "move its own"):
        assert device_child[name] == "allowed"


def test_what_a_devices_child_wrote_is_never_started(device_child: dict[str, object]) -> None:
    if not isolation().files:
        pytest.skip("this kernel has no Landlock")
    assert device_child["run its own"] in (DENIED, FORBIDDEN)
    if device_child["asked"] == "programs":
        assert device_child["run the system's"] == "allowed"
    elif isolation().system_calls:
        assert device_child["run the system's"] == FORBIDDEN


def test_hidden_memory_is_the_kernels_answer_and_leaves_no_core() -> None:
    script = (
        "import ctypes, json, os, resource, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from retuned.lab.harness.sandbox import hide_memory\n"
        "hide_memory()\n"
        "dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)\n"
        "core = resource.getrlimit(resource.RLIMIT_CORE)\n"
        "os.write(1, json.dumps({'dumpable': dumpable, 'core': core}).encode())\n"
    )
    assert ask(script) == {"dumpable": 0, "core": [0, 0]}


def test_a_network_of_its_own_has_no_way_out() -> None:
    if not isolation().network:
        pytest.skip("name spaces are closed on this machine")
    script = (
        "import json, os, socket, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from retuned.lab.harness import sandbox\n"
        "assert sandbox.leave_network()\n"
        "try:\n"
        "    socket.create_connection(('192.0.2.1', 80), timeout=5)\n"
        "    seen = 'connected'\n"
        "except OSError as error:\n"
        "    seen = os.strerror(error.errno)\n"
        "os.write(1, json.dumps({'seen': seen}).encode())\n"
    )
    assert ask(script)["seen"] == "Network is unreachable"


def test_a_compiler_in_somebodys_home_opens_its_own_folder_and_not_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home" / "ann"
    for place in (home / "bin", home / "tools" / "cuda" / "bin"):
        place.mkdir(parents=True)
        (place / "cc").write_text("#!/bin/sh\n")
        (place / "cc").chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("CC", str(home / "bin" / "cc"))
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(home / "tools" / "cuda" / "bin" / "cc"))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{home}:{home / 'lib'}:{tmp_path / 'home'}:/:relative")
    allowed = landlock.for_device(imports=[], read=[], own=[]).programs
    mine = {each for each in allowed if each.startswith(str(tmp_path))}
    assert mine == {str(home / "bin"), str(home / "tools" / "cuda"), str(home / "lib")}
    assert "/" not in allowed
