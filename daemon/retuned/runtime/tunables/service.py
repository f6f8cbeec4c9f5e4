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
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retuned.runtime.artifacts.trust import Trust
from retuned.runtime.core.environment import device_in_use
from retuned.runtime.core.epochs import MAX_HISTORY, Fence, Ledger
from retuned.runtime.schema import Refused
from retuned.runtime.tunables.attention import AttentionHook
from retuned.runtime.tunables.autotune import AutotunerHook
from retuned.runtime.tunables.graphs import GraphSets
from retuned.runtime.tunables.moe import MoeHook
from retuned.runtime.tunables.records import (
    Capture,
    Table,
    canonical,
    digest_of_text,
    parse_table,
)
from retuned.runtime.tunables.state import Registry, Tunable
from retuned.runtime.tunables.steps import Steps
from retuned.runtime.tuned_files.orders import ChangeOrder, parse_order

log = logging.getLogger(__name__)

TableOrder = ChangeOrder[Table]
FAMILIES = ("autotune", "attention", "moe")
MAX_PREPARED = 16
_TRIES = 3
"""Captures of a size that may fail before it is left alone."""
_LATER = frozenset({"server-busy", "no-safe-point"})
"""Refusals of a capture that say nothing about its size."""
_CAPTURE_S = 5.0
"""Captures of one order; further sizes follow at idle moments."""
_MAX_RECIPE_BYTES = 4 << 20
_VARIABLES = ("VLLM_", "SGLANG_", "TRITON_", "TORCHINDUCTOR_", "CUDA_", "HIP_", "LD_LIBRARY_PATH")
"""Variables that an experiment in this server's environment needs."""
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")


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
    """

    def __init__(
        self, *, trust: Trust, fence: Callable[[], Fence], may_record: bool = False
    ) -> None:
        self._trust, self._fence = trust, fence
        self._on = False
        self.registry = Registry()
        self.registry.may_record = may_record
        self.steps = Steps()
        self._graphs = GraphSets(self.registry)
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
            return
        sizes = [size for each in self.registry for size in each.captured_sizes]

        def restore(worker: Any) -> None:  # noqa: ANN401 - the server's
            for each in self.registry:
                each.put(None)
            if worker is not None:
                self._graphs.restore(worker, sizes)
                self._graphs.forget()

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
        self._graphs.after_fork()
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
            "ways": {"next-call": "on", "recapture": self._graphs.way(self.steps.worker)},
            "refused": tunable.refused,
            "recorded": len(tunable.recipes),
            "recording": tunable.recording,
            "table": in_force,
        }

    def _file_report(self, name: str) -> dict[str, Any]:
        status, tunable = self._statuses[name], self.registry.find(name)
        held = {"state": "lost", "reason": "table-replaced"}
        if tunable is not None and tunable.table is status.table:
            held = self._held(tunable, status.table)
        return {
            "definition": name,
            "order": status.order,
            "artifact": status.artifact or None,
            "epoch": status.epoch,
            **held,
            "detail": "",
            "reach": self._reach(tunable) if tunable is not None else "all",
        }

    def _held(self, tunable: Tunable, table: Table | None) -> dict[str, str]:
        """Return whether launches of a tunable still pass where its table acts."""
        hook = dict(zip(FAMILIES, self.hooks, strict=True)).get(tunable.family)
        if table is not None and hook is not None and not hook.in_place():
            return {"state": "lost", "reason": "hook-replaced"}
        return {"state": "engaged", "reason": ""}

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
        every = list(tunable.recipes.values())
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
            held = self._held(tunable, order.change)
            if held["reason"]:
                detail = "other code has replaced the runtime's hook on this family"
                raise Refused(held["reason"], detail=detail)
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
        sizes = tunable.captured_sizes

        unseen = [] if table is None else [r for r in table.rules if tunable.rule_fits(r)]

        def exchange(worker: Any) -> None:  # noqa: ANN401 - the server's
            if sizes and worker is not None:
                self._graphs.restore(worker, sizes)
                self._recaptured_later(sizes)
            tunable.put(table, cold=unseen)
            again = self._graphs.again(table.captures, tables=self._in_force()) if table else []
            tunable.captured_sizes = tuple(again)

        _, held_us = self.steps.at_safe_point(exchange)
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
        recapture_s = self._capture(tunable, most_s=_CAPTURE_S)
        ledger.carried_out(order.id, epoch=order.epoch, artifact=None, flip_ns=int(1e3 * held_us))
        result = {
            "outcome": "engaged",
            "engaged": True,
            "mismatches": [],
            "pause_us": round(held_us, 1),
            "recapture_s": round(recapture_s, 3),
            "captured": list(tunable.captured_sizes),
            "reach": self._reach(tunable),
        }
        self._remember(order.id, result)
        return result

    def _capture(self, tunable: Tunable, *, most_s: float = 0.0) -> float:
        """Capture the table's sizes again while the server is idle; return the seconds.

        One size at a time, each at a safe point of its own: a request that arrives waits for one.

        Parameters
        ----------
        most_s
            No further size begins after this time.
        """
        total_s = 0.0
        if self.steps.worker is None:
            return total_s
        for each in self._missing(tunable):
            try:
                done, held_us = self.steps.at_safe_point(self._capturing(each))
            except Refused as error:
                log.info("graphs of %s stay as they are: %s", tunable.id, error)
                if error.reason not in _LATER:
                    tunable.uncaptured[each.size] = tunable.uncaptured.get(each.size, 0) + 1
                break
            if not done:
                tunable.uncaptured[each.size] = _TRIES  # no graph has this size
            tunable.captured_sizes = (*tunable.captured_sizes, *done)
            total_s += held_us / 1e6
            if total_s >= most_s:
                break
        return total_s

    def _missing(self, tunable: Tunable) -> list[Capture]:
        """Return the sizes that a table asks for and graphs do not have, as far as it can be."""
        return [
            each
            for each in _captures(tunable)
            if each.size not in tunable.captured_sizes
            and tunable.uncaptured.get(each.size, 0) < _TRIES
        ]

    def _capturing(self, wanted: Capture) -> Callable[[Any], list[int]]:
        def capture(worker: Any) -> list[int]:  # noqa: ANN401 - the server's
            try:
                return self._graphs.capture(worker, [wanted], tables=self._in_force())
            except Refused:
                raise
            except Exception as error:  # such as no memory: the old graphs stay in force
                raise Refused("capture-failed", detail=repr(error)[:300]) from error

        return capture

    def _recaptured_later(self, sizes: Sequence[int]) -> None:
        """Note that graphs of these sizes are the server's own again, for every tunable."""
        for each in self.registry:
            kept = [size for size in each.captured_sizes if size not in sizes]
            each.captured_sizes = tuple(kept)

    def _in_force(self) -> str:
        """Name all tables in force: a captured graph holds the choices of all."""
        tables = {each.id: each.table.digest for each in self.registry if each.table is not None}
        return digest_of_text(canonical(tables))

    def housekeeping(self) -> None:
        """Capture at an idle moment what a table asks for and graphs do not have yet."""
        for tunable in self.registry:
            self._warm_later(tunable)
            if self.steps.idle() and self._missing(tunable):
                self._capture(tunable)

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

    def _reach(self, tunable: Tunable) -> str:
        """Return whether graphs still launch what was in force before where rules apply."""
        table = tunable.table
        if table is None or not tunable.is_captured(table):
            return "all"
        wanted = {each.size for each in _captures(tunable)}
        return "all" if wanted and wanted <= set(tunable.captured_sizes) else "needs-recapture"

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


def _captures(tunable: Tunable) -> Sequence[Capture]:
    return tunable.table.captures if tunable.table is not None else ()


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


def environment() -> dict[str, Any]:
    """Return what an experiment in this server's environment needs."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("torch", "triton", "vllm", "sglang"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            versions[name] = str(version)
    variables = {
        name: value[:4096]
        for name, value in os.environ.items()
        if name.startswith(_VARIABLES) and not any(word in name.upper() for word in _SECRET)
    }
    return {
        "pid": os.getpid(),
        "executable": sys.executable,
        "path": [each for each in sys.path if each],
        "flags": {
            "no_site": sys.flags.no_site,
            "safe_path": getattr(sys.flags, "safe_path", False),
        },
        "versions": versions,
        "variables": variables,
        "device": _device(),
    }


def _device() -> dict[str, Any] | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    index = device_in_use(torch)
    if index is None:
        return None
    known = torch.cuda.get_device_properties(index)
    free, _ = torch.cuda.mem_get_info(index)
    return {
        "index": index,
        "name": known.name,
        "uuid": str(getattr(known, "uuid", "")),
        "memory_free_bytes": free,
    }
