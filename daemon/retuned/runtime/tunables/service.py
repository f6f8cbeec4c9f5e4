"""Service of tunables in a server: reports, recording, and orders for tables.

A table is engaged when every configuration of it was checked and compiled, each rule matches a size
class that was launched, the runtime's hook is in place, and the table was exchanged at a safe
point. Launches are counted from then on: `matched` says how many ran under its rules. Captured
graphs keep the old choice until their sizes were captured again at an idle moment; `captured` lists
those.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from retuned.runtime.artifacts.trust import Trust
from retuned.runtime.core.environment import device_in_use
from retuned.runtime.core.epochs import MAX_HISTORY, Fence, Ledger
from retuned.runtime.schema import Refused
from retuned.runtime.steps.hook import Steps
from retuned.runtime.steps.log import arm_in
from retuned.runtime.tunables.attention import AttentionHook
from retuned.runtime.tunables.autotune import AutotunerHook
from retuned.runtime.tunables.captures import CAPTURE_S, Captures
from retuned.runtime.tunables.environment import environment
from retuned.runtime.tunables.moe import MoeHook
from retuned.runtime.tunables.records import (
    Table,
    canonical,
    parse_table,
)
from retuned.runtime.tunables.state import Registry, Tunable
from retuned.runtime.tuned_files.orders import ChangeOrder, parse_order

log = logging.getLogger(__name__)

TableOrder = ChangeOrder[Table]
FAMILIES = ("autotune", "attention", "moe")
MAX_PREPARED = 16
_MAX_RECIPE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The last order for one tunable."""

    order: str
    artifact: str
    """The daemon's name of the variant in force; empty is the original."""
    epoch: int
    table: Table | None


class Tunables:
    """The tunables of this process's server.

    Parameters
    ----------
    may_record
        Whether values of integer tensors may be copied for experiments.
    steps
        The steps of this process's server; None makes them.
    counted
        Returns in which time launches were counted; see `core.own_overhead`.
    """

    def __init__(
        self,
        *,
        trust: Trust,
        fence: Callable[[], Fence],
        may_record: bool = False,
        steps: Steps | None = None,
        counted: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._trust, self._fence, self._counted = trust, fence, counted
        self._on = False
        self.registry = Registry()
        self.registry.may_record = may_record
        self.steps = steps or Steps()
        self.captures = Captures(self.registry, self.steps)
        self.hooks: tuple[AutotunerHook | AttentionHook | MoeHook, ...] = (
            AutotunerHook(self.registry),
            AttentionHook(self.registry),
            MoeHook(self.registry),
        )
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._prepared: OrderedDict[str, TableOrder] = OrderedDict()
        self._outcomes: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._ledgers: dict[str, Ledger] = {}
        self._tables: OrderedDict[str, Table] = OrderedDict()
        self._statuses: OrderedDict[str, Status] = OrderedDict()

    def turn_on(self, when_seen: Callable[[], None]) -> dict[str, str]:
        """Follow the tunables of the modules that are loaded; called again after each import.

        Parameters
        ----------
        when_seen
            Called when the first tunable or the server's worker is found; must not raise.
        """
        self._on = True
        self.registry.when_seen = when_seen
        for hook in self.hooks:
            hook.install()
        self.steps.install(when_seen)
        return {**self._families(), "steps": self.steps.state}

    def _families(self) -> dict[str, str]:
        """Return ``on`` or the reason code of each family."""
        return {n: h.state for n, h in zip(FAMILIES, self.hooks, strict=True)}

    def restart(self) -> None:
        """Return every tunable to the original and forget all orders: at close and after a fork."""
        for tunable in self.registry:
            tunable.put(None)
        self._begin()

    def close(self) -> None:
        """Restore the server's own functions and graphs."""
        if not self._on:
            self.steps.uninstall()  # records of steps may have needed the hook
            return
        sizes = [size for each in self.registry for size in each.captured_sizes]

        def restore(worker: Any) -> None:  # noqa: ANN401 - the server's
            for each in self.registry:
                each.put(None)
            self.captures.restore(worker, sizes)
            if worker is not None:
                self.captures.graphs.forget()

        try:
            self.steps.at_safe_point(restore)
        except Refused as error:  # a step that does not end: the process is going down
            log.error("captured graphs keep their tables: %s", error)
        self.restart()
        for hook in self.hooks:
            hook.uninstall()
        self.steps.uninstall()
        self._on = False

    def after_fork(self) -> None:
        """Start over in a child: no table, no step of the parent."""
        self.steps.after_fork()
        self.registry.after_fork()
        self.captures.graphs.after_fork()
        self.restart()

    def operations(self) -> dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
        return {
            "tunables": self.state,
            "tunable-record": self.record,
            "tunable-recipes": self.recipes,
            "tunable-pause": self.pause,
            "tunable-resume": self.resume,
            "tunable-prepare": self.prepare,
            "tunable-commit": self.commit,
            "tunable-rollback": self.rollback,
            "tunable-bypass": self.bypass,
        }

    # --- reports ----------------------------------------------------------------------------------

    def state(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Report on orders; and, unless ``orders`` alone are asked for, on tunables and steps."""
        with self._lock:
            orders = {
                "on": self._on,
                "servers": {"table": "python"} if self._on else {},
                "known": [each.id for each in self.registry],
                "prepared": list(self._prepared),
                "files": [self._file_report(name) for name in self._statuses],
            }
            if request.get("orders") is True:
                return orders
            return orders | {
                "families": self._families(),
                "environment": environment(),
                "steps": self.steps.report(),
                "tunables": [self._report(each) for each in self.registry],
                "failures": self.registry.failures,
                "overhead": dict(self._counted()),
                "outcomes": {name: dict(result) for name, result in self._outcomes.items()},
            }

    def _report(self, tunable: Tunable) -> dict[str, Any]:
        table, status = tunable.table, self._statuses.get(tunable.id)
        in_force = None
        if table is not None and status is not None:
            in_force = {
                "order": status.order,
                "epoch": status.epoch,
                "artifact": status.artifact or None,
                "digest": table.digest,
                "rules": len(table.rules),
                "matched": tunable.matched,
                "captured": list(tunable.captured_sizes),
                **self._held(tunable, table),
                "checks": tunable.checks.report() if tunable.checks is not None else None,
            }
        return {
            "id": tunable.id,
            "family": tunable.family,
            "kernel": tunable.kernel,
            "module": tunable.module,
            "source": tunable.source,
            "geometry": tunable.geometry,
            "axes": list(tunable.axes),
            "asked": tunable.asked(),
            "space": tunable.space,
            "ways": {"next-call": "on", "recapture": self.captures.way()},
            "refused": tunable.refused,
            "recorded": len(tunable.recipes),
            "recording": tunable.recording,
            "table": in_force,
        }

    def _file_report(self, name: str) -> dict[str, Any]:
        status, tunable = self._statuses[name], self.registry.find(name)
        held, checks = {"state": "lost", "reason": "table-replaced"}, None
        if tunable is not None and tunable.table is status.table:
            held = self._held(tunable, status.table)
            checks = tunable.checks.report() if tunable.checks is not None else None
        return {
            "definition": name,
            "order": status.order,
            "artifact": status.artifact or None,
            "epoch": status.epoch,
            **held,
            "detail": "",
            "reach": self.captures.reach(tunable) if tunable is not None else "all",
            "awaited": [] if tunable is None else self.captures.awaited(tunable),
            "bypassed": tunable is not None and tunable.bypassed,
            "checks": checks,
        }

    def _held(self, tunable: Tunable, table: Table | None) -> dict[str, str]:
        """Return whether launches of a tunable still run its table."""
        if table is not None and tunable.tripped:
            return {"state": "lost", "reason": tunable.tripped}
        if table is not None and not self._is_hooked(tunable):
            return {"state": "lost", "reason": "hook-replaced"}
        return {"state": "engaged", "reason": ""}

    def _is_hooked(self, tunable: Tunable) -> bool:
        hook = dict(zip(FAMILIES, self.hooks, strict=True)).get(tunable.family)
        return hook is None or hook.in_place()

    def record(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Copy values of integer tensors of some launches from now on, or no longer.

        Raises
        ------
        Refused
            ``capture-off`` or ``unknown-tunable``.
        """
        tunable, on = self._named(request), request.get("on") is True
        if on and not self.registry.may_record:
            raise Refused("capture-off", detail="RETUNED_CAPTURE does not allow recorded inputs")
        tunable.recording = on
        if not on:
            tunable.forget_values()
        return {"recording": on}

    def recipes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return descriptions of launches for experiments, a page at a time."""
        tunable = self._named(request)
        offset = request.get("offset", 0)
        if type(offset) is not int or offset < 0:
            raise Refused("bad-request", detail="'offset' must be a number of recipes")
        every = [*tunable.recipes.values(), *tunable.edges.values()]
        page: list[dict[str, Any]] = []
        size = 0
        for each in every[offset:]:
            size += len(canonical(each))
            if page and size > _MAX_RECIPE_BYTES:
                break
            page.append(self._with_lengths(tunable, each))
        end = offset + len(page)
        return {"recipes": page, "next": end if end < len(every) else None}

    def _with_lengths(self, tunable: Tunable, recipe: dict[str, Any]) -> dict[str, Any]:
        """Add what changed since a launch was described: its count, and lengths of real steps."""
        axes = recipe["axes"]
        sized = tunable.sized(axes)
        found = {**recipe, "launches": sized.launches}
        if tunable.family == "autotune" and not recipe["call"]["in_force"]:
            # the described launch made the choice: it is known since
            found["call"] = {**recipe["call"], "in_force": tunable.frozen()}
        if tunable.family == "attention":
            steps = [s for s in self.steps.report()["recent"] if s["keys"] and _alike(s, axes)]
            lengths = [{"queries": s["queries"], "keys": s["keys"]} for s in steps[-16:]]
            in_force = dict(sized.config)
            found["call"] = {**recipe["call"], "lengths": lengths, "in_force": in_force}
        return found

    def pause(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Hold launches from the next safe point; see `Steps.pause`."""
        self._check_on()
        seconds = request.get("seconds")
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
            raise Refused("bad-request", detail="'seconds' must be a number")
        return self.steps.pause(str(request.get("id", "")), seconds=float(seconds))

    def resume(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """End a pause."""
        return self.steps.resume(str(request.get("id", "")))

    # --- orders -----------------------------------------------------------------------------------

    def prepare(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Check a table, and compile all of its configurations; nothing is exchanged.

        Raises
        ------
        Refused
            ``tunables-off``, ``unknown-tunable``, ``source-differs``, ``table-changed``,
            ``axis-unknown``, ``rule-without-launch``, ``compile-failed``, the tunable's own
            refusal, or as `parse_order`.
        """
        order = self._read(request, "swap")
        tunable = self._of(order)
        with self._lock:
            if self._done(order) is not None or self._prepared.get(order.id) == order:
                return {"already": True}
        self._check_fits(tunable, order.change)
        fitting = []
        for rule in order.change.rules:
            tunable.check(rule.config)
            reason = tunable.rule_fits(rule)
            if reason == "axis-unknown":
                raise Refused(reason, detail=f"{tunable.id} has the axes {list(tunable.axes)}")
            if not reason:
                fitting.append(rule)
        if order.change.rules and not fitting:
            detail = "no size that a rule is for was launched here"
            raise Refused("rule-without-launch", detail=detail)
        _warm(tunable, dataclasses.replace(order.change, rules=tuple(fitting)))
        with self._lock:
            self._prepared[order.id] = order
            while len(self._prepared) > MAX_PREPARED:
                self._prepared.popitem(last=False)
        return {"already": False, "rules": len(order.change.rules), "reload": "now"}

    def _check_fits(self, tunable: Tunable, table: Table) -> None:
        if tunable.refused:
            raise Refused(tunable.refused, detail=f"{tunable.id} cannot be changed in this server")
        if tunable.source != table.source or tunable.family != table.family:
            detail = f"the table was made for another source than {tunable.module}'s"
            raise Refused("source-differs", detail=detail)
        in_force = tunable.table.digest if tunable.table is not None else None
        # after a restart the original is in force, and nothing is replaced that was not measured
        if in_force not in (None, table.before, table.digest):
            detail = f"in force is {in_force}, the table replaces {table.before}"
            raise Refused("table-changed", detail=detail)

    def commit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Exchange the table at the next safe point.

        Raises
        ------
        Refused
            ``not-prepared``, ``stale-epoch``, ``no-safe-point``, or as `prepare`.
        """
        order = self._read(request, "swap")
        tunable = self._of(order)
        with self._lock:
            done = self._done(order)
            if done is not None:
                self._repeated(order)
                return {"already": True, **done}
            if self._prepared.get(order.id) != order:
                detail = f"{order.id:.80} was not prepared here, or with other fields"
                raise Refused("not-prepared", detail=detail)
            self._check_fits(tunable, order.change)
            if not self._is_hooked(tunable):
                detail = "other code has replaced the runtime's hook on this family"
                raise Refused("hook-replaced", detail=detail)
            result = self._exchange(tunable, order, order.change)
        log.info("%s: epoch %d, %d rules", tunable.id, order.epoch, len(order.change.rules))
        return {"already": False, **result}

    def rollback(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Put the table before back in force, or the original.

        Raises
        ------
        Refused
            ``stale-epoch``, ``no-safe-point``, ``unknown-tunable``, or as `parse_order`.
        """
        order = self._read(request, "rollback")
        tunable = self._of(order)
        with self._lock:
            done = self._done(order)
            if done is not None:
                self._repeated(order)
                return {"already": True, **done}
            self._prepared.pop(order.undoes, None)
            return {"already": False, **self._exchange(tunable, order, self._below(order))}

    def bypass(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run the server's choice for a while without changing the order in force, or no longer.

        ``arm`` labels the steps that begin after it, also where nothing changes.

        Raises
        ------
        Refused
            ``bad-request``, ``unknown-tunable`` or ``no-safe-point``.
        """
        self._check_on()
        on = request.get("on")
        if not isinstance(on, bool):
            raise Refused("bad-request", detail="a boolean 'on' is needed")
        arm = arm_in(request)
        self._fence().admit(request)
        tunable = self._known(str(request.get("definition")))
        with self._lock:
            if tunable.table is None:
                self.steps.log.arm = ""
                return {"bypassed": False}
            held_us = 0.0
            if arm is not None:
                self.steps.launches.follow(tunable)
            if tunable.bypassed != on or arm is not None:
                held_us = self.captures.bypass(tunable, on=on, arm=arm)
            pause_us = round(held_us, 1)
            return {"bypassed": on, "pause_us": pause_us, "arm": self.steps.log.arm}

    def _below(self, order: TableOrder) -> Table | None:
        """Return the table that an order goes back to; None is the original."""
        before = order.change.before
        if before is None or not order.artifact:
            return None
        found = self._tables.get(before)
        if found is None:
            raise Refused("table-unknown", detail=f"the table {before} is not known here")
        return found

    def _exchange(self, tunable: Tunable, order: TableOrder, table: Table | None) -> dict[str, Any]:
        ledger = self._ledgers.setdefault(tunable.id, Ledger())
        ledger.check(order.epoch)
        unseen = [] if table is None else [r for r in table.rules if tunable.rule_fits(r)]

        def put() -> None:
            tunable.put(table, cold=unseen, rates=order.rates)
            self.steps.log.arm = ""  # steps of another order belong to no arm

        _, held_us = self.steps.at_safe_point(lambda worker: self.captures.exchange(worker, put))
        if table is not None:
            self._tables[table.digest] = table
            while len(self._tables) > MAX_HISTORY:
                self._tables.popitem(last=False)
        tunable.forget_matches()
        self._statuses[tunable.id] = Status(
            order=order.id, artifact=order.artifact, epoch=order.epoch, table=table
        )
        while len(self._statuses) > MAX_HISTORY:
            self._statuses.popitem(last=False)
        recapture_s = self.captures.capture(tunable, most_s=CAPTURE_S)
        ledger.carried_out(order.id, epoch=order.epoch, artifact=None, flip_ns=int(1e3 * held_us))
        result = {
            "outcome": "engaged",
            "engaged": True,
            "mismatches": [],
            "pause_us": round(held_us, 1),
            "recapture_s": round(recapture_s, 3),
            "captured": list(tunable.captured_sizes),
            "reach": self.captures.reach(tunable),
        }
        self._remember(order.id, result)
        return result

    def housekeeping(self) -> None:
        """Capture what a table asks for and graphs do not have yet, where the moment allows it."""
        self.captures.align()
        self.steps.log.settle()
        for tunable in self.registry:
            self._warm_later(tunable)
            self.captures.complete(tunable)

    def _warm_later(self, tunable: Tunable) -> None:
        """Compile rules whose sizes were launched since their table came into force."""
        table = tunable.table
        if table is None or not tunable.cold:
            return
        ready = [rule for rule in tunable.cold if not tunable.rule_fits(rule)]
        if not ready:
            return
        try:
            _warm(tunable, dataclasses.replace(table, rules=tuple(ready)))
        except Refused as error:  # these sizes keep the server's choice until they are described
            log.info("rules of %s are not in force yet: %s", tunable.id, error)
            return
        if tunable.table is table:
            tunable.cold = tuple(rule for rule in tunable.cold if rule not in ready)

    def _done(self, order: TableOrder) -> dict[str, Any] | None:
        """Return the result of an order that is in force; None of one that came before another.

        A proposal that was rolled back may be ordered again, under a later epoch.
        """
        status = self._statuses.get(order.definition)
        in_force = status is not None and status.order == order.id
        return self._outcomes.get(order.id) if in_force else None

    def _repeated(self, order: TableOrder) -> None:
        """Adopt the later epoch of an order that is in force already."""
        status = self._statuses.get(order.definition)
        if status is not None and status.order == order.id and order.epoch > status.epoch:
            ledger = self._ledgers.setdefault(order.definition, Ledger())
            ledger.check(order.epoch)
            ledger.carried_out(order.id, epoch=order.epoch, artifact=None, flip_ns=0)
            self._statuses[order.definition] = dataclasses.replace(status, epoch=order.epoch)

    def _remember(self, order: str, result: dict[str, Any]) -> None:
        self._outcomes[order] = result
        while len(self._outcomes) > MAX_HISTORY:
            self._outcomes.popitem(last=False)

    def _read(self, request: Mapping[str, Any], kind: str) -> TableOrder:
        self._check_on()
        order = parse_order(
            request, trust=self._trust, read=lambda body, text: parse_table(body, text=text)
        )
        if order.kind != kind:
            raise Refused("order-invalid", detail=f"'kind' is {order.kind}, not {kind}")
        if order.definition != order.change.tunable:
            raise Refused("order-invalid", detail="'definition' is not the table's tunable")
        self._fence().admit(request)
        return order

    def _check_on(self) -> None:
        if not self._on:
            detail = "this server accepts no orders for tables: RETUNED_TUNED=off, or not turned on"
            raise Refused("tunables-off", detail=detail)

    def _of(self, order: TableOrder) -> Tunable:
        return self._known(order.definition)

    def _named(self, request: Mapping[str, Any]) -> Tunable:
        self._check_on()
        return self._known(str(request.get("id")))

    def _known(self, name: str) -> Tunable:
        found = self.registry.find(name)
        if found is None:
            raise Refused("unknown-tunable", detail=f"no launch of {name:.128} was seen here")
        return found


def _warm(tunable: Tunable, table: Table) -> None:
    """Compile a table's configurations on this thread.

    Raises
    ------
    Refused
        ``compile-failed``, or the tunable's own refusal.
    """
    try:
        _use_device()
        tunable.warm(table)
    except Refused:
        raise
    except Exception as error:  # whatever a compiler raises
        raise Refused("compile-failed", detail=repr(error)[:500]) from error


def _alike(step: Mapping[str, Any], axes: Mapping[str, int]) -> bool:
    """Whether a step has the kind and about the number of rows of a launch."""
    decode = int(all(each == 1 for each in step["queries"]))
    rows = sum(step["queries"])
    return decode == axes["decode"] and axes["rows"] <= 2 * rows and rows <= 2 * axes["rows"]


def _use_device() -> None:
    """Use the device of this process's server on this thread, the control thread."""
    torch = sys.modules.get("torch")
    index = device_in_use(torch) if torch is not None and torch.cuda.is_initialized() else None
    if torch is not None and index is not None:
        torch.cuda.set_device(index)
