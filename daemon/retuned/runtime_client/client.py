"""Client of the runtime's control socket as a `Swapper`, for one or all processes of a server.

Every request opens a new connection: no reconnect is needed after either side restarts. Several
processes get the same requests (`processes`) and are reported as one. Counts are added. Where
states differ, the one furthest behind is reported, so that an order is repeated until every process
has it. Counts are those of the processes with the newest order; the others count as idle. Reports
use the answers that arrive, as long as there is one.

Facts of a server's process are parsed as untrusted data.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from retuned.errors import CandidateError, PartialCommit, RetunedError, TemporaryError
from retuned.ports import SlotState
from retuned.runtime_client.connection import RETRY_S, told
from retuned.runtime_client.delivery import Delivery
from retuned.runtime_client.processes import RuntimeProcesses, worst_first
from retuned.runtime_client.reports import (
    entries,
    merge_samples,
    merge_states,
    sample_of,
    slot_state,
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

_RETRY_S = 1.0
_FACTS = ("cpu", "device", "device_name", "driver", "runtime", "torch", "triton")
_LONGEST = 200
"""Longest fact that is used, characters."""
_MOST = 64
"""Maximum switches that are used."""


def server_environment(answer: Mapping[str, Any]) -> ServerEnvironment:
    """Parse an answer to ``hello``; facts that an older runtime leaves out are unknown.

    Raises
    ------
    TemporaryError
        If it has no environment.
    """
    facts = answer.get("environment")
    if not isinstance(facts, Mapping):
        raise TemporaryError("the runtime does not report its environment", delay_s=_RETRY_S)
    switches = facts.get("numerics")
    rows = list(switches.items())[:_MOST] if isinstance(switches, Mapping) else []
    texts = {name: str(facts.get(name, ""))[:_LONGEST] for name in _FACTS}
    return ServerEnvironment(
        process=str(answer.get("pid"))[:_LONGEST],
        cpu=texts["cpu"],
        device=texts["device"],
        device_name=texts["device_name"],
        driver=texts["driver"],
        runtime=texts["runtime"],
        torch=texts["torch"],
        triton=texts["triton"],
        numerics={str(name)[:_LONGEST]: str(value)[:_LONGEST] for name, value in rows},
    )


log = logging.getLogger(__name__)

_CLAIM_S = 0.5
"""Longest wait for the terms of processes before a rollback is sent."""
_REMEMBERED = 64
"""Orders whose prepared processes are remembered."""
_HELLO = {"op": "hello"}
_MAX_TERM = 2**52


class RuntimeSocket:
    """Sends requests to every runtime behind a path.

    Parameters
    ----------
    path
        A socket, or a folder of ``<pid>.sock``.
    timeout_s
        Longest wait for an ordinary answer, seconds.
    prepare_timeout_s
        Longest wait for a prepare, which loads, repacks and checks, seconds.
    key
        Returns the public key that artifacts are signed with, 64 hex digits; sent to processes that
        pin the first key. None sends none.
    """

    PROCESSES = RuntimeProcesses
    """Finds the sockets and sends requests to them."""

    def __init__(
        self,
        path: Path,
        *,
        timeout_s: float = 5.0,
        prepare_timeout_s: float = 120.0,
        key: Callable[[], str] | None = None,
    ) -> None:
        self._processes = self.PROCESSES(path, timeout_s=timeout_s)
        self._timeout_s = timeout_s
        self._prepare_timeout_s = prepare_timeout_s
        self._key = key
        self._term = 0
        self._prepared: OrderedDict[str, dict[str, str]] = OrderedDict()

    def hello(self) -> Sequence[Mapping[str, Any]]:
        """Return pid, protocol version, server name and environment of every process."""
        return list(self._processes.reports(_HELLO, _hello).values())

    def slots(self) -> Sequence[SlotState]:
        found: dict[str, list[SlotState]] = defaultdict(list)
        parse = entries("slots", slot_state)
        for states in self._processes.reports({"op": "slots"}, parse).values():
            for state in states:
                found[state.definition].append(state)
        return [merge_states(states) for states in found.values()]

    def samples(self) -> Sequence[WatchSample]:
        found: dict[str, dict[str, WatchSample]] = defaultdict(dict)
        parse = entries("samples", sample_of)
        for process, samples in self._processes.reports({"op": "samples"}, parse).items():
            for sample in samples:
                found[sample.definition][process] = sample
        return [merge_samples(samples) for samples in found.values()]

    def environments(self) -> Sequence[ServerEnvironment]:
        """Return the environment of each process; see `Swapper.environments`.

        A process that listens but does not report its environment is an error, because it gets the
        order too.
        """
        found = self._processes.reports(_HELLO, server_environment, complete=True)
        return list(found.values())

    def prepare(self, order: SwapOrder, *, artifact_dir: Path) -> None:
        """Prepare in every process, or in none if one refuses finally; see `Swapper.prepare`.

        A process that cannot read the folder gets the artifact over the socket.
        """
        request = {"op": "prepare", "order": order.model_dump(mode="json"), "term": self._claim()}
        delivery = Delivery(request, folder=artifact_dir, key=self._key)
        answers, errors = self._processes.each(
            lambda path: delivery.prepare(path, timeout_s=self._prepare_timeout_s)
        )
        for error in worst_first(errors):
            if isinstance(error, CandidateError) and error.reason not in NOT_YET:
                self.abort(order)
            raise error
        self._remember(order, {name: str(a.get("instance", "")) for name, a in answers.items()})

    def commit(self, order: SwapOrder) -> int:
        """Commit in every process; return the slowest flip, ns; see `Swapper.commit`.

        A swap needs a vote first: unless every process is prepared, none gets the commit.
        """
        if order.kind is SwapKind.SWAP:
            self._vote(order)
        request = {"op": "commit", "order": order.model_dump(mode="json"), "term": self._claim()}
        voters = self._prepared.get(order.id, {})
        answers, errors = self._processes.tell(request)
        lost = sorted(voters.keys() - answers.keys()) if order.kind is SwapKind.SWAP else []
        if lost and not errors:
            message = f"{lost} had prepared {order.definition} and no longer listen"
            errors.append(TemporaryError(message, delay_s=RETRY_S))
        outcome = outcome_of([True] * len(answers) + [False] * len(errors))
        for error in worst_first(errors):
            if outcome is Outcome.PARTIAL:
                message = f"epoch {order.epoch}: {sorted(answers)} have it, others not: {error}"
                raise PartialCommit(message[:1000], cause=error, delay_s=RETRY_S) from error
            raise error
        return max(int(answer.get("flip_ns", 0)) for answer in answers.values())

    def abort(self, order: SwapOrder) -> None:
        """Drop what was prepared for an order that will not be committed; see `Swapper.abort`."""
        self._prepared.pop(order.id, None)
        request = {"op": "abort", "order": order.model_dump(mode="json"), "term": self._claim()}
        _, errors = self._processes.tell(request)
        for error in errors:
            log.info("abort of %s not delivered: %s", order.definition, error)

    def ranks(self, order: SwapOrder) -> list[Rank]:
        """Return the state of an order in every process that listens."""
        request = {"op": "standing", "order": order.model_dump(mode="json")}
        found = []
        answers = self._processes.say(lambda path: told(path, request, timeout_s=self._timeout_s))
        for path, answer in answers:
            if answer is not None:
                found.append(_rank(path.name, answer))
        return found

    def _vote(self, order: SwapOrder) -> None:
        """Verify that every process can commit.

        Raises
        ------
        CandidateError
            ``not-prepared`` or ``stale-epoch``.
        TemporaryError
            If one does not answer, or died since it prepared: then what was prepared is dropped.
        """
        ranks = self.ranks(order)
        decision = decide(order.kind, ranks, prepared=self._prepared.get(order.id, {}))
        if decision.phase is Phase.COMMIT:
            return
        if decision.phase is Phase.ABORT:
            self.abort(order)
        detail = "; ".join(rank.detail for rank in ranks if rank.name in decision.ranks)
        message = f"{order.definition}: {decision.reason} {list(decision.ranks)} {detail}"[:1000]
        if decision.reason is PhaseReason.RANK_AHEAD:
            raise CandidateError("stale-epoch", detail=message)
        if decision.reason in (PhaseReason.RANK_JOINED, PhaseReason.RANK_RESTARTED):
            raise CandidateError("not-prepared", detail=message)
        raise TemporaryError(message, delay_s=RETRY_S)

    def _claim(self) -> int:
        """Return this daemon's term: later than any that a process of the server has received.

        Processes that do not answer are left out: a term is at least the time at which it began, so
        it is later than that of a daemon that began earlier.
        """
        if not self._term:
            known = [0]
            for _, each in self._processes.say(lambda path: told(path, _HELLO, timeout_s=_CLAIM_S)):
                term = each.get("term") if isinstance(each, dict) else None
                if isinstance(term, int) and 0 <= term < _MAX_TERM:
                    known.append(term)
            self._term = max(1 + max(known), time.time_ns() // 1_000_000)
        return self._term

    def _remember(self, order: SwapOrder, instances: dict[str, str]) -> None:
        self._prepared[order.id] = instances
        while len(self._prepared) > _REMEMBERED:
            self._prepared.popitem(last=False)

    def bypass(self, definition: str, *, on: bool, arm: str | None = None) -> None:
        """Serve the original for a while (`on`), or the active order again; see `Swapper.bypass`.

        Raises
        ------
        CandidateError
            ``unknown-slot``.
        TemporaryError
            If the server does not answer.
        """
        self.ask({"op": "bypass", "definition": definition, "on": on, **labelled(arm)})

    def ramp(
        self, order: SwapOrder, *, fraction: float, excluded: Sequence[tuple[int, ...]]
    ) -> None:
        """Change the share of launches that run an order; see `Swapper.ramp`."""
        request = {"op": "ramp", "definition": order.definition, "epoch": order.epoch}
        request["artifact"] = order.artifact
        spread = {"fraction": fraction, "excluded": [list(bucket) for bucket in excluded]}
        self.ask(request | spread | {"term": self._claim()})

    def rearm(self, definition: str | None) -> bool:
        """Close the breakers of a slot, or of whole processes with None; True if one was open.

        Raises
        ------
        TemporaryError
            If the server does not answer.
        """
        request = {"op": "rearm", "definition": definition, "term": self._claim()}
        return any(answer.get("was_open") is True for answer in self.ask(request))

    def ask(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Send one request to every process and return the answers.

        Raises
        ------
        CandidateError
            If one refuses.
        TemporaryError
            If one does not answer, or no process listens.
        """
        answers, errors = self._processes.tell(request)
        for error in worst_first(errors):
            raise error
        return list(answers.values())

    def term(self) -> int:
        """Return this daemon's term, which all its requests carry."""
        return self._claim()

    def processes(self) -> list[Path]:
        """Return the sockets.

        Raises
        ------
        TemporaryError
            If the folder cannot be read.
        """
        return self._processes.sockets()


def labelled(arm: str | None) -> dict[str, str]:
    """Return the field of a request that labels steps; none without a label."""
    return {} if arm is None else {"arm": arm}


def _rank(name: str, answer: dict[str, Any] | RetunedError) -> Rank:
    """Parse the state of a process; an invalid answer counts as silent."""
    if isinstance(answer, RetunedError):
        return Rank(name=name, standing=RankState.SILENT, detail=str(answer)[:300])
    try:
        standing = RankState(str(answer.get("standing")))
    except ValueError:
        return Rank(name=name, standing=RankState.SILENT, detail="its answer cannot be read")
    return Rank(name=name, instance=str(answer.get("instance", ""))[:200], standing=standing)


def _hello(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    return answer
