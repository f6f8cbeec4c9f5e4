"""``retuned run``: the daemon on one machine.

``retuned sidecar``: beside one server, in its pod.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from retuned.catalog.user import load_definitions
from retuned.cli.doctor_checks import cautions
from retuned.contract import Language
from retuned.errors import RetunedError
from retuned.lab.harness.sandbox import hide_memory
from retuned.settings import Settings, load_settings
from retuned.standalone.daemon import serve
from retuned.standalone.lock import only_one
from retuned.store.policy_files import load_policies
from retuned.telemetry.logs import log_to_stderr
from retuned.text import say_error

log = logging.getLogger(__name__)

_NO_GPU = (
    "no GPU here, so kernels are taken to be C++ for the processor. Triton kernels are observed "
    "only: their variants are timed on a GPU, so none is tried, and live Triton kernels of "
    "attached servers are counted and left alone; to tune them run the daemon where a GPU is"
)


def run(
    config: Annotated[Path | None, typer.Option(help="YAML or TOML file with settings.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Overrides the setting.")] = None,
    watch: Annotated[
        list[Path] | None, typer.Option(help="Folder with traces; may be given again.")
    ] = None,
    policy: Annotated[
        list[Path] | None, typer.Option(help="Gate policy; may be given again.")
    ] = None,
    review: Annotated[
        str | None,
        typer.Option(help="Serve the review page here, HOST:PORT, such as 127.0.0.1:9476."),
    ] = None,
) -> None:
    """Watch, experiment, propose, swap and keep watching, until stopped."""
    settings = load_settings(
        config,
        {"state_dir": state_dir, "watch_dirs": watch, "policy_files": policy, "review": review},
    )
    log_to_stderr(level=settings.log_level, form=settings.log_format)
    hide_memory()  # it signs evidence and knows the endpoint's key; candidates run as its user
    from retuned.standalone.assembly import build, language_of
    from retuned.standalone.notifications import channelled
    from retuned.standalone.review_page import served  # after the settings: a typo answers at once

    check_input(settings)
    with only_one(settings.state_dir):
        loop, telemetry = build(settings)
        if settings.metrics_port:
            telemetry.serve(settings.metrics_address, port=settings.metrics_port)
            place = f"{settings.metrics_address}:{settings.metrics_port}"
            log.info("metrics on http://%s/metrics", place)
        if settings.lab_language == "auto" and language_of(settings) is Language.CPU_CPP:
            log.info("%s", _NO_GPU)
        for caution in cautions(settings):
            log.warning("%s", caution)
        log.info("watching %s, state in %s", _folders(settings), settings.state_dir)
        with (
            served(settings, loop) as page,
            channelled(settings, clock=loop.ctx.clock, telemetry=telemetry) as place,
        ):
            if page:
                log.info("review page on %s", page)
            if place:
                log.info("channels are heard on %s", place)
            serve(loop, observe_s=settings.observe_poll_s, steer_s=settings.steer_poll_s)


def check_input(settings: Settings) -> None:
    """Read all that people wrote, before a folder is made or a port is taken.

    Raises
    ------
    UsageError
        If an address is none of this machine alone, or a channel is half set.
    UnreadableInput
        If a policy, a definition or a secret cannot be read.
    """
    from retuned.channels.configuring import incoming_of, sinks_of
    from retuned.review.server import place_of

    if settings.review:
        place_of(settings.review)
    if settings.channels_listen:
        place_of(settings.channels_listen, what="channels_listen")
    sinks_of(settings)
    incoming_of(settings)
    load_policies(settings.policy_files)
    load_definitions(settings.definition_files)


def _folders(settings: Settings) -> str:
    return ", ".join(str(folder) for folder in settings.watch_dirs) or "no folder"


_MALLOC = {-8: 1, -3: 1 << 16, -1: 1 << 16}
"""``M_ARENA_MAX``, ``M_MMAP_THRESHOLD``, ``M_TRIM_THRESHOLD`` of glibc: all threads share one heap,
for with one each what one freed stays with it; and what is freed at its end goes back at once,
where glibc would keep more after each large block that it has seen."""
_LEAST_STEER_S = 0.5
"""A look at the server costs it a little; a way back waits for at most this."""


CONFIG_HELP = "YAML or TOML file with settings."
"""What ``--config`` is."""


def sidecar(config: Path | None = None) -> None:
    """Sample, watch and swap beside one server in a pod, as the cluster's operator says.

    Where the operator is, and which pod this is, the injection says in the environment.
    """
    _stay_small()
    settings = load_settings(config)
    log_to_stderr(level=settings.log_level, form=settings.log_format)
    from retuned.sidecar.assembly import build  # after the settings: a typo answers at once
    from retuned.sidecar.main import serve

    program, telemetry = build(settings)
    if settings.metrics_port:
        telemetry.serve(settings.metrics_address, port=settings.metrics_port)
    log.info("beside %s, told by %s", settings.pod_name, settings.agent_url)
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
