"""The floor that no kernel can beat: certain for what is read whole, silent about tables."""

from __future__ import annotations

import pytest

from retuned import catalog
from retuned.contract import Language
from retuned.lab.physics import (
    CARD_PEAKS,
    GPU_PEAKS,
    Peak,
    Work,
    chosen_axes,
    floor_us,
    gpu_floor_us,
    roof_us,
)


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("rope_q8_k2_d64", {"P"}),
        ("paged_attention_bf16_h32_g8_d128_p16", {"C", "W", "P"}),
        ("moe_gemm_bf16_e128_t8_n768_k2048", {"E", "M", "T"}),
        ("rmsnorm_h512", set()),
    ],
)
def test_axes_along_which_inputs_choose_are_known(name: str, axes: set[str]) -> None:
    assert chosen_axes(catalog.get(name).definition) == axes


def test_a_larger_table_that_is_looked_into_raises_no_floor() -> None:
    definition = catalog.get("rope_q8_k2_d64").definition
    floors = [floor_us(definition, {"M": 1, "P": rows}, parts=1) for rows in (64, 131_072)]
    assert floors[0] == floors[1] > 0.0
    paged = catalog.get("paged_attention_bf16_h32_g8_d128_p16", language=Language.TRITON).definition
    one = gpu_floor_us(paged, {"B": 1, "C": 16_384, "W": 64}, arch="sm_90", cache=0)
    assert 0.0 < one < 1.3, "what one sequence reads takes that long"


def test_what_every_launch_reads_whole_stays_in_the_floor() -> None:
    definition = catalog.get("rmsnorm_h512").definition
    few, many = (floor_us(definition, {"M": rows}, parts=1) for rows in (1, 1000))
    assert many > 300 * few


CARD = Peak(
    gbytes_per_s=1_000.0, gflops=1.0, cache_bytes=0, half_gflops=4_000.0, byte_gflops=8_000.0
)


@pytest.mark.parametrize(
    ("moved", "operations", "operand", "roof"),
    [
        (5_000_000, 8_000_000, 2, 5.0),  # 1e6 bytes a us; 4e6 operations a us need 2 us
        (1_000_000, 8_000_000, 2, 2.0),
        (1_000_000, 16_000_000, 1, 2.0),  # twice the rate
        (1_000_000, 8_000_000, 4, 4.0),  # half of it
        (1_000_000, 8_000_000, 8, 1.0),  # no rate is known: memory alone
        (0, 0, 2, 0.0),
    ],
)
def test_a_roof_is_the_slower_of_memory_and_units(
    moved: int, operations: int, operand: int, roof: float
) -> None:
    work = Work(moved_bytes=moved, operations=operations, operand_bytes=operand)
    assert roof_us(work, CARD) == roof


def test_every_architecture_has_the_rates_of_one_of_the_cards() -> None:
    assert all(peak in CARD_PEAKS.values() for peak in GPU_PEAKS.values())
    for peak in CARD_PEAKS.values():
        assert 0 < peak.half_gflops <= peak.byte_gflops
        assert 0 < peak.gflops < peak.half_gflops
        assert 300 <= peak.gbytes_per_s <= 8_000
        assert peak.cache_bytes >= 8 * 2**20
