"""Log transport of experiment results: framed lines in a container's log. Pure.

The log is the only channel: the pod has no network, no token and no shared volume. A container
runtime may cut and mix lines of text, so they are framed::

    retuned-results begin {"version": 1, "experiment": ..., "job": ..., "pod": ..., ...}
    retuned-results part 0 <base64>
    ...
    retuned-results end <sha256 of the whole>

The whole is a sequence of files: a line of JSON with its name and its two sizes, and then the file,
compressed separately. The reader trusts no input: it bounds sizes before unpacking, and a name must
have one of a few forms.

``python -m retuned.experiment.log_transport`` writes the results of an experiment's pod.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import signal
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from retuned.errors import Refused, UnreadableInput, UsageError
from retuned.files import read_plain

VERSION = 1
MAX_PACKED_BYTES = 6 << 20
"""Of all compressed files: in base64 they stay below 10 MiB, where a kubelet rotates the log."""
MAX_UNPACKED_BYTES = 64 << 20
MAX_FILES = 1024
MAX_LOG_BYTES = 9 << 20
FINDINGS = "findings.jsonl"
"""The lab's lines; this file is written last, so its presence means that all is complete."""
_NAME = re.compile(
    r"findings\.jsonl|evidence/[0-9a-f]{64}\.json|artifacts/[0-9a-f]{64}/[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
)
_MARK = b"retuned-results "
_PART_BYTES = 9_000
"""Of the whole in one line, which base64 makes 12,000 characters: runtimes cut at 16 KiB."""
_MAX_HEAD_BYTES = 4096
_NEVER_BYTES = 1 << 30
"""Larger numbers are not plausible sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Origin of the results."""

    experiment: str
    job: str
    pod: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Received results."""

    files: Mapping[str, bytes]
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Omitted for size, by kind: ``evidence`` of losers, and their ``findings``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    name: str
    size: int
    data: bytes

    @property
    def cost(self) -> int:
        return len(self.data) + len(_head_of(self))


def pack(name: str, data: bytes) -> Packed:
    """Compress a file.

    Raises
    ------
    ValueError
        If its name is not allowed.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is not an allowed name of a result")
    return Packed(name=name, size=len(data), data=zlib.compress(data, level=6))


def lines(
    packed: Sequence[Packed], *, sender: Sender, left_out: Mapping[str, int] | None = None
) -> Iterator[bytes]:
    """Yield the lines of some files, each with its end.

    Raises
    ------
    Refused
        ``results-too-large``: they exceed the reader's limits.
    """
    size = sum(each.size for each in packed)
    cost = sum(each.cost for each in packed)
    if len(packed) > MAX_FILES or size > MAX_UNPACKED_BYTES or cost > MAX_PACKED_BYTES:
        error = Refused(f"{len(packed)} files of {size} bytes, {cost} compressed, are too much")
        error.code = "results-too-large"
        raise error
    whole = b"".join(_head_of(each) + each.data for each in packed)
    head = {
        "version": VERSION,
        "experiment": sender.experiment,
        "job": sender.job,
        "pod": sender.pod,
        "files": len(packed),
        "bytes": size,
        "packed_bytes": len(whole),
        "sha256": hashlib.sha256(whole).hexdigest(),
        "left_out": dict(left_out or {}),
    }
    yield _MARK + b"begin " + _json(head) + b"\n"
    for number, at in enumerate(range(0, len(whole), _PART_BYTES)):
        text = base64.b64encode(whole[at : at + _PART_BYTES])
        yield _MARK + b"part %d " % number + text + b"\n"
    yield _MARK + b"end " + head["sha256"].encode() + b"\n"  # type: ignore[attr-defined]


def refusal_line(code: str, sender: Sender) -> bytes:
    head = {"version": VERSION, "experiment": sender.experiment, "job": sender.job}
    return _MARK + b"none " + _json(head | {"pod": sender.pod, "code": code}) + b"\n"


def read(log: bytes, *, sender: Sender) -> Bundle:
    """Return the results in a log.

    Other lines are ignored before the beginning and after the end. Between them they show that the
    log is damaged. Results of another `sender` are refused.

    Raises
    ------
    UnreadableInput
        ``results-absent`` if there are none, ``results-truncated``, ``results-mixed``,
        ``results-twice``, ``results-altered``, ``results-of-another``, ``results-too-large``,
        ``results-unknown-version`` or ``results-malformed``.
    """
    if len(log) > MAX_LOG_BYTES:
        raise _no("too-large", f"the log is longer than {MAX_LOG_BYTES} bytes")
    head, parts = _framed(log, sender)
    whole = _joined(parts, head)
    return Bundle(files=_unpacked(whole, head), left_out=_counts(head.get("left_out")))


def _framed(log: bytes, sender: Sender) -> tuple[Mapping[str, Any], list[bytes]]:
    """Return the header and the parts between it and the end, all of one complete block."""
    found: list[tuple[Mapping[str, Any], list[bytes]]] = []
    within: tuple[Mapping[str, Any], list[bytes]] | None = None
    for line in log.split(b"\n"):
        kind, _, rest = line.removeprefix(_MARK).partition(b" ")
        if not line.startswith(_MARK):
            if within is not None and line:
                raise _no("mixed", "other lines are between its own")
        elif kind == b"none":
            said = _header(rest, sender)
            raise _no("not-told", f"the pod could not send them: {str(said.get('code'))[:64]}")
        elif kind == b"begin":
            if within is not None or found:
                raise _no("twice", "they begin twice")
            within = (_header(rest, sender), [])
        elif within is None:
            raise _no("mixed", "a part is before their beginning, or after their end")
        elif kind == b"part":
            within[1].append(rest)
        elif kind == b"end":
            if rest != str(within[0].get("sha256")).encode():
                raise _no("altered", "beginning and end name different digests")
            found.append(within)
            within = None
        else:
            raise _no("malformed", "a line of an unknown kind")
    if within is not None:
        raise _no("truncated", "they have no end")
    if not found:
        raise _no("absent", "the log has none")
    return found[0]


def _header(text: bytes, sender: Sender) -> Mapping[str, Any]:
    head = _object(text)
    if head.get("version") != VERSION:
        raise _no("unknown-version", f"version {str(head.get('version'))[:20]}, known is {VERSION}")
    if [head.get(key) for key in ("experiment", "job", "pod")] != [
        sender.experiment, sender.job, sender.pod,
    ]:  # fmt: skip
        raise _no("of-another", "they name another experiment, Job or pod")
    return head


def _joined(parts: Sequence[bytes], head: Mapping[str, Any]) -> bytes:
    size = _size(head.get("packed_bytes"))
    if size > MAX_PACKED_BYTES:
        raise _no("too-large", f"{size} compressed bytes, at most {MAX_PACKED_BYTES} are read")
    found = []
    for number, part in enumerate(parts):
        counted, _, text = part.partition(b" ")
        if counted != b"%d" % number:
            raise _no("mixed", f"part {number} is absent, twice or not in its place")
        try:
            found.append(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError):
            raise _no("malformed", f"part {number} is not base64") from None
    whole = b"".join(found)
    if len(whole) != size:
        raise _no("truncated", f"{len(whole)} of {size} compressed bytes are present")
    if hashlib.sha256(whole).hexdigest() != head.get("sha256"):
        raise _no("altered", "their digest differs")
    return whole


def _unpacked(whole: bytes, head: Mapping[str, Any]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    at, left = 0, MAX_UNPACKED_BYTES
    while at < len(whole):
        end = whole.find(b"\n", at, at + _MAX_HEAD_BYTES)
        if end < 0:
            raise _no("malformed", "a file without a line about it")
        about = _object(whole[at:end])
        name, size, packed = about.get("name"), _size(about.get("size")), _size(about.get("packed"))
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _no("malformed", f"{str(name)[:80]!r} is not an allowed name of a result")
        if name in found:
            raise _no("twice", f"{name} is there twice")
        left -= size
        if left < 0 or len(found) >= MAX_FILES:
            raise _no("too-large", f"more than {MAX_FILES} files or {MAX_UNPACKED_BYTES} bytes")
        at = end + 1 + packed
        if at > len(whole):
            raise _no("altered", f"{name} differs from its announced size")
        found[name] = _decompressed(whole[end + 1 : at], name=name, size=size)
    if len(found) != head.get("files"):
        raise _no("altered", "the number of files differs from the announced one")
    return found


def _decompressed(data: bytes, *, name: str, size: int) -> bytes:
    """Return a file of exactly this size; decompression stops beyond it."""
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, size + 1)
    except zlib.error:
        raise _no("malformed", f"{name} cannot be unpacked") from None
    if len(found) != size or not stream.eof or stream.unused_data:
        raise _no("altered", f"{name} differs from its announced size")
    return found


def _head_of(packed: Packed) -> bytes:
    return _json({"name": packed.name, "size": packed.size, "packed": len(packed.data)}) + b"\n"


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), sort_keys=True).encode("ascii")


def _object(text: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(text) if len(text) <= _MAX_HEAD_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _no("malformed", "a line about them is not a JSON object")
    return found


def _size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _NEVER_BYTES:
        raise _no("malformed", "a size is invalid")
    return value


def _counts(value: object) -> dict[str, int]:
    if not isinstance(value, dict) or len(value) > 8:
        raise _no("malformed", "the list of omitted files is invalid")
    return {str(key)[:40]: _size(count) for key, count in value.items()}


def _no(code: str, message: str) -> UnreadableInput:
    return UnreadableInput(f"results-{code}", where="the log", message=message)


def names_of(files: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in files if _NAME.fullmatch(name)))


_LOOK_S = 0.5
_WON = "promote"


@dataclass(frozen=True, slots=True, kw_only=True)
class TellingSettings:
    """Settings from the manifest."""

    sender: Sender
    results: Path


def telling_settings(environment: Mapping[str, str]) -> TellingSettings:
    """Return the settings from the manifest.

    Raises
    ------
    UsageError
        If a setting is missing.
    """
    names = ("RETUNED_EXPERIMENT_UID", "RETUNED_JOB", "RETUNED_POD_UID", "RETUNED_RESULTS_DIR")
    missing = [name for name in names if not environment.get(name)]
    if missing:
        raise UsageError(f"{', '.join(missing)} must be set, as the manifest of a Job does")
    experiment, job, pod, results = (environment[name] for name in names)
    sender = Sender(experiment=experiment, job=job, pod=pod)
    return TellingSettings(sender=sender, results=Path(results))


def told(settings: TellingSettings) -> Iterator[bytes]:
    """Yield the lines of complete results.

    If there is not enough space, evidence of losers is omitted first, then their findings: no
    decision needs them. Winners, their evidence and their compiled files are all sent, or nothing
    is.

    Raises
    ------
    OSError
        If they cannot be read.
    """
    try:
        packed, left_out = _chosen(settings.results)
        yield from lines(packed, sender=settings.sender, left_out=left_out)
    except Refused as error:
        yield refusal_line(error.code, settings.sender)


def _chosen(folder: Path) -> tuple[list[Packed], dict[str, int]]:
    text = _content(folder, FINDINGS)
    won, lost, end = _divided(text)
    names = names_of(_names(folder))
    needed = {f"evidence/{digest}.json" for digest in _evidence_of(won)}
    first = [name for name in names if name.startswith("artifacts/") or name in needed]
    kept = [pack(name, _content(folder, name)) for name in first]
    left = MAX_PACKED_BYTES - sum(each.cost for each in kept)
    findings = pack(FINDINGS, text)
    left_out = {}
    if findings.cost > left and lost:
        findings = pack(FINDINGS, b"".join((*won, end)))
        left_out["findings"] = len(lost)
    kept.append(findings)
    left -= findings.cost
    size = sum(each.size for each in kept)
    for name in names:
        if name in first or name == FINDINGS:
            continue
        each = pack(name, _content(folder, name))
        if each.cost > left or size + each.size > MAX_UNPACKED_BYTES or len(kept) >= MAX_FILES:
            left_out["evidence"] = left_out.get("evidence", 0) + 1
            continue
        left -= each.cost
        size += each.size
        kept.append(each)
    return kept, left_out


def _divided(text: bytes) -> tuple[list[bytes], list[bytes], bytes]:
    *found, end = text.splitlines(keepends=True) or [b""]
    won: list[bytes] = []
    lost: list[bytes] = []
    for line in found:
        (won if _verdict(line).get("status") == _WON else lost).append(line)
    return won, lost, end


def _evidence_of(found: Sequence[bytes]) -> set[str]:
    digests = (_verdict(line).get("evidence") for line in found)
    return {each.removeprefix("sha256:") for each in digests if isinstance(each, str)}


def _verdict(line: bytes) -> Mapping[str, Any]:
    """Return the verdict in a line, unchecked; the reader of the results checks it."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    for key in ("finding", "verdict"):
        body = body.get(key) if isinstance(body, dict) else None
    return body if isinstance(body, dict) else {}


def _names(folder: Path) -> Iterator[str]:
    """Yield every file below a folder without following links."""
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    yield os.path.relpath(entry.path, folder)


def _content(folder: Path, name: str) -> bytes:
    data = read_plain(folder / name, max_bytes=MAX_UNPACKED_BYTES, follow=False)
    if data is None:
        error = Refused(f"{name} is longer than {MAX_UNPACKED_BYTES} bytes")
        error.code = "results-too-large"
        raise error
    return data


def is_complete(folder: Path) -> bool:
    try:
        return stat.S_ISREG((folder / FINDINGS).lstat().st_mode)
    except OSError:
        return False


def run(settings: TellingSettings, out: BinaryIO) -> int:
    """Send the results once they are complete, and wait for termination; return the exit code."""
    done = ended = False
    while not ended:
        ended = signal.sigtimedwait({signal.SIGTERM}, _LOOK_S) is not None
        if not done and is_complete(settings.results):
            for line in told(settings):
                out.write(line)
            out.flush()
            done = True
    return 0


def main() -> int:
    # A signal must not be lost between two polls, and no handler runs in the middle of a line.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        return run(telling_settings(os.environ), sys.stdout.buffer)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"the results cannot be sent: {error}\n")
        return 5


if __name__ == "__main__":
    sys.exit(main())
