"""What is observed, as numbers: trace files, windows, reports, and what slots count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from retuned.node.context import Observing
from retuned.ports import Clock, Telemetry, TraceBatch
from retuned.stages.drift import DriftAction, DriftReport
from retuned.stages.profile import WorkloadProfile
from retuned.stages.watch import WatchSample
from retuned.telemetry import OTHER, Row

KERNELS = 20
"""Most kernels of a window with a separate series, those that took most time."""


def begin(telemetry: Telemetry, clock: Clock) -> None:
    """Show that nothing was read yet, and since when: who never reads anything is found by it."""
    now_s = clock.now().timestamp()
    telemetry.gauge("retuned_trace_last_read_timestamp_seconds", now_s)


def batch_read(ctx: Observing, batch: TraceBatch) -> None:
    """Count a trace file that was read."""
    count, now_s = ctx.telemetry.count, ctx.clock.now().timestamp()
    count("retuned_trace_files_total", outcome="read")
    count("retuned_trace_bytes_total", batch.size_bytes)
    count("retuned_launches_total", len(batch.launches))
    for reason, rows in batch.skipped.items():
        count("retuned_launches_skipped_total", rows, reason=str(reason))
    lag_s = max(0.0, now_s - batch.completed_at_ns / 1e9)
    ctx.telemetry.gauge("retuned_trace_lag_seconds", lag_s)
    ctx.telemetry.gauge("retuned_trace_last_read_timestamp_seconds", now_s)


def batch_refused(ctx: Observing) -> None:
    """Count a trace file that could not be read."""
    ctx.telemetry.count("retuned_trace_files_total", outcome="refused")


def window_closed(ctx: Observing, profile: WorkloadProfile) -> None:
    """Show the last window."""
    gauge, total_ns = ctx.telemetry.gauge, profile.gpu_time_ns
    shapeless_ns = sum(s.gpu_time_ns for s in profile.stats if not s.signature.dims)
    ctx.telemetry.count("retuned_windows_total")
    gauge("retuned_window_launches", profile.launches)
    gauge("retuned_window_signatures", len(profile.stats))
    gauge("retuned_window_gpu_seconds", total_ns / 1e9)
    gauge("retuned_window_shapeless_ratio", shapeless_ns / total_ns if total_ns else 0.0)
    kernels = by_kernel(profile)
    shares = [({"kernel": name}, ns / total_ns) for name, ns, _ in kernels if total_ns]
    times = [({"kernel": name}, ns / 1e9 / launches) for name, ns, launches in kernels if launches]
    ctx.telemetry.table("retuned_kernel_gpu_time_ratio", shares)
    ctx.telemetry.table("retuned_kernel_launch_seconds", times)


def by_kernel(profile: WorkloadProfile, *, most: int = KERNELS) -> list[tuple[str, int, int]]:
    """Return kernel, device time in ns and launches; the largest, then the rest together.

    Examples
    --------
    >>> by_kernel(WorkloadProfile(window_start_ns=0, window_ns=1, observed_ns=1, stats=()))
    []
    """
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for stat in profile.stats:
        entry = found[stat.signature.kernel]
        entry[0] += stat.gpu_time_ns
        entry[1] += stat.launches
    rest = found.pop(OTHER, [0, 0])
    ranked = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))
    for _, (ns, launches) in ranked[most:]:
        rest = [rest[0] + ns, rest[1] + launches]
    kept = [(name, ns, launches) for name, (ns, launches) in ranked[:most]]
    return [*kept, (OTHER, rest[0], rest[1])] if rest[1] else kept


def window_judged(ctx: Observing, report: DriftReport, *, shown: DriftAction) -> None:
    """Show the result of a window; `shown` is `none` while its alarm waits for its cause."""
    count, gauge = ctx.telemetry.count, ctx.telemetry.gauge
    gauge("retuned_drift_distance_bits", report.distance)
    gauge("retuned_drift_cusum", report.cusum)
    gauge("retuned_drift_last_judged_timestamp_seconds", ctx.clock.now().timestamp())
    count("retuned_drift_reports_total", action=str(report.action))
    if report.skipped:  # a skipped window leaves the earlier values
        return
    gauge("retuned_drift_uncovered_ratio", report.uncovered_share)
    gauge("retuned_drift_expected_saving_ratio", report.expected_saving)
    drift_standing(ctx, shown)
    for code in {reason.code for reason in report.reasons}:
        count("retuned_drift_reasons_total", code=str(code))


def drift_standing(ctx: Observing, action: DriftAction) -> None:
    """Show what the last judged window asks for."""
    standing = [({"action": str(each)}, float(each is action)) for each in DriftAction]
    ctx.telemetry.table("retuned_drift_standing", standing)


def slots(telemetry: Telemetry, samples: Sequence[WatchSample]) -> None:
    """Show what the runtime has counted since the last order of each slot."""
    ordered = [each for each in samples if each.epoch]
    swapped = [each for each in ordered if each.artifact is not None]
    launches: list[Row] = []
    for each in ordered:
        launches += [
            ({"kernel": each.definition, "served_by": "variant"}, each.swapped_launches),
            ({"kernel": each.definition, "served_by": "original"}, each.fallback_launches),
        ]
    telemetry.table("retuned_slot_launches_total", launches)
    totals: tuple[tuple[str, Callable[[WatchSample], float]], ...] = (
        ("retuned_shadow_checks_total", lambda each: each.shadow_checks),
        ("retuned_shadow_mismatches_total", _mismatches),
        ("retuned_shadow_seconds_total", lambda each: each.shadow_s),
        ("retuned_variant_errors_total", lambda each: each.errors),
        ("retuned_slot_tripped", lambda each: float(bool(each.tripped))),
    )
    for name, value in totals:
        telemetry.table(name, _rows(ordered, value))
    telemetry.table("retuned_shadow_worst_ratio", _rows(swapped, lambda each: each.worst_ratio))
    telemetry.table("retuned_variant_ratio", _rows(swapped, lambda each: each.fraction))
    telemetry.table("retuned_engaged_processes_ratio", _rows(swapped, _engaged))
    timed = [each for each in swapped if each.slowdown > 0.0]
    telemetry.table("retuned_variant_slowdown_ratio", _rows(timed, lambda each: each.slowdown))


def _rows(samples: Iterable[WatchSample], value: Callable[[WatchSample], float]) -> list[Row]:
    return [({"kernel": each.definition}, value(each)) for each in samples]


def _mismatches(sample: WatchSample) -> float:
    return sample.shadow_mismatches + sample.shadow_nonfinite


def _engaged(sample: WatchSample) -> float:
    """Return the share of processes that ran the variant; quiet ones had nothing to run."""
    asked = sample.processes - sample.quiet_processes
    idle = sample.idle_processes - sample.quiet_processes
    return 1.0 if asked <= 0 else max(0.0, asked - max(0, idle)) / asked
