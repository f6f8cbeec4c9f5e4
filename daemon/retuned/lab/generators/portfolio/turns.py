"""Stored turns: a resumed experiment continues with the turns so far and their outcomes."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from retuned.ports import Finding
from retuned.stages.experiment import Turn, TurnOutcome

log = logging.getLogger(__name__)


class TurnLog(Protocol):
    """The turns of one plan."""

    def read(self) -> tuple[Turn, ...]:
        """Return the turns, in order of their numbers."""
        ...

    def write(self, turn: Turn) -> None:
        """Keep a turn; one of the same number is replaced."""
        ...


class TurnFolder:
    """One file a turn; a kill leaves all of it or nothing.

    Parameters
    ----------
    folder
        Of one plan; made on the first turn.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> tuple[Turn, ...]:
        """Return the turns, in order of their numbers; one that cannot be read is left out."""
        found = []
        for path in self._folder.glob("*.json") if self._folder.is_dir() else ():
            try:
                found.append(Turn.model_validate_json(path.read_bytes()))
            except (OSError, ValidationError) as error:
                log.warning("a turn of an interrupted experiment is unreadable: %s", error)
        return tuple(sorted(found, key=lambda turn: turn.number))

    def write(self, turn: Turn) -> None:
        """Keep a turn; see `TurnLog.write`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / f".{turn.number:06d}.partial"
        partial.write_text(turn.model_dump_json(), encoding="utf-8")
        partial.replace(self._folder / f"{turn.number:06d}.json")

    def clear(self) -> None:
        """Delete the turns: the plan starts again."""
        shutil.rmtree(self._folder, ignore_errors=True)


class TurnList:
    """Turns in memory, for an experiment that is never resumed."""

    def __init__(self) -> None:
        self._turns: dict[int, Turn] = {}

    def read(self) -> tuple[Turn, ...]:
        """Return the turns; see `TurnLog.read`."""
        return tuple(self._turns[number] for number in sorted(self._turns))

    def write(self, turn: Turn) -> None:
        """Keep a turn; see `TurnLog.write`."""
        self._turns[turn.number] = turn


def close_turn(turn: Turn, history: Sequence[Finding]) -> Turn:
    """Add what trying the candidates of the newest turn has brought.

    Parameters
    ----------
    turn
        The newest turn; its candidates were tried last.
    history
        All findings so far.
    """
    proposed = set(turn.proposed)
    own = [finding for finding in history if finding.solution.digest in proposed]
    others = [finding for finding in history if finding.solution.digest not in proposed]
    before = max((_lower(finding) for finding in others), default=1.0)
    after = max((_lower(finding) for finding in own), default=1.0)
    return turn.model_copy(
        update={
            "outcome": TurnOutcome.TRIED,
            "tried": len(own),
            "correct": sum(finding.verdict.speedup is not None for finding in own),
            "gain_ratio": max(after / before, 1.0),
            "seconds": turn.asked_s + sum(finding.seconds for finding in own),
        }
    )


def _lower(finding: Finding) -> float:
    """Lower bound of a speedup; never below 1, the incumbent's own."""
    speedup = finding.verdict.speedup
    return max(speedup.lower, 1.0) if speedup is not None else 1.0
