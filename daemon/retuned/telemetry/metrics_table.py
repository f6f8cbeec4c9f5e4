"""Short ways to write a metric down."""

from __future__ import annotations

from dataclasses import replace

from retuned.telemetry.metric_types import Exporter, Keeper, Label, Metric, MetricType, Stage, Unit

_Exporters = frozenset[Exporter]
QUICK = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
"""Bounds of what takes micro- to milliseconds, seconds."""
STEPS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds of steps of a program, seconds."""
LONG = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 14_400.0)
"""Bounds of what takes minutes, seconds."""


class MetricSection:
    """Writes down the metrics of one part of the loop.

    Parameters
    ----------
    stage
        The part.
    exporters
        Who shows them, where a metric does not say otherwise.
    """

    def __init__(self, stage: Stage, exporters: _Exporters) -> None:
        self._stage = stage
        self._exporters = exporters

    def counter(
        self,
        name: str,
        meaning: str,
        *labels: Label,
        unit: Unit = Unit.NONE,
        by: _Exporters | None = None,
        keeper: Keeper = Keeper.TELEMETRY,
        most_rows: int = 64,
    ) -> Metric:
        """Return a counter."""
        shown = self._made(name, meaning, kind=MetricType.COUNTER, unit=unit, by=by)
        return replace(shown, labels=labels, keeper=keeper, most_rows=most_rows)

    def gauge(
        self,
        name: str,
        meaning: str,
        *labels: Label,
        unit: Unit = Unit.NONE,
        by: _Exporters | None = None,
        keeper: Keeper = Keeper.TELEMETRY,
    ) -> Metric:
        """Return a gauge."""
        shown = self._made(name, meaning, kind=MetricType.GAUGE, unit=unit, by=by)
        return replace(shown, labels=labels, keeper=keeper)

    def table(
        self,
        name: str,
        meaning: str,
        *labels: Label,
        unit: Unit = Unit.NONE,
        by: _Exporters | None = None,
        most_rows: int = 64,
    ) -> Metric:
        """Return a gauge whose rows are replaced at a time."""
        shown = self.gauge(name, meaning, *labels, unit=unit, by=by, keeper=Keeper.TABLE)
        return replace(shown, most_rows=most_rows)

    def totals(
        self,
        name: str,
        meaning: str,
        *labels: Label,
        unit: Unit = Unit.NONE,
        by: _Exporters | None = None,
    ) -> Metric:
        """Return a counter that another part counts: all its rows are replaced together."""
        return self.counter(name, meaning, *labels, unit=unit, by=by, keeper=Keeper.TABLE)

    def histogram(
        self,
        name: str,
        meaning: str,
        *labels: Label,
        buckets: tuple[float, ...],
        by: _Exporters | None = None,
        keeper: Keeper = Keeper.TELEMETRY,
    ) -> Metric:
        """Return a histogram of seconds."""
        shown = self._made(
            name, meaning, kind=MetricType.HISTOGRAM, unit=Unit.SECONDS, by=by, buckets=buckets
        )
        return replace(shown, labels=labels, keeper=keeper)

    def _made(
        self,
        name: str,
        meaning: str,
        *,
        kind: MetricType,
        unit: Unit,
        by: _Exporters | None,
        buckets: tuple[float, ...] = (),
    ) -> Metric:
        return Metric(
            name=name,
            kind=kind,
            unit=unit,
            stage=self._stage,
            meaning=meaning,
            exporters=by or self._exporters,
            buckets=buckets,
        )
