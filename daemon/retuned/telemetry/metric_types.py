"""What a metric is: name, kind, unit, labels, meaning, and who exports it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

Row = tuple[Mapping[str, str], float]
"""Labels of one series, and its value."""
OTHER = "(other)"
"""Label value of all that have no separate series."""
MAX_CLOSED = 128
"""Most series that the closed labels of one metric may make."""
_NAME = re.compile(r"retuned(_[a-z0-9]+)+")
_LABEL = re.compile(r"[a-z]+(_[a-z]+)*")


class MetricType(StrEnum):
    """What numbers of a metric mean."""

    COUNTER = "counter"
    """Only rises, and begins at 0 with the process."""
    GAUGE = "gauge"
    """Stands where it was last put."""
    HISTOGRAM = "histogram"
    """How often which size was seen."""


class Unit(StrEnum):
    """Base unit, as Prometheus names end in it."""

    NONE = ""
    """A number of things, or a word of truth: 0 or 1."""
    SECONDS = "seconds"
    BYTES = "bytes"
    RATIO = "ratio"
    """0 to 1, or one thing over another."""
    WATTS = "watts"
    CELSIUS = "celsius"
    HERTZ = "hertz"
    BITS = "bits"
    """Of information."""
    TIMESTAMP = "timestamp_seconds"
    """Seconds since 1970."""


class Exporter(StrEnum):
    """Program that serves a metric. The program beside a server serves the server's counts."""

    DAEMON = "daemon"
    """``retuned run``."""
    SIDECAR = "sidecar"
    """``retuned sidecar``."""
    OPERATOR = "operator"
    """``retuned-operator``; tables only while it leads."""


class Stage(StrEnum):
    """Part of the loop that a metric is about, in the loop's order."""

    TRACE = "trace"
    PROFILE = "profile"
    DRIFT = "drift"
    HYPOTHESIS = "hypothesis"
    EXPERIMENT = "experiment"
    VERDICT = "verdict"
    PROPOSAL = "proposal"
    GATE = "gate"
    SWAP = "swap"
    WATCH = "watch"
    GPU = "gpu"
    OVERHEAD = "overhead"
    OPERATOR = "operator"


class Keeper(StrEnum):
    """How the numbers come to be shown."""

    TELEMETRY = "telemetry"
    """Counted or set one by one, through the port."""
    TABLE = "table"
    """All rows are replaced together, so that series of removed things end."""
    OWN = "own"
    """The part that measures it registers it: the operator's runtime, or the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """One label and what it may say."""

    name: str
    """Name."""
    values: frozenset[str] | None = None
    """All values there are; None where they are names of things that come and go."""
    allows_other: bool = False
    """Whether a server or a peer may send a value outside `values`, which counts as `OTHER`.
    Otherwise it is a fault of the caller."""
    most: int = 64
    """Without `values`: most distinct ones; what comes after counts as `OTHER`."""
    meaning: str = ""
    """What its values mean, if the name is not enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric.

    Raises
    ------
    ValueError
        If its name, unit and kind do not agree, or its labels make too many series.
    """

    name: str
    """As Prometheus shows it; counters end in ``_total``."""
    kind: MetricType
    """What its numbers mean."""
    unit: Unit = Unit.NONE
    """Base unit; the name ends in it."""
    stage: Stage
    """What it is about."""
    labels: tuple[Label, ...] = ()
    """What series it has."""
    meaning: str
    """One sentence."""
    exporters: frozenset[Exporter]
    """Who shows it."""
    keeper: Keeper = Keeper.TELEMETRY
    """How it comes to be shown."""
    most_rows: int = 64
    """Of a table: most rows; those after them are left out, and that is counted."""
    buckets: tuple[float, ...] = ()
    """Of a histogram: upper bounds, rising."""

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise ValueError(f"{self.name}: {problem}")

    def _problem(self) -> str:
        stem = self.name.removesuffix("_total")
        series = 1
        for label in self.labels:
            if label.values is not None:
                series *= len(label.values) + int(label.allows_other)
            if _LABEL.fullmatch(label.name) is None or label.name in ("le", "job", "instance"):
                return f"label {label.name!r} is not a valid name"
        if _NAME.fullmatch(self.name) is None:
            return "a name must be retuned_ and words of lower-case letters"
        if (self.kind is MetricType.COUNTER) != (stem != self.name):
            return "counters, and only they, end in _total"
        if self.unit and not stem.endswith(f"_{self.unit}"):
            return f"the name does not end in its unit, {self.unit}"
        if (self.kind is MetricType.HISTOGRAM) != bool(self.buckets):
            return "histograms, and only they, have buckets"
        if series > MAX_CLOSED:
            return f"its labels make {series} series; {MAX_CLOSED} are the most"
        if not self.exporters or not self.meaning.endswith("."):
            return "it needs an exporter, and a meaning that ends with a full stop"
        return ""

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the labels, in their order."""
        return tuple(label.name for label in self.labels)

    @property
    def is_closed(self) -> bool:
        """Whether all series are known beforehand."""
        return all(label.values is not None for label in self.labels)

    def series(self) -> tuple[Mapping[str, str], ...]:
        """Return the labels of every series of a closed metric."""
        rows: list[dict[str, str]] = [{}]
        for label in self.labels:
            found = sorted(label.values or ())
            found += [OTHER] if label.allows_other else []
            rows = [{**row, label.name: value} for row in rows for value in found]
        return tuple(rows)
