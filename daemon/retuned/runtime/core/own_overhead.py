"""What Retuned costs this server: its wrappers leave the server's calls, and return.

A server whose wrappers are out calls its functions as it would without Retuned. Out are the hook of
Triton's launches, the hooks of tunables and the count of graph replays. The hook of steps stays,
because it times both arms. Operators stay where they were registered.

The wrappers leave for two reasons. As the arm of a live proof they leave for the time of a block or
of a few steps, so that one process shows what they cost. Where that was too much, they are in the
server's calls for a share of the time only, and what they count is a sample.
"""

from __future__ import annotations

import contextlib
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
"""Reason code of what does not run while the wrappers are out to be measured."""
PERIOD_S = 10.0
"""Wrappers that are in the calls for a share of the time return once in this time."""
LEAST_SHARE = 0.01
_HOLD_S = 600.0
"""How long wrappers stay after work that needs them: a swap that was prepared is then in force."""
_SWITCH_WAIT_S = 0.2


class Wrapper(Protocol):
    """Replaces functions of the server, and gives them back for a while."""

    def suspend(self) -> None:
        """Put the server's own functions back, and keep what is known."""
        ...

    def resume(self) -> None:
        """Replace them again; does nothing if they are replaced."""
        ...


class OwnOverhead:
    """Operations ``overhead-arm`` and ``overhead-share`` of the control socket.

    Parameters
    ----------
    wrappers
        All that can leave the server's calls, by name.
    in_force
        Returns the name of a swap in force; empty without one. It would end with the wrappers.
    stays
        Returns what cannot leave, by name.
    now_s
        Monotonic time, seconds.
    """

    def __init__(
        self,
        steps: Steps,
        *,
        wrappers: Callable[[], Mapping[str, Wrapper]],
        in_force: Callable[[], str],
        stays: Callable[[], Sequence[str]] = tuple,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps, self._wrappers = steps, wrappers
        self._in_force, self._stays, self._now_s = in_force, stays, now_s
        self._lock = threading.Lock()
        """Held while wrappers leave or return: turns do so on the launching thread."""
        self.out = False
        """Whether wrappers are out to be measured."""
        self._paused = False
        self._share = 1.0
        self._hold_until_s = 0.0
        self._out_s = 0.0
        self._out_since_s: float | None = None

    def operations(self) -> dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
        return {"overhead-arm": self.answer, "overhead-share": self.set_share}

    def state(self) -> dict[str, Any]:
        """Return how long launches were not counted, for what is computed from counts.

        ``out_s`` of the ``now_s`` seconds of the monotonic clock the wrappers were out.
        """
        now_s, since_s = self._now_s(), self._out_since_s
        out_s = self._out_s + (now_s - since_s if since_s is not None else 0.0)
        return {"share": self._share, "out_s": round(out_s, 3), "now_s": round(now_s, 3)}

    def set_share(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Keep the wrappers in the server's calls for a share of the time; 1 is all of it.

        Raises
        ------
        Refused
            ``bad-request``.
        """
        share = request.get("share")
        if not isinstance(share, (int, float)) or not LEAST_SHARE <= share <= 1.0:
            raise Refused("bad-request", detail=f"'share' is a number from {LEAST_SHARE} to 1")
        if share != self._share:
            log.info("launches are counted in %.0f %% of the time", 100.0 * share)
        self._share = float(share)
        return self.state()

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
        if not on and named:
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
        """Put the wrappers back if step recording has ended; let them pause or go on."""
        self._steps.log.expire()
        measured = self.out or self._steps.turns is not None
        if measured and not self._steps.log.recording:
            log.warning("the wrappers return: no steps are recorded any more")
            self._return()
        elif not measured and self._paused is not self._may_pause():
            self._pause(not self._paused)

    def end(self) -> None:
        """Put the wrappers back at once; before a swap and before the end of the runtime."""
        self._hold_until_s = self._now_s() + _HOLD_S
        self._return()

    def _return(self) -> None:
        with self._lock:
            took_turns, self._steps.turns = self._steps.turns, None
        if self.out or took_turns is not None:
            self._steps.log.arm = ""  # steps of both kinds belong to no arm
        if self.out or self._paused or took_turns is not None:
            self._paused = False
            self._set(())

    def _may_pause(self) -> bool:
        """Whether the wrappers are to be out now, because of their share of the time."""
        now_s = self._now_s()
        if self._share >= 1.0 or self._steps.log.recording or now_s < self._hold_until_s:
            return False
        return now_s % PERIOD_S >= self._share * PERIOD_S and not self._in_force()

    def _pause(self, paused: bool) -> None:
        def work(_: Any) -> None:  # noqa: ANN401 - the server's worker
            self._paused = paused
            self._set(list(self._wrappers()) if paused else (), measured=False)

        with contextlib.suppress(Refused):  # a long step: with the next call
            self._steps.at_safe_point(work, wait_s=_SWITCH_WAIT_S)

    def _named(self, request: Mapping[str, Any]) -> Collection[str]:
        known = list(self._wrappers())
        parts = request.get("parts", known)
        if not isinstance(parts, list) or not parts or not set(map(str, parts)) <= set(known):
            raise Refused("bad-request", detail=f"'parts' are some of {known}")
        return [str(each) for each in parts]

    def _set(
        self, leaving: Collection[str], *, turns: Turns | None = None, measured: bool = True
    ) -> dict[str, float]:
        """Let some wrappers leave and the others return; return what each took, microseconds.

        Turns that have ended change nothing.
        """
        took_us: dict[str, float] = {}
        with self._lock:
            if turns is not None and self._steps.turns is not turns:
                return took_us
            self.out = bool(leaving) and measured
            for name, each in self._wrappers().items():
                begin_s = time.perf_counter()
                if name in leaving:
                    each.suspend()
                else:
                    each.resume()
                took_us[name] = round(1e6 * (time.perf_counter() - begin_s), 1)
            self._note(bool(leaving))
        return took_us

    def _note(self, out: bool) -> None:
        now_s = self._now_s()
        if self._out_since_s is not None:
            self._out_s += now_s - self._out_since_s
        self._out_since_s = now_s if out else None
