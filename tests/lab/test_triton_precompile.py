"""What is compiled for servers: one code for each that lengths decide, each audited as it is."""

from __future__ import annotations

from typing import Any

import pytest
from tests.expect import raises_code

from retuned.contract import Definition, Solution
from retuned.errors import CandidateError
from retuned.lab.languages import triton_precompile
from retuned.lab.languages.cpp_contract import ContractViolated
from retuned.lab.languages.triton import run_compiler
from retuned.lab.languages.triton_contract import check_contract
from retuned.lab.languages.triton_precompile import needed_lengths, precompile
from retuned.runtime.artifacts.precompiled import MAX_ENTRIES

SOURCE = """import triton
import triton.language as tl


@triton.jit
def rows(x, y, M, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(y + at, tl.load(x + at) * 2)


@triton.jit
def flat(x, y, M, N, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(y + at, tl.load(x + at, mask=at < M * N) * 2, mask=at < M * N)
"""
DEFINITION = Definition.model_validate(
    {
        "name": "doubled",
        "op_type": "elementwise",
        "axes": {"M": {"type": "var"}, "N": {"type": "var"}},
        "inputs": {"x": {"shape": ["M", "N"], "dtype": "float32"}},
        "outputs": {"y": {"shape": ["M", "N"], "dtype": "float32"}},
        "reference": "def run(x):\n    return x * 2\n",
    }
)


def solution(entry: str = "rows", **fields: Any) -> Solution:
    return Solution.model_validate(
        {
            "name": f"doubled.{entry}",
            "definition": "doubled",
            "language": "triton",
            "entry": entry,
            "sources": [{"path": "kernel.py", "content": SOURCE}],
            "structure": "rows",
            "grid": ["M"],
        }
        | fields
    )


FLAT: dict[str, Any] = {"params": {"TILE": 64}, "grid": ["cdiv(M * N, TILE)"]}


def lengths(made: Solution, *shapes: dict[str, int]) -> list[list[int]]:
    return needed_lengths(check_contract(made, DEFINITION), DEFINITION, shapes)


def test_each_length_that_decides_the_code_is_needed_once() -> None:
    found = lengths(solution(), {"M": 1, "N": 64}, {"M": 9, "N": 64}, {"M": 1, "N": 8})
    assert [row[1] for row in found] == [64, 8]


def test_without_shapes_only_code_that_no_length_decides_is_needed() -> None:
    assert lengths(solution()) == []
    assert len(lengths(solution("flat", **FLAT))) == 1
    assert len(lengths(solution("flat", **FLAT), {"M": 1, "N": 2}, {"M": 3, "N": 4})) == 1


def test_no_more_is_needed_than_an_artifact_takes() -> None:
    many = [{"M": 1, "N": 2**power} for power in range(20)] * 4
    many += [{"M": 1, "N": n} for n in range(1, 2 * MAX_ENTRIES)]
    assert len(lengths(solution(), *many)) == MAX_ENTRIES


def test_a_variant_outside_the_contract_is_not_compiled_for_anybody() -> None:
    broken = solution(sources=[{"path": "kernel.py", "content": SOURCE + "\nimport os\n"}])
    with pytest.raises(ContractViolated):
        precompile(broken, DEFINITION, arch="gfx942", shapes=[{"M": 1, "N": 64}])


def test_code_for_servers_is_audited_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    real = run_compiler
    asked: list[Any] = []

    def calling(*args: Any) -> Any:
        made = real(*args)
        asked.extend(made)
        return [each | {"odd": ["calls vprintf"]} for each in made]

    monkeypatch.setattr(triton_precompile, "run_compiler", calling)
    with raises_code(CandidateError, "binary-audit-failed", "vprintf"):
        precompile(solution("flat", **FLAT), DEFINITION, arch="sm_90")
    assert [each["kind"] for each in asked] == ["cubin"]


def test_a_source_that_uses_what_nothing_defines_is_refused_unseen_by_a_compiler() -> None:
    with pytest.raises(CandidateError) as refused:
        precompile(
            solution(
                sources=[{"path": "kernel.py", "content": SOURCE.replace("* 2", "* nothing")}]
            ),
            DEFINITION,
            arch="gfx942",
            shapes=[{"M": 1, "N": 64}],
        )
    assert refused.value.reason == "contract-violated"
