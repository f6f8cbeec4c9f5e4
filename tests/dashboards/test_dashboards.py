"""Dashboards: made from their data, readable, and about metrics that there are."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.dashboards.panels import FILES, ROOT, Query, dashboards, queries
from tests.dashboards.rules import alerts, matchers_in, metrics_in
from tests.dashboards.test_rules import SCRAPED, run

from retuned.telemetry import CATALOGUE, MetricType

ALL = dict(dashboards())
QUERIES = queries()
UNITS = {"short", "percentunit", "s", "bytes", "ops", "Bps", "hertz", "watt", "celsius"}
ADDED = {"program", "version", "le"}
"""Labels that a query may take from `retuned_build_info`, and that histograms have."""
by_file = pytest.mark.parametrize("name", ALL)
by_query = pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.id)


def test_dashboards_are_current() -> None:
    script = ROOT / "scripts" / "dashboards.py"
    done = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert done.returncode == 0, f"run {script.relative_to(ROOT)}"


def test_each_question_has_a_file() -> None:
    wanted = {"overview", "drift", "experiments", "gates", "swaps", "overhead"}
    assert {path.stem for path in FILES} == wanted


@by_file
def test_a_dashboard_is_read_only_stable_and_says_its_question(name: str) -> None:
    body = ALL[name]
    assert body["uid"] == f"retuned-{name}"
    assert body["editable"] is False
    assert body["id"] is None
    assert body["description"].endswith("?")
    assert "retuned" in body["tags"]


@by_file
def test_the_data_source_is_a_variable_and_nothing_else(name: str) -> None:
    body = ALL[name]
    variables = {each["name"]: each for each in body["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert all(each["label"] for each in variables.values())
    uids = re.findall(r'"uid": "([^"]*)"', json.dumps(body))
    assert set(uids) == {"${datasource}", body["uid"]}
    for panel in body["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(t["datasource"]["uid"] == "${datasource}" for t in panel["targets"])


@by_file
def test_every_panel_has_title_description_unit_and_a_legend(name: str) -> None:
    titles = [panel["title"] for panel in ALL[name]["panels"]]
    assert len(set(titles)) == len(titles)
    for panel in ALL[name]["panels"]:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert panel["targets"]
        assert all(target["legendFormat"] for target in panel["targets"])
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)


@by_file
def test_panels_have_ids_of_their_own_and_do_not_overlap(name: str) -> None:
    panels = ALL[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
        assert panel["id"] > 0
    for one, other in itertools.combinations(panels, 2):
        assert not _overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    apart = (
        one["x"] + one["w"] <= other["x"]
        or other["x"] + other["w"] <= one["x"]
        or one["y"] + one["h"] <= other["y"]
        or other["y"] + other["h"] <= one["y"]
    )
    return not apart


@by_file
def test_an_axis_has_one_unit(name: str) -> None:
    for panel in ALL[name]["panels"]:
        own = panel["fieldConfig"]["defaults"]["unit"]
        others = {
            each["matcher"]["options"]: {p["id"]: p["value"] for p in each["properties"]}
            for each in panel["fieldConfig"]["overrides"]
        }
        measured: dict[str, set[str]] = {}
        for target in panel["targets"]:
            shown = others.get(target["refId"], {"unit": own})
            assert shown["unit"] in UNITS
            if panel["type"] == "timeseries" and shown["unit"] != own:
                assert shown["custom.axisPlacement"] == "right"
            measured.setdefault(shown["unit"], set()).update(_measured(target["expr"]))
        assert len(measured) <= 2, panel["title"]
        assert all(len(units) <= 1 for units in measured.values()), (panel["title"], measured)


def _measured(expr: str) -> set[str]:
    """Return what the metrics of a query measure; a rate of it is another thing."""
    rate = "/s" if re.search(r"\brate\(", expr) else ""
    units = {CATALOGUE[name].unit for name in metrics_in(expr) - {"retuned_build_info"}}
    return {str(unit).removeprefix("timestamp_") + rate for unit in units}


@by_query
def test_a_query_names_metrics_and_labels_that_there_are(query: Query) -> None:
    named = metrics_in(query.expr)
    assert named
    assert named <= set(CATALOGUE)
    for metric, label in matchers_in(query.expr):
        assert label in set(CATALOGUE[metric].label_names) | SCRAPED
    known = {label for name in named for label in CATALOGUE[name].label_names}
    grouped = re.findall(r"\b(?:by|group_left|on) \(([^)]*)\)", query.expr)
    asked = {word.strip() for group in grouped for word in group.split(",") if word.strip()}
    assert asked <= known | SCRAPED | ADDED


@by_query
def test_rates_follow_the_scrape_interval_and_only_counters_have_them(query: Query) -> None:
    for inside in re.findall(r"\b(?:rate|increase)\(([^()]*?)\[([^\]]+)\]", query.expr):
        (name,) = metrics_in(inside[0])
        assert inside[1] in ("$__rate_interval", "$__range")
        assert CATALOGUE[name].kind in (MetricType.COUNTER, MetricType.HISTOGRAM)
    for name in metrics_in(query.expr):
        if CATALOGUE[name].kind is MetricType.COUNTER:
            assert re.search(rf"(rate|increase)\({name}", query.expr), f"{name} only ever rises"


@pytest.mark.monitoring
def test_every_query_parses(monitoring: Path, tmp_path: Path) -> None:
    rules: list[dict[str, Any]] = [
        {"record": f"query:{number}", "expr": query.asked()} for number, query in enumerate(QUERIES)
    ]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    run(monitoring / "promtool", "check", "rules", path)


def test_every_metric_of_the_catalogue_is_on_a_dashboard() -> None:
    shown = {name for query in QUERIES for name in metrics_in(query.expr)}
    assert shown == set(CATALOGUE)


def test_alerts_lead_to_dashboards_that_there_are() -> None:
    uids = {body["uid"] for body in ALL.values()}
    for rule in alerts():
        url = rule.body["annotations"]["dashboard_url"]
        assert url.rpartition("/")[2] in uids
