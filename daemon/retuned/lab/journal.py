"""What a plan's candidates are and have shown so far, on disk: a resumed plan pays none twice.

Gate G0 writes here too: a candidate is frozen, with its origin, before anything tries it. Its
freeze goes into its evidence, which is kept. Of measurements only what ranks candidates is noted.
Finalists are measured from zero anyway, in fresh processes on new seeds, so nothing that was noted
of a search decides a promotion. A re-measurement that ended is kept whole and judged as it is: an
interruption is no second chance. One that began and did not end is counted.
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


class Ended(Record):
    """What a re-measurement gave, whole: it is judged after an interruption, not repeated."""

    p_value: float = Field(ge=0.0, le=1.0)
    """Of "not faster", over all shapes, before it is adjusted."""
    checks: tuple[Check, ...]
    """Answers of gate G6."""
    raw: RawTiming | None = None
    """Every pair; None where a check failed."""
    processes: int = Field(default=0, ge=0)
    """Fresh processes the pairs come from."""
    looks: int = Field(default=1, ge=1)
    """How often it was asked whether that is enough."""
    commitment: Digest | None = None
    """Digest of the secret that inputs and orders were drawn from."""
    seconds: float = Field(default=0.0, ge=0.0)
    """Wall time it cost."""


class FinalNote(Record):
    """A finalist: every re-measurement that began is a chance to be lucky, and is counted."""

    candidate: Digest
    """Who was chosen."""
    begun: int = Field(default=0, ge=0)
    """How often its re-measurement began."""
    ended: Ended | None = None
    """What it gave; None while it has not ended."""


class Notebook:
    """The notes of one plan.

    Parameters
    ----------
    folder
        Private to the lab; made on the first note.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def freeze(self, freeze: Freeze) -> Freeze:
        """Write gate G0's record once and return it; the first one stands, whoever asks again.

        What comes back may name another author: who proposed it first is who proposed it.

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
        """Return how many candidates were frozen so far."""
        return sum(1 for _ in self._folder.glob("*.freeze")) if self._folder.is_dir() else 0

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

    def finals(self) -> dict[Digest, FinalNote]:
        """Return the finalists of this run and of interrupted ones, by digest.

        Raises
        ------
        HarnessError
            If one cannot be read: nobody knows then how often luck was tried.
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
        """Keep how far a finalist has come; on disk before it is measured."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = note.candidate.removeprefix("sha256:")
        partial = self._folder / f".{name}.final.partial"
        with partial.open("w", encoding="utf-8") as file:
            file.write(note.model_dump_json())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._folder / f"{name}.final")

    def close(self) -> None:
        """Forget everything: the plan has come to its end."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, candidate: Digest) -> Path:
        return self._folder / f"{candidate.removeprefix('sha256:')}.freeze"


def _read_freeze(path: Path) -> Freeze | None:
    """Return the freeze that is there; it was written whole or not at all."""
    try:
        return Freeze.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        message = f"{path}: the record of what was frozen cannot be read: {error}"
        raise HarnessError(message) from error
