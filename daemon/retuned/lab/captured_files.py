"""Captured production inputs on disk: private, untrusted data, checked when read.

Each experiment has one folder that only its owner may read. It is removed with the experiment.
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
from typing import Annotated

import numpy as np
from pydantic import AwareDatetime, Field, ValidationError

from retuned.contract import Definition, Digest, Name, Record, TensorSpec, ValueLike
from retuned.errors import UnreadableInput
from retuned.files import make_private
from retuned.lab.number_formats import is_float
from retuned.lab.subject import Array, numpy_dtype, shape_of
from retuned.ports import CapturedInputs
from retuned.runtime.core.grid import parse_expression
from retuned.runtime.schema import Refused

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 64 << 20

_MANIFEST = "inputs.json"

_PARTIAL = ".partial-"


class _Tensor(Record):
    name: Name
    file: Annotated[str, Field(pattern=r"^[0-9]{1,4}-[0-9]{1,3}\.bin$")]
    digest: Digest


class _Sample(Record):
    """One launch on disk."""

    axes: dict[Name, Annotated[int, Field(ge=1, le=2**40)]]
    tensors: tuple[_Tensor, ...] = Field(max_length=64)


class _Manifest(Record):
    """Manifest of a folder."""

    definition: Name
    until: AwareDatetime | None = None
    """Time by which the folder must be deleted; None without a limit."""
    samples: tuple[_Sample, ...] = Field(max_length=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """Activations of one launch, as arrays that fit the definition."""

    axes: Mapping[str, int]
    tensors: Mapping[str, Array]
    """By input; weights are missing."""
    digest: Digest


def write_captured(
    folder: Path,
    definition: str,
    samples: Sequence[CapturedInputs],
    *,
    until: datetime | None = None,
) -> None:
    """Write samples to a folder that only its owner may enter, replacing its contents.

    The write is atomic. `until` is the time by which it must be deleted; see `expiry_of`.

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
    """Remove incomplete folders of killed processes, and return how many.

    An incomplete folder has no expiry, so no other code would remove it. Folders that a live
    process holds stay.
    """
    gone = 0
    for partial in root.glob(f"{_PARTIAL}*"):
        try:
            with _held(partial):
                shutil.rmtree(partial)
        except OSError:  # another process writes it, or has just finished
            continue
        gone += 1
    return gone


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, which is released when the process ends.

    Raises
    ------
    OSError
        If another process holds it, or the folder does not exist.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def expiry_of(folder: Path) -> datetime | None:
    """Return when a folder must be deleted; None without a limit."""
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
    """Read a folder; samples that do not fit the definition are left out.

    An absent folder has no samples.

    Raises
    ------
    UnreadableInput
        If the manifest or one of its files was changed or damaged.
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
    """Whether numbers with a rule are within the definition's bounds.

    An index beyond its table would let the incumbent read out of bounds. Integers of 32 and 64 bits
    without a rule have an unknown meaning and are not valid.
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
