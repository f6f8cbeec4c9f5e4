from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operators import examples
from tests.operators.world import World

from retuned.api.target import Quarantined, TargetMode
from retuned.control import (
    CreateJob,
    DeleteJob,
    ExperimentFacts,
    ExperimentStep,
    JobFact,
    JobState,
    Propose,
    ResultFact,
    SetSuspend,
    experiment,
)
from retuned.control.experiment import (
    HELPERS,
    MAX_LOST_RESULTS,
    PIPELINE,
    RESULT_PATIENCE,
    pipeline_of,
)
from retuned.control.experiment_step import MAX_PREEMPTIONS
from retuned.control.jobs import MAX_SPELLS, ROOM_PATIENCE, ROOM_REST, device_seconds
from retuned.stages import gate
from retuned.stages.verdict import Interval
from retuned_operator.schema import ExperimentPhase as P
from retuned_operator.schema import JobRole, KernelExperiment, TuningTarget, read

WINNER = examples.ARTIFACT
WIN = Interval(lower=1.2, point=1.25, upper=1.3, confidence=0.995)


class Lab:
    """One experiment and the cluster that it runs on."""

    def __init__(self, pipeline: tuple[JobRole, ...] = PIPELINE) -> None:
        self.now = examples.NOW
        self.room = True
        """Whether a node has room for what is let go."""
        self.ran_s = 0.0
        """Time in which a Job that measures ran, seconds."""
        self.pipeline = pipeline
        self.resource = read(KernelExperiment, examples.an_experiment())
        self.facts = ExperimentFacts(
            target=read(TuningTarget, examples.a_target(environment=examples.WORLD)),
            policies=(World(examples.NOW).policy(),),
            live_baseline=examples.BASELINE,
        )

    def step(self, *, kept: bool = True, acted: bool = True, **changes: Any) -> ExperimentStep:
        """Do one step; the operator may die before its status or its actions are written."""
        self.facts = replace(self.facts, **changes)
        step = experiment.step(self.resource, self.facts, now=self.now, pipeline=self.pipeline)
        if kept:
            self.resource = self.resource.model_copy(update={"status": step.status})
        if kept and acted:
            for action in step.actions:
                self.act(action)
        return step

    def act(self, action: object) -> None:
        jobs = {job.name: job for job in self.facts.jobs}
        if isinstance(action, CreateJob):
            name = f"{action.role}-{action.attempt}"
            new = JobFact(
                name=name,
                uid=f"uid-{name}",
                role=action.role,
                attempt=action.attempt,
                state=JobState.SUSPENDED,
            )
            jobs.setdefault(name, new)  # the API server says that it is already there
        elif isinstance(action, SetSuspend):
            let_go = JobState.RUNNING if self.room else JobState.WAITING
            state = JobState.SUSPENDED if action.suspend else let_go
            began = self.now if state is JobState.RUNNING else None
            jobs[action.job] = replace(jobs[action.job], state=state, began_at=began)
        elif isinstance(action, DeleteJob):
            jobs.pop(action.job, None)
        self.facts = replace(self.facts, jobs=tuple(jobs.values()))

    def becomes(self, name: str, state: JobState, reason: str = "") -> None:
        found: dict[JobState, dict[str, Any]] = {
            JobState.RUNNING: {"began_at": self.now},
            JobState.COMPLETE: {"ended_at": self.now},
            JobState.FAILED: {"ended_at": self.now},
            JobState.DISRUPTED: {"ended_at": self.now},
        }
        times = found.get(state, {})
        jobs = tuple(
            replace(job, state=state, reason=reason, **times) if job.name == name else job
            for job in self.facts.jobs
        )
        self.facts = replace(self.facts, jobs=jobs)

    def passes(self, time: timedelta) -> None:
        runs = [job.state is JobState.RUNNING for job in self.facts.jobs if job.role in PIPELINE]
        self.ran_s += time.total_seconds() if any(runs) else 0.0
        self.now += time

    def result(self, job: str, pod: str = "pod-1", **found: Any) -> None:
        new = ResultFact(job=job, pod_uid=pod, at=found.pop("at", self.now), **found)
        self.facts = replace(self.facts, results=(*self.facts.results, new))

    def until_running(self) -> None:
        for _ in range(4):
            self.step()

    def searched(self, **found: Any) -> None:
        self.until_running()
        usual: dict[str, Any] = {"tried": 9, "correct": 5, "finalists": 2}
        self.result("search-1", **(usual | found))
        self.becomes("search-1", JobState.COMPLETE)
        self.until_running()

    def verified(self, **found: Any) -> None:
        self.searched()
        usual: dict[str, Any] = {"winner": WINNER, "speedup": WIN}
        self.result("verify-1", **(usual | found))
        self.becomes("verify-1", JobState.COMPLETE)

    def phase(self) -> P:
        return self.resource.status.phase

    def live(self) -> list[str]:
        return [job.name for job in self.facts.jobs if job.is_live]


def test_an_experiment_is_searched_then_verified_then_proposed() -> None:
    lab = Lab()
    seen = []
    for _ in range(4):
        lab.step()
        seen.append(lab.phase())
    assert seen == [P.QUEUED, P.QUEUED, P.RUNNING, P.RUNNING]
    lab = Lab()
    lab.verified()
    step = lab.step()
    assert step.actions == (Propose(winner=WINNER, result="pod-1"),)
    assert lab.phase() is P.VERIFYING
    lab.step(proposal="swp-1")
    status = lab.resource.status
    assert lab.phase() is P.SUCCEEDED
    assert status.proposal == "swp-1"
    assert status.best is not None
    assert status.best.speedup == WIN
    assert status.trials.total == 9


def test_a_job_begins_suspended_and_is_released_once_the_budget_allows() -> None:
    lab = Lab()
    (made,) = lab.step().actions
    assert made == CreateJob(role=JobRole.SEARCH, attempt=1)
    (released,) = lab.step().actions
    assert released == SetSuspend(job="search-1", suspend=False)


def test_in_a_queue_of_kueue_nobody_else_releases_a_job() -> None:
    lab = Lab()
    lab.step(queued_elsewhere=True)
    assert lab.step().actions == ()
    assert lab.resource.status.reason == "waits-in-queue"


def frozen() -> tuple[gate.TuningFreeze, ...]:
    return (gate.TuningFreeze(id="f", user="ada", at=examples.NOW),)


HELD: list[tuple[dict[str, Any], str]] = [
    ({"freezes": frozen()}, "frozen"),
    ({"freezes": None}, "unreadable"),
    ({"policies": None}, "unreadable"),
    ({"policies": ()}, "no-policy"),
    ({"slo_firing": True}, "slo-alert"),
    ({"slo_firing": None}, "slo-alert"),
    ({"running_experiments": 1}, "too-many-experiments"),
    ({"gpu_hours_today": 4.0}, "budget-spent"),
]


@pytest.mark.parametrize(("facts", "reason"), HELD)
def test_what_forbids_it_holds_a_job_back_and_stops_one_that_runs(
    facts: dict[str, Any], reason: str
) -> None:
    lab = Lab()
    assert lab.step(**facts).actions == ()
    assert (lab.phase(), lab.resource.status.reason) == (P.QUEUED, reason)
    lab = Lab()
    lab.until_running()
    assert lab.step(**facts).actions == (SetSuspend(job="search-1", suspend=True),)
    assert lab.phase() is P.QUEUED


def test_the_owner_may_hold_it_back() -> None:
    lab = Lab()
    spec = lab.resource.spec.model_copy(update={"suspend": True})
    lab.resource = lab.resource.model_copy(update={"spec": spec})
    assert lab.step().actions == ()
    assert lab.resource.status.reason == "suspended"


ENDS: list[tuple[dict[str, Any], P, str]] = [
    ({"target": None}, P.OUTDATED, "target-gone"),
    ({"live_baseline": WINNER}, P.OUTDATED, "baseline-changed"),
]


@pytest.mark.parametrize(("facts", "phase", "reason"), ENDS)
def test_an_experiment_whose_world_is_gone_ends_and_frees_its_place(
    facts: dict[str, Any], phase: P, reason: str
) -> None:
    lab = Lab()
    lab.until_running()
    assert lab.live() == ["search-1"]
    lab.step(**facts)
    assert (lab.phase(), lab.resource.status.reason) == (phase, reason)
    assert lab.live() == []


def test_an_abort_ends_it_and_deletes_what_lives_even_if_the_operator_dies_in_between() -> None:
    lab = Lab()
    lab.until_running()
    abort = lab.resource.spec.abort.model_copy(update={"requested": True})
    spec = lab.resource.spec.model_copy(update={"abort": abort})
    lab.resource = lab.resource.model_copy(update={"spec": spec})
    lab.step(acted=False)
    assert lab.phase() is P.ABORTED
    assert lab.live() == ["search-1"]
    lab.step()
    assert lab.live() == []


def test_a_job_that_fails_fails_the_experiment_with_its_reason() -> None:
    lab = Lab()
    lab.until_running()
    lab.becomes("search-1", JobState.FAILED, "DeadlineExceeded")
    lab.step()
    assert lab.phase() is P.FAILED
    assert "DeadlineExceeded" in lab.resource.status.detail


def test_a_job_without_room_waits_makes_way_and_waits_again_and_nothing_is_charged() -> None:
    lab = Lab()
    lab.room = False
    lab.until_running()
    lab.becomes("search-1", JobState.WAITING, "0/1 nodes are available")
    assert lab.step().actions == ()
    status = lab.resource.status
    assert (status.phase, status.reason) == (P.QUEUED, "waits-for-room")
    assert status.detail == "0/1 nodes are available"
    lab.passes(ROOM_PATIENCE)
    assert lab.step(kept=True, acted=False).actions == (SetSuspend(job="search-1", suspend=True),)
    lab.step()  # the operator died before it acted: it waits as long once more
    lab.passes(ROOM_PATIENCE)
    assert lab.step().actions == (SetSuspend(job="search-1", suspend=True),)
    assert lab.resource.status.reason == "no-room"
    lab.passes(ROOM_REST - timedelta(seconds=1))
    assert lab.step().actions == ()
    lab.passes(timedelta(seconds=1))
    lab.room = True
    assert lab.step().actions == (SetSuspend(job="search-1", suspend=False),)
    assert lab.resource.status.started_at is None
    lab.step()
    assert lab.phase() is P.RUNNING
    assert lab.resource.status.started_at == lab.now
    assert lab.resource.status.preemptions == 0


def test_what_waits_for_room_is_held_back_at_once_by_a_freeze() -> None:
    lab = Lab()
    lab.room = False
    lab.until_running()
    assert lab.step(freezes=frozen()).actions == (SetSuspend(job="search-1", suspend=True),)
    assert lab.resource.status.reason == "frozen"


def test_a_queue_decides_by_itself_how_long_its_jobs_wait_for_room() -> None:
    lab = Lab()
    lab.room = False
    lab.until_running()
    lab.facts = replace(lab.facts, queued_elsewhere=True)
    lab.step()
    lab.passes(10 * ROOM_PATIENCE)
    assert lab.step().actions == ()
    assert lab.resource.status.reason == "waits-for-room"


def test_more_spells_than_a_status_keeps_are_put_together_and_none_is_forgotten() -> None:
    lab = Lab()
    lab.until_running()
    for _ in range(MAX_SPELLS + 9):
        lab.step()
        lab.passes(timedelta(minutes=2))
        lab.step(freezes=frozen())
        lab.passes(timedelta(minutes=30))
        lab.step(freezes=())
        lab.step()
    spells = lab.resource.status.device_time
    assert len(spells) == MAX_SPELLS
    assert device_seconds(spells, now=lab.now) == lab.ran_s == (MAX_SPELLS + 9) * 120.0
    assert all(a.started_at <= b.started_at for a, b in pairwise(spells))


def test_a_node_whose_clock_is_ahead_charges_nothing_that_has_not_been() -> None:
    lab = Lab()
    lab.until_running()
    ahead = lab.now + timedelta(hours=9)
    (job,) = lab.facts.jobs
    lab.step(jobs=(replace(job, began_at=ahead),))
    lab.passes(timedelta(minutes=1))
    done = replace(job, state=JobState.COMPLETE, began_at=ahead, ended_at=ahead)
    lab.step(jobs=(done,))
    (spell,) = lab.resource.status.device_time
    assert spell.ended_at == lab.now
    assert device_seconds((spell,), now=lab.now) == 60.0


def test_preempted_is_not_failed_and_is_tried_again() -> None:
    lab = Lab()
    lab.until_running()
    lab.becomes("search-1", JobState.DISRUPTED)
    step = lab.step()
    assert lab.phase() is P.PREEMPTED
    assert step.actions == (DeleteJob(job="search-1"),)
    lab.until_running()
    assert lab.live() == ["search-2"]
    assert lab.phase() is P.RUNNING


def test_no_two_jobs_of_an_experiment_live_at_one_time_whenever_the_operator_dies() -> None:
    lab = Lab()
    lab.until_running()
    lab.becomes("search-1", JobState.DISRUPTED)
    lab.step(acted=False)
    for _ in range(6):
        lab.step()
        assert len(lab.live()) <= 1
    assert lab.live() == ["search-2"]


def test_a_search_that_was_done_is_not_done_again_after_a_preemption() -> None:
    lab = Lab()
    lab.searched()
    lab.becomes("verify-1", JobState.DISRUPTED)
    lab.until_running()
    lab.step()
    assert lab.live() == ["verify-2"]


def test_a_search_that_was_cleared_away_is_not_done_again() -> None:
    lab = Lab()
    lab.searched()
    jobs = tuple(job for job in lab.facts.jobs if job.role is JobRole.VERIFY)
    lab.step(jobs=jobs)
    assert lab.live() == ["verify-1"]


def test_a_cluster_without_room_ends_it_after_a_while() -> None:
    lab = Lab()
    for _ in range(8 * MAX_PREEMPTIONS):
        lab.step()
        for name in lab.live():
            lab.becomes(name, JobState.DISRUPTED)
    assert (lab.phase(), lab.resource.status.reason) == (P.FAILED, "preempted-too-often")
    assert lab.live() == []


def test_of_two_pods_of_one_job_the_first_that_was_complete_counts_for_good() -> None:
    lab = Lab()
    lab.until_running()
    lab.result("search-1", "late", at=lab.now + timedelta(seconds=5), tried=1, finalists=1)
    lab.result("search-1", "first", at=lab.now, tried=7, correct=7, finalists=1)
    lab.becomes("search-1", JobState.COMPLETE)
    lab.step()
    assert lab.resource.status.trials.total == 7
    lab.result("search-1", "earlier", at=lab.now - timedelta(hours=1), tried=99, finalists=0)
    lab.step()
    assert lab.resource.status.trials.total == 7
    assert lab.phase() is not P.NO_IMPROVEMENT


def test_nothing_found_is_no_improvement_and_is_not_verified() -> None:
    lab = Lab()
    lab.searched(finalists=0)
    assert (lab.phase(), lab.resource.status.reason) == (P.NO_IMPROVEMENT, "nothing-found")
    assert lab.live() == []


def test_what_slowed_the_devices_stands_beside_what_came_of_an_experiment() -> None:
    words = "as it began, amd-0 is throttled (thermal)"
    found, proven = Lab(), Lab()
    found.searched(finalists=0, beside=words)
    proven.verified(beside=words)
    proven.step()
    proven.step(proposal="swp-1")
    assert proven.phase() is P.SUCCEEDED
    assert (found.resource.status.detail, proven.resource.status.detail) == (words, words)


def test_what_the_search_claims_is_not_proposed_without_the_trusted_job() -> None:
    lab = Lab()
    lab.searched(winner=WINNER, speedup=WIN)
    lab.result("verify-1")
    lab.becomes("verify-1", JobState.COMPLETE)
    step = lab.step()
    assert (lab.phase(), lab.resource.status.reason) == (P.NO_IMPROVEMENT, "not-proven")
    assert step.actions == ()
    assert lab.resource.status.best is None


def test_a_tunable_has_one_job_that_searches_measures_and_is_believed() -> None:
    lab = Lab(pipeline_of(generates=True, compiles=True, tunable=True))
    lab.until_running()
    assert (lab.live(), lab.phase()) == (["verify-1"], P.VERIFYING)
    lab.result("verify-1", winner=WINNER, speedup=WIN, tried=6, correct=2)
    lab.becomes("verify-1", JobState.COMPLETE)
    assert lab.step().actions == (Propose(winner=WINNER, result="pod-1"),)
    assert (lab.resource.status.trials.total, lab.resource.status.trials.correct) == (6, 2)


def test_a_tunable_without_a_gain_ends_with_what_was_found() -> None:
    lab = Lab(pipeline_of(generates=False, compiles=False, tunable=True))
    lab.until_running()
    lab.result("verify-1", tried=6, correct=6, beside="elements 64: nothing-to-gain")
    lab.becomes("verify-1", JobState.COMPLETE)
    lab.step()
    status = lab.resource.status
    assert (lab.phase(), status.reason) == (P.NO_IMPROVEMENT, "not-proven")
    assert status.detail == "elements 64: nothing-to-gain"
    assert lab.live() == []


def test_a_quarantined_winner_is_not_proposed_until_its_time_is_over() -> None:
    lab = Lab()
    lab.verified()
    target = lab.facts.target
    assert target is not None
    entry = Quarantined(digest=WINNER, until=lab.now + timedelta(days=1), reason="tripped")
    status = target.status.model_copy(update={"quarantine": (entry,)})
    step = lab.step(target=target.model_copy(update={"status": status}))
    assert step.actions == ()
    assert (lab.phase(), lab.resource.status.reason) == (P.NO_IMPROVEMENT, "quarantined")


def test_a_win_that_is_not_worth_it_ends_with_the_reason_of_the_stage() -> None:
    lab = Lab()
    lab.verified()
    lab.step(refusal="not-worth-it")
    assert (lab.phase(), lab.resource.status.reason) == (P.NO_IMPROVEMENT, "not-worth-it")


def test_a_complete_job_without_a_result_is_not_waited_for_for_ever() -> None:
    lab = Lab()
    lab.until_running()
    lab.becomes("search-1", JobState.COMPLETE)
    lab.step()
    assert lab.phase() is P.RUNNING
    lab.now += RESULT_PATIENCE - timedelta(seconds=1)
    lab.step()
    assert lab.phase() is P.RUNNING
    lab.now += timedelta(seconds=1)
    lab.step()
    assert (lab.phase(), lab.resource.status.reason) == (P.QUEUED, "results-unread")
    assert lab.step().actions == (CreateJob(role=JobRole.SEARCH, attempt=2),)


@pytest.mark.parametrize("how", ["its log is gone", "the Job is gone"])
def test_a_job_whose_result_is_lost_is_made_again_a_few_times_and_then_fails(how: str) -> None:
    lab = Lab()
    for attempt in range(1, MAX_LOST_RESULTS + 2):
        lab.until_running()
        name = f"search-{attempt}"
        if how == "the Job is gone":
            lab.step(jobs=())
        else:
            lab.becomes(name, JobState.COMPLETE)
            lab.step(lost=((name, "results-log-gone"),))
        assert lab.resource.status.lost_results == attempt
        assert lab.resource.status.preemptions == 0
    code = "job-gone" if how == "the Job is gone" else "results-log-gone"
    assert (lab.phase(), lab.resource.status.reason) == (P.FAILED, "no-result")
    assert lab.resource.status.trials.without_result == MAX_LOST_RESULTS + 1
    assert lab.resource.status.detail.startswith(code)


WHOLE = pipeline_of(generates=True, compiles=True)


def test_pods_without_an_accelerator_come_first_and_count_as_no_trial_and_no_device_time() -> None:
    lab = Lab(WHOLE)
    for role, does in HELPERS.items():
        lab.until_running()
        assert lab.live() == [f"{role}-1"]
        assert (lab.phase(), lab.resource.status.reason) == (P.RUNNING, does)
        lab.result(f"{role}-1", f"pod-{role}", tried=50)
        lab.becomes(f"{role}-1", JobState.COMPLETE)
        assert lab.resource.status.started_at is None
    lab.searched(tried=7, correct=3)
    assert lab.live() == ["verify-1"]
    status = lab.resource.status
    assert status.started_at is not None
    assert (status.trials.total, status.trials.correct) == (7, 3)
    assert [ref.given_up for ref in status.job_refs] == ["", "", "", ""]


@pytest.mark.parametrize("how", ["failed", "log gone", "unread", "Job gone"])
@pytest.mark.parametrize("role", HELPERS)
def test_a_search_goes_on_without_a_helper_that_brings_nothing(role: JobRole, how: str) -> None:
    lab, name = Lab((role, *PIPELINE)), f"{role}-1"
    lab.until_running()
    if how == "failed":
        lab.becomes(name, JobState.FAILED, "DeadlineExceeded")
    elif how == "Job gone":
        lab.step(jobs=())
    else:
        lab.becomes(name, JobState.COMPLETE)
        lab.step(lost=((name, "results-truncated"),) if how == "log gone" else ())
        lab.now += RESULT_PATIENCE
    lab.until_running()
    assert lab.live() == ["search-1"]
    lab.step(jobs=tuple(job for job in lab.facts.jobs if job.name != name))
    (given_up,) = [ref.given_up for ref in lab.resource.status.job_refs if ref.role is role]
    codes = {
        "failed": "job-failed: DeadlineExceeded",
        "log gone": "results-truncated: ",
        "unread": "results-unread: ",
        "Job gone": "job-gone: ",
    }
    assert given_up.startswith(codes[how])
    assert lab.resource.status.lost_results == 0
    lab.searched()
    assert lab.live() == ["verify-1"]


def test_a_helper_that_production_took_away_is_tried_again() -> None:
    lab = Lab((JobRole.COMPILE, *PIPELINE))
    lab.until_running()
    lab.becomes("compile-1", JobState.DISRUPTED)
    lab.until_running()
    assert lab.live() == ["compile-2"]


def test_a_helper_that_is_allowed_once_the_search_runs_comes_too_late() -> None:
    lab = Lab()
    lab.until_running()
    lab.pipeline = WHOLE
    lab.until_running()
    assert lab.live() == ["search-1"]


def test_a_helper_that_is_not_allowed_any_more_makes_place_for_the_search() -> None:
    lab = Lab(WHOLE)
    lab.until_running()
    lab.pipeline = PIPELINE
    lab.until_running()
    assert lab.live() == ["search-1"]


def test_what_was_lost_of_one_try_is_nothing_where_another_brought_a_result() -> None:
    lab = Lab()
    lab.until_running()
    lab.becomes("search-1", JobState.COMPLETE)
    lab.result("search-1", finalists=1)
    lab.step(lost=(("search-1", "results-truncated"),))
    assert lab.resource.status.lost_results == 0
    assert lab.phase() is P.QUEUED


def test_what_a_target_or_a_policy_forbids_is_refused() -> None:
    lab = Lab()
    target = lab.facts.target
    assert target is not None
    observing = target.spec.model_copy(update={"mode": TargetMode.OBSERVE})
    lab.step(target=target.model_copy(update={"spec": observing}))
    assert (lab.phase(), lab.resource.status.reason) == (P.REFUSED, "target-mode")
    lab = Lab()
    world = World(examples.NOW)
    world.change_policy(experiments={"maxConcurrent": 0})
    lab.step(policies=(world.policy(),))
    assert (lab.phase(), lab.resource.status.reason) == (P.REFUSED, "policy-forbids")


def test_who_does_not_lead_does_nothing() -> None:
    lab = Lab()
    before = lab.resource
    assert lab.step(leading=False).actions == ()
    assert lab.resource == before


def test_an_experiment_that_is_over_stays_so() -> None:
    lab = Lab()
    lab.verified()
    lab.step(proposal="swp-1")
    before = lab.resource.status
    lab.step(target=None, live_baseline=WINNER)
    assert lab.resource.status == before


EVENTS = st.sampled_from(
    [
        "step",
        "step",
        "dies-before-status",
        "dies-before-actions",
        "completes",
        "completes-without-result",
        "two-results",
        "disrupted",
        "fails",
        "frozen",
        "thawed",
        "cleared-away",
        "aborted",
        "time",
        "full",
        "room",
        "finds-room",
    ]
)


def happens(lab: Lab, event: str) -> None:
    """Let one thing happen to an experiment."""
    live = [job for job in lab.facts.jobs if job.state is JobState.RUNNING]
    job = live[0] if live else None
    if event == "step":
        lab.step()
    elif event == "dies-before-status":
        lab.step(kept=False)
    elif event == "dies-before-actions":
        lab.step(acted=False)
    elif event in ("frozen", "thawed"):
        lab.facts = replace(lab.facts, freezes=frozen() if event == "frozen" else ())
    elif event == "time":
        lab.passes(timedelta(minutes=3))
    elif event in ("full", "room"):
        lab.room = event == "room"
    elif event == "finds-room":
        waiting = [each.name for each in lab.facts.jobs if each.state is JobState.WAITING]
        for name in waiting:
            lab.becomes(name, JobState.RUNNING)
    elif event == "cleared-away":
        kept = tuple(each for each in lab.facts.jobs if each.state is not JobState.COMPLETE)
        lab.facts = replace(lab.facts, jobs=kept)
    elif event == "aborted":
        abort = lab.resource.spec.abort.model_copy(update={"requested": True})
        spec = lab.resource.spec.model_copy(update={"abort": abort})
        lab.resource = lab.resource.model_copy(update={"spec": spec})
    elif job is not None and event == "disrupted":
        lab.becomes(job.name, JobState.DISRUPTED)
    elif job is not None and event == "fails":
        lab.becomes(job.name, JobState.FAILED, "BackoffLimitExceeded")
    elif job is not None:
        if event != "completes-without-result":
            proven = {"winner": WINNER, "speedup": WIN} if job.role is JobRole.VERIFY else {}
            lab.result(job.name, f"pod-{job.name}", tried=3, finalists=1, **proven)
        if event == "two-results":
            lab.result(job.name, "pod-late", at=lab.now + timedelta(minutes=1), tried=99)
        lab.becomes(job.name, JobState.COMPLETE)


@settings(deadline=None)
@given(st.lists(EVENTS, max_size=60), st.sampled_from([PIPELINE, WHOLE, WHOLE[1:]]))
def test_whatever_happens_one_job_lives_at_a_time_and_none_when_it_is_over(
    events: list[str], pipeline: tuple[JobRole, ...]
) -> None:
    lab = Lab(pipeline)
    for event in events:
        over = lab.phase().is_terminal
        before = lab.resource.status
        happens(lab, event)
        assert len(lab.live()) <= 1  # I5
        assert not over or lab.resource.status == before
    final = lab.step()
    proposed = [action for action in final.actions if isinstance(action, Propose)]
    verified = [r for r in lab.facts.results if r.job.startswith("verify") and r.winner]
    assert not proposed or verified  # I7
    spells = lab.resource.status.device_time
    if "cleared-away" not in events:  # else nobody knows when it ended
        assert device_seconds(spells, now=lab.now) <= lab.ran_s
    lab.facts = replace(lab.facts, freezes=())
    lab.room = True
    happens(lab, "finds-room")
    for _ in range(200):
        if lab.phase().is_terminal:
            break
        lab.now += timedelta(minutes=1)
        step = lab.step()
        if any(isinstance(action, Propose) for action in step.actions):
            lab.facts = replace(lab.facts, proposal="swp-1")
        happens(lab, "completes")
    lab.step()
    assert lab.phase().is_terminal
    assert lab.live() == []
    assert len({ref.name for ref in lab.resource.status.job_refs}) == len(
        lab.resource.status.job_refs
    )
