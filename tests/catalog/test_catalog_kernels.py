"""Every structure, at several points and odd shapes, against float64 and the incumbent."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.catalog.running import launch

from retuned import catalog
from retuned.catalog import KernelEntry
from retuned.contract import Definition, Solution
from retuned.lab.oracle import compare, reduced_elements
from retuned.runtime.native.cpu import CpuKernel

Compile = Callable[[Solution, Path, Path, tuple[str, ...]], None]
Build = Callable[[Definition, Solution], CpuKernel]

ROWS = (1, 2, 3, 5, 17, 64)

LINEAR = {
    "row-dots": [
        {"ROWS": 1, "XROWS": 1, "UNROLL": 4, "AHEAD": 0, "VEC": 16, "THREADS": 1},
        {"ROWS": 8, "XROWS": 4, "UNROLL": 1, "AHEAD": 2, "VEC": 32, "THREADS": 1},
        {"ROWS": 4, "XROWS": 2, "UNROLL": 2, "AHEAD": 2, "VEC": 64, "THREADS": 1},
    ],
    "panels": [
        {"P": 16, "TILE": 8, "CHUNK": 64, "VEC": 64, "THREADS": 1},
        {"P": 32, "TILE": 4, "CHUNK": 32, "VEC": 16, "THREADS": 1},
        {"P": 64, "TILE": 2, "CHUNK": 128, "VEC": 32, "THREADS": 1},
    ],
    "packed-panels": [
        {"P": 16, "TILE": 12, "CHUNK": 32, "STAGE": 0, "VEC": 64, "THREADS": 1},
        {"P": 32, "TILE": 6, "CHUNK": 64, "STAGE": 0, "VEC": 32, "THREADS": 1},
        {"P": 64, "TILE": 2, "CHUNK": 32, "STAGE": 0, "VEC": 16, "THREADS": 1},
        {"P": 64, "TILE": 4, "CHUNK": 64, "STAGE": 1, "VEC": 64, "THREADS": 1},
    ],
}
RMSNORM = {
    "rows": [
        {"UNROLL": 1, "VEC": 16, "THREADS": 1},
        {"UNROLL": 8, "VEC": 64, "THREADS": 1},
    ],
    "row-groups": [
        {"ROWS": 2, "VEC": 64, "THREADS": 1},
        {"ROWS": 8, "VEC": 32, "THREADS": 1},
    ],
}
SILU_MUL = {
    structure: [
        {"UNROLL": unroll, "VEC": vec, "THREADS": 1} for unroll, vec in ((1, 16), (4, 32), (2, 64))
    ]
    for structure in ("polynomial", "table")
}
GELU_MUL = SILU_MUL
ADD_RMSNORM = RMSNORM
LAYERNORM = {
    structure: [{"UNROLL": unroll, "VEC": vec, "THREADS": 1} for unroll, vec in ((1, 16), (8, 64))]
    for structure in ("passes", "shifted")
}
ROPE, TOPK = (
    {
        structure: [
            {"UNROLL": unroll, "VEC": vec, "THREADS": 1}
            for unroll, vec in ((1, 16), (2, 64), (4, 32))
        ]
        for structure in structures
    }
    for structures in (("heads", "angles"), ("rounds", "insert"))
)
SOFTMAX = {
    structure: [
        {"UNROLL": unroll, "EXP": exp, "VEC": vec, "THREADS": 1}
        for unroll, exp, vec in (
            (1, "exp_table", 16),
            (8, "exp_nonpositive", 32),
            (4, "exp_table", 64),
        )
    ]
    for structure in ("three-pass", "online")
}


def _two_pass(head: int, keys: int, chains: int, vec: int) -> dict[str, int | str]:
    return {"HEAD": head, "KEYS": keys, "CHAINS": chains, "VEC": vec, "THREADS": 1}


def _online(head: int, keys: int, queries: int, tile: int, vec: int) -> dict[str, int | str]:
    tiles = {"KEYS": keys, "QUERIES": queries, "TILE": tile}
    return {"HEAD": head, **tiles, "VEC": vec, "THREADS": 1}


ATTENTION_16 = {
    "two-pass": [_two_pass(16, 256, 1, 16), _two_pass(16, 256, 4, 64)],
    "online": [_online(16, 32, 32, 2, 16), _online(16, 128, 32, 8, 32)],
}
ATTENTION_64 = {
    "two-pass": [_two_pass(64, 1024, 4, 64)],
    "online": [_online(64, 64, 64, 6, 64), _online(64, 32, 128, 4, 32)],
}
# Keys beyond 256 are a second chunk of two-pass; queries beyond 32 a second block of online.
LENGTHS = (
    (1, 1),
    (1, 7),
    (1, 300),
    (2, 2),
    (3, 70),
    (5, 33),
    (17, 17),
    (33, 65),
    (64, 64),
    (64, 290),
)

Case = tuple[str, str, dict[str, int | str], tuple[dict[str, int], ...]]


def _cases() -> Iterator[Case]:
    rows = tuple({"M": m} for m in ROWS)
    lengths = tuple({"T": t, "S": s} for t, s in LENGTHS)
    both = tuple({"M": m, "N": n} for m, n in ((1, 1), (2, 15), (3, 64), (5, 257), (17, 1000)))
    tables = tuple({"M": m, "P": p} for m, p in ((1, 1), (2, 7), (5, 300), (33, 50)))
    table: tuple[tuple[str, Any, tuple[dict[str, int], ...]], ...] = (
        ("linear_w8_n37_k53", {k: v for k, v in LINEAR.items() if k != "packed-panels"}, rows),
        ("linear_w8_n64_k53", {"packed-panels": LINEAR["packed-panels"]}, rows),
        ("linear_w8_n128_k160", LINEAR, rows),
        ("rmsnorm_h512", RMSNORM, rows),
        ("rmsnorm_h77", RMSNORM, rows),
        ("silu_mul_i1408", SILU_MUL, rows[:4]),
        ("silu_mul_i45", SILU_MUL, rows),
        ("add_rmsnorm_h512", ADD_RMSNORM, rows[:4]),
        ("add_rmsnorm_h77", ADD_RMSNORM, rows),
        ("layernorm_h512", LAYERNORM, rows),
        ("layernorm_h77", LAYERNORM, rows),
        ("layernorm_h1", LAYERNORM, rows[:3]),
        ("gelu_mul_i45", GELU_MUL, rows),
        ("rope_q3_k1_d128", ROPE, tables),
        ("rope_q5_k2_d38", ROPE, tables),
        ("topk_gating_e128_k8", TOPK, rows),
        ("topk_gating_e33_k32", TOPK, rows[:4]),
        ("topk_gating_e5_k1", TOPK, rows),
        ("topk_gating_e2_k2", TOPK, rows),
        ("softmax", SOFTMAX, both),
        ("softmax_n2048", SOFTMAX, rows[:4]),
        ("attention_h2_d16", ATTENTION_16, lengths),
        ("attention_h8_d64", ATTENTION_64, lengths),
    )
    for name, structures, axes in table:
        for structure, points in structures.items():
            for params in points:
                yield name, structure, params, axes


def _label(case: Case) -> str:
    name, structure, params, _ = case
    return f"{name}-{structure}-" + "-".join(str(v) for v in params.values())


@pytest.mark.parametrize("case", list(_cases()), ids=_label)
def test_a_variant_agrees_with_float64_as_well_as_the_incumbent_does(
    case: Case, build: Build
) -> None:
    name, structure, params, shapes = case
    entry = catalog.get(name)
    solution = entry.solution(structure, params)
    candidate = build(entry.definition, solution)
    incumbent = build(entry.definition, entry.incumbent)
    for number, axes in enumerate(shapes):
        for family in entry.families:
            inputs = entry.inputs(axes, seed=number, family=family)
            expected = entry.reference(inputs, axes)
            got = launch(candidate, entry, inputs, axes, layouts=dict(solution.layouts))
            base = launch(incumbent, entry, inputs, axes, layouts={})
            depth = reduced_elements(entry.definition, entry.definition.lengths(axes))
            for output, reference in expected.items():
                judged = compare(got[output], base[output], reference=reference, depth=depth)
                assert judged.reason is None, f"{axes} {family}: {judged.detail}"


@pytest.mark.parametrize("case", [c for c in _cases() if c[0].startswith("linear")], ids=_label)
def test_sums_of_small_integers_are_exact_in_any_order(case: Case, build: Build) -> None:
    name, structure, params, shapes = case
    entry = catalog.get(name)
    solution = entry.solution(structure, params)
    kernel = build(entry.definition, solution)
    for axes in shapes:
        inputs = entry.inputs(axes, seed=11, family="exact-integer")
        reference = entry.reference(inputs, axes)["y"]
        got = launch(kernel, entry, inputs, axes, layouts=dict(solution.layouts))["y"]
        assert np.array_equal(got, reference.astype(np.float32)), axes


def _first_points() -> list[tuple[str, str]]:
    names = (
        "linear_w8_n128_k53",
        "rmsnorm_h77",
        "add_rmsnorm_h77",
        "layernorm_h77",
        "silu_mul_i45",
        "gelu_mul_i45",
        "rope_q5_k2_d38",
        "topk_gating_e33_k8",
        "softmax_n257",
        "attention_h5_d16",
    )
    return [(name, space.name) for name in names for space in catalog.get(name).spaces]


def _first(entry: KernelEntry, structure: str) -> Solution:
    axes = {axis: 5 for axis in entry.definition.variable_axes}
    return entry.solution(structure, entry.space(structure).starts(axes)[0])


def _odd_axes(entry: KernelEntry) -> dict[str, int]:
    return {axis: {"T": 7, "S": 90}.get(axis, 7) for axis in entry.definition.variable_axes}


@pytest.mark.parametrize(("name", "structure"), _first_points())
def test_what_lies_around_the_tensors_never_reaches_the_result(
    name: str, structure: str, build: Build
) -> None:
    entry = catalog.get(name)
    solution = _first(entry, structure)
    kernel = build(entry.definition, solution)
    axes = _odd_axes(entry)
    inputs = entry.inputs(axes, seed=3, family="randn")
    layouts = dict(solution.layouts)
    # 0xff fills float32 with NaN, 0x7f with about 3e38.
    results = [
        launch(kernel, entry, inputs, axes, layouts=layouts, filler=filler)
        for filler in (0x00, 0x7F, 0xFF)
    ]
    for output in entry.definition.outputs:
        assert len({result[output].tobytes() for result in results}) == 1


@pytest.mark.parametrize(("name", "structure"), _first_points())
@pytest.mark.parametrize("threads", [2, 8])
def test_splitting_a_launch_into_parts_changes_no_bit(
    name: str, structure: str, threads: int, build: Build
) -> None:
    entry = catalog.get(name)
    single = _first(entry, structure)
    split = entry.solution(structure, {**single.params, "THREADS": threads})
    axes = _odd_axes(entry)
    inputs = entry.inputs(axes, seed=4, family="randn")
    layouts = dict(single.layouts)
    one, many = (
        launch(build(entry.definition, s), entry, inputs, axes, layouts=layouts)
        for s in (single, split)
    )
    for output in one:
        assert one[output].tobytes() == many[output].tobytes()


@pytest.mark.parametrize(("name", "structure"), _first_points())
def test_a_processor_without_wide_vectors_computes_the_same(
    name: str, structure: str, tmp_path: Path, compile_plain: Compile
) -> None:
    entry = catalog.get(name)
    narrow = entry.space(structure).starts(_odd_axes(entry))[-1]
    solution = entry.solution(structure, narrow)
    library = tmp_path / "plain.so"
    plain = ("-march=x86-64",) if _x86() else ()
    compile_plain(solution, tmp_path, library, ("-O2", *plain, "-std=c++17"))
    definition = entry.definition
    kernel = CpuKernel(
        library,
        solution.entry,
        tensors=len(definition.inputs) + len(definition.outputs),
        axes=len(definition.axes),
        scratch_bytes=solution.scratch_bytes,
    )
    axes = _odd_axes(entry)
    inputs = entry.inputs(axes, seed=5, family="randn")
    expected = entry.reference(inputs, axes)
    got = launch(kernel, entry, inputs, axes, layouts=dict(solution.layouts))
    for output, reference in expected.items():
        np.testing.assert_allclose(got[output], reference, rtol=1e-4, atol=2e-5)


def _x86() -> bool:
    machine = subprocess.run(["g++", "-dumpmachine"], capture_output=True, text=True, check=True)
    return machine.stdout.startswith("x86_64")
