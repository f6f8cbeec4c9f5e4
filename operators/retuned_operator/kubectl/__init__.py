"""``kubectl retuned``: status and decisions in a cluster. Cheap to import.

Every command uses the user and the rights of the kubeconfig. The API server checks every decision
again. ``commands`` has all commands, ``decisions`` makes decisions (pure), ``texts`` renders
output, ``cluster_session`` reads and writes the cluster, ``manifests`` changes the files of
``inject``.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

_INTERRUPTED = "kubectl retuned: interrupted\n"
_STATUS = 130


def main() -> None:
    """Run the command line; `retuned.errors` lists the exit codes."""
    try:
        before = signal.signal(signal.SIGINT, _leave)
        from retuned_operator.kubectl.commands import run_command_line

        signal.signal(signal.SIGINT, before)
        run_command_line()
    except KeyboardInterrupt:
        sys.stderr.write(_INTERRUPTED)
        sys.exit(_STATUS)


def complete() -> None:
    """Complete a word for kubectl, which runs ``kubectl_complete-retuned`` with what is typed."""
    from retuned_operator.kubectl.completion import run_completion

    run_completion(sys.argv[1:])


def _leave(_number: int, _frame: FrameType | None) -> None:
    """End immediately while modules are imported, before any work; no import may catch it."""
    os.write(2, _INTERRUPTED.encode())
    os._exit(_STATUS)
