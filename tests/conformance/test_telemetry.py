"""One suite over Prometheus and the fake; then what only Prometheus has."""

from __future__ import annotations

import os
import socket
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from retuned.adapters.telemetry import MAX_LABEL_SETS, FakeTelemetry, PrometheusTelemetry
from retuned.errors import TemporaryError, UsageError

Value = Callable[..., float]


@pytest.fixture(params=["fake", "prometheus"])
def both(request: pytest.FixtureRequest) -> tuple[FakeTelemetry | PrometheusTelemetry, Value]:
    if request.param == "prometheus":
        real = PrometheusTelemetry()
        return real, lambda name, **labels: samples(real).get(
            (name, frozenset(labels.items())), 0.0
        )
    fake = FakeTelemetry()

    def value(name: str, **labels: str) -> float:
        key = (name, frozenset(labels.items()))
        return fake.counters.get(key, fake.gauges.get(key, 0.0))

    return fake, value


def samples(real: PrometheusTelemetry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(real.text())
        for sample in family.samples
    }


Both = tuple[FakeTelemetry | PrometheusTelemetry, Value]


def test_counters_add_up_by_labels(both: Both) -> None:
    telemetry, value = both
    telemetry.count("retuned_swaps_total", kernel="a")
    telemetry.count("retuned_swaps_total", 2.5, kernel="a")
    telemetry.count("retuned_swaps_total", kernel="b")
    assert value("retuned_swaps_total", kernel="a") == 3.5
    assert value("retuned_swaps_total", kernel="b") == 1.0


def test_gauges_keep_the_last_value(both: Both) -> None:
    telemetry, value = both
    telemetry.gauge("retuned_drift_distance_ratio", 0.5)
    telemetry.gauge("retuned_drift_distance_ratio", 0.25)
    assert value("retuned_drift_distance_ratio") == 0.25


@pytest.mark.parametrize("name", ["swaps_total", "retuned_Swaps_total", "retuned_swaps", ""])
def test_a_counter_with_a_wrong_name_is_refused(both: Both, name: str) -> None:
    with pytest.raises(ValueError, match="retuned_"):
        both[0].count(name)


def test_a_metric_is_of_one_kind_with_one_set_of_labels(both: Both) -> None:
    telemetry, _ = both
    telemetry.count("retuned_swaps_total", kernel="a")
    with pytest.raises(ValueError, match="labels"):
        telemetry.count("retuned_swaps_total", gpu="b")
    telemetry.gauge("retuned_age_seconds", 1.0)
    with pytest.raises(ValueError, match="is a gauge"):
        telemetry.observe("retuned_age_seconds", 1.0)
    with pytest.raises(ValueError, match="never falls"):
        telemetry.count("retuned_swaps_total", -1.0, kernel="a")


def test_labels_from_strangers_are_cleaned_and_capped(both: Both) -> None:
    telemetry, value = both
    telemetry.count("retuned_launches_total", kernel='a\n"} 7\x1b' + "x" * 500)
    assert value("retuned_launches_total", kernel='a?"} 7?' + "x" * 121) == 1.0
    for n in range(MAX_LABEL_SETS + 50):
        telemetry.count("retuned_launches_total", kernel=f"k{n}")
    assert value("retuned_launches_total", kernel="k0") == 1.0
    assert value("retuned_launches_total", kernel="(other)") == 51.0


def test_histograms_are_exposed_with_their_sum() -> None:
    real = PrometheusTelemetry()
    real.observe("retuned_swap_seconds", 0.5)
    real.observe("retuned_swap_seconds", 1.5)
    found = samples(real)
    assert found["retuned_swap_seconds_sum", frozenset()] == 2.0
    assert found["retuned_swap_seconds_count", frozenset()] == 2.0


def test_the_fake_remembers_what_was_observed_and_totals_over_labels() -> None:
    fake = FakeTelemetry()
    fake.observe("retuned_swap_seconds", 0.5)
    fake.observe("retuned_swap_seconds", 1.5)
    assert list(fake.observed.values()) == [[0.5, 1.5]]
    for kernel, gpu in (("a", "x"), ("a", "y"), ("b", "x")):
        fake.count("retuned_swaps_total", kernel=kernel, gpu=gpu)
    assert fake.total("retuned_swaps_total", kernel="a") == 2.0
    assert fake.total("retuned_swaps_total") == 3.0


def test_metrics_are_served_until_stopped_and_a_taken_port_is_busy() -> None:
    real = PrometheusTelemetry()
    real.count("retuned_swaps_total")
    port, stop = served(real)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert b"retuned_swaps_total 1.0" in answer.read()
        assert listening(port)
        with pytest.raises(TemporaryError, match="metrics_port") as caught:
            PrometheusTelemetry().serve("127.0.0.1", port=port)
        assert (caught.value.exit_code, caught.value.code) == (5, "port-busy")
        with pytest.raises(UsageError, match="metrics_port"):  # no address of this machine
            PrometheusTelemetry().serve("192.0.2.1", port=port)
    finally:
        stop()
    deadline = time.monotonic() + 30.0
    while listening(port):
        assert time.monotonic() < deadline, "it still listens"
        time.sleep(0.01)


def listening(port: int) -> bool:
    """Whether this process has the port, which others may take as soon as it has not."""
    ours = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            ours.add(os.readlink(f"/proc/self/fd/{name}"))
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    wanted = f"0100007F:{port:04X}"
    return any(row[1] == wanted and f"socket:[{row[9]}]" in ours for row in rows)


def served(telemetry: PrometheusTelemetry) -> tuple[int, Callable[[], None]]:
    """Serve on a port that was free a moment ago; another one where somebody was faster."""
    for _ in range(50):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        try:
            return port, telemetry.serve("127.0.0.1", port=port)
        except TemporaryError:
            continue
    raise AssertionError("somebody takes every port")
