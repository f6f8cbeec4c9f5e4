"""Captured inputs over the runtime's control socket, process by process; and a fake for tests.

The description of a sample is checked against the definition before its bytes are requested, and
received bytes always count against the budget.
"""

from __future__ import annotations

import base64
import binascii
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from retuned.contract import Definition
from retuned.errors import CandidateError, TemporaryError
from retuned.lab.subject import numpy_dtype, shape_of
from retuned.ports import CapturedInputs, CapturedTensor, CaptureRule
from retuned.runtime_client.client import RuntimeSocket

__all__ = ["FakeInputTap", "RuntimeCaptures"]

log = logging.getLogger(__name__)

MOST_SAMPLES = 256
"""Samples of one process that are read."""
_RETRY_S = 1.0


class RuntimeCaptures:
    """An `InputTap` over the sockets of a server.

    Parameters
    ----------
    path
        A socket, or a folder of ``<pid>.sock``.
    """

    def __init__(self, path: Path) -> None:
        self._server = RuntimeSocket(path)

    def listen(self, definition: str, rule: CaptureRule | None) -> None:
        """Send the rule to every process; see `InputTap.listen`."""
        body = None if rule is None else asdict(rule)
        self._server.ask({"op": "capture", "definition": definition, "rule": body})

    def captured(self, definition: Definition, *, max_bytes: int) -> Sequence[CapturedInputs]:
        """Fetch from every process; see `InputTap.captured`."""
        left = max_bytes
        found: list[CapturedInputs] = []
        for path in self._server.processes():
            process = RuntimeSocket(path)
            request = {"op": "captured", "definition": definition.name}
            (answer,) = process.ask(request)
            for entry in _entries(answer):
                sample = _described(entry, definition)
                if sample is None or sample.size > left:
                    continue
                fetched = _fetched(process, definition, sample)
                if fetched is not None:
                    left -= sample.size
                    found.append(fetched)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    """A sample whose description fits the definition."""

    id: str
    axes: dict[str, int]
    tensors: dict[str, tuple[str, tuple[int, ...], int]]
    """Element type, shape and bytes."""

    @property
    def size(self) -> int:
        return sum(size for *_, size in self.tensors.values())


def _entries(answer: Mapping[str, Any]) -> list[Any]:
    entries = answer.get("samples")
    return entries[:MOST_SAMPLES] if isinstance(entries, list) else []


def _described(entry: object, definition: Definition) -> _Described | None:
    """Parse the description of a sample; None if it does not fit the definition."""
    try:
        if not isinstance(entry, dict):
            raise TypeError("it is not an object")
        key = [_length(length) for length in entry["key"]]
        axes = dict(zip(definition.variable_axes, key, strict=True))
        lengths = definition.lengths(axes)
        sizes = {}
        for name, spec in definition.inputs.items():
            if spec.constant:
                continue
            shape = shape_of(spec, lengths)
            size = math.prod(shape) * numpy_dtype(spec).itemsize
            sizes[name] = (str(spec.dtype), shape, size)
        found = {
            str(t["name"]): (str(t["dtype"]), tuple(t["shape"]) or (1,)) for t in entry["tensors"]
        }
        if found != {name: each[:2] for name, each in sizes.items()}:
            return None
        return _Described(id=str(entry["id"])[:64], axes=axes, tensors=sizes)
    except (KeyError, TypeError, ValueError) as error:
        log.warning("%s: a sample is skipped: %r", definition.name, error)
        return None


def _length(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 2**40:
        raise ValueError(f"{value!r:.40} is not a length")
    return value


def _fetched(
    process: RuntimeSocket, definition: Definition, sample: _Described
) -> CapturedInputs | None:
    """Fetch the bytes; None if the sample was replaced, or differs from its description."""
    tensors = {}
    for name, (dtype, shape, size) in sample.tensors.items():
        data = b""
        while len(data) < size:
            request = {
                "op": "captured-tensor",
                "definition": definition.name,
                "sample": sample.id,
                "tensor": name,
                "offset": len(data),
            }
            try:
                (answer,) = process.ask(request)
                part = base64.b64decode(str(answer.get("data")), validate=True)
            except (CandidateError, binascii.Error, ValueError) as error:
                log.info("%s: a sample was replaced: %s", definition.name, error)
                return None
            if not part or len(data) + len(part) > size:
                log.warning("%s: a sample differs from its described size", definition.name)
                return None
            data += part
        tensors[name] = CapturedTensor(dtype=dtype, shape=shape, data=data)
    return CapturedInputs(axes=sample.axes, tensors=tensors)


@dataclass(slots=True)
class FakeInputTap:
    """Returns the samples that a test has set, once a listener is set."""

    samples: dict[str, list[CapturedInputs]] = field(default_factory=dict)
    """By slot."""
    slots: Sequence[str] = ()
    away: bool = False
    """Whether the server does not answer."""
    forbidden: bool = False
    """Whether the server's owner forbids it."""
    listening: dict[str, CaptureRule] = field(default_factory=dict)
    """Requested rules."""

    def listen(self, definition: str, rule: CaptureRule | None) -> None:
        """Record the rule; see `InputTap.listen`."""
        self._check(definition)
        if rule is None:
            self.listening.pop(definition, None)
            return
        if self.forbidden:
            raise CandidateError("capture-forbidden", detail="as the test wished")
        self.listening[definition] = rule

    def captured(self, definition: Definition, *, max_bytes: int) -> Sequence[CapturedInputs]:
        """Return the samples while a listener is set; see `InputTap.captured`."""
        self._check(definition.name)
        if definition.name not in self.listening:
            return []
        found, left = [], max_bytes
        for sample in self.samples.get(definition.name, []):
            size = sum(len(tensor.data) for tensor in sample.tensors.values())
            if size <= left:
                found.append(sample)
                left -= size
        return found

    def _check(self, definition: str) -> None:
        if self.away:
            raise TemporaryError("the fake server is away", delay_s=_RETRY_S)
        if definition not in self.slots:
            raise CandidateError("unknown-slot", detail=definition)
