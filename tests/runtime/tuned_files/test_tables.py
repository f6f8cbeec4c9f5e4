"""What a server picks from a table, told step by step: as its own lookup has it, or not at all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.tuned_files import fake_servers as fakes
from tests.runtime.tuned_files.test_formats import GEMM, RESULTS
from tests.runtime.tuned_files.test_service import files, load, table, tunable

from retuned.runtime.schema import Refused
from retuned.runtime.tuned_files.rules import GEMM_RULES, gemm_chain
from retuned.runtime.tuned_files.strict import MAX_M, digest_of
from retuned.runtime.tuned_files.table_formats import read_table
from retuned.runtime.tuned_files.tables import _edges, _runs

__all__ = ["load", "table", "tunable"]
AITER = {"format": "aiter", "lookup": {"N": 512, "K": 256}}
TUNABLE = {"format": "tunable-op", "lookup": {"N": 64, "K": 32}}
ROW = "gfx950,256,{m},512,256,False,torch.bfloat16,torch.bfloat16,False,False,asm,{i},0,1.5,k_{i}\n"


def reason_of(ask: Callable[[], Any]) -> str:
    with pytest.raises(Refused) as refused:
        ask()
    return refused.value.reason


def test_aiters_steps_are_told_with_what_a_new_row_needs_besides(table: Path) -> None:
    said = files().look(AITER)
    assert said["digest"] == digest_of(table.read_bytes())
    assert (said["path"], said["reload"]) == (str(table), "now")
    small = {"libtype": "hipblaslt", "solidx": "7", "splitK": "0", "kernelName": "k_a"}
    large = {"libtype": "asm", "solidx": "9", "splitK": "2", "kernelName": "k_b"}
    assert [(a, b, row) for a, b, row in said["runs"]] == [
        (1, 16, small),
        (17, 32, {}),
        (33, 64, large),
        (65, MAX_M, {}),
    ]
    header = set(read_table("x", GEMM.encode()).header)
    assert set(said["cells"]) | set(small) | {"M"} == header, "a whole row, and nothing twice"
    assert said["cells"]["us"] == "0.0", "nobody measured it with the server's tuner"
    assert said["rule"] in GEMM_RULES


@given(
    st.sets(st.integers(1, 20_000) | st.sampled_from([16, 256, 1024, 4096, 8192]), max_size=6),
    st.sampled_from(GEMM_RULES),
    st.sampled_from([512, 8192]),
    st.lists(st.integers(1, 40_000), max_size=30),
)
def test_steps_are_those_of_the_rule_at_every_size(
    keys: set[int], rule: str, n: int, more: list[int]
) -> None:
    chain = gemm_chain(rule, n)

    def picked(m: int) -> dict[str, str]:
        found = next((key for key in chain(m) if key in keys), None)
        return {} if found is None else {"row": str(found)}

    runs = _runs(_edges(keys), picked)
    assert (runs[0].first, runs[-1].last) == (1, MAX_M)
    assert all(one.last + 1 == other.first for one, other in pairwise(runs))
    near = {key + step for key in keys for step in (-129, -128, -127, -64, -1, 0, 1)}
    for m in {*more, *near, *(key // 2 for key in keys), 1, 8193, 10**6}:
        if m >= 1:
            (run,) = (each for each in runs if each.first <= m <= each.last)
            assert run.config == picked(m), m


def test_a_table_for_several_devices_is_told_as_the_server_picks(table: Path) -> None:
    other = GEMM.splitlines(keepends=True)[1].replace("gfx950", "gfx942").replace(",7,", ",8,")
    table.write_text(GEMM.replace("k_b\n", "k_b\n" + other.replace("k_a", "k_c")))
    module: Any = sys.modules[fakes.AITER]
    module.AITER_CONFIGS.get_config_file.cache_clear()
    module.get_GEMM_A16W16_config_.cache_clear()
    module.get_GEMM_A16W16_config.cache_clear()
    said = files().look(AITER)  # this stand-in takes the last row of a shape
    assert said["cells"]["gfx"] == "gfx942"
    assert [row.get("kernelName") for _, _, row in said["runs"]] == ["k_c", None]


def test_a_server_that_picks_something_else_than_its_table_is_not_told_of(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = sys.modules[fakes.AITER]
    before = module.get_GEMM_A16W16_config

    def other(*about: Any) -> Any:
        return before(*about) | {"solidx": 3}

    other.cache_clear = before.cache_clear  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "get_GEMM_A16W16_config", other)
    assert reason_of(lambda: files().look(AITER)) == "picks-differ"


def test_what_a_table_does_not_have_is_said(table: Path) -> None:
    ask = files()
    for lookup in ({"N": 513, "K": 256}, {"N": 512, "K": 256, "bias": True}):
        assert reason_of(partial(ask.look, AITER | {"lookup": lookup})) == "shape-absent"
    table.unlink()
    assert reason_of(lambda: ask.look(AITER)) == "file-missing"


def test_results_of_pytorch_are_told_size_by_size(tunable: fakes.Tunable) -> None:
    said = files().look(TUNABLE)
    assert said["runs"] == [
        [1, 15, {}],
        [16, 16, {"solution": "Gemm_Hipblaslt_12"}],
        [17, 31, {}],
        [32, 32, {"solution": "Default"}],
        [33, MAX_M, {}],
    ]
    assert said["cells"] == {
        "operator": "GemmTunableOp_BFloat16_TN",
        "before": "tn_64_",
        "after": "_32_ld_32_32_64",
    }


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("GemmTunableOp_BFloat16_NN,nn_64_16_32_ld_64_32_64,G,1\n", "shape-ambiguous"),
        ("GemmTunableOp_BFloat16_TN,tn_64_16_32_ld_32_32_65,G,1\n", "shape-ambiguous"),
        ("GemmAndBiasTunableOp_BFloat16_TN,tn_64_16_32_ld_32_32_64,G,1\n", ""),
        ("GemmTunableOp_float_TN,tn_64_16_32_ld_32_32_64,G,1\n", ""),
        ("GemmTunableOp_BFloat16_NT,nt_64_16_32_ld_64_16_64,G,1\n", ""),
    ],
)
def test_only_rows_of_the_plain_product_in_one_layout_are_its_rows(
    tunable: fakes.Tunable, row: str, reason: str
) -> None:
    tunable.path.write_text(RESULTS + row)
    tunable._clear_all()
    tunable.read_file(str(tunable.path))
    if reason:
        assert reason_of(lambda: files().look(TUNABLE)) == reason
    else:
        assert len(files().look(TUNABLE)["runs"]) == 5


def test_a_result_that_only_memory_has_otherwise_is_found(tunable: fakes.Tunable) -> None:
    tunable.rows[("GemmTunableOp_BFloat16_TN", "tn_64_16_32_ld_32_32_64")] = "Gemm_Rocblas_1"
    assert reason_of(lambda: files().look(TUNABLE)) == "picks-differ"


def test_a_pytorch_that_cannot_read_again_is_told_of_for_its_next_start(
    tunable: fakes.Tunable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(fakes.Tunable, "_clear_all")
    assert files().look(TUNABLE)["reload"] == "at-restart"
