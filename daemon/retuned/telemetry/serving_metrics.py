"""Metrics of observation: traces, windows, drift, hypotheses.

Metrics of the programs themselves, and of the devices beside them.
"""

from __future__ import annotations

from retuned.stages.drift import DriftAction, DriftCode
from retuned.stages.trace import Skip
from retuned.telemetry.labels import (
    ALL,
    BESIDE,
    DAEMON,
    GPU,
    HYPOTHESIS_PHASES,
    JUDGES,
    KERNEL,
    NAMESPACE,
    OPERATOR,
    SIDECAR,
    TARGET,
    closed,
    words,
)
from retuned.telemetry.metric_types import Exporter, Keeper, Label, Metric, MetricType, Stage, Unit
from retuned.telemetry.metrics_table import STEPS, MetricSection

_TRACE = MetricSection(Stage.TRACE, BESIDE)
_PROFILE = MetricSection(Stage.PROFILE, BESIDE)
_DRIFT = MetricSection(Stage.DRIFT, BESIDE)
_BELIEF = MetricSection(Stage.HYPOTHESIS, DAEMON)

OBSERVED: tuple[Metric, ...] = (
    _TRACE.counter(
        "retuned_trace_files_total",
        "Trace files, by whether they were readable.",
        closed("outcome", ("read", "refused")),
    ),
    _TRACE.counter(
        "retuned_trace_bytes_total",
        "Size on disk of the trace files that were read.",
        unit=Unit.BYTES,
    ),
    _TRACE.counter("retuned_launches_total", "Launches that were read from traces."),
    _TRACE.counter(
        "retuned_launches_skipped_total",
        "Rows of traces that were skipped, by reason.",
        closed("reason", words(Skip), allows_other=True),
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
        "Share of that time in launches of unknown shape.",
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
        "Cumulative sum (CUSUM) of that distance, in units of its noise; from about 7 it is drift.",
    ),
    _DRIFT.gauge(
        "retuned_drift_uncovered_ratio",
        "Share of device time at shapes that no variant was tuned for.",
        unit=Unit.RATIO,
    ),
    _DRIFT.gauge(
        "retuned_drift_expected_saving_ratio",
        "Share of device time that a retune would save, as estimated in the last report.",
        unit=Unit.RATIO,
    ),
    _DRIFT.gauge(
        "retuned_drift_last_judged_timestamp_seconds",
        "When a window was last judged.",
        unit=Unit.TIMESTAMP,
    ),
    _DRIFT.table(
        "retuned_drift_standing",
        "1 for the action of the last judged window.",
        closed("action", words(DriftAction)),
    ),
    _DRIFT.counter(
        "retuned_drift_reports_total",
        "Judged windows, by action.",
        closed("action", words(DriftAction)),
    ),
    _DRIFT.counter(
        "retuned_drift_reasons_total",
        "Reasons that judged windows give for drift, by code.",
        closed("code", words(DriftCode)),
    ),
    _BELIEF.counter(
        "retuned_hypotheses_total", "Hypotheses that an experiment could test.", by=JUDGES
    ),
    _BELIEF.table(
        "retuned_hypotheses",
        "Stored hypotheses, by phase.",
        closed("phase", HYPOTHESIS_PHASES),
    ),
)

_COST = MetricSection(Stage.OVERHEAD, BESIDE)
_OPERATOR = MetricSection(Stage.OPERATOR, OPERATOR)
_GPU = MetricSection(Stage.GPU, BESIDE)
_STEP = closed(
    "step",
    (
        "observe", "experiment", "steer", "measure", "show", "stop_measuring", "watch", "alarms",
        "reconcile", "deliver", "ingest", "windows",
        "drift", "queue", "prune", "carry", "tell", "listen", "gpus", "lift", "tunables",
    ),
)  # fmt: skip
_CONTROLLER = Label(name="controller", most=32)
_RESOURCE = Label(name="resource", most=32)
_OWN = Keeper.OWN

RUNNING: tuple[Metric, ...] = (
    _COST.counter(
        "retuned_step_errors_total",
        "Steps that failed, by whether the error is an expected one; any other is a bug.",
        _STEP,
        closed("expected", ("true", "false")),
    ),
    _COST.histogram(
        "retuned_step_duration_seconds",
        "Time that a step of the loop took.",
        _STEP,
        buckets=STEPS,
    ),
    _COST.counter(
        "retuned_metrics_refused_total",
        "Values that were dropped because the catalogue does not have them, by reason.",
        closed("reason", ("name", "labels", "value", "too-many")),
        by=ALL,
    ),
    _COST.gauge(
        "retuned_build_info",
        "Always 1; the labels name the program and its version.",
        closed("program", words(Exporter)),
        Label(name="version", most=4),
        by=ALL,
    ),
    _COST.gauge(
        "retuned_spool_reports", "Reports that wait until the operator answers.", by=SIDECAR
    ),
    _COST.counter(
        "retuned_process_cpu_seconds_total",
        "CPU time of the program.",
        unit=Unit.SECONDS,
        by=ALL,
        keeper=_OWN,
    ),
    _COST.gauge(
        "retuned_process_resident_memory_bytes",
        "Memory of the program that is in use.",
        unit=Unit.BYTES,
        by=ALL,
        keeper=_OWN,
    ),
    Metric(
        name="retuned_process_virtual_memory_bytes",
        kind=MetricType.GAUGE,
        unit=Unit.BYTES,
        stage=Stage.OVERHEAD,
        meaning="Address space of the program.",
        exporters=ALL,
        keeper=_OWN,
    ),
    _COST.gauge(
        "retuned_process_start_time_seconds",
        "When the program was started, seconds since 1970.",
        unit=Unit.SECONDS,
        by=ALL,
        keeper=_OWN,
    ),
    _COST.gauge("retuned_process_open_fds", "Open files of the program.", by=ALL, keeper=_OWN),
    _COST.gauge(
        "retuned_process_max_fds", "Most files that the program may open.", by=ALL, keeper=_OWN
    ),
    _OPERATOR.histogram(
        "retuned_operator_reconcile_duration_seconds",
        "Time of one reconcile of an object, by result.",
        _CONTROLLER,
        Label(name="result", most=8),
        buckets=STEPS,
        keeper=_OWN,
    ),
    _OPERATOR.histogram(
        "retuned_operator_queue_wait_seconds",
        "Time that an object waited for its reconcile.",
        _CONTROLLER,
        buckets=STEPS,
        keeper=_OWN,
    ),
    _OPERATOR.gauge(
        "retuned_operator_queue_depth",
        "Objects that wait for a reconcile.",
        _CONTROLLER,
        keeper=_OWN,
    ),
    _OPERATOR.counter(
        "retuned_operator_watch_restarts_total",
        "Watches that were started again, by reason.",
        _RESOURCE,
        Label(name="reason", most=32),
        keeper=_OWN,
    ),
    _OPERATOR.gauge(
        "retuned_operator_watch_silence_seconds",
        "Time since the last data from the API server about a kind.",
        _RESOURCE,
        unit=Unit.SECONDS,
        keeper=_OWN,
    ),
    _OPERATOR.gauge(
        "retuned_operator_leading",
        "1 while this operator leads, 0 while it waits.",
        keeper=_OWN,
    ),
    _OPERATOR.table(
        "retuned_target_pods",
        "Server pods with a sidecar, by whether it reports.",
        NAMESPACE,
        TARGET,
        closed("state", ("reporting", "silent")),
        most_rows=2_000,
    ),
    _OPERATOR.table(
        "retuned_target_ready",
        "1 for a target whose pods report and run in one environment.",
        NAMESPACE,
        TARGET,
        most_rows=1_000,
    ),
    _OPERATOR.table(
        "retuned_definition_files",
        "Definition files that the operator read at its start, by whether it uses them.",
        closed("state", ("known", "left-out")),
    ),
)

GPUS: tuple[Metric, ...] = (
    _GPU.table(
        "retuned_gpu_clock_hertz",
        "Current clock of a device.",
        GPU,
        closed("clock", ("core", "memory")),
        unit=Unit.HERTZ,
        most_rows=128,
    ),
    _GPU.table(
        "retuned_gpu_clock_ratio",
        "Current core clock over the highest clock of the device.",
        GPU,
        unit=Unit.RATIO,
    ),
    _GPU.table("retuned_gpu_power_watts", "Power that a device draws.", GPU, unit=Unit.WATTS),
    _GPU.table("retuned_gpu_power_limit_watts", "Power limit of a device.", GPU, unit=Unit.WATTS),
    _GPU.table(
        "retuned_gpu_temperature_celsius", "Temperature of a device.", GPU, unit=Unit.CELSIUS
    ),
    _GPU.table(
        "retuned_gpu_throttled",
        "1 for each reason that limits the clock of a device.",
        GPU,
        closed("reason", ("power", "thermal", "hardware", "software", "other")),
        most_rows=320,
    ),
    _GPU.table(
        "retuned_gpu_busy_ratio",
        "Share of time in which a device was busy.",
        GPU,
        unit=Unit.RATIO,
    ),
    _GPU.table("retuned_gpu_memory_used_bytes", "Memory in use on a device.", GPU, unit=Unit.BYTES),
    _GPU.table(
        "retuned_gpu_processes",
        "Processes on a device, by owner.",
        GPU,
        closed("whose", ("server", "lab", "others"), "`others` are co-tenants"),
        most_rows=192,
    ),
)
