"""``retuned sidecar``: beside one server, in its pod.

The command reads its one option without typer and writes errors without rich: every module that it
loads takes memory of a pod.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from retuned.errors import RetunedError
from retuned.settings import load_settings
from retuned.telemetry.logs import log_to_stderr
from retuned.text import say_error

log = logging.getLogger(__name__)

_MALLOC = {-8: 1, -3: 1 << 16, -1: 1 << 16}
"""``M_ARENA_MAX``, ``M_MMAP_THRESHOLD``, ``M_TRIM_THRESHOLD`` of glibc. All threads share one heap,
because memory that a thread frees stays in the heap of that thread. Memory freed at the end of the
heap returns to the system immediately; glibc would keep more after each large block."""
_LEAST_STEER_S = 0.5
"""Each poll costs the server a little time; a rollback waits for at most this."""


CONFIG_HELP = "YAML or TOML file with settings."
"""What ``--config`` is."""


def sidecar(config: Path | None = None) -> None:
    """Sample, watch and swap beside one server in a pod, by the orders of the cluster's operator.

    The injection sets the operator's address and the name of the pod in the environment.
    """
    _stay_small()
    settings = load_settings(config)
    log_to_stderr(level=settings.log_level, form=settings.log_format)
    from retuned.sidecar.assembly import build  # after the settings: a typo answers at once
    from retuned.sidecar.main import serve

    program, telemetry = build(settings)
    if settings.metrics_port:
        telemetry.serve(settings.metrics_address, port=settings.metrics_port)
    log.info("beside %s, with orders from %s", settings.pod_name, settings.agent_url)
    serve(
        program,
        observe_s=settings.observe_poll_s,
        steer_s=max(settings.steer_poll_s, _LEAST_STEER_S),
        tell_s=settings.report_poll_s,
    )


def _stay_small() -> None:
    """Have memory that was freed go back to the pod; see `_MALLOC`."""
    try:
        allocator = ctypes.CDLL(None)
        for option, value in _MALLOC.items():
            allocator.mallopt(option, value)
    except (OSError, AttributeError):  # another C library, which has no such thing
        log.debug("memory is left as this C library does it")


def run_alone(arguments: Sequence[str] | None = None) -> None:
    """Run the one command without loading the others: what they need is a pod's memory.

    Parameters
    ----------
    arguments
        What follows ``retuned sidecar``; None takes the command line's.
    """
    if arguments is None:
        arguments = sys.argv[2:]
    said = _parser().parse_args(arguments)
    try:
        sidecar(said.config)
    except RetunedError as error:
        sys.exit(say_error(error, as_json=False))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="retuned sidecar", description=sidecar.__doc__, allow_abbrev=False
    )
    parser.add_argument("--config", type=Path, metavar="PATH", help=CONFIG_HELP)
    return parser
