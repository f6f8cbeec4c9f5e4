"""Walls that a child puts up around itself before it runs what a stranger wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import retuned
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
        timeout=60,
        check=True,
    )
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
