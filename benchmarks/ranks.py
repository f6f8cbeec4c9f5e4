"""What agreeing costs: phases over several processes, a rank that dies, delivery, signatures.

    python -m benchmarks.ranks [--rounds 30] [--ranks 1 2 4 8]

Each rank is a separate process with one slot whose kernel does nothing, so that only the agreement
is timed, through sockets, as the daemon does it:

- `prepare`, `commit` (a vote and a flip) and `rollback` (a flip), by the number of ranks; subjects
  follow each other within a round, rounds follow each other;
- `lost`: one of four ranks is killed after all have prepared: from the commit's beginning to the
  refusal, with what the others had prepared dropped;
- `deliver`: an artifact of 8 MiB over the socket to one process that has never seen it;
- `verify`: one Ed25519 signature by the runtime's own code.

Raw numbers, in ms, are in benchmarks/results/ranks.json; times are wall time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.conformance import rehearsed_ranks
from tests.conformance.rehearsed_ranks import Rank, order

from retuned.contract import Digest
from retuned.errors import TemporaryError
from retuned.runtime.artifacts.ed25519 import verify
from retuned.runtime_client.client import RuntimeSocket

RESULT = Path(__file__).resolve().parent / "results" / "ranks.json"


@contextmanager
def server(folder: Path, count: int, *, within: str = "") -> Iterator[list[Rank]]:
    """Run ranks that listen in a new folder, which `now` leads to."""
    sockets = folder / secrets.token_hex(4)
    (folder / "now").unlink(missing_ok=True)
    (folder / "now").symlink_to(sockets)
    with rehearsed_ranks.server(folder, count, sockets=sockets, within=within) as ranks:
        yield ranks


def artifact(root: Path, *, size_bytes: int) -> tuple[Digest, Path]:
    code = secrets.token_bytes(size_bytes)
    digest = "sha256:" + hashlib.sha256(code).hexdigest()
    return digest, rehearsed_ranks.deliver(root, digest, code=code)


def timed_ms(do: Callable[[], object]) -> float:
    begin_ns = time.perf_counter_ns()
    do()
    return (time.perf_counter_ns() - begin_ns) / 1e6


def phases(folder: Path, count: int, *, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"prepare": [], "commit": [], "rollback": []}
    with server(folder, count):
        swapper = RuntimeSocket(folder / "now")
        swapper.commit(order(None, epoch=1))  # the term is claimed once
        for number in range(rounds):
            digest, place = artifact(folder, size_bytes=64 << 10)
            forward, back = order(digest, epoch=2 * number + 2), order(None, epoch=2 * number + 3)
            found["prepare"].append(
                timed_ms(lambda f=forward, p=place: swapper.prepare(f, artifact_dir=p))  # type: ignore[misc]
            )
            found["commit"].append(timed_ms(lambda f=forward: swapper.commit(f)))  # type: ignore[misc]
            found["rollback"].append(timed_ms(lambda b=back: swapper.commit(b)))  # type: ignore[misc]
    return found


def lost(folder: Path) -> float:
    with server(folder, 4) as ranks:
        swapper = RuntimeSocket(folder / "now")
        digest, place = artifact(folder, size_bytes=64 << 10)
        swapper.prepare(order(digest, epoch=1), artifact_dir=place)
        ranks[2].kill()

        def refused() -> None:
            try:
                swapper.commit(order(digest, epoch=1))
            except TemporaryError:
                return
            raise AssertionError("a commit without one of its ranks")

        took_ms = timed_ms(refused)
        standings = {str(rank.standing) for rank in swapper.ranks(order(digest, epoch=1))}
        assert standings == {"unprepared"}
        return took_ms


def deliver(folder: Path) -> float:
    (folder / "elsewhere").mkdir(exist_ok=True)
    with server(folder, 1, within=str(folder / "elsewhere")):
        swapper = RuntimeSocket(folder / "now")
        digest, place = artifact(folder, size_bytes=8 << 20)
        return timed_ms(lambda: swapper.prepare(order(digest, epoch=1), artifact_dir=place))


def verified(rounds: int) -> list[float]:
    key = Ed25519PrivateKey.generate()
    raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
    public, signature = key.public_key().public_bytes(*raw), key.sign(b"m" * 400)
    return [
        timed_ms(lambda: verify(public, b"m" * 400, signature=signature)) for _ in range(rounds)
    ]


def machine() -> dict[str, Any]:
    text = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return {
        "cpu": model[1] if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    options = parser.parse_args()
    numbers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for count in options.ranks:
            numbers[f"ranks-{count}"] = phases(folder, count, rounds=options.rounds)
        numbers["lost-one-of-4"] = [lost(folder) for _ in range(5)]
        numbers["deliver-8-mib"] = [deliver(folder) for _ in range(5)]
    numbers["verify"] = verified(10 * options.rounds)
    result = {
        "method": (__doc__ or "").strip(),
        "machine": machine(),
        "unit": "ms",
        "numbers": numbers,
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    for name, found in numbers.items():
        rows = found.items() if isinstance(found, dict) else [("", found)]
        for what, each in rows:
            print(f"{name:>14} {what:9} median {statistics.median(each):8.2f} ms, "
                  f"{min(each):.2f} to {max(each):.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
