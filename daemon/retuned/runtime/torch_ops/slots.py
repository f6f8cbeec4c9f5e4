"""Slots behind an operator of the dispatcher.

A launch finds its slot by its lengths, element type and numbers. The original serves a launch that
does not match a definition, counted by reason. Unchanged launches call the original with exactly
the passed arguments. Changed launches go to the slot as its definition has them. A variant writes
directly to the operator's own output if that is safe, else to separate memory that is copied.
Operands that are read and written are always copied, because a variant was validated with outputs
separate from its inputs. If anything fails here, the original runs, once.

`Operators` keeps the overridden operators of a runtime, and the reasons of the others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from operator import itemgetter
from threading import local
from typing import Any

from retuned.runtime.artifacts.loaded import Allocate, loaded_torch
from retuned.runtime.core.slots import Slot
from retuned.runtime.core.tables import Run
from retuned.runtime.schema import Refused, Tensor, parse_spec
from retuned.runtime.torch_ops.binding import FORMS, Binding
from retuned.runtime.torch_ops.frames import Frame, Keyset, OperatorSlot, Plan, deliver
from retuned.runtime.torch_ops.override import (
    KEYS,
    Arguments,
    Body,
    Override,
    find,
    plan_of,
    same_schema,
)

log = logging.getLogger(__name__)

MAX_SEATS = 8192
"""Launches distinguished by lengths and numbers; beyond it the cache of an operator is cleared."""
MAX_SLOTS = 64
MAX_FAULTS = 3
"""Failures of Retuned, not of a variant, before an operator forwards everything to the original."""

Adopt = Callable[[Slot], None]
"""Puts a slot under control; raises `Refused`."""
Seat = tuple[Slot, Any, Run, Plan]
"""Slot, its key for these lengths, its original, and how the arguments become its tensors."""


_Nobody = tuple[None, None, None, None]
_NOBODY: _Nobody = (None, None, None, None)
"""The entry of launches that the original serves."""


class _Here(local):
    frame: Frame | None = None


class BoundOperator:
    """One operator at one key, with a slot per definition of its launches.

    Raises
    ------
    Refused
        ``schema-differs``, ``binding-invalid``, or as `find` and `Override`.
    """

    def __init__(self, binding: Binding, key: str, *, adopt: Adopt) -> None:
        operator = find(binding.operator)
        if not same_schema(operator, binding.schema):
            raise Refused("schema-differs", detail=f"{operator._schema} is not {binding.schema}")
        self.binding = binding
        self.key = key
        self.slots: dict[str, OperatorSlot] = {}
        self.passed: dict[str, int] = {}
        """Launches that match no definition, by reason."""
        self.faults = 0
        """Launches that failed in this module and were served by the original."""
        self._arguments = Arguments(binding, operator._schema)
        self._adopt = adopt
        self._seats: dict[Any, Seat] = {}
        self._passing: dict[Any, str] = {}
        self._here = _Here()
        self._torch = loaded_torch()
        self.override = Override(operator, key, self._body)

    def state(self) -> dict[str, Any]:
        state = "on" if self.override.active else "overridden-since"
        return {
            "operator": self.binding.operator,
            "key": self.key,
            "state": "faulty" if self.faults >= MAX_FAULTS else state,
            "definitions": sorted(self.slots),
            "passed": dict(self.passed),
            "faults": self.faults,
        }

    def destroy(self) -> None:
        self.override.destroy()

    # --- the hot path -----------------------------------------------------------------------------

    def _body(self, boxed: Body) -> Body:
        arguments = self._arguments
        call = arguments.caller(boxed)
        self._call = call
        seats, identify, first, through = self._seats, self._identity(), self._first, self._through
        weight = arguments.weight

        def launch(keyset: Keyset, *args: Any) -> Any:  # noqa: ANN401 - as the operator
            seat: Any
            run: Any
            try:
                seat = seats[identify(args)]
                slot = seat[0]
                cell, run = slot._table[seat[1]]
                if weight is not None and id(args[weight]) not in slot._constants:
                    self._note(seat, args)
                cell[0] += 1
            except Exception as error:  # usually new lengths; in any case the original runs
                seat, run = first(keyset, args, error)
            if run is seat[2]:
                return call(keyset, args)
            return through(seat, run, keyset, args)

        if not arguments.varied:
            return launch

        def filled(keyset: Keyset, *args: Any, **named: Any) -> Any:  # noqa: ANN401 - as above
            return launch(keyset, *arguments.filled(args, named))

        return filled

    def _identity(self) -> Callable[[Sequence[Any]], Any]:
        """Return the function that identifies a launch: lengths, element types and every number."""
        shown, values = self._arguments.shown, self._arguments.values
        typed, weight = self._arguments.typed, self._arguments.weight
        other = typed if weight is None else weight  # may be None if the operator allows it
        numbers = itemgetter(*values) if values else _nothing

        def identify_one(args: Sequence[Any]) -> Any:  # noqa: ANN401 - a key
            tensor = args[typed]
            return tensor.shape, tensor.dtype, args[other].dtype, numbers(args)

        def identify(args: Sequence[Any]) -> Any:  # noqa: ANN401 - a key
            shapes = tuple([args[place].shape for place in shown])
            return shapes, args[typed].dtype, args[other].dtype, numbers(args)

        return identify_one if shown == (typed,) else identify

    def _first(
        self, keyset: Keyset, args: tuple[Any, ...], error: Exception
    ) -> tuple[Seat | _Nobody, Run | None]:
        """Find the entry of a new kind of launch, also for those that follow; never raises."""
        if self.faults >= MAX_FAULTS:
            return _NOBODY, None
        try:
            if not isinstance(error, KeyError):  # not the tensors of the schema
                self._pass("unreadable")
                return _NOBODY, None
            seat = self._seat(keyset, args)
            if seat is None:
                return _NOBODY, None
            cell, run = seat[0]._table[seat[1]]
            self._note(seat, args)
            cell[0] += 1
        except Exception as fault:  # untrusted arguments: the original serves
            self._fault(fault)
            return _NOBODY, None
        return seat, run

    def _through(self, seat: Seat, run: Run, keyset: Keyset, args: tuple[Any, ...]) -> Any:  # noqa: ANN401
        """Run the active kernel of a slot, on tensors as its definition has them."""
        try:
            frame = self._arguments.frame(seat[3], keyset, args)
        except Exception as error:  # usually strides that no view can have
            if isinstance(error, RuntimeError):
                self._pass("tensor-kind")
            else:
                self._failed(seat[0], error)
            return self._call(keyset, args)
        outer, self._here.frame = self._here.frame, frame
        try:
            ready = frame.ready(run(*frame.inputs))
        except Exception as error:
            if error is frame.failure:
                raise  # the original's own
            self._failed(seat[0], error)
            return frame.raw if frame.done else self._call(keyset, args)
        finally:
            self._here.frame = outer
        if ready is None:
            return frame.raw
        # From here on only a broken device fails, and there the original would raise, too.
        deliver(self._torch, frame, ready)
        return self._arguments.answer(args, ready)

    # --- slots ------------------------------------------------------------------------------------

    def _seat(self, keyset: Keyset, args: tuple[Any, ...]) -> Seat | None:
        identity = self._identity()(args)
        reason = self._passing.get(identity)
        if reason is None:
            try:
                return self._seated(identity, keyset, args)
            except Refused as refused:
                log.info("%s keeps its kernel: %s", self.binding.operator, refused)
                reason = refused.reason
                _room(self._passing)
                self._passing[identity] = reason
        self._pass(reason)
        return None

    def _seated(self, identity: Any, keyset: Keyset, args: tuple[Any, ...]) -> Seat:  # noqa: ANN401
        arguments = self._arguments
        dtype = arguments.dtype_of(args)
        if dtype not in FORMS:
            raise Refused("dtype-differs", detail=f"{dtype} is not one of {sorted(FORMS)}")
        lengths = self.binding.lengths(*arguments.read(args))
        definition = self.binding.definition(lengths, dtype=dtype)
        slot = self.slots.get(definition["name"])
        if slot is None:
            slot = self._slot(definition, keyset, args)
        key = tuple(lengths[axis] for axis in self.binding.variable)
        seat = (
            slot,
            key[0] if len(key) == 1 else key,
            slot.original,
            plan_of(arguments, lengths, args),
        )
        _room(self._seats)
        self._seats[identity] = seat
        return seat

    def _slot(self, definition: Any, keyset: Keyset, args: tuple[Any, ...]) -> OperatorSlot:  # noqa: ANN401
        if len(self.slots) >= MAX_SLOTS:
            raise Refused("too-many-slots", detail=f"there are {MAX_SLOTS} already")
        spec = parse_spec(definition)
        pattern = self._arguments.pattern(args)

        def original(*inputs: Tensor) -> Any:  # noqa: ANN401 - output or tuple of them
            frame = self._here.frame
            if frame is None or not frame.takes(inputs):
                return self._arguments.aside(self._call, keyset, pattern, inputs, spec)
            frame.serve(self._call)
            return self._arguments.outputs(frame.outputs, frame.raw)

        slot = OperatorSlot(spec, original, into=self._into, in_place=bool(self.binding.in_place))
        first = self.slots.setdefault(spec.name, slot)  # another thread may have created it
        if first is slot:
            try:
                self._adopt(slot)
            except Refused:
                del self.slots[spec.name]
                raise
        return first

    def _into(self, allocate: Allocate) -> Allocate:
        """Return an allocator that returns the operator's own outputs where a variant may write."""
        here = self._here

        def into(shape: tuple[int, ...], *, dtype: Any) -> Tensor:  # noqa: ANN401 - torch.dtype
            frame = here.frame
            given = None if frame is None else frame.give(shape, dtype)
            return allocate(shape, dtype=dtype) if given is None else given

        return into

    def _note(self, seat: Seat, args: tuple[Any, ...]) -> None:
        slot = seat[0]
        if slot.spec.constant_inputs:  # weights are recorded as they were passed
            slot.note(tuple([args[place] for place, _ in seat[3].inputs]))

    # --- failures ---------------------------------------------------------------------------------

    def _pass(self, reason: str) -> None:
        self.passed[reason] = self.passed.get(reason, 0) + 1

    def _fault(self, error: Exception) -> None:
        self.faults += 1
        log.warning("%s: the original runs: %r", self.binding.operator, error)
        if self.faults >= MAX_FAULTS:  # several threads may exceed it at the same time
            self._seats.clear()
            log.error("%s: not changed after %d failures", self.binding.operator, MAX_FAULTS)

    def _failed(self, slot: Slot, error: Exception) -> None:
        """Count a failure around a launch that an order had changed.

        The order trips after a few.
        """
        count = getattr(slot.table.in_force, "count_error", None)
        if count is not None:
            count(error)
        else:
            self._fault(error)


def _room(seats: dict[Any, Any]) -> None:
    if len(seats) >= MAX_SEATS:
        seats.clear()


def _nothing(_: Sequence[Any]) -> None:
    """Replace the numbers of an operator that takes none."""


class Operators:
    """Operators of one runtime.

    Parameters
    ----------
    adopt
        Puts the slot of a definition under control; raises `Refused`.
    """

    def __init__(self, adopt: Adopt) -> None:
        self._adopt = adopt
        self._bound: dict[tuple[str, str], BoundOperator] = {}
        self._refused: dict[tuple[str, str], str] = {}
        self.renew()

    def renew(self) -> None:
        self._lock = threading.Lock()

    def install(self, bindings: Sequence[Binding]) -> dict[str, str]:
        """Override operators at every key that they have a kernel for.

        Returns
        -------
        dict
            ``on`` or a reason code, by operator and key, such as ``_C::rms_norm/CUDA``.
        """
        states: dict[str, str] = {}
        with self._lock:
            for binding in bindings:
                found = {key: self._install(binding, key) for key in KEYS}
                known = {key: state for key, state in found.items() if state != "key-missing"}
                for key, state in (known or found).items():
                    states[f"{binding.operator}/{key}"] = state
        return states

    def states(self) -> list[dict[str, Any]]:
        refused = [
            {"operator": operator, "key": key, "state": reason}
            for (operator, key), reason in list(self._refused.items())
        ]
        return [*(bound.state() for bound in list(self._bound.values())), *refused]

    def close(self) -> None:
        with self._lock:
            for bound in self._bound.values():
                bound.destroy()
            self._bound.clear()
            self._refused.clear()

    def _install(self, binding: Binding, key: str) -> str:
        at = binding.operator, key
        if at in self._bound:
            return "on"
        try:
            self._bound[at] = BoundOperator(binding, key, adopt=self._adopt)
        except Refused as refused:
            if refused.reason != "key-missing":  # most operators have a kernel for one key only
                log.info("%s at %s is not overridden: %s", *at, refused)
                self._refused[at] = refused.reason
            return refused.reason
        self._refused.pop(at, None)
        return "on"
