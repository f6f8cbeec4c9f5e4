"""Parent's handle of one child: start, commands with a deadline, cause of death, kill."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import retuned
from retuned.errors import CandidateCrashed, CandidateError, CandidateTimedOut, HarnessError
from retuned.lab.harness.arena import Arena
from retuned.lab.harness.deadlines import ChildDeadline
from retuned.lab.harness.processes import Child, ChildLimits, ChildProgram, fresh

__all__ = ["CPU_PROGRAM", "ChildLimits", "Elapsed", "Library", "Worker", "cache_of"]

_ROOT = Path(retuned.__file__).resolve().parent.parent
_PREPARE_S = 60.0
_LONGEST_ANSWER_BYTES = 64 << 20
"""Thousands of times the size of a timing response."""
_COPY_S = 60.0

CPU_PROGRAM = ChildProgram(start=fresh(Path(__file__).with_name("child.py")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One compiled variant to load."""

    path: Path
    """Shared object or source that passed the audit."""
    entry: str
    tensors: int
    axes: int
    parts: int = 1
    launch: Mapping[str, Any] = field(default_factory=dict)


def cache_of(library: Path) -> Path:
    return library.with_name(f"{library.name}.cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Elapsed:
    """Time of a command, on clocks that a candidate cannot change."""

    wall_ns: int
    """On the parent's clock; the child's claim must not be longer."""
    busy_ns: int
    """Run time of the child's thread, as the kernel accounts it; the child's claim must not be much
    shorter. Unlike wall time it does not grow under load. Without accounting it equals the wall
    time.
    """


class Worker:
    """A fresh process with variants loaded; it runs one command at a time.

    `libraries` are addressed by position. `arena` must outlive the worker. Empty `cores` means no
    restriction.

    Raises
    ------
    CandidateError
        If the child dies or hangs while loading, which is attributed to the candidate.
    HarnessError
        If no child starts, or its device does not respond.
    """

    def __init__(
        self,
        libraries: Sequence[Library],
        arena: Arena,
        *,
        cores: Sequence[int] = (),
        program: ChildProgram = CPU_PROGRAM,
        limits: ChildLimits | None = None,
    ) -> None:
        limits = limits or program.limits
        self._pending = b""
        self._mirrored = program.mirrored
        self._prepared: set[tuple[int, ...]] = set()
        # Files of a killed child go with its folder; should this process be killed
        # too, it is stored beside the compiled variants and not in a shared folder.
        self._temp = (
            tempfile.TemporaryDirectory(prefix=".child-", dir=libraries[0].path.resolve().parent)
            if program.mirrored
            else None
        )
        self._process, memory = self._started(program, arena)
        settings = {
            "root": str(_ROOT),
            "parent": os.getpid(),
            "cores": list(cores),
            "fd": memory,
            "size": arena.size_bytes,
            "memory_bytes": limits.memory_bytes,
            "cpu_s": limits.cpu_s,
            "libraries": [_as_json(library) for library in libraries],
            # The incumbent is first where two are compared.
            "temp": self._temp.name if self._temp else "",
            "cache": str(cache_of(libraries[min(1, len(libraries) - 1)].path.resolve())),
            **program.settings,
        }
        try:
            self._send(settings)
            self.ready = self._receive(limits.start_s)
            _raise_refusal(self.ready)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def command(
        self, body: Mapping[str, Any], *, timeout_s: float
    ) -> tuple[dict[str, Any], Elapsed]:
        """Send one command; return its response and the elapsed time.

        Raises
        ------
        CandidateTimedOut
            If the child did not respond within its run time; it is killed.
        CandidateCrashed
            If the child died of a signal or gave up for lack of memory.
        HarnessError
            If it ended or responded in a way that a candidate cannot cause.
        """
        nonce = secrets.token_hex(8)
        busy_before = self._on_cpu_ns()
        begin = time.perf_counter_ns()
        self._send({**body, "nonce": nonce})
        answer = self._receive(timeout_s)
        wall_ns = time.perf_counter_ns() - begin
        busy_after = self._on_cpu_ns()
        if answer.get("nonce") != nonce:
            self.close()
            raise HarnessError("the child answered another command than the one it was sent")
        if answer.get("memory"):
            self.close()
            raise CandidateCrashed("out-of-memory", detail="no memory left within the limit")
        _raise_refusal(answer)
        if busy_before is None or busy_after is None:
            return answer, Elapsed(wall_ns=wall_ns, busy_ns=wall_ns)
        return answer, Elapsed(wall_ns=wall_ns, busy_ns=min(wall_ns, busy_after - busy_before))

    def push(self, used_bytes: int) -> None:
        if self._mirrored:
            self.command({"op": "push", "bytes": used_bytes}, timeout_s=_COPY_S)

    def pull(self, used_bytes: int) -> None:
        """Copy all memory back, red zones included."""
        if self._mirrored:
            self.command({"op": "pull", "bytes": used_bytes}, timeout_s=_COPY_S)

    def prepare(self, kernel: int, lengths: Sequence[int]) -> None:
        """Let the child finish compiling, so that launches do not include compile time.

        Raises
        ------
        CandidateError
            As `command`, and with reason ``compile-failed`` or ``over-limit``.
        """
        key = (kernel, *lengths)
        if self._mirrored and key not in self._prepared:
            body = {"op": "prepare", "kernel": kernel, "lengths": list(lengths)}
            self.command(body, timeout_s=_PREPARE_S)
            self._prepared.add(key)

    def _on_cpu_ns(self) -> int | None:
        try:
            text = Path(f"/proc/{self._process.pid}/schedstat").read_text(encoding="ascii")
            return int(text.split()[0])
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        self._process.close()
        self._clean()

    def _started(self, program: ChildProgram, arena: Arena) -> tuple[Child, int]:
        try:
            return program.start(arena.fd)
        except BaseException:
            self._clean()
            raise

    def _clean(self) -> None:
        if self._temp is not None:
            self._temp.cleanup()

    def _send(self, body: Mapping[str, Any]) -> None:
        data = json.dumps(body, separators=(",", ":")).encode() + b"\n"
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._process.stdin, view) :]
        except BrokenPipeError:
            raise self._death() from None

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        descriptor = self._process.stdout
        patience = ChildDeadline(self._process.pid, timeout_s)
        while b"\n" not in self._pending:
            if not patience.until_ready(descriptor):
                self.close()
                raise CandidateTimedOut("timed-out", detail=f"no answer within {timeout_s:.3g} s")
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                raise self._death()
            self._pending += chunk
            if len(self._pending) > _LONGEST_ANSWER_BYTES:
                self.close()
                raise HarnessError(f"the child answered more than {_LONGEST_ANSWER_BYTES} bytes")
        line, _, self._pending = self._pending.partition(b"\n")
        try:
            answer: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            self.close()
            raise HarnessError("the child's response is not JSON") from error
        if not isinstance(answer, dict):
            self.close()
            raise HarnessError("the child's response is not a JSON object")
        found: dict[str, Any] = answer
        return found

    def _death(self) -> CandidateError | HarnessError:
        code = self._process.wait()
        self.close()
        if code >= 0:
            return HarnessError(f"the child exited with status {code}")
        if -code == signal.SIGXCPU:
            return CandidateTimedOut("timed-out", detail="used up its processor time")
        if -code == signal.SIGKILL:
            return CandidateCrashed(
                "out-of-memory", detail="killed by the system, most likely for memory"
            )
        if -code == signal.SIGSYS:
            return CandidateCrashed("contract-violated", detail="made a forbidden system call")
        return CandidateCrashed("crashed", detail=f"died of {signal.Signals(-code).name}")


def _as_json(library: Library) -> dict[str, Any]:
    return {
        "path": str(library.path.resolve()),
        "entry": library.entry,
        "tensors": library.tensors,
        "axes": library.axes,
        "parts": library.parts,
        "launch": dict(library.launch),
    }


def _raise_refusal(answer: Mapping[str, Any]) -> None:
    """Raise a refusal that the child reported; its text is untrusted."""
    if "refused" in answer:
        text = re.sub(r"[^\x20-\x7e]", "?", str(answer.get("detail", "")))[:400]
        raise CandidateCrashed(str(answer["refused"])[:40], detail=text)
