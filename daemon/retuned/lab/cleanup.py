"""Cleanup of files left by killed labs and of files no longer needed."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection
from pathlib import Path

log = logging.getLogger(__name__)

_UNFINISHED = (
    "compiled/.child-*",
    "compiled/compile-*",
    "compiled/*.partial",
    "artifacts/.partial-*",
    "evidence/.*.partial",
    "notes/*/.*.partial",
    "turns/*/.*.partial",
)


def sweep(root: Path, *, running: Collection[str] = ()) -> int:
    """Remove work in progress of labs that have ended; return how many things were removed.

    Call it only while no lab works in `root`, for example at the daemon's start. `running` holds
    notebook names of plans that will be resumed; their turns and captured inputs have the same
    names.
    """
    kept = (*root.glob("notes/*"), *root.glob("turns/*"), *root.glob("captured/*"))
    notes = [path for path in kept if path.name not in running]
    left = [path for pattern in _UNFINISHED for path in root.glob(pattern)]
    for path in (*left, *notes):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if left or notes:
        log.info("files of earlier experiments removed: count=%d", len(left) + len(notes))
    return len(left) + len(notes)
