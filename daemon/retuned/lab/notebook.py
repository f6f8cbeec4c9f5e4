"""What a plan's candidates have shown so far, on disk: a plan that is resumed pays none twice.

Only what ranks candidates is noted. Finalists are measured from zero anyway, in fresh processes on
new seeds, so nothing that was noted before an interruption decides a promotion.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, ValidationError

from retuned.contract import Record, Solution, digest_of
from retuned.stages.verdict import Check, Interval

log = logging.getLogger(__name__)


def notebook_name(plan: str) -> str:
    """Name of a plan's folder of notes."""
    return digest_of(plan).removeprefix("sha256:")


class Note(Record):
    """A candidate that passed the gates up to the search."""

    solution: Solution
    """What was tried."""
    checks: tuple[Check, ...]
    """Answers of the gates."""
    interval: Interval | None
    """Production-weighted speedup in the search."""
    spent_s: float = Field(ge=0.0)
    """Wall time it cost."""


class Notebook:
    """The notes of one plan.

    Parameters
    ----------
    folder
        Private to the lab; made on the first note.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, note: Note) -> None:
        """Keep a note; a kill leaves all of it or nothing."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = note.solution.digest.removeprefix("sha256:")
        partial = self._folder / f".{name}.partial"
        partial.write_text(note.model_dump_json(), encoding="utf-8")
        partial.replace(self._folder / f"{name}.json")

    def read(self) -> Iterator[Note]:
        """Yield what was noted, oldest first; one that cannot be read is paid again."""
        paths = self._folder.glob("*.json") if self._folder.is_dir() else ()
        for path in sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name)):
            try:
                yield Note.model_validate_json(path.read_bytes())
            except (OSError, ValidationError) as error:
                log.warning("a note of an interrupted experiment is unreadable: %s", error)

    def close(self) -> None:
        """Forget everything: the plan has come to its end."""
        shutil.rmtree(self._folder, ignore_errors=True)
