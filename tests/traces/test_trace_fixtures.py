"""Real traces: counts agree with their provenance, and times with an independent tool's reports."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from retuned.errors import UnreadableInput
from retuned.ports import TraceBatch
from retuned.stages.trace import align_capture, normalise_kernel_name
from retuned.traces import read_capture, read_trace
from retuned.traces.kineto_correlation import DIRECT

FIXTURES = Path(__file__).resolve().parents[3] / "shared" / "fixtures"
pytestmark = pytest.mark.shared

_GRID = re.compile(r"grid on (\d+), kernels linked to an op with Input Dims (\d+)")
REFUSED = {
    "counter-collection": ("counter_collection.csv", "kernel_names.csv"),
    "summary-not-trace": ("stats.csv",),
    "not-a-kernel-trace": (
        *("hip_compile_trace.csv", "hip_runtime_trace.csv", "hip_trace.csv", "api_trace.csv"),
        *("hsa_trace.csv", "rccl_trace.csv", "memory_copy_trace.csv", "python_bindings.csv"),
        *("memory_allocation_trace.csv", "scratch_memory_trace.csv", "agent_info.csv"),
        *("pc_sampling_host_trap.csv", "pc_sampling_host_trap_debug.csv", "rocpd-to-csv.csv"),
        "pc_sampling_stochastic_debug.csv",
    ),
    "no-timestamps": ("pmc_dispatch_info.csv",),
    "not-a-trace": ("execution_details.json",),
    "nothing-believable": ("MI300A_A1_timestamps.csv", "MI300X_A1_timestamps.csv"),
    "unknown-table": ("_sysinfo.csv",),
    "unknown-format": (".txt", ".md", "SHA256SUMS"),
}


def listed() -> Iterator[tuple[str, str]]:
    """(path, what it holds) of every row of the provenance table that is stored here."""
    folder = ""
    provenance = FIXTURES / "PROVENANCE.md"
    for line in provenance.read_text().splitlines() if provenance.is_file() else ():
        heading = re.match(r"## `([^`]+)/`", line)
        folder = heading.group(1) if heading else folder
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and (FIXTURES / folder / cells[0]).is_file():
            yield f"{folder}/{cells[0]}", cells[-1]


def everything() -> list[str]:
    if not FIXTURES.is_dir():
        return ["absent"]
    return sorted(str(p.relative_to(FIXTURES)) for p in FIXTURES.rglob("*") if p.is_file())


def read_or_refuse(path: Path) -> TraceBatch | UnreadableInput:
    try:
        return read_trace(path)
    except UnreadableInput as error:
        return error


@pytest.mark.parametrize("name", everything())
def test_every_real_file_is_read_or_refused_for_the_right_reason(name: str) -> None:
    found = read_or_refuse(FIXTURES / name)
    expected = next((c for c, ends in REFUSED.items() if name.endswith(ends)), None)
    if "tracelens_expected" in name:
        expected = "unknown-table"
    if expected is None:
        assert isinstance(found, TraceBatch), found
        assert found.launches
    else:
        assert isinstance(found, UnreadableInput)
        assert found.code == expected
        assert str(FIXTURES / name) in found.where
        assert len(found.message) > 20


def test_counts_agree_with_the_provenance_of_every_file_that_is_read() -> None:
    checked = 0
    for name, says in listed():
        found = read_or_refuse(FIXTURES / name)
        if not isinstance(found, TraceBatch):
            continue
        checked += 1
        kernels = {launch.kernel for launch in found.launches}
        if "kernelapi rows" in says:
            assert len(found.launches) == int(re.findall(r"(\d+) kernelapi", says)[0])
            assert sum(found.skipped.values()) + len(found.launches) == int(
                re.findall(r"(\d+) ops", says)[0]
            )
            continue
        if "X)" in says:  # a chrome trace: events, not kernels
            continue
        count = re.findall(r"([\d,]+) (?:dispatches|kernels|rows)\b", says)[0]
        assert len(found.launches) == int(count.replace(",", "")), name
        assert len(kernels) == int(re.findall(r"(\d+) distinct", says)[0]), name
        span = re.findall(r"span ([\d.]+) (m?s)", says)
        if span:
            factor = 1e6 if span[0][1] == "ms" else 1e9
            assert found.span_ns / factor == pytest.approx(float(span[0][0]), abs=0.06), name
        geometry = _GRID.search(says)
        if geometry:
            assert sum(any(r.blocks) for r in found.launches) == int(geometry.group(1)), name
            sure = [r for r in found.launches if r.dims and r.shape_confidence == DIRECT]
            assert len(sure) == int(geometry.group(2)), name
    assert checked >= 25


def test_two_spellings_of_one_run_are_the_same_launches() -> None:
    folder = FIXTURES / "rocprof_v1_csv"
    table, text, database = (
        read_trace(folder / f"llamacpp_gfx1201_results.{kind}") for kind in ("csv", "json", "db")
    )
    assert len(table.launches) == 1963
    assert table.launches == text.launches == database.launches


def test_an_excerpt_of_a_run_holds_launches_of_the_whole() -> None:
    """The derived database holds the first 12,000 dispatches of the JSON."""
    whole = read_trace(FIXTURES / "rocprofv3_json/tracelens_908_results.json.gz")
    part = read_trace(FIXTURES / "derived/mi350x_908_results.db")

    def keys(batch: TraceBatch) -> Counter[tuple[object, ...]]:
        return Counter(
            (r.kernel, r.start_ns, r.duration_ns, r.blocks, r.threads) for r in batch.launches
        )

    assert keys(part) <= keys(whole)
    assert len(part.launches) == 12_000


ORACLES = {
    "h100/Qwen_Qwen1.5-0.5B-Chat__1016005_perf_report_csvs": (
        "kineto_nvidia/h100_Qwen1.5-0.5B-Chat.json.gz"
    ),
    "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005_perf_report_csvs": (
        "kineto_amd/mi300_Qwen1.5-0.5B-Chat.json.gz"
    ),
    "mi210/gpu_only_trace/gpu_only_trace_perf_report_csvs": (
        "kineto_amd/mi210_gpu_only_trace.json.gz"
    ),
}


@pytest.mark.parametrize("report", ORACLES)
def test_launches_and_time_of_each_kernel_agree_with_tracelens(report: str) -> None:
    counts: Counter[str] = Counter()
    times_us: Counter[str] = Counter()
    with (FIXTURES / "tracelens_expected" / report / "kernel_summary.csv").open() as file:
        for row in csv.DictReader(file):
            name = normalise_kernel_name(row["Kernel name"])
            counts[name] += int(row["Kernel duration (µs)_count"])
            times_us[name] += float(row["Kernel duration (µs)_sum"])  # type: ignore[assignment]

    batch = read_trace(FIXTURES / ORACLES[report])

    ours: Counter[str] = Counter()
    for launch in batch.launches:
        ours[launch.kernel] += launch.duration_ns
    assert Counter(launch.kernel for launch in batch.launches) == counts
    for name, time_us in times_us.items():
        assert ours[name] / 1000 == pytest.approx(time_us, rel=1e-3, abs=0.01 * counts[name])


CAPTURES = {"vllm_decode_full": (428, 421), "vllm_prefilldecode_piecewise": (460, 361)}


@pytest.mark.parametrize("name", CAPTURES)
def test_a_capture_explains_every_replayed_kernel(name: str) -> None:
    """Counts as in the reference; time per operator as TraceLens' own merge finds it."""
    folder = FIXTURES / "kineto_inference"
    rows, replayed = CAPTURES[name]
    capture = read_capture(folder / f"{name}_graph_capture_rank0.pt.trace.json.gz")
    replay = read_trace(folder / f"{name}_graph_execution.json.gz")
    assert len(capture) == rows

    found = align_capture(capture, replay.launches)

    assert sum(launch.shape_source == "capture" for launch in found) == replayed
    assert all(any(launch.blocks) and launch.dims for launch in found)
    times_ns: Counter[str] = Counter()
    for launch in found:
        times_ns[launch.op] += launch.duration_ns
    report = FIXTURES / "tracelens_expected/inference" / name / "perf_csvs/ops_summary.csv"
    with report.open() as file:
        for row in csv.DictReader(file):
            if row["name"] == "aten::copy_":  # counts copies by the DMA engine too
                continue
            expected_us = float(row["total_direct_kernel_time_sum"])
            ours_us = times_ns[normalise_kernel_name(row["name"])] / 1000
            assert ours_us == pytest.approx(expected_us, rel=1e-3), row["name"]
