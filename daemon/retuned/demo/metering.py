"""How fast the server is, as its client counts it: rates, the swap's effect, the timeline."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from math import log, sqrt
from statistics import fmean, stdev
from typing import Any

from retuned.demo.processes import Child, DemoFailed
from retuned.lab.statistics import Estimate

_CONFIDENCE = 0.95
"""Of each bound of the server's speedup."""


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


def gain_of(toggle: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the server's speedup by the swap, each "on" paired with the "off" beside it.

    Parameters
    ----------
    toggle
        ``state`` and ``tokens_per_s``, two by two: one "on" and one "off" in either order.

    Returns
    -------
    dict or None
        None below two pairs, or where nothing was served in one of them.
    """
    ratios = []
    for first, second in zip(toggle[::2], toggle[1::2], strict=True):
        rates = {str(t["state"]): float(t["tokens_per_s"]) for t in (first, second)}
        if min(rates.values()) <= 0.0:
            return None
        ratios.append(log(rates["on"] / rates["off"]))
    if len(ratios) < 2:
        return None
    error = stdev(ratios) / sqrt(len(ratios))
    found = Estimate(mean=fmean(ratios), error=error, dof=len(ratios) - 1)
    return {"pairs": len(ratios), "speedup": found.interval(_CONFIDENCE).model_dump()}


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
