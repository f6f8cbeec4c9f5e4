"""Captured production inputs: a stranger's bytes, checked first, then one more family of inputs.

They are the only inputs that have the distribution of production. They are also data of people:
they lie in one folder per experiment that only its owner may read, go away with the experiment, and
evidence keeps only their digests and a few statistics.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AwareDatetime, Field, ValidationError

from retuned.contract import Definition, Digest, Name, Record, TensorSpec, ValueLike, Workload
from retuned.errors import UnreadableInput
from retuned.lab.number_formats import is_float
from retuned.lab.subject import Array, Subject, make_inputs, numpy_dtype, shape_of
from retuned.plain_files import make_private
from retuned.ports import CapturedInputs
from retuned.runtime.grid import parse_expression
from retuned.runtime.spec import Refused

log = logging.getLogger(__name__)

FOLDER = "captured"
"""Folder below a lab's root, with one folder per plan."""
FAMILY = "captured"
"""Name of the family; further samples of one shape are ``captured-2`` and so on."""
MAX_FILE_BYTES = 64 << 20
"""Largest tensor that is read."""
MAX_CASES = 8
"""Samples that one experiment asks every candidate about."""
_FEW = 64
"""Of fewer elements nothing is told: a mean of one number is that number."""
_MOST_WORK = 4
"""Samples of shapes so many times the largest workload are left out: the oracle is slow."""
_MANIFEST = "inputs.json"
_PARTIAL = ".partial-"


class _Tensor(Record):
    """One tensor on disk."""

    name: Name
    """Input."""
    file: Annotated[str, Field(pattern=r"^[0-9]{1,4}-[0-9]{1,3}\.bin$")]
    """Its bytes, beside the manifest."""
    digest: Digest
    """Of its bytes."""


class _Sample(Record):
    """One launch on disk."""

    axes: dict[Name, Annotated[int, Field(ge=1, le=2**40)]]
    """Lengths of the variable axes."""
    tensors: tuple[_Tensor, ...] = Field(max_length=64)
    """Activations."""


class _Manifest(Record):
    """What lies in a folder."""

    definition: Name
    """What the launches were of."""
    until: AwareDatetime | None = None
    """When it must be gone; None where nobody said."""
    samples: tuple[_Sample, ...] = Field(max_length=1024)
    """Launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """Activations of one launch, as arrays that fit the definition."""

    axes: Mapping[str, int]
    """Lengths of the variable axes."""
    tensors: Mapping[str, Array]
    """By input; weights are missing."""
    digest: Digest
    """Of names and bytes."""


def write_captured(
    folder: Path,
    definition: str,
    samples: Sequence[CapturedInputs],
    *,
    until: datetime | None = None,
) -> None:
    """Keep samples in a folder that only its owner may enter; what lay there is replaced.

    All of it is there or nothing. `until` says when it must be gone; see `expiry_of`.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    make_private(folder.parent)
    partial = folder.parent / f"{_PARTIAL}{folder.name}"
    for old in (folder, partial):
        shutil.rmtree(old, ignore_errors=True)
    partial.mkdir(mode=0o700)
    with _held(partial):
        _write_all(partial, definition, samples, until=until)
        os.rename(partial, folder)


def remove_unfinished(root: Path) -> int:
    """Remove what a killed process has begun to write, and return how many; others' stays.

    Half a folder says nothing of its end, so nothing else would ever remove it.
    """
    gone = 0
    for partial in root.glob(f"{_PARTIAL}*"):
        try:
            with _held(partial):
                shutil.rmtree(partial)
        except OSError:  # somebody writes it, or has just finished
            continue
        gone += 1
    return gone


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, which ends with the process whatever becomes of it.

    Raises
    ------
    OSError
        If somebody else has it, or there is no such folder.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def expiry_of(folder: Path) -> datetime | None:
    """Return when a folder must be gone; None where it does not say so."""
    try:
        return _Manifest.model_validate_json(_read(folder / _MANIFEST)).until
    except (ValidationError, OSError):
        return None


def _write_all(
    folder: Path, definition: str, samples: Sequence[CapturedInputs], *, until: datetime | None
) -> None:
    kept = []
    for number, sample in enumerate(samples):
        tensors = []
        for place, (name, tensor) in enumerate(sample.tensors.items()):
            file = f"{number}-{place}.bin"
            _write(folder / file, tensor.data)
            digest = "sha256:" + hashlib.sha256(tensor.data).hexdigest()
            tensors.append(_Tensor(name=name, file=file, digest=digest))
        kept.append(_Sample(axes=dict(sample.axes), tensors=tuple(tensors)))
    manifest = _Manifest(definition=definition, until=until, samples=tuple(kept))
    _write(folder / _MANIFEST, manifest.model_dump_json().encode())


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)


def read_captured(folder: Path, definition: Definition) -> tuple[Captured, ...]:
    """Read a folder; samples that do not fit the definition are left out, none where it is absent.

    Raises
    ------
    UnreadableInput
        If the folder's manifest, or a file that it names, is not as it was written.
    """
    path = folder / _MANIFEST
    if not path.is_file():
        return ()
    try:
        manifest = _Manifest.model_validate_json(_read(path))
    except (ValidationError, OSError) as error:
        text = f"cannot be read: {str(error)[:200]}"
        raise UnreadableInput("captures-unreadable", where=str(path), message=text) from error
    if manifest.definition != definition.name:
        return ()
    found = (_fitted(folder, sample, definition) for sample in manifest.samples)
    return tuple(each for each in found if each is not None)


def _read(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise OSError(f"{path.name} has more than {MAX_FILE_BYTES} bytes")
    return data


def _fitted(folder: Path, sample: _Sample, definition: Definition) -> Captured | None:
    wanted = {name: spec for name, spec in definition.inputs.items() if not spec.constant}
    if set(sample.axes) != set(definition.variable_axes):
        return None
    if {tensor.name for tensor in sample.tensors} != set(wanted):
        return None
    lengths = definition.lengths(sample.axes)
    arrays: dict[str, Array] = {}
    whole = hashlib.sha256()
    for tensor in sample.tensors:
        spec = wanted[tensor.name]
        data = _verified(folder / tensor.file, tensor.digest)
        kind, shape = numpy_dtype(spec), shape_of(spec, lengths)
        if len(data) != math.prod(shape) * kind.itemsize or not data:
            return None
        array = np.frombuffer(data, np.uint8).view(kind).reshape(shape)
        if not is_valid(spec, array, lengths):
            return None
        arrays[tensor.name] = array
        whole.update(tensor.name.encode() + b"\0" + data)
    return Captured(axes=sample.axes, tensors=arrays, digest="sha256:" + whole.hexdigest())


def _verified(path: Path, digest: Digest) -> bytes:
    try:
        data = _read(path)
    except OSError as error:
        raise UnreadableInput(
            "captures-unreadable", where=str(path), message=f"cannot be read: {error}"
        ) from error
    if "sha256:" + hashlib.sha256(data).hexdigest() != digest:
        raise UnreadableInput(
            "captures-unreadable", where=str(path), message="does not match its digest"
        )
    return data


def is_valid(spec: TensorSpec, array: Array, lengths: Mapping[str, int]) -> bool:
    """Whether numbers that mean something are within what the definition allows.

    A place beyond its table would let the incumbent read what is not there. Whole numbers of 32 and
    64 bits without a rule mean something that nobody has said.
    """
    rule = spec.values
    if is_float(array.dtype) or rule is None:
        return is_float(array.dtype) or array.dtype.itemsize == 1
    count = array.shape[-1] if rule.like is ValueLike.ROWS_PERMUTED else array.size
    if rule.like in (ValueLike.PERMUTATION, ValueLike.ROWS_PERMUTED):
        rows = np.sort(array.reshape(-1, count), axis=1)
        return bool((rows == np.arange(count)).all())
    try:
        low, high = (_bound(each, lengths) for each in (rule.low, rule.high))
    except Refused:
        return False
    inside = bool((array >= low).all() and (array <= high).all())
    if rule.like is not ValueLike.OFFSETS:
        return inside
    return inside and bool((np.diff(array) >= 0).all() and (array[..., -1] == high).all())


def _bound(bound: float | str, lengths: Mapping[str, int]) -> float:
    return parse_expression(bound, lengths)(lengths) if isinstance(bound, str) else bound


class WithCaptured:
    """A subject with one more family of inputs; see `Subject`.

    Parameters
    ----------
    subject
        What is tuned.
    captured
        Launches of production.
    """

    def __init__(self, subject: Subject, captured: Sequence[Captured]) -> None:
        self._subject = subject
        self._captured: dict[tuple[tuple[tuple[str, int], ...], str], Captured] = {}
        seen: dict[tuple[tuple[str, int], ...], int] = {}
        for each in captured:
            key = tuple(each.axes.items())
            seen[key] = seen.get(key, 0) + 1
            family = FAMILY if seen[key] == 1 else f"{FAMILY}-{seen[key]}"
            self._captured[key, family] = each

    @property
    def definition(self) -> Definition:
        """What the kernel computes."""
        return self._subject.definition

    @property
    def families(self) -> tuple[str, ...]:
        """Families that are made at any shape; captured ones are there at some shapes only."""
        return self._subject.families

    def reference(self, inputs: dict[str, Array], axes: Mapping[str, int]) -> dict[str, Array]:
        """Compute every output in float64."""
        return self._subject.reference(inputs, axes)

    def inputs(self, axes: Mapping[str, int], *, seed: int, family: str) -> dict[str, Array]:
        """Make every input; of a captured family only the weights.

        Raises
        ------
        ValueError
            If nothing was captured at this shape.
        """
        if not is_captured(family):
            return self._subject.inputs(axes, seed=seed, family=family)
        captured = self._captured.get((tuple(axes.items()), family))
        if captured is None:
            raise ValueError(f"nothing captured of {dict(axes)}")
        ordinary = self._subject.families[0]
        made = make_inputs(self._subject, axes, seed=seed, family=ordinary)
        return {**made, **captured.tensors}

    def shapes(self, workloads: Sequence[Workload]) -> list[tuple[dict[str, int], str]]:
        """Return shapes and families to ask candidates about, smallest first."""
        largest = max(math.prod(w.axes.values()) for w in workloads)
        found = [(dict(key), family) for key, family in self._captured]
        fitting = [each for each in found if math.prod(each[0].values()) <= _MOST_WORK * largest]
        fitting.sort(key=lambda each: (math.prod(each[0].values()), each[1]))
        return fitting[:MAX_CASES]

    def summary(self, axes: Mapping[str, int], family: str) -> dict[str, Any]:
        """Return what evidence keeps of one sample: its digest, and no number of it."""
        captured = self._captured[tuple(axes.items()), family]
        tensors = {name: _statistics(array) for name, array in captured.tensors.items()}
        return {"axes": dict(axes), "digest": captured.digest, "tensors": tensors}


def with_captured(subject: Subject, folder: Path) -> Subject:
    """Return a subject with what lies in a folder; as it is where nothing does that can be used."""
    try:
        found = read_captured(folder, subject.definition)
    except UnreadableInput as error:
        log.error("an experiment goes on without captured inputs: %s", error)
        return subject
    if not found:
        return subject
    log.info("%d samples of captured inputs", len(found))
    return WithCaptured(subject, found)


def is_captured(family: str) -> bool:
    """Whether a family is of captured inputs."""
    return family == FAMILY or family.startswith(f"{FAMILY}-")


def _statistics(array: Array) -> dict[str, float | int]:
    """Return mean, deviation and shares of an array: nothing that one element decides."""
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    if finite.size < _FEW:
        return {"elements": int(wide.size), "nonfinite": int(wide.size)}
    return {
        "elements": int(wide.size),
        "nonfinite": int(wide.size - finite.size),
        "mean": float(finite.mean()),
        "deviation": float(finite.std()),
        "negative_ratio": float((finite < 0).mean()),
        "zero_ratio": float((finite == 0).mean()),
    }
