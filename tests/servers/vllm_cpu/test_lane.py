"""A real vLLM that serves: its tunable is found, tuned, swapped and taken back; no request fails.

One server for all; the tests are a story and run in their order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from tests.servers.vllm_cpu.server import Lane

from retuned.runtime_client.tunables import RuntimeTunables

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def lane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lane]:
    made = Lane(tmp_path_factory.mktemp("lane"))
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def before(lane: Lane) -> list[str]:
    """Answers before anything was changed."""
    return lane.digest()


def wait(lane: Lane, what: Callable[[], object], *, limit_s: float = 240.0) -> None:
    """Wait for something; its logs tell why it did not come."""
    until_s = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < until_s, lane.log("daemon.log") + lane.log()
        time.sleep(0.5)


def test_what_the_server_launches_is_seen_in_its_worker(lane: Lane, before: list[str]) -> None:
    assert lane.digest() == before
    process, name = lane.tunable()
    report = process.tunables[name]
    assert process.steps.hook == "on"
    assert {each.how for each in report.asked} == {"frozen"}
    assert sum(each.launches for each in report.asked) > 0
    survey = lane.json("survey", str(lane.sockets))
    assert name in [each["id"] for each in survey["tunables"]]


def test_a_pause_holds_the_server_between_two_steps_and_no_request_fails(lane: Lane) -> None:
    tap = RuntimeTunables(lane.sockets)
    with lane.traffic():
        time.sleep(1.0)
        process, name = lane.tunable()
        with tap.paused(process, seconds=1.5):
            first = _launches(lane, name)
            time.sleep(0.5)
            assert _launches(lane, name) == first
        wait(lane, lambda: _launches(lane, name) > first)
    assert lane.failed == []


def _launches(lane: Lane, name: str) -> int:
    process, _ = lane.tunable()
    return sum(each.launches for each in process.tunables[name].asked)


def test_the_daemon_tunes_it_and_answers_stay_equal(lane: Lane, before: list[str]) -> None:
    daemon = lane.daemon()
    with lane.traffic():
        wait(lane, lambda: (lane.folder / "state" / "state.sqlite3").is_file())
        wait(lane, lambda: lane.json("proposals")["proposals"])
        (proposal,) = lane.json("proposals")["proposals"]
        assert proposal["speedup"]["lower"] > 1.5
        wait(lane, lambda: lane.retuned("approve", proposal["id"], "-m", "a test")[0] == 0)
        wait(lane, lambda: lane.matched())
        wait(lane, lambda: _verdict(lane, proposal["id"]))
        assert _verdict(lane, proposal["id"]) == "helps", lane.json("show", proposal["id"])
        wait(lane, lambda: lane.json("show", proposal["id"])["phase"] == "Promoted")
    assert lane.digest() == before
    assert (lane.failed, lane.answered > 0) == ([], True)
    daemon.kill()
    daemon.wait()
    assert lane.digest() == before
    matched = lane.matched()
    assert matched is not None
    lane.daemon()
    status, said = lane.retuned("rollback", proposal["id"], "-m", "a test")
    assert status == 0, said
    wait(lane, lambda: lane.matched() is None, limit_s=60.0)
    assert lane.digest() == before


def _verdict(lane: Lane, proposal: str) -> str:
    """Return the verdict of live traffic; empty without one."""
    found = lane.json("show", proposal)["live_proof"]
    return found["state"] if found is not None and found["report"] is not None else ""


def test_the_server_goes_on_without_retuned(lane: Lane, before: list[str]) -> None:
    status, said = lane.retuned("detach")
    assert status == 0, said
    wait(lane, lambda: not list(lane.sockets.glob("*.sock")), limit_s=30.0)
    assert lane.digest() == before
