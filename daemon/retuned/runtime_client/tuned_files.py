"""Changes of a server's configuration: reports and orders over the sockets of its processes.

`ChangeSwapper` sends orders for tuned-config files and for tables of tunables, behind the port that
swaps kernels. Reports are parsed as untrusted data.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retuned.contract import Digest
from retuned.errors import CandidateError, PartialCommit, RetunedError, TemporaryError
from retuned.ports import SlotState, Swapper
from retuned.runtime.artifacts.trust import SIGNATURE_FILE
from retuned.runtime.tunables.records import digest_of_text
from retuned.runtime_client.client import RuntimeSocket
from retuned.runtime_client.connection import RETRY_S, Said, told
from retuned.runtime_client.delivery import show_key
from retuned.runtime_client.reports import merge_states
from retuned.stages.proposal import TUNABLE
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
from retuned.tuned_files.records import FORMATS, TABLE, FileChange, Format, Look, read_look

_Text = Annotated[str, Field(max_length=2000)]


_Count = Annotated[int, Field(ge=0, le=1 << 53)]
_Size = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class CheckCounts(BaseModel):
    """Checks of a table's launches in one process; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    checks: _Count = 0
    mismatches: _Count = 0
    nonfinite: _Count = 0
    errors: _Count = 0
    throttled: _Count = 0
    worst_ratio: _Size = 0.0
    mean_ratio: _Size = 0.0
    slowdown: _Size = 0.0
    seconds: _Size = 0.0


class FileReport(BaseModel):
    """Status of one kernel's file or table in one process; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    definition: _Text
    order: _Text
    artifact: Digest | None
    epoch: int = Field(ge=0)
    state: Literal["engaged", "needs-restart", "lost"]
    reason: _Text = ""
    checks: CheckCounts | None = None
    """None of a file, whose launches are not compared."""
    bypassed: bool = False
    """Whether the server's choice runs for a while although a table is in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of a server that accepts orders for changes."""

    path: Path
    """Its socket."""
    formats: frozenset[Format]
    """Files that it reads; ``table`` where it has tunables."""
    prepared: frozenset[str]
    """Orders that it could execute immediately."""
    entries: Mapping[str, FileReport]
    """By kernel, the result of the last order."""
    known: frozenset[str] | None = None
    """Tunables that were launched; None of a process that is asked about files."""

    def takes(self, definition: str, format: Format) -> bool:
        """Whether it gets orders for a kernel."""
        return format in self.formats and (self.known is None or definition in self.known)


def process_of(path: Path, answer: Mapping[str, Any]) -> Process:
    """Parse the report of a process.

    Raises
    ------
    TemporaryError
        If it is invalid; the request may be repeated.
    """
    try:
        entries = [FileReport.model_validate(each) for each in answer.get("files", ())]
        servers = answer["servers"]
        return Process(
            path=path,
            formats=frozenset(each for each in FORMATS if servers.get(each)),
            prepared=frozenset(str(each) for each in answer["prepared"]),
            entries={entry.definition: entry for entry in entries},
            known=frozenset(map(str, answer["known"])) if "known" in answer else None,
        )
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        first = str(error).splitlines()[0][:200]
        message = f"{path}: the runtime's report on changes cannot be read: {first}"
        raise TemporaryError(message, delay_s=RETRY_S) from error


def entry_state(definition: str, process: Process, _name: str) -> SlotState:
    """Return a kernel that a file configures as a slot; one without an order is at epoch 0."""
    entry = process.entries.get(definition)
    return SlotState(
        definition=definition,
        active=entry.artifact if entry is not None else None,
        epoch=entry.epoch if entry is not None else 0,
        launches={},
        tripped=_tripped(entry),
        counted=False,
        bypassed=entry is not None and entry.bypassed,
    )


def entry_sample(definition: str, process: Process, name: str) -> WatchSample:
    """Return the verified state of a kernel that a file configures, in one process."""
    entry = process.entries.get(definition)
    counts = (entry.checks if entry is not None else None) or CheckCounts()
    return WatchSample(
        definition=definition,
        artifact=entry.artifact if entry is not None else None,
        epoch=entry.epoch if entry is not None else 0,
        swapped_launches=0,
        fallback_launches=0,
        shadow_checks=counts.checks,
        shadow_mismatches=counts.mismatches,
        shadow_nonfinite=counts.nonfinite,
        worst_ratio=counts.worst_ratio,
        last_mean_ratio=counts.mean_ratio,
        errors=counts.errors,
        shadow_s=counts.seconds,
        throttled_checks=counts.throttled,
        slowdown=counts.slowdown,
        tripped=_tripped(entry),
        members=(name,),
        configured="needs-restart" if entry and entry.state == "needs-restart" else "engaged",
    )


_SUMMED = (
    *("shadow_checks", "shadow_mismatches", "shadow_nonfinite", "errors"),
    *("shadow_s", "throttled_checks"),
)
_WORST = ("worst_ratio", "last_mean_ratio", "slowdown")
"""Numbers of a merged sample that are those of all processes together, or the largest."""


def merged(samples: Sequence[WatchSample]) -> WatchSample:
    """Merge processes: one that is behind, or that lost the row, determines the result."""
    epoch = max(sample.epoch for sample in samples)
    newest = [sample for sample in samples if sample.epoch == epoch]
    behind = tuple(name for s in samples if s.epoch != epoch for name in s.members)
    worst = next((sample for sample in newest if sample.tripped), newest[0])
    waits = any(sample.configured == "needs-restart" for sample in newest)
    return worst.model_copy(
        update={
            "processes": len(samples),
            "idle_processes": len(behind),
            "members": tuple(sorted(name for s in samples for name in s.members)),
            "idle_members": behind,
            "configured": "needs-restart" if waits else "engaged",
            **{name: sum(getattr(s, name) for s in newest) for name in _SUMMED},
            **{name: max(getattr(s, name) for s in newest) for name in _WORST},
        }
    )


def _tripped(entry: FileReport | None) -> str:
    """Return why the server no longer picks a row; empty while it does."""
    if entry is None or entry.artifact is None or entry.state != "lost":
        return ""
    kind = "table" if entry.definition.startswith(TUNABLE) else "file"
    return f"{kind}-{(entry.reason or 'lost').removeprefix('table-')}"


_ELSEWHERE = frozenset({"unknown-op", "tuned-off", "tunables-off", "server-not-here"})
"""Refusals of a process that reads no such file, or has no tunables."""
_BUSY = frozenset({"tuned-busy", "no-safe-point", "server-busy", "paused-already"})
"""Another process writes the file now, or the server is in the middle of a long step."""
_TIMEOUT_S = 20.0


class FileTap(Protocol):
    """Reads the state of a server's files; nothing changes."""

    def formats(self) -> frozenset[Format]:
        """Return the files that some process of the server reads.

        Raises
        ------
        TemporaryError
            If the server does not answer.
        """
        ...

    def look(self, format: Format, lookup: Mapping[str, Any]) -> Look:
        """Return what is picked now.

        Raises
        ------
        CandidateError
            With the server's reason, or ``processes-differ``.
        TemporaryError
            If the server does not answer.
        UnreadableInput
            If its answer cannot be parsed.
        """
        ...


class RuntimeFiles:
    """A `FileTap` over the sockets of a server.

    Parameters
    ----------
    path
        A socket, or a folder of ``<pid>.sock``.
    server
        Lists the processes; the path by default.
    """

    def __init__(self, path: Path, *, server: RuntimeSocket | None = None) -> None:
        self._server = server or RuntimeSocket(path)

    def processes(
        self, *, tables: bool = False, silent: list[TemporaryError] | None = None
    ) -> dict[str, Process]:
        """Return the reports of processes that accept orders for files, by their socket's name.

        Parameters
        ----------
        tables
            Report on tables of tunables instead.
        silent
            Gets the errors of processes that listen and do not answer; they are left out then.

        Raises
        ------
        TemporaryError
            If one that listens does not answer, or its answer is invalid; unless `silent` is given.
        """
        found = {}
        request = {"op": "tunables", "orders": True} if tables else {"op": "tuned"}
        for path in self._server.processes():
            try:
                said = self.tell(path, request)
                if said is not None and said.get("on") is True:
                    found[path.name] = process_of(path, said)
            except TemporaryError as error:
                if silent is None:
                    raise
                silent.append(error)
        return found

    def tell(self, path: Path, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Send a request to one process; None if it has ended, or reads no such file.

        Raises
        ------
        CandidateError
            If it refuses.
        TemporaryError
            If it does not answer.
        """
        said: Said = told(path, request, timeout_s=_TIMEOUT_S)
        if isinstance(said, CandidateError) and said.reason in _ELSEWHERE:
            return None
        if isinstance(said, CandidateError) and said.reason in _BUSY:
            raise TemporaryError(said.detail, delay_s=RETRY_S)
        if isinstance(said, RetunedError):
            raise said
        return said

    def formats(self) -> frozenset[Format]:
        processes = self.processes().values()
        return frozenset(each for each in FORMATS if any(each in p.formats for p in processes))

    def look(self, format: Format, lookup: Mapping[str, Any]) -> Look:
        request = {"op": "tuned-look", "format": format, "lookup": dict(lookup)}
        looks = []
        for process in self.processes().values():
            said = self.tell(process.path, request) if format in process.formats else None
            if said is not None:
                looks.append(read_look(said))
        if not looks:
            raise TemporaryError(f"no process of the server reads {format} files", delay_s=RETRY_S)
        if any(look != looks[0] for look in looks):
            detail = f"processes of the server pick differently from {looks[0].path}"
            raise CandidateError("processes-differ", detail=detail[:500])
        return looks[0]


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

    def bypass(self, definition: str, *, on: bool) -> None:
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
            self._kernels.bypass(definition, on=on)
            return
        if kind != TABLE:
            detail = f"{definition} has a file, which cannot be bypassed"
            raise CandidateError("not-switchable", detail=detail)
        every = self._files.processes(tables=True)
        for name, process in every.items():
            if not process.takes(definition, TABLE):
                continue
            request = {"op": "tunable-bypass", "definition": definition, "on": on}
            answer = self._files.tell(process.path, request | {"term": self._term()})
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
            detail = f"{order.definition} has a file or a table, which has no share of launches"
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
