"""Shapes for launches replayed from a graph, from the trace of its capture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from retuned.stages.trace.records import CapturedLaunch, LaunchRecord, ShapeSource


def align_capture(
    capture: Sequence[CapturedLaunch], replay: Sequence[LaunchRecord]
) -> tuple[LaunchRecord, ...]:
    """Give launches replayed from a graph the geometry and shapes known from its capture.

    Launches without dims are matched in order of start by kernel name; a sequence that repeats
    (one graph replayed many times) is matched once per period. A launch whose geometry contradicts
    the capture stays as it was. The confidence is lowered by the part of the replay that the
    capture does not explain, since a capture of another graph explains little.

    Examples
    --------
    >>> capture = [CapturedLaunch(kernel="mm", dims=((8, 4), (4, 2)), shape_confidence=1.0)]
    >>> replay = [LaunchRecord(kernel="mm", start_ns=n, duration_ns=5) for n in (0, 10)]
    >>> [(r.dims, r.shape_source.value, r.shape_confidence) for r in align_capture(capture, replay)]
    [(((8, 4), (4, 2)), 'capture', 1.0), (((8, 4), (4, 2)), 'capture', 1.0)]
    """
    ordered = sorted(replay, key=lambda launch: launch.start_ns)
    bare = [index for index, launch in enumerate(ordered) if not launch.dims]
    names = [ordered[index].kernel for index in bare]
    period = _period(names)
    once = _match([row.kernel for row in capture], names[:period])
    found = {
        bare[at]: capture[once[at % period]]
        for at in range(len(bare))
        if at % period in once and _compatible(capture[once[at % period]], ordered[bare[at]])
    }
    trust = len(found) / len(bare) if bare else 0.0
    return tuple(
        _with_shape(launch, found[index], trust) if index in found else launch
        for index, launch in enumerate(ordered)
    )


def _period(names: Sequence[str]) -> int:
    """Smallest p with names[i] == names[i + p] throughout, by Morris and Pratt."""
    fail = [0] * len(names)
    length = 0
    for index in range(1, len(names)):
        while length and names[index] != names[length]:
            length = fail[length - 1]
        length += names[index] == names[length]
        fail[index] = length
    return len(names) - fail[-1] if names else 1


_ROUNDS = 64
_WORK = 50_000_000


def _match(capture: Sequence[str], replay: Sequence[str]) -> dict[int, int]:
    """Replay index to capture index; leftovers are tried again: a trace may start mid-graph."""
    found: dict[int, int] = {}
    runs, work = [(0, len(replay))], 0
    for _ in range(_ROUNDS):
        left: list[tuple[int, int]] = []
        for low, high in runs:
            work += (high - low) * len(capture)
            if work > _WORK:
                return found
            matcher = SequenceMatcher(None, capture, replay[low:high], autojunk=False)
            done = low
            for a, b, size in matcher.get_matching_blocks():
                found.update((low + b + n, a + n) for n in range(size))
                if done < low + b and (done, low + b) != (low, high):
                    left.append((done, low + b))
                done = low + b + size
        if not left:
            break
        runs = left
    return found


def _compatible(row: CapturedLaunch, launch: LaunchRecord) -> bool:
    known = any(launch.blocks) and any(row.blocks)
    return not known or (launch.blocks, launch.threads) == (row.blocks, row.threads)


def _with_shape(launch: LaunchRecord, row: CapturedLaunch, trust: float) -> LaunchRecord:
    return replace(
        launch,
        blocks=launch.blocks if any(launch.blocks) else row.blocks,
        threads=launch.threads if any(launch.threads) else row.threads,
        dims=row.dims,
        dtypes=row.dtypes,
        layout=row.layout,
        op=row.op,
        shape_source=ShapeSource.CAPTURE if row.dims else ShapeSource.NONE,
        shape_confidence=row.shape_confidence * trust if row.dims else 0.0,
        lds_bytes=launch.lds_bytes or row.lds_bytes,
    )
