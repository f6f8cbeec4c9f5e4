"""Host of the runtime: operations of the control socket over all slots of this process."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from retuned.runtime.artifacts.compile_budget import CompileBudget
from retuned.runtime.artifacts.delivery import ArtifactCache
from retuned.runtime.artifacts.trust import Trust
from retuned.runtime.captured.reservoir import Reservoir, chunk, listing, parse_rule
from retuned.runtime.core.environment import engine, environment
from retuned.runtime.core.epochs import rank_of_environment
from retuned.runtime.core.maintenance import Maintenance
from retuned.runtime.core.order_executor import OrderExecutor
from retuned.runtime.core.own_overhead import OUT, OwnOverhead, Wrapper
from retuned.runtime.core.reports import process_status, slot_sample, slot_state
from retuned.runtime.core.slot_registry import COUNTED, SlotRegistry, drop_expired
from retuned.runtime.core.slots import Slot
from retuned.runtime.graphs.service import HostedGraphs
from retuned.runtime.intercept.service import Interception
from retuned.runtime.intercept.slot import KernelSlot
from retuned.runtime.plugins.ranks import ranks
from retuned.runtime.schema import Refused
from retuned.runtime.shadow.pending_checks import CHECKS
from retuned.runtime.shadow.sampler import Compare, compare_tensors
from retuned.runtime.steps.hook import Steps
from retuned.runtime.steps.log import TIMED
from retuned.runtime.steps.service import StepService
from retuned.runtime.tunables.service import FAMILIES, Tunables
from retuned.runtime.tuned_files.service import TunedFiles

log = logging.getLogger(__name__)

VERSION = "1"
"""Version of the control protocol; fields are added, never renamed."""
_ANSWERED_S = 0.2
"""How long after its answer a runtime ends."""
_NEED_WRAPPERS = frozenset(
    {"prepare", "commit", "tunable-prepare", "tunable-commit", "tunable-record", "recapture"}
)
"""Operations that act through the wrappers of the server's functions."""
_OF_PEOPLE = frozenset({"status", "rearm", "detach"})
"""Operations that people's commands use; only a daemon uses the others."""


class RuntimeHost:
    """All slots of this process, and their orders.

    Parameters
    ----------
    artifacts_dir
        Folder that must contain every artifact; None allows any that this user may read.
    may_capture
        Whether the daemon may request samples of inputs.
    trust
        Whose signature artifacts need; None uses the environment's settings.
    cache
        Stores artifacts that arrive over the socket; None uses the user's cache folder.
    """

    def __init__(
        self,
        server: str,
        *,
        artifacts_dir: Path | None = None,
        compare: Compare = compare_tensors,
        may_capture: bool = True,
        interception: Interception | None = None,
        trust: Trust | None = None,
        cache: ArtifactCache | None = None,
    ) -> None:
        self.server = server
        self._trust = trust or Trust.from_environment()
        self._interception = interception
        self._may_capture = may_capture
        self._seating = SlotRegistry(interception)
        self.steps = Steps()
        self._execution = OrderExecutor(
            self._seating,
            steps=self.steps,
            interception=interception,
            artifacts_dir=artifacts_dir,
            compare=compare,
            trust=self._trust,
            cache=cache or ArtifactCache(),
        )
        self._chores = Maintenance()
        self._compiling = CompileBudget()
        self._visited_s: float | None = None
        self.reports: dict[str, Callable[[], object]] = {}
        """Additional reports in the answer to ``hello``, by name."""
        self.on_detach: Callable[[], None] | None = None
        """Ends the runtime of this process; set by its owner."""
        self.tuned = TunedFiles(
            trust=self._trust,
            fence=lambda: self._execution.fence,
            graphs=lambda: self.graphs.answer({}),
        )
        self.tunables = Tunables(
            trust=self._trust,
            fence=lambda: self._execution.fence,
            may_record=may_capture,
            steps=self.steps,
            counted=lambda: self.overhead.state(),
        )
        self.overhead = OwnOverhead(
            self.steps,
            wrappers=self._wrappers,
            in_force=self._in_force,
            stays=lambda: ["operators"] if self.reports.get("operators", dict)() else [],
        )
        stepping = StepService(self.steps, facts=self._step_facts)
        self._operations: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "hello": self._hello,
            "slots": self._slots,
            "samples": self._samples,
            "status": self._status,
            "capture": self._capture,
            "captured": self._captured,
            "captured-tensor": self._captured_tensor,
            "graphs": lambda request: self.graphs.answer(request),
            "recapture": self._recapture,
            "kernels": self._kernels,
            "observed": self._observed,
            "detach": self._detach,
            **self._execution.operations(),
            **self.tuned.operations(),
            **self.tunables.operations(),
            **stepping.operations(),
            **self.overhead.operations(),
        }

    def add(self, slot: Slot) -> None:
        """Put a slot under control.

        Raises
        ------
        Refused
            ``slot-exists``.
        """
        self._seating.add(slot)

    @property
    def graphs(self) -> HostedGraphs:
        return self._seating.graphs

    def launched(self) -> int:
        """Return a number that grows with every observed launch, in graphs or not."""
        stock = 0 if self._interception is None else self._interception.launches()
        return stock + self.graphs.replays() + sum(slot.total() for slot in self._seating.slots())

    def why_no_window(self) -> str:
        """Return why no profiler window may begin now, a reason code; empty if one may."""
        if self.overhead.out:
            return OUT
        self.steps.log.expire()
        return TIMED if self.steps.log.arm else ""

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Execute one request.

        Raises
        ------
        Refused
            With the reason for the daemon.
        """
        name = str(request.get("op"))
        operation = self._operations.get(name)
        if operation is None:
            raise Refused("unknown-op", detail=f"there are {sorted(self._operations)}")
        if name not in _OF_PEOPLE:
            self._visited_s = time.monotonic()
        if name in _NEED_WRAPPERS:
            self.overhead.end()
        return operation(request)

    def housekeeping(self) -> None:
        """Pack and compile what launches requested; called by the control thread when idle.

        Pieces are independent (`Maintenance`): a failure of one does not delay the others.
        """
        do = self._chores.do
        # first: no other piece may delay a rollback
        do("leases and breakers", self._execution.supervision.tend)
        if self._interception is not None:
            do("interception", self._interception.poll)
        do("checks", lambda: CHECKS.settle(self.graphs.quiet))
        for name, seat in list(self._seating.seats.items()):
            do(f"{name}: packing", partial(self._when_quiet, seat.packed.pack_pending))
            if seat.reservoir is not None:
                do(f"{name}: samples", partial(self._when_quiet, seat.reservoir.settle))
            do(f"{name}: never committed", partial(drop_expired, seat))
            for variant in list(seat.resident.values()):
                if isinstance(variant, COUNTED):
                    piece, waiting = variant.prepare_pending, variant.pending
                    do(f"{name}: compiling", partial(self._compiling.do, piece, waiting=waiting))
        do("graphs", self.graphs.housekeeping)
        do("tunables", self.tunables.housekeeping)
        do("own overhead", self.overhead.tend)

    def _when_quiet(self, piece: Callable[[], object]) -> None:
        """Run a piece that waits for a device, except during a graph capture, which it would end.

        The pieces do not raise `Refused` themselves, so `Refused` here comes from the wait.
        """
        try:
            with self.graphs.quiet():
                piece()
        except Refused:
            pass  # it is tried again later

    def reset(self, *, first_launch: Callable[[], None] | None = None) -> None:
        """Return every slot to the original and forget all orders: at close and after a fork.

        Parameters
        ----------
        first_launch
            Called when a slot is launched for the first time after this; must not raise.
        """
        self.overhead.end()
        self._execution.restart()
        self._chores = Maintenance()
        self._compiling = CompileBudget()
        self._visited_s = None
        self.tuned.restart()
        self.tunables.restart()
        self._seating.restart(first_launch=first_launch)

    def _detach(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """Return everything to the server's own, answer, and end the runtime of this process.

        Raises
        ------
        Refused
            ``detach-unknown`` where the runtime has no owner that could end it.
        """
        if self.on_detach is None:
            raise Refused("detach-unknown", detail="nothing here can end this process's runtime")
        self.tunables.close()
        self.reset()
        later = threading.Timer(_ANSWERED_S, self.on_detach)  # the answer goes over its socket
        later.daemon = True
        later.start()
        tables = [each.id for each in self.tunables.registry if each.table is not None]
        slots = [slot_state(slot) for slot in self._seating.slots()]
        return {"slots": slots, "tables": tables}

    # --- operations -------------------------------------------------------------------------------

    def _hello(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "version": VERSION,
            "server": self.server,
            "environment": environment(),
            "ranks": ranks(),
            "interception": self._interception.states() if self._interception else {},
            "instance": self._execution.instance,
            "rank": rank_of_environment(),
            "term": self._execution.fence.term,
            "trust": self._trust.policy,
            **{name: report() for name, report in list(self.reports.items())},
        }

    def _wrappers(self) -> dict[str, Wrapper]:
        """Return what `own_overhead` takes out of the server's calls."""
        found: dict[str, Wrapper] = dict(zip(FAMILIES, self.tunables.hooks, strict=True))
        if self._interception is not None:
            found["launches"] = self._interception
        return found | {"graphs": self.graphs}

    def _in_force(self) -> str:
        """Return the name of a swap in force; empty without one."""
        for slot in self._seating.slots():
            order = slot.table.in_force
            if order is not None and order.artifact is not None:
                return slot.spec.name
        return next((each.id for each in self.tunables.registry if each.table is not None), "")

    def _step_facts(self) -> dict[str, Any]:
        return {
            "instance": self._execution.instance,
            "rank": str(ranks().get("rank", "")),
            "engine": engine(),
        }

    def _slots(self, _: Mapping[str, Any]) -> dict[str, Any]:
        slots = self._seating.slots()
        out_s = self.overhead.state()["out_s"]
        return {
            "slots": [
                slot_state(slot)
                | {"graph": self.graphs.state(slot)}
                | ({"uncounted_s": out_s} if isinstance(slot, KernelSlot) else {})
                for slot in slots
            ]
        }

    def _samples(self, _: Mapping[str, Any]) -> dict[str, Any]:
        self._execution.supervision.heard()
        graphs = self.graphs
        slots = self._seating.slots()
        return {"samples": [graphs.counted(slot, slot_sample(slot)) for slot in slots]}

    def _status(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of this process, for anyone who may connect; no lease is renewed."""
        supervision = self._execution.supervision
        state = process_status(self._seating.slots(), supervision, counted=self.graphs.counted)
        stock = {} if self._interception is None else self._interception.stock()
        visited_s = self._visited_s
        since_s = None if visited_s is None else max(0.0, time.monotonic() - visited_s)
        return (
            self._hello(request)
            | state
            | stock
            | {"failed_chores": self._chores.failures(), "unvisited_s": since_s}
            | {"compiling": self._compiling.state(), "overhead": self.overhead.state()}
        )

    def _capture(self, request: Mapping[str, Any]) -> dict[str, Any]:
        seat = self._seating.of(str(request.get("definition")))
        rule = parse_rule(request)
        if rule is not None and not self._may_capture:
            raise Refused("capture-forbidden", detail="RETUNED_CAPTURE=off is set in this server")
        if (seat.reservoir.rule if seat.reservoir is not None else None) != rule:
            seat.reservoir = Reservoir(seat.slot.spec, rule) if rule is not None else None
            seat.slot.sample_inputs(seat.reservoir)
        return {"capturing": rule is not None}

    def _captured(self, request: Mapping[str, Any]) -> dict[str, Any]:
        reservoir = self._seating.of(str(request.get("definition"))).reservoir
        return {"samples": listing(reservoir.samples() if reservoir is not None else [])}

    def _captured_tensor(self, request: Mapping[str, Any]) -> dict[str, Any]:
        reservoir = self._seating.of(str(request.get("definition"))).reservoir
        return chunk(reservoir.samples() if reservoir is not None else [], request)

    def _recapture(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._execution.fence.admit(request)
        return self.graphs.recapture(request)

    def _kernels(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._intercepting().kernels(request)

    def _observed(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._intercepting().observed(request)

    def _intercepting(self) -> Interception:
        if self._interception is None:
            raise Refused("interception-off", detail="this server intercepts no launches")
        return self._interception
