"""Recipes make valid candidates of real kernels, and say why not where they do not."""

from __future__ import annotations

from functools import partial

import pytest
from tests.catalog.running import run_triton, triton_kernel
from tests.expect import raises_code

from retuned import catalog
from retuned.catalog import KernelEntry
from retuned.contract import Language, Solution, SourceFile, TrustClass, Workload
from retuned.lab.generators import RecipeGenerator
from retuned.lab.generators.devices import GPUS, DeviceFacts, cpu_facts
from retuned.lab.generators.inputs import SELF_CONTAINED, GeneratorInput
from retuned.lab.generators.portfolio import Portfolio, TurnList
from retuned.lab.generators.recipes import RECIPES, RecipeResult
from retuned.lab.generators.recipes.loop_rewrite import (
    CHUNKED,
    STRIDED,
    Loop,
    NotRewritable,
    rewrite,
)
from retuned.lab.generators.space_inference import widen
from retuned.lab.languages import cpu_cpp, triton_contract
from retuned.ports import Finding
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.verdict import Interval, Reason, Status, Verdict

H100 = GPUS["sm_90"]
CORE = cpu_facts(arch="cpu", vector_bytes=64, cores=2)
TRITON = (
    "linear_w8_n512_k512",
    "rmsnorm_h512",
    "silu_mul_i1408",
    "softmax_n2048",
    "attention_h8_d64",
)


def entry(name: str, language: Language = Language.TRITON) -> KernelEntry:
    return catalog.get(name, language=language)


def many(subject: KernelEntry, length: int = 4096) -> list[Workload]:
    axes = dict.fromkeys(subject.definition.variable_axes, length)
    return [Workload(definition=subject.definition.name, axes=axes)]


def answers(
    subject: KernelEntry,
    solution: Solution | None = None,
    *,
    device: DeviceFacts = H100,
    length: int = 4096,
) -> dict[str, RecipeResult]:
    base = solution or subject.incumbent
    generator = RecipeGenerator(subject, incumbent=base, device=device)
    return generator.answers(base, subject.definition, many(subject, length))


@pytest.mark.parametrize("name", TRITON)
def test_what_recipes_make_of_triton_kernels_keeps_the_contract(name: str) -> None:
    subject = entry(name)
    made = [each for answer in answers(subject).values() for each in answer.solutions]
    assert made
    shapes = [dict(workload.axes) for workload in many(subject, 64)]
    for solution in made:
        assert solution.definition == name
        triton_contract.check_contract(solution, subject.definition, shapes=shapes)


@pytest.mark.parametrize("name", ["linear_w8_n512_k512", "rmsnorm_h512", "softmax_n2048"])
def test_what_recipes_make_of_cpp_kernels_keeps_the_contract(name: str) -> None:
    subject = entry(name, Language.CPU_CPP)
    made = [
        each
        for answer in answers(subject, device=CORE, length=64).values()
        for each in answer.solutions
    ]
    assert made
    for solution in made:
        cpu_cpp.check_contract(solution)


@pytest.mark.parametrize("name", TRITON)
@pytest.mark.parametrize("language", [Language.TRITON, Language.CPU_CPP])
def test_every_recipe_has_a_reason_for_what_it_does_and_for_what_it_does_not(
    name: str, language: Language
) -> None:
    device = H100 if language is Language.TRITON else CORE
    subject = entry(name, language)
    for recipe, answer in answers(subject, device=device).items():
        assert recipe in RECIPES
        assert len(answer.because) > 20


def test_another_algorithm_is_each_other_structure_at_its_best_guess() -> None:
    subject = entry("linear_w8_n512_k512")
    found = answers(subject)["another-algorithm"].solutions
    assert {each.structure for each in found} == {"tiles", "split", "split-k"}
    assert all(each.trust is TrustClass.PARAMETERS for each in found)


def test_more_rows_together_are_tried_where_the_source_has_a_parameter_for_it() -> None:
    subject = entry("rmsnorm_h512")
    rows = [each.params["ROWS"] for each in answers(subject)["multi-row"].solutions]
    assert rows == [2, 4]
    dots = entry("linear_w8_n512_k512", Language.CPU_CPP)
    found = answers(dots, device=CORE, length=64)["multi-row"].solutions
    assert [(each.params["ROWS"], each.params["XROWS"]) for each in found] == [
        (8, 1),
        (4, 2),
        (4, 4),
    ]


def test_a_kernel_without_that_parameter_gets_the_rows_of_its_neighbours_in_a_loop() -> None:
    subject = entry("softmax_n2048")
    found = answers(subject)["multi-row"].solutions
    assert [each.params["EACH"] for each in found] == [2, 4]
    assert all(each.trust is TrustClass.GENERATED for each in found)


def test_a_persistent_kernel_has_as_many_programs_as_the_device_runs() -> None:
    subject = entry("silu_mul_i1408")
    answer = answers(subject)["persistent"]
    assert [each.params["PROGRAMS"] for each in answer.solutions] == [132, 264, 528]
    assert all(each.structure == "flat.persistent" for each in answer.solutions)
    few = answers(subject, length=1)["persistent"]
    assert few.solutions == ()
    assert "fit the 132 units" in few.because


def test_splitting_the_reduction_is_refused_where_one_launch_cannot_add_up() -> None:
    busy = answers(entry("linear_w8_n512_k512"))["split-k"]
    assert busy.solutions == ()
    assert "busy" in busy.because
    idle = answers(entry("rmsnorm_h512"), length=2)["split-k"]
    assert idle.solutions == ()
    assert "fixed order" in idle.because


def test_a_matrix_product_of_few_rows_is_split_among_programs_in_two_steps() -> None:
    subject = entry("gemm_bf16_n4096_k4096")
    answer = answers(subject, length=4)["split-k"]
    assert answer.solutions
    assert {each.structure for each in answer.solutions} == {"split-k"}
    assert "64 programs leave some of 132 units idle" in answer.because
    first = answer.solutions[0]
    assert [step.entry for step in first.steps] == ["gemm_split_k", "gemm_split_k_sum"]
    assert (first.params["BLOCK_N"], first.params["SPLITS"]) == (64, 8)
    for solution in answer.solutions:
        triton_contract.check_contract(solution, subject.definition, shapes=[{"M": 4}])
    busy = answers(subject, length=4096)["split-k"]
    assert busy.solutions == ()
    again = answers(subject, first, length=1)["split-k"]
    assert again.solutions == (), "the parts of a split product keep the units busy"


def test_the_portfolio_proposes_split_k_where_rows_are_few() -> None:
    subject = entry("gemm_bf16_n4096_k4096")
    occasion = GeneratorInput(
        plan=ExperimentPlan(
            id="p",
            hypothesis="h",
            definition=subject.definition.name,
            workloads=tuple(many(subject, 4)),
            incumbent=subject.incumbent.digest,
            environment="sha256:" + "a" * 64,
        ),
        tunable=subject,
        incumbent=subject.incumbent,
        device=H100,
        cores=2,
        seed=1,
    )
    asked = Portfolio(
        {name: partial(SELF_CONTAINED[name], occasion) for name in ("recipes", "search")},
        seed=1,
        log=TurnList(),
        clock=lambda: 0.0,
        taken={subject.incumbent.digest},
    )
    found = asked.propose(subject.definition, many(subject, 4), history=(), count=4)
    assert any(len(each.steps) == 2 and each.structure == "split-k" for each in found)


def test_several_launches_are_not_rewritten_into_a_loop() -> None:
    subject = entry("gemm_bf16_n4096_k4096")
    (split,) = [space for space in subject.spaces if space.name == "split-k"]
    solution = subject.solution("split-k", split.starts({"M": 4})[0])
    with raises_code(NotRewritable, "not-rewritable", "launches", "scratch"):
        rewrite(solution, subject.definition, loop=STRIDED, value=132)


def test_a_source_with_a_parameter_for_it_is_split_where_units_are_idle() -> None:
    subject = entry("linear_w8_n512_k512")
    params = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}
    tiles = subject.solution("tiles", params)
    own = tiles.model_copy(
        update={
            "structure": "own",
            "params": {**tiles.params, "SPLIT_K": 2},
            "grid": ("cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N) * SPLIT_K",),
        }
    )
    wide = widen(subject, own, device=H100)
    generator = RecipeGenerator(wide, incumbent=own, device=H100)
    answer = generator.answers(own, subject.definition, many(subject, 16))["split-k"]
    assert [each.params["SPLIT_K"] for each in answer.solutions] == [1, 4, 8]
    assert "16 programs leave units idle" in answer.because


def test_a_workspace_that_can_be_spared_is_spared() -> None:
    subject = entry("linear_w8_n512_k512", Language.CPU_CPP)
    staged = subject.solution(
        "packed-panels",
        {"P": 32, "TILE": 4, "CHUNK": 64, "STAGE": 1, "VEC": 64, "THREADS": 1},
    )
    answer = answers(subject, staged, device=CORE, length=64)["fused-epilogue"]
    assert answer.solutions
    assert all(each.scratch_bytes == 0 for each in answer.solutions)
    none = answers(subject, device=CORE, length=64)["fused-epilogue"]
    assert none.solutions == ()
    assert "one launch already" in none.because


def test_vectors_become_as_wide_as_the_processor_s() -> None:
    subject = entry("rmsnorm_h512", Language.CPU_CPP)
    narrow = subject.solution("rows", {"UNROLL": 4, "VEC": 16, "THREADS": 1})
    found = answers(subject, narrow, device=CORE)["vectorised"].solutions
    assert [each.params["VEC"] for each in found] == [64]
    assert answers(subject, device=CORE)["vectorised"].solutions == ()


def test_on_a_processor_every_kernel_is_persistent_already() -> None:
    answer = answers(entry("rmsnorm_h512", Language.CPU_CPP), device=CORE)["persistent"]
    assert answer.solutions == ()
    assert "already" in answer.because


def test_the_generator_hands_out_one_of_each_first_and_nothing_twice() -> None:
    subject = entry("softmax_n2048")
    generator = RecipeGenerator(subject, incumbent=subject.incumbent, device=H100)
    history: list[Finding] = []
    seen: set[str] = set()
    while batch := generator.propose(subject.definition, many(subject), history=history, count=3):
        assert not {each.digest for each in batch} & seen
        seen |= {each.digest for each in batch}
        history += [finding(each, 0.9) for each in batch]
    assert len(seen) >= 5
    assert subject.incumbent.digest not in seen


def test_recipes_are_applied_to_a_new_best_as_well() -> None:
    subject = entry("softmax_n2048")
    generator = RecipeGenerator(subject, incumbent=subject.incumbent, device=H100)
    online = subject.solution("online", {"BLOCK": 1024, "num_warps": 4})
    found = generator.propose(
        subject.definition, many(subject), history=[finding(online, 1.5)], count=50
    )
    assert "online.persistent" in {each.structure for each in found}


def test_a_plan_that_names_structures_gets_only_these() -> None:
    subject = entry("softmax_n2048")
    generator = RecipeGenerator(
        subject, incumbent=subject.incumbent, device=H100, structures=("online",)
    )
    found = generator.propose(subject.definition, many(subject), history=[], count=50)
    assert {each.structure for each in found} == {"online"}


def finding(solution: Solution, ratio: float) -> Finding:
    verdict = Verdict(
        status=Status.REJECT,
        reason=Reason.LOST_SEARCH,
        gate="G5",
        candidate=solution.digest,
        incumbent=solution.digest,
        speedup=Interval(lower=ratio, point=ratio, upper=ratio, confidence=0.95),
    )
    return Finding(solution=solution, verdict=verdict, seconds=0.1)


KERNEL = """import triton
import triton.language as tl


@triton.jit
def kernel(x, y, M, H: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    BODY
    tl.store(y + row * H + at, tl.load(x + row * H + at, mask=at < H), mask=at < H)
"""


def written(body: str, *, grid: tuple[str, ...] = ("M",)) -> Solution:
    subject = entry("rmsnorm_h512")
    return subject.incumbent.model_copy(
        update={
            "sources": (SourceFile(path="k.py", content=KERNEL.replace("BODY", body)),),
            "entry": "kernel",
            "grid": grid,
            "params": {"BLOCK": 512, "num_warps": 4},
        }
    )


DEFINITION = entry("rmsnorm_h512").definition


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("x += row * H", "['x']"),
        ("if row > 3:\n        return", "returns"),
        ("while row < 3:\n        row += 1", "loops"),
        ("extra = tl.program_id(1)", "dimension"),
        ("extra = tl.program_id(axis=row)", "dimension"),
        ("extra = tl.num_programs(0)", "programs"),
        ("if H > 4:\n        extra = row\n    row = row + extra", "variable"),
        ("import os", "Import"),
    ],
)
@pytest.mark.parametrize("loop", [STRIDED, CHUNKED])
def test_a_source_that_a_loop_could_change_the_meaning_of_is_refused(
    body: str, names: str, loop: Loop
) -> None:
    with raises_code(NotRewritable, "not-rewritable", names):
        rewrite(written(body), DEFINITION, loop=loop, value=4)


def test_a_grid_that_a_kernel_cannot_compute_is_refused() -> None:
    with raises_code(NotRewritable, "not-rewritable", "'next_pow2'"):
        rewrite(written("pass", grid=("next_pow2(M)",)), DEFINITION, loop=STRIDED, value=4)
    with raises_code(NotRewritable, "not-rewritable", "2 dimensions"):
        rewrite(written("pass", grid=("M", "1")), DEFINITION, loop=STRIDED, value=4)


def test_what_was_rewritten_is_not_rewritten_again() -> None:
    once = rewrite(written("pass"), DEFINITION, loop=STRIDED, value=4)
    with pytest.raises(NotRewritable):
        rewrite(once, DEFINITION, loop=STRIDED, value=8)


def test_an_axis_that_only_the_grid_knew_becomes_a_parameter() -> None:
    text = KERNEL.replace("BODY", "pass").replace("x, y, M, H", "x, y, H")
    source = written("pass").model_copy(
        update={"sources": (SourceFile(path="k.py", content=text),)}
    )
    found = rewrite(source, DEFINITION, loop=CHUNKED, value=4)
    triton_contract.check_contract(found, DEFINITION, shapes=[{"M": 7}])
    assert found.grid == ("cdiv((M), EACH)",)


@pytest.mark.parametrize("name", ["softmax_n64", "silu_mul_i48", "rmsnorm_h48"])
@pytest.mark.parametrize(("loop", "value"), [(STRIDED, 2), (CHUNKED, 3)])
def test_a_rewritten_kernel_computes_the_same_bits(name: str, loop: Loop, value: int) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    subject = entry(name)
    changed = rewrite(subject.incumbent, subject.definition, loop=loop, value=value)
    for axes in ({"M": 1}, {"M": 7}):
        inputs = subject.inputs(axes, seed=3, family=subject.families[0])
        before, after = (
            run_triton(triton_kernel(subject, each), subject, inputs, axes)
            for each in (subject.incumbent, changed)
        )
        assert {n: a.tobytes() for n, a in before.items()} == {
            n: a.tobytes() for n, a in after.items()
        }
