"""Status of a server's processes, for people; and arming their breakers again.

Queries carry no term: a command is not a daemon, and must not replace the one that drives the
server. A change carries the term that the process reported, so that it is accepted as long as no
other daemon has taken over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retuned.errors import CandidateError, RetunedError, TemporaryError
from retuned.runtime_client.client import RuntimeSocket
from retuned.runtime_client.connection import told

_MOST_AT_ONCE = 32
_TIMEOUT_S = 5.0
_RETRY_S = 1.0


class _Answer(BaseModel):
    """An untrusted answer: unknown fields are ignored, known fields are validated."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class SwapOrderFacts(_Answer):
    """The last order of a slot."""

    id: str = Field(max_length=300)
    kind: str = Field(max_length=32)
    """``swap`` or ``rollback``."""
    target: str = Field(default="", max_length=300)
    """Server that it is for."""
    artifact: str | None = Field(default=None, max_length=100)
    """Artifact that it activates; None is the original."""
    lease_s: float = 0.0
    """An unfinished canary is an orphan after this time without a request; 0 is never, seconds."""
    orphan: str = Field(default="hold", max_length=32)
    """What an orphan does."""


class SlotStatus(_Answer):
    """One slot of one process."""

    definition: str = Field(max_length=300)
    """Kernel."""
    state: str = Field(max_length=300)
    """``original``, ``swapped``, ``bypassed``, or ``tripped:`` and a reason."""
    artifact: str | None = Field(default=None, max_length=100)
    """Active variant; None is the original."""
    epoch: int = 0
    """Of the last order; 0 before the first."""
    order: SwapOrderFacts | None = None
    """Last order; None before the first."""
    guard: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """Bounds of the shapes that the variant is for; empty is all."""
    fraction: float = 1.0
    """Share of launches that run the variant; 0 only shadows it."""
    orphaned: bool = False
    """Whether its daemon has sent no request for longer than the lease."""
    launches: int = 0
    """Since start."""
    swapped_launches: int = 0
    """Launches of the variant since the order, including graph replays."""
    fallback_launches: int = 0
    """Launches of the original since the order."""
    ineligible_launches: dict[str, int] = Field(default_factory=dict)
    """Launches within the guard that the variant could not take, by reason."""
    shadow_checks: int = 0
    """Launches compared with the incumbent."""
    shadow_mismatches: int = 0
    """Checks over the allowed difference."""
    shadow_nonfinite: int = 0
    """Checks where NaN or Inf did not agree."""
    worst_ratio: float = 0.0
    """Largest difference in units of the allowed one."""
    throttled_checks: int = 0
    """Checks skipped for their cost."""
    dropped_checks: dict[str, int] = Field(default_factory=dict)
    """Checks that were due and not made, or have no result, by reason."""
    errors: int = 0
    """Launches of the variant that raised."""
    unfollowed_graphs: int = 0
    """Captured graphs of the process whose launches are unknown."""
    graphs_reason: str = Field(default="", max_length=300)
    """Why graphs are not followed at all; empty if they are."""
    breaker: dict[str, str] = Field(default_factory=dict)
    """Reasons by refused artifact; empty while the breaker is closed."""


class BreakerFacts(_Answer):
    """The breakers of a process."""

    process: str = Field(default="", max_length=1000)
    """Why no slot may run a variant; empty if slots may."""
    slots: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Reasons by slot and artifact."""


class ChecksFacts(_Answer):
    """Pending shadow checks on devices."""

    in_flight: int = 0
    """Pending checks."""
    stuck: int = 0
    """Pending for a long time."""
    held_bytes: int = 0
    """Memory of their copies."""


class CompilingFacts(_Answer):
    """Compilations of the control thread while the server served."""

    compiles: int = 0
    """Compiled codes."""
    compile_s: float = 0.0
    """Time of them, seconds; the server's threads had to wait for most of it."""
    longest_s: float = 0.0
    """The longest one, seconds."""
    put_off: int = 0
    """How often a compilation was postponed because its share of time was used up."""


class StockKernel(_Answer):
    """A Triton kernel whose launches are intercepted and run the server's own code."""

    kernel: str = Field(max_length=600)
    """``module:qualname``."""
    launches: int = 0
    """Since start."""
    keys: int = 0
    """Shapes, grids and codes that it was launched with."""
    liftable: bool = True
    """Whether it could be lifted and tuned at all."""


class WindowFacts(_Answer):
    """Profiler windows that the runtime takes of its server."""

    written: int = 0
    """Files."""
    kernels: int = 0
    """Launches on a GPU in them."""
    skipped: dict[str, int] = Field(default_factory=dict, max_length=64)
    """Skipped windows, by reason."""
    last: str = Field(default="", max_length=64)
    """``written``, or why the last was skipped."""
    off: str = Field(default="", max_length=64)
    """Why no more are taken; empty while they are."""
    every_s: float = 0.0
    """Minimum time from one to the next, seconds."""
    spent_s: float = 0.0
    """Time that they took since start, seconds; recorded time is charged completely."""
    stalled_s: float = 0.0
    """Part of it for writing, seconds; the server's Python waits for it."""


class ProcessStatus(_Answer):
    """One process of a server."""

    process: str
    """Name of its socket."""
    pid: int
    """In its own container."""
    server: str = Field(default="", max_length=300)
    """Name of the server, as it reports it."""
    rank: str = Field(default="", max_length=32)
    """Among the processes of the server; empty if not reported."""
    ranks: dict[str, int] = Field(default_factory=dict, max_length=32)
    """Rank and size in all and per kind of parallelism, as far as the process knows."""
    instance: str = Field(default="", max_length=300)
    """Name of this start of the process."""
    term: int = 0
    """Of the daemon that drives it; 0 before the first."""
    unasked_s: float = 0.0
    """Since a daemon's last request for its orders, seconds."""
    trust: str = Field(default="", max_length=64)
    """Whose signature artifacts need."""
    breaker: BreakerFacts = BreakerFacts()
    """What may not run in it."""
    checks: ChecksFacts = ChecksFacts()
    """Pending checks."""
    slots: tuple[SlotStatus, ...] = Field(default=(), max_length=4096)
    """Kernels that may be swapped."""
    stock_kernels: tuple[StockKernel, ...] = Field(default=(), max_length=4096)
    """Intercepted Triton kernels without a slot, those launched most first."""
    stock_kernels_left_out: int = 0
    """Such kernels beyond those listed."""
    interception: dict[str, str] = Field(default_factory=dict, max_length=16)
    """``on``, or why not, per place where Triton's launches could be intercepted."""
    unvisited_s: float | None = None
    """Since a daemon's last request of any kind, seconds; None before the first."""
    failed_chores: dict[str, dict[str, int]] = Field(default_factory=dict, max_length=4096)
    """Pieces of maintenance that failed and are tried again, by cause."""
    compiling: CompilingFacts = CompilingFacts()
    """Compilations while serving."""
    windows: WindowFacts | None = None
    """Cost of profiling; None if the runtime does not profile."""
    slots_left_out: int = 0
    """Kernels beyond those listed."""

    @property
    def number(self) -> int | None:
        """Rank in all; None if not reported. PyTorch's value takes precedence."""
        known = self.ranks.get("rank")
        if known is None and self.rank.isascii() and self.rank.isdigit():
            return int(self.rank)
        return known


class Standings:
    """The processes of a server, as shown to people.

    Parameters
    ----------
    path
        A socket, or a folder of ``<pid>.sock``.
    timeout_s
        Longest wait for one answer, seconds.
    """

    def __init__(self, path: Path, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._sockets = RuntimeSocket(path)
        self._timeout_s = timeout_s

    def ask(self) -> tuple[list[ProcessStatus], list[tuple[str, RetunedError]]]:
        """Return the status of processes, and those that did not answer; ended ones are left out.

        Raises
        ------
        TemporaryError
            If the folder cannot be read.
        """
        paths = self._sockets.processes()
        found: list[ProcessStatus] = []
        silent: list[tuple[str, RetunedError]] = []
        with ThreadPoolExecutor(max(1, min(len(paths), _MOST_AT_ONCE))) as pool:
            answers = pool.map(self._asked, paths)
            for path, answer in zip(paths, answers, strict=True):
                if isinstance(answer, ProcessStatus):
                    found.append(answer)
                elif answer is not None:
                    silent.append((path.name, answer))
        return sorted(found, key=_by_rank), silent

    def arm(self, process: str, kernel: str | None, *, term: int) -> bool:
        """Close the breaker of a slot, or with None all of a process; True if one was open.

        Parameters
        ----------
        process
            Name of its socket.
        kernel
            Slot.
        term
            Term that the process reported.

        Raises
        ------
        TemporaryError
            If it does not answer, has ended, or another daemon has taken over.
        CandidateError
            If it refuses.
        """
        for path in self._sockets.processes():
            if path.name == process:
                request = {"op": "rearm", "definition": kernel, "term": term}
                answer = told(path, request, timeout_s=self._timeout_s)
                if isinstance(answer, RetunedError):
                    raise answer
                if answer is not None:
                    return answer.get("was_open") is True
        raise TemporaryError(f"{process} no longer listens", delay_s=_RETRY_S)

    def _asked(self, path: Path) -> ProcessStatus | RetunedError | None:
        answer = told(path, {"op": "status"}, timeout_s=self._timeout_s)
        if answer is None:
            return None
        if isinstance(answer, CandidateError) and answer.reason == "unknown-op":
            message = f"{path.name}: its runtime is older and does not report its status"
            return TemporaryError(message, delay_s=_RETRY_S)
        return answer if isinstance(answer, RetunedError) else process_status(path.name, answer)


def process_status(name: str, answer: Mapping[str, Any]) -> ProcessStatus | RetunedError:
    """Parse an answer; an invalid one is an error, not a process without slots."""
    try:
        return ProcessStatus.model_validate({**answer, "process": name})
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"{name}: its answer cannot be read: {where}: {first['msg']}"
        return TemporaryError(message[:500], delay_s=_RETRY_S)


def opened(processes: Sequence[ProcessStatus]) -> dict[str, dict[str, str]]:
    """Return the open breakers of all processes: reasons by slot and artifact."""
    found: dict[str, dict[str, str]] = {}
    for each in processes:
        for slot, artifacts in each.breaker.slots.items():
            found.setdefault(slot, {}).update(artifacts)
    return found


def _by_rank(status: ProcessStatus) -> tuple[bool, int, str]:
    return (status.number is None, status.number or 0, status.process)
