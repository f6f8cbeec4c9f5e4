"""The user at the other end of a connection within this machine, by the kernel's tables.

Linux lists every TCP socket with the user that opened it. So the page identifies a browser on this
machine without a password, and distinguishes two people on one machine. A connection that is not in
the list, is there twice, or comes from another machine is not identified.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc/net")
_STATE_ESTABLISHED = "01"
_STATES = frozenset({_STATE_ESTABLISHED, "04", "05", "08"})
"""Established, or being closed by one side while the last request is answered."""


def uid_of_peer(
    client: tuple[str, int], server: tuple[str, int], *, proc: Path = PROC
) -> int | None:
    """Return the user that opened the other end of a connection; None where that is not certain.

    Parameters
    ----------
    client, server
        Address and port of the other end and of this one.
    proc
        Folder with ``tcp`` and ``tcp6``.
    """
    try:
        theirs, ours = _written(client), _written(server)
    except ValueError:
        return None
    if theirs is None or ours is None:
        return None
    found = {
        uid
        for name in ("tcp", "tcp6")
        for local, remote, state, uid in _rows(proc / name)
        if (local, remote) == (theirs, ours) and state in _STATES
    }
    return found.pop() if len(found) == 1 else None


def _written(place: tuple[str, int]) -> tuple[str, int] | None:
    """Return an address of this machine alone in one form; None for any other."""
    address = ipaddress.ip_address(place[0].partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    return (address.packed.hex(), place[1]) if address.is_loopback else None


def _rows(path: Path) -> Iterator[tuple[tuple[str, int], tuple[str, int], str, int]]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        parts = line.split()
        if len(parts) < 8:
            continue
        yield _place(parts[1]), _place(parts[2]), parts[3], int(parts[7])


def _place(text: str) -> tuple[str, int]:
    """Read ``0100007F:1F90``: words in the machine's own byte order, and a port."""
    address, _, port = text.partition(":")
    words = [bytes.fromhex(address[at : at + 8]) for at in range(0, len(address), 8)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    packed = b"".join(words)
    if len(packed) == 16 and packed.startswith(bytes(10) + b"\xff\xff"):
        packed = packed[12:]  # an IPv4 peer of a socket that takes both
    return packed.hex(), int(port, 16)
