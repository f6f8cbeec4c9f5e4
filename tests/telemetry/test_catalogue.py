"""The catalogue: what may stand in it, what is made from it, and that all of it is counted."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming

from retuned.telemetry import (
    CATALOGUE,
    OTHER,
    Exporter,
    Keeper,
    Label,
    MetricType,
    Refusal,
    Stage,
    Unit,
    admitted,
    exported_by,
    metric,
)
from retuned.telemetry.labels import EXPERIMENT_PHASES, PHASES, kebab
from retuned.telemetry.metric_types import MAX_CLOSED
from retuned_operator.schema import ExperimentPhase, ProposalPhase

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = [
    *(ROOT / "daemon" / "retuned").rglob("*.py"),
    *(ROOT / "operators").rglob("*.py"),
]


def test_the_page_of_metrics_is_current() -> None:
    script = ROOT / "scripts" / "metrics_docs.py"
    done = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert done.returncode == 0, f"run {script.relative_to(ROOT)}"


def test_every_metric_that_the_sources_name_is_in_the_catalogue() -> None:
    text = "\n".join(
        path.read_text("utf-8") for path in SOURCES if "metrics" not in path.parent.name
    )
    named = set(re.findall(r'(?:count|gauge|observe|table|_of)\(\s*\n?\s*"(retuned_\w+)"', text))
    assert len(named) > 40, "the pattern finds the calls"
    assert named <= set(CATALOGUE)


def test_every_metric_of_the_catalogue_is_counted_somewhere() -> None:
    text = "\n".join(
        path.read_text("utf-8")
        for path in SOURCES
        if path.parent.name != "metrics" or path.name == "rows.py"
    )
    built = {f"retuned_swap_proposal_{word}" for word in re.findall(r'yield "(\w+)"', text)}
    silent = {
        name
        for name in CATALOGUE
        if name not in text and name not in built and not name.startswith("retuned_process_")
    }
    assert not silent


def test_every_stage_is_measured_by_every_program_that_has_it() -> None:
    of = {exporter: {each.stage for each in exported_by(exporter)} for exporter in Exporter}
    beside = {Stage.TRACE, Stage.PROFILE, Stage.DRIFT, Stage.SWAP, Stage.WATCH, Stage.OVERHEAD}
    assert set(Stage) - of[Exporter.DAEMON] == {Stage.OPERATOR}
    assert of[Exporter.SIDECAR] >= beside
    judged = {Stage.HYPOTHESIS, Stage.EXPERIMENT, Stage.PROPOSAL, Stage.GATE, Stage.SWAP}
    assert of[Exporter.OPERATOR] >= judged | {Stage.OPERATOR}


def spelt(kinds: Iterable[StrEnum]) -> set[str]:
    return {kebab(str(each)) for each in kinds}


def test_phases_are_those_of_the_state_machines() -> None:
    assert spelt(ProposalPhase) == PHASES
    assert spelt(ExperimentPhase) == EXPERIMENT_PHASES


@pytest.mark.parametrize("each", CATALOGUE.values(), ids=list(CATALOGUE))
def test_no_metric_can_have_many_series(each: object) -> None:
    known = CATALOGUE[getattr(each, "name", "")]
    if known.is_closed:
        assert len(known.series()) <= MAX_CLOSED
        assert len({tuple(row.items()) for row in known.series()}) == len(known.series())
    if known.keeper is Keeper.TABLE:
        assert 0 < known.most_rows <= 2_000
    for label in known.labels:
        assert label.values is None or 0 < len(label.values) <= MAX_CLOSED
        assert label.values is not None or 0 < label.most <= 256


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "swaps_total"}, "retuned_"),
        ({"name": "retuned_Swaps_total"}, "retuned_"),
        ({"name": "retuned_swaps"}, "counters"),
        ({"kind": MetricType.GAUGE}, "counters"),
        ({"unit": Unit.SECONDS}, "unit"),
        ({"buckets": (1.0,)}, "histograms"),
        ({"meaning": "no full stop"}, "a meaning"),
        ({"exporters": frozenset()}, "an exporter"),
        ({"labels": (Label(name="job"),)}, "label"),
        ({"labels": (Label(name="Kernel"),)}, "label"),
        ({"labels": (Label(name="k", values=frozenset(map(str, range(200)))),)}, "series"),
    ],
)
def test_a_metric_that_breaks_a_rule_cannot_be_made(change: dict[str, object], said: str) -> None:
    with raises_naming(ValueError, said):
        replace(metric("retuned_swaps_total"), **change)  # type: ignore[arg-type]


@given(value=st.text())
def test_whatever_a_stranger_says_is_one_printable_bounded_word(value: str) -> None:
    found = admitted(
        "retuned_orders_total", {"outcome": "done", "reason": value}, kind=MetricType.COUNTER
    )
    assert not isinstance(found, Refusal)
    assert len(found["reason"]) <= 128
    assert found["reason"].isprintable()
    rolled = admitted("retuned_rollbacks_total", {"reason": value}, kind=MetricType.COUNTER)
    assert not isinstance(rolled, Refusal)
    known = metric("retuned_rollbacks_total").labels[0].values
    assert known is not None
    assert rolled["reason"] in known | {OTHER}
