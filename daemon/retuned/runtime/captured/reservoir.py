"""Reservoir of launch inputs, for experiments in other processes; filled only on request.

Of every shape one launch in many provides its activations; weights are never sampled. At the launch
the tensors are only cloned on their device, within a budget; the idle control thread converts them
to bytes. Without a request, launches have no cost: the counter is part of the route of a shape, and
routes are rebuilt when sampling starts and ends.
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
"""Shapes with samples; further ones are not sampled."""
MAX_PENDING = 2
"""Clones that wait for the control thread; with more, a launch is not sampled."""
LEAST_GAP_S = 0.5
"""Seconds between two clones of a slot, so that frequent launches do not add cost."""
CHUNK_BYTES = 4 << 20
"""Bytes of a tensor in one answer."""
_SPAN = {"every": 10**9, "samples": 64, "max_bytes": 1 << 30, "sample_bytes": 64 << 20}
"""Fields of a request, and their largest values."""

Run = Callable[..., Any]
_ODD = (AttributeError, IndexError, MemoryError, RuntimeError, TypeError, ValueError)
"""Exceptions of cloning inputs that are not the tensors of the definition, or without memory."""


@dataclass(frozen=True, slots=True)
class CaptureRule:
    every: int
    """One launch in this many is sampled, per shape."""
    samples: int
    """Samples per shape; later ones replace earlier ones at random, all with the same chance."""
    max_bytes: int
    """Maximum bytes of all samples."""
    sample_bytes: int
    """Largest sample; larger ones are not taken."""


@dataclass(frozen=True, slots=True)
class Sample:
    id: str
    """Random, so that ids of two processes differ."""
    key: Key
    tensors: tuple[tuple[str, str, tuple[int, ...], bytes], ...]

    @property
    def size(self) -> int:
        return sum(len(data) for *_, data in self.tensors)


@dataclass(slots=True)
class _Stratum:
    key: Key
    left: int
    place: int
    """Position of that launch in its block."""
    offered: int = 0
    kept: list[Sample] = field(default_factory=list)


@dataclass(slots=True)
class _Pending:
    stratum: _Stratum
    slot: int
    """Index among the stored samples; their count means a new one."""
    clones: list[tuple[str, Tensor]]
    done: Any
    """Event after the clones, on a device; None on the CPU."""


class Reservoir:
    """Samples of one slot."""

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
        stratum = self._stratum(key)
        if stratum is None:
            return run

        def sampled(*inputs: Tensor) -> Any:  # noqa: ANN401 - result of the kernel
            stratum.left -= 1
            if stratum.left <= 0:
                self._take(stratum, inputs)
            return run(*inputs)

        return sampled

    def settle(self) -> None:
        """Convert clones to bytes; called by the control thread when idle."""
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
        """Return the index for the launch's sample.

        Every offered sample has the same chance to stay.
        """
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
        with torch.cuda.device(device):  # the clones run on its current stream
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
    """Parse a requested rule; None ends the sampling.

    Raises
    ------
    Refused
        ``bad-request``.
    """
    body = request.get("rule")
    if body is None:
        return None
    if not isinstance(body, Mapping):
        raise Refused("bad-request", detail="'rule' must be an object or null")
    found = {}
    for name, most in _SPAN.items():
        value = body.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise Refused("bad-request", detail=f"'{name}' is not a whole number from 1 to {most}")
        found[name] = value
    return CaptureRule(**found)


def listing(samples: list[Sample]) -> list[dict[str, Any]]:
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
    raise Refused("unknown-sample", detail="it is not stored, or has been replaced")
