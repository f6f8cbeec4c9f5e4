"""Metrics of what is seen: traces, windows, drift, beliefs."""

from __future__ import annotations

from retuned.metrics.labels import (
    BESIDE,
    DAEMON,
    HYPOTHESIS_PHASES,
    JUDGES,
    KERNEL,
    SIDECAR,
    closed,
    words,
)
from retuned.metrics.making import Book
from retuned.metrics.records import Metric, Stage, Unit
from retuned.stages.drift import DriftAction, DriftCode
from retuned.stages.trace import Skip

_TRACE = Book(Stage.TRACE, BESIDE)
_PROFILE = Book(Stage.PROFILE, BESIDE)
_DRIFT = Book(Stage.DRIFT, BESIDE)
_BELIEF = Book(Stage.HYPOTHESIS, DAEMON)

OBSERVED: tuple[Metric, ...] = (
    _TRACE.counter(
        "retuned_trace_files_total",
        "Trace files, by whether they could be read.",
        closed("outcome", ("read", "refused")),
    ),
    _TRACE.counter(
        "retuned_trace_bytes_total",
        "Size of the trace files that were read, as they lie on disk.",
        unit=Unit.BYTES,
    ),
    _TRACE.counter("retuned_launches_total", "Launches that were read from traces."),
    _TRACE.counter(
        "retuned_launches_skipped_total",
        "Rows of traces that were left out, by why.",
        closed("reason", words(Skip), strangers=True),
    ),
    _TRACE.gauge(
        "retuned_trace_lag_seconds",
        "Age of the newest trace file when it was read.",
        unit=Unit.SECONDS,
    ),
    _TRACE.gauge(
        "retuned_trace_last_read_timestamp_seconds",
        "When a trace file was last read; the program's start before the first.",
        unit=Unit.TIMESTAMP,
    ),
    _TRACE.gauge(
        "retuned_clock_skew_seconds",
        "How far this pod's clock is ahead of the operator's.",
        unit=Unit.SECONDS,
        by=SIDECAR,
    ),
    _PROFILE.counter("retuned_windows_total", "Windows of the workload that were closed."),
    _PROFILE.gauge("retuned_window_launches", "Launches in the last window."),
    _PROFILE.gauge("retuned_window_signatures", "Signatures in the last window."),
    _PROFILE.gauge(
        "retuned_window_gpu_seconds",
        "Time that the launches of the last window took on the device.",
        unit=Unit.SECONDS,
    ),
    _PROFILE.gauge(
        "retuned_window_shapeless_ratio",
        "Share of that time in launches whose shape nobody knows.",
        unit=Unit.RATIO,
    ),
    _PROFILE.table(
        "retuned_kernel_gpu_time_ratio",
        "Share of the last window's device time, for the kernels that took most; the rest is "
        "(other).",
        KERNEL,
        unit=Unit.RATIO,
        most_rows=21,
    ),
    _PROFILE.table(
        "retuned_kernel_launch_seconds",
        "Mean time of a launch in the last window, for the same kernels.",
        KERNEL,
        unit=Unit.SECONDS,
        most_rows=21,
    ),
    _DRIFT.gauge(
        "retuned_drift_distance_bits",
        "Distance of the last window from the nearest known mix: Jensen-Shannon, 0 to 1.",
        unit=Unit.BITS,
    ),
    _DRIFT.gauge(
        "retuned_drift_cusum",
        "What that distance has added up to, in units of its own noise; some 7 or more of "
        "it are news.",
    ),
    _DRIFT.gauge(
        "retuned_drift_uncovered_ratio",
        "Share of device time at shapes that nothing was tuned for.",
        unit=Unit.RATIO,
    ),
    _DRIFT.gauge(
        "retuned_drift_expected_saving_ratio",
        "Share of device time that the last report believes a retune would save.",
        unit=Unit.RATIO,
    ),
    _DRIFT.gauge(
        "retuned_drift_last_judged_timestamp_seconds",
        "When a window was last judged.",
        unit=Unit.TIMESTAMP,
    ),
    _DRIFT.table(
        "retuned_drift_standing",
        "1 for what the last judged window asks for.",
        closed("action", words(DriftAction)),
    ),
    _DRIFT.counter(
        "retuned_drift_reports_total",
        "Judged windows, by what they ask for.",
        closed("action", words(DriftAction)),
    ),
    _DRIFT.counter(
        "retuned_drift_reasons_total",
        "What windows with news named, by code.",
        closed("code", words(DriftCode)),
    ),
    _BELIEF.counter(
        "retuned_hypotheses_total", "Beliefs that an experiment could test.", by=JUDGES
    ),
    _BELIEF.table(
        "retuned_hypotheses",
        "Beliefs there are, by how far they are.",
        closed("phase", HYPOTHESIS_PHASES),
    ),
)
