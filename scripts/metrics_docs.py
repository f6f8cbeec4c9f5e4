"""Write `docs/metrics.md` from the catalogue; ``--check`` only says whether it is current."""

from __future__ import annotations

import sys
from pathlib import Path

from retuned.telemetry import CATALOGUE, OTHER, Exporter, Label, Metric, MetricType, Stage, Unit

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "metrics.md"

_HEAD = f"""# Metrics

Made by `scripts/metrics_docs.py` from `retuned.telemetry`; change it there.

Each program serves `/metrics` in Prometheus' text format: `retuned run` and `retuned sidecar` on
`metrics_address` and `metrics_port` ([configuration.md](configuration.md)), `retuned-operator` on
its port of health and metrics ([chart-values.md](chart-values.md)). The runtime inside a server
opens no port; the program beside the server exports its counts. Names end in base units; counters
end in `_total` and begin at 0 with the process.

The number of series is bounded. A label has a closed set of values, which the table names, or is a
name: then only the stated number of names have their own series, and further ones count as
`{OTHER}`. A metric of the kind *table* has one series for each object while the object exists: a
proposal that was decided has none any more. A count under a name or label that is not on this page
is dropped, and counted in `retuned_metrics_refused_total`.

Of the operator's replicas only the leader exports tables.
"""
_STAGES = {
    Stage.TRACE: "Traces",
    Stage.PROFILE: "Windows of the workload",
    Stage.DRIFT: "Drift",
    Stage.HYPOTHESIS: "Hypotheses",
    Stage.EXPERIMENT: "Experiments",
    Stage.VERDICT: "Verdicts",
    Stage.PROPOSAL: "Proposals",
    Stage.GATE: "Gates and people",
    Stage.SWAP: "Swaps and rollbacks",
    Stage.WATCH: "Watch of a swap",
    Stage.GPU: "Devices",
    Stage.OVERHEAD: "Overhead of Retuned",
    Stage.OPERATOR: "The operator",
}
_UNITS = {
    Unit.NONE: "number",
    Unit.TIMESTAMP: "seconds since 1970",
    Unit.CELSIUS: "degrees Celsius",
}
"""Where the word of the name needs more."""


def page() -> str:
    """Return the page as it must be."""
    parts = [_HEAD]
    for stage in Stage:
        metrics = [each for each in CATALOGUE.values() if each.stage is stage]
        rows = ["| name | type | unit | labels | meaning | by |", "|---|---|---|---|---|---|"]
        rows += map(_row, metrics)
        parts.append(f"## {_STAGES[stage]}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _row(metric: Metric) -> str:
    labels = "; ".join(map(_label, metric.labels)) or "none"
    kind = str(metric.kind)
    if metric.kind is not MetricType.HISTOGRAM and metric.keeper == "table":
        kind += f", table of {metric.most_rows}"
    by = ", ".join(str(each) for each in Exporter if each in metric.exporters)
    unit = _UNITS.get(metric.unit, str(metric.unit))
    return f"| `{metric.name}` | {kind} | {unit} | {labels} | {metric.meaning} | {by} |"


def _label(label: Label) -> str:
    text = f"`{label.name}`"
    if label.values is not None:
        others = f", {OTHER}" if label.allows_other else ""
        text += f": {', '.join(sorted(label.values))}{others}"
    else:
        text += f" (at most {label.most})"
    return f"{text}: {label.meaning}" if label.meaning and label.values is None else text


def main() -> int:
    """Write, or say that it is not current."""
    if "--check" in sys.argv[1:]:
        current = PAGE.is_file() and PAGE.read_text("utf-8") == page()
        if not current:
            sys.stderr.write("docs/metrics.md is not current: run scripts/metrics_docs.py\n")
        return 0 if current else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
