"""``retuned survey``: a living server, traces, folders and tuned files; JSON, text, page, codes."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.report import survey_samples as samples
from tests.report.test_report_pages import harmless
from typer.testing import CliRunner, Result

from retuned.cli.survey import asked_sizes, card_of_traces, past_results, survey
from retuned.errors import (
    CandidateError,
    MissingDependency,
    TemporaryError,
    UnreadableInput,
    UsageError,
)
from retuned.report.survey_records import ROOF_REASONS, Roof, Survey
from retuned.store.sqlite import SqliteStore

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "traces"
DATA = ROOT / "tests" / "data" / "traces"
SHARED = ROOT.parent / "shared" / "fixtures"
ROW = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
ROW |= {"num_warps": 4, "num_stages": 5}


def run(*arguments: object) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(survey)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def answer(*arguments: object, exit_code: int = 0) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == exit_code, (result.exception, result.output)
    body: dict[str, Any] = json.loads(result.stdout)
    return body


@contextmanager
def process(path: Path, body: dict[str, Any]) -> Iterator[None]:
    """Answer every request on a socket with one object."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        line = json.dumps({"ok": True, **body}).encode() + b"\n"

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(line)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def test_a_living_server_is_surveyed_over_all_its_processes(tmp_path: Path) -> None:
    other = samples.report(keys=[samples.asked(config=samples.LARGE)])
    with (
        process(tmp_path / "7.sock", samples.answer(samples.report())),
        process(tmp_path / "8.sock", samples.answer(other)),
    ):
        body = answer(tmp_path)
    assert body["schema_version"] == 1
    assert body["processes"] == ["7", "8"]
    assert body["versions"]["vllm"] == "0.26.0"
    assert body["tunables"][0]["remarks"] == ["ranks-differ"]
    assert body["conclusion"]["code"] == "gain-expected"
    assert body["unanswered"] == []


def test_a_process_that_refuses_is_named_and_the_others_are_surveyed(tmp_path: Path) -> None:
    refusing = {"ok": False, "reason": "unknown-op", "detail": "tunables"}
    with (
        process(tmp_path / "7.sock", samples.answer(samples.report())),
        process(tmp_path / "8.sock", refusing),
    ):
        body = answer(tmp_path)
    assert [each["code"] for each in body["unanswered"]] == ["unknown-op"]
    assert body["processes"] == ["7"]


def test_an_old_runtime_is_an_error_with_its_reason(tmp_path: Path) -> None:
    with process(tmp_path / "7.sock", {"ok": False, "reason": "unknown-op", "detail": "x"}):
        error = run(tmp_path).exception
    assert isinstance(error, CandidateError)
    assert error.reason == "unknown-op"


def test_a_server_that_ended_does_not_answer(tmp_path: Path) -> None:
    with process(tmp_path / "7.sock", {}):
        pass
    assert isinstance(run(tmp_path).exception, TemporaryError)


def test_a_server_gives_tables_their_sizes_and_their_triton(tmp_path: Path) -> None:
    name = "E=512,N=128,device_name=X,dtype=fp8_w8a8,block_shape=[128,128].json"
    tables = tmp_path / "tables"
    tables.mkdir()
    rows = {"triton_version": "3.1.0", "1": ROW, "64": ROW}
    (tables / name).write_text(json.dumps(rows), encoding="utf-8")
    with process(tmp_path / "7.sock", samples.answer(samples.moe("nearest", tokens=256))):
        body = answer(tmp_path, tables)
    (table,) = body["tables"]
    assert table["asked"] == 1
    assert {each["code"] for each in table["findings"]} == {
        "asked-beyond-rows",
        "row-not-asked",
        "version-differs",
    }


def test_exact_sizes_of_steps_go_before_ends_of_buckets() -> None:
    body = samples.answer(samples.moe("nearest", tokens=256))
    assert asked_sizes({"7": body}, {}) == {"512,128": [256]}
    body["steps"]["recent"] = [{"tokens": 200}, {"tokens": 31}]
    assert asked_sizes({"7": body}, {}) == {"*": [31, 200], "512,128": [31, 200]}


@pytest.mark.parametrize("trace", sorted(EXAMPLES.glob("*.gz")), ids=lambda path: path.name)
def test_the_example_traces_have_nothing_to_gain(trace: Path) -> None:
    body = answer(trace)
    assert body["conclusion"]["code"] == "nothing-to-gain"
    families = {each["family"]: each for each in body["fixed"]}
    assert families["flash-attention"]["reason"] == "ahead-of-time"
    assert families["cublas"]["reason"] == "choice-in-library"
    assert sum(each["share"] for each in body["fixed"]) == pytest.approx(1)


def traced(path: Path, *names: str, last: bool = False) -> Path:
    """Write a trace whose devices are named before or after its events."""
    devices = {"deviceProperties": [{"id": n, "name": name} for n, name in enumerate(names)]}
    event = {"ph": "X", "name": "a", "args": {"deviceProperties": [{"name": "NVIDIA B200"}]}}
    events = {"traceEvents": [event] * 4_000}
    body = events | devices if last else devices | events
    path.write_text(json.dumps(body), encoding="utf-8")
    return path


@pytest.mark.parametrize("last", [False, True])
def test_a_trace_names_its_card_before_or_after_its_events(tmp_path: Path, last: bool) -> None:
    one = traced(tmp_path / "1.json", "NVIDIA H200", "NVIDIA H200", last=last)
    assert one.stat().st_size > 4 * (64 << 10)
    assert card_of_traces([one, one]) == "NVIDIA H200"
    other = traced(tmp_path / "2.json", "NVIDIA L4", last=last)
    assert card_of_traces([one, other]) == ""
    assert card_of_traces([traced(tmp_path / "3.json", "NVIDIA H200", "NVIDIA L4")]) == ""
    assert card_of_traces([one, traced(tmp_path / "4.json")]) == ""


def test_devices_are_found_at_the_end_wherever_a_block_ends(tmp_path: Path) -> None:
    path = traced(tmp_path / "1.json", "NVIDIA H200", last=True)
    text = path.read_text(encoding="utf-8")
    for beyond in (1, 20, 60):  # bytes of the last block that is read
        spaces = (beyond - len(text)) % (64 << 10)
        path.write_text(text[:-2] + " " * spaces + text[-2:], encoding="utf-8")
        assert card_of_traces([path]) == "NVIDIA H200"


@pytest.mark.parametrize(
    "text", ['{"deviceProperties": ' + "[" * 60_000, '{"deviceProperties": 7}']
)
def test_devices_that_are_not_a_list_of_objects_name_no_card(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="utf-8")
    assert card_of_traces([path]) == ""
    assert card_of_traces([DATA / "rocprofv3_7_2.csv"]) == ""
    assert card_of_traces([]) == ""


def test_the_card_of_a_trace_is_reported() -> None:
    trace = EXAMPLES / "llama-chat-graphs.pt.trace.json.gz"
    assert answer(trace)["card"] == "NVIDIA H100 80GB HBM3"


@pytest.mark.shared
def test_a_trace_of_a_real_server_names_what_cannot_be_changed() -> None:
    name = "vllm_decode_full_graph_execution.json.gz"
    body = answer(SHARED / "kineto_inference" / name)
    largest = body["fixed"][0]
    assert (largest["family"], largest["reason"]) == ("triton-kernels", "adapter-missing")
    assert largest["share"] > 0.5
    assert body["conclusion"]["code"] == "gain-out-of-reach"
    assert body["tunables"] == []


@pytest.mark.shared
def test_a_folder_of_traces_leaves_out_what_is_no_trace() -> None:
    body = answer(SHARED / "kineto_inference")
    assert len(body["files"]) == 4
    assert not any(entry["error"] for entry in body["files"])


def test_a_trace_that_cannot_be_read_is_reported_with_the_others(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json.gz"
    broken.write_bytes(b"\x1f\x8b not gzip")
    body = answer(DATA / "rocprofv3_7_2.csv", broken, exit_code=UnreadableInput.exit_code)
    assert [bool(entry["error"]) for entry in body["files"]] == [False, True]
    assert body["launches"] == 3


def test_a_table_that_is_no_plain_file_is_reported(tmp_path: Path) -> None:
    place = tmp_path / "E=8,N=1024,device_name=X.json"
    place.write_bytes(b" " * ((8 << 20) + 1))
    body = answer(place, exit_code=UnreadableInput.exit_code)
    assert [each["code"] for each in body["unread"]] == ["file-too-large"]


def test_a_place_with_nothing_is_refused(tmp_path: Path) -> None:
    assert isinstance(run(tmp_path).exception, MissingDependency)
    assert isinstance(run(tmp_path / "absent").exception, MissingDependency)
    (tmp_path / "notes.txt").write_text("nothing", encoding="utf-8")
    assert isinstance(run(tmp_path).exception, MissingDependency)
    error = run(DATA / "rocprofv3_7_2.csv", "--html", tmp_path / "no" / "page.html").exception
    assert isinstance(error, UsageError)


def test_text_and_page_end_with_the_same_sentence(tmp_path: Path) -> None:
    trace, page = EXAMPLES / "llama-chat-graphs.pt.trace.json.gz", tmp_path / "page.html"
    result = run(trace, "--html", page)
    assert result.exit_code == 0
    html = page.read_text(encoding="utf-8")
    harmless(html)
    sentence = answer(trace)["conclusion"]["sentence"]
    assert result.stdout.rstrip().endswith(sentence)
    assert sentence in html


def test_the_json_has_the_documented_fields() -> None:
    body = answer(DATA / "rocprofv3_7_2.csv")
    page = (ROOT / "docs" / "tunables.md").read_text(encoding="utf-8")
    assert set(body) == {*Survey.model_fields, "files", "unread", "unanswered"}
    fields = {*body, *Roof.model_fields, *ROOF_REASONS}
    for name in fields:
        assert f"`{name}`" in page, name


def test_an_earlier_survey_is_compared(tmp_path: Path) -> None:
    trace, earlier = DATA / "rocprofv3_7_2.csv", tmp_path / "earlier.json"
    earlier.write_text(json.dumps(answer(trace)), encoding="utf-8")
    assert answer(trace, "--before", earlier)["schema_version"] == 1
    for text in ("{}", "[", "", "null"):
        earlier.write_text(text, encoding="utf-8")
        error = run(trace, "--before", earlier).exception
        assert isinstance(error, UnreadableInput)
        assert error.code == "not-a-survey"


def test_past_experiments_replace_priors(tmp_path: Path) -> None:
    one = samples.report()
    store = SqliteStore(tmp_path / "state")
    store.add("experiment", "exp-1", {"definition": one["id"]}, phase="won")
    speedup = {"lower": 1.3, "point": 1.4, "upper": 1.5, "confidence": 0.95}
    won = {"status": "promote", "reason": "faster", "speedup": speedup}
    lost = {"status": "reject", "reason": "not-faster", "speedup": None}
    for digest, verdict in (("a", lost), ("b", won), ("c", lost)):
        store.add("finding", f"exp-1/{digest}", {"verdict": verdict}, phase="final")
    store.close()
    assert past_results(tmp_path / "state")[one["id"]].expected == 1.4
    sockets = tmp_path / "s"
    sockets.mkdir()
    with process(sockets / "7.sock", samples.answer(one)):
        body = answer(sockets, "--state", tmp_path / "state")
    assert body["tunables"][0]["gain"]["source"] == "experiment"
    assert isinstance(run(EXAMPLES, "--state", tmp_path / "none").exception, UnreadableInput)
