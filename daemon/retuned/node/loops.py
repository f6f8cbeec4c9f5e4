"""Loops: steps of a program that must not die, and the wait for its end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from retuned.errors import RetunedError
from retuned.ports import Telemetry

log = logging.getLogger(__name__)

_WAKE_S = 0.5
"""A signal that the kernel delivers to another thread does not wake the main thread, which alone
runs Python's handlers."""


def wait_until(stop: threading.Event) -> None:
    """Wait in the main thread until a signal handler sets the event."""
    while not stop.wait(_WAKE_S):
        pass


def attempt(telemetry: Telemetry, name: str, step: Callable[[], object]) -> bool:
    """Do a step; False where it failed. The only place of a program that catches any exception."""
    began_s = time.perf_counter()
    try:
        step()
    except RetunedError as error:
        log.warning("%s: %s", name, error)
        telemetry.count("retuned_step_errors_total", step=name, expected="true")
        return False
    except Exception:
        log.exception("%s failed", name)
        telemetry.count("retuned_step_errors_total", step=name, expected="false")
        return False
    finally:
        telemetry.observe("retuned_step_duration_seconds", time.perf_counter() - began_s, step=name)
    return True
