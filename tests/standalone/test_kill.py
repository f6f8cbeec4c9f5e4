"""``kill -9`` of the real daemon, as a process, at random moments of the whole turn."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.standalone.kill_processes import below, survivors, working_in
from tests.standalone.kill_world import KillWorld, check

MOMENTS = ("start", "trace", "window", "lab", "candidate", "compiler", "proposal", "order")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[KillWorld]:
    made = KillWorld(tmp_path / "w", seed=20261121)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(900)  # eight lives, each of which may wait
def test_a_daemon_killed_again_and_again_loses_nothing_and_does_nothing_twice(
    world: KillWorld,
) -> None:
    for moment in MOMENTS:
        world.live_and_die(moment)
    world.start()
    assert world.wait(world.swapped), world.log()[-3000:]
    world.roll_back()
    world.go_on(world.rng.uniform(0.0, 0.15))
    world.kill("rollback")
    world.start()
    assert world.wait(lambda: world.phase() == "RolledBack"), world.log()[-3000:]
    assert world.wait(lambda: world.slot().active is None)
    assert world.wait(world.rested), world.log()[-3000:]
    world.kill("end")
    check(world, end="RolledBack")
    counted = world.stop_server()
    assert counted["calls"] > 100
    assert counted["wrong"] == 0


SLOW_SOURCE = "\n".join(
    [
        "#include <cstdint>",
        "template <int K> constexpr long spin() {",
        "  long s = K; for (long i = 0; i < 1000000; ++i) s = s * 3 + i & 1023; return s; }",
        *(f"static constexpr long v{k} = spin<{k}>();" for k in range(100)),
        'extern "C" void slow(const float* x, float* y) { y[0] = x[0] + v0; }',
    ]
)
COMPILE = """
import sys
from pathlib import Path
from retuned.contract import Language, Solution, SourceFile
from retuned.lab.languages.cpu_cpp import compile_solution
source = SourceFile(path="slow.cpp", content=Path(sys.argv[1]).read_text())
compile_solution(
    Solution(name="slow", definition="d", language=Language.CPU_CPP, entry="slow",
             sources=(source,), structure="slow"),
    cache_dir=Path(sys.argv[2]),
)
"""


def test_a_compiler_dies_with_whoever_started_it(tmp_path: Path) -> None:
    (tmp_path / "slow.cpp").write_text(SLOW_SOURCE)
    words = [sys.executable, "-c", COMPILE, str(tmp_path / "slow.cpp"), str(tmp_path / "cache")]
    with subprocess.Popen(words) as lab:
        deadline_s = time.monotonic() + 120
        while not any("fpreprocessed" in p.command for p in below(lab.pid)):
            assert lab.poll() is None, "the source compiles too fast, or not at all"
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        compilers = below(lab.pid)
        lab.kill()
    assert compilers
    assert survivors(compilers + working_in(tmp_path), within_s=30.0) == []
