"""The runtime's control socket as a `Swapper`, for one process or for all workers of a server.

Every request opens a connection of its own: nothing has to be reconnected after either side
restarts. Several processes are driven alike, at the same time, and reported as one: counts are
added, and of what differs the state furthest behind is told, so that an order is repeated until
every process has it. All are told before an error is raised: one that hangs or refuses must not
keep the others from going back. What was counted is that of the processes that have the newest
order; the others count as idle. Reports are made of the answers that come, as long as one does.
A socket that nobody listens on belongs to a process that died, and is skipped.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from retuned.adapters.runtime_facts import server_environment
from retuned.adapters.runtime_fake import FakeSwapper
from retuned.errors import CandidateError, RetunedError, TemporaryError
from retuned.ports import SlotState
from retuned.runtime.control import peer_uid
from retuned.stages.swap import SwapOrder
from retuned.stages.verdict import ServerEnvironment
from retuned.stages.watch import WatchSample

__all__ = ["FakeSwapper", "RuntimeSocket"]

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_ANSWER_BYTES = 32 << 20
"""Longest answer taken from a server."""
_RETRY_S = 1.0
_MOST_AT_ONCE = 32
"""Processes that are asked at the same time."""


class RuntimeSocket:
    """Talks to every runtime behind a path.

    Parameters
    ----------
    path
        A socket, or a folder of ``<pid>.sock``.
    timeout_s
        Longest wait for an ordinary answer, seconds.
    prepare_timeout_s
        Longest wait for a prepare, which loads, repacks and checks, seconds.
    """

    def __init__(
        self, path: Path, *, timeout_s: float = 5.0, prepare_timeout_s: float = 120.0
    ) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._prepare_timeout_s = prepare_timeout_s

    def hello(self) -> Sequence[Mapping[str, Any]]:
        """Return pid, protocol version, server name and environment of every process."""
        return [answer for answer in self._reports({"op": "hello"}, _hello).values()]

    def slots(self) -> Sequence[SlotState]:
        """Report every slot; see `Swapper.slots`."""
        found: dict[str, list[SlotState]] = defaultdict(list)
        for states in self._reports({"op": "slots"}, _entries("slots", _slot_state)).values():
            for state in states:
                found[state.definition].append(state)
        return [_merge_states(states) for states in found.values()]

    def samples(self) -> Sequence[WatchSample]:
        """Return what was counted per slot; see `Swapper.samples`."""
        found: dict[str, dict[str, WatchSample]] = defaultdict(dict)
        parse = _entries("samples", WatchSample.model_validate)
        for process, samples in self._reports({"op": "samples"}, parse).items():
            for sample in samples:
                found[sample.definition][process] = sample
        return [_merge_samples(samples) for samples in found.values()]

    def environments(self) -> Sequence[ServerEnvironment]:
        """Return what each process runs on; see `Swapper.environments`.

        A process that listens and does not say is no process that agrees: it gets the order too.
        """
        return list(self._reports({"op": "hello"}, server_environment, complete=True).values())

    def prepare(self, order: SwapOrder, *, artifact_dir: Path) -> None:
        """Prepare in every process; see `Swapper.prepare`."""
        request = {
            "op": "prepare",
            "order": order.model_dump(mode="json"),
            "artifact_dir": str(artifact_dir.absolute()),
        }
        self._ask_all(request, timeout_s=self._prepare_timeout_s)

    def commit(self, order: SwapOrder) -> int:
        """Commit in every process; return the slowest flip, ns; see `Swapper.commit`."""
        answers = self._ask_all({"op": "commit", "order": order.model_dump(mode="json")})
        return max(int(answer.get("flip_ns", 0)) for answer in answers)

    def bypass(self, definition: str, *, on: bool) -> None:
        """Serve the original for a while (`on`), or the order in force again.

        The order, its epoch and its counts stay: this is for comparing the two.

        Raises
        ------
        CandidateError
            ``unknown-slot``.
        TemporaryError
            If the server does not answer.
        """
        self._ask_all({"op": "bypass", "definition": definition, "on": on})

    def ask(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Tell every process one request and return their answers.

        Raises
        ------
        CandidateError
            If one refuses.
        TemporaryError
            If one does not answer, or nobody listens.
        """
        return self._ask_all(request)

    def processes(self) -> list[Path]:
        """Return the sockets there are.

        Raises
        ------
        TemporaryError
            If the folder cannot be read.
        """
        return self._sockets()

    def _reports(
        self,
        request: Mapping[str, Any],
        parse: Callable[[Mapping[str, Any]], T],
        *,
        complete: bool = False,
    ) -> dict[str, T]:
        """Return what processes say, by their socket's name; those that fail are left out.

        Parameters
        ----------
        request
            What is asked.
        parse
            Reads an answer.
        complete
            Every process that listens must answer so that it can be read.

        Raises
        ------
        TemporaryError
            If there is no answer that can be read, or a missing one where all are needed.
        """
        answers, errors = self._tell(request, timeout_s=self._timeout_s)
        reports: dict[str, T] = {}
        for name, answer in answers.items():
            try:
                reports[name] = parse(answer)
            except TemporaryError as error:
                errors.append(error)
        if complete and errors and reports:
            message = f"{len(errors)} of the server's processes do not answer: {errors[0]}"
            raise TemporaryError(message[:1000], delay_s=_RETRY_S) from errors[0]
        if not reports:
            raise errors[0]
        for left_out in errors:
            log.warning("left out of the report: %s", left_out)
        return reports

    def _ask_all(
        self, request: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> list[dict[str, Any]]:
        """Tell every process, and then raise what went wrong: a refusal first, it is final."""
        answers, errors = self._tell(request, timeout_s=timeout_s or self._timeout_s)
        for error in sorted(errors, key=lambda each: not isinstance(each, CandidateError)):
            raise error
        return list(answers.values())

    def _tell(
        self, request: Mapping[str, Any], *, timeout_s: float
    ) -> tuple[dict[str, dict[str, Any]], list[RetunedError]]:
        """Return the answers by socket, and the errors, of which there is one if nobody listens."""
        paths = self._sockets()
        answers: dict[str, dict[str, Any]] = {}
        errors: list[RetunedError] = []
        with ThreadPoolExecutor(max(1, min(len(paths), _MOST_AT_ONCE))) as pool:
            said = pool.map(lambda path: _told(path, request, timeout_s=timeout_s), paths)
            for path, answer in zip(paths, said, strict=True):
                if isinstance(answer, RetunedError):
                    errors.append(answer)
                elif answer is not None:
                    answers[path.name] = answer
        if not answers and not errors:
            message = f"{self._path}: no server listens; it may be starting"
            errors.append(TemporaryError(message, delay_s=_RETRY_S))
        return answers, errors

    def _sockets(self) -> list[Path]:
        try:
            if not self._path.is_dir():
                return [self._path]
            paths = sorted(self._path.glob("*.sock"))
            return [path for path in paths if stat.S_ISSOCK(path.lstat().st_mode)]
        except OSError as error:
            raise TemporaryError(f"{self._path}: {error}", delay_s=_RETRY_S) from error


def _told(
    path: Path, request: Mapping[str, Any], *, timeout_s: float
) -> dict[str, Any] | RetunedError | None:
    """Ask one process; its error is returned, so that the others are told too. None is gone."""
    try:
        answer = _ask(path, request, timeout_s=timeout_s)
    except (ConnectionRefusedError, FileNotFoundError):
        return None  # its process is gone
    except (OSError, ValueError, RecursionError) as error:
        message = f"{path}: the runtime does not answer: {error}"
        return TemporaryError(message, delay_s=_RETRY_S)
    if answer.get("ok") is not True:
        reason, detail = str(answer.get("reason")), str(answer.get("detail"))
        return CandidateError(reason[:64], detail=detail[:2000])
    return answer


def _ask(path: Path, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
    """Send one request, read one line.

    Raises
    ------
    OSError
        If the runtime is gone or too slow.
    ValueError
        If its answer is no JSON object of bearable size.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        _check_peer(connection)
        connection.sendall(json.dumps(request, separators=(",", ":")).encode() + b"\n")
        chunks: list[bytes] = []
        size = 0
        while not chunks or b"\n" not in chunks[-1]:
            chunk = connection.recv(1 << 18)
            if not chunk:
                raise ConnectionResetError("closed without an answer")
            chunks.append(chunk)
            size += len(chunk)
            if size > MAX_ANSWER_BYTES:
                raise ValueError(f"answer has more than {MAX_ANSWER_BYTES} bytes")
    answer = json.loads(b"".join(chunks))
    if not isinstance(answer, dict):
        raise ValueError("answer is no JSON object")
    return answer


def _check_peer(connection: socket.socket) -> None:
    """Refuse to believe a process of another user's that lies in wait in a shared folder.

    A runtime listens to its own user and to root, so an honest one is of this user, unless this is
    root: then whoever owns the socket's process could as well be the server.

    Raises
    ------
    PermissionError
        If the process that listens is another user's.
    """
    own = os.geteuid()
    uid = peer_uid(connection)
    if own != 0 and uid not in (0, own):
        raise PermissionError(f"a process of user {uid} listens there, not one of ours")


def _entries(name: str, parse: Callable[[Any], T]) -> Callable[[Mapping[str, Any]], list[T]]:
    """Read the entries of an answer; a runtime that talks nonsense is a server to ask again."""

    def read(answer: Mapping[str, Any]) -> list[T]:
        try:
            return [parse(entry) for entry in answer[name]]
        except (KeyError, TypeError, ValueError, ValidationError) as error:
            message = f"the runtime's {name} cannot be read: {error}"
            raise TemporaryError(message[:500], delay_s=_RETRY_S) from error

    return read


def _hello(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    return answer


def _slot_state(entry: Mapping[str, Any]) -> SlotState:
    return SlotState(
        definition=str(entry["definition"]),
        active=None if entry["active"] is None else str(entry["active"]),
        epoch=int(entry["epoch"]),
        launches={tuple(int(n) for n in key): int(count) for key, count in entry["launches"]},
        other_launches=int(entry["other_launches"]),
        tripped=str(entry["tripped"]),
        bypassed=bool(entry["bypassed"]),
    )


def _merge_states(states: Sequence[SlotState]) -> SlotState:
    behind = min(states, key=lambda state: state.epoch)
    launches: dict[tuple[int, ...], int] = defaultdict(int)
    for state in states:
        for key, count in state.launches.items():
            launches[key] += count
    return SlotState(
        definition=behind.definition,
        active=behind.active,
        epoch=behind.epoch,
        newest_epoch=max(state.epoch for state in states),
        launches=dict(launches),
        other_launches=sum(state.other_launches for state in states),
        tripped=next((state.tripped for state in states if state.tripped), ""),
        bypassed=any(state.bypassed for state in states),
    )


def _merge_samples(by_process: Mapping[str, WatchSample]) -> WatchSample:
    """Add up those that have the newest order: harm in one must not hide behind one that waits."""
    newest = max(by_process.values(), key=lambda sample: (sample.epoch, not sample.tripped))
    samples = [sample for sample in by_process.values() if sample.epoch == newest.epoch]
    waiting = len(by_process) - len(samples)
    idle = [sample for sample in samples if sample.swapped_launches == 0]
    ineligible: dict[str, int] = defaultdict(int)
    for sample in samples:
        for reason, count in sample.ineligible_launches.items():
            ineligible[reason] += count
    checks = sum(sample.shadow_checks for sample in samples)
    return WatchSample(
        definition=newest.definition,
        artifact=newest.artifact,
        epoch=newest.epoch,
        swapped_launches=sum(sample.swapped_launches for sample in samples),
        fallback_launches=sum(sample.fallback_launches for sample in samples),
        ineligible_launches=dict(ineligible),
        shadow_checks=checks,
        shadow_mismatches=sum(sample.shadow_mismatches for sample in samples),
        shadow_nonfinite=sum(sample.shadow_nonfinite for sample in samples),
        worst_ratio=max(sample.worst_ratio for sample in samples),
        last_mean_ratio=max(sample.last_mean_ratio for sample in samples),
        errors=sum(sample.errors for sample in samples),
        tripped=next((sample.tripped for sample in samples if sample.tripped), ""),
        processes=len(by_process),
        idle_processes=waiting + len(idle),
        quiet_processes=sum(sample.fallback_launches == 0 for sample in idle),
        members=tuple(sorted(by_process)),
    )
