"""One suite over both swappers: the runtime behind its socket and the fake mean the same."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_code, raises_naming

from retuned.contract import Digest, Guard
from retuned.errors import CandidateError, TemporaryError
from retuned.lab.languages.cpu_cpp import cpu_environment
from retuned.ports import SlotState, Swapper
from retuned.runtime import attach
from retuned.runtime.native.cpu import LOADERS
from retuned.runtime.shadow.sampler import Comparison
from retuned.runtime_client import connection as runtime_link
from retuned.runtime_client.client import RuntimeSocket
from retuned.runtime_client.fake import FakeSwapper
from retuned.stages.swap import CanaryStep, SwapKind, SwapOrder
from retuned.stages.verdict import ServerEnvironment
from retuned.stages.watch import WatchSample

PATIENCE_S = 250.0
"""For what answers: longer than a machine that does much else stands still."""

NAMES = ("a", "b")
FIRST: Digest = "sha256:" + "1" * 64
SECOND: Digest = "sha256:" + "2" * 64


def definition(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "op_type": "copy",
        "axes": {"M": {"type": "var"}},
        "inputs": {"x": {"shape": ["M"], "dtype": "float32"}},
        "outputs": {"y": {"shape": ["M"], "dtype": "float32"}},
    }


class Rehearsed:
    """A variant without code, in a language of its own: what counts here is the protocol."""

    def __init__(self, *_: object) -> None:
        pass

    def launcher(self, _: tuple[int, ...]) -> Callable[[tuple[Any, ...]], Any]:
        return lambda inputs: inputs[0]

    checked_launcher = launcher

    def capturing(self) -> None:
        return None

    def fingerprint(self, _: tuple[Any, ...]) -> object:
        return 0


class Rows:
    """An input of four rows."""

    shape = (4,)


def agreeing(*_: object) -> Comparison:
    return Comparison(nonfinite=False, ratio=0.0)


@pytest.fixture(params=["fake", "socket"])
def swapper(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Swapper]:
    if request.param == "fake":
        yield FakeSwapper(NAMES)
        return
    monkeypatch.setitem(LOADERS, "rehearsed", Rehearsed)
    runtime = attach(server="test", socket_dir=tmp_path / "s")
    for name in NAMES:
        runtime.slot(definition(name), original=lambda x: x)
    yield RuntimeSocket(tmp_path / "s", timeout_s=PATIENCE_S)
    runtime.close()


def deliver(root: Path, digest: Digest, name: str = "a") -> Path:
    folder = root / f"{name}-{digest[7:]}"
    folder.mkdir(exist_ok=True)
    (folder / "kernel.so").write_bytes(b"")
    manifest = {
        "digest": digest,
        "definition": definition(name),
        "language": "rehearsed",
        "entry": "run",
        "params": {},
        "layouts": {},
        "scratch_bytes": 0,
        "parts": 1,
        "binary": "kernel.so",
        "binary_sha256": hashlib.sha256(b"").hexdigest(),
    }
    (folder / "artifact.json").write_text(json.dumps(manifest))
    return folder


def order(artifact: Digest | None, *, epoch: int, name: str = "a", id: str = "") -> SwapOrder:
    return SwapOrder(
        id=id or f"{name}-{epoch}",
        kind=SwapKind.SWAP if artifact else SwapKind.ROLLBACK,
        proposal="p",
        target="test",
        definition=name,
        artifact=artifact,
        previous=None,
        guard=Guard(bounds={"M": (1, 8)}),
        epoch=epoch,
    )


def state(swapper: Swapper, name: str = "a") -> SlotState:
    (found,) = [slot for slot in swapper.slots() if slot.definition == name]
    return found


def sample(swapper: Swapper, name: str = "a") -> WatchSample:
    (found,) = [one for one in swapper.samples() if one.definition == name]
    return found


def swap(swapper: Swapper, wanted: SwapOrder, root: Path) -> None:
    assert wanted.artifact is not None
    swapper.prepare(wanted, artifact_dir=deliver(root, wanted.artifact, wanted.definition))
    swapper.commit(wanted)


def test_a_new_server_runs_its_originals_at_epoch_0(swapper: Swapper) -> None:
    assert {slot.definition for slot in swapper.slots()} == set(NAMES)
    assert (state(swapper).active, state(swapper).epoch, dict(state(swapper).launches)) == (
        None,
        0,
        {},
    )
    assert (sample(swapper).artifact, sample(swapper).swapped_launches) == (None, 0)


def test_prepare_changes_nothing_and_commit_changes_one_slot(
    swapper: Swapper, tmp_path: Path
) -> None:
    wanted = order(FIRST, epoch=1)
    swapper.prepare(wanted, artifact_dir=deliver(tmp_path, FIRST))
    assert state(swapper).active is None
    assert swapper.commit(wanted) > 0
    assert (state(swapper).active, state(swapper).epoch) == (FIRST, 1)
    assert (sample(swapper).artifact, sample(swapper).epoch) == (FIRST, 1)
    assert state(swapper, "b").active is None


def test_prepare_and_commit_may_be_repeated(swapper: Swapper, tmp_path: Path) -> None:
    wanted = order(FIRST, epoch=1)
    for _ in range(3):
        swap(swapper, wanted, tmp_path)
    assert (state(swapper).active, state(swapper).epoch) == (FIRST, 1)


def test_a_repeated_old_order_does_not_undo_a_later_one(swapper: Swapper, tmp_path: Path) -> None:
    first = order(FIRST, epoch=1)
    swap(swapper, first, tmp_path)
    swapper.commit(order(None, epoch=2))
    swapper.commit(first)
    assert (state(swapper).active, state(swapper).epoch) == (None, 2)


def test_another_order_of_an_old_epoch_is_refused(swapper: Swapper, tmp_path: Path) -> None:
    swap(swapper, order(FIRST, epoch=5), tmp_path)
    for epoch in (4, 5):
        with pytest.raises(CandidateError) as caught:
            swapper.commit(order(None, epoch=epoch, id="another"))
        assert caught.value.reason == "stale-epoch"
    assert state(swapper).active == FIRST


def test_a_commit_without_prepare_is_refused_and_the_incumbent_stays(
    swapper: Swapper, tmp_path: Path
) -> None:
    with pytest.raises(CandidateError) as caught:
        swapper.commit(order(FIRST, epoch=1))
    assert caught.value.reason == "not-prepared"
    assert (state(swapper).active, state(swapper).epoch) == (None, 0)


def test_the_way_back_needs_no_prepare(swapper: Swapper, tmp_path: Path) -> None:
    swap(swapper, order(FIRST, epoch=1), tmp_path)
    swap(swapper, order(SECOND, epoch=2), tmp_path)
    swapper.commit(order(FIRST, epoch=3))
    assert state(swapper).active == FIRST
    swapper.commit(order(None, epoch=4))
    assert state(swapper).active is None


def test_what_is_not_there_is_refused(swapper: Swapper, tmp_path: Path) -> None:
    with pytest.raises(CandidateError) as caught:
        swapper.commit(order(None, epoch=1, name="c"))
    assert caught.value.reason == "unknown-slot"
    with pytest.raises(CandidateError) as caught:
        swapper.prepare(order(FIRST, epoch=1), artifact_dir=tmp_path / "nothing")
    assert caught.value.reason == "artifact-missing"


def test_each_process_says_what_it_runs_on(swapper: Swapper) -> None:
    here = cpu_environment().arch
    if isinstance(swapper, FakeSwapper):
        swapper.runs_on = ServerEnvironment(process="1", cpu=here)
    (found,) = swapper.environments()
    assert found.cpu == here
    assert found.device == "", "no launch has used one"


def test_a_bypass_keeps_the_order(swapper: Swapper, tmp_path: Path) -> None:
    swapper.bypass("a", on=True)
    assert not state(swapper).bypassed, "there is nothing to bypass"
    swap(swapper, order(FIRST, epoch=1), tmp_path)
    swapper.bypass("a", on=True)
    assert (state(swapper).active, state(swapper).bypassed) == (FIRST, True)
    swapper.bypass("a", on=False)
    assert (state(swapper).active, state(swapper).bypassed) == (FIRST, False)


def test_a_canary_is_moved_on_by_order_for_the_epoch_in_force(
    swapper: Swapper, tmp_path: Path
) -> None:
    steps = (CanaryStep(fraction=0.01), CanaryStep(fraction=0.5))
    canary = order(FIRST, epoch=1).model_copy(update={"canary": steps})
    swap(swapper, canary, tmp_path)
    assert sample(swapper).fraction == 0.01
    swapper.ramp(canary, fraction=0.5, excluded=[(7,)])
    assert (sample(swapper).fraction, sample(swapper).excluded) == (0.5, ((7,),))
    later = order(SECOND, epoch=2)
    for refused in (later, order(None, epoch=1)):
        with pytest.raises(CandidateError) as caught:
            swapper.ramp(refused, fraction=1.0, excluded=[])
        assert caught.value.reason == "stale-epoch"
    assert sample(swapper).fraction == 0.5
    swap(swapper, later, tmp_path)
    assert (sample(swapper).fraction, sample(swapper).excluded) == (1.0, ())


def test_a_server_that_is_away_is_a_temporary_error(tmp_path: Path) -> None:
    fake = FakeSwapper(NAMES)
    fake.away = True
    empty = tmp_path / "empty"
    empty.mkdir()
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(empty / "1.sock"))
    stale.close()
    away: list[Swapper] = [
        fake,
        *(RuntimeSocket(p) for p in (empty, tmp_path / "no", empty / "1.sock")),
    ]
    for swapper in away:
        for call in (
            swapper.slots,
            swapper.samples,
            swapper.environments,
            lambda s=swapper: s.commit(order(None, epoch=1)),
        ):
            with pytest.raises(TemporaryError):
                call()


def serve_nonsense(path: Path, reply: bytes) -> socket.socket:
    """A socket whose peer finds one canned answer; the backlog lets connect succeed."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(4)

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(reply)

    threading.Thread(target=answer, daemon=True).start()
    return listener


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"not json\n",
        b"[]\n",
        b'{"ok":true}\n',
        b'{"ok":true,"slots":[{}]}\n',
        b'{"ok":true,"slots":[{"definition":"a","active":null,"epoch":"x","launches":[]}]}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_a_runtime_that_talks_nonsense_is_a_temporary_error(tmp_path: Path, reply: bytes) -> None:
    with serve_nonsense(tmp_path / "x.sock", reply), pytest.raises(TemporaryError):
        RuntimeSocket(tmp_path / "x.sock", timeout_s=PATIENCE_S).slots()


@pytest.mark.parametrize(
    "reply", [b'{"ok":true,"pid":1}\n', b'{"ok":true,"pid":1,"environment":7}\n']
)
def test_a_runtime_that_does_not_say_what_it_runs_on_is_asked_again(
    tmp_path: Path, reply: bytes
) -> None:
    with serve_nonsense(tmp_path / "x.sock", reply), pytest.raises(TemporaryError):
        RuntimeSocket(tmp_path / "x.sock", timeout_s=PATIENCE_S).environments()


@pytest.mark.parametrize("reply", [b"", b"[]\n", b'{"ok":false,"reason":"unknown-op"}\n'])
def test_where_one_process_does_not_say_what_it_runs_on_nothing_is_known_of_the_server(
    tmp_path: Path, reply: bytes
) -> None:
    """The silent process would get the order as the others do: silence is no agreement."""
    said = b'{"ok":true,"pid":1,"environment":{"machine":"x","torch":"2.1"}}\n'
    swapper = RuntimeSocket(tmp_path, timeout_s=PATIENCE_S)
    with (
        serve_nonsense(tmp_path / "1.sock", said),
        serve_nonsense(tmp_path / "2.sock", reply),
        raises_naming(TemporaryError, "1 of the server's"),
    ):
        swapper.environments()


def test_a_socket_that_another_user_listens_on_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(runtime_link, "peer_uid", lambda _: 666)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "1.sock"))
        listener.listen(4)
        with raises_naming(TemporaryError, "666"):
            RuntimeSocket(tmp_path, timeout_s=PATIENCE_S).hello()


def test_a_named_users_socket_is_believed_and_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(runtime_link, "peer_uid", lambda _: 666)
    monkeypatch.setenv("RETUNED_ALLOWED_UIDS", "665,666")
    with serve_nonsense(tmp_path / "1.sock", b'{"ok":true,"pid":7}\n'):
        assert RuntimeSocket(tmp_path, timeout_s=PATIENCE_S).hello() == [{"ok": True, "pid": 7}]


def test_a_process_that_died_is_not_waited_for(tmp_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "2.sock"))
    dead.close()
    said = b'{"ok":true,"pid":1,"environment":{"machine":"x","torch":"2.1"}}\n'
    with serve_nonsense(tmp_path / "1.sock", said):
        (found,) = RuntimeSocket(tmp_path, timeout_s=PATIENCE_S).environments()
    assert found.torch == "2.1"


def test_what_an_older_runtime_leaves_out_is_not_known(tmp_path: Path) -> None:
    reply = b'{"ok":true,"pid":1,"environment":{"machine":"x","torch":"2.1","numerics":[1]}}\n'
    with serve_nonsense(tmp_path / "x.sock", reply):
        (found,) = RuntimeSocket(tmp_path / "x.sock", timeout_s=PATIENCE_S).environments()
    assert (found.torch, found.cpu, dict(found.numerics)) == ("2.1", "", {})


def test_workers_are_driven_alike_and_reported_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runtimes in one process stand for two workers; a dead one's socket is skipped."""
    monkeypatch.setitem(LOADERS, "rehearsed", Rehearsed)
    runtimes = [
        attach(tmp_path / f"{number}.sock", server="test", compare=agreeing) for number in (1, 2)
    ]
    slots = [runtime.slot(definition("a"), original=lambda x: x) for runtime in runtimes]
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "0.sock"))
    dead.close()
    (tmp_path / "note.txt").write_text("no socket")
    swapper = RuntimeSocket(tmp_path, timeout_s=PATIENCE_S)
    assert [hello["pid"] for hello in swapper.hello()] == [os.getpid()] * 2

    swapper.prepare(order(FIRST, epoch=1), artifact_dir=deliver(tmp_path, FIRST))
    assert state(swapper).epoch == 0
    tell(runtimes[0], "commit", order(FIRST, epoch=1), term=runtimes[0]._host._execution.fence.term)
    assert (state(swapper).active, state(swapper).epoch) == (None, 0), "one of two is behind"
    swapper.commit(order(FIRST, epoch=1))
    assert (state(swapper).active, state(swapper).epoch) == (FIRST, 1)
    slots[0](Rows())
    merged = sample(swapper)
    assert (merged.swapped_launches, merged.processes, merged.idle_processes) == (1, 2, 1)
    slots[1](Rows())
    assert state(swapper).launches == {(4,): 2}
    merged = sample(swapper)
    assert (merged.swapped_launches, merged.shadow_checks, merged.idle_processes) == (2, 2, 0)
    for runtime in runtimes:
        runtime.close()


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Two runtimes, and first among them a worker that takes requests and never answers.

    It alone is not waited for long.
    """
    monkeypatch.setitem(LOADERS, "rehearsed", Rehearsed)
    whole = runtime_link._ask

    def ask(path: Path, request: Any, *, timeout_s: float) -> dict[str, Any]:
        return whole(path, request, timeout_s=0.3 if path.name == "0.sock" else timeout_s)

    monkeypatch.setattr(runtime_link, "_ask", ask)
    hung = socket.socket(socket.AF_UNIX)
    hung.bind(str(tmp_path / "0.sock"))
    hung.listen(64)
    runtimes = [
        attach(tmp_path / f"{number}.sock", server="test", compare=agreeing) for number in (1, 2)
    ]
    for runtime in runtimes:
        runtime.slot(definition("a"), original=lambda x: x)
    yield runtimes
    for runtime in runtimes:
        runtime.close()
    hung.close()


def tell(runtime: Any, op: str, wanted: SwapOrder, **more: Any) -> None:
    runtime._host.answer({"op": op, "order": wanted.model_dump(mode="json"), **more})


def test_one_worker_that_hangs_keeps_no_other_from_going_back(
    tmp_path: Path, workers: list[Any]
) -> None:
    wanted = order(FIRST, epoch=1)
    for runtime in workers:
        tell(runtime, "prepare", wanted, artifact_dir=str(deliver(tmp_path, FIRST)))
        tell(runtime, "commit", wanted)
    swapper = RuntimeSocket(tmp_path, timeout_s=PATIENCE_S)
    assert sample(swapper).processes == 2, "the answers that came"
    assert sample(swapper).members == ("1.sock", "2.sock")
    with raises_code(TemporaryError, "partial-commit", "0.sock"):
        swapper.commit(order(None, epoch=2))
    assert (state(swapper).active, state(swapper).epoch) == (None, 2)


def test_a_worker_that_has_not_prepared_keeps_all_from_committing_a_swap(
    tmp_path: Path, workers: list[Any]
) -> None:
    wanted = order(FIRST, epoch=1)
    tell(workers[1], "prepare", wanted, artifact_dir=str(deliver(tmp_path, FIRST)))
    swapper = RuntimeSocket(tmp_path, timeout_s=PATIENCE_S)
    with pytest.raises(CandidateError) as caught:  # it can be told again, the silent one not yet
        swapper.commit(wanted)
    assert caught.value.reason == "not-prepared"
    assert (state(swapper).epoch, state(swapper).newest_epoch) == (0, 0), "nowhere"


def test_what_was_counted_is_that_of_the_workers_that_have_the_order(
    tmp_path: Path, workers: list[Any]
) -> None:
    """A worker that has just come must not hide the harm that another sees."""
    wanted = order(FIRST, epoch=1)
    tell(workers[1], "prepare", wanted, artifact_dir=str(deliver(tmp_path, FIRST)))
    tell(workers[1], "commit", wanted)
    merged = sample(RuntimeSocket(tmp_path, timeout_s=PATIENCE_S))
    assert (merged.epoch, merged.artifact) == (1, FIRST)
    assert (merged.processes, merged.idle_processes, merged.quiet_processes) == (2, 2, 1)


def test_silence_of_all_is_a_temporary_error(tmp_path: Path, workers: list[Any]) -> None:
    for runtime in workers:
        runtime.close()
    with raises_naming(TemporaryError, "timed out"):
        RuntimeSocket(tmp_path, timeout_s=PATIENCE_S).samples()
