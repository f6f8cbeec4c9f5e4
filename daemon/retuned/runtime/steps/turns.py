"""Turns of a few steps: the launching thread itself switches an arm between two steps.

A request to the control socket takes longer than a step, and a server whose host changes its pace
every second is compared with itself only within a few steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from retuned.runtime.schema import Refused
from retuned.runtime.steps.log import StepLog, arm_in

MAX_TURNS = 64
MAX_STEPS = 64


@dataclass(frozen=True, slots=True)
class Turn:
    """Steps with one label."""

    label: str
    on: bool
    """Whether the arm is on."""


class Turns:
    """Some turns in order; after the last one the arm is on and steps have no label.

    Parameters
    ----------
    turns
        At least one.
    steps
        Steps of each turn.
    change
        Switches the arm on or off; on the launching thread, between two steps.
    """

    def __init__(
        self, turns: tuple[Turn, ...], *, steps: int, change: Callable[[bool], None]
    ) -> None:
        self._turns, self._steps, self._change = turns, steps, change
        self._begun = 0

    def begin_step(self, log: StepLog) -> bool:
        """Switch where this step begins a turn; return False after the last turn."""
        at, within = divmod(self._begun, self._steps)
        self._begun += 1
        if at >= len(self._turns):
            self._change(True)
            log.arm = ""
            return False
        if not within:
            turn = self._turns[at]
            self._change(turn.on)
            log.arm = turn.label
        return True


def turns_in(request: Mapping[str, Any]) -> tuple[tuple[Turn, ...], int] | None:
    """Return the turns in a request and the steps of each; None without any.

    Examples
    --------
    >>> turns_in({"turns": [["1-0-on", True], ["1-1-off", False]], "steps": 4})
    ((Turn(label='1-0-on', on=True), Turn(label='1-1-off', on=False)), 4)

    Raises
    ------
    Refused
        ``bad-request``.
    """
    asked, steps = request.get("turns"), request.get("steps")
    if asked is None:
        return None
    if not isinstance(asked, list) or not 0 < len(asked) <= MAX_TURNS:
        raise Refused("bad-request", detail=f"'turns' are 1 to {MAX_TURNS} pairs")
    if type(steps) is not int or not 0 < steps <= MAX_STEPS:
        raise Refused("bad-request", detail=f"'steps' is a number from 1 to {MAX_STEPS}")
    return tuple(_turn(each) for each in asked), steps


def _turn(value: object) -> Turn:
    if isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[1], bool):
        label = arm_in({"arm": value[0]})
        if label is not None:
            return Turn(label, value[1])
    raise Refused("bad-request", detail="a turn is a label and whether the arm is on")
