"""Kernels that files configure: which launch is one, which row can be tuned, what a win writes."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.standalone.file_world import DEFINITION, LARGE, ROWS, SMALL, TYPES, WON, winner

from retuned import catalog
from retuned.contract import Guard, Language
from retuned.errors import CandidateError, UnreadableInput, UsageError
from retuned.runtime.tuned_files.changes import parse_change, plan
from retuned.runtime.tuned_files.moe_json import read_moe
from retuned.runtime.tuned_files.rules import picked, runs_of
from retuned.tuned_files.changes import Cost, change_of, choose
from retuned.tuned_files.formats import NAMES, incumbent_of, stages_row
from retuned.tuned_files.launches import lookup_of, read_launch
from retuned.tuned_files.records import MAX_M, Look, PickedRun, TunedFileStep, read_look

DIMS = ((16, 256), (8, 256, 256), (8, 256, 128), (16, 2), (16, 2))
FILE = json.dumps(ROWS).encode()
ANSWER = {
    "path": "/x.json",
    "digest": "sha256:" + "0" * 64,
    "runs": [[1, 64, SMALL], [65, MAX_M, LARGE]],
    "reload": "now",
}
LOOKUP = {"E": 8, "N": 128, "K": 256, "top_k": 2, "dtype": None}


def look(**changed: Any) -> Look:
    return read_look(ANSWER | changed)


def cost(low: int, high: int, ns: int = 1000) -> Cost:
    return Cost(low=low, high=high, gpu_time_ns=ns)


def chosen(*costs: Cost, **more: Any) -> TunedFileStep:
    return choose(DEFINITION, look(), costs, format="moe-vllm", lookup=LOOKUP, **more)


def up_to(low: int, high: int) -> Guard:
    return Guard(bounds={"M": (low, high)})


def test_a_launch_is_recognised_by_five_tensors_that_fit_each_other() -> None:
    found = read_launch("fused_moe_kernel", (*DIMS, (4,)), (*TYPES, "float32"))
    assert found is not None
    assert (found.definition, found.tokens, found.lookup) == (DEFINITION, 16, LOOKUP)
    swapped = (*TYPES[:3], "int32", "float32")
    assert read_launch("fused_moe_kernel", DIMS, swapped) == found, "routes come in either order"
    spelled = ("c10::BFloat16",) * 3 + ("float", "long int")
    assert read_launch("fused_moe_kernel", DIMS, spelled) == found


@pytest.mark.parametrize(
    ("kernel", "dims", "dtypes"),
    [
        ("other_kernel", DIMS, TYPES),
        ("fused_moe_kernel", DIMS[:4], TYPES[:4]),
        ("fused_moe_kernel", DIMS, ()),
        ("fused_moe_kernel", DIMS, ("float16",) * 3 + TYPES[3:]),
        ("fused_moe_kernel", DIMS, (*TYPES[:3], "float32", "float32")),
        ("fused_moe_kernel", ((16, 128), *DIMS[1:]), TYPES),
        ("fused_moe_kernel", (DIMS[0], (8, 300, 256), *DIMS[2:]), TYPES),
        ("fused_moe_kernel", (*DIMS[:3], (16, 2), (16, 3)), TYPES),
        ("fused_moe_kernel", (*DIMS[:3], (16, 9), (16, 9)), TYPES),
    ],
)
def test_a_name_alone_or_tensors_that_do_not_fit_are_nothing(
    kernel: str, dims: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
) -> None:
    assert read_launch(kernel, dims, dtypes) is None


def test_only_a_mixture_of_experts_has_a_lookup() -> None:
    assert lookup_of(DEFINITION) == LOOKUP
    with pytest.raises(UsageError):
        lookup_of("rmsnorm_h64")


@pytest.mark.parametrize("row", [SMALL, LARGE, WON, SMALL | {"SPLIT_K": 1, "BLOCK_SIZE_N": 256}])
def test_a_row_is_a_variant_and_the_variant_is_that_row(row: dict[str, Any]) -> None:
    solution = incumbent_of(DEFINITION, row)
    entry = catalog.get(DEFINITION, language=Language.TRITON)
    assert (solution.structure, solution.steps) == ("stages", entry.incumbent.steps)
    assert stages_row(solution, today=row) == row


def test_what_triton_takes_where_a_row_is_silent_is_what_is_measured_against() -> None:
    silent = {name: SMALL[name] for name in SMALL if not name.startswith("num_")}
    params = incumbent_of(DEFINITION, silent).params
    assert (params["num_warps"], params["num_stages"]) == (4, 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("BLOCK_SIZE_M", v) for v in (0, 8, 48, -16, 1024, True, "16")),
        *(("num_warps", v) for v in (0, 3, 64)),
        *(("num_stages", v) for v in (0, 11, False)),
    ],
)
def test_a_row_that_no_such_kernel_can_have_does_not_map(name: str, value: Any) -> None:
    with pytest.raises(CandidateError) as refused:
        incumbent_of(DEFINITION, SMALL | {name: value})
    assert refused.value.reason == "row-does-not-map"


def test_a_variant_of_another_structure_source_or_author_is_no_row() -> None:
    entry = catalog.get(DEFINITION, language=Language.TRITON)
    good = winner()
    others = (
        entry.solution("gated", dict(good.params)),
        good.model_copy(update={"trust": "L"}),
        good.model_copy(update={"params": {**good.params, "BLOCK_E": 16}}),
        good.model_copy(update={"params": {**good.params, "MORE": 1}}),
        good.model_copy(
            update={"sources": (good.sources[0].model_copy(update={"content": "# other"}),)}
        ),
    )
    for other in others:
        with pytest.raises(CandidateError) as refused:
            stages_row(other, today=SMALL)
        assert refused.value.reason == "not-a-row"


def test_the_step_that_takes_most_time_is_chosen_and_one_that_was_tested_comes_last() -> None:
    costs = (cost(9, 16), cost(57, 64), cost(100, 128, ns=1500))
    assert chosen(*costs).run.row == SMALL
    assert chosen(*costs, cost(120, 128)).run.row == LARGE
    tested = {incumbent_of(DEFINITION, SMALL).digest}
    assert chosen(*costs, tested=tested).run.row == LARGE
    assert chosen(cost(9, 16), tested=tested).run.row == SMALL


def test_of_a_bucket_that_straddles_a_step_nothing_is_concluded() -> None:
    with pytest.raises(CandidateError) as refused:
        chosen(cost(60, 72, ns=10**9))
    assert refused.value.reason == "no-step-covers"
    assert chosen(cost(60, 72, ns=10**9), cost(1, 1, ns=1)).run.row == SMALL


@given(st.tuples(st.integers(1, 64), st.integers(1, 64)).map(sorted))
def test_a_change_gives_the_row_to_its_guard_and_leaves_every_other_size(ends: list[int]) -> None:
    low, high = ends
    change = change_of(chosen(cost(9, 16)), winner(), up_to(low, high), look=look())
    body = json.loads(change.text)
    assert body["before"] == ANSWER["digest"]
    planned = plan("x.json", FILE, parse_change(body))
    before = runs_of(read_moe("x", FILE, version_key=True).rows)
    after = runs_of(read_moe("x", planned.data, version_key=True).rows)
    for m in range(1, 300):
        expected = WON if low <= m <= high else picked(before, m)
        assert picked(after, m) == expected


def test_without_a_file_the_change_says_what_is_picked_for_every_size() -> None:
    bare = look(digest=None)
    subject = choose(DEFINITION, bare, [cost(9, 16)], format="moe-vllm", lookup=LOOKUP)
    change = change_of(subject, winner(), up_to(9, 16), look=bare)
    planned = plan("x.json", None, parse_change(json.loads(change.text)))
    runs = runs_of(read_moe("x", planned.data, version_key=True).rows)
    assert [picked(runs, m) for m in (8, 9, 16, 17, 64, 65, 5000)] == [
        *(SMALL, WON, WON, SMALL, SMALL, LARGE, LARGE)
    ]


@pytest.mark.parametrize(
    ("guard", "now", "reason"),
    [
        (up_to(9, 65), {}, "guard-beyond-step"),
        (Guard(bounds={"M": (1, 4), "K": (1, 2)}), {}, "guard-beyond-step"),
        (up_to(9, 16), {"runs": [[1, 12, SMALL], [13, MAX_M, LARGE]]}, "file-changed"),
        (up_to(9, 16), {"runs": [[1, MAX_M, WON]]}, "file-changed"),
    ],
)
def test_a_win_that_the_file_of_today_does_not_bear_writes_nothing(
    guard: Guard, now: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CandidateError) as refused:
        change_of(chosen(cost(9, 16)), winner(), guard, look=look(**now))
    assert refused.value.reason == reason


def test_on_a_change_that_is_in_force_the_next_is_made_whatever_is_picked_by_now() -> None:
    now = look(runs=[[1, 8, SMALL], [9, 16, WON | {"num_warps": 4}], [17, MAX_M, SMALL]])
    change = change_of(chosen(cost(9, 16)), winner(), up_to(9, 16), look=now, under="before")
    assert change.under == "before"
    with pytest.raises(CandidateError) as refused:
        change_of(
            chosen(cost(9, 16)),
            winner(),
            up_to(9, 16),
            look=look(runs=[[1, 8, SMALL], [9, 16, WON], [17, MAX_M, SMALL]]),
            under="before",
        )
    assert refused.value.reason == "nothing-to-change"


@pytest.mark.parametrize(
    "changed",
    [
        {"runs": []},
        {"runs": None},
        {"runs": [[1, 64, SMALL]]},
        {"runs": [[2, MAX_M, SMALL]]},
        {"runs": [[1, 64, SMALL], [66, MAX_M, SMALL]]},
        {"runs": [[1, 64, SMALL], [60, MAX_M, SMALL]]},
        {"runs": [[1, MAX_M, {"BLOCK_SIZE_M": 1.5}]]},
        {"runs": [[1, MAX_M, {"BLOCK_SIZE_M": [1]}]]},
        {"runs": [[1, MAX_M]]},
        {"runs": [[1, 1, SMALL]] * 3000},
        {"digest": "sha256:x"},
        {"path": 1},
        {"path": "x" * 5000},
        {"reload": "later"},
    ],
)
def test_a_server_that_says_nonsense_of_its_file_is_not_read(changed: dict[str, Any]) -> None:
    with pytest.raises(UnreadableInput) as refused:
        look(**changed)
    assert refused.value.code == "look-invalid"


def test_every_parameter_that_is_chosen_has_a_name_on_either_side() -> None:
    entry = catalog.get(DEFINITION, language=Language.TRITON)
    space = entry.space("stages")
    free = {name for name, values in space.params.items() if len(values) > 1}
    assert set(NAMES.values()) == free, "what the lab varies and a row does not say would be lost"


def test_steps_of_a_look_follow_each_other() -> None:
    assert all(one.last + 1 == other.first for one, other in pairwise(look().runs))
    assert isinstance(look().runs[0], PickedRun)
