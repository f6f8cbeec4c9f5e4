"""The ``retuned`` command. Cheap to import: `commands` has all that takes time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

_INTERRUPTED = "retuned: interrupted\n"
_STATUS = 130


def main() -> None:
    """Run the command line; `retuned.errors` lists the exit codes.

    With ``--json`` an error is one object on stdout too: ``{"error": {code, where, message}}``.
    """
    try:
        before = signal.signal(signal.SIGINT, _leave)
        program = _program()
        signal.signal(signal.SIGINT, before)
        program()
    except KeyboardInterrupt:
        sys.stderr.write(_INTERRUPTED)
        sys.exit(_STATUS)


def _program() -> Callable[[], None]:
    if sys.argv[1:2] == ["sidecar"]:
        from retuned.cli.sidecar import run_alone

        return run_alone
    from retuned.cli.commands import run_command_line

    return run_command_line


def _leave(_number: int, _frame: FrameType | None) -> None:
    """End at once while modules are imported: nothing is begun, and no import may catch it."""
    os.write(2, _INTERRUPTED.encode())
    os._exit(_STATUS)
