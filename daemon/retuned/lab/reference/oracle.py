"""Reference oracle: the parent's handle of a child that computes outputs in float64."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retuned.contract import Definition
from retuned.errors import HarnessError
from retuned.lab.harness.processes import Child, fresh, is_ready
from retuned.lab.subject import Array, shape_of

_PROGRAM = Path(__file__).with_name("child.py")
_ROOT = Path(__file__).resolve().parents[3]
_LONGEST_LINE = 1 << 16
_FLOAT64 = np.dtype(np.float64).str
_NOTHING_HOLDS = (
    "is not run: on this machine neither seccomp nor Landlock confines it, so only the static "
    "check would protect your files from it; use Linux 5.13 or newer, or set "
    "allow_unconfined_references if you wrote it yourself"
)
MOST_OUTPUT_BYTES = 16 * 2**30
"""Maximum of the outputs of one call, in float64."""
FAILED = "reference-failed"
"""Code of a reference whose result does not match its definition."""
UNCONFINED = "reference-unconfined"
"""Code of the refusal to run a reference without confinement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceLimits:
    start_s: float = 120.0
    call_s: float = 60.0
    cpu_s: int = 1800
    memory_bytes: int = 16 * 2**30
    """Memory beyond its use when ready."""


class Oracle:
    """Computes a definition's outputs by its reference, in a child started on first use.

    The reference must have passed `check_reference`; the child checks it again. With
    `allow_unconfined` it runs even without seccomp and Landlock, behind the static check only.
    """

    def __init__(
        self,
        definition: Definition,
        *,
        limits: ReferenceLimits | None = None,
        allow_unconfined: bool = False,
    ) -> None:
        self._definition = definition
        self._limits = limits or ReferenceLimits()
        self._unconfined = allow_unconfined
        self._lock = threading.Lock()
        self._child: _Process | None = None
        self.confined_by: tuple[str, ...] | None = None
        """The child's confinement as the kernel reports it; None before the first child."""

    def compute(self, /, **inputs: Array) -> dict[str, Array]:
        """Return every output in float64.

        Raises
        ------
        HarnessError
            If the reference fails, takes too long, needs too much memory or violates the
            definition, with code ``reference-failed``, or ``reference-unconfined`` without
            confinement.
        """
        lengths = self._lengths(inputs)
        expected = {n: shape_of(spec, lengths) for n, spec in self._definition.outputs.items()}
        with self._lock:
            try:
                return self._started().call(inputs, expected, self._limits.call_s)
            except _Broken as error:
                self._stop()
                raise self._failed(error) from error

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _started(self) -> _Process:
        if self._child is None:
            self._child = _Process(
                self._definition.reference, self._limits, unconfined=self._unconfined
            )
            weakref.finalize(self, self._child.close)
            self.confined_by = self._child.confined_by
        return self._child

    def _stop(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _lengths(self, inputs: Mapping[str, Array]) -> dict[str, int]:
        """Lengths of all axes in the inputs; an axis of no input is 1 unless constant."""
        definition = self._definition
        variable = dict.fromkeys(definition.variable_axes, 1)
        for name, spec in definition.inputs.items():
            for axis, length in zip(spec.shape, inputs[name].shape, strict=False):
                if axis in variable:
                    variable[axis] = length
        return definition.lengths(variable)

    def _failed(self, why: _Broken) -> HarnessError:
        error = HarnessError(f"the reference of {self._definition.name} {why}")
        error.code = why.code
        return error


class _Broken(Exception):
    """A child that failed or returned an invalid response."""

    code = FAILED


class _Unconfined(_Broken):
    """A child without confinement."""

    code = UNCONFINED


class _Process:
    """One child; it handles calls one by one."""

    def __init__(self, reference: str, limits: ReferenceLimits, *, unconfined: bool) -> None:
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
            "unconfined": unconfined,
        }
        os.set_blocking(self._child.stdin, False)
        try:
            deadline = time.monotonic() + limits.start_s
            self._send(json.dumps(settings).encode() + b"\n", deadline)
            self.confined_by = _confinement(self._line(deadline))
            if not (self.confined_by or unconfined):
                raise _Unconfined(_NOTHING_HOLDS)
        except BaseException:
            self.close()
            raise

    def call(
        self, inputs: Mapping[str, Array], expected: Mapping[str, tuple[int, ...]], timeout_s: float
    ) -> dict[str, Array]:
        if sum(8 * math.prod(shape) for shape in expected.values()) > MOST_OUTPUT_BYTES:
            raise _Broken(f"has more than {MOST_OUTPUT_BYTES} bytes of outputs; shorten its axes")
        deadline = time.monotonic() + timeout_s
        wide = {name: _wide(array) for name, array in inputs.items()}
        head = [
            {"name": name, "dtype": array.dtype.str, "shape": list(array.shape)}
            for name, array in wide.items()
        ]
        order = json.dumps({"inputs": head, "outputs": list(expected)}).encode() + b"\n"
        self._send(order, deadline)
        for array in wide.values():
            if array.size:
                self._send(array.tobytes(), deadline)
        _check_answer(self._line(deadline), expected)
        return {name: self._array(shape, deadline) for name, shape in expected.items()}

    def close(self) -> None:
        self._child.close()

    def _array(self, shape: tuple[int, ...], deadline: float) -> Array:
        count = math.prod(shape)
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
            answer = json.loads(found)
        except (ValueError, RecursionError):
            raise _Broken("returned invalid JSON") from None
        if not isinstance(answer, dict):
            raise _Broken("returned JSON that is not an object")
        return answer

    def _read(self, count: int, deadline: float) -> bytes:
        left = deadline - time.monotonic()
        if left <= 0 or not is_ready(self._child.stdout, timeout_s=left):
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
            if left <= 0 or not is_ready(self._child.stdin, timeout_s=left, write=True):
                raise _Broken("takes too long to read its inputs")
            try:
                view = view[os.write(self._child.stdin, view[: 1 << 16]) :]
            except BrokenPipeError:
                raise _Broken("ended its process before it was called") from None


def _confinement(answer: Mapping[str, Any]) -> tuple[str, ...]:
    if "unconfined" in answer:
        raise _Unconfined(_NOTHING_HOLDS)
    if "failed" in answer:
        raise _Broken(f"cannot be run: {_safe(answer['failed'])}")
    walls = answer.get("walls")
    if not isinstance(walls, dict):
        raise _Broken("started without saying what confines it")
    filtered, files = walls.get("system_calls") is True, walls.get("files")
    version = files if type(files) is int and files > 0 else 0
    found = ("seccomp" if filtered else "", f"Landlock {version}" if version else "")
    return tuple(filter(None, found))


def _check_answer(answer: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Compare the announced outputs with the definition, before memory is allocated."""
    if "failed" in answer:
        raise _Broken(_failure(str(answer["failed"])))
    shapes, dtypes = answer.get("shapes"), answer.get("dtypes")
    if not (isinstance(shapes, list) and len(shapes) == len(expected)):
        raise _Broken("does not say what it returns")
    if dtypes != [_FLOAT64] * len(expected):
        raise _Broken(f"returns numbers as {_safe(dtypes)[:80]}, expected {_FLOAT64}")
    for (name, want), found in zip(expected.items(), shapes, strict=True):
        if not (isinstance(found, list) and all(type(length) is int for length in found)):
            raise _Broken(f"returns '{name}' with no shape")
        shape = tuple(found)
        if shape != want and not (shape == () and want == (1,)):
            told = _safe(shape)[:80]
            raise _Broken(f"returns '{name}' with shape {told}, expected {want}")


def _wide(array: Array) -> Array:
    if array.dtype.kind in "iub":
        return np.ascontiguousarray(array)
    return np.ascontiguousarray(array, dtype=np.float64)


def _failure(text: str) -> str:
    safe = _safe(text)
    return safe if safe.startswith(("returns", "needs")) else f"fails: {safe}"


def _safe(text: object) -> str:
    return "".join(letter if " " <= letter <= "~" else "?" for letter in str(text))[:400]
