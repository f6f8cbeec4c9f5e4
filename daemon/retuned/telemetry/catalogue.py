"""The catalogue, and whether something may be counted under a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from retuned.telemetry.loop_metrics import GATED, PROPOSED, SWAPPED, TOLD, TRIED, WATCHED
from retuned.telemetry.metric_types import OTHER, Exporter, Keeper, Metric, MetricType
from retuned.telemetry.serving_metrics import GPUS, OBSERVED, RUNNING

_LONGEST = 128
_ORDER = (*OBSERVED, *TRIED, *PROPOSED, *GATED, *TOLD, *SWAPPED, *WATCHED, *GPUS, *RUNNING)

CATALOGUE: Mapping[str, Metric] = {each.name: each for each in _ORDER}
"""Every metric by name, in the order of the loop."""
if len(CATALOGUE) != len(_ORDER):  # a duplicate name would replace the first metric
    raise ValueError("a metric is in the catalogue twice")


class Fault(StrEnum):
    """Why a value is dropped."""

    NAME = "name"
    """The catalogue has no such metric, or not of this kind or for this program."""
    LABELS = "labels"
    """It has other labels."""
    VALUE = "value"
    """A label has a value that is not in its closed set."""
    TOO_MANY = "too-many"
    """A table has more rows than it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a number is not taken."""

    fault: Fault
    """Stable code."""
    detail: str
    """What was asked for, and what there is."""


def metric(name: str) -> Metric:
    """Return a metric.

    Raises
    ------
    KeyError
        If the catalogue does not have it.
    """
    return CATALOGUE[name]


def exported_by(exporter: Exporter) -> tuple[Metric, ...]:
    """Return what a program shows, in the catalogue's order."""
    return tuple(each for each in CATALOGUE.values() if exporter in each.exporters)


def admitted(
    name: str,
    labels: Mapping[str, str],
    *,
    kind: MetricType,
    table: bool = False,
    exporter: Exporter | None = None,
) -> dict[str, str] | Refusal:
    """Return the labels to use, cleaned; or why the number is not taken.

    Parameters
    ----------
    kind
        What the caller takes the metric for.
    table
        Whether rows are replaced at a time.
    exporter
        The program that shows it; None asks for any.

    Examples
    --------
    >>> admitted("retuned_swaps_total", {"kind": "swap"}, kind=MetricType.COUNTER)
    {'kind': 'swap'}
    >>> admitted("retuned_rollbacks_total", {"reason": "a server's own"}, kind=MetricType.COUNTER)
    {'reason': '(other)'}
    >>> admitted("retuned_swaps_total", {}, kind=MetricType.COUNTER).fault
    <Fault.LABELS: 'labels'>
    """
    known = CATALOGUE.get(name)
    if known is None or known.kind is not kind:
        what = "not in the catalogue" if known is None else f"a {known.kind}"
        return Refusal(fault=Fault.NAME, detail=f"{name} is {what}")
    if (known.keeper is Keeper.TABLE) != table or known.keeper is Keeper.OWN:
        return Refusal(fault=Fault.NAME, detail=f"{name} is kept by {known.keeper}")
    if exporter is not None and exporter not in known.exporters:
        return Refusal(fault=Fault.NAME, detail=f"{name} is not shown by the {exporter}")
    if set(labels) != set(known.label_names):
        wanted = ", ".join(known.label_names) or "none"
        return Refusal(fault=Fault.LABELS, detail=f"{name} has the labels {wanted}")
    clean: dict[str, str] = {}
    for label in known.labels:
        value = _printable(str(labels[label.name])[:_LONGEST])
        if label.values is not None and value not in label.values:
            if not label.allows_other:
                text = f"{name}: {label.name} is never {value!r}"
                return Refusal(fault=Fault.VALUE, detail=text)
            value = OTHER
        clean[label.name] = value
    return clean


def _printable(word: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in word)
