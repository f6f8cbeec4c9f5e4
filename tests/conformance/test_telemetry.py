"""One suite over Prometheus and the fake; then what each does with what no catalogue has."""

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
from tests.expect import raises_code, raises_naming

from retuned.errors import TemporaryError, UsageError
from retuned.telemetry import CATALOGUE, Exporter, Keeper, MetricType, exported_by, metric
from retuned.telemetry.prometheus import FakeTelemetry, PrometheusTelemetry

Value = Callable[..., float]


@pytest.fixture(params=["fake", "prometheus"])
def both(request: pytest.FixtureRequest) -> tuple[FakeTelemetry | PrometheusTelemetry, Value]:
    if request.param == "prometheus":
        real = PrometheusTelemetry(Exporter.DAEMON)
        return real, lambda name, **labels: samples(real).get(
            (name, frozenset(labels.items())), 0.0
        )
    fake = FakeTelemetry(exporter=Exporter.DAEMON)

    def value(name: str, **labels: str) -> float:
        labelled = frozenset(labels.items())
        rows = fake.tables.get(name, {})
        return fake.counters.get(
            (name, labelled), fake.gauges.get((name, labelled), rows.get(labelled, 0.0))
        )

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
    telemetry.count("retuned_swaps_total", kind="swap")
    telemetry.count("retuned_swaps_total", 2.5, kind="swap")
    telemetry.count("retuned_swaps_total", kind="rollback")
    assert value("retuned_swaps_total", kind="swap") == 3.5
    assert value("retuned_swaps_total", kind="rollback") == 1.0


def test_gauges_keep_the_last_value(both: Both) -> None:
    telemetry, value = both
    telemetry.gauge("retuned_drift_cusum", 0.5)
    telemetry.gauge("retuned_drift_cusum", 0.25)
    assert value("retuned_drift_cusum") == 0.25


def test_a_table_shows_only_the_rows_that_it_was_last_given(both: Both) -> None:
    telemetry, value = both
    name = "retuned_freeze_since_timestamp_seconds"
    telemetry.table(name, [({"freeze": "a"}, 7.0), ({"freeze": "b"}, 8.0)])
    assert (value(name, freeze="a"), value(name, freeze="b")) == (7.0, 8.0)
    telemetry.table(name, [({"freeze": "b"}, 9.0)])
    assert (value(name, freeze="a"), value(name, freeze="b")) == (0.0, 9.0)
    telemetry.table(name, [])
    assert value(name, freeze="b") == 0.0


def test_names_of_strangers_are_cleaned_and_only_so_many_are_told_apart(both: Both) -> None:
    telemetry, value = both
    name = "retuned_kernel_gpu_time_ratio"
    telemetry.table(name, [({"kernel": 'a\n"} 7\x1b' + "x" * 500}, 1.0)])
    assert value(name, kernel='a?"} 7?' + "x" * 121) == 1.0


def test_reasons_that_a_server_makes_up_count_together(both: Both) -> None:
    telemetry, value = both
    telemetry.count("retuned_rollbacks_total", reason="shadow-mismatch")
    for n in range(1_000):
        telemetry.count("retuned_rollbacks_total", reason=f"made up {n}")
    assert value("retuned_rollbacks_total", reason="shadow-mismatch") == 1.0
    assert value("retuned_rollbacks_total", reason="(other)") == 1_000.0


def test_open_labels_are_bounded_by_what_came_first() -> None:
    real, fake = PrometheusTelemetry(Exporter.SIDECAR), FakeTelemetry()
    most = metric("retuned_orders_total").labels[1].most
    for telemetry in (real, fake):
        for n in range(most + 50):
            telemetry.count("retuned_orders_total", outcome="refused", reason=f"r{n}")
    found = samples(real)
    name = "retuned_orders_total"
    assert found[name, frozenset({"outcome": "refused", "reason": "r0"}.items())] == 1.0
    assert found[name, frozenset({"outcome": "refused", "reason": "(other)"}.items())] == 50.0
    assert fake.total(name, reason="(other)") == 50.0


Call = Callable[[FakeTelemetry | PrometheusTelemetry], None]
FAULTS: dict[str, tuple[str, Call]] = {
    "no such metric": ("name", lambda t: t.count("retuned_made_up_total")),
    "another kind": ("name", lambda t: t.gauge("retuned_swaps_total", 1.0)),
    "another program": ("name", lambda t: t.gauge("retuned_clock_skew_seconds", 1.0)),
    "a table by the piece": ("name", lambda t: t.gauge("retuned_proposals", 1.0, phase="pending")),
    "one at a time as a table": ("name", lambda t: t.table("retuned_drift_cusum", [({}, 1.0)])),
    "kept by its owner": ("name", lambda t: t.count("retuned_process_cpu_seconds_total", 1.0)),
    "no labels": ("labels", lambda t: t.count("retuned_swaps_total")),
    "another label": ("labels", lambda t: t.count("retuned_swaps_total", gpu="b")),
    "no such value": ("value", lambda t: t.count("retuned_swaps_total", kind="kernel-7")),
    "no such value in a row": (
        "value",
        lambda t: t.table("retuned_proposals", [({"phase": "made-up"}, 1.0)]),
    ),
    "too many rows": (
        "too-many",
        lambda t: t.table(
            "retuned_kernel_gpu_time_ratio", [({"kernel": f"k{n}"}, 0.1) for n in range(22)]
        ),
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_what_the_catalogue_does_not_have_is_an_error_in_tests_only(what: str) -> None:
    fault, call = FAULTS[what]
    with raises_naming(ValueError, "retuned_"):
        call(FakeTelemetry(exporter=Exporter.DAEMON))
    real = PrometheusTelemetry(Exporter.DAEMON)
    before = samples(real)
    call(real)
    after = samples(real)
    refused = ("retuned_metrics_refused_total", frozenset({"reason": fault}.items()))
    assert after[refused] == before[refused] + 1.0
    ours = {key: value for key, value in after.items() if "_process_" not in key[0]}
    new = {key for key in ours if ours[key] != before.get(key)}
    rows = {key for key in new if key[0] == "retuned_kernel_gpu_time_ratio"}
    assert new - rows == {refused}
    assert len(rows) == (21 if fault == "too-many" else 0)


def test_a_counter_that_would_fall_is_an_error_in_tests_only() -> None:
    with raises_naming(ValueError, "retuned_windows_total", "counter"):
        FakeTelemetry().count("retuned_windows_total", -1.0)
    real = PrometheusTelemetry(Exporter.DAEMON)
    real.count("retuned_windows_total", -1.0)
    assert samples(real)["retuned_windows_total", frozenset()] == 0.0


def test_nothing_wrong_is_said_twice_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    real = PrometheusTelemetry(Exporter.DAEMON)
    for _ in range(3):
        real.count("retuned_made_up_total")
    assert sum("retuned_made_up_total" in each.message for each in caplog.records) == 1


def test_the_first_event_of_a_counter_is_a_rise_from_nothing() -> None:
    """A series that begins with its first event rises from nowhere: no alert would see it."""
    for exporter in Exporter:
        found = samples(PrometheusTelemetry(exporter))
        for each in exported_by(exporter):
            if (
                each.kind is MetricType.COUNTER
                and each.keeper is Keeper.TELEMETRY
                and each.is_closed
            ):
                for labels in each.series():
                    assert found[each.name, frozenset(labels.items())] == 0.0


def test_all_that_is_shown_is_in_the_catalogue() -> None:
    for exporter in Exporter:
        text = PrometheusTelemetry(exporter).text()
        for family in text_string_to_metric_families(text):
            name = family.name + ("_total" if family.type == "counter" else "")
            assert exporter in CATALOGUE[name].exporters
            assert CATALOGUE[name].kind == family.type


def test_histograms_are_exposed_with_their_sum() -> None:
    real = PrometheusTelemetry(Exporter.DAEMON)
    real.observe("retuned_swap_flip_seconds", 0.5)
    real.observe("retuned_swap_flip_seconds", 1.5)
    found = samples(real)
    assert found["retuned_swap_flip_seconds_sum", frozenset()] == 2.0
    assert found["retuned_swap_flip_seconds_count", frozenset()] == 2.0


def test_the_fake_remembers_what_was_observed_and_totals_over_labels() -> None:
    fake = FakeTelemetry()
    fake.observe("retuned_swap_flip_seconds", 0.5)
    fake.observe("retuned_swap_flip_seconds", 1.5)
    assert list(fake.observed.values()) == [[0.5, 1.5]]
    for outcome, reason in (("done", ""), ("refused", "x"), ("refused", "y")):
        fake.count("retuned_orders_total", outcome=outcome, reason=reason)
    assert fake.total("retuned_orders_total", outcome="refused") == 2.0
    assert fake.total("retuned_orders_total") == 3.0


def test_metrics_are_served_until_stopped_and_a_taken_port_is_busy() -> None:
    real = PrometheusTelemetry(Exporter.DAEMON)
    real.count("retuned_swaps_total", kind="swap")
    port, stop = served(real)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert b'retuned_swaps_total{kind="swap"} 1.0' in answer.read()
        assert listening(port)
        with raises_code(TemporaryError, "port-busy", "metrics_port") as caught:
            PrometheusTelemetry(Exporter.DAEMON).serve("127.0.0.1", port=port)
        assert (caught.value.exit_code, caught.value.code) == (5, "port-busy")
        with raises_naming(UsageError, "metrics_port"):  # no address of this machine
            PrometheusTelemetry(Exporter.DAEMON).serve("192.0.2.1", port=port)
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
