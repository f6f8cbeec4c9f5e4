"""Bad files: each is refused with a stable code and its place, and none takes the machine."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.expect import raises_code

from retuned.errors import UnreadableInput
from retuned.ports import TraceBatch
from retuned.traces import ReadLimits, open_trace, read_capture, read_trace

SMALL = ReadLimits(document_bytes=2**22, rows=250_000)
V3 = (
    '"Kind","Agent_Id","Queue_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp",'
    '"End_Timestamp","Private_Segment_Size","Group_Segment_Size","Workgroup_Size_X",'
    '"Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
)


def row(name: str, start: object = 10, end: object = 30, tail: str = "0,0,64,1,1,640,1,1") -> str:
    return f'"KERNEL_DISPATCH",1,2,15,"{name}",0,{start},{end},{tail}\n'


def refused(tmp_path: Path, content: bytes | str, limits: ReadLimits = SMALL) -> UnreadableInput:
    path = tmp_path / "trace"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UnreadableInput) as caught:
        read_trace(path, limits=limits)
    assert str(path) in caught.value.where
    assert caught.value.message
    return caught.value


def read_or_refuse(path: Path) -> TraceBatch | UnreadableInput:
    try:
        return read_trace(path, limits=SMALL)
    except UnreadableInput as error:
        return error


def test_a_file_of_no_known_format_is_told_which_there_are(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello world\n")
    with raises_code(UnreadableInput, "unknown-format", "rocprofv3-csv", "kineto-json", "sqlite"):
        read_trace(path)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty-file"),
        (b" \n\t\n", "empty-file"),
        (bytes(range(256)) * 40, "unknown-format"),
        (b"\x7fELF\x02\x01\x01\0" + b"\0" * 500, "unknown-format"),
        (b"hello world\n", "unknown-format"),
        ("a,b,c\n1,2,3\n", "unknown-table"),
        ("Name,Calls,TotalDurationNs,AverageNs\nk,1,2,2\n", "summary-not-trace"),
        ("Domain,Function,Process_Id,Start_Timestamp,End_Timestamp\n", "not-a-kernel-trace"),
        ("Dispatch_ID,Kernel_Name,GPU_ID\n0,k,1\n", "no-timestamps"),
        (V3.encode("utf-16"), "wrong-encoding"),
        (V3.encode("utf-16-le"), "wrong-encoding"),
        (V3.encode("utf-32"), "wrong-encoding"),
        (b'{"answer": 42}', "not-a-trace"),
        (b"[1, 2, 3]", "not-a-trace"),
        (b'{"traceEvents": 7}', "not-a-trace"),
        (b'{"traceEvents": [7]}', "damaged-json"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": 7}]}', "damaged-json"),
        (b'{"traceEvents": [{"ph": "X"}, ]}', "damaged-json"),
        (b'{"traceEvents": [{"ph": "X"}]} trailing', "damaged-json"),
        (b'{"traceEvents": [{"ph": "X"}', "truncated-json"),
        (b'{"traceEvents": [{"ph": "X"}]', "truncated-json"),
        (b'{"traceEvents": [{"name": "\xff\xfe", "ph": "X"}]}', "damaged-json"),
        (b'{"rocprofiler-sdk-tool": 1}', "damaged-json"),
        (b'{"rocprofiler-sdk-tool": [{"buffer_records"', "truncated-json"),
        (b'{"rocprofiler-sdk-tool": ' + b"[" * 100_000, "damaged-json"),
        (b'{"traceEvents": [' + b'{"args": ' + b"[" * 100_000, "damaged-json"),
        (b'{"traceEvents": [' + b"[" * 100_000, "damaged-json"),
        (b'{"a": ' + b"[" * 100_000 + b', "traceEvents": [', "damaged-json"),
        (b"\x1f\x8b" + b"\0" * 40, "damaged-gzip"),
        (V3 + row("k")[:-20], "truncated-csv"),
        (V3 + '"KERNEL_DISPATCH",1,2,15,"never closed', "truncated-csv"),
        (V3 + row("k", "1.0E+14", "1.0E+14"), "nothing-believable"),
        (V3 + row("k", 30, 10), "nothing-believable"),
        (V3 + row("k", 10**30, 10**31), "nothing-believable"),
        (V3 + row("k", -5, 10), "nothing-believable"),
        (V3 + row(""), "nothing-believable"),
        (V3 + row("k", tail="0,0,64,1"), "nothing-believable"),
        (V3 + row("k", tail="0,0,64,1,1,-640,1,1"), "nothing-believable"),
        (V3 + row("k", tail=f"0,0,64,1,1,{10**15},1,1"), "nothing-believable"),
        (V3 + row("x" * 200_000), "damaged-csv"),
        (b"SQLite format 3\0" + b"junk" * 300, "damaged-database"),
        (gzip.compress(b"SQLite format 3\0" + b"junk" * 300, mtime=0), "compressed-database"),
    ],
)
def test_a_bad_file_is_refused_with_its_code(
    tmp_path: Path, content: bytes | str, code: str
) -> None:
    assert refused(tmp_path, content).code == code


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, code in (
        (tmp_path, "not-a-file"),
        (tmp_path / "pipe", "not-a-file"),
        (tmp_path / "absent", "not-found"),
        (Path("/dev/zero"), "not-a-file"),
        (Path("a\0b"), "not-readable"),
    ):
        with pytest.raises(UnreadableInput) as caught:
            read_trace(path)
        assert caught.value.code == code


def test_a_truncated_gzip_is_refused_with_its_offset(tmp_path: Path, data: Path) -> None:
    whole = (data / "kineto_rocm.json.gz").read_bytes()
    for cut in (2, 18, len(whole) // 2, len(whole) - 1):
        error = refused(tmp_path, whole[:cut])
        assert error.code == "truncated-gzip"
        assert error.where.endswith(f"byte {cut}")


def test_a_gzip_with_a_wrong_checksum_is_refused(tmp_path: Path, data: Path) -> None:
    whole = bytearray((data / "kineto_rocm.json.gz").read_bytes())
    whole[-6] ^= 0xFF
    assert refused(tmp_path, bytes(whole)).code == "damaged-gzip"


def test_a_gzip_of_several_members_is_read_to_the_last(tmp_path: Path, data: Path) -> None:
    text = (data / "kineto_rocm.json").read_bytes()
    path = tmp_path / "members.gz"
    path.write_bytes(gzip.compress(text[:700]) + gzip.compress(text[700:]) + b"\0" * 16)
    assert len(read_trace(path).launches) == 3


def test_a_gzip_bomb_is_refused_after_a_bounded_expansion(tmp_path: Path) -> None:
    body = gzip.compress(b'{"traceEvents": [' + b'{"ph": "M"}, ' * 2**23)
    assert len(body) < 2**18
    assert refused(tmp_path, body).code == "gzip-bomb"
    spaces = gzip.compress(b'{"traceEvents": [' + b" " * 2**26)
    assert refused(tmp_path, spaces).code == "damaged-json"  # no event that long, even before


def test_too_many_bytes_are_refused_and_the_bound_is_named(tmp_path: Path) -> None:
    error = refused(tmp_path, V3 + row("k") * 20_000, replace(SMALL, input_bytes=2**20))
    assert error.code == "too-large"
    assert str(2**20) in error.message


@pytest.mark.parametrize("name", ["rocprofv3.json", "kineto_rocm.json"])
def test_what_must_be_linked_in_memory_is_refused_beyond_it(
    tmp_path: Path, data: Path, name: str
) -> None:
    limits = replace(SMALL, document_bytes=64, rows=1)
    assert refused(tmp_path, (data / name).read_bytes(), limits).code == "too-large"


def test_a_row_or_event_without_end_is_refused(tmp_path: Path) -> None:
    limits = replace(SMALL, element_bytes=2**20)
    assert refused(tmp_path, V3 + "x" * 2**22, limits).code == "damaged-csv"
    event = '{"traceEvents": [{"name": "' + "x" * 2**22
    assert refused(tmp_path, event, limits).code == "damaged-json"


def test_rows_that_cannot_be_believed_are_counted_by_reason(tmp_path: Path) -> None:
    path = tmp_path / "mixed.csv"
    bad = [row("k", "8.1E+14"), row("k", 30, 10), row("k", 10, 10), row("", 1, 2), "1,2,3\n"]
    other = row("k").replace("KERNEL_DISPATCH", "MEMORY_COPY")
    path.write_text(V3 + "".join(bad) + other + row("k", 1, 10**17) + "\n" + row("good"))

    batch = read_trace(path)

    assert [launch.kernel for launch in batch.launches] == ["good"]
    assert batch.skipped == {
        "bad-timestamp": 1,
        "ends-before-start": 1,
        "zero-duration": 1,
        "no-name": 1,
        "malformed-row": 1,
        "not-a-kernel": 1,
        "too-long": 1,
    }


def test_a_table_without_rows_is_an_empty_trace(tmp_path: Path) -> None:
    path = tmp_path / "idle.csv"
    path.write_text(V3)
    assert read_trace(path).launches == ()


def test_white_space_or_a_byte_order_mark_before_the_header_is_no_harm(tmp_path: Path) -> None:
    for before in ("\n", "\r\n \n", "\ufeff"):
        path = tmp_path / "padded.csv"
        path.write_text(before + V3 + row("k"), newline="")
        assert len(read_trace(path).launches) == 1


@pytest.mark.parametrize("wrap", ["csv", "kineto"])
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("\x1b[31mred\x1b]0;owned\x07", "\\x1b[31mred\\x1b]0;owned\\x07"),
        ("line\nbreak\ttab", "line break tab"),
        ("right\u202eleft", "right\\u202eleft"),
        ("bell\x07\x9bcsi", "bell\\x07\\x9bcsi"),
    ],
)
def test_a_hostile_name_arrives_escaped(tmp_path: Path, wrap: str, name: str, shown: str) -> None:
    path = tmp_path / "hostile"
    if wrap == "csv":
        path.write_text(V3 + row(name), newline="")
    else:
        event = {"ph": "X", "cat": "kernel", "name": name, "ts": 1.0, "dur": 2.0, "args": {}}
        path.write_text(json.dumps({"traceEvents": [event]}))
    (launch,) = read_trace(path).launches
    assert launch.kernel == shown


def test_a_megabyte_name_is_cut_and_two_of_them_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    names = ["x" * 2**20 + end for end in ("a", "b")]
    events = [{"ph": "X", "cat": "kernel", "name": n, "ts": 1.0, "dur": 2.0} for n in names]
    path.write_text(json.dumps({"traceEvents": events}))
    kernels = {launch.kernel for launch in read_trace(path).launches}
    assert len(kernels) == 2
    assert {len(kernel) for kernel in kernels} == {1024}


def test_bytes_that_are_no_utf8_in_a_table_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes((V3 + row("caf@")).encode().replace(b"@", b"\xe9"))
    assert read_trace(path).launches[0].kernel == "caf\\xe9"


@pytest.mark.parametrize(
    "number", ["1e400", "-1e300", "1e300", '"soon"', "null", "-5.5", str(2**80)]
)
def test_an_absurd_time_never_becomes_a_launch(tmp_path: Path, number: str) -> None:
    path = tmp_path / "absurd.json"
    good = '{"ph": "X", "cat": "kernel", "name": "good", "ts": 1.0, "dur": 2.0}'
    bad = f'{{"ph": "X", "cat": "kernel", "name": "bad", "ts": {number}, "dur": 2.0}}'
    path.write_text(f'{{"traceEvents": [{bad}, {good}]}}')
    outcome = read_or_refuse(path)
    if isinstance(outcome, UnreadableInput):
        assert outcome.code == "damaged-json"
    else:
        assert [launch.kernel for launch in outcome.launches] == ["good"]
        assert outcome.skipped == {"bad-timestamp": 1}


def test_a_database_of_another_tool_is_refused_with_its_tables(tmp_path: Path) -> None:
    for statement, code in (
        ("CREATE TABLE birds (id INTEGER)", "not-a-trace"),
        ("CREATE VIEW rocpd_kernel_dispatch AS SELECT 1 AS start", "empty-database"),
        ("CREATE TABLE rocpd_kernel_dispatch (id INTEGER)", "missing-column"),
        ("CREATE TABLE KERN (id INTEGER)", "missing-column"),
        ("PRAGMA user_version = 1", "empty-database"),
    ):
        path = tmp_path / "other.db"
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as db:
            db.execute(statement)
        db.close()
        with pytest.raises(UnreadableInput) as caught:
            read_trace(path)
        assert caught.value.code == code, statement


def test_a_database_that_is_still_written_is_refused(tmp_path: Path, data: Path) -> None:
    path = tmp_path / "live.db"
    path.write_bytes((data / "rocpd.db").read_bytes())
    (tmp_path / "live.db-wal").write_bytes(b"pages")
    with pytest.raises(UnreadableInput) as caught:
        read_trace(path)
    assert caught.value.code == "unfinished-database"


def test_a_truncated_database_is_refused(tmp_path: Path, data: Path) -> None:
    whole = (data / "rocpd.db").read_bytes()
    error = refused(tmp_path, whole[: len(whole) // 2])
    assert error.code in {"damaged-database", "empty-database"}


def test_dispatches_without_symbols_are_counted_as_nameless(
    tmp_path: Path, make: ModuleType
) -> None:
    path = tmp_path / "nameless.db"
    make.rocpd(path, symbols=False)
    with raises_code(UnreadableInput, "nothing-believable", "3 x no-name"):
        read_trace(path)


def test_the_environment_of_the_server_is_never_read(
    tmp_path: Path, make: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard is in SQLite itself: even our own query for the column is denied."""
    from retuned.traces.rocpd import Database

    path = tmp_path / "secret.db"
    make.rocpd(path, environment='{"API_TOKEN": "hunter2"}')
    assert "hunter2" not in repr(read_trace(path))
    database = Database(path, limits=SMALL)
    table = next(name for name in database._tables if name.startswith("rocpd_info_process"))
    for sql in (f'SELECT environment FROM "{table}"', f'SELECT * FROM "{table}"'):
        with pytest.raises(sqlite3.DatabaseError) as caught:
            database._connection.execute(sql)
        assert caught.value.sqlite_errorname == "SQLITE_AUTH"
    with pytest.raises(sqlite3.DatabaseError):
        database._connection.execute(f'DELETE FROM "{table}"')
    database.close()


def test_a_capture_must_name_its_kernels(data: Path) -> None:
    for name, code in (
        ("kineto_cuda.json", "no-launch-rows"),
        ("rocpd.db", "not-a-capture"),
        ("rocprofv3_7_2.csv", "not-a-capture"),
    ):
        with pytest.raises(UnreadableInput) as caught:
            read_capture(data / name)
        assert caught.value.code == code


NAMES = sorted(
    path.name
    for path in (Path(__file__).resolve().parents[1] / "data" / "traces").iterdir()
    if path.is_file() and path.suffix != ".py" and path.name != "rocprofv2_damaged.csv"
)
FUZZ = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FUZZ
@given(name=st.sampled_from(NAMES), where=st.floats(0, 1), junk=st.binary(max_size=12))
def test_a_file_with_a_few_other_bytes_is_read_or_refused_never_a_crash(
    name: str, where: float, junk: bytes, data: Path, tmp_path: Path
) -> None:
    whole = (data / name).read_bytes()
    at = int(where * len(whole))
    path = tmp_path / "mutant"
    path.write_bytes(whole[:at] + junk + whole[at + len(junk) :])
    outcome = read_or_refuse(path)
    if isinstance(outcome, TraceBatch):
        assert all(launch.duration_ns > 0 for launch in outcome.launches)
        assert all(launch.kernel.isprintable() for launch in outcome.launches)


@FUZZ
@given(name=st.sampled_from([n for n in NAMES if "json" in n]), where=st.floats(0, 0.999))
def test_every_beginning_of_a_json_trace_is_refused(
    name: str, where: float, data: Path, tmp_path: Path
) -> None:
    whole = (data / name).read_bytes()
    path = tmp_path / "beginning"
    path.write_bytes(whole[: int(where * (len(whole.rstrip()) - 1))])
    with pytest.raises(UnreadableInput):
        read_trace(path, limits=SMALL)


@FUZZ
@given(content=st.binary(max_size=400))
def test_random_bytes_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "noise"
    path.write_bytes(content)
    with pytest.raises(UnreadableInput):
        read_trace(path, limits=SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "kineto", "gzip"])
def test_memory_does_not_grow_with_the_file(kind: str, tmp_path: Path, make: ModuleType) -> None:
    """Sixteen times the file, in a child of its own: the peak must stay where it was."""
    peaks = []
    for factor in (1, 16):
        path = tmp_path / f"{kind}{factor}"
        if kind == "csv":
            path.write_text(
                V3 + "".join(row(f"k{n % 50}", n, n + 9) for n in range(1, 30_000)) * factor
            )
        else:
            frame = make.event("python_function", "f" * 200, 5.0, 1.0)
            kernel = make.event("kernel", "k", 5.0, 1.0)
            text = make.kineto([*([frame] * 30_000 * factor), kernel])
            path.write_bytes(gzip.compress(text, 1) if kind == "gzip" else text)
        peaks.append(_peak_of(path))
    assert peaks[1] < peaks[0] + 30_000, f"KiB: {peaks}"


def _peak_of(path: Path) -> int:
    code = (
        "import sys; from pathlib import Path; from retuned.traces import open_trace\n"
        "with open_trace(Path(sys.argv[1])) as s: n = sum(len(b) for b in s.blocks())\n"
        "status = Path('/proc/self/status').read_text()\n"
        "print(status.split('VmHWM:')[1].split()[0], n)"  # not ru_maxrss: it counts the parent's
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    peak, launches = map(int, done.stdout.split())
    assert launches > 0
    return peak


def test_an_open_file_is_closed_when_it_is_refused(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        refused(tmp_path, b'{"answer": 42}')
        refused(tmp_path, b"SQLite format 3\0" + b"junk" * 300)
        with pytest.raises(UnreadableInput), open_trace(tmp_path / "trace") as stream:
            list(stream.records())
    assert len(os.listdir("/proc/self/fd")) <= before + 1
