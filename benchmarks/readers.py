"""Trace readers beside plain pandas, json and sqlite3: rows and bytes per second, peak memory.

``python benchmarks/readers.py`` grows files from the real traces beside the project (rows repeated
with shifted times, so that every row is a real one), then reads each with every reader in a fresh
child process, all readers in turn per round. A child imports first, then starts its clock; its peak
is the kernel's high-water mark. Readers of one file must agree on launches and total time, or the
run fails.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parents[1] / "shared" / "fixtures"
Answer = tuple[int, int]
"""Launches and their total time, ns."""


def ours(path: Path) -> Answer:
    from retuned.traces import open_trace

    launches = total_ns = 0
    with open_trace(path) as stream:
        for block in stream.blocks():
            launches += len(block)
            total_ns += int(block.duration_ns.sum())
    return launches, total_ns


def ours_to_profile(path: Path) -> Answer:
    from retuned.stages.profile import fold
    from retuned.traces import open_trace

    with open_trace(path) as stream:
        profile = fold(stream.records(), window_start_ns=0, window_ns=1, observed_ns=1)
    return profile.launches, profile.gpu_time_ns


def pandas_csv(path: Path) -> Answer:
    import pandas

    used = ["Kernel_Name", "Start_Timestamp", "End_Timestamp", "Workgroup_Size_X", "Grid_Size_X"]
    frame = pandas.read_csv(path, usecols=used)
    times = (frame["End_Timestamp"] - frame["Start_Timestamp"]).groupby(frame["Kernel_Name"]).sum()
    return len(frame), int(times.sum())


def csv_dict_reader(path: Path) -> Answer:
    launches = total_ns = 0
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            launches += 1
            total_ns += int(row["End_Timestamp"]) - int(row["Start_Timestamp"])
    return launches, total_ns


def csv_reader(path: Path) -> Answer:
    with path.open(newline="") as file:
        reader = csv.reader(file)
        header = next(reader)
        names = (
            ("BeginNs", "EndNs") if "BeginNs" in header else ("Start_Timestamp", "End_Timestamp")
        )
        start, end = (header.index(name) for name in names)
        times = [int(row[end]) - int(row[start]) for row in reader]
    return len(times), sum(times)


def _content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def json_kineto(path: Path) -> Answer:
    events = json.loads(_content(path))["traceEvents"]
    times = [round(e["dur"] * 1000) for e in events if e.get("cat") == "kernel"]
    return len(times), sum(times)


def msgspec_untyped(path: Path) -> Answer:
    import msgspec

    events = msgspec.json.decode(_content(path))["traceEvents"]
    times = [round(e["dur"] * 1000) for e in events if e.get("cat") == "kernel"]
    return len(times), sum(times)


def json_rocprof(path: Path) -> Answer:
    rows = json.loads(path.read_bytes())["rocprofiler-sdk-tool"][0]["buffer_records"]
    times = [r["end_timestamp"] - r["start_timestamp"] for r in rows["kernel_dispatch"]]
    return len(times), sum(times)


def sqlite_rows(path: Path) -> Answer:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        (table,) = db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' "
            "AND name LIKE 'rocpd_kernel_dispatch_%'"
        ).fetchone()
        rows = db.execute(f'SELECT * FROM "{table}"').fetchall()
        start, end = (
            [column[1] for column in db.execute(f'PRAGMA table_info("{table}")')].index(name)
            for name in ("start", "end")
        )
    return len(rows), sum(row[end] - row[start] for row in rows)


READERS: dict[str, Callable[[Path], Answer]] = {
    "retuned": ours,
    "retuned-to-profile": ours_to_profile,
    "pandas": pandas_csv,
    "csv.DictReader": csv_dict_reader,
    "csv.reader": csv_reader,
    "json": json_kineto,
    "msgspec-untyped": msgspec_untyped,
    "json-rocprof": json_rocprof,
    "sqlite3-fetchall": sqlite_rows,
}


def grow_csv(path: Path, rows: int) -> None:
    """rocprofv3 7.2 as rocprofv3 writes it: texts quoted, numbers bare."""
    source = FIXTURES / "rocprofv3_csv/rocm7_llamacpp_gfx1151/prefill_kernel_trace.csv"
    with source.open(newline="") as file:
        header, *real = list(csv.reader(file))
    texts = {header.index(name) for name in ("Kind", "Agent_Id", "Kernel_Name")}
    times = [header.index(name) for name in ("Start_Timestamp", "End_Timestamp")]
    shift = 10**9
    with path.open("w") as out:
        out.write(",".join(f'"{name}"' for name in header) + "\n")
        for number in range(rows):
            row = list(real[number % len(real)])
            for at in times:
                row[at] = str(int(row[at]) + number // len(real) * shift)
            out.write(",".join(f'"{c}"' if i in texts else c for i, c in enumerate(row)) + "\n")


def grow_v1(path: Path, rows: int) -> None:
    lines = (FIXTURES / "rocprof_v1_csv/llamacpp_gfx1201_results.csv").read_text().splitlines()
    with path.open("w") as out:
        out.write(lines[0] + "\n")
        for number in range(rows):
            out.write(lines[1 + number % (len(lines) - 1)] + "\n")


def grow_kineto(path: Path, copies: int) -> None:
    with gzip.open(FIXTURES / "kineto_amd/mi300_owlv2-large.json.gz") as file:
        body = json.load(file)
    events, grown = body["traceEvents"], []
    span = max(e["ts"] for e in events) - min(e["ts"] for e in events if e["ts"] > 0)
    for copy in range(copies):
        for event in events:
            args = event.get("args")
            if args:
                ids = {
                    k: args[k] + copy * 10**7 for k in ("External id", "correlation") if k in args
                }
                args = {**args, **ids}
            moved = {"ts": event["ts"] + copy * span} | ({"args": args} if args else {})
            grown.append({**event, **moved})
    with path.open("w") as out:
        json.dump({**body, "traceEvents": grown}, out, indent=2)


def grow_json(path: Path, copies: int) -> None:
    with gzip.open(FIXTURES / "rocprofv3_json/tracelens_908_results.json.gz") as file:
        body = json.load(file)
    rows = body["rocprofiler-sdk-tool"][0]["buffer_records"]
    rows["kernel_dispatch"] *= copies
    path.write_text(json.dumps(body))


def grow_rocpd(path: Path, rows: int) -> None:
    shutil.copyfile(FIXTURES / "derived/mi350x_908_results.db", path)
    path.chmod(0o644)
    with sqlite3.connect(path) as db:
        (table,) = db.execute(
            "SELECT name FROM sqlite_master WHERE name LIKE 'rocpd_kernel_dispatch_%' "
            "AND type = 'table'"
        ).fetchone()
        columns = [f'"{c[1]}"' for c in db.execute(f'PRAGMA table_info("{table}")')][1:]
        moved = [f"{c} + 20000000000" if c in ('"start"', '"end"') else c for c in columns]
        have = db.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]
        while have < rows:
            db.execute(
                f'INSERT INTO "{table}" ({", ".join(columns)}) '
                f'SELECT {", ".join(moved)} FROM "{table}"'
            )
            have *= 2
    db.close()


def compress(path: Path, source: Path) -> None:
    path.write_bytes(gzip.compress(source.read_bytes(), 6))


def child(reader: str, path: Path) -> None:
    """Read once and print what it took."""
    warm = HERE.parent / "tests" / "data" / "traces"
    if reader.startswith("retuned"):
        ours_to_profile(warm / "kineto_cpu.json")  # imports, as the others have theirs
    elif reader == "pandas":
        import pandas  # noqa: F401
    elif reader == "msgspec-untyped":
        import msgspec  # noqa: F401
    before = _status("VmHWM")
    wall, cpu = time.perf_counter(), time.process_time()
    launches, total_ns = READERS[reader](path)
    taken = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    answer = {"launches": launches, "total_ns": total_ns}
    memory = {"peak_kib": _status("VmHWM"), "before_kib": before}
    print(json.dumps(taken | answer | memory))


def _status(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{field}:")[1].split()[0])


def measure(path: Path, readers: tuple[str, ...], rounds: int) -> dict[str, Any]:
    """Every reader once per round, so that a noisy minute hits all of them."""
    raw: dict[str, list[dict[str, Any]]] = {reader: [] for reader in readers}
    for _ in range(rounds):
        for reader in readers:
            done = subprocess.run(
                [sys.executable, __file__, "--child", reader, str(path)],
                capture_output=True,
                text=True,
                check=True,
            )
            raw[reader].append(json.loads(done.stdout))
    answers = {(run["launches"], run["total_ns"]) for runs in raw.values() for run in runs}
    if len(answers) != 1:
        raise SystemExit(f"readers of {path.name} disagree: {answers}")
    size, (launches, _) = path.stat().st_size, answers.pop()
    return {
        "bytes": size,
        "launches": launches,
        "readers": {r: _summary(runs, size, launches) for r, runs in raw.items()},
    }


def _summary(runs: list[dict[str, Any]], size: int, launches: int) -> dict[str, Any]:
    seconds = sorted(run["seconds"] for run in runs)
    median = statistics.median(seconds)
    cpu = statistics.median(run["cpu_seconds"] for run in runs)
    return {
        "median_s": median,
        "min_s": seconds[0],
        "max_s": seconds[-1],
        "median_cpu_s": cpu,
        "launches_per_s": launches / median,
        "mb_per_s": size / median / 1e6,
        "launches_per_cpu_s": launches / cpu,
        "mb_per_cpu_s": size / cpu / 1e6,
        "peak_mib": statistics.median(run["peak_kib"] for run in runs) / 1024,
        "peak_above_imports_mib": statistics.median(
            (run["peak_kib"] - run["before_kib"]) / 1024 for run in runs
        ),
        "raw": runs,
    }


def machine() -> dict[str, Any]:
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_average_1m_at_start": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=2, metavar=("READER", "FILE"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all sizes")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "readers.json")
    given = parser.parse_args()
    if given.child:
        child(given.child[0], Path(given.child[1]))
        return
    if not FIXTURES.is_dir():
        raise SystemExit("the real traces are not beside the project (shared/fixtures)")
    body: dict[str, Any] = {
        "machine": machine(),
        "method": (
            f"{given.rounds} rounds, readers in turn, one fresh process each; wall and "
            "processor time of the read after imports (processor time, since others may share the "
            "machine); peak is VmHWM; files grown from real traces"
        ),
        "files": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, readers in _grow(Path(folder), given.scale):
            found = body["files"][name.name] = measure(name, readers, given.rounds)
            _print(name.name, found)
            name.unlink()
    given.out.parent.mkdir(exist_ok=True)
    given.out.write_text(json.dumps(body, indent=1) + "\n")


def _grow(folder: Path, scale: float) -> Iterator[tuple[Path, tuple[str, ...]]]:
    both = ("retuned", "retuned-to-profile")
    rows, copies = int(400_000 * scale), max(1, round(2 * scale))
    grow_csv(folder / "rocprofv3.csv", rows)
    yield folder / "rocprofv3.csv", (*both, "pandas", "csv.reader", "csv.DictReader")
    grow_v1(folder / "rocprof_v1.csv", rows // 2)
    yield folder / "rocprof_v1.csv", (*both, "csv.reader")
    grow_kineto(folder / "kineto.json", copies)
    compress(folder / "kineto.json.gz", folder / "kineto.json")
    yield folder / "kineto.json", (*both, "json", "msgspec-untyped")
    yield folder / "kineto.json.gz", (*both, "json")
    grow_json(folder / "rocprofv3.json", copies)
    yield folder / "rocprofv3.json", (*both, "json-rocprof")
    grow_rocpd(folder / "rocpd.db", rows)
    yield folder / "rocpd.db", (*both, "sqlite3-fetchall")


def _print(name: str, found: dict[str, Any]) -> None:
    print(f"\n{name}: {found['bytes'] / 1e6:.0f} MB, {found['launches']} launches")
    for reader, row in found["readers"].items():
        print(
            f"  {reader:20s} {row['launches_per_s'] / 1e6:7.3f} M launches/s "
            f"{row['mb_per_s']:7.0f} MB/s  {row['median_s']:6.2f} s "
            f"[{row['min_s']:.2f}, {row['max_s']:.2f}]  cpu {row['median_cpu_s']:.2f} s = "
            f"{row['launches_per_cpu_s'] / 1e6:.3f} M/s {row['mb_per_cpu_s']:.0f} MB/s  "
            f"peak {row['peak_mib']:5.0f} MiB "
            f"(+{row['peak_above_imports_mib']:.0f})"
        )


if __name__ == "__main__":
    main()
