"""What devices do beside the work: clocks, power, throttling, and who else is on them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from retuned.metrics import Row
from retuned.ports import DeviceState

SLOW_RATIO = 0.9
"""A busy device below this part of its highest clock is worth a word."""
_BUSY_RATIO = 0.5
_THROTTLES = ("power", "thermal", "hardware", "software", "other")
_PLAIN: Mapping[str, Callable[[DeviceState], float | None]] = {
    "retuned_gpu_power_watts": lambda each: each.power_w,
    "retuned_gpu_power_limit_watts": lambda each: each.power_limit_w,
    "retuned_gpu_temperature_celsius": lambda each: each.temperature_c,
    "retuned_gpu_busy_ratio": lambda each: each.busy_ratio,
    "retuned_gpu_memory_used_bytes": lambda each: each.memory_used_bytes,
    "retuned_gpu_clock_ratio": lambda each: clock_ratio(each),
}


def clock_ratio(state: DeviceState) -> float | None:
    """Return the core clock over the highest one; None where either is not known."""
    if state.core_hz is None or not state.core_max_hz:
        return None
    return state.core_hz / state.core_max_hz


def rows(
    states: Sequence[DeviceState], *, servers: AbstractSet[int], lab: AbstractSet[int]
) -> dict[str, list[Row]]:
    """Return the rows of every table about devices; what is not known has none.

    Parameters
    ----------
    servers
        Processes of the watched servers.
    lab
        Processes of experiments.
    """
    found: dict[str, list[Row]] = {name: [] for name in _PLAIN}
    for name, value in _PLAIN.items():
        for each in states:
            known = value(each)
            if known is not None:
                found[name].append(({"gpu": each.gpu}, float(known)))
    found["retuned_gpu_clock_hertz"] = [
        ({"gpu": each.gpu, "clock": clock}, float(hz))
        for each in states
        for clock, hz in (("core", each.core_hz), ("memory", each.memory_hz))
        if hz is not None
    ]
    found["retuned_gpu_throttled"] = [
        ({"gpu": each.gpu, "reason": reason}, float(reason in each.throttled))
        for each in states
        if each.throttled is not None
        for reason in _THROTTLES
    ]
    found["retuned_gpu_processes"] = [
        ({"gpu": each.gpu, "whose": whose}, float(count))
        for each in states
        if each.processes is not None
        for whose, count in _whose(each.processes, servers=servers, lab=lab).items()
    ]
    return found


def sentence(states: Sequence[DeviceState], *, ours: AbstractSet[int]) -> str:
    """Say what could make the same work slower; empty where nothing is to be said.

    Examples
    --------
    >>> sentence([DeviceState(gpu="nvidia-0", throttled=frozenset({"power"}))], ours=set())
    'nvidia-0 is throttled (power)'
    """
    return "; ".join(word for each in states for word in _words(each, ours))


def _words(state: DeviceState, ours: AbstractSet[int]) -> list[str]:
    found = []
    if state.throttled:
        found.append(f"{state.gpu} is throttled ({', '.join(sorted(state.throttled))})")
    ratio = clock_ratio(state)
    busy = state.busy_ratio is None or state.busy_ratio >= _BUSY_RATIO
    if ratio is not None and ratio < SLOW_RATIO and busy:  # idle devices clock down
        found.append(f"{state.gpu} runs at {100 * ratio:.0f} % of its highest clock")
    others = len(set(state.processes or ()) - ours)
    if others:
        found.append(f"{state.gpu} is shared with {others} other process(es)")
    return found


def _whose(
    processes: Sequence[int], *, servers: AbstractSet[int], lab: AbstractSet[int]
) -> dict[str, int]:
    present = set(processes)
    ours = {"server": len(present & servers), "lab": len(present & lab - servers)}
    return {**ours, "others": len(present) - sum(ours.values())}
