"""Records of steps over sockets; answers of a server are untrusted."""

from __future__ import annotations

import copy
import math
import os
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_code

import retuned.runtime
from retuned.errors import CandidateError
from retuned.runtime.core.attach import Runtime
from retuned.runtime.core.host import RuntimeHost
from retuned.runtime_client.step_records import StepRecord, StepTap, parse_steps


def step(decode: int = 1) -> None:
    with retuned.runtime.step(decode=decode, context=5):
        pass


def test_steps_are_read_once_each(runtime: Runtime, tmp_path: Path) -> None:
    step()
    tap = StepTap(tmp_path / "s")
    (begun,) = tap.begin()
    assert (begun.name, begun.recording, begun.records) == (f"{os.getpid()}.sock", True, ())
    for decode in (1, 2, 3):
        step(decode)
    (first,) = tap.read(limit=2)
    (second,) = tap.read()
    assert [[each.decode for each in p.records] for p in (first, second)] == [[1, 2], [3]]
    assert (first.hook, first.lost, second.lost, second.pending) == ("on", 0, 0, 0)
    record = second.records[0]
    assert record.period_s is not None
    assert 0 < record.period_s < 10
    assert abs(record.ended_s - second.now_s) < 10
    (ended,) = tap.end()
    assert not ended.recording
    step()
    assert tap.read()[0].records == ()


def test_a_process_that_began_again_is_read_from_its_first_step(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tap = StepTap(tmp_path / "s")
    tap.begin()
    for _ in range(3):
        step()
    tap.read()
    monkeypatch.setattr(runtime._host._execution, "instance", "new")
    assert [each.index for each in tap.read()[0].records] == [0, 1, 2]
    assert tap.read()[0].records == ()


def answer() -> dict[str, Any]:
    said = RuntimeHost("test").answer({"op": "steps"})
    said |= {"next": 8, "lost": 1}
    said["records"] = [
        [5, "on", 0, 3, 99, 8, None, None, 10.5, 1.25],
        [7, "", 16, 0, 0, 0, 2000.0, 1500, 11, 2],
    ]
    return said


def test_an_answer_is_parsed() -> None:
    first, second = parse_steps("1.sock", answer()).records
    assert first == StepRecord(
        index=5, arm="on", prefill=0, decode=3, context=99, graph=8,
        period_s=None, busy_s=None, host_s=10.5e-6, ended_s=1.25,
    )  # fmt: skip
    assert (second.period_s, second.busy_s) == (2e-3, 1.5e-3)


@pytest.mark.parametrize("place", range(10))
@pytest.mark.parametrize("value", [-1, True, "x" * 33, [1], math.nan, math.inf, 2**60, {}])
def test_a_record_outside_its_range_is_refused(place: int, value: Any) -> None:
    said = answer()
    said["records"][0][place] = value
    with raises_code(CandidateError, "steps-invalid"):
        parse_steps("1.sock", said)


@pytest.mark.parametrize(
    "changed",
    [
        *({"fields": ["index"]}, {"fields": None}, {"records": None}, {"records": [[1]]}),
        *({"records": ["0123456789"]}, {"records": [None]}, {"next": 7}, {"next": -1}),
        *({"next": None}, {"lost": 1.0}, {"pending": "0"}, {"hook": None}, {"hook": "x" * 999}),
        *({"now_s": math.inf}, {"now_s": None}, {"arm": 3}, {"rank": 0}, {"overlapping": -1}),
    ],
)
def test_an_invalid_answer_is_refused(changed: dict[str, Any]) -> None:
    with raises_code(CandidateError, "steps-invalid"):
        parse_steps("1.sock", answer() | changed)


def test_records_out_of_order_or_too_many_are_refused() -> None:
    said = answer()
    for rows in (said["records"][::-1], [said["records"][0]] * 2, said["records"] * 3000):
        with raises_code(CandidateError, "steps-invalid"):
            parse_steps("1.sock", copy.deepcopy(said) | {"records": rows})
