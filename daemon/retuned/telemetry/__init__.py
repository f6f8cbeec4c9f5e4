"""Every metric that Retuned shows, in one catalogue; `docs/metrics.md` is made from it.

Whoever counts names a metric of it, with the labels that it has. What is not in it is a fault of
the caller: an error in tests, thrown away and counted in production. Pure.
"""

from retuned.telemetry.catalogue import CATALOGUE, Fault, Refusal, admitted, exported_by, metric
from retuned.telemetry.metric_types import (
    OTHER,
    Exporter,
    Keeper,
    Label,
    Metric,
    MetricType,
    Row,
    Stage,
    Unit,
)

__all__ = [
    "CATALOGUE",
    "OTHER",
    "Exporter",
    "Fault",
    "Keeper",
    "Label",
    "Metric",
    "MetricType",
    "Refusal",
    "Row",
    "Stage",
    "Unit",
    "admitted",
    "exported_by",
    "metric",
]
