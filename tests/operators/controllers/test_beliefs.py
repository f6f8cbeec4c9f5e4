"""From drift to experiments in a whole cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.memory import LIVE
from tests.operators.controllers.server_pods import WORLD

from retuned.stages.drift import DriftAction, DriftReport
from retuned.stages.profile import Signature, SignatureStat, WorkloadProfile
from retuned_operator.controllers.ports import OpenDrift
from retuned_operator.kube.resources import POLICIES, TARGETS
from retuned_operator.manifests import JobSettings
from retuned_operator.manifests.settings import Endpoint
from retuned_operator.schema import ExperimentPhase

OPEN = datetime(2026, 3, 3, 0, 30, tzinfo=UTC)
MINUTE_NS = 60 * 10**9


def window(start: int = 0, *, kernel: str = "rmsnorm", rows: int = 16) -> WorkloadProfile:
    signature = Signature(kernel=kernel, dims=((rows, 512),), dtypes=("float32",))
    busy = SignatureStat(
        signature=signature, launches=600_000, gpu_time_ns=30 * 10**9, median_ns=50_000
    )
    return WorkloadProfile(
        window_start_ns=start, window_ns=MINUTE_NS, observed_ns=MINUTE_NS, stats=(busy,)
    )


def drifted(id: str = "d1", windows: int = 2, **more: object) -> OpenDrift:
    report = DriftReport(
        detected=True,
        action=DriftAction.RETUNE,
        reasons=(),
        distance=0.5,
        window_start_ns=0,
        sentence="other traffic",
    )
    found = tuple(window(n * MINUTE_NS, **more) for n in range(windows))  # type: ignore[arg-type]
    return OpenDrift(id=id, report=report, windows=found)


def test_drift_becomes_an_experiment_under_the_policy_that_allows_it_and_then_a_proposal() -> None:
    cluster = Cluster(OPEN)
    hot = replace(drifted(), beside="amd-0 is throttled (thermal)")
    cluster.ledger.reports.append(hot)
    cluster.until(lambda: bool(cluster.experiments()))
    (experiment,) = cluster.experiments()
    assert experiment.spec.policy_ref.name == "prod"
    assert experiment.spec.environment == WORLD
    assert experiment.spec.drift.sentence == f"other traffic Beside it: {hot.beside}."
    (belief,) = cluster.ledger.beliefs
    assert experiment.spec.hypothesis == belief.id
    assert cluster.ledger.reports == []
    cluster.until(lambda: cluster.experiments()[0].status.phase is ExperimentPhase.SUCCEEDED)
    assert len(cluster.proposals()) == 1


MODEL = Endpoint(
    cidr="203.0.113.7/32",
    url="https://203.0.113.7/v1",
    model="m",
    prompt_usd_per_mtok=0.0,
    completion_usd_per_mtok=0.0,
)


@pytest.mark.parametrize("live", [False, True])
def test_a_model_is_asked_about_kernels_with_a_reference_and_never_about_a_servers_own(
    live: bool,
) -> None:
    cluster = Cluster(OPEN, jobs=JobSettings(image="lab", endpoint=MODEL))
    windows = tuple(a_live_window(64, n * MINUTE_NS) for n in range(2))
    told = replace(drifted(), windows=windows) if live else drifted()
    cluster.ledger.reports.append(told)
    cluster.until(lambda: bool(cluster.experiments()))
    (experiment,) = cluster.experiments()
    assert experiment.spec.search.generators == (("search",) if live else ("search", "evolve"))


def test_shapes_that_slots_counted_and_no_trace_saw_are_tried_too() -> None:
    cluster = Cluster(OPEN)
    told = drifted()
    counts = {"rmsnorm_h512": {"16": 1_200_000, "128": 90_000, "2": 3}, "unknown": {"7": 9_000}}
    cluster.ledger.reports.append(replace(told, counts=counts))
    cluster.until(lambda: bool(cluster.experiments()))
    (experiment,) = cluster.experiments()
    shapes = {shape.axes["M"]: shape.weight for shape in experiment.spec.kernel.shapes}
    assert sorted(shapes) == [16, 128], "three launches are no traffic"
    assert shapes[128] == pytest.approx(90_000 / 120)


@pytest.mark.parametrize("counts", [{"rmsnorm_h512": {"0": 99, "1x2": 99}}, {"rmsnorm_h512": {}}])
def test_counts_that_fit_no_shape_are_left_aside(counts: dict[str, dict[str, int]]) -> None:
    cluster = Cluster(OPEN)
    cluster.ledger.reports.append(replace(drifted(), counts=counts))
    cluster.until(lambda: bool(cluster.experiments()))
    assert [shape.axes for shape in cluster.experiments()[0].spec.kernel.shapes] == [{"M": 16}]


def test_two_pods_that_report_the_same_drift_lead_to_one_experiment() -> None:
    cluster = Cluster(OPEN)
    cluster.ledger.reports += [drifted("d1"), drifted("d2", windows=3)]
    cluster.until(lambda: cluster.ledger.reports == [])
    assert len(cluster.experiments()) == 1


def test_a_report_waits_for_windows_that_are_all_new_traffic() -> None:
    cluster = Cluster(OPEN)
    cluster.ledger.reports.append(drifted(windows=1))
    for _ in range(3):
        cluster.turn()
    assert cluster.experiments() == []
    assert len(cluster.ledger.reports) == 1


def test_kernels_that_nobody_knows_are_left_alone() -> None:
    cluster = Cluster(OPEN)
    cluster.ledger.reports.append(drifted(kernel="mystery"))
    cluster.until(lambda: cluster.ledger.reports == [])
    assert cluster.experiments() == []


@pytest.mark.parametrize("who", ["target", "policy"])
def test_where_only_looking_is_allowed_nothing_is_tried(who: str) -> None:
    cluster = Cluster(OPEN)
    if who == "target":
        cluster.change(TARGETS, "chat", {"spec": {"mode": "Observe"}})
    else:
        cluster.change(POLICIES, "prod", {"spec": {"mode": "ObserveOnly"}})
    cluster.ledger.reports.append(drifted())
    for _ in range(4):
        cluster.turn()
    assert cluster.experiments() == []


def test_pods_that_do_not_say_what_they_run_on_lead_to_no_experiment_yet() -> None:
    cluster = Cluster(OPEN)
    for each in cluster.servers.values():
        each.says = "silent"
    cluster.ledger.reports.append(drifted())
    for _ in range(3):
        cluster.turn()
    assert cluster.experiments() == []
    for each in cluster.servers.values():
        each.says = "keep"
    cluster.until(lambda: len(cluster.experiments()) == 1)


def a_live_window(rows: int, start: int) -> WorkloadProfile:
    """Return a window whose trace shows no more of a launch than its name and grid."""
    signature = Signature(kernel="their_kernel", blocks=(rows, 1, 1))
    busy = SignatureStat(
        signature=signature, launches=600_000, gpu_time_ns=30 * 10**9, median_ns=50_000
    )
    return WorkloadProfile(
        window_start_ns=start, window_ns=MINUTE_NS, observed_ns=MINUTE_NS, stats=(busy,)
    )


def test_drift_of_a_live_kernel_becomes_an_experiment_at_its_live_shapes() -> None:
    cluster = Cluster(OPEN)
    windows = tuple(a_live_window(64, n * MINUTE_NS) for n in range(2))
    cluster.ledger.reports.append(replace(drifted(), windows=windows))
    cluster.until(lambda: bool(cluster.experiments()))
    (experiment,) = cluster.experiments()
    assert experiment.spec.kernel.name == LIVE
    assert [shape.axes for shape in experiment.spec.kernel.shapes] == [{"rows": 64}]
    assert experiment.spec.kernel.shapes[0].weight == pytest.approx(1_200_000 / 120)
