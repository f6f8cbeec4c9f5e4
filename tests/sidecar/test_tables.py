"""A table is ordered, verified, put in force, watched and taken back as a kernel is."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.sidecar.sidecar_world import back
from tests.sidecar.sidecar_world import swap as kernel_swap
from tests.sidecar.table_world import (
    FIRST,
    FIRST_TEXT,
    NAME,
    OTHER,
    SECOND,
    SECOND_TEXT,
    TablePod,
    kernel,
    swap,
    text_of,
)

from retuned.api.agent import Outcome, WatchPost
from retuned.errors import CandidateError, Refused
from retuned.runtime.tunables.records import parse_table
from retuned.runtime_client import tuned_files
from retuned.stages.watch import WatchAction
from retuned.store.artifact_folder import MANIFEST
from retuned.store.keys import Ed25519Notary

OTHER_TEXT = text_of(name=OTHER)


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[TablePod]:
    made = TablePod(tmp_path)
    yield made
    made.close()


def pass_by(pod: TablePod, seconds: float) -> None:
    """Let time pass in steps of ten seconds; the program's loops live with refusals."""
    for _ in range(int(seconds / 10.0)):
        for step in (lambda: pod.turn(10.0), lambda: pod.sidecar.listen(wait_s=0.0)):
            with suppress(Refused):
                step()
        pod.sidecar.steer()


# --- orders ---------------------------------------------------------------------------------------


def test_a_table_is_fetched_verified_put_in_force_and_told(pod: TablePod) -> None:
    assert pod.tile() is None
    pod.order(swap())
    assert pod.tile() == 32
    assert pod.launch(rows=65) is None, "a size that no rule is for"
    assert pod.outcomes() == [("swap-p1-2", Outcome.DONE, "")]
    slot = pod.slot(NAME)
    assert (slot.active, slot.epoch, slot.proposal) == (FIRST, 2, "p1")
    assert slot.sample is not None
    assert (slot.sample.artifact, slot.sample.configured) == (FIRST, "engaged")


def test_the_original_comes_back_when_the_operator_orders_it(pod: TablePod) -> None:
    forward = swap()
    pod.order(forward)
    pod.order(back(forward, epoch=3))
    assert pod.tile() is None
    assert pod.outcomes()[-1][1] is Outcome.DONE
    assert (pod.slot(NAME).active, pod.slot(NAME).epoch) == (None, 3)


def test_a_table_that_is_ordered_repeatedly_is_exchanged_once(pod: TablePod) -> None:
    pod.order(swap())
    table = pod.tunable().table
    for _ in range(3):
        pod.ctx.standing.revision = 0
        pod.order(swap())
    pod.start()
    pod.turn()
    assert pod.tunable().table is table
    assert pod.outcomes() == [("swap-p1-2", Outcome.DONE, "")]


def test_a_table_that_was_rolled_back_stays_so_if_its_order_comes_late(pod: TablePod) -> None:
    forward = swap()
    pod.order(forward)
    pod.order(back(forward, epoch=3))
    pod.order(forward)
    pod.start()
    pod.turn()
    assert pod.tile() is None


def test_a_table_out_of_epoch_is_refused(pod: TablePod) -> None:
    pod.order(swap(epoch=5))
    pod.order(swap(SECOND, epoch=4, proposal="p2"))
    assert pod.tile() == 32
    assert pod.outcomes()[-1] == ("swap-p2-4", Outcome.REFUSED, "out-of-epoch")


def test_a_sidecar_that_lost_its_disk_does_not_order_below_the_servers_epoch(
    pod: TablePod,
) -> None:
    pod.order(swap(epoch=9))
    pod.ctx.store.close()
    shutil.rmtree(pod.folder / "state")
    pod.start()
    pod.turn()
    pod.order(swap(SECOND, epoch=3, proposal="p2"))
    assert pod.tile() == 32
    assert pod.outcomes()[-1] == ("swap-p2-3", Outcome.REFUSED, "out-of-epoch")


def test_a_table_for_another_target_or_altered_is_refused(pod: TablePod) -> None:
    pod.order(swap(target="serving/other"))
    assert pod.outcomes() == [("swap-p1-2", Outcome.REFUSED, "other-target")]
    pod.order(swap(epoch=3))
    pod.order(swap(epoch=3).model_copy(update={"artifact": SECOND}))
    assert pod.tile() == 32
    assert pod.outcomes()[-1] == ("swap-p1-3", Outcome.REFUSED, "order-altered")


def test_a_table_that_the_operator_names_no_more_is_not_begun(pod: TablePod) -> None:
    pod.turn()
    pod.operator.order(swap())
    pod.sidecar.listen(wait_s=0.0)
    pod.operator.order()
    pod.sidecar.listen(wait_s=0.0)
    pod.turn()
    assert pod.tile() is None


def test_a_table_that_was_named_long_ago_waits_for_the_operator(pod: TablePod) -> None:
    pod.turn()
    pod.operator.order(swap())
    pod.sidecar.listen(wait_s=0.0)
    pod.operator.away = True
    pod.clock.advance(400.0)
    pod.turn()
    assert pod.tile() is None
    pod.operator.away = False
    pod.turn()
    assert pod.tile() == 32


def test_a_server_that_started_again_gets_its_table_with_its_first_launches(pod: TablePod) -> None:
    pod.order(swap())
    pod.begin(launches=0)
    pod.turn()
    assert pod.tunable().table is None, "its sizes were not launched yet"
    pod.launch()
    pod.turn()
    assert pod.tile() == 32
    assert pod.outcomes() == [("swap-p1-2", Outcome.DONE, "")]


@pytest.mark.parametrize("killed_after", ["listen", "fetch", "prepare", "commit"])
def test_a_sidecar_that_is_killed_ends_with_the_table_in_force_once(
    pod: TablePod, killed_after: str
) -> None:
    pod.turn()
    order = swap()
    pod.operator.order(order)
    pod.sidecar.listen(wait_s=0.0)
    steps: dict[str, Callable[[], object]] = {
        "listen": lambda: None,
        "fetch": lambda: pod.ctx.artifacts.folder_of(order),
        "prepare": lambda: pod.ctx.swapper.prepare(
            order, artifact_dir=pod.ctx.artifacts.folder_of(order)
        ),
        "commit": lambda: pod.ctx.swapper.commit(order),
    }
    for name, step in steps.items():
        step()
        if name == killed_after:
            break
    table = pod.tunable().table
    pod.start()
    pod.turn()
    assert pod.tile() == 32
    assert table in (None, pod.tunable().table), "it is not exchanged a second time"
    assert pod.outcomes() == [("swap-p1-2", Outcome.DONE, "")]


def test_a_sidecar_that_starts_again_rolls_back_without_a_folder(pod: TablePod) -> None:
    forward = swap()
    pod.order(forward)
    pod.ctx.artifacts.keep_only(())
    pod.operator.artifacts = {}
    pod.start()
    pod.order(back(forward, epoch=3))
    assert pod.tile() is None
    assert pod.outcomes()[-1][1] is Outcome.DONE


def test_a_server_with_another_source_refuses_and_is_not_asked_again(pod: TablePod) -> None:
    name = kernel(source="sha256:" + "6" * 64)
    pod.begin(name)
    pod.order(swap())
    assert pod.tile() is None
    pod.order(swap(epoch=3))
    assert pod.outcomes() == [
        ("swap-p1-2", Outcome.REFUSED, "source-differs"),
        ("swap-p1-3", Outcome.REFUSED, "failed-here"),
    ]


@pytest.mark.parametrize(
    ("launched", "reason"), [(False, "unknown-tunable"), (True, "rule-without-launch")]
)
def test_a_table_waits_for_launches_and_says_so(pod: TablePod, launched: bool, reason: str) -> None:
    pod.begin(kernel() if launched else kernel("other"), launches=0)
    pod.order(swap())
    assert pod.outcomes() == []
    (held,) = pod.said(WatchPost)[-1].held
    assert (held.reason, held.final) == (reason, False)
    if not launched:
        pod.begin()
    pod.launch()
    pod.turn()
    assert pod.tile() == 32
    assert pod.said(WatchPost)[-1].held == ()


def test_a_server_without_tunables_does_not_stop_orders_for_kernels(pod: TablePod) -> None:
    code = "sha256:" + "1" * 64
    pod.begin(tuned=False)
    pod.publish(code)
    pod.order(swap(), kernel_swap(proposal="p2"))
    assert (pod.active(), pod.tile()) == (code, None)
    assert [each.reason for each in pod.said(WatchPost)[-1].held] == ["unknown-tunable"]


def test_a_rollback_leads_to_the_table_before(pod: TablePod) -> None:
    pod.order(swap())
    second = swap(SECOND, epoch=3, proposal="p2", previous=FIRST)
    pod.order(second)
    assert pod.tile() == 64
    pod.order(back(second, epoch=4))
    assert pod.tile() == 32
    assert (pod.in_force(), pod.outcomes()[-1][1]) == (FIRST, Outcome.DONE)


def test_a_server_that_started_again_gets_the_table_before(pod: TablePod) -> None:
    pod.order(swap())
    second = swap(SECOND, epoch=3, proposal="p2", previous=FIRST)
    pod.order(second)
    pod.order(back(second, epoch=4))
    pod.begin(launches=0)
    pod.turn()
    assert pod.tunable().table is None
    pod.launch()
    pod.turn()
    assert (pod.tile(), pod.in_force()) == (32, FIRST)


def test_a_rollback_whose_table_cannot_be_had_ends_at_the_original(pod: TablePod) -> None:
    pod.order(swap())
    second = swap(SECOND, epoch=3, proposal="p2", previous=FIRST)
    pod.order(second)
    pod.begin()
    pod.operator.artifacts = {}
    pod.ctx.artifacts.keep_only(())
    pod.order(back(second, epoch=4))
    assert (pod.tile(), pod.in_force()) == (None, None)


class OtherProcess:
    """A second process of the server, that refuses some operations."""

    def __init__(self, path: Path, *, refuses: Mapping[str, str]) -> None:
        self.refuses = dict(refuses)
        self.asked: list[str] = []
        self.order: dict[str, Any] = {}
        self.prepared: list[str] = []
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(path))
        self.socket.listen()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as stream:
                stream.write(json.dumps(self._answer(json.loads(stream.readline()))).encode())
                stream.write(b"\n")

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        operation = str(request["op"])
        self.asked.append(operation)
        if operation in self.refuses:
            return {"ok": False, "reason": self.refuses[operation], "detail": "a test"}
        if operation == "tunable-prepare":
            self.prepared.append(request["order"]["id"])
        if operation in ("tunable-commit", "tunable-rollback"):
            self.order = request["order"]
        return {"ok": True, "trust": "off", "outcome": "engaged", "reach": "all"} | self._state()

    def _state(self) -> dict[str, Any]:
        entry = {"definition": NAME, "order": self.order.get("id", ""), "state": "engaged"}
        entry |= {"artifact": self.order.get("artifact") or None}
        entry |= {"epoch": self.order.get("epoch", 0)}
        files = [entry] if self.order else []
        state = {"on": True, "servers": {"table": "python"}, "known": [NAME]}
        return {**state, "prepared": self.prepared, "files": files}

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.thread.join(10.0)


@pytest.fixture
def other(pod: TablePod) -> Iterator[OtherProcess]:
    made = OtherProcess(pod.sockets / "1.sock", refuses={})
    yield made
    made.close()


def test_both_processes_of_a_server_get_a_table_and_the_original(
    pod: TablePod, other: OtherProcess
) -> None:
    forward = swap()
    pod.order(forward)
    assert (pod.tile(), other.order["artifact"]) == (32, FIRST)
    pod.order(back(forward, epoch=3))
    assert (pod.tile(), other.order["artifact"]) == (None, "")


def test_no_process_gets_a_table_that_one_of_them_refuses(
    pod: TablePod, other: OtherProcess
) -> None:
    other.refuses["tunable-prepare"] = "compile-failed"
    pod.order(swap())
    assert (pod.tile(), other.order) == (None, {})
    assert pod.outcomes() == [("swap-p1-2", Outcome.REFUSED, "compile-failed")]


def test_some_processes_with_a_table_and_others_without_all_go_back(
    pod: TablePod, other: OtherProcess
) -> None:
    other.refuses["tunable-commit"] = "hook-replaced"
    pod.order(swap())
    assert pod.tile() is None
    assert pod.outcomes()[0] == ("swap-p1-2", Outcome.ROLLED_BACK, "partial-commit")
    assert other.order["artifact"] == ""


def test_a_server_that_refuses_its_original_is_named_until_it_takes_it(
    pod: TablePod, other: OtherProcess
) -> None:
    pod.order(swap())
    other.refuses["tunable-rollback"] = "slot-broken"
    pod.order(back(swap(), epoch=3))
    assert pod.tile() is None, "the other process waits for nothing"
    about = {"namespace": "", "proposal": "", "target": "chat", "kernel": NAME}
    failed = "retuned_swap_rollback_failed"
    assert pod.telemetry.row(failed, **about, server="chat-0") == 1.0
    (held,) = pod.said(WatchPost)[-1].held
    assert (held.reason, held.final) == ("slot-broken", True)
    other.refuses.clear()
    pod.turn()
    assert other.order["artifact"] == ""
    assert pod.telemetry.tables[failed] == {}


# --- artifacts ------------------------------------------------------------------------------------


def refusal(pod: TablePod, artifact: str = FIRST) -> str:
    """Order it, and return why it is not put in force."""
    pod.order(swap(artifact))
    assert pod.tile() is None
    ((_, outcome, reason),) = pod.outcomes()
    assert outcome is Outcome.REFUSED
    assert not list((pod.folder / "state" / "artifacts").iterdir()), "nothing of it is kept"
    return reason


def test_a_text_that_was_tampered_with_is_refused(pod: TablePod) -> None:
    files = pod.operator.artifacts[FIRST]
    text = files[MANIFEST].replace(b'"tile":32', b'"tile":33')
    pod.operator.artifacts[FIRST] = {**files, MANIFEST: text}
    assert refusal(pod) == "signature-mismatch"


def test_a_text_without_a_signature_is_refused(pod: TablePod) -> None:
    pod.operator.artifacts[FIRST] = {MANIFEST: pod.operator.artifacts[FIRST][MANIFEST]}
    assert refusal(pod) == "signature-missing"


def test_a_text_that_another_key_signed_is_refused(pod: TablePod, tmp_path: Path) -> None:
    pod.turn()
    pod.notary = Ed25519Notary(tmp_path / "other")
    pod.publish_text(FIRST_TEXT)
    assert refusal(pod) == "signature-unknown-key"


@pytest.mark.parametrize("use", [{"name": OTHER}, {"target": "serving/other"}])
def test_a_text_that_was_signed_for_another_use_is_refused(
    pod: TablePod, use: dict[str, str]
) -> None:
    pod.publish_text(FIRST_TEXT, **use)
    assert refusal(pod) == "signature-mismatch"


def test_another_table_under_the_digest_is_refused(pod: TablePod) -> None:
    pod.operator.artifacts[FIRST] = pod.operator.artifacts[SECOND]
    assert refusal(pod) == "signature-mismatch"


def test_a_signed_text_of_another_digest_is_refused(pod: TablePod) -> None:
    pod.publish_text(SECOND_TEXT, artifact=FIRST)
    assert refusal(pod) == "digest-mismatch"


def test_a_signed_text_that_is_not_a_table_is_refused(pod: TablePod) -> None:
    digest = pod.publish_text('{"format":"table","rules":7}')
    assert refusal(pod, digest) == "table-invalid"


def test_a_table_of_another_tunable_is_refused(pod: TablePod) -> None:
    digest = pod.publish_text(OTHER_TEXT)
    assert refusal(pod, digest) == "order-invalid"


def test_a_table_with_other_files_is_refused(pod: TablePod) -> None:
    pod.operator.artifacts[FIRST] = {**pod.operator.artifacts[FIRST], "kernel.so": b"code"}
    assert refusal(pod) == "artifact-invalid"


def test_code_is_not_taken_for_a_table_nor_a_table_for_code(pod: TablePod) -> None:
    code = "sha256:" + "1" * 64
    pod.publish(code, name=NAME)
    pod.publish_text(FIRST_TEXT, name="gemm")
    pod.order(swap(code), kernel_swap(FIRST, proposal="p2"))
    assert (pod.tile(), pod.active()) == (None, None)
    assert {(each, why) for each, _, why in pod.outcomes()} == {
        ("swap-p1-2", "digest-mismatch"),
        ("swap-p2-2", "digest-mismatch"),
    }


def test_a_text_that_was_changed_on_the_pods_disk_is_not_put_in_force(pod: TablePod) -> None:
    pod.turn()
    pod.operator.order(swap())
    pod.sidecar.listen(wait_s=0.0)
    folder = pod.ctx.artifacts.folder_of(swap())
    (folder / MANIFEST).chmod(0o600)
    (folder / MANIFEST).write_text(SECOND_TEXT)
    pod.sidecar.steer()
    assert pod.tile() is None
    assert not folder.exists()


def test_a_table_is_fetched_once_and_removed_when_nothing_names_it(pod: TablePod) -> None:
    pod.order(swap())
    folder = pod.folder / "state" / "artifacts" / FIRST.removeprefix("sha256:")
    pod.operator.artifacts = {}
    pod.begin()
    pod.turn()
    assert pod.tile() == 32, "it is on the pod's disk"
    pod.ctx.artifacts.keep_only(())
    assert not folder.exists()


def test_the_server_verifies_the_signature_too(pod: TablePod) -> None:
    pod.turn()
    pod.operator.order(swap())
    pod.sidecar.listen(wait_s=0.0)
    folder = pod.ctx.artifacts.folder_of(swap())
    (folder / "artifact.sig").unlink()
    with pytest.raises(CandidateError) as error:
        pod.ctx.swapper.prepare(swap(), artifact_dir=folder)
    assert error.value.reason == "signature-missing"


# --- watch ----------------------------------------------------------------------------------------


def test_a_table_that_engages_is_kept(pod: TablePod) -> None:
    pod.order(swap())
    for _ in range(4):
        pod.turn(20.0)
    report = pod.slot(NAME).report
    assert report is not None
    assert report.action is WatchAction.KEEP


def test_a_table_that_other_code_replaced_is_rolled_back_and_told(pod: TablePod) -> None:
    pod.order(swap())
    text = text_of(16)
    pod.tunable().put(parse_table(json.loads(text), text=text))
    pod.sidecar.steer()
    assert pod.tile() is None
    pod.turn()
    assert ("swap-p1-2", Outcome.ROLLED_BACK, "tripped") in pod.outcomes()
    slot = pod.slot(NAME)
    assert (slot.active, slot.epoch, slot.proposal) == (None, 3, "p1")
    pod.order(swap(epoch=7))
    assert pod.tile() is None
    assert pod.outcomes()[-1] == ("swap-p1-7", Outcome.REFUSED, "failed-here")


def test_a_process_that_does_not_answer_delays_neither_reports_nor_a_rollback(
    pod: TablePod, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = swap()
    pod.order(forward)
    monkeypatch.setattr(tuned_files, "_TIMEOUT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(pod.sockets / "1.sock"))
        silent.listen()
        assert pod.in_force() == FIRST
        pod.order(back(forward, epoch=3))
        assert pod.tile() is None
        assert pod.outcomes()[-1][1] is Outcome.DONE


# --- withdrawal -----------------------------------------------------------------------------------


def test_a_table_that_is_named_no_more_gives_way_to_the_original_and_may_come_again(
    pod: TablePod,
) -> None:
    pod.order(swap())
    pod.operator.order()
    pass_by(pod, 50.0)
    assert pod.tile() == 32
    pass_by(pod, 70.0)
    assert pod.tile() is None
    assert pod.outcomes()[1] == ("swap-p1-2", Outcome.ROLLED_BACK, "withdrawn")
    pod.order(swap(epoch=pod.slot(NAME).epoch + 1))
    assert pod.tile() == 32
    assert pod.in_force() == FIRST


def test_a_pod_that_no_target_selects_any_more_gets_the_original(pod: TablePod) -> None:
    pod.order(swap())
    pod.operator.selected = False
    pass_by(pod, 90.0)
    assert pod.tile() is None


def test_an_operator_that_does_not_answer_changes_nothing(pod: TablePod) -> None:
    pod.order(swap())
    pod.operator.away = True
    for _ in range(20):
        pod.turn(60.0)
    assert pod.tile() == 32


def test_a_kernel_and_a_table_are_ordered_side_by_side(pod: TablePod) -> None:
    code = "sha256:" + "1" * 64
    pod.publish(code)
    pod.order(swap(), kernel_swap(code, proposal="p2"))
    assert (pod.tile(), pod.active()) == (32, code)
    assert {slot.definition for slot in pod.said(WatchPost)[-1].slots} >= {NAME, "gemm"}
    pod.operator.order(kernel_swap(code, proposal="p2"))
    pass_by(pod, 120.0)
    assert (pod.tile(), pod.active()) == (None, code)
