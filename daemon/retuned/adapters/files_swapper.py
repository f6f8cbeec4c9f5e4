"""Orders on tuned-config files over the control socket, behind the port that swaps kernels.

The loop sees one more slot. Of an order that a change of a file belongs to, the file is written by
the server's own processes: all of them check it, then one after the other writes or finds it
written, empties its caches and asks its own lookup. No launch is counted: what the server says that
it picks is the proof, asked anew with every report. Processes that read no such file take no part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from retuned.adapters.artifact_folder import MANIFEST
from retuned.adapters.runtime_delivery import show_key
from retuned.adapters.runtime_files import RuntimeFiles
from retuned.adapters.runtime_link import RETRY_S
from retuned.adapters.runtime_reports import merge_states
from retuned.adapters.tuned_orders import body_of, check_engaged, standing_of
from retuned.adapters.tuned_reports import Process, entry_sample, entry_state, merged
from retuned.configured.records import FileChange, Format
from retuned.errors import CandidateError, PartialCommit, TemporaryError
from retuned.ports import SlotState, Swapper
from retuned.runtime.trust import SIGNATURE_FILE
from retuned.stages.swap import (
    Outcome,
    Phase,
    PhaseReason,
    Rank,
    SwapKind,
    SwapOrder,
    decide,
    outcome_of,
)
from retuned.stages.verdict import ServerEnvironment
from retuned.stages.watch import WatchSample

T = TypeVar("T")

_MOST_CHAIN = 16
_REMEMBERED = 64
"""Orders whose prepared processes are remembered."""


class Changes(Protocol):
    """What the loop has decided about files."""

    def of(self, proposal: str) -> FileChange | None:
        """Return what a proposal writes; None where it swaps a kernel."""
        ...

    def known(self) -> Mapping[str, Format]:
        """Return the kernels that files configure, with whose files they are."""
        ...


class FilesSwapper:
    """A `Swapper` that takes orders on files to where they belong, and all others on.

    Parameters
    ----------
    kernels
        Swaps kernels.
    path
        The server's socket, or the folder of them.
    changes
        What is decided about files.
    term
        Returns this daemon's term, as `RuntimeSocket.term`.
    key
        Returns the public key that changes are signed with; None shows none.
    """

    def __init__(
        self,
        kernels: Swapper,
        path: Path,
        *,
        changes: Changes,
        term: Callable[[], int] = lambda: 0,
        key: Callable[[], str] | None = None,
    ) -> None:
        self._kernels = kernels
        self._files = RuntimeFiles(path)
        self._changes = changes
        self._term = term
        self._key = key
        self._prepared: dict[str, frozenset[str]] = {}
        self._requests: dict[str, dict[str, Any]] = {}

    def slots(self) -> Sequence[SlotState]:
        """Report every slot; see `Swapper.slots`."""
        return [*self._kernels.slots(), *(merge_states(s) for s in self._entries(entry_state))]

    def samples(self) -> Sequence[WatchSample]:
        """Return what was counted, or proven, per slot; see `Swapper.samples`."""
        return [*self._kernels.samples(), *(merged(s) for s in self._entries(entry_sample))]

    def environments(self) -> Sequence[ServerEnvironment]:
        """Return what each process runs on; see `Swapper.environments`."""
        return self._kernels.environments()

    def prepare(self, order: SwapOrder, *, artifact_dir: Path) -> None:
        """Have every process check a change; see `Swapper.prepare`. Nothing is written yet."""
        change = self._changes.of(order.proposal)
        if change is None:
            self._kernels.prepare(order, artifact_dir=artifact_dir)
            return
        text = (artifact_dir / MANIFEST).read_text("utf-8")
        if text != change.text:
            raise CandidateError("digest-mismatch", detail="the folder has another change")
        request = self._swap(order, change, artifact_dir=artifact_dir)
        processes = self._taking_part(change.format)
        for process in processes.values():
            if self._key is not None:
                problem = show_key(process.path, self._key, term=self._term())
                if problem is not None:
                    raise problem
            self._files.tell(process.path, request)
        while len(self._prepared) >= _REMEMBERED:
            self._forget(next(iter(self._prepared)))
        self._prepared[order.proposal] = frozenset(processes)
        self._requests[order.proposal] = request

    def commit(self, order: SwapOrder) -> int:
        """Write, or put back, in every process; see `Swapper.commit`.

        Returns how long that took, ns.
        """
        change = self._changes.of(order.proposal)
        if change is None:
            return self._kernels.commit(order)
        begin = time.perf_counter_ns()
        processes = self._taking_part(change.format)
        if order.kind is SwapKind.SWAP:
            request = self._requests.get(order.proposal)
            if request is None:  # another daemon has prepared it
                raise CandidateError("not-prepared", detail="this daemon has not prepared it")
            self._vote(order, processes)
            self._each(processes, {**request, "op": "tuned-commit"}, order)
        else:
            self._each(processes, self._back(order, change), order)
        return time.perf_counter_ns() - begin

    def abort(self, order: SwapOrder) -> None:
        """Forget what was prepared; see `Swapper.abort`. Processes drop a file's by themselves."""
        if self._changes.of(order.proposal) is None:
            self._kernels.abort(order)
        self._forget(order.proposal)

    def _forget(self, proposal: str) -> None:
        self._prepared.pop(proposal, None)
        self._requests.pop(proposal, None)

    def bypass(self, definition: str, *, on: bool) -> None:
        """Serve the original for a while; see `Swapper.bypass`. A file cannot be switched so.

        Raises
        ------
        CandidateError
            ``not-switchable``.
        """
        if definition in self._changes.known():
            detail = f"{definition} is configured by a file, which is not switched to and fro"
            raise CandidateError("not-switchable", detail=detail)
        self._kernels.bypass(definition, on=on)

    def ramp(
        self, order: SwapOrder, *, fraction: float, excluded: Sequence[tuple[int, ...]]
    ) -> None:
        """Change the share of launches; see `Swapper.ramp`. A row is picked by all or by none.

        Raises
        ------
        CandidateError
            ``not-switchable``.
        """
        if self._changes.of(order.proposal) is not None:
            detail = f"{order.definition} is configured by a file, which has no share of launches"
            raise CandidateError("not-switchable", detail=detail)
        self._kernels.ramp(order, fraction=fraction, excluded=excluded)

    # --- files --------------------------------------------------------------------------------

    def _entries(self, read: Callable[[str, Process, str], T]) -> list[list[T]]:
        """Return what each process says of each kernel that a file configures."""
        known = self._changes.known()
        processes = self._files.processes() if known else {}
        found = []
        for definition, kind in known.items():
            mine = {n: p for n, p in processes.items() if kind in p.formats}
            if mine:
                found.append([read(definition, each, name) for name, each in mine.items()])
        return found

    def _taking_part(self, kind: Format) -> dict[str, Process]:
        found = {n: p for n, p in self._files.processes().items() if kind in p.formats}
        if not found:
            raise TemporaryError(f"no process of the server reads {kind} files", delay_s=RETRY_S)
        return found

    def _swap(self, order: SwapOrder, change: FileChange, *, artifact_dir: Path) -> dict[str, Any]:
        signature = artifact_dir / SIGNATURE_FILE
        request: dict[str, Any] = {"op": "tuned-prepare", "digest": change.digest}
        request["order"] = body_of(order, change, artifact=order.artifact or "")
        request["term"] = self._term()
        if signature.exists():
            request["signature"] = signature.read_text("utf-8")
        return request

    def _back(self, order: SwapOrder, change: FileChange) -> dict[str, Any]:
        """Return the way back: of one change, or of all where the original is wanted."""
        eldest = change
        older: list[str] = []
        while order.artifact is None and eldest.under and len(older) < _MOST_CHAIN:
            below = self._changes.of(eldest.under)
            if below is None:
                break
            older.append(eldest.under)
            eldest = below
        body = body_of(order, eldest, artifact=order.artifact or "")
        body |= {"id": f"{order.proposal}:back:{order.artifact or ''}"[:256]}
        body |= {"undoes": order.proposal, "older": older, "leaves": True}
        return {"op": "tuned-rollback", "order": body, "term": self._term()}

    def _vote(self, order: SwapOrder, processes: Mapping[str, Process]) -> None:
        """Make sure that every process can write, before the first does.

        Raises
        ------
        CandidateError
            ``not-prepared``.
        TemporaryError
            If one is gone that has prepared.
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
        self, processes: Mapping[str, Process], request: Mapping[str, Any], order: SwapOrder
    ) -> None:
        """Tell one after the other: they write one file. All are told, whatever one says.

        Raises
        ------
        CandidateError
            With the server's reason, or ``not-engaged``.
        PartialCommit
            If some have it and others have not.
        TemporaryError
            If one does not answer, or still picks what it should not.
        """
        had: list[str] = []
        errors: list[CandidateError | TemporaryError] = []
        for name, process in processes.items():
            try:
                said = self._files.tell(process.path, request)
                if said is None:
                    raise TemporaryError(f"{name} is gone", delay_s=RETRY_S)
                check_engaged(said, order)
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
