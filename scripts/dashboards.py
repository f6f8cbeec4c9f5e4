"""Write Grafana's dashboards from `dashboards/panels`; ``--check`` only says what is not current.

One question a file. What a panel asks is data there; how it looks is the same for all.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent.parent / "dashboards"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH = 24
_HEIGHT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture."""

    title: str
    """What it shows, in a few words."""
    says: str
    """What to read from it, in a sentence or two."""
    queries: tuple[tuple[str, str, str], ...]
    """PromQL, the legend of its series, and their unit; empty for the panel's."""
    unit: str
    """Grafana's name of the unit; series of another unit have a second axis, on the right."""
    kind: str = "timeseries"
    """``timeseries``, ``stat``, ``table`` or ``bargauge``."""
    width: int = 12
    """Of 24 columns."""
    stacked: bool = False
    """Whether series are put on top of each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One question."""

    name: str
    """Name of the file, and the end of its uid."""
    title: str
    """Title."""
    question: str
    """What it answers."""
    panels: tuple[Panel, ...]
    """Pictures, in reading order."""


def _of(text: str) -> str:
    """Limit a query to what was chosen above the dashboard."""
    return text.replace("{}", '{namespace=~"$namespace"}').replace(
        "{,", '{namespace=~"$namespace",'
    )


def read_all() -> tuple[Dashboard, ...]:
    """Return every dashboard, by name.

    Raises
    ------
    KeyError, TypeError
        If a file has other fields than `Dashboard` and `Panel`.
    """
    found = []
    for path in sorted((FOLDER / "panels").glob("*.yaml")):
        body = yaml.safe_load(path.read_text("utf-8"))
        panels = tuple(
            Panel(**{**each, "queries": tuple(map(_query, each["queries"]))})
            for each in body.pop("panels")
        )
        found.append(Dashboard(name=path.stem, panels=panels, **body))
    return tuple(found)


def _query(body: dict[str, str]) -> tuple[str, str, str]:
    if unknown := body.keys() - {"expr", "legend", "unit"}:
        raise KeyError(f"a query has no {', '.join(sorted(unknown))}")
    return body["expr"], body["legend"], body.get("unit", "")


def text_of(dashboard: Dashboard) -> str:
    """Return a dashboard as Grafana reads it."""
    return json.dumps(_dashboard(dashboard), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _dashboard(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "annotations": {"list": []},
        "description": dashboard.question,
        "editable": False,
        "graphTooltip": 1,
        "id": None,
        "links": [
            {
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
                "tags": ["retuned"],
                "title": "Retuned",
                "type": "dashboards",
            }
        ],
        "panels": _placed(dashboard.panels),
        "refresh": "1m",
        "schemaVersion": 39,
        "tags": ["retuned"],
        "templating": {"list": _variables()},
        "time": {"from": "now-24h", "to": "now"},
        "timezone": "",
        "title": dashboard.title,
        "uid": f"retuned-{dashboard.name}",
        "version": 1,
    }


def _variables() -> list[dict[str, Any]]:
    source = {
        "label": "Data source",
        "name": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "type": "datasource",
    }
    namespace = {
        "allValue": ".*",  # one machine has no namespace
        "current": {"text": "All", "value": "$__all"},
        "datasource": _SOURCE,
        "includeAll": True,
        "label": "Namespace",
        "multi": True,
        "name": "namespace",
        "query": {"query": "label_values(retuned_build_info, namespace)", "refId": "namespaces"},
        "refresh": 2,
        "type": "query",
    }
    return [source, namespace]


def _placed(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    """Put panels from left to right, line by line."""
    found, x, y, height = [], 0, 0, 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > _WIDTH:
            x, y = 0, y + height
        height = 4 if panel.kind == "stat" else _HEIGHT
        found.append(_panel(panel, number, {"h": height, "w": panel.width, "x": x, "y": y}))
        x += panel.width
    return found


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    instant = panel.kind in ("stat", "table", "bargauge")
    return {
        "datasource": _SOURCE,
        "description": panel.says,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "gridPos": place,
        "id": number,
        "options": _options(panel),
        "targets": [
            {
                "datasource": _SOURCE,
                "expr": _of(query),
                "format": "table" if panel.kind == "table" else "time_series",
                "instant": instant,
                "legendFormat": legend,
                "range": not instant,
                "refId": _letter(index),
            }
            for index, (query, legend, _) in enumerate(panel.queries)
        ],
        "title": panel.title,
        "type": panel.kind,
    }


def _letter(index: int) -> str:
    return chr(ord("A") + index)


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    """Give series of another unit that unit, and in a picture over time an axis on the right."""
    axis = [{"id": "custom.axisPlacement", "value": "right"}] if panel.kind == "timeseries" else []
    return [
        {
            "matcher": {"id": "byFrameRefID", "options": _letter(index)},
            "properties": [{"id": "unit", "value": unit}, *axis],
        }
        for index, (_, _, unit) in enumerate(panel.queries)
        if unit not in ("", panel.unit)
    ]


def _defaults(panel: Panel) -> dict[str, Any]:
    found: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.kind == "timeseries":
        found["custom"] = {
            "fillOpacity": 20 if panel.stacked else 0,
            "lineWidth": 1,
            "showPoints": "auto",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none"},
        }
    return found


def _options(panel: Panel) -> dict[str, Any]:
    last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if panel.kind == "timeseries":
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.kind == "table":
        return {"showHeader": True}
    return {"orientation": "auto", "reduceOptions": last}


def stale() -> list[Path]:
    """Return the files that are not current, and those that nothing is the source of."""
    want = {FOLDER / f"{each.name}.json": text_of(each) for each in read_all()}
    wrong = [p for p, text in want.items() if not p.is_file() or p.read_text("utf-8") != text]
    return sorted([*wrong, *(p for p in FOLDER.glob("*.json") if p not in want)])


def main() -> int:
    """Write, or say what is not current."""
    if "--check" in sys.argv[1:]:
        wrong = stale()
        for path in wrong:
            sys.stderr.write(f"dashboards/{path.name} is not current: run 'make sync'\n")
        return 1 if wrong else 0
    for each in read_all():
        (FOLDER / f"{each.name}.json").write_text(text_of(each), encoding="utf-8")
    for path in stale():
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
