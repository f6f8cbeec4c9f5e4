"""Orders for changes of a server's configuration, over the sockets of its processes.

`ChangeSwapper` sends orders for tuned-config files and for tables of tunables, behind the port that
swaps kernels.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from retuned.errors import CandidateError, PartialCommit, TemporaryError
from retuned.ports import SlotState, Swapper
from retuned.runtime.artifacts.trust import SIGNATURE_FILE
from retuned.runtime.tunables.records import digest_of_text
from retuned.runtime_client.client import RuntimeSocket, labelled
from retuned.runtime_client.connection import RETRY_S
from retuned.runtime_client.delivery import show_key
from retuned.runtime_client.reports import merge_states
from retuned.runtime_client.tuned_files import (
    Process,
    RuntimeFiles,
    entry_sample,
    entry_state,
    merged,
)
from retuned.stages.swap import (
    NOT_YET,
    Outcome,
    Phase,
    PhaseReason,
    Rank,
    RankState,
    SwapKind,
    SwapOrder,
    decide,
    outcome_of,
)
from retuned.stages.verdict import ServerEnvironment
from retuned.stages.watch import WatchSample
from retuned.store.artifact_folder import MANIFEST
from retuned.tuned_files.records import TABLE, FileChange, Format

log = logging.getLogger(__name__)


def body_of(order: SwapOrder, change: FileChange, *, artifact: str) -> dict[str, Any]:
    """Return an order in the server's form; one proposal is one change, whatever its epoch."""
    return {
        "id": order.proposal,
        "kind": str(order.kind),
        "definition": order.definition,
        "target": order.target,
        "who": "retuned",
        "when": "",
        "epoch": order.epoch,
        "change": change.text,
        "artifact": artifact,
    }


def _rollback_id(order: SwapOrder) -> str:
    return f"{order.proposal}:back:{order.artifact or ''}"[:256]


def standing_of(order: SwapOrder, process: Process) -> RankState:
    """Return the state of an order in a process."""
    entry = process.entries.get(order.definition)
    if entry is not None and entry.order == order.proposal and entry.artifact == order.artifact:
        return RankState.COMMITTED
    return RankState.PREPARED if order.proposal in process.prepared else RankState.UNPREPARED


def _operation(change: FileChange, name: str) -> str:
    return f"{'tunable' if change.format == TABLE else 'tuned'}-{name}"


def check_engaged(answer: Mapping[str, Any], order: SwapOrder) -> None:
    """Verify that a process picks the ordered row, and log what the order reaches.

    Raises
    ------
    CandidateError
        ``not-engaged``.
    TemporaryError
        If it still picks a row that is rolled back.
    """
    outcome, reason = str(answer.get("outcome")), str(answer.get("reason") or "")
    reach = str(answer.get("reach"))
    if outcome == "not-engaged":
        detail = f"{reason}: {answer.get('mismatches')}"[:1000]
        if order.kind is SwapKind.ROLLBACK:
            raise TemporaryError(f"the server still picks the row: {detail}", delay_s=RETRY_S)
        raise CandidateError("not-engaged", detail=detail)
    level = logging.INFO if (outcome, reach) == ("engaged", "all") else logging.WARNING
    log.log(level, "%s of %s: %s, reaches %s", order.kind, order.definition, outcome, reach)


T = TypeVar("T")

_MOST_CHAIN = 16
_REMEMBERED = 64
"""Orders whose prepared processes are remembered."""


class Changes(Protocol):
    """Decided changes of files and tables."""

    def of(self, proposal: str) -> FileChange | None:
        """Return what a proposal writes; None if it swaps a kernel."""
        ...

    def known(self) -> Mapping[str, Format]:
        """Return the kernels that files or tables configure, with the format."""
        ...


class ChangeSwapper:
    """A `Swapper` that executes orders for files and tables, and forwards all others.

    Parameters
    ----------
    kernels
        Swaps kernels.
    path
        The server's socket, or the folder of them.
    changes
        Decided changes of files.
    term
        Returns this daemon's term, as `RuntimeSocket.term`.
    key
        Returns the public key that changes are signed with; None sends none.
    server
        Lists the server's processes; the path by default.
    """

    def __init__(
        self,
        kernels: Swapper,
        path: Path,
        *,
        changes: Changes,
        term: Callable[[], int] = lambda: 0,
        key: Callable[[], str] | None = None,
        server: RuntimeSocket | None = None,
    ) -> None:
        self._kernels = kernels
        self._files = RuntimeFiles(path, server=server)
        self._changes = changes
        self._term = term
        self._key = key
        self._prepared: dict[str, frozenset[str]] = {}
        self._requests: dict[str, dict[str, Any]] = {}
        self._before: dict[str, dict[str, Any]] = {}
        """By rollback: the request that puts the table before in force."""

    def slots(self) -> Sequence[SlotState]:
        return [*self._kernels.slots(), *(merge_states(s) for s in self._entries(entry_state))]

    def samples(self) -> Sequence[WatchSample]:
        """Return counts, or verified states, per slot; see `Swapper.samples`."""
        return [*self._kernels.samples(), *(merged(s) for s in self._entries(entry_sample))]

    def environments(self) -> Sequence[ServerEnvironment]:
        return self._kernels.environments()

    def prepare(self, order: SwapOrder, *, artifact_dir: Path) -> None:
        """Let every process check a change; see `Swapper.prepare`. Nothing is written yet."""
        change = self._changes.of(order.proposal)
        if change is None:
            self._kernels.prepare(order, artifact_dir=artifact_dir)
            return
        if order.kind is SwapKind.ROLLBACK:  # it needs only the file's own past
            self._remember_before(order, change, artifact_dir=artifact_dir)
            return
        text = (artifact_dir / MANIFEST).read_text("utf-8")
        if text != change.text:
            raise CandidateError("digest-mismatch", detail="the folder has another change")
        request = self._swap(order, change, artifact_dir=artifact_dir)
        processes = self._taking_part(change)
        for process in processes.values():
            self._prepare_in(process.path, request)
        while len(self._prepared) >= _REMEMBERED:
            self._forget(next(iter(self._prepared)))
        self._prepared[order.proposal] = frozenset(processes)
        self._requests[order.proposal] = request

    def _prepare_in(self, path: Path, request: Mapping[str, Any]) -> None:
        if self._key is not None:
            problem = show_key(path, self._key, term=self._term())
            if problem is not None:
                raise problem
        self._files.tell(path, request)

    def _remember_before(self, order: SwapOrder, change: FileChange, *, artifact_dir: Path) -> None:
        """Remember the table that a rollback restores, for processes that started since.

        Tables are in the memory of a process. A folder that has another change is not used.
        """
        if change.format != TABLE or order.artifact is None:
            return
        text = (artifact_dir / MANIFEST).read_text("utf-8")
        if digest_of_text(text) != order.artifact:
            return
        before = change.model_copy(update={"text": text, "digest": order.artifact})
        request = self._swap(order, before, artifact_dir=artifact_dir)
        name = _rollback_id(order)
        request["order"] = request["order"] | {"kind": str(SwapKind.SWAP), "id": name}
        while len(self._before) >= _REMEMBERED:
            del self._before[next(iter(self._before))]
        self._before[order.id] = request

    def commit(self, order: SwapOrder) -> int:
        """Write, or restore, in every process; see `Swapper.commit`.

        Returns how long that took, ns.
        """
        change = self._changes.of(order.proposal)
        if change is None:
            return self._kernels.commit(order)
        begin = time.perf_counter_ns()
        if order.kind is SwapKind.SWAP:
            processes = self._taking_part(change)
            request = self._requests.get(order.proposal)
            if request is None:  # another daemon has prepared it
                raise CandidateError("not-prepared", detail="this daemon has not prepared it")
            self._vote(order, processes)
            self._each(processes, {**request, "op": _operation(change, "commit")}, order)
        else:
            silent: list[TemporaryError] = []
            processes = self._taking_part(change, silent=silent)
            self._each(processes, self._back(order, change), order, silent=silent)
        return time.perf_counter_ns() - begin

    def abort(self, order: SwapOrder) -> None:
        """Forget what was prepared; see `Swapper.abort`.

        Processes drop a file's change by themselves.
        """
        if self._changes.of(order.proposal) is None:
            self._kernels.abort(order)
        self._forget(order.proposal)

    def _forget(self, proposal: str) -> None:
        self._prepared.pop(proposal, None)
        self._requests.pop(proposal, None)

    def bypass(self, definition: str, *, on: bool, arm: str | None = None) -> None:
        """Serve the original for a while; see `Swapper.bypass`. A file cannot be bypassed.

        Raises
        ------
        CandidateError
            ``not-switchable``, or the server's reason.
        TemporaryError
            If a process does not answer; others may have switched.
        """
        kind = self._changes.known().get(definition)
        if kind is None:
            self._kernels.bypass(definition, on=on, arm=arm)
            return
        if kind != TABLE:
            detail = f"{definition} has a file, which cannot be bypassed"
            raise CandidateError("not-switchable", detail=detail)
        every = self._files.processes(tables=True)
        for name, process in every.items():
            if not process.takes(definition, TABLE):
                continue
            request = {"op": "tunable-bypass", "definition": definition, "on": on}
            request |= labelled(arm) | {"term": self._term()}
            answer = self._files.tell(process.path, request)
            if answer is None:
                raise TemporaryError(f"{name} no longer listens", delay_s=RETRY_S)

    def ramp(
        self, order: SwapOrder, *, fraction: float, excluded: Sequence[tuple[int, ...]]
    ) -> None:
        """Change the share of launches; see `Swapper.ramp`. A row applies to all launches or none.

        Raises
        ------
        CandidateError
            ``not-switchable``.
        """
        if self._changes.of(order.proposal) is not None:
            detail = (
                f"{order.definition} has a file or a table, which cannot run a share of launches"
            )
            raise CandidateError("not-switchable", detail=detail)
        self._kernels.ramp(order, fraction=fraction, excluded=excluded)

    # --- files --------------------------------------------------------------------------------

    def _entries(self, read: Callable[[str, Process, str], T]) -> list[list[T]]:
        """Return the report of each process on each kernel that a file or table configures."""
        known = self._changes.known()
        asked = {kind == TABLE for kind in known.values()}
        silent: list[TemporaryError] = []
        processes = {
            tables: self._files.processes(tables=tables, silent=silent) for tables in asked
        }
        if silent and not any(processes.values()):
            raise silent[0]
        for left_out in silent:
            log.warning("missing in the report on changes: %s", left_out)
        found = []
        for definition, kind in known.items():
            every = processes[kind == TABLE].items()
            mine = {n: p for n, p in every if p.takes(definition, kind)}
            if mine:
                found.append([read(definition, each, name) for name, each in mine.items()])
        return found

    def _taking_part(
        self, change: FileChange, *, silent: list[TemporaryError] | None = None
    ) -> dict[str, Process]:
        kind, name = change.format, change.definition
        every = self._files.processes(tables=kind == TABLE, silent=silent)
        found = {n: p for n, p in every.items() if p.takes(name, kind)}
        if not found:
            what = f"launches {name}" if kind == TABLE else f"reads {kind} files"
            message = f"no process of the server {what}"
            cause = CandidateError("unknown-tunable", detail=message) if kind == TABLE else None
            raise TemporaryError(message, delay_s=RETRY_S) from cause
        return found

    def _swap(self, order: SwapOrder, change: FileChange, *, artifact_dir: Path) -> dict[str, Any]:
        signature = artifact_dir / SIGNATURE_FILE
        request: dict[str, Any] = {"op": _operation(change, "prepare")}
        request["digest"] = change.digest
        request["order"] = body_of(order, change, artifact=order.artifact or "") | {
            "shadow_every": order.shadow_every,
            "shadow_later": order.shadow_later,
            "shadow_share": order.shadow_share,
        }
        request["term"] = self._term()
        if signature.exists():
            request["signature"] = signature.read_text("utf-8")
        return request

    def _back(self, order: SwapOrder, change: FileChange) -> dict[str, Any]:
        """Return the rollback: of one change, or of all if the original is wanted."""
        eldest = change
        older: list[str] = []
        while order.artifact is None and eldest.under and len(older) < _MOST_CHAIN:
            below = self._changes.of(eldest.under)
            if below is None:
                break
            older.append(eldest.under)
            eldest = below
        body = body_of(order, eldest, artifact=order.artifact or "")
        body |= {"id": _rollback_id(order)}
        body |= {"undoes": order.proposal, "older": older, "leaves": True}
        return {"op": _operation(change, "rollback"), "order": body, "term": self._term()}

    def _vote(self, order: SwapOrder, processes: Mapping[str, Process]) -> None:
        """Verify that every process can write, before the first does.

        Raises
        ------
        CandidateError
            ``not-prepared``.
        TemporaryError
            If a prepared process has ended.
        """
        ranks = [
            Rank(name=name, standing=standing_of(order, process))
            for name, process in processes.items()
        ]
        voters = dict.fromkeys(self._prepared.get(order.proposal, ()), "")
        decision = decide(order.kind, ranks, prepared=voters)
        if decision.phase is Phase.COMMIT:
            return
        message = f"{order.definition}: {decision.reason} {list(decision.ranks)}"[:1000]
        if decision.reason is PhaseReason.RANK_JOINED:
            raise CandidateError("not-prepared", detail=message)
        raise TemporaryError(message, delay_s=RETRY_S)

    def _each(
        self,
        processes: Mapping[str, Process],
        request: Mapping[str, Any],
        order: SwapOrder,
        *,
        silent: Sequence[TemporaryError] = (),
    ) -> None:
        """Send a request to one process after the other: they write one file.

        All get it, despite errors. `silent` are those of processes that did not answer before.

        Raises
        ------
        CandidateError
            With the server's reason, or ``not-engaged``.
        PartialCommit
            If some have executed it and others have not.
        TemporaryError
            If one does not answer, or still picks another row.
        """
        had: list[str] = []
        errors: list[CandidateError | TemporaryError] = [*silent]
        for name, process in processes.items():
            try:
                answer = self._sent(process.path, request, order)
                if answer is None:
                    raise TemporaryError(f"{name} no longer listens", delay_s=RETRY_S)
                check_engaged(answer, order)
                had.append(name)
            except (CandidateError, TemporaryError) as error:
                errors.append(error)
        if not errors:
            return
        worst = min(errors, key=lambda each: not isinstance(each, CandidateError))
        if outcome_of([True] * len(had) + [False] * len(errors)) is Outcome.PARTIAL:
            message = f"epoch {order.epoch}: {had} have it, others not: {worst}"[:1000]
            raise PartialCommit(message, cause=worst, delay_s=RETRY_S) from worst
        raise worst

    def _sent(
        self, path: Path, request: Mapping[str, Any], order: SwapOrder
    ) -> dict[str, Any] | None:
        """Send a commit or a rollback; a process that lacks the table before gets it again.

        Raises
        ------
        CandidateError
            With the server's reason; ``not-prepared`` where the table before must wait.
        TemporaryError
            If it does not answer.
        """
        try:
            return self._files.tell(path, request)
        except CandidateError as error:
            before = self._before.get(order.id)
            if error.reason != "table-unknown" or before is None:
                raise
        try:
            self._prepare_in(path, before)
        except CandidateError as error:
            if error.reason in NOT_YET:
                raise CandidateError("not-prepared", detail=error.detail) from error
            raise
        return self._files.tell(path, {**before, "op": "tunable-commit"})
