"""Products that tables configure: which launch is one, what may be tried, what a win writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retuned.contract import Guard, Language, TrustClass
from retuned.errors import CandidateError, UnreadableInput
from retuned.runtime.tuned_files.changes import parse_change, plan
from retuned.tuned_files.changes import Cost, change_of, choose
from retuned.tuned_files.formats import TABLES, variant_of
from retuned.tuned_files.launches import incumbent_of, read_launch, row_of
from retuned.tuned_files.records import MAX_M, Format, Look, TunedFileStep, read_look

KERNEL = "Cijk_Ailk_Bljk_BBS_BH_MT64x16x64"
BF16 = ("bfloat16", "bfloat16")
DEFINITION = "gemm_bf16_n512_k256"
ONE, TWO = {"solution": "Gemm_Hipblaslt_1"}, {"solution": "Gemm_Hipblaslt_2"}
CELLS = {"operator": "GemmTunableOp_BFloat16_TN", "before": "tn_512_", "after": "_256"}
ANSWER: dict[str, Any] = {
    "path": "/x.csv",
    "digest": "sha256:" + "0" * 64,
    "runs": [[1, 16, ONE], [17, 64, {}], [65, 128, TWO], [129, MAX_M, {}]],
    "cells": CELLS,
}


def look(**changed: Any) -> Look:
    return read_look(ANSWER | changed)


def subject(kind: Format = "tunable-op", **changed: Any) -> TunedFileStep:
    costs = [Cost(low=9, high=16, gpu_time_ns=1000)]
    lookup = {"N": 512, "K": 256}
    return choose(DEFINITION, look(**changed), costs, format=kind, lookup=lookup)


def refused(ask: Any) -> str:
    with pytest.raises(CandidateError) as caught:
        ask()
    return caught.value.reason


def up_to(low: int, high: int) -> Guard:
    return Guard(bounds={"M": (low, high)})


@pytest.mark.parametrize("weights", [(256, 512), (512, 256)])
@pytest.mark.parametrize("kernel", [KERNEL, "bf16gemm_fp32bf16_tn_96x64"])
@pytest.mark.parametrize("dtypes", [BF16, ("c10::BFloat16", "torch.bfloat16")])
def test_a_librarys_product_is_known_by_its_tensors(
    weights: tuple[int, int], kernel: str, dtypes: tuple[str, ...]
) -> None:
    found = read_launch(kernel, ((16, 256), weights), dtypes)
    assert found is not None
    assert (found.definition, found.tokens) == (DEFINITION, 16)
    assert (found.lookup, found.formats) == ({"N": 512, "K": 256}, TABLES)


@pytest.mark.parametrize(
    ("kernel", "dims", "dtypes"),
    [
        ("ampere_bf16_s16816gemm", ((16, 256), (256, 512)), BF16),
        (KERNEL, ((16, 256), (256, 512)), ("float16", "float16")),
        (KERNEL, ((16, 256), (256, 512)), ()),
        (KERNEL, ((16, 256), (255, 512)), BF16),
        (KERNEL, ((2, 16, 256), (256, 512)), BF16),
        (KERNEL, ((512,), (16, 256), (256, 512)), ("bfloat16", *BF16)),
        (KERNEL, ((16, 256),), ("bfloat16",)),
        (KERNEL, ((16, 0), (0, 512)), BF16),
        (KERNEL, ((), ()), BF16),
    ],
)
def test_another_kernel_type_or_tensors_that_do_not_fit_are_nothing(
    kernel: str, dims: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
) -> None:
    assert read_launch(kernel, dims, dtypes) is None


def test_a_row_is_a_variant_that_no_compiler_sees() -> None:
    variant = incumbent_of(DEFINITION, ONE, format="tunable-op")
    assert (variant.language, variant.trust) == (Language.LIBRARY, TrustClass.PARAMETERS)
    assert json.loads(variant.sources[0].content) == ONE
    assert variant.digest != variant_of(DEFINITION, TWO).digest
    assert row_of(variant, subject()) == ONE
    assert refused(lambda: variant_of(DEFINITION, {})) == "row-does-not-map"


def test_only_rows_of_the_table_may_be_written() -> None:
    other = variant_of(DEFINITION, {"solution": "Gemm_Hipblaslt_3"})
    assert refused(lambda: row_of(other, subject())) == "not-a-row"
    host = variant_of(DEFINITION, TWO).model_copy(update={"entry": "other"})
    assert refused(lambda: row_of(host, subject())) == "not-a-row"


def test_a_table_with_nothing_else_to_try_is_left() -> None:
    runs = [[1, 16, ONE], [17, MAX_M, {}]]
    assert refused(lambda: subject(runs=runs)) == "no-other-row"


def test_sizes_without_a_row_are_not_tuned() -> None:
    runs = [[1, 32, {}], [33, 64, ONE], [65, MAX_M, TWO]]
    assert refused(lambda: subject(runs=runs)) == "row-does-not-map"


def test_a_win_writes_every_size_of_its_guard_where_sizes_are_matched_exactly() -> None:
    change = change_of(subject(), variant_of(DEFINITION, TWO), up_to(9, 12), look=look())
    body = json.loads(change.text)
    data = "Validator,PT_VERSION,2.15.0\nGemmTunableOp_BFloat16_TN,tn_512_9_256,Old,1\n"
    planned = plan("x.csv", data.encode(), parse_change(body))
    assert body["before"] == ANSWER["digest"]
    assert planned.data.decode().splitlines()[1:] == [
        f"GemmTunableOp_BFloat16_TN,tn_512_{m}_256,Gemm_Hipblaslt_2,0.0" for m in range(9, 13)
    ]


@pytest.mark.parametrize(
    ("kind", "ends"), [("tunable-op", (1, 300)), ("aiter", (1, 2**17 + 1)), ("aiter", (1, MAX_M))]
)
def test_a_guard_of_more_sizes_than_a_table_takes_writes_nothing(
    kind: Format, ends: tuple[int, int]
) -> None:
    now = {"runs": [[1, 2**20, ONE], [2**20 + 1, MAX_M, ONE | {"a": 1}]]}
    tuned = subject(kind, **now)
    won = variant_of(DEFINITION, ONE | {"a": 1})
    change = lambda: change_of(tuned, won, up_to(*ends), look=look(**now))  # noqa: E731
    assert refused(change) == "guard-beyond-step"


@pytest.mark.parametrize(
    "changed",
    [
        {"cells": {"operator": "x" * 600}},
        {"cells": {"y" * 65: "x"}},
        {"cells": {str(n): "x" for n in range(65)}},
        {"cells": []},
        {"cells": {"operator": 1}},
        {"rule": "x" * 65},
        {"rule": None},
    ],
)
def test_a_server_that_says_nonsense_of_its_table_is_not_read(changed: dict[str, Any]) -> None:
    with pytest.raises(UnreadableInput):
        look(**changed)
