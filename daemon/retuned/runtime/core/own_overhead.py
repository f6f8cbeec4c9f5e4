"""What Retuned costs this server, as an arm: its wrappers leave the server's calls, and return.

A server whose wrappers are out calls its functions as it would without Retuned, so that a live
proof can compare the two in one process. Out are the hook of Triton's launches, the hooks of
tunables, the count of graph replays and new profiler windows. The hook of steps stays, because it
measures both arms. Operators stay where they were registered.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from retuned.runtime.schema import Refused
from retuned.runtime.steps.hook import ARM_WAIT_S, Steps
from retuned.runtime.steps.log import arm_in
from retuned.runtime.steps.turns import Turn, Turns, turns_in

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
        All that can leave the server's calls, by name.
    in_force
        Returns the name of a swap in force; empty without one. It would end with the wrappers.
    stays
        Returns what cannot leave, by name.
    """

    def __init__(
        self,
        steps: Steps,
        *,
        wrappers: Callable[[], Mapping[str, Wrapper]],
        in_force: Callable[[], str],
        stays: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._steps, self._wrappers = steps, wrappers
        self._in_force, self._stays = in_force, stays
        self._lock = threading.Lock()
        """Held while wrappers leave or return: turns do so on the launching thread."""
        self.out = False

    def operations(self) -> dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
        return {"overhead-arm": self.answer}

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Take the wrappers out or put them back at a safe point, and label the steps after it.

        ``parts`` names those that leave; without it all leave. With ``turns`` the launching thread
        does so itself, every ``steps`` steps; see `turns_in`. They return by themselves when the
        recording of steps ends. The answer has the time that each took, microseconds.

        Raises
        ------
        Refused
            ``bad-request``, ``not-recording``, ``swap-in-force`` or ``no-safe-point``.
        """
        on, arm = request.get("on"), arm_in(request)
        if not isinstance(on, bool):
            raise Refused("bad-request", detail="a boolean 'on' is needed")
        parts, turns = self._named(request), turns_in(request)
        if not on and not self._steps.log.recording:
            raise Refused("not-recording", detail="the wrappers leave only while steps are timed")
        named = self._in_force()
        if named and not on:
            raise Refused("swap-in-force", detail=f"{named} would end with the wrappers")
        if turns is not None and not on:
            self._steps.turns = self._taking(*turns, parts=parts)
            return {"on": not self.out, "turns": len(turns[0]), "stays": list(self._stays())}
        self._steps.turns = None
        took_us, held_us = self._steps.in_arm(
            lambda _: self._set(() if on else parts), arm=arm, wait_s=ARM_WAIT_S
        )
        return {
            "on": not self.out,
            "arm": self._steps.log.arm,
            "pause_us": round(held_us, 1),
            "parts_us": took_us,
            "stays": list(self._stays()),
        }

    def _taking(self, turns: tuple[Turn, ...], steps: int, *, parts: Collection[str]) -> Turns:
        def change(on: bool) -> None:
            self._set(() if on else parts, turns=made)

        made = Turns(turns, steps=steps, change=change)
        return made

    def tend(self) -> None:
        """Put the wrappers back if nobody records steps any more."""
        if self.out or self._steps.turns is not None:
            self._steps.log.expire()
            if not self._steps.log.recording:
                log.warning("the wrappers return: no steps are recorded any more")
                self.end()

    def end(self) -> None:
        """Put the wrappers back at once; before a swap and before the end of the runtime."""
        with self._lock:
            took_turns, self._steps.turns = self._steps.turns, None
        if self.out or took_turns is not None:
            self._steps.log.arm = ""  # steps of both kinds belong to no arm
            self._set(())

    def _named(self, request: Mapping[str, Any]) -> Collection[str]:
        known = list(self._wrappers())
        parts = request.get("parts", known)
        if not isinstance(parts, list) or not parts or not set(map(str, parts)) <= set(known):
            raise Refused("bad-request", detail=f"'parts' are some of {known}")
        return [str(each) for each in parts]

    def _set(self, leaving: Collection[str], *, turns: Turns | None = None) -> dict[str, float]:
        """Let some wrappers leave and the others return; return what each took, microseconds.

        Turns that have ended change nothing.
        """
        took_us: dict[str, float] = {}
        with self._lock:
            if turns is not None and self._steps.turns is not turns:
                return took_us
            self.out = bool(leaving)
            for name, each in self._wrappers().items():
                begin_s = time.perf_counter()
                if name in leaving:
                    each.suspend()
                else:
                    each.resume()
                took_us[name] = round(1e6 * (time.perf_counter() - begin_s), 1)
        return took_us
