"""``retuned run``: the daemon on one machine."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from retuned.catalog.user import load_definitions
from retuned.cli.doctor_checks import cautions
from retuned.contract import Language
from retuned.lab.harness.sandbox import hide_memory
from retuned.settings import Settings, load_settings
from retuned.standalone.daemon import serve
from retuned.store.lock import only_one
from retuned.store.policy_files import load_policies
from retuned.telemetry.logs import log_to_stderr

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
        If an address is not one of this machine alone, or a channel is only half configured.
    UnreadableInput
        If a policy, a definition or a secret cannot be read.
    """
    from retuned.notify.settings import incoming_of, sinks_of
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
