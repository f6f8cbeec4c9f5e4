"""``kill -9`` of the real daemon for as long as one likes: whole stories, each with many deaths.

``python -m benchmarks.kill_soak --minutes 5``. A story is what ``tests/standalone/test_kill.py``
plays once: drift, experiments, a proposal, a swap, a rollback, with a kill at each of several
moments, here drawn at random. After each story everything must add up, or the run ends with the
seed to repeat it. Writes benchmarks/results/kill_soak.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.standalone.kill_world import KillWorld, check, remeasured

from retuned.standalone.context import RecordKind

HERE = Path(__file__).resolve().parent
MOMENTS = (
    "start", "trace", "window", "belief", "lab", "compiler", "candidate", "finding", "proposal",
    "approval", "order", "watching",
)  # fmt: skip
_ROLLBACK_S = 0.3


def story(folder: Path, *, seed: int) -> dict[str, Any]:
    """Play one story; return what happened.

    Raises
    ------
    AssertionError
        If anything was lost, done twice or left behind.
    """
    rng = random.Random(seed)
    world = KillWorld(folder, seed=seed)
    try:
        # in the order of the turn, so that most come: three of each kind at most
        for moment in sorted(rng.choices(MOMENTS, k=rng.randint(6, 14)), key=MOMENTS.index):
            world.live_and_die(moment)
        world.start()
        assert world.wait(world.swapped), f"no swap in force: {world.log()[-2000:]}"
        if back := rng.random() < 0.7:
            world.roll_back()
            world.go_on(rng.uniform(0.0, _ROLLBACK_S))
            world.kill("rollback")
            world.start()
            assert world.wait(lambda: world.phase() == "RolledBack"), (
                f"not rolled back: {world.log()[-2000:]}"
            )
        world.kill("end")
        phase = world.phase()
        check(world, end=phase)
        assert phase == "RolledBack" if back else phase in {"Analyzing", "Watching", "Promoted"}
        counted = world.stop_server()
        assert counted["wrong"] == 0, "a request got a wrong answer"
        return {
            "seed": seed,
            "kills": world.kills,
            "end": phase,
            "experiments": len(world.phases(RecordKind.EXPERIMENT)),
            "findings": len(world.phases(RecordKind.FINDING)),
            "measured_again": remeasured(world),
            "server_calls": counted["calls"],
        }
    finally:
        world.close()


def main() -> None:
    """Play stories until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "kill_soak.json")
    given = parser.parse_args()
    stories: list[dict[str, Any]] = []
    until_s = time.monotonic() + 60 * given.minutes
    seed = given.seed
    while time.monotonic() < until_s:
        with tempfile.TemporaryDirectory() as folder:
            try:
                stories.append(story(Path(folder) / "world", seed=seed))
            except AssertionError as error:
                raise SystemExit(f"seed {seed}: {error}") from error
        print(f"seed {seed}: {len(stories[-1]['kills'])} kills, {stories[-1]['end']}", flush=True)
        seed += 1
    body = {
        "machine": {"cpu": _processor(), "cores": os.cpu_count()},
        "method": (
            "retuned run as a process, SIGKILL at moments of the turn with a random delay, "
            "restart; server, traces and approvals go on; after each story the trail, the server's "
            "log of commits, artifacts, evidence and processes are checked"
        ),
        "stories": len(stories),
        "kills": dict(Counter(kill for told in stories for kill in told["kills"])),
        "orphans": 0,
        "measured_again": sum(told["measured_again"] for told in stories),
        "raw": stories,
    }
    given.out.write_text(json.dumps(body, indent=1) + "\n")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
