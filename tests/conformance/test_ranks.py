"""Several real processes as the ranks of one server, killed and joined between the phases."""

from __future__ import annotations

import gc
import json
import os
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.rehearsed_ranks import (
    DEFINITION,
    FIRST,
    SECOND,
    Rank,
    deliver,
    order,
    server,
)
from tests.expect import raises_naming

from retuned.errors import CandidateError, PartialCommit, TemporaryError
from retuned.runtime.core.host import RuntimeHost
from retuned.runtime.core.slots import Slot
from retuned.runtime.native.cpu import LOADERS
from retuned.runtime.shadow.sampler import Comparison
from retuned.runtime_client.client import RuntimeSocket
from retuned.stages.swap import SwapOrder
from retuned.store.artifact_folder import sign_artifact
from retuned.store.keys import Ed25519Notary

PATIENCE_S = 250.0
"""For what answers: longer than a machine that does much else stands still."""


def standings(swapper: RuntimeSocket, wanted: SwapOrder) -> list[str]:
    return sorted(str(rank.standing) for rank in swapper.ranks(wanted))


def patient(path: Path) -> RuntimeSocket:
    """Return a swapper that waits for whoever is there, on a machine that may stand still."""
    return RuntimeSocket(path, timeout_s=PATIENCE_S)


def epochs(swapper: RuntimeSocket) -> tuple[int, int]:
    (slot,) = swapper.slots()
    return slot.epoch, slot.newest_epoch


# --- the life of one server -------------------------------------------------------------------


def test_three_ranks_commit_together_or_not_at_all(tmp_path: Path) -> None:
    """One is killed between the phases, one starts anew, one comes late."""
    swapper, wanted = patient(tmp_path / "s"), order()
    with server(tmp_path, 3) as ranks:
        swapper.prepare(wanted, artifact_dir=deliver(tmp_path))
        assert standings(swapper, wanted) == ["prepared"] * 3
        ranks[0].kill()
        with raises_naming(TemporaryError, "rank-lost"):
            swapper.commit(wanted)
        assert epochs(swapper) == (0, 0), "nobody was told"
        assert standings(swapper, wanted) == ["unprepared"] * 2, "what was prepared is dropped"

        swapper.prepare(wanted, artifact_dir=deliver(tmp_path))
        swapper.commit(wanted)
        assert epochs(swapper) == (1, 1)

        ranks.append(Rank(tmp_path).started())  # late
        assert epochs(swapper) == (0, 1), "one is behind, and it is reported"
        assert standings(swapper, wanted) == ["committed", "committed", "unprepared"]
        with pytest.raises(CandidateError) as caught:
            swapper.commit(wanted)
        assert caught.value.reason == "not-prepared"
        swapper.prepare(wanted, artifact_dir=deliver(tmp_path))
        swapper.commit(wanted)
        assert epochs(swapper) == (1, 1), "it has caught up"

        ranks[1].launch(3)
        (sample,) = swapper.samples()
        assert (sample.processes, sample.idle_processes, sample.quiet_processes) == (3, 2, 2)
        assert set(sample.idle_members) == {ranks[2].name, ranks[3].name}
        ranks[2].launch(2)
        ranks[3].launch(1)
        (sample,) = swapper.samples()
        assert (sample.swapped_launches, sample.idle_members) == (6, ()), "proven in each"

        swapper.commit(order(None, epoch=2))
        assert epochs(swapper) == (2, 2)


def test_a_rank_that_cannot_prepare_keeps_it_from_all(tmp_path: Path) -> None:
    """One rank trusts another key than the daemon's: what the others have prepared is dropped."""
    notary, stranger = Ed25519Notary(tmp_path / "k"), Ed25519Notary(tmp_path / "other")
    swapper, wanted = patient(tmp_path / "s"), order()
    folder = deliver(tmp_path)
    sign_artifact(folder, notary=notary, artifact=FIRST, definition="a", target="test")
    odd = Rank(tmp_path, RETUNED_TRUSTED_KEY=stranger.public_hex())
    with server(tmp_path, 2, RETUNED_TRUSTED_KEY=notary.public_hex()):
        try:
            odd.started()
            with pytest.raises(CandidateError) as caught:
                swapper.prepare(wanted, artifact_dir=folder)
            assert caught.value.reason == "signature-unknown-key"
            assert standings(swapper, wanted) == ["unprepared"] * 3
        finally:
            odd.end()
        swapper.prepare(wanted, artifact_dir=folder)
        swapper.commit(wanted)
        assert epochs(swapper) == (1, 1)


def test_an_artifact_that_a_server_cannot_see_travels_over_the_socket(tmp_path: Path) -> None:
    """Only the folder of sockets is shared; the daemon's key is pinned at first contact."""
    notary = Ed25519Notary(tmp_path / "k")
    folder = deliver(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    within = str(tmp_path / "elsewhere")
    swapper = RuntimeSocket(tmp_path / "s", key=notary.public_hex, timeout_s=PATIENCE_S)
    with server(tmp_path, 2, within=within, RETUNED_TRUST="pin"):
        with pytest.raises(CandidateError) as caught:
            swapper.prepare(order(), artifact_dir=folder)
        assert caught.value.reason == "signature-missing"
        assert {hello["trust"] for hello in swapper.hello()} == {"pinned"}
        sign_artifact(folder, notary=notary, artifact=FIRST, definition="a", target="test")
        swapper.prepare(order(), artifact_dir=folder)
        swapper.commit(order())
        assert epochs(swapper) == (1, 1)
        with pytest.raises(CandidateError) as caught:
            swapper.prepare(order(SECOND, epoch=2), artifact_dir=tmp_path / "nowhere")
        assert caught.value.reason in {"artifact-missing", "artifact-outside"}


def test_what_a_former_daemon_sends_is_refused_and_its_way_back_too(tmp_path: Path) -> None:
    folder = deliver(tmp_path)
    with server(tmp_path, 1):
        former, present = patient(tmp_path / "s"), patient(tmp_path / "s")
        former.prepare(order(), artifact_dir=folder)
        present.prepare(order(), artifact_dir=folder)
        for late in (order(), order(None, epoch=2)):
            with raises_naming(TemporaryError, "another daemon", "term"):
                former.commit(late)
        assert epochs(present) == (0, 0)
        present.commit(order())
        former.abort(order())
        with raises_naming(TemporaryError, "another daemon", "term"):
            former.prepare(order(SECOND, epoch=3), artifact_dir=folder)
        assert epochs(present) == (1, 1)


def test_a_daemon_that_was_killed_between_the_phases_finds_where_each_rank_is(
    tmp_path: Path,
) -> None:
    folder = deliver(tmp_path)
    with server(tmp_path, 2) as ranks:
        patient(tmp_path / "s").prepare(order(), artifact_dir=folder)
        after = patient(tmp_path / "s")  # remembers nothing
        assert standings(after, order()) == ["prepared"] * 2
        after.commit(order())
        assert epochs(after) == (1, 1)
        # killed while it told them: one has the next order, the other has not
        patient(tmp_path / "s").prepare(
            order(SECOND, epoch=2), artifact_dir=deliver(tmp_path, SECOND)
        )
        patient(tmp_path / "s" / ranks[0].name).commit(order(SECOND, epoch=2))
        again = patient(tmp_path / "s")
        assert standings(again, order(SECOND, epoch=2)) == ["committed", "prepared"]
        again.commit(order(SECOND, epoch=2))
        assert epochs(again) == (2, 2)


# --- peers that vanish at every message boundary ----------------------------------------------


class Scripted:
    """A rank that speaks as one does, and vanishes at one moment of one operation."""

    def __init__(self, path: Path, *, op: str, moment: str) -> None:
        self.path, self.op, self.moment = path, op, moment
        self.gone = threading.Event()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(8)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while not self.gone.is_set():
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                if self.moment == "connected" and self.op == "any":
                    self.vanish()
                    return
                request = b""
                while not request.endswith(b"\n"):
                    part = connection.recv(1 << 16)
                    if not part:
                        break
                    request += part
                if request:
                    self.answer(connection, json.loads(request))

    def answer(self, connection: socket.socket, request: dict[str, Any]) -> None:
        replies: dict[str, dict[str, Any]] = {
            "hello": {"instance": "scripted", "term": 0, "trust": "off"},
            "prepare": {"already": False, "instance": "scripted"},
            "standing": {"standing": "prepared", "instance": "scripted"},
            "commit": {"flip_ns": 1},
        }
        line = json.dumps({"ok": True} | replies.get(request["op"], {})).encode() + b"\n"
        if request["op"] != self.op:
            connection.sendall(line)
        elif self.moment == "asked":
            self.vanish()
        elif self.moment == "half an answer":
            connection.sendall(line[: len(line) // 2])
            self.vanish()
        else:
            connection.sendall(line)
            self.vanish()

    def vanish(self) -> None:
        self.gone.set()
        self.listener.close()


MOMENTS = [("any", "connected")] + [
    (op, moment)
    for op in ("hello", "prepare", "standing", "commit")
    for moment in ("asked", "half an answer", "answered")
]


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One real rank that outlives all scripted ones."""
    folder = tmp_path_factory.mktemp("living")
    with server(folder, 1):
        yield folder


EPOCH = iter(range(1, 10_000))


@pytest.mark.parametrize(("op", "moment"), MOMENTS)
def test_a_rank_that_vanishes_at_any_moment_leaves_the_others_as_they_were_or_says_so(
    op: str, moment: str, living: Path
) -> None:
    peer = Scripted(living / "s" / "0.sock", op=op, moment=moment)
    wanted = order(epoch=next(EPOCH))
    swapper = patient(living / "s")
    told: Exception | None = None
    try:
        swapper.prepare(wanted, artifact_dir=deliver(living))
        swapper.commit(wanted)
    except (TemporaryError, CandidateError) as error:
        told = error
    peer.vanish()
    (slot,) = swapper.slots()
    if slot.epoch == wanted.epoch:
        # it was carried out here: the other one had answered, was never asked, or it is said
        quiet = moment == "answered" and op == "commit"
        before = op in ("any", "hello", "prepare")
        assert isinstance(told, PartialCommit) or (told is None and (quiet or before))
    else:
        assert told is not None
    back = order(None, epoch=next(EPOCH))
    swapper.commit(back)  # it waits for nobody who is gone, who would take longer than a test may
    assert epochs(swapper) == (back.epoch, back.epoch)
    peer.path.unlink()


# --- many times -------------------------------------------------------------------------------


def living_objects() -> int:
    gc.collect()
    return len(gc.get_objects())


def test_ten_thousand_swaps_and_ways_back_leak_nothing_and_fail_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Rehearsed:
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
        shape = (4,)

    monkeypatch.setitem(LOADERS, "rehearsed", Rehearsed)
    host = RuntimeHost("t", compare=lambda *_: Comparison(nonfinite=False, ratio=0.0))
    slot = Slot(DEFINITION, lambda x: x)
    host.add(slot)
    rows, stop, served, failed = Rows(), threading.Event(), [0], list[BaseException]()

    def serve() -> None:
        try:
            while not stop.is_set():
                assert slot(rows) is rows
                served[0] += 1
                time.sleep(0)  # the cycles are to get on too
        except BaseException as error:
            failed.append(error)
            raise

    def cycles(first: int, count: int) -> None:
        for epoch in range(first, first + 2 * count, 2):
            digest = (FIRST, SECOND)[epoch // 2 % 2]
            forward = order(digest, epoch=epoch).model_dump(mode="json")
            folder = str(tmp_path / digest[7:])
            host.answer({"op": "prepare", "order": forward, "artifact_dir": folder, "term": 1})
            host.answer({"op": "commit", "order": forward, "term": 1})
            back = order(None, epoch=epoch + 1).model_dump(mode="json")
            host.answer({"op": "commit", "order": back, "term": 1})

    for digest in (FIRST, SECOND):
        deliver(tmp_path, digest)
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        cycles(1, 200)
        descriptors, objects = len(os.listdir("/proc/self/fd")), living_objects()
        cycles(401, 9_300)
        more_objects = living_objects() - objects
        tracemalloc.start()
        cycles(19_001, 200)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        cycles(19_401, 300)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        stop.set()
        thread.join()
        tracemalloc.stop()
    assert failed == []
    assert served[0] > 100
    assert more_objects < 500
    assert grown < 32 << 10, "300 cycles leave nothing behind"
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert len(host._seating.seats["a"].resident) == 2
