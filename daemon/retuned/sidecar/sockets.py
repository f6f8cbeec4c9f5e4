"""The server's sockets as a sidecar finds them, whatever user the server runs as."""

from __future__ import annotations

import os
from pathlib import Path

from retuned.runtime_client.client import RuntimeSocket
from retuned.runtime_client.processes import RuntimeProcesses

_VARIABLE = "RETUNED_ALLOWED_UIDS"


class PodProcesses(RuntimeProcesses):
    """The runtimes in the pod's folder of sockets.

    Nobody outside can tell as which user a server's image runs. The folder is a volume that only
    containers of this pod mount, so whoever could make a socket there is part of the server: a
    process that listens is believed if it is of the user who owns its socket.
    """

    def sockets(self) -> list[Path]:
        """Return the sockets there are, whose owners are believed from now on."""
        paths = super().sockets()
        owners = {0}
        for path in paths:
            try:
                owners.add(path.lstat().st_uid)
            except OSError:  # it went meanwhile
                continue
        # what the other end of this protocol reads as well, and the one place that is asked
        os.environ[_VARIABLE] = ",".join(str(uid) for uid in sorted(owners))
        return paths


class PodSocket(RuntimeSocket):
    """Talks to every runtime in the pod's folder of sockets."""

    PROCESSES = PodProcesses
