"""What the control socket can ask for: the runtime's operations over all slots of this process."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from retuned.runtime.artifact import Artifact, read_artifact
from retuned.runtime.captures import Reservoir, chunk, listing, parse_rule
from retuned.runtime.chores import Chores
from retuned.runtime.compiling import Compiling
from retuned.runtime.delivery import ArtifactCache
from retuned.runtime.epochs import Fence, new_instance, rank_of_environment
from retuned.runtime.graphs.hosting import HostedGraphs
from retuned.runtime.inforce import Swapped
from retuned.runtime.intercept.service import Interception
from retuned.runtime.intercept.slot import KernelSlot
from retuned.runtime.intercept.variant import KernelVariant
from retuned.runtime.loaded import LoadedVariant
from retuned.runtime.orders import Order, parse_order
from retuned.runtime.plugins.ranks import ranks
from retuned.runtime.reports import slot_sample, slot_state
from retuned.runtime.seats import Seat, drop, drop_expired, is_resident, load, make_room
from retuned.runtime.shadow import Compare, compare_tensors
from retuned.runtime.slots import Slot
from retuned.runtime.spec import Refused, Tensor
from retuned.runtime.status import process_status
from retuned.runtime.supervising import Supervision
from retuned.runtime.surroundings import environment
from retuned.runtime.trust import Trust
from retuned.runtime.tuned.service import TunedFiles
from retuned.runtime.underway import CHECKS
from retuned.runtime.weights import PackedWeights

log = logging.getLogger(__name__)

VERSION = "1"
"""Version of the control protocol; fields are added, never renamed."""
_OF_PEOPLE = frozenset({"status", "rearm"})
"""What commands ask for; all else is a daemon's."""
_COUNTED = (LoadedVariant, KernelVariant)
"""Variants that say where their code came from."""


class Host:
    """All slots of this process, and the orders they take.

    Parameters
    ----------
    server
        Name of the server, for people.
    artifacts_dir
        Folder that every artifact must be inside; None allows any that this user may read.
    compare
        Judges outputs in shadow and self checks.
    may_capture
        Whether the daemon may ask for samples of inputs.
    interception
        Of Triton's launches in this process; None where there is none.
    trust
        Whose signature artifacts need; None takes what the environment says.
    cache
        Where artifacts are kept that come over the socket; None takes the user's cache folder.
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
        self._cache = cache or ArtifactCache()
        self._fence = Fence()
        self._instance = new_instance()
        self._interception = interception
        self._may_capture = may_capture
        self._artifacts_dir = artifacts_dir
        self._compare = compare
        self._seats: dict[str, Seat] = {}
        self._graphs = HostedGraphs(interception)
        self._preparing = threading.Lock()
        self._supervision = Supervision(self._all_slots)
        self._chores = Chores()
        self._compiling = Compiling()
        self._visited_s: float | None = None
        self.reports: dict[str, Callable[[], object]] = {}
        """What else a daemon is told when it says hello."""
        self.tuned = TunedFiles(
            trust=self._trust, fence=lambda: self._fence, graphs=lambda: self._graphs.answer({})
        )
        """Tuned-config files of this process's server."""
        self._operations: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "hello": self._hello,
            "slots": self._slots,
            "samples": self._samples,
            "status": self._status,
            "trust": self._pin,
            "deliver": self._deliver,
            "prepare": self._prepare,
            "standing": self._standing,
            "commit": self._commit,
            "abort": self._abort,
            "bypass": self._bypass,
            "ramp": self._ramp,
            "rearm": self._rearm,
            "capture": self._capture,
            "captured": self._captured,
            "captured-tensor": self._captured_tensor,
            "graphs": self._graphs.answer,
            "recapture": self._recapture,
            "kernels": self._kernels,
            "observed": self._observed,
            **self.tuned.operations(),
        }

    def add(self, slot: Slot) -> None:
        """Put a slot under control.

        Raises
        ------
        Refused
            ``slot-exists``.
        """
        if slot.spec.name in self._seats:
            raise Refused("slot-exists", detail=f"{slot.spec.name} has a slot already")
        self._seats[slot.spec.name] = Seat(slot, PackedWeights(served=self._weights))
        self._graphs.add(slot)

    @property
    def graphs(self) -> HostedGraphs:
        """Captured graphs, which follow the slots."""
        return self._graphs

    def launched(self) -> int:
        """Return a number that grows with every launch that is seen here, in graphs or not."""
        stock = 0 if self._interception is None else self._interception.launches()
        return stock + self._graphs.replays() + sum(slot.total() for slot in self._all_slots())

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out one request.

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
        return operation(request)

    def housekeeping(self) -> None:
        """Pack and compile what launches asked for; called by the control thread when idle.

        Each piece stands alone (`chores`): one that fails keeps none of the others back.
        """
        do = self._chores.do
        do("leases and breakers", self._supervision.tend)  # first: nothing may keep a way back
        if self._interception is not None:
            do("interception", self._interception.poll)
        do("checks", lambda: CHECKS.settle(self._graphs.quiet))
        for name, seat in list(self._seats.items()):
            do(f"{name}: packing", partial(self._when_quiet, seat.packed.pack_pending))
            if seat.reservoir is not None:
                do(f"{name}: samples", partial(self._when_quiet, seat.reservoir.settle))
            do(f"{name}: never committed", partial(drop_expired, seat))
            for variant in list(seat.resident.values()):
                if isinstance(variant, _COUNTED):
                    piece, waiting = variant.prepare_pending, variant.pending
                    do(f"{name}: compiling", partial(self._compiling.do, piece, waiting=waiting))
        do("graphs", self._graphs.housekeeping)

    def _when_quiet(self, piece: Callable[[], object]) -> None:
        """Do what waits for a device, unless a graph is being captured: that would end the capture.

        Nothing of it refuses by itself, so that what is refused is the waiting.
        """
        try:
            with self._graphs.quiet():
                piece()
        except Refused:
            pass  # it waits for its turn

    def reset(self, *, first_launch: Callable[[], None] | None = None) -> None:
        """Return every slot to the original and forget all orders: at close and after a fork.

        Parameters
        ----------
        first_launch
            Called when a slot is launched for the first time after this; must not raise.
        """
        self._preparing = threading.Lock()
        self._supervision = Supervision(self._all_slots)
        self._chores = Chores()
        self._compiling = Compiling()
        self._visited_s = None
        self._fence = Fence()
        self._instance = new_instance()
        self._cache.restart()
        self.tuned.restart()
        for name, seat in list(self._seats.items()):
            # first, for its new lock: another thread of a child's parent may have held the old one
            seat.slot.restart(first_launch=first_launch)
            self._graphs.remove(seat.slot)
            if isinstance(seat.slot, KernelSlot):  # the kernel is the server's own again
                del self._seats[name]
                if self._interception is not None:
                    self._interception.close(seat.slot)
                continue
            self._seats[name] = Seat(seat.slot, PackedWeights(served=self._weights))
            if first_launch is not None:  # a forked child goes on
                self._graphs.add(seat.slot)

    def _weights(self) -> list[Tensor]:
        """Return the weights that launches of any slot have shown: they lie with the model."""
        seats = list(self._seats.values())
        return [weight for seat in seats for group in seat.slot.constants() for weight in group]

    # --- operations -------------------------------------------------------------------------------

    def _hello(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "version": VERSION,
            "server": self.server,
            "environment": environment(),
            "ranks": ranks(),
            "interception": self._interception.states() if self._interception else {},
            "instance": self._instance,
            "rank": rank_of_environment(),
            "term": self._fence.term,
            "trust": self._trust.policy,
            **{name: report() for name, report in list(self.reports.items())},
        }

    def _pin(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Believe the daemon's key where this server's owner has said to pin the first."""
        self._fence.admit(request)
        return {"pinned": self._trust.pin(request.get("key")), "trust": self._trust.policy}

    def _deliver(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Take a piece of an artifact's file; nothing of it is looked into."""
        self._fence.admit(request)
        return self._cache.take(request)

    def _slots(self, _: Mapping[str, Any]) -> dict[str, Any]:
        slots = self._all_slots()
        return {"slots": [slot_state(slot) | {"graph": self._graphs.state(slot)} for slot in slots]}

    def _samples(self, _: Mapping[str, Any]) -> dict[str, Any]:
        self._supervision.heard()
        graphs = self._graphs
        slots = self._all_slots()
        return {"samples": [graphs.counted(slot, slot_sample(slot)) for slot in slots]}

    def _status(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Say how this process stands, to whoever asks: no lease begins anew."""
        told = process_status(self._all_slots(), self._supervision, counted=self._graphs.counted)
        stock = {} if self._interception is None else self._interception.stock()
        visited_s = self._visited_s
        since_s = None if visited_s is None else max(0.0, time.monotonic() - visited_s)
        return (
            self._hello(request)
            | told
            | stock
            | {"failed_chores": self._chores.failures(), "unvisited_s": since_s}
            | {"compiling": self._compiling.state()}
        )

    def _prepare(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Verify, load, repack and self-check. Slow, and off every lock that a commit needs."""
        order = parse_order(request.get("order"))
        self._fence.admit(request)
        digest = order.artifact
        if digest is None:
            raise Refused("order-invalid", detail="the original needs no prepare")
        with self._preparing:
            seat = self._seats.get(order.definition)
            if seat is not None and is_resident(seat, digest):
                return {"already": True, "shapes": 0, "instance": self._instance}
            if seat is None and not (self._interception is not None and self._interception.on):
                self._seat(order.definition)
            artifact = self._read(order, digest, request)
            adopted = seat is None
            seat = seat or self._adopt(order.definition, artifact)
            try:
                variant, shapes = load(
                    seat,
                    order,
                    artifact,
                    interception=self._interception,
                    compare=self._compare,
                )
                code = variant.counts() if isinstance(variant, _COUNTED) else {}
            except Refused:
                if adopted:
                    self._disown(seat.slot)
                raise
            with seat.lock:
                seat.resident[digest] = variant
                seat.ledger.prepared(digest)
        return {"already": False, "shapes": shapes, "instance": self._instance, **code}

    def _adopt(self, definition: str, artifact: Artifact) -> Seat:
        """Make a slot for a kernel whose launches are intercepted, if that is what it is for."""
        if self._interception is None or artifact.intercept is None:
            return self._seat(definition)
        if artifact.spec.name != definition:
            raise Refused("definition-mismatch", detail=f"not made for slot {definition}")
        slot = self._interception.adopt(artifact)
        self._seats[definition] = Seat(slot, PackedWeights(served=self._weights))
        self._graphs.add(slot)
        return self._seats[definition]

    def _disown(self, slot: Slot) -> None:
        if isinstance(slot, KernelSlot) and self._interception is not None:
            del self._seats[slot.spec.name]
            self._graphs.remove(slot)
            self._interception.close(slot)

    def _read(self, order: Order, digest: str, request: Mapping[str, Any]) -> Artifact:
        folder, within = self._folder(request)
        return read_artifact(
            folder,
            digest=digest,
            within=within,
            trust=self._trust,
            definition=order.definition,
            target=order.target,
        )

    def _folder(self, request: Mapping[str, Any]) -> tuple[Path, Path | None]:
        """Return where the artifact lies, and what it must be inside: our own cache is ours."""
        if request.get("files") is not None:
            return self._cache.folder_of(request.get("files")), None
        folder = request.get("artifact_dir")
        if not isinstance(folder, str) or not folder or "\0" in folder:
            raise Refused("order-invalid", detail="'artifact_dir' is no path")
        return Path(folder), self._artifacts_dir

    def _standing(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Say where this process is with an order; nothing changes."""
        order = parse_order(request.get("order"))
        seat = self._seat(order.definition)
        with seat.lock:
            ready = order.artifact is None or order.artifact in seat.resident
            if seat.ledger.done(order.id) is not None:
                standing = "committed"
            elif order.epoch <= seat.ledger.epoch:
                standing = "ahead"
            else:
                standing = "prepared" if ready else "unprepared"
            epoch = seat.ledger.epoch
        return {"standing": standing, "epoch": epoch, "instance": self._instance}

    def _commit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        order = parse_order(request.get("order"))
        self._fence.admit(request)
        seat = self._seat(order.definition)
        with seat.lock:
            done_ns = seat.ledger.done(order.id)
            if done_ns is not None:
                return {"already": True, "flip_ns": done_ns}
            seat.ledger.check(order.epoch)
            variant = None
            if order.artifact is not None:
                variant = seat.resident.get(order.artifact)
                if variant is None:
                    raise Refused("not-prepared", detail=f"{order.artifact} is not loaded here")
            self._supervision.admit(order)
            start_ns = time.perf_counter_ns()
            swapped = Swapped(
                seat.slot,
                order,
                variant=variant,
                compare=self._compare,
                on_trip=self._supervision.tripped,
            )
            seat.slot.commit(swapped)
            flip_ns = time.perf_counter_ns() - start_ns
            seat.ledger.carried_out(
                order.id, epoch=order.epoch, artifact=order.artifact, flip_ns=flip_ns
            )
            make_room(seat, order)
        log.info("%s: epoch %d, %s", order.definition, order.epoch, order.artifact or "original")
        return {"already": False, "flip_ns": flip_ns}

    def _abort(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Drop what was prepared for an order that will not be committed; no other is touched."""
        order = parse_order(request.get("order"))
        self._fence.admit(request)
        seat = self._seat(order.definition)
        dropped = False
        with seat.lock:
            if order.artifact is not None and seat.ledger.release(order.artifact):
                dropped = drop(seat, order.artifact)
            committed = seat.ledger.done(order.id) is not None
        return {"dropped": dropped, "committed": committed}

    def _bypass(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Serve the original for a while without changing the order in force, for comparison."""
        definition, on = request.get("definition"), request.get("on")
        if not isinstance(definition, str) or not isinstance(on, bool):
            raise Refused("bad-request", detail="'definition' and a boolean 'on' are needed")
        slot = self._seat(definition).slot
        order = slot.table.in_force
        if order is None or order.artifact is None:
            return {"bypassed": False}
        return {"bypassed": slot.replace(order, state="bypassed" if on else "swapped") and on}

    def _ramp(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._fence.admit(request)
        return self._supervision.ramp(request)

    def _rearm(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._fence.admit(request)
        return self._supervision.rearm(request)

    def _all_slots(self) -> list[Slot]:
        return [seat.slot for seat in list(self._seats.values())]

    def _capture(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Begin to sample the inputs of a slot, or end it and forget what was taken."""
        seat = self._seat(str(request.get("definition")))
        rule = parse_rule(request)
        if rule is not None and not self._may_capture:
            raise Refused("capture-forbidden", detail="RETUNED_CAPTURE=off is set in this server")
        if (seat.reservoir.rule if seat.reservoir is not None else None) != rule:
            seat.reservoir = Reservoir(seat.slot.spec, rule) if rule is not None else None
            seat.slot.sample_inputs(seat.reservoir)
        return {"capturing": rule is not None}

    def _captured(self, request: Mapping[str, Any]) -> dict[str, Any]:
        reservoir = self._seat(str(request.get("definition"))).reservoir
        return {"samples": listing(reservoir.samples() if reservoir is not None else [])}

    def _captured_tensor(self, request: Mapping[str, Any]) -> dict[str, Any]:
        reservoir = self._seat(str(request.get("definition"))).reservoir
        return chunk(reservoir.samples() if reservoir is not None else [], request)

    def _recapture(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Have the server capture its graphs again, with the variants in force."""
        self._fence.admit(request)
        return self._graphs.recapture(request)

    def _kernels(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """List the Triton kernels whose launches were seen."""
        return self._intercepting().kernels(request)

    def _observed(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of what those launches have shown."""
        return self._intercepting().observed(request)

    def _intercepting(self) -> Interception:
        if self._interception is None:
            raise Refused("interception-off", detail="this server intercepts no launches")
        return self._interception

    def _seat(self, definition: str) -> Seat:
        seat = self._seats.get(definition)
        if seat is None:
            raise Refused("unknown-slot", detail=f"this server has no slot {definition!r:.150}")
        return seat
