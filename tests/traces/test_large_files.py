"""Files larger than the machine: bounded memory, a clear refusal, and the watch goes on."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_code

from retuned.clock import FakeClock
from retuned.errors import UnreadableInput
from retuned.traces import ReadLimits, open_trace, read_trace
from retuned.traces.blocks import LaunchBlock
from retuned.traces.folder import TraceFolders
from retuned.traces.source import available_bytes, content_digest

MIB = 2**20
LIMIT = 600 * MIB
"""Address space of a child; the interpreter and its libraries take about half of it."""
PEAK = 160 * MIB
"""What may be resident, libraries included, however large the file."""


def long_csv(data: Path, path: Path, size: int) -> int:
    """Grow a table; return its launches."""
    header, *rows = (data / "rocprofv3_7_2.csv").read_bytes().splitlines(keepends=True)
    block = b"".join(rows) * (MIB // sum(map(len, rows)))
    with path.open("wb") as out:
        out.write(header)
        for _ in range(size // len(block)):
            out.write(block)
    return size // len(block) * block.count(b"\n")


_SMALL_PARENT = """
import resource, subprocess, sys
limit = int(sys.argv[1])
bound = lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
code = subprocess.run(sys.argv[2:], preexec_fn=bound).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""
"""A child's peak begins at what its parent held when it forked, so that parent must be small."""


def analyze(path: Path) -> tuple[int, dict[str, Any], int]:
    """Run ``retuned analyze`` as on a small machine; return exit code, its entry, peak bytes."""
    words = [sys.executable, "-m", "retuned.cli", "analyze", "--json", str(path)]
    child = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _SMALL_PARENT, str(LIMIT), *words],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # else each core takes address space
        capture_output=True,
        text=True,
        check=False,
    )
    errors, _, peak_kib = child.stderr.strip().rpartition("\n")
    assert "Traceback" not in errors
    return child.returncode, json.loads(child.stdout)["files"][0], int(peak_kib) * 1024


def test_a_long_table_is_read_to_its_end_in_the_memory_of_a_short_one(
    data: Path, tmp_path: Path
) -> None:
    launches = long_csv(data, tmp_path / "long.csv", 100 * MIB)
    code, entry, peak = analyze(tmp_path / "long.csv")
    assert (code, entry["error"], entry["launches"]) == (0, None, launches)
    assert peak < PEAK


def write_hole(data: Path, path: Path) -> None:
    long_csv(data, path, 2 * MIB)
    os.truncate(path, 10 * 10**9)


def write_bomb(data: Path, path: Path) -> None:
    long_csv(data, path, 2 * MIB)
    rows, member = path.read_bytes(), gzip.compress(b"\n" * (64 * MIB), 9)
    path.write_bytes(gzip.compress(rows) + member * 160)
    assert path.stat().st_size < 16 * MIB


def write_operators(data: Path, path: Path) -> None:
    """A Kineto trace of operators only; all of them would have to be linked."""
    body = json.loads((data / "kineto_rocm.json").read_text())
    events = json.dumps(body["traceEvents"] * 2_000)[1:-1]
    with path.open("w") as out:
        out.write('{"schemaVersion": 1, "traceEvents": [' + events)
        while out.tell() < 100 * MIB:
            out.write(", " + events)
        out.write("]}")


@pytest.mark.parametrize(
    ("write", "code"),
    [(write_hole, "damaged-csv"), (write_bomb, "gzip-bomb"), (write_operators, "too-large")],
)
def test_what_cannot_be_read_on_a_small_machine_is_refused_with_exit_code_3(
    write: Callable[[Path, Path], None], code: str, data: Path, tmp_path: Path
) -> None:
    path = tmp_path / "large"
    write(data, path)
    exit_code, entry, peak = analyze(path)
    assert (exit_code, entry["error"]["code"]) == (3, code)
    assert str(path) in entry["error"]["where"]
    assert peak < LIMIT


def test_a_file_beyond_the_setting_is_refused_unread_and_the_others_are_taken(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`max_trace_bytes` of the daemon."""
    clock, limits = FakeClock(), ReadLimits(input_bytes=4 * MIB)
    long_csv(data, tmp_path / "a.csv", 6 * MIB)
    write_hole(data, tmp_path / "b.csv")
    expanded = gzip.compress((tmp_path / "a.csv").read_bytes())
    (tmp_path / "c.csv.gz").write_bytes(expanded)
    shutil.copy(data / "kineto_rocm.json", tmp_path / "d.json")
    source = TraceFolders([tmp_path], clock=clock, limits=limits)
    read: list[str] = []

    def noted(path: Path) -> str:
        read.append(path.name)
        return content_digest(path)

    monkeypatch.setattr("retuned.traces.folder.content_digest", noted)

    source.poll()
    clock.advance(10)
    taken = [Path(batch.origin).name for batch in source.poll()]

    assert taken == ["d.json"]
    assert sorted(read) == ["c.csv.gz", "d.json"], "10 GB are not read to learn that they are many"
    refused = dict(source.failures())
    assert sorted(map(os.path.basename, refused)) == ["a.csv", "b.csv", "c.csv.gz"]
    assert all("too-large" in message and path in message for path, message in refused.items())
    clock.advance(100)
    assert source.poll() == []
    assert source.failures() == [], "a refusal is said once"


def test_launches_beyond_the_wanted_are_counted_without_a_record_each(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = long_csv(data, tmp_path / "long.csv", 5 * MIB)
    made = 0
    records = LaunchBlock.records

    def counted(self: LaunchBlock) -> Any:
        nonlocal made
        for launch in records(self):
            made += 1
            yield launch

    monkeypatch.setattr(LaunchBlock, "records", counted)
    batch = read_trace(tmp_path / "long.csv", max_launches=100)
    assert len(batch.launches) == 100
    assert batch.skipped == {"over-limit": launches - 100}
    assert made <= 101


def test_memory_that_runs_out_after_all_is_a_refusal(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object) -> Any:
        raise MemoryError

    monkeypatch.setattr("retuned.traces.kineto._add_op", exhausted)
    with (
        open_trace(data / "kineto_rocm.json") as stream,
        raises_code(UnreadableInput, "out-of-memory") as caught,
    ):
        list(stream.blocks())
    assert caught.value.code == "out-of-memory"
    assert str(data) in caught.value.where


def test_the_bound_of_a_process_is_counted_as_its_memory() -> None:
    words = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29));"
        "from retuned.traces.source import available_bytes; print(available_bytes())"
    )
    done = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, text=True, check=True, timeout=60
    )
    assert 0 < int(done.stdout) < 2**29
    assert available_bytes() > 0
