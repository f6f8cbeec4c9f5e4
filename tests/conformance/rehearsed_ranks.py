"""Several real processes as the ranks of one server, whose one kernel is rehearsed: does nothing.

For the tests of what they agree on, and for `benchmarks/ranks.py`, which times the agreement.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from retuned.contract import Digest, Guard
from retuned.stages.swap import SwapKind, SwapOrder

FIRST: Digest = "sha256:" + "1" * 64
SECOND: Digest = "sha256:" + "2" * 64
DEFINITION = {
    "name": "a",
    "op_type": "copy",
    "axes": {"M": {"type": "var"}},
    "inputs": {"x": {"shape": ["M"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["M"], "dtype": "float32"}},
}
RANK = """
import json, sys
from retuned.runtime import attach
from retuned.runtime.shadow.sampler import Comparison
from retuned.runtime.native.cpu import LOADERS

class Rehearsed:
    def __init__(self, *_): pass
    def launcher(self, _): return lambda inputs: inputs[0]
    checked_launcher = launcher
    def capturing(self): return None
    def fingerprint(self, _): return 0

class Rows:
    shape = (4,)

LOADERS["rehearsed"] = Rehearsed
runtime = attach(
    socket_dir=sys.argv[1],
    artifacts_dir=sys.argv[2] or None,
    compare=lambda *_: Comparison(nonfinite=False, ratio=0.0),
)
slot = runtime.slot(json.loads(sys.argv[3]), original=lambda x: x)
print(runtime.socket, flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        slot(Rows())
    print("done", flush=True)
"""


class Rank:
    """One process of the server."""

    def __init__(
        self, folder: Path, *, sockets: Path | None = None, within: str = "", **environment: str
    ) -> None:
        arguments = [str(sockets or folder / "s"), within, json.dumps(DEFINITION)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"XDG_CACHE_HOME": str(folder / "cache")} | environment,
        )

    def started(self) -> Rank:
        """Return it as soon as it can be asked."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip().endswith(".sock")
        return self

    @property
    def name(self) -> str:
        """What the daemon calls it."""
        return f"{self.process.pid}.sock"

    def launch(self, count: int = 1) -> None:
        """Launch its kernel."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def kill(self) -> None:
        """Kill it; nothing is tidied up."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Kill it and close what is open here."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


@contextmanager
def server(
    folder: Path, count: int, *, sockets: Path | None = None, within: str = "", **environment: str
) -> Iterator[list[Rank]]:
    """Run so many processes; they listen in `sockets`, else in ``s`` of the folder.

    Parameters
    ----------
    folder
        For their caches.
    count
        Of processes.
    sockets
        See above.
    within
        The only folder whose artifacts they can see; empty for any.
    environment
        Further variables.
    """
    ranks = [Rank(folder, sockets=sockets, within=within, **environment) for _ in range(count)]
    try:
        for rank in ranks:
            rank.started()
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


def deliver(root: Path, digest: Digest = FIRST, *, code: bytes = b"code" * 100_000) -> Path:
    """Write an artifact that rehearses; return its folder."""
    folder = root / digest[7:]
    folder.mkdir(exist_ok=True)
    (folder / "kernel.so").write_bytes(code)
    manifest = {
        "digest": digest,
        "definition": DEFINITION,
        "language": "rehearsed",
        "entry": "run",
        "binary": "kernel.so",
        "binary_sha256": hashlib.sha256(code).hexdigest(),
    }
    (folder / "artifact.json").write_text(json.dumps(manifest))
    return folder


def order(artifact: Digest | None = FIRST, *, epoch: int = 1) -> SwapOrder:
    """Return the order to swap it in, or the way back without one."""
    return SwapOrder(
        id=f"o{epoch}",
        kind=SwapKind.SWAP if artifact else SwapKind.ROLLBACK,
        proposal="p",
        target="test",
        definition="a",
        artifact=artifact,
        previous=None,
        guard=Guard(bounds={"M": (1, 8)}),
        epoch=epoch,
    )
