"""What pods of experiments leave is a stranger's until it was computed again here and signed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.control.test_lessons import a_lesson
from tests.operators import examples
from tests.standalone.local_world import INCUMBENT, LOST, WINNER, WON
from tests.standalone.proofs import MACHINE, proof

from retuned.api.agent import DriftPost, PodRef, ProfileReport
from retuned.api.experiment import JobRef
from retuned.clock import FakeClock
from retuned.contract import SourceFile, Workload
from retuned.experiment.messages import done_line, failed_line, finding_line
from retuned.ports import Finding, Stored
from retuned.runtime.artifacts.artifact import MANIFEST_FILE
from retuned.stages.drift import DriftAction, DriftReport
from retuned.stages.experiment import ExperimentPlan, plan
from retuned.stages.hypothesis import Hypothesis
from retuned.stages.profile import WorkloadProfile
from retuned.stages.proposal import Proposal, propose
from retuned.stages.verdict import EvidenceFault, JudgeSettings, Reason, ServerEnvironment, Status
from retuned.store.envelopes import seal
from retuned.store.keys import Ed25519Notary
from retuned.store.lessons import LESSON
from retuned.store.sqlite import SqliteStore
from retuned_operator.agent_api.ports import PodRecord, Receipt
from retuned_operator.controllers.ports import VerifiedWin
from retuned_operator.manifests.jobs import MAX_TASK_BYTES
from retuned_operator.schema import JobRole, KernelExperiment, PolicyRef, experiment_spec, read
from retuned_operator.store.experiments import StoreLedger
from retuned_operator.store.reports import DRIFT, PROFILE
from retuned_operator.store.results import FINDINGS, ResultFolder

JOB = "verify-1"
POD = "pod-1"


def a_plan() -> ExperimentPlan:
    belief = Hypothesis(
        id=examples.BELIEF,
        definition="linear",
        workloads=(Workload(definition="linear", axes={}, weight=1.0),),
        share=0.3,
        expected_gain_ratio=2.0,
        expected_saving=0.1,
        because="a test",
    )
    return plan(belief, incumbent=INCUMBENT.digest, environment=examples.WORLD)


def an_experiment() -> KernelExperiment:
    spec = experiment_spec(
        a_plan(),
        target="chat",
        gpu_model="MI300X",
        policy=PolicyRef(name="prod", generation=1, digest=examples.POLICY),
    )
    resource = read(KernelExperiment, examples.an_object("KernelExperiment", "exp-1", spec))
    ref = JobRef(name=JOB, uid="uid-job", role=JobRole.VERIFY, result=POD)
    status = resource.status.model_copy(update={"job_refs": (ref,)})
    return resource.model_copy(update={"status": status})


class Pod:
    """A pod that writes what it found as an honest lab does, unless it is told otherwise."""

    def __init__(self, root: Path) -> None:
        self.root = root / "results"
        self.folder = self.root / an_experiment().metadata.uid / JOB / POD
        self.folder.mkdir(parents=True)

    def proven(self, found: Finding = WON, **changes: Any) -> Finding:
        asked = a_plan()
        assert found.verdict.speedup is not None
        document = proof(
            found.solution,
            incumbent=asked.incumbent,
            plan=asked.id,
            speedup=found.verdict.speedup,
            at=FakeClock().now(),
            workloads=asked.workloads,
            settings=JudgeSettings(buckets=asked.buckets),
            definition=asked.definition,
        ).model_copy(update=changes)
        data = document.model_dump_json().encode()
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        evidence = self.folder / "evidence"
        evidence.mkdir(exist_ok=True)
        (evidence / f"{digest.removeprefix('sha256:')}.json").write_bytes(data)
        return replace(found, verdict=document.verdict.model_copy(update={"evidence": digest}))

    def writes(self, *lines: dict[str, Any]) -> None:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self.folder / FINDINGS).write_text(text)

    def compiled(self) -> None:
        folder = self.folder / "artifacts" / WINNER.digest.removeprefix("sha256:")
        folder.mkdir(parents=True)
        (folder / "kernel.so").write_bytes(b"code")
        manifest = {
            "digest": WINNER.digest,
            "binary": "kernel.so",
            "binary_sha256": hashlib.sha256(b"code").hexdigest(),
        }
        (folder / MANIFEST_FILE).write_text(json.dumps(manifest))


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


@pytest.fixture
def ledger(tmp_path: Path, pod: Pod) -> Iterator[StoreLedger]:
    with closing(SqliteStore(tmp_path / "state", clock=FakeClock())) as store:
        yield StoreLedger(
            store,
            Ed25519Notary(tmp_path / "keys"),
            artifacts=tmp_path / "artifacts",
            results=ResultFolder(pod.root),
        )


def win_of(ledger: StoreLedger) -> VerifiedWin | None:
    return ledger.win(an_experiment(), job=JOB, pod_uid=POD)


def test_what_an_honest_pod_proved_is_signed_kept_and_carries_its_proposal(
    ledger: StoreLedger, pod: Pod
) -> None:
    pod.writes(finding_line(pod.proven()), finding_line(LOST), done_line())
    pod.compiled()
    (fact,) = ledger.results(an_experiment())
    assert (fact.tried, fact.finalists, fact.winner) == (2, 1, WINNER.digest)
    win = win_of(ledger)
    assert win is not None
    assert win_of(ledger) == win  # looked at again after a crash it is the same
    files = ledger.artifact(WINNER.digest)
    assert files is not None
    assert "artifact.sig" in files
    proposal = propose(
        win.verdict,
        plan=a_plan(),
        share=0.3,
        target="serving/chat",
        now=FakeClock().now(),
        ttl=timedelta(days=1),
        quarantined=(),
        live_baseline=INCUMBENT.digest,
        trust=win.trust,
    )
    assert isinstance(proposal, Proposal)
    alike = [ServerEnvironment(process="1", cpu=MACHINE.arch)]
    assert ledger.doubt(proposal, servers=alike) is None
    unlike = [*alike, ServerEnvironment(process="2", cpu="cpu:another")]
    assert ledger.doubt(proposal, servers=unlike) is EvidenceFault.OTHER_ENVIRONMENT
    other = proposal.model_copy(update={"artifact": LOST.solution.digest})
    assert ledger.doubt(other, servers=alike) is EvidenceFault.OTHER_CANDIDATE
    gone = proposal.model_copy(update={"evidence": examples.EVIDENCE})
    assert ledger.doubt(gone, servers=alike) is EvidenceFault.MISSING


LIES: list[dict[str, Any]] = [
    {"candidate": LOST.solution.digest},
    {"plan": "another"},
    {"settings": JudgeSettings(min_gain_ratio=0.0)},
]


@pytest.mark.parametrize("change", LIES, ids=lambda change: next(iter(change)))
def test_evidence_that_does_not_hold_is_not_signed(
    ledger: StoreLedger, pod: Pod, change: dict[str, Any]
) -> None:
    pod.writes(finding_line(pod.proven(**change)), done_line())
    pod.compiled()
    assert win_of(ledger) is None


def test_a_win_without_evidence_or_without_code_is_none(ledger: StoreLedger, pod: Pod) -> None:
    pod.writes(finding_line(pod.proven()), done_line())
    assert win_of(ledger) is None
    pod.compiled()
    assert win_of(ledger) is not None
    pod.writes(finding_line(WON), done_line())
    assert win_of(ledger) is None


def truncated(pod: Pod) -> None:
    pod.writes(finding_line(pod.proven()))


def failed(pod: Pod) -> None:
    pod.writes(finding_line(pod.proven()), failed_line("x", "y"))


def goes_on(pod: Pod) -> None:
    pod.writes(done_line(), finding_line(pod.proven()), done_line())


def cut(pod: Pod) -> None:
    pod.writes(finding_line(pod.proven()), done_line())
    path = pod.folder / FINDINGS
    path.write_bytes(path.read_bytes()[:-1])


def linked(pod: Pod) -> None:
    pod.writes(finding_line(pod.proven()), done_line())
    path = pod.folder / FINDINGS
    path.rename(pod.root / "elsewhere")
    path.symlink_to(pod.root / "elsewhere")


def empty(pod: Pod) -> None:
    (pod.folder / FINDINGS).write_bytes(b"")


def folder(pod: Pod) -> None:
    (pod.folder / FINDINGS).mkdir()


def nonsense(pod: Pod) -> None:
    (pod.folder / FINDINGS).write_bytes(b"\xff{" * 100 + b"\n")


@pytest.mark.parametrize(
    "damage", [truncated, failed, goes_on, cut, linked, empty, folder, nonsense]
)
def test_a_result_that_is_not_complete_does_not_count(
    ledger: StoreLedger, pod: Pod, damage: Callable[[Pod], None]
) -> None:
    damage(pod)
    assert ledger.results(an_experiment()) == ()
    assert win_of(ledger) is None


def test_code_that_leads_out_of_its_folder_is_not_taken(ledger: StoreLedger, pod: Pod) -> None:
    pod.writes(finding_line(pod.proven()), done_line())
    pod.compiled()
    code = pod.folder / "artifacts" / WINNER.digest.removeprefix("sha256:") / "kernel.so"
    code.unlink()
    code.symlink_to("/etc/hostname")
    assert win_of(ledger) is None


def test_the_trusted_job_gets_the_finalists_and_nobodys_numbers(
    ledger: StoreLedger, pod: Pod
) -> None:
    pod.writes(finding_line(pod.proven()), finding_line(LOST), done_line())
    resource = an_experiment()
    ref = JobRef(name=JOB, uid="uid-job", role=JobRole.SEARCH, result=POD)
    status = resource.status.model_copy(update={"job_refs": (ref,)})
    resource = resource.model_copy(update={"status": status})
    searching = json.loads(ledger.task(resource, JobRole.SEARCH))
    verifying = json.loads(ledger.task(resource, JobRole.VERIFY))
    assert searching["solutions"] == []
    assert [each["name"] for each in verifying["solutions"]] == [WINNER.name]
    assert "speedup" not in json.dumps(verifying)


def test_a_task_has_as_much_of_what_other_pods_told_as_a_config_map_holds(
    ledger: StoreLedger, pod: Pod
) -> None:
    long = "// " + "\N{BUG}" * 4_000  # twelve bytes each in JSON
    refused = [
        replace(
            LOST,
            solution=LOST.solution.model_copy(
                update={"sources": (SourceFile(path="k.cpp", content=f"{long}{n}"),)}
            ),
            verdict=LOST.verdict.model_copy(
                update={"status": Status.REJECT, "reason": Reason.COMPILE_FAILED, "gate": "G2"}
            ),
        )
        for n in range(40)
    ]
    timed = LOST.verdict.model_copy(update={"gate": "G5", "status": Status.REJECT})
    lie = replace(LOST, verdict=timed)  # a pod that compiles has timed nothing
    pod.writes(*map(finding_line, [lie, *refused]), done_line())
    resource = an_experiment()
    ref = JobRef(name=JOB, uid="uid-job", role=JobRole.COMPILE, result=POD)
    status = resource.status.model_copy(update={"job_refs": (ref,)})
    resource = resource.model_copy(update={"status": status})
    text = ledger.task(resource, JobRole.SEARCH)
    assert 900_000 < len(text.encode()) < MAX_TASK_BYTES
    kept = json.loads(text)["refused"]
    assert 10 < len(kept) < 40
    assert {each["verdict"]["reason"] for each in kept} == {"compile-failed"}
    assert ledger.findings(resource) == ()


def test_without_results_nothing_is_proven(tmp_path: Path) -> None:
    ledger = StoreLedger(
        SqliteStore(tmp_path / "state"),
        Ed25519Notary(tmp_path / "keys"),
        artifacts=tmp_path,
        results=ResultFolder(tmp_path / "results"),
    )
    assert ledger.results(an_experiment()) == ()
    assert ledger.lost(an_experiment()) == {}
    assert win_of(ledger) is None
    assert ledger.belief("nobody") is None


class Counted(SqliteStore):
    """A store that knows what it was asked for."""

    def list(self, kind: str, **which: Any) -> Sequence[Stored]:
        self.asked = [*getattr(self, "asked", ()), kind]
        return super().list(kind, **which)


def tell(ledger: StoreLedger, clock: FakeClock, *said: DriftPost | ProfileReport) -> None:
    pod = PodRecord(namespace="serving", name="chat-0", uid="uid-0", target="serving/chat")
    for each in said:
        clock.advance(60.0)
        ledger.take(Receipt(pod=pod, at=clock.now()), each)


def a_post(model: type[Any], id: str, **more: Any) -> Any:
    pod = PodRef(namespace="serving", name="chat-0", uid="uid-0")
    return model(pod=pod, target="serving/chat", id=id, **more)


def test_windows_are_read_once_each_and_only_while_a_drift_is_to_be_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated: list[object] = []
    whole = WorkloadProfile.model_validate

    def counted(body: object, **how: Any) -> WorkloadProfile:
        validated.append(body)
        return whole(body, **how)

    monkeypatch.setattr(WorkloadProfile, "model_validate", counted)
    clock = FakeClock()
    window = WorkloadProfile(window_start_ns=0, window_ns=1, observed_ns=1, stats=())
    report = DriftReport(
        detected=True,
        action=DriftAction.RETUNE,
        reasons=(),
        distance=0.5,
        window_start_ns=0,
        sentence="longer prompts",
    )
    with closing(Counted(tmp_path / "counted", clock=clock)) as store:
        notary = Ed25519Notary(tmp_path / "keys")
        results = ResultFolder(tmp_path / "results")
        ledger = StoreLedger(store, notary, artifacts=tmp_path / "artifacts", results=results)
        early = [a_post(ProfileReport, f"w-{n}", profile=window) for n in range(20)]
        tell(ledger, clock, *early)
        store.asked, validated[:] = [], []
        assert ledger.drifts("serving/chat") == ()
        assert (store.asked, validated) == ([DRIFT], [])
        tell(
            ledger,
            clock,
            a_post(DriftPost, "d-1", report=report),
            a_post(ProfileReport, "w-20", profile=window),
            a_post(DriftPost, "d-2", report=report),
            a_post(ProfileReport, "w-21", profile=window),
        )
        store.asked, validated[:] = [], []
        first, second = ledger.drifts("serving/chat")
        assert [len(each.windows) for each in (first, second)] == [2, 1]
        assert (store.asked, len(validated)) == ([DRIFT, PROFILE], 2)


def test_a_lesson_is_signed_and_kept_once_and_for_its_target_alone(
    ledger: StoreLedger, tmp_path: Path
) -> None:
    lesson = a_lesson()
    for _ in range(2):
        ledger.keep_lesson(lesson, id="p/u0/2", target="serving/chat")
    again = lesson.model_copy(update={"sentence": "another"})
    ledger.keep_lesson(again, id="p/u0/2", target="serving/chat")
    assert ledger.lessons("serving/chat") == [lesson]
    assert ledger.lessons("serving/chat-2") == []
    assert ledger.lessons("serving/cha") == []
    stored = ledger._store.get(LESSON, "serving/chat/p/u0/2")
    assert stored is not None
    notary = Ed25519Notary(tmp_path / "keys")
    envelope = json.loads(ledger._store.get_blob(stored.body["evidence"]))
    signature = bytes.fromhex(envelope["signature"])
    payload = envelope["payload"].encode()
    assert notary.check(payload, key=envelope["key"], signature=signature) is None
    assert json.loads(payload)["definition"] == lesson.definition


def test_a_proof_is_read_as_it_was_kept_and_only_if_this_operator_signed_it(
    ledger: StoreLedger, tmp_path: Path
) -> None:
    document = json.dumps({"gate": "live-proof", "state": {}}).encode()
    digest = ledger.keep_proof(document)
    assert ledger.proof(digest) == document
    assert ledger.proof("sha256:" + 64 * "0") is None
    foreign = seal(document, notary=Ed25519Notary(tmp_path / "others"))
    assert ledger.proof(ledger._store.put_blob(foreign)) is None
    envelope = json.loads(ledger._store.get_blob(digest))
    altered = json.dumps(envelope | {"payload": "{}"}).encode()
    assert ledger.proof(ledger._store.put_blob(altered)) is None
    assert ledger.proof(ledger._store.put_blob(b"no envelope")) is None
