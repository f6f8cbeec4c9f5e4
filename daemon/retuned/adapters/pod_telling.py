"""``python -m retuned.adapters.pod_telling``: tells what the pod of an experiment has found.

It is the container ``results`` of the pod: a native sidecar that sees the folder of results and
nothing else, cannot write to it, and runs nothing that was generated. As soon as the results are
complete they become lines on stdout, which the operator reads as the container's log; then it waits
until Kubernetes ends it, which it does once the container that works has ended. Standard library
only, so that it costs a pod a few megabytes.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from retuned.adapters.pod_bundle import (
    FINDINGS,
    MAX_FILES,
    MAX_PACKED_BYTES,
    MAX_UNPACKED_BYTES,
    Packed,
    Sender,
    lines,
    names_of,
    pack,
    refusal_line,
)
from retuned.errors import Refused, UsageError
from retuned.plain_files import read_plain

_LOOK_S = 0.5
_WON = "promote"


@dataclass(frozen=True, slots=True, kw_only=True)
class TellingSettings:
    """What the manifest says."""

    sender: Sender
    """Whose results they are."""
    results: Path
    """Folder with them."""


def telling_settings(environment: Mapping[str, str]) -> TellingSettings:
    """Return what the manifest says.

    Raises
    ------
    UsageError
        If it does not say everything.
    """
    names = ("RETUNED_EXPERIMENT_UID", "RETUNED_JOB", "RETUNED_POD_UID", "RETUNED_RESULTS_DIR")
    missing = [name for name in names if not environment.get(name)]
    if missing:
        raise UsageError(f"{', '.join(missing)} must be set, as the manifest of a Job does")
    experiment, job, pod, results = (environment[name] for name in names)
    sender = Sender(experiment=experiment, job=job, pod=pod)
    return TellingSettings(sender=sender, results=Path(results))


def told(settings: TellingSettings) -> Iterator[bytes]:
    """Yield the lines that tell of results that are complete.

    What no decision needs is left out where there is no room: evidence of who lost, and then who
    lost at all. Winners, their evidence and what was compiled of them are told, or nothing is.

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
    """Return what is told, and how much is not."""
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
    """Return the lines about winners, those about others, and the last line."""
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
    """Return the verdict of a line as it stands; whoever reads the results checks it."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    for key in ("finding", "verdict"):
        body = body.get(key) if isinstance(body, dict) else None
    return body if isinstance(body, dict) else {}


def _names(folder: Path) -> Iterator[str]:
    """Yield every file below a folder, never through a link."""
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
    """Whether the last file that is written is there."""
    try:
        return stat.S_ISREG((folder / FINDINGS).lstat().st_mode)
    except OSError:
        return False


def run(settings: TellingSettings, out: BinaryIO) -> int:
    """Tell the results once they are complete, and wait to be ended; return the exit code."""
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
    """Do it as the manifest says."""
    # Nothing may be lost between two looks, and no handler runs in the middle of a line.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        return run(telling_settings(os.environ), sys.stdout.buffer)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"the results cannot be told: {error}\n")
        return 5


if __name__ == "__main__":
    sys.exit(main())
