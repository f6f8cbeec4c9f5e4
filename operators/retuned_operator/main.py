"""The program: read the settings, run the operator until a signal ends it, exit with a code.

With the argument ``rollback-all`` it rolls all swaps back instead (`retuned_operator.uninstall`).
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from retuned.errors import RetunedError, UsageError
from retuned.telemetry.logs import log_to_stderr
from retuned_operator.assembly import Operator
from retuned_operator.kube.client import connect
from retuned_operator.settings import Settings, load_settings
from retuned_operator.uninstall import rollback_all

log = logging.getLogger(__name__)

_USAGE = "usage: retuned-operator [--config FILE] [rollback-all]"
_ROLLBACK_ALL = "rollback-all"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator until SIGTERM or SIGINT, or roll all swaps back; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    back = words[-1:] == [_ROLLBACK_ALL]
    try:
        settings = load_settings(_config(words[:-1] if back else words))
        log_to_stderr(level=settings.log_level, form=settings.log_format)
        if back:
            return _roll_back(settings)
        operator = Operator(settings)
        stop = threading.Event()
        _until_told(stop)
        operator.run(stop)
    except RetunedError as error:
        sys.stderr.write(f"retuned-operator: {error}\n")
        return error.exit_code
    log.info("ended")
    return 0


def _roll_back(settings: Settings) -> int:
    api = connect(settings.kubeconfig)
    try:
        count = rollback_all(api, namespaces=settings.namespaces)
    finally:
        api.close()
    log.info("no swap is in force; %d were rolled back", count)
    return 0


def _config(words: Sequence[str]) -> Path | None:
    if not words:
        return None
    if len(words) == 2 and words[0] == "--config":
        return Path(words[1])
    raise UsageError(_USAGE)


def _until_told(stop: threading.Event) -> None:
    def told(number: int, _: FrameType | None) -> None:
        log.info("ending after signal %d", number)
        stop.set()

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, told)
