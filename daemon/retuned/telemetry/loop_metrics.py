"""Metrics of changes: proposals, gates, swaps, and the watch of swaps.

Metrics of notification channels.

Metrics of trials: experiments, verdicts, and measurements of the whole server.
"""

from __future__ import annotations

from retuned.api.agent import Outcome
from retuned.stages.proposal import RefusalReason
from retuned.stages.swap import SwapKind
from retuned.stages.watch import EndToEndOutcome, EndToEndReason
from retuned.stages.watch.attribution import AttributionOutcome
from retuned.stages.watch.own_overhead import OverheadOutcome
from retuned.stages.watch.proof import ProofReason, Verdict
from retuned.telemetry.labels import (
    ALL,
    BESIDE,
    CANARY,
    CHANNEL,
    DAEMON,
    DECISION,
    EXPERIMENT_OUTCOMES,
    EXPERIMENT_PHASES,
    GATE_REASON,
    GOING_BACK,
    JUDGES,
    KERNEL,
    NAMESPACE,
    OPERATOR,
    PHASE,
    PROPOSAL,
    RISK,
    SIDECAR,
    TARGET,
    VERDICT,
    closed,
    words,
)
from retuned.telemetry.metric_types import Label, Metric, Stage, Unit
from retuned.telemetry.metrics_table import LONG, QUICK, MetricSection

PENDING_ROWS = 200
"""Most waiting proposals with a separate row."""
_OPEN = (NAMESPACE, PROPOSAL)
_SUBJECT = (NAMESPACE, PROPOSAL, TARGET, KERNEL)
_DIGEST = Label(name="digest", most=256, meaning="artifact; every decision names it")
_PROPOSED = MetricSection(Stage.PROPOSAL, JUDGES)
_GATE = MetricSection(Stage.GATE, JUDGES)
_SWAP = MetricSection(Stage.SWAP, BESIDE)
_WATCH = MetricSection(Stage.WATCH, BESIDE)

PROPOSED: tuple[Metric, ...] = (
    _PROPOSED.table("retuned_proposals", "Stored proposals, by phase.", PHASE, most_rows=32),
    _PROPOSED.counter("retuned_swap_phases_total", "Changes of phase of proposals.", PHASE),
    _PROPOSED.counter(
        "retuned_proposals_refused_total",
        "Wins that were not proposed, by reason.",
        closed("reason", words(RefusalReason)),
        by=DAEMON,
    ),
    _PROPOSED.table(
        "retuned_swap_proposal_awaiting_approval",
        "1 for each proposal that waits for a person, while it waits.",
        *_SUBJECT,
        Label(name="gpu_model", most=64, meaning="accelerator that it was measured on"),
        _DIGEST,
        RISK,
        most_rows=PENDING_ROWS,
    ),
    _PROPOSED.table(
        "retuned_swap_proposal_approvals_missing",
        "Approvals that are still missing, while a proposal waits.",
        *_OPEN,
        most_rows=PENDING_ROWS,
    ),
    _PROPOSED.table(
        "retuned_swap_proposal_created_timestamp_seconds",
        "When a proposal that waits was made.",
        *_OPEN,
        unit=Unit.TIMESTAMP,
        most_rows=PENDING_ROWS,
    ),
    _PROPOSED.table(
        "retuned_swap_proposal_expires_timestamp_seconds",
        "When a proposal that waits expires.",
        *_OPEN,
        unit=Unit.TIMESTAMP,
        most_rows=PENDING_ROWS,
    ),
    _PROPOSED.table(
        "retuned_swap_proposal_speedup_ratio",
        "Speed-up of the proposed variant, weighted by production launches.",
        *_OPEN,
        closed("bound", ("lower", "point", "upper"), "of the interval of confidence"),
        unit=Unit.RATIO,
        most_rows=3 * PENDING_ROWS,
    ),
    _PROPOSED.table(
        "retuned_swap_proposal_gpu_time_ratio",
        "Share of device time at the shapes that a waiting proposal is for: its blast radius.",
        *_OPEN,
        unit=Unit.RATIO,
        most_rows=PENDING_ROWS,
    ),
    _PROPOSED.table(
        "retuned_swap_proposal_saving_ratio",
        "Share of device time that a waiting proposal would save, at least.",
        *_OPEN,
        unit=Unit.RATIO,
        most_rows=PENDING_ROWS,
    ),
    _PROPOSED.table(
        "retuned_swap_proposal_pods",
        "Server pods that a waiting proposal would change.",
        *_OPEN,
        by=OPERATOR,
        most_rows=PENDING_ROWS,
    ),
    _PROPOSED.table(
        "retuned_swap_in_force_saving_ratio",
        "Share of device time that variants in force were proven to save, at least.",
        NAMESPACE,
        TARGET,
        KERNEL,
        unit=Unit.RATIO,
        most_rows=256,
    ),
)

GATED: tuple[Metric, ...] = (
    _GATE.table(
        "retuned_gate_standing", "Open proposals, by reason of the gate decision.", GATE_REASON
    ),
    _GATE.counter(
        "retuned_swap_decisions_total",
        "Decisions of people, by kind and channel.",
        DECISION,
        CHANNEL,
    ),
    _GATE.table(
        "retuned_policy_valid",
        "1 for a valid policy, 0 for an invalid one, under which no proposal continues.",
        NAMESPACE,
        Label(name="policy", most=256),
        most_rows=256,
    ),
    _GATE.table(
        "retuned_freeze_since_timestamp_seconds",
        "When a freeze was set, while it is in force.",
        Label(name="freeze", most=256),
        unit=Unit.TIMESTAMP,
    ),
)

SWAPPED: tuple[Metric, ...] = (
    _SWAP.counter(
        "retuned_swaps_total",
        "Orders that a server executed, by kind.",
        closed("kind", words(SwapKind)),
    ),
    _SWAP.histogram(
        "retuned_swap_flip_seconds",
        "Time that a server needed to switch one slot.",
        buckets=QUICK,
    ),
    _SWAP.counter(
        "retuned_orders_total",
        "Orders of the operator, by outcome in this pod and reason.",
        closed("outcome", words(Outcome)),
        Label(name="reason", most=64, meaning="empty if it was executed"),
        by=SIDECAR,
    ),
    _SWAP.counter("retuned_canary_steps_total", "Steps of canaries, by action.", CANARY),
    _SWAP.counter(
        "retuned_rollbacks_total", "Rollbacks that were started, by reason.", GOING_BACK, by=ALL
    ),
    _SWAP.counter(
        "retuned_rollbacks_failed_total",
        "Rollbacks that the server refused, by reason; each is retried until it succeeds.",
        GOING_BACK,
        by=ALL,
    ),
    _SWAP.table(
        "retuned_swap_rolled_back",
        "1 for each swap that was rolled back within the last quarter of an hour, by reason.",
        *_SUBJECT,
        GOING_BACK,
        by=JUDGES,
        most_rows=PENDING_ROWS,
    ),
    _SWAP.table(
        "retuned_swap_rollback_failed",
        "1 for each server whose rollback fails; a sidecar does not know the proposal's name.",
        *_SUBJECT,
        Label(name="server", most=256, meaning="pod; empty on one machine"),
        by=ALL,
        most_rows=PENDING_ROWS,
    ),
    _SWAP.table(
        "retuned_swap_paused",
        "1 for each paused rollout, which waits for a decision of a person.",
        *_SUBJECT,
        _DIGEST,
        by=OPERATOR,
        most_rows=PENDING_ROWS,
    ),
    _SWAP.counter(
        "retuned_pages_total",
        "Pages to the person on call, by reason.",
        closed("reason", ("rollback-failed",)),
        by=OPERATOR,
    ),
)

WATCHED: tuple[Metric, ...] = (
    _WATCH.totals(
        "retuned_slot_launches_total",
        "Launches of slots since the last order, by the kernel that ran; counted by the server.",
        KERNEL,
        closed("served_by", ("variant", "original")),
    ),
    _WATCH.totals(
        "retuned_shadow_checks_total", "Launches that were compared with the original.", KERNEL
    ),
    _WATCH.totals(
        "retuned_shadow_mismatches_total",
        "Comparisons in which a variant exceeded the tolerance, NaN and Inf included.",
        KERNEL,
    ),
    _WATCH.totals(
        "retuned_shadow_seconds_total", "Time that comparisons took.", KERNEL, unit=Unit.SECONDS
    ),
    _WATCH.totals(
        "retuned_variant_errors_total", "Launches of a variant that raised and fell back.", KERNEL
    ),
    _WATCH.table(
        "retuned_shadow_worst_ratio",
        "Largest observed difference over the tolerance.",
        KERNEL,
        unit=Unit.RATIO,
    ),
    _WATCH.table(
        "retuned_variant_slowdown_ratio",
        "Time of the variant over the original's in the last timed comparison; below 1 is faster.",
        KERNEL,
        unit=Unit.RATIO,
    ),
    _WATCH.table(
        "retuned_engaged_processes_ratio",
        "Share of the server's processes in which a launch has run the variant in force.",
        KERNEL,
        unit=Unit.RATIO,
    ),
    _WATCH.table(
        "retuned_variant_ratio",
        "Share of launches that are routed to the variant in force: 1 is all.",
        KERNEL,
        unit=Unit.RATIO,
    ),
    _WATCH.table(
        "retuned_slot_tripped",
        "1 if the circuit breaker of the server has stopped the variant.",
        KERNEL,
    ),
)

SINKS = ("slack", "alertmanager", "webhook")
"""Channels that messages go to."""

_TOLD = MetricSection(Stage.GATE, JUDGES)
_SINK = closed("channel", SINKS, "where messages go")

TOLD: tuple[Metric, ...] = (
    _TOLD.counter(
        "retuned_channel_messages_total",
        "Tries to send a message to a channel, by outcome: sent, failed and retried, or given up "
        "because the message is outdated.",
        _SINK,
        closed("outcome", ("sent", "failed", "given-up")),
    ),
    _TOLD.table(
        "retuned_channel_messages_waiting",
        "Messages that a channel has not accepted yet.",
        _SINK,
    ),
    _TOLD.table(
        "retuned_channel_oldest_waiting_timestamp_seconds",
        "When the oldest message that a channel has not accepted was made; absent if none waits.",
        _SINK,
        unit=Unit.TIMESTAMP,
    ),
    _TOLD.counter(
        "retuned_channel_arrivals_total",
        "Requests from Slack and Alertmanager, by outcome: taken, refused, or to be sent again "
        "because it could not be stored.",
        closed("channel", ("slack", "alertmanager"), "where it came from"),
        closed("outcome", ("taken", "refused", "again")),
    ),
)

_TRIAL = MetricSection(Stage.EXPERIMENT, JUDGES)
_VERDICT = MetricSection(Stage.VERDICT, DAEMON)

TRIED: tuple[Metric, ...] = (
    _TRIAL.counter("retuned_experiments_started_total", "Experiments that were started."),
    _TRIAL.counter(
        "retuned_experiments_ended_total",
        "Experiments that ended, by outcome.",
        closed("outcome", EXPERIMENT_OUTCOMES),
    ),
    _TRIAL.histogram(
        "retuned_experiment_duration_seconds",
        "Time from the start of an experiment to its end.",
        closed("outcome", EXPERIMENT_OUTCOMES),
        buckets=LONG,
    ),
    _TRIAL.counter(
        "retuned_experiment_gpu_seconds_total",
        "Time that experiments held a device: candidates on one machine, Jobs in a cluster.",
        unit=Unit.SECONDS,
    ),
    _TRIAL.table(
        "retuned_experiments",
        "Stored experiments, by phase.",
        closed("phase", EXPERIMENT_PHASES),
    ),
    _TRIAL.gauge(
        "retuned_experiments_waiting", "Hypotheses or KernelExperiments that have not started."
    ),
    _TRIAL.counter(
        "retuned_experiment_phases_total",
        "Changes of phase of experiments.",
        closed("phase", EXPERIMENT_PHASES),
        by=OPERATOR,
    ),
    _VERDICT.counter(
        "retuned_candidates_total",
        "Candidates that were judged, by reason of the verdict.",
        VERDICT,
    ),
    _VERDICT.counter(
        "retuned_candidate_seconds_total",
        "Time spent on candidates, by reason of the verdict.",
        VERDICT,
        unit=Unit.SECONDS,
    ),
    _VERDICT.counter(
        "retuned_end_to_end_total",
        "Swaps that were measured on the whole server, by outcome.",
        closed("outcome", words(EndToEndOutcome)),
        closed("reason", words(EndToEndReason)),
    ),
    _VERDICT.counter(
        "retuned_live_proof_verdicts_total",
        "Swaps that were switched off and on in live traffic, by verdict.",
        closed("verdict", words(Verdict)),
        closed("reason", words(ProofReason)),
        by=JUDGES,
    ),
    _VERDICT.table(
        "retuned_sentinel_effect_ratio",
        "Step time with a promoted swap over that without, by the pairs of the last day.",
        KERNEL,
        unit=Unit.RATIO,
        most_rows=256,
    ),
    _VERDICT.counter(
        "retuned_own_overhead_measurements_total",
        "Measurements of Retuned's own overhead on a step of the server, by outcome.",
        closed("outcome", words(OverheadOutcome)),
        by=BESIDE,
    ),
    _VERDICT.table(
        "retuned_own_overhead_ratio",
        "Step time with Retuned's wrappers over that without, by the last measurement.",
        closed("bound", ("low", "effect", "high")),
        by=BESIDE,
        unit=Unit.RATIO,
        most_rows=4,
    ),
    _VERDICT.counter(
        "retuned_alarm_attributions_total",
        "Alarms about kernel times for which swaps were switched off as a test, by outcome.",
        closed("outcome", words(AttributionOutcome)),
        by=BESIDE,
    ),
)
