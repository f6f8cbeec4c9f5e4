"""Samples of what launches are given, for experiments elsewhere; nothing is taken unless asked for.

Of every shape one launch in many gives its activations; weights are never taken. On the launch
itself the tensors are only cloned where they lie, within a budget; the control thread makes bytes
of them when it is idle. Without a request, no launch pays anything: the counter is part of the
route of a shape, and routes are rebuilt when sampling begins and ends.
"""

from __future__ import annotations

import base64
import ctypes
import logging
import random
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from retuned.runtime.schema import Key, Refused, Spec, Tensor

log = logging.getLogger(__name__)

MAX_KEYS = 64
"""Shapes that samples are kept of; later ones are not sampled."""
MAX_PENDING = 2
"""Clones that wait for the control thread; a launch that finds more gives nothing."""
LEAST_GAP_S = 0.5
"""Between two clones of a slot: a server that launches often pays no oftener."""
CHUNK_BYTES = 4 << 20
"""Bytes of a tensor in one answer."""
_SPAN = {"every": 10**9, "samples": 64, "max_bytes": 1 << 30, "sample_bytes": 64 << 20}
"""What may be asked for, and its largest value."""

Run = Callable[..., Any]
_ODD = (AttributeError, IndexError, MemoryError, RuntimeError, TypeError, ValueError)
"""What cloning raises of inputs that are not the tensors of the definition, or without memory."""


@dataclass(frozen=True, slots=True)
class CaptureRule:
    """How much is taken of one slot."""

    every: int
    """One launch in so many, per shape."""
    samples: int
    """Kept per shape; later ones replace earlier ones at random, all with the same chance."""
    max_bytes: int
    """Kept in all."""
    sample_bytes: int
    """Largest sample; what is larger is not taken."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Activations of one launch."""

    id: str
    """Random, so that two processes never share one."""
    key: Key
    """Lengths of the variable axes."""
    tensors: tuple[tuple[str, str, tuple[int, ...], bytes], ...]
    """Name, element type, shape and bytes of each."""

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(len(data) for *_, data in self.tensors)


@dataclass(slots=True)
class _Stratum:
    """One shape."""

    key: Key
    left: int
    """Launches until the next one gives."""
    place: int
    """Where in its block that one is."""
    offered: int = 0
    kept: list[Sample] = field(default_factory=list)


@dataclass(slots=True)
class _Pending:
    stratum: _Stratum
    slot: int
    """Place among the kept ones; their count means a further one."""
    clones: list[tuple[str, Tensor]]
    done: Any
    """Event after the clones, on a device; None on the CPU."""


class Reservoir:
    """Samples of one slot.

    Parameters
    ----------
    spec
        The slot's definition.
    rule
        How much.
    random_source
        Seeded in tests.
    now_s
        Monotonic clock, seconds.
    """

    def __init__(
        self,
        spec: Spec,
        rule: CaptureRule,
        *,
        random_source: random.Random | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rule = rule
        self._spec = spec
        self._wanted = [(index, s) for index, s in enumerate(spec.inputs) if not s.constant]
        self._random = random_source or random.SystemRandom()
        self._now_s = now_s
        self._last_s = float("-inf")
        self._strata: dict[Key, _Stratum] = {}
        self._pending: list[_Pending] = []
        self._lock = threading.Lock()

    def wrap(self, key: Key, run: Run) -> Run:
        """Return what a launch of these lengths calls: `run`, and sometimes a clone before it."""
        stratum = self._stratum(key)
        if stratum is None:
            return run

        def sampled(*inputs: Tensor) -> Any:  # noqa: ANN401 - whatever the kernel returns
            stratum.left -= 1
            if stratum.left <= 0:
                self._take(stratum, inputs)
            return run(*inputs)

        return sampled

    def settle(self) -> None:
        """Make bytes of what was cloned; called by the control thread when idle."""
        while self._pending:
            waiting = self._pending[0]
            try:
                if waiting.done is not None:
                    waiting.done.synchronize()
                sample = _as_bytes(waiting.stratum.key, waiting.clones)
                with self._lock:
                    self._keep(waiting, sample)
            except _ODD as error:
                log.warning("%s: a sample of inputs is lost: %r", self._spec.name, error)
            finally:
                self._pending.pop(0)

    def samples(self) -> list[Sample]:
        """Return everything that is kept."""
        with self._lock:
            return [sample for stratum in self._strata.values() for sample in stratum.kept]

    def _stratum(self, key: Key) -> _Stratum | None:
        with self._lock:
            known = self._strata.get(key)
            if known is None and len(self._strata) < MAX_KEYS:
                place = self._random.randrange(self.rule.every)
                known = self._strata[key] = _Stratum(key, left=place + 1, place=place)
            return known

    def _take(self, stratum: _Stratum, inputs: tuple[Tensor, ...]) -> None:
        """Clone the activations of a launch, if it is chosen and nothing speaks against it."""
        with self._lock:
            place = self._random.randrange(self.rule.every)
            stratum.left = self.rule.every - stratum.place + place
            stratum.place = place
            stratum.offered += 1
            slot = self._place_of(stratum)
            now_s = self._now_s()
            busy = len(self._pending) >= MAX_PENDING or now_s - self._last_s < LEAST_GAP_S
            if slot is None or busy:
                return
            self._last_s = now_s
        try:
            found = self._clones(stratum.key, inputs)
        except _ODD as error:
            log.info("%s: a launch gave no sample: %r", self._spec.name, error)
            return
        if found is not None:
            self._pending.append(_Pending(stratum, slot, *found))

    def _place_of(self, stratum: _Stratum) -> int | None:
        """Return where the launch's sample goes; every one offered has the same chance to stay."""
        waiting = sum(each.stratum is stratum for each in list(self._pending))
        if len(stratum.kept) + waiting < self.rule.samples:
            return len(stratum.kept) + waiting
        place = self._random.randrange(stratum.offered)
        return place if place < self.rule.samples else None

    def _clones(
        self, key: Key, inputs: tuple[Tensor, ...]
    ) -> tuple[list[tuple[str, Tensor]], Any] | None:
        torch = sys.modules.get("torch")
        if torch is None or 0 in key:
            return None
        lengths = self._spec.lengths(key)
        chosen, size = [], 0
        for index, spec in self._wanted:
            value = inputs[index]
            shape = tuple(lengths[axis] for axis in spec.shape)
            kind = str(value.dtype).removeprefix("torch.")
            if not isinstance(value, torch.Tensor) or tuple(value.shape) != shape:
                return None
            size += value.numel() * value.element_size()
            if kind != spec.dtype or size > self.rule.sample_bytes:
                return None
            chosen.append((spec.name, value))
        device = next((value.device for _, value in chosen if value.is_cuda), None)
        if not chosen:
            return None
        if device is None:
            return _copied(torch, chosen), None
        with torch.cuda.device(device):  # the clones are on its stream, whichever is current
            if torch.cuda.is_current_stream_capturing():
                return None
            clones = _copied(torch, chosen)
            done = torch.cuda.Event()
            done.record()
        return clones, done

    def _keep(self, waiting: _Pending, sample: Sample) -> None:
        kept = waiting.stratum.kept
        replaced = kept[waiting.slot].size if waiting.slot < len(kept) else 0
        total = sum(s.size for stratum in self._strata.values() for s in stratum.kept)
        if total - replaced + sample.size > self.rule.max_bytes:
            return
        kept[waiting.slot : waiting.slot + 1] = [sample]


def _copied(
    torch: Any,  # noqa: ANN401 - the module
    chosen: list[tuple[str, Tensor]],
) -> list[tuple[str, Tensor]]:
    with torch.inference_mode():
        return [(name, value.detach().clone()) for name, value in chosen]


def _as_bytes(key: Key, clones: list[tuple[str, Tensor]]) -> Sample:
    made = []
    for name, clone in clones:
        value = clone.cpu().contiguous()
        size = value.numel() * value.element_size()
        data = ctypes.string_at(value.data_ptr(), size) if size else b""
        made.append((name, str(value.dtype).removeprefix("torch."), tuple(value.shape), data))
    return Sample(secrets.token_hex(8), key, tuple(made))


def parse_rule(request: Mapping[str, Any]) -> CaptureRule | None:
    """Read what is asked for; None ends the sampling.

    Raises
    ------
    Refused
        ``bad-request``.
    """
    said = request.get("rule")
    if said is None:
        return None
    if not isinstance(said, Mapping):
        raise Refused("bad-request", detail="'rule' is neither an object nor null")
    found = {}
    for name, most in _SPAN.items():
        value = said.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise Refused("bad-request", detail=f"'{name}' is not a whole number from 1 to {most}")
        found[name] = value
    return CaptureRule(**found)


def listing(samples: list[Sample]) -> list[dict[str, Any]]:
    """Return what the samples are, without their bytes."""
    return [
        {
            "id": sample.id,
            "key": list(sample.key),
            "tensors": [
                {"name": name, "dtype": dtype, "shape": list(shape), "bytes": len(data)}
                for name, dtype, shape, data in sample.tensors
            ],
        }
        for sample in samples
    ]


def chunk(samples: list[Sample], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of one tensor, in base64.

    Raises
    ------
    Refused
        ``unknown-sample`` if another one has replaced it; ``bad-request``.
    """
    start = request.get("offset", 0)
    if not isinstance(start, int) or isinstance(start, bool) or start < 0:
        raise Refused("bad-request", detail="'offset' is not a whole number of 0 or more")
    for sample in samples:
        for name, _, _, data in sample.tensors:
            if (sample.id, name) == (request.get("sample"), request.get("tensor")):
                part = data[start : start + CHUNK_BYTES]
                return {"data": base64.b64encode(part).decode("ascii")}
    raise Refused("unknown-sample", detail="it is not kept, or not any more")
