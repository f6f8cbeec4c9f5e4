"""Metrics of what is tried: experiments, verdicts, and the whole server measured."""

from __future__ import annotations

from retuned.metrics.labels import (
    DAEMON,
    EXPERIMENT_OUTCOMES,
    EXPERIMENT_PHASES,
    JUDGES,
    OPERATOR,
    VERDICT,
    closed,
    words,
)
from retuned.metrics.making import LONG, Book
from retuned.metrics.records import Metric, Stage, Unit
from retuned.stages.watch import EndToEndOutcome, EndToEndReason

_TRIAL = Book(Stage.EXPERIMENT, JUDGES)
_VERDICT = Book(Stage.VERDICT, DAEMON)

TRIED: tuple[Metric, ...] = (
    _TRIAL.counter("retuned_experiments_started_total", "Experiments that were begun."),
    _TRIAL.counter(
        "retuned_experiments_ended_total",
        "Experiments that came to an end, by how.",
        closed("outcome", EXPERIMENT_OUTCOMES),
    ),
    _TRIAL.histogram(
        "retuned_experiment_duration_seconds",
        "Time from the begin of an experiment to its end.",
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
        "Experiments there are, by how far they are.",
        closed("phase", EXPERIMENT_PHASES),
    ),
    _TRIAL.gauge(
        "retuned_experiments_waiting", "What could be tried and has not begun: beliefs or objects."
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
        "Time that candidates cost, by reason of the verdict.",
        VERDICT,
        unit=Unit.SECONDS,
    ),
    _VERDICT.counter(
        "retuned_end_to_end_total",
        "Swaps that were measured on the whole server, by what was found.",
        closed("outcome", words(EndToEndOutcome)),
        closed("reason", words(EndToEndReason)),
    ),
)
