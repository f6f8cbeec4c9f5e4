"""Pods are read once, after their end; what cannot be had now is asked for again."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_naming
from tests.operators import examples

from retuned.api.experiment import JobRef
from retuned.clock import FakeClock
from retuned.errors import TemporaryError
from retuned.experiment.log_transport import FINDINGS, Sender, lines, pack
from retuned.experiment.messages import done_line, read_line
from retuned.ports import Finding
from retuned_operator.kube.errors import ApiError, Forbidden, Invalid, NotFound, Unavailable
from retuned_operator.kube.resources import Obj
from retuned_operator.manifests.jobs import TELLER
from retuned_operator.schema import JobRole, KernelExperiment, read
from retuned_operator.store import results
from retuned_operator.store.results import LOG_GONE, Collector, ResultFolder

JOB = "verify-1"
DONE = b'{"done":true}\n'
assert done_line() == {"done": True}


def an_experiment(**ref: Any) -> KernelExperiment:
    resource = read(KernelExperiment, examples.an_experiment())
    known = JobRef(name=JOB, uid="uid-job", role=JobRole.VERIFY, **ref)
    status = resource.status.model_copy(update={"job_refs": (known,)})
    return resource.model_copy(update={"status": status})


UID = an_experiment().metadata.uid


def a_pod(
    uid: str = "pod-1", *, phase: str = "Succeeded", job: str = "uid-job", at: str = ""
) -> Obj:
    ended = {"name": "runner", "state": {"terminated": {"finishedAt": at}}}
    return {
        "metadata": {
            "name": f"name-of-{uid}",
            "namespace": "lab",
            "uid": uid,
            "ownerReferences": [{"uid": job, "controller": True}],
        },
        "status": {"phase": phase, "containerStatuses": [ended]},
    }


def told(pod: str = "pod-1", text: bytes = DONE, **left_out: int) -> bytes:
    sender = Sender(experiment=UID, job=JOB, pod=pod)
    return b"".join(lines([pack(FINDINGS, text)], sender=sender, left_out=left_out))


class Node:
    """Pods with what they have written, and what goes wrong."""

    def __init__(self, place: Path) -> None:
        self.pods: list[Obj] | None = [a_pod()]
        self.written = {"pod-1": told()}
        self.fails: ApiError | None = None
        self.asked: list[str] = []
        self.clock = FakeClock()
        self.place, self.folder = place, ResultFolder(place)
        self.collector = self.restarted()

    def restarted(self) -> Collector:
        self.collector = Collector(
            self.folder, pods=lambda _: self.pods, logs=self, clock=self.clock
        )
        return self.collector

    def logs(self, namespace: str, name: str, *, container: str, limit_bytes: int) -> bytes:
        assert (namespace, container) == ("lab", TELLER)
        self.asked.append(name.removeprefix("name-of-"))
        if self.fails is not None:
            raise self.fails
        return self.written[self.asked[-1]][:limit_bytes]

    def results(self, experiment: KernelExperiment | None = None) -> list[str]:
        self.collector.collect(experiment or an_experiment())
        return [each.pod_uid for each in self.folder.of(UID, JOB)]

    def lost(self) -> dict[str, str]:
        return dict(self.collector.lost(an_experiment()))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "results")


def test_a_pod_is_read_once_and_never_again_after_a_restart(node: Node) -> None:
    assert node.results() == ["pod-1"]
    assert node.results() == ["pod-1"]
    node.restarted()
    assert node.results() == ["pod-1"]
    assert node.asked == ["pod-1"]
    assert node.lost() == {}


def test_a_pod_that_runs_is_not_asked_and_nor_is_one_of_somebody_else(node: Node) -> None:
    node.pods = [a_pod(phase="Running"), a_pod("pod-2", job="uid-of-another")]
    assert node.results() == []
    assert node.asked == []
    assert node.lost() == {}


@pytest.mark.parametrize("pods", [None, []])
def test_where_no_pods_are_seen_nothing_is_lost(node: Node, pods: list[Obj] | None) -> None:
    node.pods = pods
    assert node.results() == []
    assert node.lost() == {}


def test_a_job_whose_result_counts_already_is_not_asked_again(node: Node) -> None:
    node.results(an_experiment(result="pod-9"))
    assert node.asked == []


def test_of_two_pods_the_one_that_ended_first_is_read_first(node: Node) -> None:
    node.pods = [a_pod("pod-2", at="2026-03-02T10:00:07Z"), a_pod(at="2026-03-02T10:00:05Z")]
    node.written["pod-2"] = told("pod-2")
    assert node.results() == ["pod-1", "pod-2"]
    assert node.asked == ["pod-1", "pod-2"]
    first, second = node.folder.of(UID, JOB)
    assert first.at <= second.at


WRONG: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda log: b"", "results-absent"),
    (lambda log: log[:-10], "results-altered"),
    (lambda log: log.split(b"\n")[0], "results-truncated"),
    (lambda log: log.replace(b'"pod-1"', b'"pod-2"'), "results-of-another"),
]


@pytest.mark.parametrize(("damage", "code"), WRONG)
def test_a_log_that_cannot_be_used_is_lost_with_its_code_and_not_read_again(
    node: Node, damage: Callable[[bytes], bytes], code: str
) -> None:
    node.written["pod-1"] = damage(node.written["pod-1"])
    assert node.results() == []
    assert node.lost() == {JOB: code}
    node.restarted()
    assert node.results() == []
    assert node.lost() == {JOB: code}
    assert node.asked == ["pod-1"]


def test_a_log_that_its_node_has_forgotten_is_lost(node: Node) -> None:
    node.fails = Invalid("container results is not there", status=400)
    assert node.results() == []
    assert node.lost() == {JOB: LOG_GONE}


def test_the_pods_of_an_experiment_are_asked_for_once_however_many_jobs_it_has_had(
    node: Node,
) -> None:
    node.written["pod-1"] = b""
    jobs = tuple(JobRef(name=f"search-{n}", uid=f"uid-{n}", role=JobRole.SEARCH) for n in range(20))
    resource = an_experiment()
    refs = (*jobs, *resource.status.job_refs)
    status = resource.status.model_copy(update={"job_refs": refs})
    many = resource.model_copy(update={"status": status})
    node.collector.collect(many)
    asked: list[KernelExperiment] = []

    def pods(experiment: KernelExperiment) -> list[Obj] | None:
        asked.append(experiment)
        return node.pods

    collector = Collector(node.folder, pods=pods, logs=node, clock=node.clock)
    assert collector.lost(many) == {JOB: "results-absent"}
    assert asked == [many]


def test_one_pod_that_told_makes_up_for_one_that_did_not(node: Node) -> None:
    node.pods = [a_pod(), a_pod("pod-2", phase="Failed")]
    node.written["pod-2"] = b""
    assert node.results() == ["pod-1"]
    assert node.lost() == {}
    node.pods = [a_pod("pod-2", phase="Failed"), a_pod("pod-3", phase="Running")]
    assert node.lost() == {JOB: "results-absent"}  # the machine asks only once the Job is complete


PASSING = [
    Unavailable("the node is away", status=502),
    Forbidden("no right", status=403),
    NotFound("the pod is going", status=404),
]


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_what_may_pass_is_asked_for_again_after_a_while_and_never_raised(
    node: Node, error: ApiError
) -> None:
    node.fails = error
    assert node.results() == []
    assert node.results() == []
    assert node.asked == ["pod-1"]  # not again at once
    assert node.lost() == {}
    node.clock.advance(10.0)
    node.fails = None
    assert node.results() == ["pod-1"]


def test_a_node_that_stays_away_is_asked_less_and_less_often(node: Node) -> None:
    node.fails = Unavailable("the node is away", status=502)
    asked: list[int] = []
    for second in range(300):
        node.results()
        if len(node.asked) > len(asked):
            asked.append(second)
        node.clock.advance(1.0)
    assert asked == [0, 10, 30, 70, 150, 230]


def test_a_disk_that_is_full_is_waited_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("retuned_operator.store.results.os.fsync", full)
    assert node.results() == []
    assert node.lost() == {}
    with raises_naming(TemporaryError, os.strerror(errno.ENOSPC)):
        node.folder.refuse(UID, JOB, "pod-1", code="x", why="y")
    monkeypatch.undo()
    node.clock.advance(10.0)
    assert node.results() == ["pod-1"]


def test_what_is_kept_first_stays(node: Node) -> None:
    node.results()
    node.folder.refuse(UID, JOB, "pod-1", code="x", why="y")
    assert node.results() == ["pod-1"]
    assert node.folder.refusals(UID, JOB) == {}


def test_what_a_pod_told_is_read_from_its_folder_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines_read: list[bytes] = []

    def counted(line: bytes) -> Finding | None:
        lines_read.append(line)
        return read_line(line)

    monkeypatch.setattr(results, "read_line", counted)
    for _ in range(5):
        assert node.results() == ["pod-1"]
    assert lines_read == [DONE.strip()]
    monkeypatch.setattr(results, "_KEPT_BYTES", len(DONE) - 1)  # nothing has room any more
    node.folder = ResultFolder(node.place)
    node.restarted()
    for _ in range(5):
        assert node.results() == ["pod-1"]
    assert len(lines_read) == 6


def test_losers_that_had_no_room_are_counted_as_tried(node: Node) -> None:
    node.written["pod-1"] = told(findings=5)
    node.results()
    (found,) = node.folder.of(UID, JOB)
    assert found.fact(JobRole.SEARCH).tried == 5


def test_results_of_experiments_that_are_gone_are_forgotten(node: Node, tmp_path: Path) -> None:
    node.folder.keep_only(())  # there is no folder yet
    node.results()
    node.folder.keep_only([UID])
    assert node.folder.has(UID, JOB, "pod-1")
    node.folder.keep_only(["another"])
    assert not node.folder.has(UID, JOB, "pod-1")
    shutil.rmtree(tmp_path / "results")


@pytest.mark.parametrize("name", ["..", "a/b", "", ".hidden"])
def test_names_that_lead_elsewhere_are_no_names(node: Node, name: str) -> None:
    with raises_naming(ValueError, repr(name)):
        node.folder.refuse(UID, JOB, name, code="x", why="y")
