"""The fast way and the careful way through a rocprofv3 table mean the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retuned.errors import UnreadableInput
from retuned.stages.trace import LATEST_NS, LaunchRecord, Skip, disbelief
from retuned.traces import open_trace, rocprof_csv, rocprof_fast
from retuned.traces.blocks import BlockMaker, blocks_of

HEADERS = ("rocprofv3_6_2_0.csv", "rocprofv3_6_4.csv", "rocprofv3_0_7.csv", "rocprofv3_7_2.csv")
FIRST_COLUMNS = (
    *("Kind", "Agent_Id", "Queue_Id", "Stream_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id"),
    *("Kernel_Name", "Correlation_Id", "Start_Timestamp", "End_Timestamp"),
)
LAST_COLUMNS = (
    *("LDS_Block_Size", "Scratch_Size", "VGPR_Count", "Accum_VGPR_Count", "SGPR_Count"),
    *("Workgroup_Size_X", "Workgroup_Size_Y", "Workgroup_Size_Z"),
    *("Grid_Size_X", "Grid_Size_Y", "Grid_Size_Z"),
)
QUIET = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ODD_NAMES = st.sampled_from(
    [
        "k",
        "f(int, int)",
        'says ""hi""',
        "two\nlines",
        "tab\t",
        "é",
        "",
        "x" * 300,
        "a.kd",
        "\r",
        "1",
    ]
)
ODD_CELLS = st.sampled_from(
    [
        *("1", "256", "0", "", "x", "-1", "1.5", "1E+3", "9" * 25, "9" * 18, "123456789", "0" * 12),
        *(" 7", "7 ", "1_0", '"4"', "\u0663", "/", "4/", "/4", "1,2", "40000", "99999999"),
    ]
)


ODD_QUOTES = st.sampled_from(['"{}"', '"{}"', '"{}"', '5"{}"', '"{}"5', '"{}",', ',"{}"', "{}"])


@st.composite
def tables(draw: st.DrawFn, header: list[str]) -> str:
    """Mostly stock rows, with a few that no honest profiler writes."""
    lines = []
    for _ in range(draw(st.integers(1, 12))):
        odd = draw(st.integers(0, 5)) == 0
        cells = []
        for column in header:
            if column == "Kind":
                kinds = ["KERNEL_DISPATCH", "KERNEL_DISPATCH", "MEMORY_COPY"] if odd else None
                cells.append(f'"{draw(st.sampled_from(kinds)) if kinds else "KERNEL_DISPATCH"}"')
            elif column == "Kernel_Name":
                name = draw(ODD_NAMES) if odd else draw(st.sampled_from("pqr"))
                around = draw(ODD_QUOTES) if odd else '"{}"'
                cells.append(around.format(name))
            elif odd and draw(st.integers(0, 30)) == 0:
                cells.append(draw(ODD_CELLS))
            elif column == "Start_Timestamp" or column == "End_Timestamp":
                cells.append(str(draw(st.integers(0, 10**15))))
            elif column == "Agent_Id" and "SGPR_Count" in header:
                cells.append(draw(st.sampled_from(['"Agent 4"'] * 3 + ['"Agent 5"'])))
            else:
                cells.append(str(draw(st.integers(0, 3))))
        if odd and draw(st.integers(0, 5)) == 0:
            del cells[draw(st.integers(0, len(cells) - 1))]
        lines.append(",".join(cells) + draw(st.sampled_from(["\n"] * 9 + ["\r\n", "\n\n"])))
    return "".join(lines)


def outcome(path: Path) -> tuple[list[LaunchRecord], dict[str, int], str]:
    try:
        with open_trace(path) as stream:
            return list(stream.records()), dict(stream.skipped), ""
    except UnreadableInput as error:
        return [], {}, error.code


@pytest.mark.parametrize("name", HEADERS)
@QUIET
@given(picked=st.data())
def test_both_ways_read_the_same_launches_and_skip_the_same_rows(
    name: str, picked: st.DataObject, data: Path, tmp_path: Path
) -> None:
    header = (data / name).read_text().splitlines()[0]
    columns = [column.strip('"') for column in header.split(",")]
    path = tmp_path / "table.csv"
    path.write_text(f"{header}\n{picked.draw(tables(columns))}", newline="")

    fast = outcome(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rocprof_fast, "layout_of", lambda *_, **__: None)
        careful = outcome(path)

    assert fast == careful


@pytest.mark.parametrize("name", HEADERS)
def test_stock_files_take_the_fast_way(
    name: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the test above would prove nothing."""
    taken: list[bool] = []
    block = rocprof_fast.Layout.block

    def watched(self: rocprof_fast.Layout, part: bytes) -> Any:
        found = block(self, part)
        taken.append(found is not None)
        return found

    monkeypatch.setattr(rocprof_fast.Layout, "block", watched)
    outcome(data / name)
    assert taken
    assert all(taken)


STOCK = (
    '"KERNEL_DISPATCH",{agent}{queue},2,77,1,10,"gemm",1,1000,2000,0,0,16,0,128,256,4,1,512,4,1\n'
)
ODD_ROWS = {
    "text before the name": STOCK.replace('"gemm"', '5"gemm"'),
    "text behind the name": STOCK.replace('"gemm"', '"gemm"5'),
    "a comma in front of the name's quote": STOCK.replace('"gemm"', ',"gemm"').replace(
        ",2,77", ",2"
    ),
    "two names": STOCK.replace('"gemm",1', '"gemm","1"'),
    "a name without quotes": STOCK.replace('"gemm"', "gemm"),
    "another kind": STOCK.replace("KERNEL_DISPATCH", "MEMORY_COPY"),
    "a space before a comma": STOCK.replace('H",', 'H" ,'),
    "another separator": STOCK.replace('H",', 'H";'),
    "a letter among digits": STOCK.replace("1000", "10x0"),
    "a colon among digits": STOCK.replace("1000", "10:0"),
    "the mark of the cut in a cell": STOCK.replace(",77,", ",7/7,"),
    "the mark of the cut as a cell": STOCK.replace(",77,", ",/,"),
    "a cell too many": STOCK.replace(",77,", ",77,77,"),
    "a cell too few": STOCK.replace(",77,", ","),
    "a cell moved over the name": STOCK.replace(",77,", ",").replace('"gemm",', '"gemm",7,'),
    "an empty time": STOCK.replace("1000", ""),
    "a time too long": STOCK.replace("1000", "9" * 19),
    "the longest time": STOCK.replace("2000", "9" * 18),
    "a queue that does not fit the packing": STOCK.replace("{queue}", "40000"),
    "a queue beyond a word": STOCK.replace("{queue}", "123456789"),
    "an overlong queue": STOCK.replace("{queue}", "1" * 19),
    "one id with two names": STOCK.replace("gemm", "copy"),
    "another agent": STOCK.replace("{agent}", '"Agent 5",'),
    "a line end in the name": STOCK.replace("gemm", "ge\nmm"),
    "a doubled quote in the name": STOCK.replace("gemm", 'ge""mm'),
    "a quote that stays open": STOCK.replace('gemm"', "gemm"),
    "a carriage return": STOCK.replace("\n", "\r\n"),
}


@pytest.mark.parametrize("agent", ['"Agent 4",', "4,"])
@pytest.mark.parametrize("what", ODD_ROWS)
def test_an_odd_row_among_stock_rows_reads_the_same_both_ways(
    what: str, agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is a hair from stock is where a fast way goes wrong."""
    columns = (*FIRST_COLUMNS, *LAST_COLUMNS)
    stock, odd = STOCK.format(agent=agent, queue=1), ODD_ROWS[what].format(agent=agent, queue=1)
    path = tmp_path / "table.csv"
    for place in (1, 2, 5):
        rows = [stock] * 5
        rows.insert(place, odd)
        path.write_text(",".join(f'"{c}"' for c in columns) + "\n" + "".join(rows), newline="")
        fast = outcome(path)
        with monkeypatch.context() as patch:
            patch.setattr(rocprof_fast, "layout_of", lambda *_, **__: None)
            assert fast == outcome(path)
        assert fast[0] or fast[2], "something was read or refused"


@pytest.mark.parametrize("rows", [1, 1000, 5000])
def test_rows_are_whole_wherever_the_file_is_cut(
    rows: int, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, first, *_ = (data / "rocprofv3_7_2.csv").read_text().splitlines(keepends=True)
    odd = first.replace("void gemm", "two\nlines")
    path = tmp_path / "long.csv"
    path.write_text(header + (first + odd) * rows)
    for step in (997, 2**18):
        monkeypatch.setattr(rocprof_csv, "_STEP", step)
        with open_trace(path) as stream:
            names = Counter(launch.kernel[:3] for launch in stream.records())
        assert names == {"voi": rows, "two": rows}
        assert not stream.skipped


times = st.one_of(
    st.integers(-5, 50), st.integers(LATEST_NS - 5, LATEST_NS + 5), st.integers(0, 2**63 - 1)
)


@given(st.lists(st.tuples(times, times), min_size=1, max_size=30))
def test_columns_are_believed_exactly_as_single_rows_are(pairs: list[tuple[int, int]]) -> None:
    kind = LaunchRecord(kernel="k", start_ns=0, duration_ns=1)
    skipped: Counter[str] = Counter()
    table = np.array(pairs, dtype=np.int64)

    maker: BlockMaker[str] = BlockMaker(lambda key: kind, skipped=skipped)
    block = maker.block(["k"] * len(pairs), table[:, 0], table[:, 1])

    reasons = [disbelief(*pair) for pair in pairs]
    assert skipped == Counter(reason for reason in reasons if reason is not None)
    assert [(r.start_ns, r.start_ns + r.duration_ns) for r in block.records()] == [
        pair for pair, reason in zip(pairs, reasons, strict=True) if reason is None
    ]


def test_a_key_that_is_no_launch_is_asked_about_once_and_counted_every_time() -> None:
    asked: list[str] = []

    def kind_of(key: str) -> LaunchRecord | Skip:
        asked.append(key)
        return Skip.NO_NAME

    skipped: Counter[str] = Counter()
    maker = BlockMaker(kind_of, skipped=skipped)
    for _ in range(2):
        ones = np.ones(3, dtype=np.int64)
        assert len(maker.block(["a", "b", "a"], ones, 5 * ones)) == 0
    assert (asked, skipped) == (["a", "b"], {"no-name": 6})


def test_names_without_end_do_not_fill_memory() -> None:
    maker: BlockMaker[str] = BlockMaker(
        lambda key: LaunchRecord(kernel=key, start_ns=0, duration_ns=1), skipped=Counter()
    )
    for step in range(20):
        keys = [f"k{step}-{n}" for n in range(10_000)]
        block = maker.block(keys, np.zeros(10_000, np.int64), np.ones(10_000, np.int64))
        assert block.kernels() == set(keys)
    assert len(block.kinds) <= 80_000


def test_records_survive_the_way_through_columns() -> None:
    records = [
        LaunchRecord(kernel="k", start_ns=n, duration_ns=n + 1, dims=((n % 2,),), op=str(n % 3))
        for n in range(100)
    ]
    blocks = list(blocks_of(records, rows=30))
    assert [len(block) for block in blocks] == [30, 30, 30, 10]
    assert [launch for block in blocks for launch in block.records()] == records
