"""Whose time it is that a child is waited for: its own, not that of others or of the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from retuned.lab.harness import deadlines
from retuned.lab.harness.deadlines import ChildDeadline


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """Answers a line with one, and with another makes itself busy for ever."""
    script = (
        "import sys\nsys.stdin.readline()\nprint('so', flush=True)\n"
        "sys.stdin.readline()\nwhile True: pass"
    )
    words = [sys.executable, "-I", "-S", "-c", script]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as made:
        yield made
        made.kill()


def told(child: subprocess.Popen[bytes]) -> int:
    """Tell a child to go on; return where it answers."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"\n")
    return child.stdout.fileno()


def test_a_child_that_does_not_get_to_run_has_not_had_its_time(
    child: subprocess.Popen[bytes],
) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    waits = ChildDeadline(child.pid, 0.2)
    later = threading.Timer(1.0, os.kill, (child.pid, signal.SIGCONT))
    later.start()
    assert waits.until_ready(told(child))
    later.join()


def test_a_child_that_ran_for_its_time_is_given_up(child: subprocess.Popen[bytes]) -> None:
    answers = told(child)
    assert ChildDeadline(child.pid, 60.0).until_ready(answers)
    assert os.read(answers, 10) == b"so\n"
    told(child)
    assert not ChildDeadline(child.pid, 0.2).until_ready(answers)


def test_a_child_that_waits_for_ever_is_given_up_later(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert child.stdout is not None
    monkeypatch.setattr(deadlines, "_STARVED_S", 0.3)
    assert not ChildDeadline(child.pid, 0.1).until_ready(child.stdout.fileno())


class Machine:
    """A clock, and what a child ran: looks take as long as the machine lets them take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, answers_at: int) -> None:
        self.now_s = self.looks = 0
        self.answers_at = answers_at
        monkeypatch.setattr(deadlines, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(deadlines, "_ran_s", lambda _: float(self.now_s))
        monkeypatch.setattr(deadlines, "is_ready", self.look)

    def look(self, descriptor: int, *, timeout_s: float) -> bool:
        self.looks += 1
        self.now_s += 5  # it stood still
        return self.looks == self.answers_at


def test_a_machine_that_stands_still_takes_no_time_of_a_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Machine(monkeypatch, answers_at=4)
    assert ChildDeadline(0, 1.0).until_ready(0)


def test_what_trickles_is_over_too(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, answers_at=0)
    monkeypatch.setattr(
        deadlines, "is_ready", lambda *_, **__: machine.look(0, timeout_s=0) or True
    )
    waits = ChildDeadline(0, 1.0)
    assert any(not waits.until_ready(0) for _ in range(20))
