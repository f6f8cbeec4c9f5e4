"""How fast the server is, as its client counts it: rates and the timeline.

Throughput over any interval, from work noted when it was done.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retuned.demo.processes import Child, DemoFailed


class Meter:
    """Asks the client what it counted.

    Parameters
    ----------
    client
        The client's process.
    """

    def __init__(self, client: Child) -> None:
        self._client = client

    def rate(self, length_s: float, *, ramp_s: float) -> float:
        """Return tokens per second over the coming interval, after a ramp; takes real time.

        Raises
        ------
        DemoFailed
            If the client cannot say.
        """
        time.sleep(ramp_s)  # the interval under measurement is real time
        start = time.monotonic()
        time.sleep(length_s)
        self._client.say(f"rate {start} {time.monotonic()}")
        rate = self._client.answer(timeout_s=60)
        if "tokens_per_s" not in rate:
            raise DemoFailed(f"the client could not measure: {rate}")
        return float(rate["tokens_per_s"])


def timeline_of(
    bins: Sequence[tuple[float, int, int]],
    phases: Sequence[Mapping[str, Any]],
    *,
    origin_s: float,
) -> list[dict[str, Any]]:
    """Return tokens per second in bins of one second, each with the phase it fell into.

    Parameters
    ----------
    bins
        The client's: monotonic seconds, prompt tokens, output tokens.
    phases
        ``name`` and ``start_s`` after the origin, rising; the first is there from the beginning.
    origin_s
        Monotonic seconds at which the story began.
    """
    tokens: dict[int, int] = {}
    for t_s, prompt, output in bins:
        second = int(t_s - origin_s)
        tokens[second] = tokens.get(second, 0) + prompt + output
    return [
        {"t_s": second, "tokens_per_s": served, "phase": _phase_at(phases, second)}
        for second, served in sorted(tokens.items())
    ]


def _phase_at(phases: Sequence[Mapping[str, Any]], t_s: float) -> str:
    names = [phase["name"] for phase in phases if phase["start_s"] <= t_s]
    return str(names[-1]) if names else str(phases[0]["name"])


_BIN_S = 0.005  # one engine step delivers many tokens at once: finer than this says nothing more


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens whose computation showed at one moment."""

    t_s: float
    """Monotonic clock of this machine, seconds; the same for all its processes."""
    prompt_tokens: int
    """Prompt tokens, counted when the first token of their answer arrives."""
    output_tokens: int
    """Generated tokens, counted as each arrives."""


class Timeline:
    """Work in order of time, in bins of 5 ms so that hours fit into memory."""

    def __init__(self) -> None:
        self._closed: list[Work] = []
        self._open: Work | None = None

    def add(self, t_s: float, *, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        """Note work; times must not go back."""
        if self._open is not None and t_s - self._open.t_s < _BIN_S:
            prompt_tokens += self._open.prompt_tokens
            output_tokens += self._open.output_tokens
            t_s = self._open.t_s
        elif self._open is not None:
            self._closed.append(self._open)
        self._open = Work(t_s, prompt_tokens, output_tokens)

    def events(self) -> tuple[Work, ...]:
        """Return all work so far, oldest first."""
        return (*self._closed, *(() if self._open is None else (self._open,)))


def tokens_per_s(events: Iterable[Work], t0: float, t1: float) -> float:
    """Return prompt and generated tokens finished in [t0, t1), per second.

    Work counts when it was done, not when its request ended, so that intervals of a few seconds
    compare: a long answer is spread over the intervals it was computed in.

    Raises
    ------
    ValueError
        If the interval is empty.

    Examples
    --------
    >>> tokens_per_s([Work(0.5, 30, 1), Work(1.5, 0, 1), Work(2.0, 0, 1)], 0.0, 2.0)
    16.0
    """
    if not t1 > t0:
        raise ValueError(f"an interval must end after it starts, got {t0} to {t1}")
    done = sum(e.prompt_tokens + e.output_tokens for e in events if t0 <= e.t_s < t1)
    return done / (t1 - t0)
