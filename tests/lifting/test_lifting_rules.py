"""Rules of grids and lengths: recovered or refused, never wrong on launches that were held out."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expect import raises_code
from tests.lifting import live

from retuned.lifting.grids import Hints, Rule, rule_of
from retuned.lifting.lift import lift_all
from retuned.lifting.records import NotLifted
from retuned.lifting.shapes import Launch, axes_of

AXES = ("M", "N")
TILES = ("BM", "BN")


def cdiv(left: int, right: int) -> int:
    return -(-left // right)


KNOWN = (
    lambda r: r["M"],
    lambda r: cdiv(r["M"], r["BM"]),
    lambda r: cdiv(r["N"], r["BN"]),
    lambda r: cdiv(r["M"], r["BM"]) * cdiv(r["N"], r["BN"]),
    lambda r: r["M"] * cdiv(r["N"], r["BN"]),
    lambda r: 2 * r["M"],
    lambda r: cdiv(r["M"] * r["N"], r["BM"]),
    lambda r: 132,
    lambda r: 1,
)
STRANGE = (
    lambda r: cdiv(r["M"], r["BM"]) + 1,
    lambda r: min(132, cdiv(r["M"], r["BM"])),
    lambda r: cdiv(r["M"], 2 * r["BM"]),
    lambda r: r["M"] // r["BM"] + 1,
    lambda r: max(r["M"], r["N"]),
)
rows = st.fixed_dictionaries(
    {
        "M": st.integers(1, 5000),
        "N": st.integers(1, 5000),
        "BM": st.sampled_from([16, 32, 64, 128]),
        "BN": st.sampled_from([16, 32, 64, 128]),
    }
)


def inferred(seen: list[dict[str, int]], rule: Any) -> Rule | None:
    hints = Hints(tiles=frozenset(TILES), pairs=frozenset({("M", "BM"), ("N", "BN")}))
    try:
        return rule_of(seen, [rule(row) for row in seen], axes=AXES, hints=hints)
    except NotLifted as error:
        if error.code not in {"needs-more-launches", "grid-unknown"}:
            raise
        return None


@given(seen=st.lists(rows, min_size=1, max_size=10), which=st.sampled_from(KNOWN), held=rows)
@settings(max_examples=120, deadline=None)
def test_a_rule_that_is_inferred_holds_on_launches_that_were_held_out(
    seen: list[dict[str, int]], which: Any, held: dict[str, int]
) -> None:
    found = inferred(seen, which)
    if found is None:
        return
    for row in seen:
        assert found.at(row) == which(row)
    tiles = random.Random(1).choice(seen)
    moved = {n for n in AXES if len({row[n] for row in seen}) > 1}
    lengths = {n: held[n] if n in moved else tiles[n] for n in AXES}
    other = {**tiles, **lengths}  # other lengths of what varied, at constexprs that were seen
    assert found.at(other) == which(other)


@given(which=st.sampled_from(KNOWN), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_enough_launches_recover_every_known_rule(which: Any, seed: int) -> None:
    chance = random.Random(seed)
    seen = [
        {
            "M": chance.randint(1, 5000),
            "N": chance.randint(1, 5000),
            "BM": chance.choice([16, 32, 64]),
            "BN": chance.choice([128, 256]),
        }
        for _ in range(12)
    ]
    found = inferred(seen, which)
    assert found is not None
    probe = {"M": 777, "N": 3001, "BM": 48, "BN": 80}
    assert found.at(probe) == which(probe)


@given(seen=st.lists(rows, min_size=6, max_size=12), which=st.sampled_from(STRANGE), held=rows)
@settings(max_examples=80, deadline=None)
def test_a_rule_of_another_kind_fits_what_was_seen_or_is_refused(
    seen: list[dict[str, int]], which: Any, held: dict[str, int]
) -> None:
    found = inferred(seen, which)
    if found is not None:  # where all that was seen agrees with a plain rule, no more is claimed
        assert [found.at(row) for row in seen] == [which(row) for row in seen]
    del held


def test_a_rule_of_another_kind_is_refused_on_launches_that_show_it() -> None:
    chance = random.Random(3)
    for which in STRANGE:
        seen = [
            {"M": chance.randint(1, 9000), "N": chance.randint(1, 5000), "BM": 16, "BN": 64}
            for _ in range(10)
        ]
        seen += [{"M": 20_000, "N": 7, "BM": 16, "BN": 64}, {"M": 33, "N": 9, "BM": 32, "BN": 64}]
        assert inferred(seen, which) is None


def test_tiles_of_equal_length_are_told_apart_by_the_source() -> None:
    seen = [{"M": m, "N": n, "BM": 64, "BN": 64} for m, n in ((100, 900), (2000, 300), (5, 77))]
    found = inferred(seen, KNOWN[1])
    assert str(found) == "cdiv(M, BM)"
    with raises_code(NotLifted, "needs-more-launches", "cdiv(M, BM)", "cdiv(M, BN)"):
        rule_of(
            seen,
            [KNOWN[1](row) for row in seen],
            axes=AXES,
            hints=Hints(tiles=frozenset(TILES)),
        )


def test_the_text_of_the_callers_rule_tells_tiles_apart() -> None:
    launches = [live.matmul(m, 512, 256) for m in (1, 64, 100, 2048)]
    text = 'lambda META: (triton.cdiv(M, META["BLOCK_SIZE_M"]) * 8, )'
    launches = [{**each, "grid_source": text} for each in launches]
    (one,) = lift_all(launches).lifted
    assert one.own.variants[0].grid == ("8 * cdiv(M, BLOCK_SIZE_M)",)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 600), st.integers(1, 600)), min_size=2, max_size=8),
    times=st.integers(1, 6),
)
@settings(max_examples=80, deadline=None)
def test_lengths_that_are_inferred_give_every_number_of_elements(
    sizes: list[tuple[int, int]], times: int
) -> None:
    launches = [
        Launch(
            ints={"m": m, "n": n, "x_stride": n * times},
            numels={"x": m * n * times, "w": n, "s": m},
            constants={"BLOCK": 64},
            grid=(m, 1, 1),
        )
        for m, n in sizes
    ]
    try:
        axes = axes_of(launches)
    except NotLifted as error:
        if error.code not in {"needs-more-launches", "int-unexplained", "strides-not-contiguous"}:
            raise
        return
    for at, launch in enumerate(launches):
        for name, shape in axes.shapes.items():
            assert math.prod(axes.lengths[axis][at] for axis in shape) == launch.numels[name]
        for name, factors in axes.ints.items():
            lengths = [f if isinstance(f, int) else axes.lengths[f][at] for f in factors]
            assert math.prod(lengths) == launch.ints[name]


@given(
    numels=st.lists(st.integers(0, 2**40), min_size=3, max_size=3),
    grid=st.lists(st.integers(-5, 2**40), min_size=0, max_size=5),
    stride=st.integers(-(2**70), 2**70),
)
@settings(max_examples=60, deadline=None)
def test_launches_that_lie_are_refused_and_never_raise(
    numels: list[int], grid: list[int], stride: int
) -> None:
    launches = [live.rmsnorm(rows) for rows in (1, 7, 64)]
    for launch, numel in zip(launches, numels, strict=True):
        launch["params"][2]["numel"] = numel
        launch["params"][1]["value"] = stride
    launches[0]["grid"] = grid
    outcome = lift_all(launches)
    assert outcome.kept
    for each in outcome.lifted:
        assert each.own.definition.variable_axes


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        "text",
        {},
        {"kernel": "a:b"},
        live.scale(7) | {"grid": [0, 1, 1]},
        live.scale(7) | {"grid": [2**31, 1, 1]},
        live.scale(7) | {"count": 0},
        live.scale(7) | {"params": []},
        live.scale(7) | {"params": [live.number("a b", 1)]},
        live.scale(7) | {"params": [live.number("a", 1), live.number("a", 1)]},
        live.scale(7) | {"params": [live.pointer("x", "complex64", 7)]},
        live.scale(7) | {"params": [live.real("x", math.nan)]},
        live.scale(7) | {"params": [live.number("x", 2**90)]},
        live.scale(7) | {"options": {"num_warps": [1] * 1000}},
        live.scale(7) | {"source": "x" * (1 << 20)},
        live.scale(7) | {"kernel": "k" * 5000},
    ],
)
def test_records_that_cannot_be_are_refused(record: Any) -> None:
    outcome = lift_all([record])
    assert outcome.lifted == []
    assert outcome.kept[0].reason == "observation-invalid"
    assert len(outcome.kept[0].detail) <= 400


def test_one_liar_keeps_no_other_kernel_from_being_lifted() -> None:
    launches: list[Any] = [{"kernel": "liar"}, live.scale(7) | {"source": "def ("}]
    launches += [live.rmsnorm(rows) for rows in (1, 7)]
    outcome = lift_all(launches)
    assert [each.own.definition.op_type for each in outcome.lifted] == ["lifted_rms_norm_forward"]
    assert [each.reason for each in outcome.kept] == ["observation-invalid", "source-unreadable"]


def test_a_source_that_the_runtime_did_not_find_is_named_so() -> None:
    outcome = lift_all([live.scale(7) | {"source": None, "unresolved": ["source-missing"]}])
    assert outcome.kept[0].reason == "source-missing"


def test_many_numbers_do_not_take_long() -> None:
    launches = []
    for rows in (3, 5):
        launch = live.rmsnorm(rows)
        extra = [live.number(f"n{i}", rows * 1000 + i * 7) for i in range(60)]
        names = ", ".join(each["name"] for each in extra)
        launch["params"] = [*launch["params"][:9], *extra, *launch["params"][9:]]
        launch["source"] = launch["source"].replace("n_cols, eps", f"n_cols, {names}, eps")
        launches.append(launch)
    assert lift_all(launches).kept[0].reason == "shape-unknown"
