"""The server's sockets as a sidecar finds them, whatever user the server runs as."""

from __future__ import annotations

import os
from pathlib import Path

from retuned.runtime_client.client import RuntimeSocket
from retuned.runtime_client.processes import RuntimeProcesses

_VARIABLE = "RETUNED_ALLOWED_UIDS"


class PodProcesses(RuntimeProcesses):
    """The runtimes in the pod's folder of sockets.

    The user of a server's image is not known from outside. Only containers of this pod mount the
    folder, so a process that can make a socket there is part of the server. A process that
    listens is trusted if its user owns the socket.
    """

    def sockets(self) -> list[Path]:
        """Return the sockets, whose owners are trusted from now on."""
        paths = super().sockets()
        owners = {0}
        for path in paths:
            try:
                owners.add(path.lstat().st_uid)
            except OSError:  # it went meanwhile
                continue
        # the runtime reads the same variable, and the client checks owners only against it
        os.environ[_VARIABLE] = ",".join(str(uid) for uid in sorted(owners))
        return paths


class PodSocket(RuntimeSocket):
    """Talks to every runtime in the pod's folder of sockets."""

    PROCESSES = PodProcesses
