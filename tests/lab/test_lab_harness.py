"""The child is confined, its deaths are told apart, and its parent keeps what it must not know."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_code, raises_naming

import retuned
from retuned.contract import Solution, Workload
from retuned.errors import CandidateCrashed, CandidateError, CandidateTimedOut, HarnessError
from retuned.lab.harness.arena import PAGE, Arena
from retuned.lab.harness.cases import EXACT_FAMILY, Seeds, cells_for
from retuned.lab.harness.checks import check_memory
from retuned.lab.harness.run import Fill, Runner, arena_bytes
from retuned.lab.harness.schedule import CANDIDATE, CLONE, INCUMBENT, Scheduler
from retuned.lab.harness.variant import Variant, variant_of
from retuned.lab.harness.worker import ChildLimits, Library, Worker
from retuned.lab.languages.cpu_cpp import compile_solution
from retuned.lab.subject import KernelUnderTest, make_inputs

Make = Callable[..., Solution]
Open = Callable[..., Runner]


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def compiled(subject: KernelUnderTest, cache_dir: Path) -> Callable[[Solution], Variant]:
    def build(solution: Solution) -> Variant:
        library = compile_solution(solution, cache_dir=cache_dir).path
        return variant_of(solution, subject.definition, library=library)

    return build


@pytest.fixture
def opened(subject: KernelUnderTest, compiled: Callable[[Solution], Variant]) -> Iterator[Open]:
    runners: list[Runner] = []
    arenas: list[Arena] = []

    def start(solution: Solution) -> Runner:
        variant = compiled(solution)
        size = arena_bytes(
            subject.definition,
            {"M": 9},
            scratch_bytes=variant.scratch_bytes,
            parts=variant.parts,
        )
        arenas.append(Arena(size))
        runners.append(Runner(subject.definition, variant, arena=arenas[-1]))
        return runners[-1]

    yield start
    for runner in runners:
        runner.__exit__(None, None, None)
    for arena in arenas:
        arena.close()


def test_an_honest_kernel_gives_its_answer_under_every_fill(
    subject: KernelUnderTest, make: Make, opened: Open
) -> None:
    runner = opened(make())
    inputs = make_inputs(subject, {"M": 9}, seed=3, family="randn")
    want = subject.reference(inputs, {"M": 9})["y"]
    for fill in (Fill(), Fill(value=0x5A), Fill(fenced=True)):
        got = runner.run(inputs, {"M": 9}, fill=fill, timeout_s=5.0)["y"]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("layout", ["as-is", "transposed", "panels-8"])
def test_weights_are_repacked_as_the_variant_asked(
    layout: str, subject: KernelUnderTest, make: Make, opened: Open
) -> None:
    index = {
        "as-is": "n * K + k",
        "transposed": "k * N + n",
        "panels-8": "(n / 8 * K + k) * 8 + n % 8",
    }[layout]
    runner = opened(make("n * K + k", index, layouts={"wq": layout}))
    inputs = make_inputs(subject, {"M": 5}, seed=3, family="randn")
    got = runner.run(inputs, {"M": 5}, timeout_s=5.0)["y"]
    want = subject.reference(inputs, {"M": 5})["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_a_child_that_hangs_is_killed_in_time(
    subject: KernelUnderTest, make: Make, opened: Open
) -> None:
    runner = opened(
        make("float sum = 0;", "float sum = 0; for (int64_t i = 1; i; i += 2) y[0] += i;")
    )
    inputs = make_inputs(subject, {"M": 2}, seed=3, family="randn")
    begin = time.monotonic()
    with pytest.raises(CandidateTimedOut):
        runner.run(inputs, {"M": 2}, timeout_s=0.3)
    assert time.monotonic() - begin < 60.0


def test_a_launch_that_others_kept_from_running_is_waited_for(
    subject: KernelUnderTest, make: Make, opened: Open
) -> None:
    runner = opened(make())
    inputs = make_inputs(subject, {"M": 2}, seed=3, family="randn")
    pid = runner._worker._process.pid
    os.kill(pid, signal.SIGSTOP)
    later = threading.Timer(1.0, os.kill, (pid, signal.SIGCONT))
    later.start()
    assert set(runner.run(inputs, {"M": 2}, timeout_s=0.2)) == {"y"}
    later.join()


@pytest.mark.parametrize(
    ("said", "names"),
    [
        (b"{\n", "JSON"),
        (b"[" * 5_000 + b"\n", "JSON"),
        (b"[]\n", "JSON object"),
        (b"\xff\n", "JSON"),
        (b"x" * 9_000, "8192 bytes"),
    ],
)
def test_a_child_that_speaks_no_answers_is_an_error_and_is_killed(
    said: bytes, names: str, make: Make, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retuned.lab.harness.worker._LONGEST_ANSWER_BYTES", 8_192)
    worker = opened(make())._worker
    pid = worker._process.pid
    ours, theirs = os.pipe()
    os.dup2(ours, worker._process.stdout)
    os.close(ours)
    os.write(theirs, said)
    with raises_naming(HarnessError, names):
        worker._receive(30.0)
    os.close(theirs)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_child_that_faults_is_reported_with_its_signal(
    subject: KernelUnderTest, make: Make, opened: Open
) -> None:
    runner = opened(make("float sum = 0;", "float sum = *(float*)(n + 8);"))
    inputs = make_inputs(subject, {"M": 2}, seed=3, family="randn")
    with raises_code(CandidateCrashed, "crashed", "SIGSEGV"):
        runner.run(inputs, {"M": 2}, timeout_s=5.0)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y[M * N] = 1;", "out-of-bounds"),
        ("y[-1] = 1;", "out-of-bounds"),
        ("((float*)x)[1] = 1;", "input-modified"),
        ("((int8_t*)w)[0] += 1;", "input-modified"),
    ],
)
def test_writes_outside_the_outputs_are_found(
    body: str, reason: str, subject: KernelUnderTest, make: Make, opened: Open
) -> None:
    runner = opened(make("float sum = 0;", f"float sum = 0; {body}"))
    inputs = make_inputs(subject, {"M": 2}, seed=3, family="randn")
    with pytest.raises(CandidateError) as caught:
        runner.run(inputs, {"M": 2}, timeout_s=5.0)
    assert caught.value.reason == reason


def test_a_system_call_ends_the_child_and_is_named(
    subject: KernelUnderTest, make: Make, compiled: Callable[[Solution], Variant], tmp_path: Path
) -> None:
    # The contract and the audit would refuse this object; the filter is the wall behind them.
    source = tmp_path / "evil.c"
    source.write_text(
        "#include <unistd.h>\n#include <sys/syscall.h>\n"
        "void kernel(void* const* t, const long* a, void* s, long p, long q) {"
        " syscall(SYS_socket, 2, 1, 0); }\n"
    )
    library = tmp_path / "evil.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    with (
        Arena(1 << 20) as arena,
        Worker([Library(path=library, entry="kernel", tensors=1, axes=1)], arena) as worker,
    ):
        if not worker.ready["confined"]:
            pytest.skip("system calls are filtered on x86-64 only")
        command = {
            "op": "run",
            "kernel": 0,
            "tensors": [0],
            "lengths": [1],
            "scratch": [],
            "fences": [],
        }
        with pytest.raises(CandidateCrashed) as caught:
            worker.command(command, timeout_s=5.0)
    assert caught.value.reason == "contract-violated"


def test_memory_beyond_the_limit_is_refused_to_the_child(tmp_path: Path) -> None:
    source = tmp_path / "hungry.c"
    source.write_text(
        "#include <stdlib.h>\n#include <string.h>\n"
        "void kernel(void* const* t, const long* a, void* s, long p, long q) {"
        " char* got = malloc(1L << 31); *(char*)t[0] = got ? 2 : 1; }\n"
    )
    library = tmp_path / "hungry.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O0", "-o", library, source], check=True)
    limits = ChildLimits(memory_bytes=2**28)
    with (
        Arena(1 << 20) as arena,
        Worker(
            [Library(path=library, entry="kernel", tensors=1, axes=1)], arena, limits=limits
        ) as worker,
    ):
        region = arena.place(1)
        command = {
            "op": "run",
            "kernel": 0,
            "tensors": [region.start],
            "lengths": [1],
            "scratch": [],
            "fences": [],
        }
        worker.command(command, timeout_s=5.0)
        assert arena.view(region, np.dtype(np.uint8), (1,))[0] == 1


def test_a_child_dies_with_its_parent(make: Make, compiled: Callable[[Solution], Variant]) -> None:
    library = compiled(make()).library
    script = f"""
import os, signal
from pathlib import Path
from retuned.lab.harness.arena import Arena
from retuned.lab.harness.worker import Library, Worker
library = Library(path=Path({str(library)!r}), entry="kernel", tensors=4, axes=3)
worker = Worker([library], Arena(1 << 20))
print(worker._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = str(Path(retuned.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
        check=False,
    )
    pid = int(done.stdout)
    deadline = time.monotonic() + 60.0
    while _alive(pid):
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.01)


def test_scratch_and_order_of_runs_do_not_show_in_the_answer(
    subject: KernelUnderTest, make: Make, opened: Open
) -> None:
    solution = make(
        "float sum = 0;",
        "float* t = (float*)scratch; float sum = t[0] == 12345.0f ? 1.0f : 0.0f; t[0] = 12345.0f;",
        scratch_bytes=64,
    )
    runner = opened(solution)
    inputs = make_inputs(subject, {"M": 2}, seed=3, family="randn")
    first = runner.run(inputs, {"M": 2}, timeout_s=5.0)["y"]
    again = runner.run(inputs, {"M": 2}, timeout_s=5.0)["y"]
    assert first.tobytes() == again.tobytes()  # scratch is poisoned before every run


@given(
    st.lists(st.integers(0, 20_000), min_size=1, max_size=12),
    st.booleans(),
)
def test_regions_never_overlap_and_start_aligned(sizes: list[int], fenced: bool) -> None:
    with Arena(4 << 20) as arena:
        regions = [arena.place(size, fenced=fenced) for size in sizes]
        last = 0
        for region, size in zip(regions, sizes, strict=True):
            assert last <= region.low < region.start
            assert region.start % 64 == 0
            assert region.end - region.start == size
            assert region.end <= region.fence < region.high
            assert region.fence % PAGE == 0
            if fenced:
                assert region.fence - region.end < 64
            last = region.high


@given(place=st.integers(0, 10**9), value=st.integers(0, 255))
def test_any_byte_changed_in_a_zone_is_seen(place: int, value: int) -> None:
    with Arena(1 << 20) as arena:
        region = arena.place(100)
        arena.fill_zones([region], 0x5A)
        zone = [*range(region.low, region.start), *range(region.end, region.high)]
        arena._bytes[zone[place % len(zone)]] = value
        assert arena.zones_intact([region], 0x5A) == (value == 0x5A)


@given(
    st.lists(st.sampled_from([CANDIDATE, CLONE]), min_size=1, max_size=8),
    st.integers(1, 12),
    st.integers(0, 2**32),
)
def test_every_unit_is_abba_and_its_pairs_are_neighbours(
    units: list[int], repeat: int, seed: int
) -> None:
    scheduler = Scheduler(sets=5, mutable=[("x", 64)], repeat=repeat, seed=seed)
    block = scheduler.block(units)
    assert len(block.calls) == 4 * len(units)
    assert sorted(other for other, _, _ in block.pairs) == sorted([*units, *units])
    for other, left, right in block.pairs:
        assert abs(left - right) == 1
        assert block.calls[left].which == INCUMBENT
        assert block.calls[right].which == other
    for start in range(0, len(block.calls), 4):
        kinds = [call.which for call in block.calls[start : start + 4]]
        assert kinds == kinds[::-1]
        assert kinds[0] != kinds[1]


def test_no_side_is_tied_to_a_set_of_buffers() -> None:
    scheduler = Scheduler(sets=5, mutable=[("x", 64)], repeat=1, seed=7)
    calls = [call for _ in range(20) for call in scheduler.block([CANDIDATE] * 3).calls]
    for side in (INCUMBENT, CANDIDATE):
        counts = np.bincount([call.first for call in calls if call.which == side], minlength=5)
        assert counts.min() > 0.5 * counts.max()
    assert all(call.swaps for call in calls)  # no call sees content that an earlier one saw


def test_an_even_number_of_sets_is_refused() -> None:
    with raises_naming(ValueError, "buffers", "odd"):
        Scheduler(sets=4, mutable=[], repeat=1, seed=0)


def test_seeds_are_secret_and_stable_within_a_run() -> None:
    first, second = Seeds(), Seeds()
    assert first.seed("case", 1) == first.seed("case", 1)
    assert first.seed("case", 1) != first.seed("case", 2)
    assert first.seed("case", 1) != second.seed("case", 1)


def test_cells_ask_the_exact_family_first_and_every_edge(subject: KernelUnderTest) -> None:
    name = subject.definition.name
    workloads = [Workload(definition=name, axes={"M": rows}) for rows in (64, 8)]
    cells = cells_for(subject, workloads)
    assert cells[0].family == EXACT_FAMILY
    assert cells[0].axes == {"M": 8}
    assert {cell.family for cell in cells if cell.axes == {"M": 8}} == set(subject.families)
    assert {cell.axes["M"] for cell in cells} == {1, 7, 8, 9, 63, 64, 65}


def test_the_memory_gate_passes_an_honest_kernel(
    subject: KernelUnderTest, make: Make, opened: Open
) -> None:
    from retuned.lab.harness.cases import CaseCache, CaseKey

    runner = opened(make())
    book = CaseCache(subject, incumbent=runner, seeds=Seeds())
    case = book.case(CaseKey(axes={"M": 3}, family="randn"))
    check, _ = check_memory(opened(make()), case, timeout_s=5.0)
    assert check.reason is None, check.detail


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}
