"""Who was asked for the candidates of an experiment, as people and programs see it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from retuned.ports import Store
from retuned.stages.experiment import Turn
from retuned.terminal.layout import print_table


def turns_of(store: Store, experiment: str) -> tuple[Turn, ...]:
    """Return the turns of an experiment, oldest first; empty where none were kept or read."""
    stored = store.get("turns", experiment)
    if stored is None:
        return ()
    try:
        return tuple(Turn.model_validate(each) for each in stored.body["turns"])
    except (ValidationError, KeyError, TypeError):
        return ()


def print_turns(turns: Sequence[Turn]) -> None:
    """Print one line a turn: who was asked, what came of it, and why it was its turn."""
    if not turns:
        return
    print_table(
        ("turn", "asked", "came to", "right", "gain", "took", "because"),
        [
            (
                str(turn.number),
                turn.generator,
                turn.outcome.value,
                f"{turn.correct}/{turn.tried}",
                f"{turn.gain_ratio:.3f}x",
                f"{turn.seconds:.1f} s",
                f"{turn.because} {turn.detail}".strip(),
            )
            for turn in turns
        ],
    )
