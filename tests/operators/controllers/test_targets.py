"""What a target says of its pods: who reports, and why that is not enough where it is not."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.operators.examples import NOW, a_target

from retuned.api.agent import Hello, PodRef, ProcessEnvironment
from retuned_operator.agent_api.ports import PodRecord
from retuned_operator.agent_api.reports import PodReports
from retuned_operator.controllers.objects import ObservedPod
from retuned_operator.controllers.target import observed
from retuned_operator.schema import Condition, TuningTarget, read

ONE = ProcessEnvironment(process="1", device="gfx942")
OTHER = ProcessEnvironment(process="2", device="gfx950")


def heard(name: str, *runs_on: ProcessEnvironment, minutes: int = 0) -> PodReports:
    pod = PodRecord(namespace="serving", name=name, uid=name, target="serving/chat")
    ref = PodRef(namespace="serving", name=name, uid=name)
    at = NOW - timedelta(minutes=minutes)
    hello = Hello(pod=ref, version=1, release="1", at=at, environments=runs_on)
    return PodReports(pod=pod, heard_at=at, hello=hello)


def ready(*said: PodReports | None) -> Condition:
    pods = [ObservedPod(name=f"p{n}", uid=f"p{n}", ready=True) for n in range(len(said))]
    status = observed(read(TuningTarget, a_target()), pods, said, now=NOW)
    (condition,) = status.conditions
    assert (status.environment is not None) == (condition.status.value == "True")
    return condition


def test_a_target_whose_pods_run_on_the_same_is_ready() -> None:
    condition = ready(heard("p0", ONE), heard("p1", ONE))
    assert (condition.reason, condition.message) == ("Reporting", "2 of 2 pods report")


@pytest.mark.parametrize(
    ("said", "reason", "message"),
    [
        ((), "NoPods", "no pod with a sidecar"),
        ((None,), "NotReporting", "0 of 1 pods report"),
        ((heard("p0", ONE, minutes=5),), "NotReporting", "0 of 1 pods report"),
        ((heard("p0"),), "ServerSilent", "1 of 1 pods report; "),
        ((heard("p0", ONE), heard("p1")), "ServerSilent", "joined in p1."),
        ((heard("p0", ONE, OTHER),), "EnvironmentsDiffer", "processes of one server"),
        ((heard("p0", ONE), heard("p1", OTHER)), "EnvironmentsDiffer", "run on different things"),
    ],
)
def test_a_target_that_is_not_ready_says_what_is_missing(
    said: tuple[PodReports | None, ...], reason: str, message: str
) -> None:
    condition = ready(*said)
    assert condition.reason == reason
    assert message in condition.message
