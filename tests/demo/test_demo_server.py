"""The server as a process: what clients, operators and a folder watcher see of it."""

from __future__ import annotations

import gzip
import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from retuned.demo.batches import StepReport
from retuned.demo.profiler import ProfilerWindows, WindowSettings
from retuned.stages.watch import summarise
from retuned.standalone.proofs.end_to_end_http import HttpEndToEnd

pytest.importorskip("torch", reason="the demo's server needs PyTorch")

SERVER = [sys.executable, "-m", "retuned.demo.server", "--model", "tiny"]
PLAIN = ["--kernels", "plain"]
PATIENCE_S = 200.0
"""For what must happen; when is the machine's affair."""


@dataclass(frozen=True, slots=True)
class Running:
    process: subprocess.Popen[str]
    url: str


def _line(process: subprocess.Popen[str], *, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], timeout_s)
    assert ready, "the process said nothing"
    line = process.stdout.readline()
    assert line, f"the process ended with {process.wait()}"
    body: dict[str, Any] = json.loads(line)
    return body


def _start(folder: Path, arguments: Sequence[str] = PLAIN) -> Running:
    command = [*SERVER, "--socket-dir", str(folder), "--cache-dir", str(folder), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return Running(process, f"http://127.0.0.1:{_line(process)['port']}")


def _end(process: subprocess.Popen[str]) -> int:
    process.terminate()
    try:
        return process.wait(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stdin):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = _start(tmp_path_factory.mktemp("server"), [*PLAIN, "--max-running", "4"])
    yield running
    _end(running.process)


def _until(predicate: Callable[[], bool], *, what: str, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not predicate():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.02)


def _get(url: str) -> httpx.Response:
    return httpx.get(url, timeout=PATIENCE_S, trust_env=False)


def _post(url: str, **sent: Any) -> httpx.Response:
    return httpx.post(url, timeout=PATIENCE_S, trust_env=False, **sent)


def _complete(url: str, body: dict[str, Any]) -> httpx.Response:
    return _post(f"{url}/v1/completions", json=body)


def _events(response: httpx.Response) -> list[str]:
    return [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]


def _metric(url: str, name: str) -> float:
    text = _get(f"{url}/metrics").text
    values = [line.split()[-1] for line in text.splitlines() if line.startswith(name + " ")]
    return float(values[0]) if values else 0.0


def test_it_can_be_measured_end_to_end_and_answers_alike_when_asked_again(server: Running) -> None:
    requests = [{"prompt_tokens": [1 + n, 2, 3], "max_tokens": 6} for n in range(6)]
    bodies = [{**request, "stream": True} for request in requests]
    probe = HttpEndToEnd(f"{server.url}/v1", bodies, concurrency=1)
    first, again = probe.serve(), probe.serve()
    assert [len(answer.tokens) for answer in first.answers] == [6] * 6
    block = summarise("off", first.answers, again)
    assert (block.failed, block.tokens, block.compared, block.diverged) == (0, 36, 36, 0)
    assert block.ttft_s is not None


def test_one_event_per_token_then_usage_then_the_end(server: Running) -> None:
    response = _complete(server.url, {"prompt_tokens": [5, 6, 7], "max_tokens": 4})
    assert response.headers["content-type"] == "text/event-stream"
    *tokens, last, end = _events(response)
    assert [set(json.loads(token)) for token in tokens] == [{"token"}] * 4
    assert json.loads(last) == {
        "finish_reason": "length",
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    assert end == "[DONE]"


def test_streamed_or_not_the_tokens_are_the_same(server: Running) -> None:
    body = {"prompt_tokens": [9, 8, 7], "max_tokens": 6}
    *streamed, _, _ = _events(_complete(server.url, body))
    collected = _complete(server.url, {**body, "stream": False}).json()
    assert collected["tokens"] == [json.loads(event)["token"] for event in streamed]
    assert collected["usage"] == {"prompt_tokens": 3, "completion_tokens": 6}


def test_more_requests_than_places_wait_and_answer_as_if_alone(server: Running) -> None:
    bodies = [
        {"prompt_tokens": [n, 2 * n, 100 - n], "max_tokens": 5, "stream": False} for n in range(20)
    ]
    alone = [_complete(server.url, body).json() for body in bodies]
    with ThreadPoolExecutor(20) as pool:
        together = list(pool.map(lambda body: _complete(server.url, body).json(), bodies))
    assert together == alone


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"prompt_tokens": [], "max_tokens": 1}, "prompt_tokens"),
        ({"prompt_tokens": [1], "max_tokens": 0}, "max_tokens"),
        ({"prompt_tokens": [1]}, "max_tokens"),
        ({"prompt_tokens": [-1], "max_tokens": 1}, "prompt_tokens.0"),
        ({"prompt_tokens": ["1"], "max_tokens": 1}, "prompt_tokens.0"),
        ({"prompt_tokens": [True], "max_tokens": 1}, "prompt_tokens.0"),
        ({"prompt_tokens": [128], "max_tokens": 1}, "tokens are 0 to 127"),
        ({"prompt_tokens": [1] * 200, "max_tokens": 313}, "513 together"),
        ({"prompt_tokens": [1], "max_tokens": 1, "temperature": 1}, "temperature"),
        ([], "body"),
    ],
)
def test_a_bad_request_is_refused_and_told_why(server: Running, body: Any, says: str) -> None:
    response = _complete(server.url, body)
    assert response.status_code == 400
    assert says in response.json()["error"]


def test_a_body_that_is_no_json_is_refused(server: Running) -> None:
    response = _post(f"{server.url}/v1/completions", content=b"{")
    assert response.status_code == 400
    assert "Invalid JSON" in response.json()["error"]


def test_a_body_that_is_too_large_is_refused_unread(server: Running) -> None:
    response = _post(f"{server.url}/v1/completions", content=b" " * 200_000)
    assert response.status_code == 413


def test_the_longest_sequence_that_fits_is_served(server: Running) -> None:
    body = {"prompt_tokens": [1] * 200, "max_tokens": 56, "stream": False}
    assert len(_complete(server.url, body).json()["tokens"]) == 56


def test_a_client_that_goes_away_frees_its_place(server: Running) -> None:
    cancelled = 'demo_server_requests_total{outcome="cancelled"}'
    outputs = 'demo_server_tokens_total{kind="output"}'
    before, tokens, asked = _metric(server.url, cancelled), _metric(server.url, outputs), 0
    body = {"prompt_tokens": [1], "max_tokens": 250}

    def left_alone() -> bool:
        """Go away from one more: who is slow to go may have had all of its answer."""
        nonlocal asked
        asked += 250
        with (
            httpx.Client(timeout=PATIENCE_S, trust_env=False) as client,
            client.stream("POST", f"{server.url}/v1/completions", json=body) as response,
        ):
            next(response.iter_raw())
        return _metric(server.url, cancelled) >= before + 8

    _until(left_alone, what="eight cancellations, twice the places")
    answer = _complete(server.url, {"prompt_tokens": [1], "max_tokens": 2, "stream": False})
    assert len(answer.json()["tokens"]) == 2
    _until(lambda: _metric(server.url, "demo_server_running_sequences") == 0, what="free places")
    assert _metric(server.url, outputs) - tokens < asked, "nobody computes what nobody wants"


def test_health_and_metrics_are_served(server: Running) -> None:
    assert _get(f"{server.url}/health").json() == {"status": "ok"}
    before = _metric(server.url, 'demo_server_tokens_total{kind="prompt"}')
    _complete(server.url, {"prompt_tokens": [1] * 9, "max_tokens": 1})
    assert _metric(server.url, 'demo_server_tokens_total{kind="prompt"}') == before + 9


def test_faults_are_not_taken_unless_allowed(server: Running) -> None:
    response = _post(f"{server.url}/demo/fault", json={"slot": "x"})
    assert response.status_code == 404


def test_a_taken_port_is_a_clear_error(server: Running, tmp_path: Path) -> None:
    port = server.url.rsplit(":", 1)[1]
    command = [*SERVER, *PLAIN, "--socket-dir", str(tmp_path), "--cache-dir", str(tmp_path)]
    done = subprocess.run(
        [*command, "--port", port], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 2
    assert f"port {port} cannot be had on 127.0.0.1" in done.stderr


def _cpu_operators(path: Path) -> list[dict[str, Any]]:
    trace = json.loads(gzip.decompress(path.read_bytes()))
    return [event for event in trace["traceEvents"] if event.get("cat") == "cpu_op"]


def test_profiler_windows_land_complete_and_the_folder_stays_small(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    windows = ["--trace-dir", str(traces), "--window-every-s", "0.05", "--window-steps", "3"]
    running = _start(tmp_path, [*PLAIN, *windows, "--keep-traces", "2"])
    body = {"prompt_tokens": [1, 2, 3, 4, 5], "max_tokens": 60, "stream": False}
    names: set[str] = set()

    def enough() -> bool:
        _complete(running.url, body)
        names.update(path.name for path in traces.glob("*.json.gz"))
        return len(names) >= 4

    _until(enough, what="four windows")
    assert _end(running.process) == 0
    left = sorted(traces.iterdir())
    assert len(left) == 2, "older files and half-written ones are gone"
    assert all(path.name.endswith(".pt.trace.json.gz") for path in left)
    operators = _cpu_operators(left[0])
    linear = [e for e in operators if e["name"] == "aten::linear"]
    assert len(linear) == 3 * (2 * 4 + 1), "three steps of two layers and a head"
    assert all(e["args"]["Input Dims"][0] for e in linear)


def test_sigterm_ends_it_cleanly_while_it_streams(tmp_path: Path) -> None:
    running = _start(tmp_path)
    body = {"prompt_tokens": [1], "max_tokens": 250}
    with (
        httpx.Client(timeout=PATIENCE_S, trust_env=False) as client,
        client.stream("POST", f"{running.url}/v1/completions", json=body) as response,
    ):
        parts = response.iter_raw()
        next(parts)
        assert _end(running.process) == 0


def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    command = [*SERVER, *PLAIN, "--socket-dir", str(tmp_path), "--cache-dir", str(tmp_path)]
    parent_code = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); p.wait()"
    parent = subprocess.Popen(
        [sys.executable, "-c", parent_code, *command], stdout=subprocess.PIPE, text=True
    )
    child_pid = int(_line(parent)["pid"])
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _until(lambda: not _exists(child_pid), what="the server's death")
    assert parent.stdout is not None
    parent.stdout.close()


def _exists(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_client_and_server_agree_on_every_token(server: Running) -> None:
    prompts = 'demo_server_tokens_total{kind="prompt"}'
    outputs = 'demo_server_tokens_total{kind="output"}'
    before = _metric(server.url, prompts), _metric(server.url, outputs)
    command = [sys.executable, "-m", "retuned.demo.client", "--url", server.url, "--vocab", "128"]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(line: str) -> dict[str, Any]:
        assert client.stdin is not None
        client.stdin.write(line + "\n")
        client.stdin.flush()
        return _line(client)

    try:
        start = _line(client)
        assert start["ready"]
        _until(lambda: say("mark")["ok"] >= 10, what="ten chat requests")
        assert say("phase code")["phase"] == "code"
        middle = say("mark")
        _until(lambda: say("mark")["ok"] >= middle["ok"] + 30, what="thirty code requests")
        rate = say(f"rate {start['t_s']} {say('mark')['t_s']}")
        assert rate["tokens_per_s"] > 0
        assert "unknown command" in say("dance")["error"]
        last = say("stop")
    finally:
        _end(client)
    assert last["failed"] == 0
    assert last["sent"] == last["ok"]
    assert sum(prompt for _, prompt, _ in last["timeline"]) == last["prompt_tokens"]
    assert _metric(server.url, prompts) - before[0] == last["prompt_tokens"]
    assert _metric(server.url, outputs) - before[1] == last["output_tokens"]


def test_the_end_of_stdin_stops_the_client(server: Running) -> None:
    command = [sys.executable, "-m", "retuned.demo.client", "--url", server.url, "--vocab", "128"]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["failed"] == 0


@pytest.mark.slow
def test_with_the_catalogs_kernels_it_answers_the_same_and_can_be_observed(
    server: Running, tmp_path: Path
) -> None:
    traces = tmp_path / "traces"
    observed = ["--trace-dir", str(traces), "--window-every-s", "0.05", "--window-steps", "3"]
    running = _start(tmp_path, [*observed, "--kernels", "catalog", "--allow-fault"])
    bodies = [
        {"prompt_tokens": [n, 2 * n, 100 - n], "max_tokens": 20, "stream": False} for n in range(9)
    ]
    assert [_complete(running.url, body).json() for body in bodies] == [
        _complete(server.url, body).json() for body in bodies
    ]
    assert (tmp_path / f"{running.process.pid}.sock").is_socket(), "the daemon can reach the slots"
    fault = {"slot": "linear_w8_n192_k64"}
    refused = _post(f"{running.url}/demo/fault", json=fault)
    assert refused.status_code == 400
    assert "never broken" in refused.json()["error"]

    def window() -> bool:
        _complete(running.url, bodies[1])
        return any(traces.glob("*.json.gz"))

    _until(window, what="a profiler window")
    assert _end(running.process) == 0
    operators = _cpu_operators(next(traces.glob("*.json.gz")))
    seen = {e["name"]: e["args"]["Input Dims"] for e in operators if "retuned::" in e["name"]}
    names = ("linear_w8", "rmsnorm", "silu_mul", "attention", "softmax")
    assert set(seen) == {f"retuned::{name}" for name in names}
    assert seen["retuned::linear_w8"][1:] == [[128, 64], [128]], "the last one is the head"


def test_no_window_begins_while_a_live_proof_times_steps(tmp_path: Path) -> None:
    timed = True
    windows = ProfilerWindows(tmp_path, settings=WindowSettings(every_s=0.0, max_steps=1))
    windows.disturbs = lambda: timed
    report = StepReport(duration_s=0.01, prefill_tokens=0, output_tokens=1, running=1, waiting=0)
    for _ in range(2):
        windows.before_step()
        windows.after_step(report)
    timed = False
    windows.before_step()
    windows.after_step(report)
    windows.stopped()
    assert len(list(tmp_path.iterdir())) == 1
