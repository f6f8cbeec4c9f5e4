"""From observed launches to the lab: what is right passes G1 to G4, what is wrong does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.lifting import live

from retuned.catalog import KernelEntry
from retuned.catalog.user import entry_of
from retuned.contract import Language, Solution, TrustClass
from retuned.lab.examiner import Examiner
from retuned.lab.resources import LabResources, LabSettings
from retuned.lifting.lift import Lifted, lift_all
from retuned.runtime.core.grid import parse_grid
from retuned.runtime.intercept.rules import parse_rule
from retuned.stages.verdict import Check

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

QUICK = LabSettings(search_s=0.1, search_blocks=3, launch_timeout_s=60.0)
REFERENCE = "def run(x_ptr):\n    return {'out_ptr': x_ptr * 0.5 + x_ptr * x_ptr}\n"
KERNEL = "thirdparty.ops:scale_kernel"
Examine = Callable[[Solution], tuple[Check, ...]]


def found(**more: object) -> Lifted:
    launches = [live.scale(count, block=64) for count in (70, 7, 130)]
    (one,) = lift_all(launches, **more).lifted  # type: ignore[arg-type]
    # one family of inputs: the lab's own tests are about the others
    return replace(one, own=one.own.model_copy(update={"families": ("randn",)}))


@pytest.fixture(scope="module")
def bay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LabResources, KernelEntry]]:
    one = found()
    entry = entry_of(one.own, Language.TRITON)
    opened = LabResources(
        entry,
        one.workloads[:1],
        incumbent=entry.incumbent,
        folder=tmp_path_factory.mktemp("lab"),
        settings=QUICK,
    )
    yield opened, entry
    opened.close()


@pytest.fixture
def examine(bay: tuple[LabResources, KernelEntry]) -> Examine:
    def run(solution: Solution) -> tuple[Check, ...]:
        examiner = Examiner(bay[0])
        variant, checks = examiner.admit(solution)
        return checks if variant is None else (*checks, *examiner.correct(variant))

    return run


def other(entry: KernelEntry, **params: int) -> Solution:
    return entry.solution("lifted", {**entry.incumbent.params, **params})


def test_other_parameters_of_the_live_kernel_pass(
    bay: tuple[LabResources, KernelEntry], examine: Examine
) -> None:
    candidate = other(bay[1], BLOCK=128, num_warps=2)
    assert candidate.trust is TrustClass.PARAMETERS
    checks = examine(candidate)
    assert [check for check in checks if check.reason is not None] == []
    assert {check.gate for check in checks} == {"G1", "G2", "G3", "G4"}


def test_a_grid_that_leaves_elements_out_is_found(
    bay: tuple[LabResources, KernelEntry], examine: Examine
) -> None:
    grid = ("cdiv(n_elements, BLOCK * 2)",)
    last = examine(other(bay[1]).model_copy(update={"grid": grid}))[-1]
    assert last.gate in {"G3", "G4"}
    assert last.reason is not None


def test_another_source_is_refused_where_the_incumbent_is_the_oracle(
    bay: tuple[LabResources, KernelEntry], examine: Examine
) -> None:
    candidate = other(bay[1])
    (source,) = candidate.sources
    changed = source.model_copy(update={"content": source.content + "\n\nONE = 1\n"})
    checks = examine(candidate.model_copy(update={"sources": (changed,)}))
    assert checks[-1].gate == "G1"
    assert "no reference" in checks[-1].detail


def test_the_incumbent_that_is_the_oracle_ran_in_a_child_and_evidence_says_how(
    bay: tuple[LabResources, KernelEntry],
) -> None:
    opened, entry = bay
    inputs = entry.inputs({"n_elements": 9}, seed=1, family="randn")
    answer = entry.reference(inputs, {"n_elements": 9})
    x = inputs["x_ptr"].astype("float64")
    assert abs(answer["out_ptr"] - (0.5 * x + x * x)).max() < 1e-5
    assert entry.reference_confined_by() is not None
    said = opened.isolation
    assert said.reference_confined_by or any("reference" in each for each in said.missing)


def test_with_a_reference_other_sources_are_admitted() -> None:
    entry = entry_of(found(references={KERNEL: REFERENCE}).own, Language.TRITON)
    compiled: list[Solution] = []

    def remembered(each: Solution) -> Any:
        compiled.append(each)
        return SimpleNamespace(audit=(), note="")

    stand_in: Any = SimpleNamespace(
        subject=entry,
        production=entry.incumbent,
        cores=(),
        compiled=remembered,
    )
    (source,) = entry.incumbent.sources
    changed = source.model_copy(update={"content": source.content + "\n\nONE = 1\n"})
    candidate = other(entry).model_copy(update={"sources": (changed,)})
    _, checks = Examiner(stand_in).admit(candidate)
    assert [check.reason for check in checks] == [None, None]
    assert compiled == [candidate]


def test_an_artifact_says_which_launches_it_takes() -> None:
    entry = entry_of(found().own, Language.TRITON)
    data = entry.launch_data(other(entry, BLOCK=128))
    rule = parse_rule(data["intercept"])
    assert rule.kernel == KERNEL
    assert rule.live
    assert rule.axes == {"n_elements": "n_elements"}
    assert rule.stores == {"out_ptr": "write"}
    assert rule.constexprs == {"BLOCK": 64}
    assert data["grid"] == ["cdiv(n_elements, BLOCK)"]


def test_rows_that_only_the_grid_tells_are_read_from_it() -> None:
    (one,) = lift_all([live.rmsnorm(rows) for rows in (1, 7)]).lifted
    entry = entry_of(one.own, Language.TRITON)
    data = entry.launch_data(other(entry, num_warps=8))
    assert parse_rule(data["intercept"]).axes == {"rows": "grid_0"}
    assert data["grid"] == ["grid_0"]
    assert parse_grid(data["grid"], ["grid_0"]).at({"grid_0": 9}) == (9, 1, 1)
    assert data["intercept"]["constexprs"] == {"casting_mode": 0, "BLOCK_SIZE": 256}


def test_constant_lengths_become_numbers_in_a_launch_rule() -> None:
    launches = [live.matmul(m, 1024, 512) for m in (1, 64, 100, 2048)]
    (one,) = lift_all(launches).lifted
    entry = entry_of(one.own, Language.TRITON)
    rule = "cdiv(M, BLOCK_SIZE_M) * cdiv(1024, BLOCK_SIZE_N)"
    assert entry.launch_data(entry.incumbent)["grid"] == [rule]


def test_another_source_is_bound_to_no_launch() -> None:
    entry = entry_of(found().own, Language.TRITON)
    changed = entry.incumbent.sources[0].model_copy(update={"content": "ONE = 1\n"})
    assert entry.launch_data(entry.incumbent.model_copy(update={"sources": (changed,)})) == {}
