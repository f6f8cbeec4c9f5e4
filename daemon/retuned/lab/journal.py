"""Journal of a plan's candidates and results on disk: a resumed plan repeats no work.

Gate G0 writes here: a candidate is frozen, with its origin, before any other gate. Its freeze
becomes part of its evidence. Of search measurements only the ranking is recorded. Finalists are
re-measured in fresh processes on new seeds, so a recorded search result never decides a promotion.
A completed re-measurement is stored whole and judged as it is, because an interruption must not
give a second chance. One that began and did not end is counted.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, ValidationError

from retuned.contract import Digest, Record, Solution, digest_of
from retuned.errors import HarnessError
from retuned.stages.verdict import Check, Freeze, Interval, RawTiming

log = logging.getLogger(__name__)


def notebook_name(plan: str) -> str:
    return digest_of(plan).removeprefix("sha256:")


class Note(Record):
    """A candidate that passed the gates up to the search."""

    solution: Solution
    checks: tuple[Check, ...]
    interval: Interval | None
    spent_s: float = Field(ge=0.0)


class Ended(Record):
    """A complete re-measurement: it is judged after an interruption, not repeated."""

    p_value: float = Field(ge=0.0, le=1.0)
    """Of "not faster", over all shapes, unadjusted."""
    checks: tuple[Check, ...]
    raw: RawTiming | None = None
    """Every pair; None where a check failed."""
    processes: int = Field(default=0, ge=0)
    looks: int = Field(default=1, ge=1)
    commitment: Digest | None = None
    seconds: float = Field(default=0.0, ge=0.0)


class FinalNote(Record):
    """A finalist: every re-measurement that began is a chance of a false win, and is counted."""

    candidate: Digest
    begun: int = Field(default=0, ge=0)
    ended: Ended | None = None
    """Its result; None while it has not ended."""


class Notebook:
    """The notes of one plan, in a private `folder` that the first note creates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def freeze(self, freeze: Freeze) -> Freeze:
        """Write gate G0's record once and return it; later calls return the first one.

        The returned record may name another author: the first proposer.

        Raises
        ------
        HarnessError
            If the first one cannot be read.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(freeze.candidate)
        known = _read_freeze(path)
        if known is not None:
            return known
        partial = self._folder / f".{path.name}.partial"
        partial.unlink(missing_ok=True)
        partial.write_text(freeze.model_dump_json(), encoding="utf-8")
        partial.chmod(0o400)
        os.replace(partial, path)
        return freeze

    def frozen(self) -> int:
        return sum(1 for _ in self._folder.glob("*.freeze")) if self._folder.is_dir() else 0

    def write(self, note: Note) -> None:
        """Store a note atomically."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = note.solution.digest.removeprefix("sha256:")
        partial = self._folder / f".{name}.partial"
        partial.write_text(note.model_dump_json(), encoding="utf-8")
        partial.replace(self._folder / f"{name}.json")

    def read(self) -> Iterator[Note]:
        """Yield the notes, oldest first; unreadable notes are skipped."""
        paths = self._folder.glob("*.json") if self._folder.is_dir() else ()
        for path in sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name)):
            try:
                yield Note.model_validate_json(path.read_bytes())
            except (OSError, ValidationError) as error:
                log.warning("unreadable note of an interrupted experiment skipped: %s", error)

    def finals(self) -> dict[Digest, FinalNote]:
        """Return the finalists of this run and of interrupted ones, by digest.

        Raises
        ------
        HarnessError
            If one cannot be read: the number of tries is then unknown.
        """
        found = {}
        for path in sorted(self._folder.glob("*.final")) if self._folder.is_dir() else ():
            try:
                note = FinalNote.model_validate_json(path.read_bytes())
            except (OSError, ValidationError) as error:
                message = f"{path}: the record of a finalist cannot be read: {error}"
                raise HarnessError(message) from error
            found[note.candidate] = note
        return found

    def write_final(self, note: FinalNote) -> None:
        """Store the state of a finalist, before it is measured."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = note.candidate.removeprefix("sha256:")
        partial = self._folder / f".{name}.final.partial"
        with partial.open("w", encoding="utf-8") as file:
            file.write(note.model_dump_json())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._folder / f"{name}.final")

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, candidate: Digest) -> Path:
        return self._folder / f"{candidate.removeprefix('sha256:')}.freeze"


def _read_freeze(path: Path) -> Freeze | None:
    """Return the stored freeze, which was written atomically."""
    try:
        return Freeze.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        message = f"{path}: the record of what was frozen cannot be read: {error}"
        raise HarnessError(message) from error
