"""Every metric that Retuned shows, in one catalogue; `docs/metrics.md` is made from it.

A caller names a metric of the catalogue with its labels. A metric or label that is not in it is a
fault of the caller: an error in tests; production drops the value and counts the fault. Pure.
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
