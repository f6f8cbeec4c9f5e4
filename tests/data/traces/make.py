"""Writes the small traces beside it: the same three launches in every format a profiler writes.

Run ``python tests/data/traces/make.py`` after a change. All of it is invented; no line is copied
from a profiler's output.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GEMM = "void gemm<float, 2>(float*, int)"
COPY = "copy_rows"
# name, start, end, grid in work-items, work-group; not in order of time, as rocprofv3 writes
LAUNCHES: tuple[tuple[str, int, int, tuple[int, int, int], tuple[int, int, int]], ...] = (
    (GEMM, 70_000, 115_000, (1000, 4, 1), (256, 4, 1)),
    (COPY, 5_000, 9_000, (512, 1, 1), (512, 1, 1)),
    (GEMM, 10_000, 60_000, (1000, 4, 1), (256, 4, 1)),
)
BLOCKS = {GEMM: (4, 1, 1), COPY: (1, 1, 1)}
BASE_NS = 1_550_151_853_000_000


def _table(header: Sequence[str], rows: Sequence[Sequence[object]], *, quote: int) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, quoting=quote, lineterminator="\n")  # type: ignore[arg-type]
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue().encode()


_AXES = [f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ"]
_V3_HEADERS: dict[str, list[str]] = {
    "rocprofv3_6_2_0.csv": [
        *("Kind", "Agent_Id", "Queue_Id", "Kernel_Id", "Kernel_Name", "Correlation_Id"),
        *("Start_Timestamp", "End_Timestamp", "Private_Segment_Size", "Group_Segment_Size", *_AXES),
    ],
    "rocprofv3_6_4.csv": [
        *("Kind", "Agent_Id", "Queue_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id", "Kernel_Name"),
        *("Correlation_Id", "Start_Timestamp", "End_Timestamp"),
        *("Private_Segment_Size", "Group_Segment_Size", *_AXES),
    ],
    "rocprofv3_0_7.csv": [
        *("Kind", "Agent_Id", "Queue_Id", "Stream_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id"),
        *("Kernel_Name", "Correlation_Id", "Start_Timestamp", "End_Timestamp"),
        *("Private_Segment_Size", "Group_Segment_Size", *_AXES),
    ],
    "rocprofv3_7_2.csv": [
        *("Kind", "Agent_Id", "Queue_Id", "Stream_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id"),
        *("Kernel_Name", "Correlation_Id", "Start_Timestamp", "End_Timestamp"),
        *("LDS_Block_Size", "Scratch_Size", "VGPR_Count", "Accum_VGPR_Count", "SGPR_Count"),
        *_AXES,
    ],
}
_V3_HEADERS["rocprofv3_guid.csv"] = ["Guid", *_V3_HEADERS["rocprofv3_7_2.csv"]]
_V3_HEADERS["rocprofv3_all_quoted.csv"] = _V3_HEADERS["rocprofv3_7_2.csv"]


def _v3_row(header: Sequence[str], number: int) -> list[object]:
    name, start, end, grid, group = LAUNCHES[number]
    cells: dict[str, object] = {
        "Guid": "00000000-1111-7222-8333-444455556666",
        "Kind": "KERNEL_DISPATCH",
        "Agent_Id": "Agent 4" if "SGPR_Count" in header else 4,
        "Queue_Id": 1,
        "Stream_Id": 1,
        "Thread_Id": 77,
        "Dispatch_Id": number + 1,
        "Kernel_Id": 10 if name == GEMM else 11,
        "Kernel_Name": name,
        "Correlation_Id": number + 1,
        "Start_Timestamp": BASE_NS + start,
        "End_Timestamp": BASE_NS + end,
        "LDS_Block_Size": 1024,
        "Group_Segment_Size": 1024,
        "Scratch_Size": 16,
        "Private_Segment_Size": 16,
        "VGPR_Count": 32,
        "Accum_VGPR_Count": 0,
        "SGPR_Count": 16,
    }
    cells |= dict(zip(_AXES, (*group, *grid), strict=True))
    return [cells[column] for column in header]


def rocprofv3_csv(name: str) -> bytes:
    """One header generation."""
    header = _V3_HEADERS[name]
    rows = [_v3_row(header, number) for number in range(len(LAUNCHES))]
    quoted = csv.QUOTE_ALL if name == "rocprofv3_all_quoted.csv" else csv.QUOTE_NONNUMERIC
    return _table(header, rows, quote=quoted)


def _flat(number: int) -> tuple[str, int, int, int, int]:
    name, start, end, (gx, gy, gz), (wx, wy, wz) = LAUNCHES[number]
    return name, BASE_NS + start, BASE_NS + end, gx * gy * gz, wx * wy * wz


def rocprof_v1_csv() -> bytes:
    """Flattened geometry, ``.kd`` suffixes, DispatchNs before BeginNs."""
    header = [
        *("Index", "KernelName", "gpu-id", "queue-id", "queue-index", "pid", "tid", "grd", "wgr"),
        *("lds", "scr", "arch_vgpr", "accum_vgpr", "sgpr", "wave_size", "sig", "obj"),
        *("DispatchNs", "BeginNs", "EndNs", "CompleteNs", "DurationNs"),
    ]
    rows = []
    for number in range(len(LAUNCHES)):
        name, start, end, grid, group = _flat(number)
        suffix = ".kd" if name == COPY else "  [clone .kd]"
        facts = (1024, 16, 32, 0, 16, 64, "0x0", "0x7f0000000000")
        times = (start - 500, start, end, end + 500, end - start)
        rows.append([number, name + suffix, 2, 0, number, 9, 9, grid, group, *facts, *times])
    return _table(header, rows, quote=csv.QUOTE_NONNUMERIC)


def rocprofv2_csv(*, damaged: bool = False) -> bytes:
    """Another order of columns and ``(.kd)``; damaged ones went through a spreadsheet."""
    header = [
        *("Dispatch_ID", "GPU_ID", "Queue_ID", "PID", "TID", "Grid_Size", "Workgroup_Size"),
        *("LDS_Per_Workgroup", "Scratch_Per_Workitem", "Arch_VGPR", "Accum_VGPR", "SGPR"),
        *("Wave_Size", "Kernel_Name", "Start_Timestamp", "End_Timestamp", "Correlation_ID"),
    ]
    rows = []
    for number in range(len(LAUNCHES)):
        name, start, end, grid, group = _flat(number)
        times = [f"{t:.5E}" if damaged else t for t in (start, end)]
        facts = (2, 1, 9, 9, grid, group, 1024, 16, 32, 0, 16, 64)
        rows.append([number, *facts, f"{name} (.kd)", *times, 0])
    return _table(header, rows, quote=csv.QUOTE_MINIMAL)


def rocprofv3_json() -> bytes:
    """Dispatches before the symbols they name."""
    dispatches = []
    for number, (name, start, end, grid, group) in enumerate(LAUNCHES):
        info = {
            "agent_id": {"handle": 900},
            "queue_id": {"handle": 3},
            "kernel_id": 10 if name == GEMM else 11,
            "dispatch_id": number + 1,
            "private_segment_size": 16,
            "group_segment_size": 1024,
            "workgroup_size": dict(zip("xyz", group, strict=True)),
            "grid_size": dict(zip("xyz", grid, strict=True)),
        }
        dispatches.append(
            {
                "size": 176,
                "kind": 11,
                "correlation_id": {"internal": number, "external": 0},
                "start_timestamp": BASE_NS + start,
                "end_timestamp": BASE_NS + end,
                "dispatch_info": info,
                "stream_id": {"handle": 1},
            }
        )
    symbols = [
        {"kernel_id": 10, "kernel_name": "_Z4gemm.kd", "formatted_kernel_name": GEMM},
        {"kernel_id": 11, "kernel_name": f"{COPY}.kd", "formatted_kernel_name": COPY},
    ]
    process = {
        "metadata": {"pid": 9, "command": ["serve"], "config": {}},
        "buffer_records": {"kernel_dispatch": dispatches, "hip_api": []},
        "agents": [{"id": {"handle": 900}, "node_id": 4}],
        "kernel_symbols": [symbol | {"arch_vgpr_count": 32} for symbol in symbols],
    }
    return json.dumps({"rocprofiler-sdk-tool": [process]}).encode()


def rocpd(path: Path, *, environment: str = "{}", symbols: bool = True) -> None:
    """Base tables with a suffix, as rocprofv3 writes; views are left out."""
    uuid = "_00000000_1111_7222_8333_444455556666"
    with sqlite3.connect(path) as db:
        db.executescript(
            f"""
            CREATE TABLE rocpd_metadata{uuid} (id INTEGER PRIMARY KEY, tag TEXT, value TEXT);
            INSERT INTO rocpd_metadata{uuid} (tag, value) VALUES ('schema_version', '3');
            CREATE TABLE rocpd_info_process{uuid}
                (id INTEGER PRIMARY KEY, pid INTEGER, command TEXT, environment JSONB);
            CREATE TABLE rocpd_info_agent{uuid}
                (id INTEGER PRIMARY KEY, type TEXT, absolute_index INTEGER, logical_index INTEGER);
            INSERT INTO rocpd_info_agent{uuid} VALUES (2, 'GPU', 4, 0);
            CREATE TABLE rocpd_info_kernel_symbol{uuid}
                (id INTEGER PRIMARY KEY, kernel_name TEXT, display_name TEXT,
                 arch_vgpr_count INTEGER);
            CREATE TABLE rocpd_kernel_dispatch{uuid}
                (id INTEGER PRIMARY KEY, nid INTEGER, pid INTEGER, tid INTEGER, agent_id INTEGER,
                 kernel_id INTEGER, dispatch_id INTEGER, queue_id INTEGER, stream_id INTEGER,
                 start BIGINT, "end" BIGINT, private_segment_size INTEGER,
                 group_segment_size INTEGER, workgroup_size_x INTEGER, workgroup_size_y INTEGER,
                 workgroup_size_z INTEGER, grid_size_x INTEGER, grid_size_y INTEGER,
                 grid_size_z INTEGER, region_name_id INTEGER, event_id INTEGER, extdata JSONB);
            """
        )
        db.execute(
            f"INSERT INTO rocpd_info_process{uuid} VALUES (1, 9, 'serve', ?)", (environment,)
        )
        if symbols:
            db.executemany(
                f"INSERT INTO rocpd_info_kernel_symbol{uuid} VALUES (?, ?, ?, 32)",
                [(10, "_Z4gemm.kd", GEMM), (11, f"{COPY}.kd", COPY)],
            )
        for number, (name, start, end, grid, group) in enumerate(LAUNCHES):
            kernel = 10 if name == GEMM else 11
            db.execute(
                f"INSERT INTO rocpd_kernel_dispatch{uuid} VALUES "
                "(?, 1, 1, 1, 2, ?, ?, 1, 1, ?, ?, 16, 1024, ?, ?, ?, ?, ?, ?, 1, ?, '{}')",
                (
                    *(number + 1, kernel, number + 1, BASE_NS + start, BASE_NS + end),
                    *(*group, *grid, 400 + number),  # event 400 exists nowhere: no inner join
                ),
            )
    db.close()


def rpd(path: Path) -> None:
    """Geometry on the API row, in blocks but for ``hipExt`` launches; one op is a copy."""
    with sqlite3.connect(path) as db:
        db.executescript(
            """
            CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY, string VARCHAR(4096));
            CREATE TABLE rocpd_op (id INTEGER PRIMARY KEY, gpuId INTEGER, queueId INTEGER,
                sequenceId INTEGER, start INTEGER, "end" INTEGER, description_id INTEGER,
                opType_id INTEGER);
            CREATE TABLE rocpd_api (id INTEGER PRIMARY KEY, apiName_id INTEGER);
            CREATE TABLE rocpd_api_ops (id INTEGER PRIMARY KEY, api_id INTEGER, op_id INTEGER);
            CREATE TABLE rocpd_kernelapi (api_ptr_id INTEGER PRIMARY KEY, stream VARCHAR(18),
                gridX INTEGER, gridY INTEGER, gridZ INTEGER, workgroupX INTEGER,
                workgroupY INTEGER, workgroupZ INTEGER, groupSegmentSize INTEGER,
                privateSegmentSize INTEGER, kernelName_id INTEGER);
            """
        )
        texts = ["", "KernelExecution", "CopyHostToDevice", GEMM, COPY]
        texts += ["hipExtModuleLaunchKernel", "hipLaunchKernel"]
        db.executemany("INSERT INTO rocpd_string VALUES (?, ?)", list(enumerate(texts, start=1)))
        for number, (name, start, end, grid, group) in enumerate(LAUNCHES, start=1):
            text = 4 if name == GEMM else 5
            db.execute(
                "INSERT INTO rocpd_op VALUES (?, 2, 0, 0, ?, ?, ?, 2)",
                (number, BASE_NS + start, BASE_NS + end, text),
            )
            units = grid if name == GEMM else BLOCKS[name]
            db.execute("INSERT INTO rocpd_api VALUES (?, ?)", (number, 6 if name == GEMM else 7))
            db.execute("INSERT INTO rocpd_api_ops VALUES (?, ?, ?)", (number, number, number))
            db.execute(
                "INSERT INTO rocpd_kernelapi VALUES (?, '0x0', ?, ?, ?, ?, ?, ?, 1024, 16, ?)",
                (number, *units, *group, text),
            )
        db.execute(f"INSERT INTO rocpd_op VALUES (9, 2, 0, 0, {BASE_NS}, {BASE_NS + 99}, 1, 3)")
    db.close()


def kern(path: Path) -> None:
    """rocprof v1's one table; names keep their quotes."""
    with sqlite3.connect(path) as db:
        db.execute(
            'CREATE TABLE KERN ("Index" INTEGER, "KernelName" TEXT, "gpu-id" INTEGER, '
            '"queue-id" INTEGER, "grd" INTEGER, "wgr" INTEGER, "lds" INTEGER, "scr" INTEGER, '
            '"arch_vgpr" INTEGER, "BeginNs" INTEGER, "EndNs" INTEGER)'
        )
        for number in range(len(LAUNCHES)):
            name, start, end, grid, group = _flat(number)
            db.execute(
                "INSERT INTO KERN VALUES (?, ?, 2, 0, ?, ?, 1024, 16, 32, ?, ?)",
                (number, f'"{name}.kd"', grid, group, start, end),
            )
    db.close()


def rocprof_v1_json() -> bytes:
    """Coarse ts and dur, exact ns in the arguments, all as texts."""
    events: list[dict[str, Any]] = [{}]
    for number in range(len(LAUNCHES)):
        name, start, end, grid, group = _flat(number)
        facts = {"KernelName": f"{name}.kd", "gpu-id": "2", "queue-id": "0"}
        facts |= {"grd": str(grid), "wgr": str(group), "lds": "1024", "scr": "16"}
        facts |= {"arch_vgpr": "32", "BeginNs": str(start), "EndNs": str(end)}
        times = {"ts": str(start // 1000), "dur": str((end - start) // 1000)}
        events.append({"ph": "X", "name": name, "pid": 8, "tid": 9, **times, "args": facts})
    return json.dumps({"traceEvents": events, "otherData": {"A.B": "1"}}).encode()


def rpd_json() -> bytes:
    """A bare list of events with everything as texts, and no geometry."""
    events: list[dict[str, Any]] = [{}]
    for name, start, end, _, _ in LAUNCHES:
        times = {"ts": str((BASE_NS + start) // 1000), "dur": str((end - start) // 1000)}
        args = {"desc": "KernelExecution"}
        events.append({"pid": "2", "tid": "0", "name": name, **times, "ph": "X", "args": args})
    call = {"pid": "7", "tid": "7", "name": "hipMalloc", "ts": "1", "dur": "1", "ph": "X"}
    return json.dumps([*events, call | {"args": {"desc": ""}}]).encode()


def event(cat: str, name: str, start_us: float, dur_us: float, **args: object) -> dict[str, Any]:
    """One complete event of a Kineto trace."""
    return {
        **{"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": 7},
        **{
            "ts": start_us,
            "dur": dur_us,
            "args": {k.replace("_", " "): v for k, v in args.items()},
        },
    }


def op(name: str, start_us: float, dur_us: float, external: int, **args: Any) -> dict[str, Any]:
    """One operator; `dims` as Kineto writes them."""
    made = event("cpu_op", name, start_us, dur_us)
    made["args"] = {"External id": external}
    if "dims" in args:
        made["args"] |= {
            "Input Dims": args["dims"],
            "Input type": args.get("types", ["float"] * len(args["dims"])),
        }
    if "strides" in args:
        made["args"]["Input Strides"] = args["strides"]
    return made


def kineto(events: Sequence[dict[str, Any]], **top: object) -> bytes:
    """A whole document."""
    body = {"schemaVersion": 1, "deviceProperties": [{"id": 0}], **top, "traceEvents": list(events)}
    return json.dumps(body | {"traceName": "trace.json"}, indent=1).encode()


def _kineto_launches(*, rocm: bool) -> bytes:
    """Kernels with operators; ``hipExt`` counts work-items, CUDA and ``hipLaunchKernel`` blocks."""
    events: list[dict[str, Any]] = []
    base_us = BASE_NS / 1000
    for number, (name, start, end, grid, group) in enumerate(LAUNCHES, start=1):
        gemm = name == GEMM
        host = (
            ("hipExtModuleLaunchKernel" if gemm else "hipLaunchKernel")
            if rocm
            else ("cudaLaunchKernel")
        )
        units = list(grid if rocm and gemm else BLOCKS[name])
        dims = [[1000, 64], [64, 4]] if gemm else [[512], []]
        at_us = base_us + start / 1000 - 3
        events += [
            op("aten::mm" if gemm else "aten::copy_", at_us - 1, 2.5, 100 + number, dims=dims),
            {
                **event("cuda_runtime", host, at_us, 1.0),
                "args": {"External id": 100 + number, "correlation": number, "grid": units},
            },
            {
                **event("kernel", name, base_us + start / 1000, (end - start) / 1000),
                "pid": 2,
                "args": {
                    **{"correlation": number, "device": 2, "stream": 0, "grid": units},
                    **{"block": list(group), "shared memory": 1024, "registers per thread": 32},
                },
            },
        ]
    events.append(event("python_function", "serve.py(1): step", base_us, 99.0))
    events.append(event("gpu_memcpy", "Memcpy DtoD", base_us, 1.0))
    return kineto(events, baseTimeNanoseconds=0)


def kineto_cpu() -> bytes:
    """No device at all: operators are the launches, an own one swallows what it calls."""
    linear = [[2, 8], [4, 8]]
    return kineto(
        [
            op("aten::linear", 100.0, 50.0, 1, dims=[[3, 8]]),
            op("aten::mm", 110.0, 30.25, 2, dims=[[3, 8], [8, 4]], strides=[[8, 1], [1, 8]]),
            op("model::block", 200.0, 90.0, 3),
            op("retuned::linear_w8", 210.0, 60.5, 4, dims=linear, strides=[[8, 1], [8, 1]]),
            op("aten::mul", 215.0, 20.0, 5, dims=[[2, 8]]),
            op("aten::empty", 300.0, 0.0, 6),
        ]
    )


TEXTS: dict[str, Callable[[], bytes]] = {
    **{name: (lambda name=name: rocprofv3_csv(name)) for name in _V3_HEADERS},  # type: ignore[misc]
    "rocprof_v1.csv": rocprof_v1_csv,
    "rocprofv2.csv": rocprofv2_csv,
    "rocprofv2_damaged.csv": lambda: rocprofv2_csv(damaged=True),
    "rocprofv3.json": rocprofv3_json,
    "rocprof_v1.json": rocprof_v1_json,
    "rpd.json": rpd_json,
    "kineto_rocm.json": lambda: _kineto_launches(rocm=True),
    "kineto_cuda.json": lambda: _kineto_launches(rocm=False),
    "kineto_cpu.json": kineto_cpu,
}
DATABASES: dict[str, Callable[[Path], None]] = {"rocpd.db": rocpd, "rpd.rpd": rpd, "kern.db": kern}


def main() -> None:
    """Write every file."""
    for name, text in TEXTS.items():
        (HERE / name).write_bytes(text())
    (HERE / "kineto_rocm.json.gz").write_bytes(gzip.compress(_kineto_launches(rocm=True), mtime=0))
    for name, write in DATABASES.items():
        (HERE / name).unlink(missing_ok=True)
        write(HERE / name)


if __name__ == "__main__":
    main()
