"""A drift whose experiments wait for the next day's budget does not stay a drift meanwhile."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tests.standalone.local_world import World

from retuned.stages.drift import DetectorState
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.daemon import Loop


def without_budget(world: World) -> Context:
    """Let no experiment begin."""
    ctx = world.loop.ctx
    poor = replace(ctx, settings=replace(ctx.settings, experiments_per_day=0))
    world.loop = Loop(poor)
    return poor


def drift(world: World, *, windows: int) -> None:
    for m in (*[8] * 5, *[256] * windows):
        world.window(m)
        world.loop.turn()


def mixes(ctx: Context) -> DetectorState:
    stored = ctx.store.get(RecordKind.DETECTOR, "state")
    assert stored is not None
    return DetectorState.model_validate(stored.body)


def test_the_mix_is_adopted_while_the_budget_is_spent_and_the_drift_stays_open(
    world: World,
) -> None:
    ctx = without_budget(world)
    drift(world, windows=6)
    assert Counter(world.phases(RecordKind.DRIFT))["explained"] == 1
    assert Counter(world.phases(RecordKind.HYPOTHESIS))["open"] == 1
    before = mixes(ctx)
    (waiting,) = ctx.store.list(RecordKind.DRIFT, phase="explained")
    for _ in range(ctx.settings.baseline_windows + 3):
        world.window(256)
        world.loop.turn()
    assert mixes(ctx) != before
    (still,) = ctx.store.list(RecordKind.DRIFT, phase="explained")
    assert still.id == waiting.id
    assert still.updated_at > waiting.updated_at
    assert Counter(world.phases(RecordKind.DRIFT))["new"] == 0
    assert Counter(world.phases(RecordKind.HYPOTHESIS))["open"] == 1, "it is tested the next day"


def test_what_waits_for_people_is_not_adopted(world: World) -> None:
    """With budget, the belief is tested and its win waits: nothing is called tuned."""
    drift(world, windows=6)
    assert world.phases(RecordKind.PROPOSAL) == ["AwaitingApproval"]
    (waiting,) = world.store.list(RecordKind.DRIFT, phase="explained")
    for _ in range(world.loop.ctx.settings.baseline_windows + 3):
        world.window(256)
        world.loop.turn()
    (still,) = world.store.list(RecordKind.DRIFT, phase="explained")
    assert still.updated_at == waiting.updated_at
