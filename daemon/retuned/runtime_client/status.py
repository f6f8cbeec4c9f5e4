"""How the processes of a server stand, for people; and arming their breakers again.

Asked without a term of its own: a command is no daemon, and must not push the one that drives the
server aside. What it changes is told with the term that the process knows, so that it is taken as
long as no other daemon comes in between.
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
    """Its id."""
    kind: str = Field(max_length=32)
    """``swap`` or ``rollback``."""
    target: str = Field(default="", max_length=300)
    """Server that it was made for."""
    artifact: str | None = Field(default=None, max_length=100)
    """What it activates; None is the original."""
    lease_s: float = 0.0
    """After so long without being asked an unfinished canary is an orphan; 0 is never, seconds."""
    orphan: str = Field(default="hold", max_length=32)
    """What it does then."""


class SlotStatus(_Answer):
    """One slot of one process."""

    definition: str = Field(max_length=300)
    """Kernel."""
    state: str = Field(max_length=300)
    """``original``, ``swapped``, ``bypassed``, or ``tripped:`` and a reason."""
    artifact: str | None = Field(default=None, max_length=100)
    """Variant in force; None is the original."""
    epoch: int = 0
    """Of the last order; 0 before the first."""
    order: SwapOrderFacts | None = None
    """Last order; None before the first."""
    guard: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """Bounds of the shapes that the variant is for; empty is all."""
    fraction: float = 1.0
    """Share of launches that run the variant; 0 only shadows it."""
    orphaned: bool = False
    """Whether its daemon has been silent for longer than the lease."""
    launches: int = 0
    """Since start."""
    swapped_launches: int = 0
    """Launches of the variant since the order, in replays of graphs too."""
    fallback_launches: int = 0
    """Launches of the original since the order."""
    ineligible_launches: dict[str, int] = Field(default_factory=dict)
    """Launches within the guard that the variant could not take, by reason."""
    shadow_checks: int = 0
    """Launches compared with the incumbent."""
    shadow_mismatches: int = 0
    """Over what is allowed."""
    shadow_nonfinite: int = 0
    """Where NaN or Inf did not agree."""
    worst_ratio: float = 0.0
    """Largest difference in units of what is allowed."""
    throttled_checks: int = 0
    """Left out for their cost."""
    dropped_checks: dict[str, int] = Field(default_factory=dict)
    """Due and not made, or without a result, by reason."""
    errors: int = 0
    """Launches of the variant that raised."""
    unfollowed_graphs: int = 0
    """Captured graphs of the process whose launches are unknown."""
    graphs_reason: str = Field(default="", max_length=300)
    """Why graphs are not followed at all; empty if they are."""
    breaker: dict[str, str] = Field(default_factory=dict)
    """Reasons by artifact that may not come again; empty while the breaker is closed."""


class BreakerFacts(_Answer):
    """The breakers of a process."""

    process: str = Field(default="", max_length=1000)
    """Why no slot may run a variant; empty while they may."""
    slots: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Reasons by slot and artifact."""


class ChecksFacts(_Answer):
    """Shadow checks under way on devices."""

    in_flight: int = 0
    """Not back yet."""
    stuck: int = 0
    """Of those, for long."""
    held_bytes: int = 0
    """Memory of their copies."""


class CompilingFacts(_Answer):
    """What the control thread has compiled while the server served."""

    compiles: int = 0
    """Codes."""
    compile_s: float = 0.0
    """Time of it, seconds; most of it the server's threads had to wait."""
    longest_s: float = 0.0
    """The longest at a time, seconds."""
    put_off: int = 0
    """Times it was due, and waited for its share of time."""


class StockKernel(_Answer):
    """A Triton kernel whose launches are intercepted and run as the server wrote it."""

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
    """Windows that were left out, by reason."""
    last: str = Field(default="", max_length=64)
    """``written``, or why the last was left out."""
    off: str = Field(default="", max_length=64)
    """Why no more are taken; empty while they are."""
    every_s: float = 0.0
    """From one to the next at least, seconds."""
    spent_s: float = 0.0
    """Time that they took since start, seconds; what was recorded is charged whole."""
    stalled_s: float = 0.0
    """Of that, writing: the server's Python waits for it, seconds."""


class ProcessStatus(_Answer):
    """One process of a server."""

    process: str
    """Name of its socket."""
    pid: int
    """In its own container."""
    server: str = Field(default="", max_length=300)
    """Name of the server, as it calls itself."""
    rank: str = Field(default="", max_length=32)
    """Among the processes of the server; empty if not reported."""
    ranks: dict[str, int] = Field(default_factory=dict, max_length=32)
    """Rank and size in all and per kind of parallelism, as far as the process can tell."""
    instance: str = Field(default="", max_length=300)
    """Name of this start of it."""
    term: int = 0
    """Of the daemon that drives it; 0 before the first."""
    unasked_s: float = 0.0
    """Since a daemon asked after its orders, seconds."""
    trust: str = Field(default="", max_length=64)
    """Whose signature artifacts need."""
    breaker: BreakerFacts = BreakerFacts()
    """What may not run in it."""
    checks: ChecksFacts = ChecksFacts()
    """Under way."""
    slots: tuple[SlotStatus, ...] = Field(default=(), max_length=4096)
    """Kernels that may be swapped."""
    stock_kernels: tuple[StockKernel, ...] = Field(default=(), max_length=4096)
    """Intercepted Triton kernels without a slot, those launched most first."""
    stock_kernels_left_out: int = 0
    """Such kernels beyond those listed."""
    interception: dict[str, str] = Field(default_factory=dict, max_length=16)
    """``on``, or why not, per place where Triton's launches could be intercepted."""
    unvisited_s: float | None = None
    """Since a daemon asked or told anything, seconds; None if none ever did."""
    failed_chores: dict[str, dict[str, int]] = Field(default_factory=dict, max_length=4096)
    """Pieces of housekeeping that failed and are tried again, by cause."""
    compiling: CompilingFacts = CompilingFacts()
    """What was compiled while serving."""
    windows: WindowFacts | None = None
    """What profiling takes; None where the runtime does not profile."""
    slots_left_out: int = 0
    """Kernels beyond those listed."""

    @property
    def number(self) -> int | None:
        """Rank in all; None if not reported. What PyTorch has made is believed first."""
        told = self.ranks.get("rank")
        if told is None and self.rank.isascii() and self.rank.isdigit():
            return int(self.rank)
        return told


class Standings:
    """The processes of a server, as people see them.

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
        """Return what processes say, and which did not; those that are gone are left out.

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
            That the process told.

        Raises
        ------
        TemporaryError
            If it does not answer, is gone, or another daemon has come.
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
        raise TemporaryError(f"{process} is gone", delay_s=_RETRY_S)

    def _asked(self, path: Path) -> ProcessStatus | RetunedError | None:
        answer = told(path, {"op": "status"}, timeout_s=self._timeout_s)
        if answer is None:
            return None
        if isinstance(answer, CandidateError) and answer.reason == "unknown-op":
            message = f"{path.name}: its runtime is older and does not say how it stands"
            return TemporaryError(message, delay_s=_RETRY_S)
        return answer if isinstance(answer, RetunedError) else process_status(path.name, answer)


def process_status(name: str, answer: Mapping[str, Any]) -> ProcessStatus | RetunedError:
    """Read an answer; one that cannot be read is an error, not a process without slots."""
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
