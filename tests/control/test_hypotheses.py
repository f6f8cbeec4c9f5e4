"""What a window spends on each definition: the same for one machine and for a cluster."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from retuned.contract import Workload
from retuned.control.hypotheses import KnownKernels, shape_costs
from retuned.stages.profile import WorkloadProfile, fold
from retuned.stages.profile.records import ProfileSettings, Signature, SignatureStat
from retuned.stages.trace import LaunchRecord, ShapeSource

LAUNCH_NS = 5_000


def window(*kernels: tuple[str, int, int], seconds: float = 2.0) -> WorkloadProfile:
    """Fold launches, each kernel's as (name, launches, duration in ns), into a window."""
    launches = [
        LaunchRecord(
            kernel=kernel, start_ns=n, duration_ns=duration_ns, shape_source=ShapeSource.NONE
        )
        for kernel, count, duration_ns in kernels
        for n in range(count)
    ]
    length_ns = round(seconds * 1e9)
    return fold(
        launches,
        window_start_ns=0,
        window_ns=length_ns,
        observed_ns=length_ns,
        settings=ProfileSettings(),
    )


def recognise(signature: Signature) -> tuple[str, dict[str, int]] | None:
    return {"norm": ("rmsnorm", {"M": 8})}.get(signature.kernel)


def live_shares(stat: SignatureStat) -> Iterable[tuple[Workload, float]]:
    if stat.signature.kernel != "live":
        return ()
    shapes = ((4, 0.25), (16, 0.75))
    return [
        (Workload(definition="lifted", axes={"n": n}, weight=stat.launches * part), part)
        for n, part in shapes
    ]


def known(**changes: object) -> KnownKernels:
    fields = {"recognise": recognise, "live_shares": live_shares, "serves": lambda _: True}
    return KnownKernels(**(fields | changes))  # type: ignore[arg-type]


def test_a_window_is_bound_to_the_catalogue_first_and_then_to_live_kernels() -> None:
    profile = window(("norm", 10, 1_000), ("live", 4, 2_000), ("other", 5, 9_000))
    found, total_ns = shape_costs(profile, counts={}, kernels=known(), launch_ns=LAUNCH_NS)
    assert found.keys() == {"rmsnorm", "lifted"}
    (norm,) = found["rmsnorm"]
    assert (norm.workload.axes, norm.gpu_time_ns) == ({"M": 8}, 10_000)
    assert [cost.gpu_time_ns for cost in found["lifted"]] == [2_000, 6_000]
    assert total_ns == profile.gpu_time_ns == 63_000, "time of unknown kernels counts, too"


def test_weights_are_launches_per_second_of_the_observed_time() -> None:
    found, _ = shape_costs(
        window(("norm", 10, 1_000), seconds=2.0), counts={}, kernels=known(), launch_ns=LAUNCH_NS
    )
    assert found["rmsnorm"][0].workload.weight == pytest.approx(5.0)


def test_shapes_that_the_incumbent_does_not_serve_are_left_out() -> None:
    kernels = known(serves=lambda workload: workload.axes.get("n") != 4)
    found, total_ns = shape_costs(
        window(("live", 4, 2_000)), counts={}, kernels=kernels, launch_ns=LAUNCH_NS
    )
    assert [cost.workload.axes for cost in found["lifted"]] == [{"n": 16}]
    assert total_ns == 8_000


def test_a_counted_shape_of_no_trace_is_added_with_an_estimated_time() -> None:
    found, total_ns = shape_costs(
        window(("norm", 100, 1_000)),
        counts={"rmsnorm": {"8": 100, "64": 50}, "unrelated": {"1": 7}},
        kernels=known(floor_ns=lambda workload: 100 * workload.axes["M"]),
        launch_ns=LAUNCH_NS,
    )
    by_shape = {cost.workload.axes["M"]: cost for cost in found["rmsnorm"]}
    assert by_shape.keys() == {8, 64}
    assert by_shape[64].median_ns > by_shape[8].median_ns, "it has a higher floor"
    assert total_ns == sum(cost.gpu_time_ns for cost in found["rmsnorm"])
    assert found.keys() == {"rmsnorm"}
