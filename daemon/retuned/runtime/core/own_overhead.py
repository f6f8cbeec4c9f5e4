"""What Retuned costs this server, as an arm: its wrappers leave the server's calls, and return.

A server whose wrappers are out calls its functions as it would without Retuned, so that a live
proof can compare the two in one process. Out are the hook of Triton's launches, the hooks of
tunables, the count of graph replays and new profiler windows. The hook of steps stays, because it
measures both arms. Operators stay where they were registered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from retuned.runtime.schema import Refused
from retuned.runtime.steps.hook import ARM_WAIT_S, Steps
from retuned.runtime.steps.log import arm_in

log = logging.getLogger(__name__)

OUT = "overhead-measured"
"""Reason code of what does not run while the wrappers are out."""


class Wrapper(Protocol):
    """Replaces functions of the server, and gives them back for a while."""

    def suspend(self) -> None:
        """Put the server's own functions back, and keep what is known."""
        ...

    def resume(self) -> None:
        """Replace them again; does nothing if they are replaced."""
        ...


class OwnOverhead:
    """Operation ``overhead-arm`` of the control socket.

    Parameters
    ----------
    wrappers
        All that can leave the server's calls.
    in_force
        Returns the name of a swap in force; empty without one. It would end with the wrappers.
    stays
        Returns what cannot leave, by name.
    """

    def __init__(
        self,
        steps: Steps,
        *,
        wrappers: Callable[[], Sequence[Wrapper]],
        in_force: Callable[[], str],
        stays: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._steps, self._wrappers = steps, wrappers
        self._in_force, self._stays = in_force, stays
        self.out = False

    def operations(self) -> dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
        return {"overhead-arm": self.answer}

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Take the wrappers out or put them back at a safe point, and label the steps after it.

        They return by themselves when the recording of steps ends.

        Raises
        ------
        Refused
            ``bad-request``, ``not-recording``, ``swap-in-force`` or ``no-safe-point``.
        """
        on, arm = request.get("on"), arm_in(request)
        if not isinstance(on, bool):
            raise Refused("bad-request", detail="a boolean 'on' is needed")
        if not on and not self._steps.log.recording:
            raise Refused("not-recording", detail="the wrappers leave only while steps are timed")
        named = self._in_force()
        if not on and named:
            raise Refused("swap-in-force", detail=f"{named} would end with the wrappers")
        held_us = self._switch(on, arm=arm)
        return {
            "on": not self.out,
            "arm": self._steps.log.arm,
            "pause_us": round(held_us, 1),
            "stays": list(self._stays()),
        }

    def tend(self) -> None:
        """Put the wrappers back if nobody records steps any more."""
        if self.out:
            self._steps.log.expire()
            if not self._steps.log.recording:
                log.warning("the wrappers return: no steps are recorded any more")
                self.end()

    def end(self) -> None:
        """Put the wrappers back at once; before a swap and before the end of the runtime."""
        if self.out:
            self._steps.log.arm = ""  # steps of both kinds belong to no arm
            self._set(True)

    def _switch(self, on: bool, *, arm: str | None) -> float:
        _, held_us = self._steps.in_arm(lambda _: self._set(on), arm=arm, wait_s=ARM_WAIT_S)
        return held_us

    def _set(self, on: bool) -> None:
        self.out = not on
        for each in self._wrappers():
            if on:
                each.resume()
            else:
                each.suspend()
