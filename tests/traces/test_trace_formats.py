"""Every format says the same of the same three launches."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import ModuleType

import pytest

from retuned.stages.trace import ShapeSource
from retuned.traces import open_trace, read_trace
from retuned.traces.source import content_digest

FORMATS = {
    "rocprofv3_6_2_0.csv": "rocprofv3-csv",
    "rocprofv3_6_4.csv": "rocprofv3-csv",
    "rocprofv3_0_7.csv": "rocprofv3-csv",
    "rocprofv3_7_2.csv": "rocprofv3-csv",
    "rocprofv3_guid.csv": "rocprofv3-csv",
    "rocprofv3_all_quoted.csv": "rocprofv3-csv",
    "rocprof_v1.csv": "rocprof-v1-csv",
    "rocprofv2.csv": "rocprofv2-csv",
    "rocprofv3.json": "rocprofv3-json",
    "rocprof_v1.json": "rocprof-v1-json",
    "rpd.json": "rpd-json",
    "kineto_rocm.json": "kineto-json",
    "kineto_rocm.json.gz": "kineto-json",
    "kineto_cuda.json": "kineto-json",
    "rocpd.db": "rocpd",
    "rpd.rpd": "rpd",
    "kern.db": "rocprof-v1-db",
}
NO_GEOMETRY = {"rpd.json"}
FLAT = {"rocprof_v1.csv", "rocprofv2.csv", "rocprof_v1.json", "kern.db"}
NO_REGISTERS = {"rocprofv3_6_2_0.csv", "rocprofv3_6_4.csv", "rocprofv3_0_7.csv", "rpd.rpd"}


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_found_by_content_and_yields_the_same_launches(
    name: str, data: Path, make: ModuleType, tmp_path: Path
) -> None:
    nameless = tmp_path / "trace.bin"
    nameless.write_bytes((data / name).read_bytes())

    batch = read_trace(nameless)

    assert batch.format == FORMATS[name]
    assert [launch.kernel for launch in batch.launches] == [
        "copy_rows",
        "void gemm<float, 2>(float*, int)",
        "void gemm<float, 2>(float*, int)",
    ]
    assert [launch.duration_ns for launch in batch.launches] == [4_000, 50_000, 45_000]
    assert batch.span_ns == 110_000
    first = batch.launches[0].start_ns
    assert [launch.start_ns - first for launch in batch.launches] == [0, 5_000, 65_000]
    assert batch.digest == content_digest(nameless)
    assert batch.completed_at_ns == nameless.stat().st_mtime_ns


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - NO_GEOMETRY))
def test_grids_are_blocks_whatever_unit_the_profiler_counts_in(name: str, data: Path) -> None:
    copy, gemm, _ = read_trace(data / name).launches

    assert (copy.blocks, copy.threads) == ((1, 1, 1), (512, 1, 1))
    assert gemm.blocks == (4, 1, 1)
    assert gemm.threads == ((1024, 1, 1) if name in FLAT else (256, 4, 1))
    assert gemm.lds_bytes == 1024


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - NO_GEOMETRY - NO_REGISTERS))
def test_registers_are_kept_where_the_format_has_them(name: str, data: Path) -> None:
    assert {launch.vgprs for launch in read_trace(data / name).launches} == {32}


@pytest.mark.parametrize("name", ["rocprofv3_7_2.csv", "rocprofv3.json", "rocpd.db"])
def test_one_device_has_one_name_in_all_of_rocprofv3s_formats(name: str, data: Path) -> None:
    launches = read_trace(data / name).launches
    assert {(launch.device, launch.stream) for launch in launches} == {("Agent 4", "1")}


def test_only_formats_with_operators_claim_shapes(data: Path) -> None:
    for name in FORMATS:
        sources = {launch.shape_source for launch in read_trace(data / name).launches}
        assert sources == {ShapeSource.OP if "kineto" in name else ShapeSource.NONE}, name


def test_rows_that_are_no_kernels_are_counted_not_lost(data: Path) -> None:
    assert read_trace(data / "rpd.rpd").skipped == {"not-a-kernel": 1}
    assert read_trace(data / "kineto_rocm.json").skipped == {"not-a-kernel": 1}


def test_a_limit_keeps_the_first_launches_and_counts_the_rest(data: Path) -> None:
    batch = read_trace(data / "rocprofv3_7_2.csv", max_launches=1)

    assert len(batch.launches) == 1
    assert batch.skipped == {"over-limit": 2}
    assert batch.span_ns == 45_000  # of what was kept: rates divide by it


def test_a_stream_counts_as_it_goes(data: Path) -> None:
    with open_trace(data / "rocpd.db") as stream:
        assert stream.format == "rocpd"
        assert sum(1 for _ in stream.records()) == stream.launches == 3
        assert stream.span_ns == 110_000


@pytest.mark.parametrize("name", sorted(FORMATS.keys() | {"rocprofv2_damaged.csv"}))
def test_the_files_in_the_repository_are_what_the_builders_write(
    name: str, data: Path, make: ModuleType
) -> None:
    stored = (data / name).read_bytes()
    if name in make.TEXTS:
        assert stored == make.TEXTS[name]()
    elif name.endswith(".gz"):  # compressed bytes differ between versions of zlib
        assert gzip.decompress(stored) == make.TEXTS[name.removesuffix(".gz")]()
    else:
        assert name in make.DATABASES
