"""Groups of shapes that can be swapped together, and the guard around them."""

from __future__ import annotations

from collections.abc import Sequence

from retuned.contract import Guard
from retuned.stages.profile import ProfileSettings, bucket_low


def groups_of(axes: Sequence[dict[str, int]]) -> tuple[tuple[int, ...], ...]:
    """Return groups of shapes that a guard can name: all first, then neighbours, larger first.

    Shapes are neighbours in the order of their lengths. A guard is a box, so a group is left out if
    its box contains a shape outside the group.

    Examples
    --------
    >>> groups_of([{"M": 8}, {"M": 64}, {"M": 1}])
    ((0, 1, 2), (0, 2), (0, 1), (2,), (0,), (1,))
    """
    order = sorted(range(len(axes)), key=lambda index: tuple(axes[index].values()))
    found = []
    for size in range(len(order), 0, -1):
        for start in range(len(order) - size + 1):
            members = tuple(sorted(order[start : start + size]))
            box = _box([axes[index] for index in members])
            if all(index in members or not box.allows(axes[index]) for index in order):
                found.append(members)
    return tuple(found)


def guard_for(axes: Sequence[dict[str, int]], *, buckets: ProfileSettings | None = None) -> Guard:
    """Return the box around shapes, each extended down to the lengths of its bucket.

    Examples
    --------
    >>> str(guard_for([{"M": 64}, {"M": 256}]))
    '57 <= M <= 256'
    """
    buckets = buckets or ProfileSettings()
    box = _box(axes)
    return Guard(
        bounds={axis: (bucket_low(low, buckets), high) for axis, (low, high) in box.bounds.items()}
    )


def _box(axes: Sequence[dict[str, int]]) -> Guard:
    return Guard(
        bounds={
            name: (min(shape[name] for shape in axes), max(shape[name] for shape in axes))
            for name in axes[0]
        }
    )
