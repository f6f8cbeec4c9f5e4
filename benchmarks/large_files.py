"""Files of 10 GB on a small machine: `retuned analyze` and `retuned run` under 600 MiB.

``python -m benchmarks.large_files`` makes each file in a temporary folder (it needs a little more
than its size in free disk), reads it in a child whose address space is bounded as ``ulimit -v``
does, and notes exit code, refusal, peak resident memory and time. Then the daemon, bounded alike,
watches a folder in which such a file lies beside an ordinary one: it must count the ordinary one
and stay up. Writes benchmarks/results/large_files.json.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "tests" / "data" / "traces"
MIB = 2**20
_COLUMNS = (
    b'"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name",'
    b'"Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size",'
    b'"VGPR_Count","Accum_VGPR_Count","SGPR_Count","Workgroup_Size_X","Workgroup_Size_Y",'
    b'"Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
)


def csv_rows(count: int) -> bytes:
    """Rows as rocprofv3 writes them: 24 kernels with the long names of templates."""
    rows = []
    for number in range(count):
        kernel, start = number % 24, 90_754_858_086_907 + 12_000 * number
        name = f"void mul_mat_q<(ggml_type)8, {kernel}, 8, false>(char const*, " + "int, " * 40
        rows.append(
            f'"KERNEL_DISPATCH","Agent 1",2,2,3985093,{number},{kernel},"{name}int)",{number},'
            f"{start},{start + 4000 + 100 * kernel},0,0,16,0,128,256,1,1,{256 * (kernel + 1)},1,1\n"
        )
    return "".join(rows).encode()


def kineto_events(count: int) -> bytes:
    """Operators, launches and kernels as Kineto writes them."""
    events = []
    for n in range(count):
        at = 100.0 * n
        op = {
            "External id": n,
            "Input Dims": [[8, 1024], [1024, 1024]],
            "Input type": ["float"] * 2,
        }
        launch = {"External id": n, "correlation": n, "grid": [8, 1, 1], "block": [256, 1, 1]}
        common = {"ph": "X", "pid": 1, "tid": 1}
        events += [
            {**common, "cat": "cpu_op", "name": "aten::mm", "ts": at, "dur": 50.0, "args": op},
            {**common, "cat": "cuda_runtime", "name": "hipLaunchKernel", "ts": at + 5, "dur": 3.0,
             "args": launch},
            {**common, "cat": "kernel", "name": "gemm", "ts": at + 9, "dur": 40.0, "args": launch},
        ]  # fmt: skip
    return ", ".join(map(json.dumps, events)).encode()


def repeat(
    path: Path, size: int, *, first: bytes, body: bytes, between: bytes, last: bytes
) -> None:
    """Write a part again and again until the file is as large as asked."""
    with path.open("wb") as out:
        out.write(first + body)
        while out.tell() < size:
            out.write(between + body)
        out.write(last)


def make_csv(path: Path, size: int) -> None:
    repeat(path, size, first=_COLUMNS, body=csv_rows(20_000), between=b"", last=b"")


def make_kineto(path: Path, size: int) -> None:
    first = b'{"schemaVersion": 1, "traceEvents": ['
    repeat(path, size, first=first, body=kineto_events(5_000), between=b", ", last=b"]}")


def make_frames(path: Path, size: int) -> None:
    """Write a Kineto trace that is nearly all Python frames: few rows to link."""
    frame = {"ph": "X", "cat": "python_function", "name": "model.py(10): forward", "pid": 1,
             "tid": 1, "ts": 5.0, "dur": 3.0, "args": {"Python id": 1, "Ev Idx": 1}}  # fmt: skip
    first = b'{"schemaVersion": 1, "traceEvents": [' + kineto_events(5_000) + b", "
    body = ", ".join([json.dumps(frame)] * 20_000).encode()
    repeat(path, size, first=first, body=body, between=b", ", last=b"]}")


def make_sparse(path: Path, size: int) -> None:
    """Write a megabyte of rows and then a hole: no disk is needed."""
    with path.open("wb") as out:
        out.write(_COLUMNS + csv_rows(2_000))
        out.truncate(size)


def make_bomb(path: Path, size: int) -> None:
    """Write rows and then empty lines without end, gzipped: a few MB that expand to all of it."""
    block = b"\n" * (64 * MIB)
    with path.open("wb") as out:
        out.write(gzip.compress(_COLUMNS + csv_rows(2_000), 9))
        member = gzip.compress(block, 9)
        for _ in range(size // len(block)):
            out.write(member)


FILES: dict[str, Callable[[Path, int], None]] = {
    "rocprofv3.csv": make_csv,
    "bomb.csv.gz": make_bomb,
    "sparse.csv": make_sparse,
    "kineto.json": make_kineto,
    "kineto-frames.json": make_frames,
}


def bounded(limit: int) -> Callable[[], None]:
    """Return what a child does before it becomes the program: ``ulimit -v``."""
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def analyze(path: Path, *, limit: int) -> dict[str, Any]:
    """Run ``retuned analyze`` and say what came of it."""
    begin = time.monotonic()
    words = [sys.executable, "-m", "retuned.cli", "analyze", "--json", str(path)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=bounded(limit)
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        text, errors = child.stdout.read(), child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if "Traceback" in errors or not text:
        raise SystemExit(f"{path.name}: {errors[-2000:]}")
    entry = json.loads(text)["files"][0]
    error = entry["error"] or {"code": None, "message": ""}
    return {
        "bytes": path.stat().st_size,
        "disk_bytes": path.stat().st_blocks * 512,
        "exit": child.returncode,
        "refused": error["code"],
        "message": error["message"],
        "launches": entry["launches"],
        "skipped": entry["skipped"],
        "seconds": round(time.monotonic() - begin, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mib": round(usage.ru_maxrss / 1024),
    }


def watch(folder: Path, size: int, *, limit: int, patience_s: float) -> dict[str, Any]:
    """Run the daemon over a folder with a large file, a bomb and, later, an ordinary one."""
    traces, state = folder / "traces", folder / "state"
    traces.mkdir()
    make_csv(traces / "a.csv", size)
    make_bomb(traces / "b.csv.gz", size)
    words = [sys.executable, "-m", "retuned.cli", "run", "--state-dir", str(state)]
    env = {**os.environ, "RETUNED_OBSERVE_POLL_S": "0.5", "RETUNED_METRICS_PORT": "0"}
    begin = time.monotonic()
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [*words, "--watch", str(traces)], stderr=log, env=env, preexec_fn=bounded(limit)
        ) as child,
    ):
        shutil.copy(DATA / "kineto_rocm.json", traces / "c.json")
        batches: list[dict[str, Any]] = []
        refused: list[str] = []
        while time.monotonic() < begin + patience_s and len(batches) + len(refused) < 3:
            time.sleep(0.5)
            if child.poll() is not None:
                raise SystemExit(f"the daemon ended: {(folder / 'log').read_text()[-2000:]}")
            batches, refused = _stored(state)
        peak = _peak_mib(child.pid)
        child.send_signal(signal.SIGTERM)
        child.wait(timeout=30)
    shutil.rmtree(traces)
    return {
        "bytes": size,
        "exit": child.returncode,
        "counted": batches,
        "refused": refused,
        "seconds": round(time.monotonic() - begin, 1),
        "peak_mib": peak,
    }


def _stored(state: Path) -> tuple[list[dict[str, Any]], list[str]]:
    database = state / "state.sqlite3"
    if not database.exists():
        return [], []
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        try:
            rows = db.execute("SELECT body FROM records WHERE kind = 'batch'").fetchall()
            events = db.execute("SELECT detail FROM events WHERE what = 'trace-refused'").fetchall()
        except sqlite3.OperationalError:
            return [], []
    db.close()
    batches = [json.loads(body) for (body,) in rows]
    counted = [
        {
            "file": Path(batch["origin"]).name,
            "skipped": batch["skipped"],
            "launches": sum(stat["launches"] for stat in batch["profile"]["stats"]),
        }
        for batch in batches
    ]
    return counted, [json.loads(d)["message"].rpartition("/")[2] for (d,) in events]


def _peak_mib(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) // 1024


def main() -> None:
    """Make, read and note every file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--limit-mib", type=int, default=600)
    parser.add_argument("--folder", type=Path, default=None, help="where there is room")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "large_files.json")
    given = parser.parse_args()
    size, limit = int(given.gigabytes * 1e9), given.limit_mib * MIB
    body: dict[str, Any] = {
        "machine": {"cpu": _processor(), "cores": os.cpu_count()},
        "method": (
            f"each file read once by a child whose address space is limited to {given.limit_mib} "
            "MiB (RLIMIT_AS); peak is its resident set; the machine was shared, so times are upper "
            "bounds; watched: `retuned run` under the same limit, a large CSV, a bomb and an "
            "ordinary trace in one folder"
        ),
        "files": {},
    }
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        for file, make in FILES.items():
            make(folder / file, size)
            found = body["files"][file] = analyze(folder / file, limit=limit)
            (folder / file).unlink()
            print(file, {k: v for k, v in found.items() if k != "message"}, flush=True)
            print("   ", found["message"], flush=True)
        body["watched"] = watch(folder, size, limit=limit, patience_s=200 * given.gigabytes + 60)
        print("watched", body["watched"])
    given.out.write_text(json.dumps(body, indent=1) + "\n")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
