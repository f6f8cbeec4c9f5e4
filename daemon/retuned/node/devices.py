"""What devices do beside the work: clocks, power, throttling, and who else is on them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress

from pydantic import ValidationError

from retuned.ports import DeviceState
from retuned.stages.drift import GpuObservation, Throttle, gpu_words
from retuned.telemetry import Row

_PLAIN: Mapping[str, Callable[[DeviceState], float | None]] = {
    "retuned_gpu_power_watts": lambda each: each.power_w,
    "retuned_gpu_power_limit_watts": lambda each: each.power_limit_w,
    "retuned_gpu_temperature_celsius": lambda each: each.temperature_c,
    "retuned_gpu_busy_ratio": lambda each: each.busy_ratio,
    "retuned_gpu_memory_used_bytes": lambda each: each.memory_used_bytes,
    "retuned_gpu_clock_ratio": lambda each: _seen(each, None).clock_ratio,
}


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
        ({"gpu": each.gpu, "reason": str(reason)}, float(reason in each.throttled))
        for each in states
        if each.throttled is not None
        for reason in Throttle
    ]
    found["retuned_gpu_processes"] = [
        ({"gpu": each.gpu, "whose": whose}, float(count))
        for each in states
        if each.processes is not None
        for whose, count in _whose(each.processes, servers=servers, lab=lab).items()
    ]
    return found


def seen(states: Sequence[DeviceState], *, ours: AbstractSet[int]) -> tuple[GpuObservation, ...]:
    """Return the state of devices for reports; impossible numbers count as unknown.

    Parameters
    ----------
    ours
        Processes of servers and experiments, as the devices number them.
    """
    return tuple(
        _seen(each, None if each.processes is None else len(set(each.processes) - ours))
        for each in states
    )


def sentence(states: Sequence[DeviceState], *, ours: AbstractSet[int]) -> str:
    """Return what could make the same work slower, as a sentence; empty if nothing does.

    Examples
    --------
    >>> sentence([DeviceState(gpu="nvidia-0", throttled=frozenset({"power"}))], ours=set())
    'nvidia-0 is throttled (power)'
    """
    return gpu_words(seen(states, ours=ours))


def _seen(state: DeviceState, others: int | None) -> GpuObservation:
    numbers = {
        "core_hz": state.core_hz,
        "core_max_hz": state.core_max_hz,
        "power_w": state.power_w,
        "power_limit_w": state.power_limit_w,
        "temperature_c": state.temperature_c,
        "busy_ratio": state.busy_ratio,
        "others": others,
    }
    reasons = state.throttled
    throttled = None if reasons is None else tuple(sorted({_throttle(each) for each in reasons}))
    found = GpuObservation(gpu=state.gpu, throttled=throttled)
    for name, value in numbers.items():
        with suppress(ValidationError):
            found = GpuObservation.model_validate({**dict(found), name: value})
    return found


def _throttle(word: str) -> Throttle:
    return Throttle(word) if word in set(Throttle) else Throttle.OTHER


def _whose(
    processes: Sequence[int], *, servers: AbstractSet[int], lab: AbstractSet[int]
) -> dict[str, int]:
    present = set(processes)
    ours = {"server": len(present & servers), "lab": len(present & lab - servers)}
    return {**ours, "others": len(present) - sum(ours.values())}
