"""Who was asked for the candidates of an experiment, as people and programs see it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError
from rich.table import Table

from retuned.cli.output import cell, stdout
from retuned.ports import Store
from retuned.stages.experiment import Turn


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
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("turn", "asked", "came to", "right", "gain", "took", "because"):
        table.add_column(name, no_wrap=name not in ("because",))
    for turn in turns:
        table.add_row(
            str(turn.number),
            cell(turn.generator),
            turn.outcome.value,
            f"{turn.correct}/{turn.tried}",
            f"{turn.gain_ratio:.3f}x",
            f"{turn.seconds:.1f} s",
            cell(f"{turn.because} {turn.detail}".strip()),
        )
    stdout().print(table)
