"""What of ended experiments goes, and what stays however old it is."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.standalone.local_world import INCUMBENT, WINNER, Killed, World
from tests.standalone.test_proposing import win

from retuned.errors import UnreadableInput
from retuned.stages.proposal import Proposal
from retuned.stages.swap import order_swap
from retuned.standalone import cleanup, proposals
from retuned.standalone.cleanup import (
    LabArtifactType,
    LabFile,
    RetainedIds,
    expendable,
)
from retuned.standalone.context import Context, RecordKind, Retention

DAY_S = 86_400.0
OTHER = "sha256:" + "cd" * 32


@pytest.fixture
def ctx(world: World) -> Context:
    """A context whose lab holds the winner, the incumbent and a variant that nobody needs."""
    root = world.folder / "lab"
    made = replace(world.loop.ctx, lab=root)
    for digest in (WINNER.digest, INCUMBENT.digest, OTHER):
        folder = root / "artifacts" / digest.removeprefix("sha256:")
        folder.mkdir(parents=True)
        (folder / "kernel.so").write_bytes(b"code")
    (root / "evidence").mkdir()
    (root / "evidence" / f"{'ab' * 32}.json").write_text("{}")
    (root / "compiled").mkdir()
    (root / "compiled" / ".child-1").mkdir()
    (root / "compiled" / "object").write_text("x")
    touch(made)
    return made


def touch(ctx: Context) -> None:
    """Date everything now, by the clock of the test."""
    assert ctx.lab is not None
    now_s = ctx.clock.now().timestamp()
    for path in ctx.lab.rglob("*"):
        os.utime(path, (now_s, now_s))


def artifacts(ctx: Context) -> set[str]:
    assert ctx.lab is not None
    return {f"sha256:{path.name}" for path in (ctx.lab / "artifacts").iterdir()}


def evidence_of(ctx: Context) -> str:
    (stored,) = ctx.store.list(RecordKind.PROPOSAL)
    return str(stored.body["evidence"])


def test_after_its_time_goes_what_nobody_needs_and_nothing_sooner(
    world: World, ctx: Context
) -> None:
    win(ctx)
    proposals.propose(ctx)
    world.clock.advance(29 * DAY_S)
    assert cleanup.keep_house(ctx).total() == 0
    assert len(artifacts(ctx)) == 3
    world.clock.advance(2 * DAY_S)
    gone = cleanup.keep_house(ctx)
    assert artifacts(ctx) == {WINNER.digest, INCUMBENT.digest}  # it waits for people
    assert gone == {
        LabArtifactType.ARTIFACT: 1,
        LabArtifactType.RAW: 1,
        LabArtifactType.COMPILED: 1,
        "finding": 0,
    }
    assert ctx.lab is not None
    assert (ctx.lab / "compiled" / ".child-1").is_dir()
    assert ctx.store.get_blob(evidence_of(ctx))


def test_it_is_looked_once_a_day(world: World, ctx: Context) -> None:
    world.clock.advance(31 * DAY_S)
    assert cleanup.keep_house(ctx).total() > 0
    touch(ctx)
    assert ctx.lab is not None
    old = ctx.lab / "artifacts" / ("ef" * 32)
    old.mkdir()
    os.utime(old, (0, 0))
    world.clock.advance(DAY_S / 2)
    assert cleanup.keep_house(ctx).total() == 0
    world.clock.advance(DAY_S)
    assert cleanup.keep_house(ctx)[LabArtifactType.ARTIFACT] == 1


@pytest.mark.parametrize("phase", ["new", "sent", "done"])
def test_what_is_in_force_or_ordered_stays_with_its_way_back_and_its_evidence(
    world: World, ctx: Context, phase: str
) -> None:
    win(ctx)
    proposals.propose(ctx)
    (stored,) = ctx.store.list(RecordKind.PROPOSAL)
    order = order_swap(Proposal.model_validate(stored.body), epoch=1, previous=OTHER)
    ctx.store.add(RecordKind.ORDER, order.id, order.model_dump(mode="json"), phase=phase)
    ctx.store.advance(RecordKind.PROPOSAL, stored.id, expect="Pending", to="Superseded")
    world.clock.advance(500 * DAY_S)
    cleanup.keep_house(ctx)
    assert artifacts(ctx) >= {WINNER.digest, OTHER}
    assert ctx.store.get_blob(evidence_of(ctx))


def test_evidence_stays_longer_than_raw_samples_and_its_going_is_written_down(
    world: World, ctx: Context
) -> None:
    experiment = win(ctx)
    proposals.propose(ctx)
    (stored,) = ctx.store.list(RecordKind.PROPOSAL)
    ctx.store.advance(RecordKind.PROPOSAL, stored.id, expect="Pending", to="Rejected")
    world.clock.advance(100 * DAY_S)
    cleanup.keep_house(ctx)
    assert artifacts(ctx) == set()
    assert ctx.store.get_blob(evidence_of(ctx))
    world.clock.advance(300 * DAY_S)
    assert cleanup.keep_house(ctx)["finding"] == 2
    with pytest.raises(UnreadableInput):
        ctx.store.get_blob(evidence_of(ctx))
    assert len(ctx.store.list(RecordKind.FINDING)) == 2  # verdicts and sources stay
    said = [each for each in ctx.store.events(id=experiment) if each.what == "evidence-removed"]
    assert [each.detail["documents"] for each in said] == [2]
    world.clock.advance(2 * DAY_S)
    assert cleanup.keep_house(ctx)["finding"] == 0


def test_a_win_that_waits_or_rests_keeps_its_evidence(world: World, ctx: Context) -> None:
    experiment = win(ctx)
    proposals.propose(ctx)
    (stored,) = ctx.store.list(RecordKind.PROPOSAL)
    ctx.store.advance(RecordKind.PROPOSAL, stored.id, expect="Pending", to="Expired")
    ctx.store.advance(RecordKind.EXPERIMENT, experiment, expect="proposed", to="lapsed")
    world.clock.advance(500 * DAY_S)
    cleanup.keep_house(ctx)
    assert ctx.store.get_blob(evidence_of(ctx))


def test_an_order_that_cannot_be_read_stops_the_clearing(world: World, ctx: Context) -> None:
    ctx.store.add(RecordKind.ORDER, "damaged", {"definition": "linear"}, phase="done")
    world.clock.advance(500 * DAY_S)
    assert cleanup.keep_house(ctx).total() == 0
    assert len(artifacts(ctx)) == 3
    assert ctx.store.get(RecordKind.HOUSEKEEPING, cleanup.STATE) is None


def test_a_kill_anywhere_leaves_records_and_files_that_the_next_day_clears(
    world: World, ctx: Context
) -> None:
    experiment = win(ctx)
    proposals.propose(ctx)
    (stored,) = ctx.store.list(RecordKind.PROPOSAL)
    ctx.store.advance(RecordKind.PROPOSAL, stored.id, expect="Pending", to="Rejected")
    world.clock.advance(400 * DAY_S)
    kills = 0
    while True:
        world.boundaries, world.kill_at = 0, kills + 1
        try:
            cleanup.keep_house(ctx)
        except Killed:
            kills += 1
            continue
        break
    world.kill_at = None
    assert kills >= 5
    assert artifacts(ctx) == set()
    said = [each for each in ctx.store.events(id=experiment) if each.what == "evidence-removed"]
    assert len(said) == 1
    world.clock.advance(2 * DAY_S)
    assert cleanup.keep_house(ctx).total() == 0


def test_a_folder_whose_removal_was_interrupted_is_finished(world: World, ctx: Context) -> None:
    assert ctx.lab is not None
    half = ctx.lab / "artifacts" / ".going-something"
    half.mkdir()
    (half / "kernel.so").write_bytes(b"code")
    cleanup.keep_house(ctx)
    assert not half.exists()


def test_a_link_in_the_lab_is_not_followed(world: World, ctx: Context, tmp_path: Path) -> None:
    assert ctx.lab is not None
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    (ctx.lab / "artifacts" / ("ef" * 32)).symlink_to(outside)
    world.clock.advance(500 * DAY_S)
    cleanup.keep_house(ctx)
    assert (outside / "file").read_text() == "mine"


@given(
    st.lists(
        st.tuples(st.sampled_from(LabArtifactType), st.integers(0, 9), st.integers(0, 99)),
        max_size=20,
    ),
    st.sets(st.integers(0, 9)),
    st.integers(1, 60),
)
def test_what_is_pinned_or_young_never_goes(
    made: list[tuple[LabArtifactType, int, int]], pinned: set[int], days: int
) -> None:
    things = [
        LabFile(sort=sort, name=f"{n:064x}", age=timedelta(days=age)) for sort, n, age in made
    ]
    pins = RetainedIds(digests=frozenset(f"sha256:{n:064x}" for n in pinned))
    gone = expendable(things, pins=pins, retention=Retention(things=timedelta(days=days)))
    assert all(each.age > timedelta(days=days) for each in gone)
    assert not {each.name for each in gone} & {f"{n:064x}" for n in pinned}
    stays = len([t for t in things if t.age <= timedelta(days=days) or pins.holds(t.name)])
    assert len(gone) + stays == len(things)


def test_windows_go_after_a_week_but_those_of_drift_and_the_ones_before(
    world: World, ctx: Context
) -> None:
    for number in range(1, 7):
        ctx.store.add(RecordKind.WINDOW, f"w{number}", {}, phase="judged")
        phase = "answered" if number == 4 else "noted"
        ctx.store.add(RecordKind.DRIFT, f"w{number}", {}, phase=phase)
        world.clock.advance(DAY_S)
    assert cleanup.keep_house(replace(ctx, lab=None))[str(RecordKind.WINDOW)] == 0
    world.clock.advance(3.5 * DAY_S)  # the first three are older than a week
    assert cleanup.keep_house(replace(ctx, lab=None))[str(RecordKind.WINDOW)] == 2
    assert ctx.store.ids(RecordKind.WINDOW) == ["w3", "w4", "w5", "w6"]
    assert ctx.store.ids(RecordKind.DRIFT) == ["w4", "w5", "w6"]
