"""``retuned status`` and ``retuned rearm``, asked of runtimes that listen in this very process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from tests.expect import raises_code, raises_naming
from tests.stages.test_lessons import lesson
from typer.testing import CliRunner

from retuned.cli import status, stops
from retuned.errors import (
    MissingDependency,
    Refused,
    RetunedError,
    TemporaryError,
    UnreadableInput,
    UsageError,
)
from retuned.runtime.artifacts.compile_budget import CompileBudget
from retuned.runtime.core.active_order import Swapped
from retuned.runtime.core.attach import Runtime, attach
from retuned.runtime.core.control_socket import ControlSocket
from retuned.runtime.core.orders import parse_order
from retuned.runtime.core.slots import Slot
from retuned.runtime.profiler.schedule import Rule
from retuned.runtime.profiler.service import Windows
from retuned.runtime.shadow.sampler import compare_tensors
from retuned.runtime_client.client import RuntimeSocket
from retuned.runtime_client.status import ProcessStatus, Standings, process_status
from retuned.stages.gate import TuningFreeze
from retuned.store.approvals import Approvals, Identity
from retuned.store.keys import Ed25519Notary
from retuned.store.lessons import keep
from retuned.store.sqlite import SqliteStore

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64

Run = Callable[..., Any]


class Doubling:
    """A variant that is right."""

    def launcher(self, _: tuple[int, ...]) -> Callable[[tuple[Any, ...]], Any]:
        return lambda inputs: inputs[0] + inputs[0]

    checked_launcher = launcher

    def capturing(self) -> None:
        return None

    def fingerprint(self, _: tuple[Any, ...]) -> object:
        return 0


class Server:
    """One process of a server."""

    def __init__(self, folder: Path, name: str = "") -> None:
        self.runtime: Runtime = attach(folder / name if name else None, server="chat",
                                       socket_dir=folder)  # fmt: skip

    def slot(self, name: str) -> Slot:
        tensor = {"shape": ["M"], "dtype": "float32"}
        body = {"name": name, "op_type": "double", "axes": {"M": {"type": "var"}}}
        body |= {"inputs": {"x": tensor}, "outputs": {"y": tensor}}
        return self.runtime.slot(body, lambda x: x * 2)

    def swap(self, slot: Slot, artifact: str = A, **fields: Any) -> Swapped:
        body = {
            "id": f"order of {slot.spec.name}",
            "kind": "swap",
            "definition": slot.spec.name,
            "artifact": artifact,
            "guard": {"bounds": {"M": [1, 64]}},
            "epoch": 7,
            "target": "local",
        }
        supervision = self.runtime._host._execution.supervision
        swapped = Swapped(
            slot,
            parse_order(body | fields),
            variant=Doubling(),
            compare=compare_tensors,
            on_trip=supervision.tripped,
        )
        slot.commit(swapped)
        return swapped


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("RETUNED_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(
        "retuned.cli.session.local_identity",
        lambda group_map: Identity(user="ada", groups=("gpu-platform",)),
    )
    SqliteStore(tmp_path / "state").close()
    return tmp_path / "state" / "sockets"


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    yield server
    server.runtime.close()


@pytest.fixture
def run(folder: Path) -> Run:
    app = typer.Typer()
    app.command("status")(status.status)
    app.command("rearm")(stops.rearm)

    def invoke(*args: str) -> Any:
        result = CliRunner().invoke(app, [*args, "--state-dir", str(folder.parent)])
        if isinstance(result.exception, RetunedError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout) if "--json" in args else result.output

    return invoke


def trail(folder: Path) -> list[Any]:
    store = SqliteStore(folder.parent)
    try:
        return list(store.events())
    finally:
        store.close()


# --- status ---------------------------------------------------------------------------------------


def test_what_is_in_force_is_shown_with_its_counts(server: Server, run: Run) -> None:
    slot = server.slot("double_m")
    server.swap(slot, canary=[{"fraction": 0.5}], lease_s=600.0)
    for _ in range(200):
        slot(torch.ones(4))
    (process,) = run("status", "--json")["processes"]
    (shown,) = process["slots"]
    assert (process["pid"], process["server"]) == (os.getpid(), "chat")
    assert (shown["definition"], shown["artifact"], shown["epoch"]) == ("double_m", A, 7)
    assert (shown["fraction"], shown["guard"]) == (0.5, {"M": [1, 64]})
    assert shown["swapped_launches"] + shown["fallback_launches"] == 200
    assert shown["shadow_checks"] >= 1
    assert shown["order"]["id"] == "order of double_m"
    text = run("status")
    for word in ("chat: 1 process in", "double_m", "aaaaaaaaaaaa", "50%", "M 1-64", "closed"):
        assert word in text, word
    assert "swap order of dou" in text
    assert " s left" in text or " min left" in text


def test_a_kernel_that_was_taken_back_says_why(server: Server, run: Run) -> None:
    slot = server.slot("double_m")
    server.swap(slot).trip("shadow-mismatch", "ratio 9")
    server.slot("idle")
    text = run("status")
    assert "original (tripped)" in text
    assert "tripped: shadow-mismatch" in text
    assert "aaaaaaaaaaaa may not run: shadow-mismatch" in text
    idle = next(line for line in text.splitlines() if line.startswith("idle"))
    assert "none yet" in idle
    assert "closed" in idle


def test_what_was_compiled_while_serving_is_told_with_its_time(server: Server, run: Run) -> None:
    server.slot("double_m")
    assert "while serving" not in run("status")
    now_s = [0.0]

    def compile_it() -> int:
        now_s[0] += 0.4
        return 1

    compiling = CompileBudget(clock=lambda: now_s[0])
    server.runtime._host._compiling = compiling
    for _ in range(2):
        compiling.do(compile_it, waiting=1)
        now_s[0] += 60.0
    (process,) = run("status", "--json")["processes"]
    assert process["compiling"]["compiles"] == 2
    assert "compiled 2 while serving, in 0.8 s, 0.4 s at most." in run("status")


def test_what_profiling_brought_and_took_is_told_with_what_was_left_out(
    server: Server, run: Run, tmp_path: Path
) -> None:
    server.slot("double_m")
    assert "profiled itself" not in run("status")
    windows = Windows(
        tmp_path / "nowhere",
        Rule(),
        launched=lambda: 0,
        quiet=nullcontext,
        captured=lambda: False,
    )
    server.runtime._host.reports["windows"] = windows.state
    windows.turn()
    (process,) = run("status", "--json")["processes"]
    assert process["windows"]["written"] == 0
    assert sum(process["windows"]["skipped"].values()) == 1
    assert "profiled itself 0 times, in 0.0 s; left out: " in run("status")
    windows.close()


def test_every_process_of_a_server_is_a_row(server: Server, run: Run, folder: Path) -> None:
    second = Server(folder, "2.sock")
    try:
        for each in (server, second):
            each.slot("double_m")
        server.swap(server.runtime._host._seating.slots()[0])
        text = run("status")
        rows = [line.split() for line in text.splitlines() if line.startswith("double_m")]
        assert {(row[1], row[2]) for row in rows} == {
            (str(os.getpid()), "a" * 12),
            ("2", "original"),
        }
        assert len(run("status", "--json")["processes"]) == 2
    finally:
        second.runtime.close()


def test_ranks_are_told_in_their_order_with_their_groups(run: Run, folder: Path) -> None:
    slot = {"definition": "double_m", "state": "original"}
    sockets = []
    for number in (10, 2):
        groups = {"rank": number, "tp_rank": number % 8, "tp_size": 8, "pp_rank": 0, "pp_size": 1}
        answer = {"pid": number, "ranks": groups, "rank": "7", "slots": [slot]}
        sockets.append(answering(folder, answer, name=f"{number}.sock"))
    try:
        rows = [line for line in run("status").splitlines() if line.startswith("double_m")]
        assert ["  2 tp 2/8  " in rows[0], "  10 tp 2/8  " in rows[1]] == [True, True]
    finally:
        for each in sockets:
            each.close()


def test_asking_does_not_renew_the_lease_that_a_daemon_holds(server: Server, run: Run) -> None:
    supervision = server.runtime._host._execution.supervision
    supervision._heard_s -= 1000.0
    assert run("status", "--json")["processes"][0]["unasked_s"] >= 1000.0
    run("status")
    assert supervision.unasked_s >= 1000.0


def test_checks_without_result_are_said(server: Server, run: Run) -> None:
    swapped = server.swap(server.slot("double_m"))
    for reason in ("in-flight", "too-large", "in-flight"):
        swapped.stats.drop(reason)
    assert "checks without result: in-flight 2, too-large 1" in run("status")


@pytest.mark.parametrize("make", [True, False])
def test_without_a_server_it_says_what_to_do(run: Run, folder: Path, make: bool) -> None:
    if make:
        folder.mkdir()
    with raises_naming(MissingDependency, "retuned attach -- ") as caught:
        run("status")
    assert str(folder) in str(caught.value)


def answering(folder: Path, answer: dict[str, Any], *, name: str = "1.sock") -> ControlSocket:
    return ControlSocket(folder / name, lambda _: answer)


def test_an_answer_that_cannot_be_read_hides_no_other_process(
    server: Server, run: Run, folder: Path
) -> None:
    server.slot("double_m")
    stranger = answering(folder, {"pid": "many", "slots": "none"})
    try:
        body = run("status", "--json")
        assert [each["process"] for each in body["unanswered"]] == ["1.sock"]
        assert len(body["processes"]) == 1
        assert "1.sock is left out" in run("status")
    finally:
        stranger.close()


def test_where_no_server_answers_that_is_the_error(run: Run, folder: Path) -> None:
    stranger = answering(folder, {"pid": -1, "slots": [{"definition": "x" * 999}]})
    try:
        with raises_naming(TemporaryError, "1.sock", "slots.0.definition"):
            run("status")
    finally:
        stranger.close()


def test_a_hostile_name_cannot_steer_the_terminal(run: Run, folder: Path) -> None:
    slot = {"definition": "\x1b[2Jkernel", "state": "tripped:\x1b]0;x\x07"}
    stranger = answering(folder, {"pid": 1, "server": "\x1b[31m", "slots": [slot]})
    try:
        assert "\x1b" not in run("status")
    finally:
        stranger.close()


def test_a_server_without_slots_is_told_where_its_triton_kernels_are_listed(
    run: Run, folder: Path
) -> None:
    attached = answering(folder, {"pid": 1, "server": "chat", "slots": []})
    try:
        assert "`retuned kernels lifted` lists those" in run("status")
    finally:
        attached.close()


def test_an_answer_is_read_strictly_and_what_is_new_is_ignored() -> None:
    good = process_status("1.sock", {"ok": True, "pid": 1, "slots": [], "something": "new"})
    assert isinstance(good, ProcessStatus)
    for bad in ({"pid": None}, {"pid": 1, "slots": {}}, {"pid": 1, "unasked_s": "x"}, {}):
        assert isinstance(process_status("1.sock", bad), TemporaryError)


def test_triton_kernels_that_nobody_swapped_are_shown_as_stock(run: Run, folder: Path) -> None:
    stock = [
        {"kernel": "served:softmax", "launches": 812, "keys": 3, "liftable": True},
        {"kernel": "served:any", "launches": 7, "keys": 1, "liftable": False, "new": 1},
    ]
    answer = {"pid": 1, "slots": [], "stock_kernels": stock, "stock_kernels_left_out": 5}
    attached = answering(folder, answer)
    try:
        text = run("status")
        first, second = (line.split() for line in text.splitlines() if line.startswith("served:"))
        assert first == ["served:softmax", "-", "stock", "812", "3"]
        assert second[:5] == ["served:any", "-", "stock", "7", "1"]
        assert "cannot be lifted" in text
        assert "5 Triton kernels more" in text
        (process,) = run("status", "--json")["processes"]
        assert process["stock_kernels"][0]["launches"] == 812
    finally:
        attached.close()


def test_a_daemon_that_looked_on_and_ordered_nothing_is_said_to_be_there(
    server: Server, run: Run, folder: Path
) -> None:
    server.slot("double_m")
    assert "none yet" in run("status").split("kernel")[0]
    RuntimeSocket(folder).slots()
    text = run("status").split("kernel")[0]
    assert "looked 0." in text
    assert "ordered nothing" in text
    assert "none yet" not in text


def test_graphs_that_nobody_follows_are_said_beside_what_was_counted(
    run: Run, folder: Path
) -> None:
    slot = {"definition": "double_m", "state": "swapped", "artifact": A, "swapped_launches": 9,
            "unfollowed_graphs": 2, "graphs_reason": "graphs-off"}  # fmt: skip
    attached = answering(folder, {"pid": 1, "slots": [slot]})
    try:
        text = run("status")
    finally:
        attached.close()
    assert "2 captured graphs are not followed (graphs-off): not engaged there" in text


def test_a_freeze_that_stands_is_shown_with_or_without_a_server(
    folder: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    store = SqliteStore(folder.parent)
    at = datetime.now(UTC)
    Approvals(store).freeze(
        TuningFreeze(id="freeze-1", reason="launch week", user="ada", at=at, until=None)
    )
    store.close()
    with pytest.raises(MissingDependency):
        status.status(state_dir=folder.parent)
    assert "FROZEN by ada for everything, until thawed: launch week" in capsys.readouterr().out
    here = Server(folder)
    try:
        here.slot("double_m")
        (frozen,) = run("status", "--json")["freezes"]
    finally:
        here.runtime.close()
    assert (frozen["id"], frozen["reason"]) == ("freeze-1", "launch week")


# --- rearm ----------------------------------------------------------------------------------------


def test_a_tripped_kernel_is_armed_and_who_and_why_is_kept(
    server: Server, run: Run, folder: Path
) -> None:
    slot = server.slot("double_m")
    server.swap(slot).trip("shadow-mismatch", "ratio 9")
    text = run("rearm", "double_m", "--reason", "the driver was updated")
    assert "Armed double_m again" in text
    assert "aaaaaaaaaaaa had tripped: shadow-mismatch" in text
    assert server.runtime._host._execution.supervision.breaker.state() == {}
    (event,) = [event for event in trail(folder) if event.what == "breaker-armed"]
    assert (event.who, event.kind, event.id) == ("ada", "slot", "double_m")
    assert event.detail["reason"] == "the driver was updated"
    assert "shadow-mismatch" in event.detail["tripped"]
    with raises_naming(Refused, "nothing", "double_m"):
        run("rearm", "double_m", "--reason", "again")
    assert len(trail(folder)) == 1, "what is refused leaves no trail"


def test_arming_does_not_push_the_daemon_aside_that_drives_the_server(
    server: Server, run: Run, folder: Path
) -> None:
    server.swap(server.slot("double_m")).trip("slow", "2 us")
    daemon = RuntimeSocket(folder)
    assert daemon.rearm("no such kernel") is False  # it has claimed its term
    run("rearm", "double_m", "--reason", "found")
    assert daemon.rearm(None) is False, "still the daemon of this server"


def test_after_many_trips_only_all_arms(server: Server, run: Run, folder: Path) -> None:
    for name in ("a", "b", "c"):
        server.swap(server.slot(name)).trip("slow", "2 us")
    with raises_naming(Refused, "retuned rearm --all"):
        run("rearm", "a", "--reason", "found")
    body = run("rearm", "--all", "--reason", "found", "--json")
    assert set(body["was"]) == {"a", "b", "c"}
    assert server.runtime._host._execution.supervision.breaker.process == ""
    assert [event.what for event in trail(folder)] == ["breakers-armed"]
    with raises_naming(Refused, "nothing", "any process"):
        run("rearm", "--all", "--reason", "found")


def test_every_process_where_it_is_tripped_is_armed(server: Server, run: Run, folder: Path) -> None:
    second, third = Server(folder, "2.sock"), Server(folder, "3.sock")
    try:
        for each in (server, second):
            each.swap(each.slot("double_m")).trip("slow", "2 us")
        third.slot("double_m")
        body = run("rearm", "double_m", "--reason", "found", "--json")
        assert set(body["armed"]) == {"2.sock", f"{os.getpid()}.sock"}
    finally:
        second.runtime.close()
        third.runtime.close()


def test_a_process_that_cannot_be_armed_is_named_and_kept_in_the_trail(
    server: Server, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Server(folder, "2.sock")
    arm = Standings.arm

    def half(self: Standings, process: str, kernel: str | None, *, term: int) -> bool:
        if process == "2.sock":
            raise TemporaryError("too slow", delay_s=1.0)
        return arm(self, process, kernel, term=term)

    monkeypatch.setattr(Standings, "arm", half)
    try:
        for each in (server, second):
            each.swap(each.slot("double_m")).trip("slow", "2 us")
        with raises_naming(TemporaryError, "2.sock"):
            run("rearm", "double_m", "--reason", "found")
        (event,) = trail(folder)
        assert event.detail["failed"] == "2.sock"
    finally:
        second.runtime.close()


def test_a_process_driven_by_a_daemon_that_came_meanwhile_refuses(server: Server) -> None:
    server.slot("double_m")
    path = server.runtime.socket
    assert path is not None
    standings = Standings(path.parent)
    (before,), _ = standings.ask()
    RuntimeSocket(path.parent).rearm(None)
    with raises_naming(TemporaryError, "another daemon", "term 0"):
        standings.arm(before.process, None, term=before.term)
    with raises_naming(TemporaryError, "9.sock"):
        standings.arm("9.sock", None, term=0)


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (("--reason", "x"), ("kernel", "--all")),
        (("a", "--all", "--reason", "x"), ("kernel", "--all")),
        (("a",), ("--reason",)),
        (("a", "--reason", "  "), ("--reason",)),
        (("a", "--reason", "x" * 1001), ("--reason", "1001", "1000 ")),
        (("a", "--reason", "x", "--target", "other"), ("'local'", "'other'", "--config")),
    ],
)
def test_wrong_usage_is_said_before_anything_is_asked(
    run: Run, args: tuple[str, ...], names: tuple[str, ...]
) -> None:
    with raises_naming(UsageError, *names):
        run("rearm", *args)


def test_an_unknown_kernel_is_refused_by_name(server: Server, run: Run) -> None:
    server.slot("double_m")
    with raises_naming(UsageError, "'other'", "retuned status"):
        run("rearm", "other", "--reason", "x", "--target", "local")


def test_without_a_state_nothing_is_armed(run: Run, folder: Path) -> None:
    (folder.parent / "state.sqlite3").unlink()
    with raises_code(UnreadableInput, "no-state", "retuned run"):
        run("rearm", "a", "--reason", "x")


# --- lessons of live proofs -----------------------------------------------------------------------


def test_a_lesson_is_shown_and_lifted_with_a_reason(server: Server, run: Run, folder: Path) -> None:
    server.slot("gemm")
    known = lesson(sentence="harms (slower): steps take 2.0 % longer")
    store = SqliteStore(folder.parent)
    keep(store, known, id=known.proposal, notary=Ed25519Notary(folder.parent / "keys"))
    store.close()
    text = " ".join(run("status").split())
    assert "gemm (1 <= M <= 64) is not proposed again in this server (live-lesson)" in text
    assert "harms (slower): steps take 2.0 % longer" in text
    (body,) = run("status", "--json")["lessons"]
    assert body["claimed_saving"] == 0.04
    with raises_naming(UsageError, "--reason"):
        run("rearm", "gemm", "--lessons")
    with raises_naming(UsageError, "--lessons"):
        run("rearm", "--all", "--lessons", "--reason", "r")
    with raises_naming(Refused, "softmax", "retuned status"):
        run("rearm", "softmax", "--lessons", "--reason", "r")
    assert run("rearm", "gemm", "--lessons", "--reason", "new model", "--json")["lifted"] == ["p"]
    assert run("status", "--json")["lessons"] == []
    (event,) = [each for each in trail(folder) if each.what == "live-proof-lesson-lifted"]
    assert (event.who, event.id, event.detail["reason"]) == ("ada", "e", "new model")
