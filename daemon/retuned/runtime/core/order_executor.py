"""Order execution on the slots of a process: prepare, commit, abort, and who may order it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from retuned.runtime.artifacts.artifact import Artifact, read_artifact
from retuned.runtime.artifacts.delivery import ArtifactCache
from retuned.runtime.artifacts.trust import Trust
from retuned.runtime.core.active_order import Swapped
from retuned.runtime.core.epochs import Fence, new_instance
from retuned.runtime.core.orders import Order, parse_order
from retuned.runtime.core.slot_registry import (
    COUNTED,
    SlotRegistry,
    drop,
    is_resident,
    load,
    make_room,
)
from retuned.runtime.core.supervisor import Supervision
from retuned.runtime.intercept.service import Interception
from retuned.runtime.schema import Refused
from retuned.runtime.shadow.sampler import Compare
from retuned.runtime.steps.hook import ARM_WAIT_S, Steps
from retuned.runtime.steps.log import arm_in

log = logging.getLogger(__name__)


class OrderExecutor:
    """Executes orders of daemons.

    See `retuned.runtime.core.host.RuntimeHost` for its parameters.
    """

    def __init__(
        self,
        seating: SlotRegistry,
        *,
        steps: Steps,
        interception: Interception | None,
        artifacts_dir: Path | None,
        compare: Compare,
        trust: Trust,
        cache: ArtifactCache,
    ) -> None:
        self._seating = seating
        self._steps = steps
        self._interception = interception
        self._artifacts_dir = artifacts_dir
        self._compare = compare
        self._trust = trust
        self._cache = cache
        self._begin()

    def _begin(self) -> None:
        self.preparing = threading.Lock()
        """Held during a prepare: one order at a time."""
        self.supervision = Supervision(self._seating.slots)
        self.fence = Fence()
        self.instance = new_instance()

    def restart(self) -> None:
        """Forget all orders and their daemon; `SlotRegistry.restart` forgets what they loaded."""
        self._begin()
        self._cache.restart()

    def operations(self) -> dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
        return {
            "trust": self._pin,
            "deliver": self._deliver,
            "prepare": self._prepare,
            "standing": self._standing,
            "commit": self._commit,
            "abort": self._abort,
            "bypass": self._bypass,
            "ramp": self._ramp,
            "rearm": self._rearm,
        }

    def _pin(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Trust the daemon's key if this server is configured to pin the first key."""
        self.fence.admit(request)
        return {"pinned": self._trust.pin(request.get("key")), "trust": self._trust.policy}

    def _deliver(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Store a piece of an artifact's file; its content is not parsed."""
        self.fence.admit(request)
        return self._cache.take(request)

    def _prepare(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Verify, load, repack and self-check. Slow, and outside every lock that a commit needs."""
        order = parse_order(request.get("order"))
        self.fence.admit(request)
        digest = order.artifact
        if digest is None:
            raise Refused("order-invalid", detail="the original needs no prepare")
        with self.preparing:
            seat = self._seating.seats.get(order.definition)
            if seat is not None and is_resident(seat, digest):
                return {"already": True, "shapes": 0, "instance": self.instance}
            if seat is None and not (self._interception is not None and self._interception.on):
                self._seating.of(order.definition)
            artifact = self._read(order, digest, request)
            adopted = seat is None
            seat = seat or self._seating.adopt(order.definition, artifact)
            try:
                variant, shapes = load(
                    seat,
                    order,
                    artifact,
                    interception=self._interception,
                    compare=self._compare,
                )
                code = variant.counts() if isinstance(variant, COUNTED) else {}
            except Refused:
                if adopted:
                    self._seating.disown(seat.slot)
                raise
            with seat.lock:
                seat.resident[digest] = variant
                seat.ledger.prepared(digest)
        return {"already": False, "shapes": shapes, "instance": self.instance, **code}

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
        """Return the artifact's folder, and the folder that must contain it.

        The second is None for the own cache, which is trusted.
        """
        if request.get("files") is not None:
            return self._cache.folder_of(request.get("files")), None
        folder = request.get("artifact_dir")
        if not isinstance(folder, str) or not folder or "\0" in folder:
            raise Refused("order-invalid", detail="'artifact_dir' is not a path")
        return Path(folder), self._artifacts_dir

    def _standing(self, request: Mapping[str, Any]) -> dict[str, Any]:
        order = parse_order(request.get("order"))
        seat = self._seating.of(order.definition)
        with seat.lock:
            ready = order.artifact is None or order.artifact in seat.resident
            if seat.ledger.done(order.id) is not None:
                standing = "committed"
            elif order.epoch <= seat.ledger.epoch:
                standing = "ahead"
            else:
                standing = "prepared" if ready else "unprepared"
            epoch = seat.ledger.epoch
        return {"standing": standing, "epoch": epoch, "instance": self.instance}

    def _commit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        order = parse_order(request.get("order"))
        self.fence.admit(request)
        seat = self._seating.of(order.definition)
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
            self.supervision.admit(order)
            start_ns = time.perf_counter_ns()
            swapped = Swapped(
                seat.slot,
                order,
                variant=variant,
                compare=self._compare,
                on_trip=self.supervision.tripped,
            )
            seat.slot.commit(swapped)
            self._steps.log.arm = ""  # steps of another order belong to no arm
            flip_ns = time.perf_counter_ns() - start_ns
            seat.ledger.carried_out(
                order.id, epoch=order.epoch, artifact=order.artifact, flip_ns=flip_ns
            )
            make_room(seat, order)
        log.info("%s: epoch %d, %s", order.definition, order.epoch, order.artifact or "original")
        return {"already": False, "flip_ns": flip_ns}

    def _abort(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Drop the prepared variant of an order that will not be committed.

        Others are not affected.
        """
        order = parse_order(request.get("order"))
        self.fence.admit(request)
        seat = self._seating.of(order.definition)
        dropped = False
        with seat.lock:
            if order.artifact is not None and seat.ledger.release(order.artifact):
                dropped = drop(seat, order.artifact)
            committed = seat.ledger.done(order.id) is not None
        return {"dropped": dropped, "committed": committed}

    def _bypass(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Serve the original for a while without changing the active order, for comparison.

        With ``arm`` it happens at a safe point where steps are known, and labels the steps that
        begin after it; without, it happens at once.
        """
        arm = arm_in(request)
        definition, on = request.get("definition"), request.get("on")
        if not isinstance(definition, str) or not isinstance(on, bool):
            raise Refused("bad-request", detail="'definition' and a boolean 'on' are needed")
        slot = self._seating.of(definition).slot
        order = slot.table.in_force
        if order is None or order.artifact is None:
            self._steps.log.arm = ""
            return {"bypassed": False}
        state = "bypassed" if on else "swapped"
        if arm is None:
            return {"bypassed": slot.replace(order, state=state) and on}
        self._steps.launches.follow(slot)
        made, held_us = self._steps.in_arm(
            lambda _: slot.replace(order, state=state), arm=arm, wait_s=ARM_WAIT_S
        )
        pause_us = round(held_us, 1)
        return {"bypassed": made and on, "pause_us": pause_us, "arm": self._steps.log.arm}

    def _ramp(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.fence.admit(request)
        return self.supervision.ramp(request)

    def _rearm(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.fence.admit(request)
        return self.supervision.rearm(request)
