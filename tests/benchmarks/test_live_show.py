"""What of the show needs no GPU: its requests, how answers are judged, what is published."""

from __future__ import annotations

import gzip
import json
import math
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.gpu.live.answers import allowed_gap, check, same
from benchmarks.gpu.live.traces import pick, publish
from benchmarks.gpu.live.traffic import SCALES, Answered, Asked, requests_of
from tests.expect import raises_naming

from retuned.demo.traffic import Phase
from retuned.errors import HarnessError


def answered(*tokens: int, prompt: Sequence[int] = (1, 2), failure: str | None = None) -> Answered:
    asked = Asked(phase=Phase.CHAT, prompt=tuple(prompt), output_tokens=len(tokens) or 1)
    return Answered(asked=asked, tokens=tokens, failure=failure, latency_s=0.1, ttft_s=0.05)


@pytest.mark.parametrize("phase", list(Phase))
def test_every_side_gets_the_same_requests_for_a_seed(phase: Phase) -> None:
    one = requests_of(phase, 20, model="gpu", seed=3)
    assert one == requests_of(phase, 20, model="gpu", seed=3)
    assert one[:5] == requests_of(phase, 5, model="gpu", seed=3)
    assert one != requests_of(phase, 20, model="gpu", seed=4)


@pytest.mark.parametrize(("model", "holds"), [("gpu", 767), ("tiny", 127)])
def test_a_request_fits_into_a_row_of_the_model(model: str, holds: int) -> None:
    for phase, scale in SCALES[model].items():
        assert scale.prompt_cap + scale.output_cap <= holds, phase
        for asked in requests_of(phase, 50, model=model, seed=1):
            assert len(asked.prompt) + asked.output_tokens <= holds


def test_code_has_longer_prompts_and_shorter_answers_than_chat() -> None:
    chat, code = (requests_of(phase, 200, model="gpu", seed=5) for phase in Phase)
    assert sum(len(a.prompt) for a in code) > 3 * sum(len(a.prompt) for a in chat)
    assert 3 * sum(a.output_tokens for a in code) < sum(a.output_tokens for a in chat)


def test_what_rounding_explains_is_taken_from_the_control_itself() -> None:
    assert allowed_gap([[0.0, 0.01], [0.03]]) == pytest.approx(0.06)
    assert allowed_gap([[0.0]]) > 0.0
    with raises_naming(ValueError, "control"):
        allowed_gap([])


def test_a_near_tie_is_counted_and_is_not_wrong() -> None:
    found = check([answered(1, 2, 3)], [[0.0, 0.02, 0.0]], allowed=0.06)
    assert (found.wrong, found.not_first, found.worst_gap) == (0, 1, 0.02)


@pytest.mark.parametrize("gap", [0.07, math.inf, math.nan])
def test_a_token_beyond_rounding_makes_an_answer_wrong(gap: float) -> None:
    found = check([answered(1, 2), answered(3, 4)], [[0.0, 0.0], [0.0, gap]], allowed=0.06)
    assert (found.requests, found.wrong) == (2, 1)


def test_an_answer_that_nobody_checked_is_not_right() -> None:
    with raises_naming(ValueError, "checked"):
        check([answered(1, 2)], [None], allowed=0.06)
    with raises_naming(ValueError, "checked"):
        check([answered(1, 2)], [[0.0]], allowed=0.06)


def test_a_failed_request_is_counted_as_failed() -> None:
    found = check([answered(failure="timeout")], [None], allowed=0.06)
    assert (found.failed, found.wrong, found.tokens) == (1, 0, 0)


def test_answers_of_the_same_batches_are_the_same_or_differ_from_some_token_on() -> None:
    ours = [answered(1, 2, 3), answered(4, 5)]
    other = [answered(1, 2, 3), replace(ours[1], tokens=(4, 6))]
    assert same(ours, ours)["identical"] == 2
    found = same(ours, other)
    assert (found["identical"], found["first_difference"]) == (1, [1])


def test_two_failures_are_not_the_same_answer() -> None:
    failed = [answered(1, failure="cut-short")]
    assert same(failed, failed)["identical"] == 0


def test_answers_to_other_requests_are_not_compared() -> None:
    with raises_naming(ValueError, "requests"):
        same([answered(1)], [answered(1, prompt=(9,))])


def window(folder: Path, **more: object) -> Path:
    kernel = {
        "ph": "X", "cat": "kernel", "name": "_rms_norm_forward_kernel", "pid": 0, "tid": 7,
        "ts": 10.0, "dur": 2.5,
        "args": {"grid": [4, 1, 1], "block": [256, 1, 1], "stream": 7, "device": 0},
    }  # fmt: skip
    body = {
        "schemaVersion": 1, "deviceProperties": [], "displayTimeUnit": "ms",
        "traceName": "/tmp/somebody/trace.json", "traceEvents": [kernel], **more,
    }  # fmt: skip
    path = folder / "window.pt.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(body).encode()))
    return path


def test_a_published_window_keeps_its_kernels_and_loses_its_paths(tmp_path: Path) -> None:
    event = {"ph": "M", "name": "note", "args": {"name": "python /home/ada/serve.py --x"}}
    path = window(tmp_path, distributedInfo={"host": "x"})
    body = json.loads(gzip.decompress(path.read_bytes()))
    body["traceEvents"].append(event)
    path.write_bytes(gzip.compress(json.dumps(body).encode()))
    told = publish(path, tmp_path / "out" / "llama.pt.trace.json.gz")
    text = gzip.decompress((tmp_path / "out" / "llama.pt.trace.json.gz").read_bytes()).decode()
    assert told["launches"] == 1
    assert "ada" not in text
    assert "traceName" not in text
    assert "distributedInfo" not in text
    assert json.loads(text)["traceEvents"][1]["args"]["name"] == "python <path> --x"


def test_a_window_that_would_name_the_host_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "machine-17")
    path = window(tmp_path, deviceProperties=[{"name": "machine-17"}])
    with raises_naming(HarnessError, "machine-17"):
        publish(path, tmp_path / "out.gz")
    assert not (tmp_path / "out.gz").exists()


def test_the_largest_window_that_fits_is_taken(tmp_path: Path) -> None:
    sizes = {"a": 10, "b": 50, "c": 90}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x" * size)
    paths = [tmp_path / name for name in sizes]
    assert pick(paths, most_bytes=60) == tmp_path / "b"
    assert pick(paths, most_bytes=5) == tmp_path / "a", "the smallest, where none fits"
    assert pick([], most_bytes=5) is None
