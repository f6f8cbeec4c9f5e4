"""Metrics of the programs themselves, and of the devices beside them."""

from __future__ import annotations

from retuned.metrics.labels import (
    ALL,
    BESIDE,
    GPU,
    NAMESPACE,
    OPERATOR,
    SIDECAR,
    TARGET,
    closed,
    words,
)
from retuned.metrics.making import STEPS, Book
from retuned.metrics.records import Exporter, Keeper, Label, Metric, MetricType, Stage, Unit

_COST = Book(Stage.OVERHEAD, BESIDE)
_OPERATOR = Book(Stage.OPERATOR, OPERATOR)
_GPU = Book(Stage.GPU, BESIDE)
_STEP = closed(
    "step",
    (
        "observe", "experiment", "steer", "measure", "show", "stop_measuring", "requests",
        "freezes", "delivered", "watch", "gate", "hold", "start", "drive", "ingest", "windows",
        "drift", "queue", "prune", "carry", "tell", "listen", "gpus", "lift",
    ),
)  # fmt: skip
_CONTROLLER = Label(name="controller", most=32)
_RESOURCE = Label(name="resource", most=32)
_OWN = Keeper.OWN

RUNNING: tuple[Metric, ...] = (
    _COST.counter(
        "retuned_step_errors_total",
        "Steps that failed, by whether that was foreseen; what was not is a bug.",
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
        "Numbers that were thrown away because the catalogue does not have them, by why.",
        closed("reason", ("name", "labels", "value", "too-many")),
        by=ALL,
    ),
    _COST.gauge(
        "retuned_build_info",
        "1; which program this is, and its version.",
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
    _COST.gauge("retuned_process_max_fds", "Most files it may open.", by=ALL, keeper=_OWN),
    _OPERATOR.histogram(
        "retuned_operator_reconcile_duration_seconds",
        "Time that one look at an object took, by what came of it.",
        _CONTROLLER,
        Label(name="result", most=8),
        buckets=STEPS,
        keeper=_OWN,
    ),
    _OPERATOR.histogram(
        "retuned_operator_queue_wait_seconds",
        "Time that an object waited to be looked at.",
        _CONTROLLER,
        buckets=STEPS,
        keeper=_OWN,
    ),
    _OPERATOR.gauge(
        "retuned_operator_queue_depth",
        "Objects that wait to be looked at.",
        _CONTROLLER,
        keeper=_OWN,
    ),
    _OPERATOR.counter(
        "retuned_operator_watch_restarts_total",
        "Watches that were begun again, by why.",
        _RESOURCE,
        Label(name="reason", most=32),
        keeper=_OWN,
    ),
    _OPERATOR.gauge(
        "retuned_operator_watch_silence_seconds",
        "Time since the API server last said anything about a kind.",
        _RESOURCE,
        unit=Unit.SECONDS,
        keeper=_OWN,
    ),
    _OPERATOR.gauge(
        "retuned_operator_leading",
        "1 while this operator leads, 0 while it waits to.",
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
        "1 for a target whose pods report and run on one environment.",
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
        "Clock of a device now.",
        GPU,
        closed("clock", ("core", "memory")),
        unit=Unit.HERTZ,
        most_rows=128,
    ),
    _GPU.table(
        "retuned_gpu_clock_ratio",
        "Core clock now over the highest that the device has.",
        GPU,
        unit=Unit.RATIO,
    ),
    _GPU.table("retuned_gpu_power_watts", "Power that a device draws.", GPU, unit=Unit.WATTS),
    _GPU.table("retuned_gpu_power_limit_watts", "Power that it may draw.", GPU, unit=Unit.WATTS),
    _GPU.table(
        "retuned_gpu_temperature_celsius", "Temperature of a device.", GPU, unit=Unit.CELSIUS
    ),
    _GPU.table(
        "retuned_gpu_throttled",
        "1 for each reason why a device is slower than it could be.",
        GPU,
        closed("reason", ("power", "thermal", "hardware", "software", "other")),
        most_rows=320,
    ),
    _GPU.table(
        "retuned_gpu_busy_ratio",
        "Share of time in which a device did something.",
        GPU,
        unit=Unit.RATIO,
    ),
    _GPU.table("retuned_gpu_memory_used_bytes", "Memory in use on a device.", GPU, unit=Unit.BYTES),
    _GPU.table(
        "retuned_gpu_processes",
        "Processes on a device, by whose they are.",
        GPU,
        closed("whose", ("server", "lab", "others"), "`others` are co-tenants"),
        most_rows=192,
    ),
)
