"""The parent's handle on a reference: a child that computes outputs in float64, or is killed."""

from __future__ import annotations

import json
import math
import os
import select
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retuned.contract import Definition
from retuned.errors import HarnessError
from retuned.lab.harness.processes import Child, fresh
from retuned.lab.subject import Array, shape_of

_PROGRAM = Path(__file__).with_name("child.py")
_ROOT = Path(__file__).resolve().parents[3]
_LONGEST_LINE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceLimits:
    """Bounds of the child that runs a reference."""

    start_s: float = 30.0
    """To be ready; a loaded machine starts slowly."""
    call_s: float = 60.0
    """Wall time of one call."""
    cpu_s: int = 1800
    """Processor time of the child's whole life."""
    memory_bytes: int = 16 * 2**30
    """Memory beyond what it has when ready."""


class Oracle:
    """Computes a definition's outputs by its reference, in a child started when first needed.

    Parameters
    ----------
    definition
        Its reference passed `check_reference`; the child checks it again.
    limits
        Bounds.
    """

    def __init__(self, definition: Definition, *, limits: ReferenceLimits | None = None) -> None:
        self._definition = definition
        self._limits = limits or ReferenceLimits()
        self._lock = threading.Lock()
        self._child: _Process | None = None
        self.confined = False

    def compute(self, /, **inputs: Array) -> dict[str, Array]:
        """Return every output in float64.

        Raises
        ------
        HarnessError
            If the reference fails, takes too long, needs too much memory or returns something else
            than the definition says: nothing can be concluded about anybody's kernel then.
        """
        lengths = self._lengths(inputs)
        with self._lock:
            try:
                child = self._started()
                answers = child.call(inputs, list(self._definition.outputs), self._limits.call_s)
            except _Broken as error:
                self._stop()
                raise self._failed(str(error)) from error
        found = {}
        for name, spec in self._definition.outputs.items():
            shape = shape_of(spec, lengths)
            array = answers[name]
            if array.shape != shape and not (array.shape == () and shape == (1,)):
                raise self._failed(f"returns '{name}' with shape {array.shape}, expected {shape}")
            found[name] = array.reshape(shape)
        return found

    def close(self) -> None:
        """End the child; the next call starts another."""
        with self._lock:
            self._stop()

    def _started(self) -> _Process:
        if self._child is None:
            self._child = _Process(self._definition.reference, self._limits)
            weakref.finalize(self, self._child.close)
            self.confined = self._child.confined
        return self._child

    def _stop(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _lengths(self, inputs: Mapping[str, Array]) -> dict[str, int]:
        """Lengths of all axes as the inputs have them; an axis of no input is 1 unless constant."""
        definition = self._definition
        variable = dict.fromkeys(definition.variable_axes, 1)
        for name, spec in definition.inputs.items():
            for axis, length in zip(spec.shape, inputs[name].shape, strict=False):
                if axis in variable:
                    variable[axis] = length
        return definition.lengths(variable)

    def _failed(self, what: str) -> HarnessError:
        return HarnessError(f"the reference of {self._definition.name} {what}")


class _Broken(Exception):
    """A child that cannot go on, or did not answer well."""


class _Process:
    """One child; calls are answered one by one."""

    def __init__(self, reference: str, limits: ReferenceLimits) -> None:
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            self._child: Child = fresh(_PROGRAM)(nothing)[0]
        finally:
            os.close(nothing)
        settings = {
            "reference": reference,
            "paths": [str(_ROOT), *(path for path in sys.path if Path(path).is_absolute())],
            "parent": os.getpid(),
            "memory_bytes": limits.memory_bytes,
            "cpu_s": limits.cpu_s,
        }
        os.set_blocking(self._child.stdin, False)
        try:
            deadline = time.monotonic() + limits.start_s
            self._send(json.dumps(settings).encode() + b"\n", deadline)
            ready = self._line(deadline)
        except BaseException:
            self.close()
            raise
        if "failed" in ready:
            self.close()
            raise _Broken(f"cannot be run: {_safe(ready['failed'])}")
        self.confined = bool(ready.get("confined"))

    def call(
        self, inputs: Mapping[str, Array], outputs: Sequence[str], timeout_s: float
    ) -> dict[str, Array]:
        deadline = time.monotonic() + timeout_s
        wide = {name: _wide(array) for name, array in inputs.items()}
        head = [
            {"name": name, "dtype": array.dtype.str, "shape": list(array.shape)}
            for name, array in wide.items()
        ]
        self._send(json.dumps({"inputs": head, "outputs": outputs}).encode() + b"\n", deadline)
        for array in wide.values():
            if array.size:
                self._send(array.tobytes(), deadline)
        answer = self._line(deadline)
        if "failed" in answer:
            raise _Broken(_failure(str(answer["failed"])))
        shapes = [tuple(int(length) for length in shape) for shape in answer["shapes"]]
        return {
            name: self._array(shape, deadline) for name, shape in zip(outputs, shapes, strict=True)
        }

    def close(self) -> None:
        """Kill the child."""
        self._child.close()

    def _array(self, shape: tuple[int, ...], deadline: float) -> Array:
        count = math.prod(shape)
        if count > 2**31:
            raise _Broken(f"returns {count} numbers")
        data, got = bytearray(8 * count), 0
        while got < len(data):
            chunk = self._read(min(len(data) - got, 1 << 20), deadline)
            data[got : got + len(chunk)] = chunk
            got += len(chunk)
        return np.frombuffer(data, dtype=np.float64).reshape(shape)

    def _line(self, deadline: float) -> dict[str, Any]:
        found = bytearray()
        while not found.endswith(b"\n"):
            found += self._read(1, deadline)
            if len(found) > _LONGEST_LINE:
                raise _Broken("answers without end")
        try:
            answer: dict[str, Any] = json.loads(found)
        except ValueError:
            raise _Broken("answers what is no JSON") from None
        return answer

    def _read(self, count: int, deadline: float) -> bytes:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([self._child.stdout], [], [], left)[0]:
            raise _Broken("takes too long; is there a loop that numpy could do?")
        chunk = os.read(self._child.stdout, count)
        if not chunk:
            code = self._child.wait()
            how = f"by signal {-code}" if code < 0 else f"with status {code}"
            raise _Broken(f"ended its process {how}: it wants more than a formula needs")
        return chunk

    def _send(self, data: bytes | memoryview, deadline: float) -> None:
        view = memoryview(data)
        while view:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([], [self._child.stdin], [], left)[1]:
                raise _Broken("takes too long to read its inputs")
            try:
                view = view[os.write(self._child.stdin, view[: 1 << 16]) :]
            except BrokenPipeError:
                raise _Broken("ended its process before it was called") from None


def _wide(array: Array) -> Array:
    """Floats as float64, all else as it is: what a formula computes with."""
    if array.dtype.kind in "iub":
        return np.ascontiguousarray(array)
    return np.ascontiguousarray(array, dtype=np.float64)


def _failure(text: str) -> str:
    safe = _safe(text)
    return safe if safe.startswith(("returns", "needs")) else f"fails: {safe}"


def _safe(text: object) -> str:
    """Make a stranger's text harmless."""
    return "".join(letter if " " <= letter <= "~" else "?" for letter in str(text))[:400]
