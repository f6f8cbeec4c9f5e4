"""Metrics of the channels by which people are told."""

from __future__ import annotations

from retuned.metrics.labels import JUDGES, closed
from retuned.metrics.making import Book
from retuned.metrics.records import Metric, Stage, Unit

SINKS = ("slack", "pagerduty", "opsgenie", "alertmanager", "webhook")
"""Channels that messages go to."""

_TOLD = Book(Stage.GATE, JUDGES)
_SINK = closed("channel", SINKS, "where messages go")

TOLD: tuple[Metric, ...] = (
    _TOLD.counter(
        "retuned_channel_messages_total",
        "Messages to a channel, by what became of each try: taken, not taken and tried again, or "
        "of no use any more before it was taken.",
        _SINK,
        closed("outcome", ("sent", "failed", "given-up")),
    ),
    _TOLD.table(
        "retuned_channel_messages_waiting",
        "Messages that a channel has not taken yet.",
        _SINK,
    ),
    _TOLD.table(
        "retuned_channel_oldest_waiting_timestamp_seconds",
        "When the oldest message that a channel has not taken was written; none while none waits.",
        _SINK,
        unit=Unit.TIMESTAMP,
    ),
    _TOLD.counter(
        "retuned_channel_arrivals_total",
        "What came from Slack and Alertmanager, by whether it was taken, refused, or is to come "
        "again because it could not be kept.",
        closed("channel", ("slack", "alertmanager"), "where it came from"),
        closed("outcome", ("taken", "refused", "again")),
    ),
)
