"""The two commands that read recorded traces: JSON, text, page, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from retuned.cli.analyze import analyze, diff
from retuned.errors import UnreadableInput, UsageError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "traces"
DATA = Path(__file__).resolve().parents[1] / "data" / "traces"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "fixtures"


def run(*arguments: object) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(analyze)
    app.command()(diff)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def answer(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    body: dict[str, Any] = json.loads(result.stdout)
    return body


def test_analyze_answers_with_the_documented_object() -> None:
    body = answer("analyze", DATA / "rocprofv3_7_2.csv")

    assert body["files"] == [
        {
            "path": str(DATA / "rocprofv3_7_2.csv"),
            "format": "rocprofv3-csv",
            "launches": 3,
            "kernels": 2,
            "span_ns": 110_000,
            "skipped": {},
            "error": None,
        }
    ]
    profile = body["profile"]
    assert (profile["launches"], profile["gpu_time_ns"]) == (3, 99_000)
    first = profile["signatures"][0]
    assert first["kernel"] == "void gemm<float, 2>(float*, int)"
    assert (first["launches"], first["gpu_time_ns"]) == (2, 95_000)
    assert first["share"] == pytest.approx(95 / 99)
    assert (first["blocks"], first["threads"]) == ([4, 1, 1], [256, 4, 1])
    assert (first["dims"], first["dtypes"], first["layout"]) == ([], [], "")
    assert (first["shape_source"], first["shape_confidence"]) == ("none", 0.0)


def test_shapes_come_with_their_source_and_confidence() -> None:
    body = answer("analyze", DATA / "kineto_cpu.json")
    own = body["profile"]["signatures"][0]
    assert own["kernel"] == "retuned::linear_w8"
    assert own["dims"] == [[2, 8], [4, 8]]
    assert own["dtypes"] == ["float", "float"]
    assert own["layout"] == "contiguous"
    assert (own["shape_source"], own["shape_confidence"]) == ("op", 1.0)


def test_several_files_are_one_profile() -> None:
    body = answer("analyze", DATA / "rocprofv3_7_2.csv", DATA / "rocpd.db")
    assert [entry["format"] for entry in body["files"]] == ["rocprofv3-csv", "rocpd"]
    assert body["profile"]["launches"] == 6
    assert body["profile"]["gpu_time_ns"] == 198_000


def test_an_unreadable_file_is_an_entry_and_the_rest_is_reported(tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("hello\n")
    result = run("analyze", bad, DATA / "rocpd.db", tmp_path / "absent", "--json")

    assert result.exit_code == 3
    body = json.loads(result.stdout)
    first, second, third = body["files"]
    assert first["error"]["code"] == "unknown-format"
    assert first["error"]["where"] == str(bad)
    assert first["error"]["message"]
    assert second["error"] is None
    assert third["error"]["code"] == "not-found"
    assert body["profile"]["launches"] == 3
    assert "bad.csv" in result.stderr.replace("\n", "")


def test_where_nothing_could_be_read_the_answer_is_an_error_too(tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("hello\n")
    body = answer("analyze", bad, tmp_path / "absent")
    assert body["error"] == body["files"][0]["error"]
    assert body["error"].keys() == {"code", "where", "message"}
    assert "error" not in answer("analyze", bad, DATA / "rocpd.db")


def test_the_same_content_is_counted_once_and_said(tmp_path: Path) -> None:
    trace = DATA / "rocprofv3_7_2.csv"
    copy = tmp_path / "copy.csv"
    copy.write_bytes(trace.read_bytes())
    other = tmp_path / "other.csv"  # as long, and not the same
    other.write_bytes(trace.read_bytes().replace(b"gemm", b"gmem"))
    result = run("analyze", trace, copy, other, trace, "--json")
    assert result.exit_code == 0
    body = json.loads(result.stdout)
    assert [entry.get("same_as") for entry in body["files"]] == [None, str(trace), None, str(trace)]
    assert body["profile"]["launches"] == 6
    said = f"retuned: {copy}: the same content as {trace}; counted once"
    assert said in result.stderr
    assert result.stderr.count("counted once") == 2


def test_a_file_that_breaks_near_its_end_adds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "half.csv"
    whole = (DATA / "rocprofv3_7_2.csv").read_text()
    path.write_text(whole + whole.splitlines()[1][:40])
    body = answer("analyze", path)
    assert body["files"][0]["error"]["code"] == "truncated-csv"
    assert body["profile"] == {"launches": 0, "gpu_time_ns": 0, "signatures": []}


def test_the_text_names_kernels_and_what_was_left_out() -> None:
    result = run("analyze", DATA / "kineto_rocm.json", "--top", 1)
    assert result.exit_code == 0
    assert "gemm" in result.stdout
    assert "96" in result.stdout
    assert "not-a-kernel" in result.stdout


def test_escapes_in_names_reach_neither_terminal_nor_page(tmp_path: Path) -> None:
    path = tmp_path / "hostile.json"
    name = "\x1b[31mred<script>alert(1)</script>[bold]"
    event = {"ph": "X", "cat": "kernel", "name": name, "ts": 1.0, "dur": 2.0}
    path.write_text(json.dumps({"traceEvents": [event]}))
    result = run("analyze", path, "--html", tmp_path / "page.html")
    assert result.exit_code == 0
    assert "\x1b[31m" not in result.stdout
    page = (tmp_path / "page.html").read_text()
    assert "<script>alert" not in page
    assert "red" in page


def test_a_page_that_cannot_be_written_is_wrong_usage(tmp_path: Path) -> None:
    result = run("analyze", DATA / "rocpd.db", "--html", tmp_path / "absent" / "page.html")
    assert isinstance(result.exception, UsageError)


def test_a_capture_that_is_none_is_refused_before_anything_is_read() -> None:
    result = run("analyze", DATA / "kineto_cuda.json", "--capture", DATA / "rocpd.db")
    assert isinstance(result.exception, UnreadableInput)
    assert result.exception.code == "not-a-capture"


def test_one_workload_has_not_drifted_from_itself_in_another_format() -> None:
    result = run("diff", DATA / "rocprofv3_7_2.csv", DATA / "rocpd.db", "--json", "--fail-on-drift")
    assert result.exit_code == 0
    drift = json.loads(result.stdout)["drift"]
    assert drift["detected"] is False
    assert drift["sentence"]


def workload(path: Path, kernels: dict[str, int]) -> Path:
    header = (DATA / "rocprofv3_7_2.csv").read_text().splitlines()[0]
    rows, at = [header], 10**9
    for _ in range(200):
        for kernel, time_ns in kernels.items():
            times = f"{at},{at + time_ns}"
            rows.append(
                f'"KERNEL_DISPATCH","Agent 4",1,1,7,1,1,"{kernel}",1,{times},0,0,8,0,16,'
                "64,1,1,640,1,1"
            )
            at += time_ns + 1000
    path.write_text("\n".join(rows) + "\n")
    return path


def test_drift_is_an_answer_and_a_failure_only_where_asked(tmp_path: Path) -> None:
    before = workload(tmp_path / "before.csv", {"decode": 90_000, "norm": 10_000})
    after = workload(tmp_path / "after.csv", {"prefill": 90_000, "norm": 10_000})

    result = run("diff", before, after, "--json")
    assert result.exit_code == 0
    drift = json.loads(result.stdout)["drift"]
    assert drift["detected"] is True
    assert {"prefill", "decode"} & {reason["kernel"] for reason in drift["reasons"]}
    for reason in drift["reasons"]:
        assert {"code", "kernel", "share_before", "share_after", "detail"} <= reason.keys()
    assert drift["distance"] > 0.5

    page = tmp_path / "diff.html"
    assert run("diff", before, after, "--fail-on-drift", "--html", page).exit_code == 1
    assert "prefill" in page.read_text()


def test_a_replay_is_compared_with_eager_launches_by_name_and_it_is_said(tmp_path: Path) -> None:
    eager, replay = (EXAMPLES / f"llama-chat-{how}.pt.trace.json.gz" for how in ("eager", "graphs"))
    page = tmp_path / "page.html"
    body = answer("diff", eager, replay, "--html", page)
    (warning,) = body["warnings"]
    assert warning["code"] == "shapes-on-one-side"
    assert warning["message"].startswith(f"{replay} does not say at which shapes")
    assert body["drift"]["distance"] < 0.01  # by shapes it would be 0.99, of the same work
    assert body["drift"]["reasons"][0]["code"] == "frequency-changed"
    html = page.read_text()
    assert "does not say at which shapes" in html
    assert "(whole workload)" in html
    assert "(unnamed)" not in html
    assert answer("diff", replay, eager)["warnings"][0]["message"].startswith(f"{replay} does not")


def test_traces_that_were_recorded_alike_are_compared_without_a_warning() -> None:
    chat, code = (EXAMPLES / f"llama-{what}-graphs.pt.trace.json.gz" for what in ("chat", "code"))
    body = answer("diff", chat, code)
    assert body["warnings"] == []
    assert body["drift"]["detected"]


def test_a_folder_is_refused_with_the_way_to_name_its_traces(tmp_path: Path) -> None:
    result = run("analyze", tmp_path)
    assert result.exit_code == 3
    assert f"name the traces in it, such as {tmp_path}/*.json.gz" in result.stderr.replace("\n", "")
    assert result.stdout == ""


def test_an_error_is_said_once(tmp_path: Path) -> None:
    result = run("analyze", DATA / "rocpd.db", tmp_path / "absent")
    assert (result.stdout + result.stderr).count("no such file") == 1
    assert "not-found" in result.stdout


def test_diff_refuses_what_it_cannot_read() -> None:
    result = run("diff", DATA / "rocpd.db", DATA / "make.py")
    assert isinstance(result.exception, UnreadableInput)


@pytest.mark.shared
def test_a_capture_gives_a_real_replay_its_shapes() -> None:
    folder = SHARED / "kineto_inference"
    capture = folder / "vllm_decode_full_graph_capture_rank0.pt.trace.json.gz"
    replay = folder / "vllm_decode_full_graph_execution.json.gz"
    without, with_it = answer("analyze", replay), answer("analyze", replay, "--capture", capture)

    def known(body: dict[str, Any]) -> float:
        return sum(float(s["share"]) for s in body["profile"]["signatures"] if s["dims"])

    assert known(without) < 0.03
    assert known(with_it) == pytest.approx(1.0)
    assert with_it["files"][0]["aligned"] == 421
    assert with_it["profile"]["gpu_time_ns"] == without["profile"]["gpu_time_ns"]
