"""Device of a child: synchronization, and launch timing on the device's clock; child only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any, Protocol

Launch = Callable[[Sequence[Any], Sequence[int]], None]

_FLUSH_BYTES = 512 * 2**20
"""Bytes written between calls if the device does not report its last-level cache.

Twice the 256 MB in front of the memory of AMD's MI300.
"""
_LEAD_US, _LEAD_MAX_US = 30.0, 5_000.0
_LEAD_SHARE = 1.5
_PROBE = 4096


class Device(Protocol):
    """The device that launches run on."""

    name: str
    is_host: bool
    """Whether this processor interprets the kernels."""

    def wait(self) -> None:
        """Wait for all launches to end; raise errors that the device reports."""
        ...

    def time(
        self, launch: Launch, turns: Sequence[Sequence[Any]], lengths: Sequence[int]
    ) -> tuple[int, bool]:
        """Launch once per turn; return nanoseconds, and whether launches stayed ahead."""
        ...


class HostDevice:
    """No device: the interpreter and this processor's clock."""

    name = "cpu"
    is_host = True

    def wait(self) -> None:
        """Nothing runs later."""

    def time(
        self, launch: Launch, turns: Sequence[Sequence[Any]], lengths: Sequence[int]
    ) -> tuple[int, bool]:
        start = perf_counter_ns()
        for tensors in turns:
            launch(tensors, lengths)
        return perf_counter_ns() - start, True


class GpuDevice:
    """A GPU timed on cold caches, with events around queued launches.

    Before each call a buffer of twice the last-level cache is written, so that every call reads its
    tensors from memory. Then the device is kept busy for as long as the launches take to enqueue.
    The events then enclose kernels without gaps, and the interpreter's launch time is not measured.

    Raises
    ------
    RuntimeError
        If the device does not compute correctly: an earlier kernel may have broken it.
    """

    name = "cuda"
    is_host = False

    def __init__(self) -> None:
        import torch

        self._torch = torch
        torch.cuda.init()
        properties = torch.cuda.get_device_properties(0)
        cache = int(getattr(properties, "L2_cache_size", 0))
        amd = getattr(torch.version, "hip", None) is not None
        flush = _FLUSH_BYTES if amd else max(2 * cache, 64 * 2**20)
        self._flush = torch.empty(flush, dtype=torch.uint8, device=self.name)
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self._launch_us = 20.0
        self._probe()
        self._cycles_per_us = self._calibrate()

    def wait(self) -> None:
        self._torch.cuda.synchronize()

    def time(
        self, launch: Launch, turns: Sequence[Sequence[Any]], lengths: Sequence[int]
    ) -> tuple[int, bool]:
        start, end = self._events
        lead_us = min(_LEAD_MAX_US, _LEAD_US + _LEAD_SHARE * self._launch_us * len(turns))
        self._flush.zero_()
        self._torch.cuda._sleep(int(lead_us * self._cycles_per_us))
        start.record()
        begin = perf_counter_ns()
        for tensors in turns:
            launch(tensors, lengths)
        own_us = (perf_counter_ns() - begin) / 1e3 / len(turns)
        on_time = not start.query()
        end.record()
        end.synchronize()
        # The slowest of late launches decides, and is forgotten slowly.
        self._launch_us = max(own_us, 0.9 * self._launch_us + 0.1 * own_us)
        return round(start.elapsed_time(end) * 1e6), on_time

    def _probe(self) -> None:
        """Check the device with an exact, known result."""
        numbers = self._torch.arange(_PROBE, device=self.name, dtype=self._torch.int64)
        if int(numbers.sum().item()) != _PROBE * (_PROBE - 1) // 2:
            raise RuntimeError("the device does not compute")

    def _calibrate(self) -> float:
        """Return the cycles of the device's idle loop per microsecond."""
        start, end = self._events
        cycles = 1_000_000
        self._torch.cuda._sleep(cycles)
        start.record()
        self._torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        return cycles / max(float(start.elapsed_time(end)) * 1e3, 1.0)


def open_device(name: str) -> Device:
    """Return the device: ``cuda`` for GPUs of either vendor, ``cpu`` for the interpreter."""
    return HostDevice() if name == "cpu" else GpuDevice()
