"""Live kernels that compute what the catalog knows: recognised by what they give, then fitted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lifting import live
from tests.lifting.asking import Server

from retuned.catalog import KernelEntry
from retuned.catalog.user import OwnDefinition, entry_of
from retuned.catalog.user.launch_rules import launch_data_of
from retuned.contract import Language, TrustClass
from retuned.experiment.local import LocalLab
from retuned.lab.examiner import Examiner
from retuned.lab.languages.triton import audit_solution
from retuned.lab.languages.triton_precompile import served_arguments
from retuned.lab.resources import LabResources, LabSettings
from retuned.lifting.lift import Lifted, lift_all
from retuned.lifting.recognition import SampledLaunch, assignments, fitted, recognise
from retuned.lifting.sampled_outputs import draws_of, with_structures
from retuned.runtime.intercept.rules import parse_rule

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

QUICK = LabSettings(search_s=0.1, search_blocks=3, launch_timeout_s=60.0)
ROWS = (1, 3, 5)


def lifted(make: Any, **more: Any) -> Lifted:
    (one,) = lift_all([make(rows, **more) for rows in ROWS]).lifted
    return one


def softmax(rows: int, *, text: str = live.SOFTMAX) -> dict[str, Any]:
    launched = live.softmax(rows, 256)
    return live.launch(text, "softmax_kernel", launched["params"], launched["grid"])


def bare(rows: int, *, text: str = live.BARE_LAYER_NORM) -> dict[str, Any]:
    return live.layer_norm(rows, text=text, dtype="fp32")


GEGLU = live.SWIGLU.replace(
    "x * tl.sigmoid(x)", "x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))"
)


def geglu(rows: int, *, text: str = GEGLU) -> dict[str, Any]:
    launched = live.swiglu(rows)
    return live.launch(text, "_swiglu_forward_kernel", launched["params"], launched["grid"])


@pytest.mark.parametrize(
    ("make", "name", "numbers"),
    [
        (geglu, "gelu_mul", {}),
        (softmax, "softmax", {}),
        (live.layer_norm, "layernorm", {"eps": "eps"}),
        (bare, "layernorm", {"eps": "eps"}),
        (live.add_rms_norm, "add_rmsnorm", {"eps": "eps"}),
    ],
)
def test_other_rows_are_recognised_by_what_they_give(
    make: Any, name: str, numbers: dict[str, str]
) -> None:
    one = lifted(make)
    found = recognise(one.own, draws_of(one.own))
    assert found is not None
    assert (found.pattern.name, dict(found.numbers)) == (name, numbers)


@pytest.mark.parametrize(
    ("make", "text", "old", "new"),
    [
        (geglu, GEGLU, "0.044715 * x", "0.054715 * x"),
        (softmax, live.SOFTMAX, "(v - running) / total", "(v - running) / (total + 1.0)"),
        (softmax, live.SOFTMAX, "tl.exp(v - running) / total", "v - running - tl.log(total)"),
        (bare, live.BARE_LAYER_NORM, "axis=0) / N\n    rstd", "axis=0) / (N - 1)\n    rstd"),
        (live.layer_norm, live.LAYER_NORM, "1 / tl.sqrt(var + eps)", "1 / (tl.sqrt(var) + eps)"),
        (live.layer_norm, live.LAYER_NORM, "* w + b", "* (1.0 + w) + b"),
        (live.add_rms_norm, live.ADD_RMS_NORM, "S_row.to(tl.float32)", "X_row.to(tl.float32)"),
        (live.add_rms_norm, live.ADD_RMS_NORM, "col_offsets, S_row", "col_offsets, R_row"),
    ],
)
def test_what_differs_in_one_detail_is_not_recognised(
    make: Any, text: str, old: str, new: str
) -> None:
    assert old in text
    one = lifted(make, text=text.replace(old, new))
    assert list(assignments(one.own)), "by its shapes alone it could be one"
    assert with_structures(one) is one


def test_of_two_tensors_that_are_added_one_order_is_looked_at() -> None:
    one = lifted(live.add_rms_norm)
    orders = {tuple(a.tensors[role] for role in ("x", "residual")) for a in assignments(one.own)}
    assert orders == {("X_ptr", "R_ptr")}


@pytest.fixture(scope="module")
def norm() -> Lifted:
    return lifted(live.rmsnorm)


@pytest.fixture(scope="module")
def gated() -> Lifted:
    return lifted(live.swiglu)


@pytest.fixture(scope="module")
def draws(norm: Lifted) -> tuple[SampledLaunch, ...]:
    return draws_of(norm.own)


@pytest.fixture(scope="module")
def fit(norm: Lifted, draws: tuple[SampledLaunch, ...]) -> Lifted:
    return with_structures(norm, lambda _: draws)


def outputs(draw: SampledLaunch, **changed: Any) -> SampledLaunch:
    return replace(draw, outputs={**draw.outputs, **changed})


def test_a_normalisation_is_recognised_by_what_it_gives(
    norm: Lifted, draws: tuple[SampledLaunch, ...]
) -> None:
    possible = list(assignments(norm.own))
    assert len(possible) == 2, "by its shapes alone either number could be the one below the root"
    found = recognise(norm.own, draws)
    assert found is not None
    assert (found.pattern.name, dict(found.numbers)) == (
        "rmsnorm",
        {"eps": "eps", "offset": "offset"},
    )


def test_a_gated_activation_is_recognised_and_which_half_is_the_gate(gated: Lifted) -> None:
    assert len(list(assignments(gated.own))) == 4, "two activations, each of either tensor"
    found = recognise(gated.own, draws_of(gated.own))
    assert found is not None
    assert found.pattern.name == "silu_mul"
    assert found.tensors["gate"] == next(iter(gated.own.definition.inputs))


def test_what_differs_in_one_number_of_one_output_is_not_recognised(
    norm: Lifted, draws: tuple[SampledLaunch, ...]
) -> None:
    last = draws[-1]
    for name in norm.own.definition.outputs:
        changed = np.array(last.outputs[name])
        changed.flat[np.argmax(np.abs(changed))] *= 1.1
        assert recognise(norm.own, [*draws[:-1], outputs(last, **{name: changed})]) is None
        changed.flat[-1] = np.nan
        assert recognise(norm.own, [*draws[:-1], outputs(last, **{name: changed})]) is None


def test_what_was_not_asked_is_not_recognised(norm: Lifted) -> None:
    assert recognise(norm.own, []) is None


def test_where_two_readings_explain_everything_none_is_believed(
    norm: Lifted, draws: tuple[SampledLaunch, ...]
) -> None:
    """Both numbers alike: nothing tells which is which, and a launch with others is a guess."""
    origin = norm.own.lifted
    assert origin is not None
    floats = dict.fromkeys(origin.floats, 0.0)
    own = norm.own.model_copy(update={"lifted": origin.model_copy(update={"floats": floats})})
    possible = list(assignments(own))
    exact = []
    for draw in draws:
        each = possible[0]
        arrays = {role: draw.inputs[each.tensors[role]] for role in each.pattern.inputs}
        computed = each.pattern.compute(arrays, each.values(floats))
        exact.append(outputs(draw, **{each.tensors[r]: computed[r] for r in each.pattern.outputs}))
    assert recognise(own, exact) is None


@pytest.mark.parametrize("make", [live.quantised, lambda rows: live.rope(rows, in_place=True)])
def test_other_kernels_have_no_reading_and_are_not_even_run(make: Any) -> None:
    def never(_: OwnDefinition) -> tuple[SampledLaunch, ...]:
        raise AssertionError("it was run")

    for one in lift_all([make(rows) for rows in ROWS]).lifted:
        assert with_structures(one, never) is one


def test_a_fitted_kernel_is_judged_by_a_reference_and_its_new_sources_are_a_generators(
    norm: Lifted, fit: Lifted
) -> None:
    assert norm.own.judged_by_incumbent
    assert not fit.own.judged_by_incumbent
    assert fit.own.name != norm.own.name
    assert {each.definition for each in fit.workloads} == {fit.own.name}
    entry = entry_of(fit.own, Language.TRITON)
    assert entry.incumbent.sources == entry_of(norm.own, Language.TRITON).incumbent.sources
    kinds = {space.name: space.trust for space in entry.spaces}
    assert kinds == {
        "lifted": TrustClass.PARAMETERS,
        "rows": TrustClass.GENERATED,
        "blocks": TrustClass.GENERATED,
    }
    inputs = entry.inputs({"rows": 3}, seed=1, family="randn-small")
    answer = entry.reference(inputs, {"rows": 3})
    live_answer = entry_of(norm.own, Language.TRITON).reference(inputs, {"rows": 3})
    for name in answer:
        np.testing.assert_allclose(answer[name], live_answer[name], rtol=2e-2)


def points(entry: KernelEntry) -> Iterator[tuple[str, dict[str, Any]]]:
    for space in entry.spaces[1:]:
        yield space.name, dict(space.starts({"rows": 3})[0])


@pytest.mark.parametrize(
    "make", [live.rmsnorm, live.swiglu, geglu, softmax, live.layer_norm, live.add_rms_norm]
)
def test_fitted_structures_compile_for_both_vendors_and_pass_the_lab(
    make: Any, tmp_path: Path
) -> None:
    one = with_structures(lifted(make))
    one = replace(one, own=one.own.model_copy(update={"families": ("randn",)}))
    entry = entry_of(one.own, Language.TRITON)
    bay = LabResources(
        entry, one.workloads[:2], incumbent=entry.incumbent, folder=tmp_path, settings=QUICK
    )
    try:
        for structure, point in points(entry):
            candidate = entry.solution(structure, point)
            assert candidate.trust is TrustClass.GENERATED
            for arch in ("sm_90", "gfx942"):
                shapes = [one.workloads[-1].axes]
                reports = audit_solution(candidate, entry.definition, arch=arch, shapes=shapes)
                assert [problem for report in reports for problem in report.problems] == []
            examiner = Examiner(bay)
            variant, checks = examiner.admit(candidate)
            assert variant is not None, checks
            checks = (*checks, *examiner.correct(variant))
            assert [check for check in checks if check.reason is not None] == []
    finally:
        bay.close()


def test_a_fitted_structure_that_computes_something_else_fails_the_lab(
    fit: Lifted, tmp_path: Path
) -> None:
    own = fit.own.model_copy(update={"families": ("randn",)})
    entry = entry_of(own, Language.TRITON)
    good = entry.solution("blocks", dict(points(entry)).get("blocks", {}))
    (source,) = good.sources
    wrong = source.content.replace("total += value * value", "total += value * value * 1.02")
    assert wrong != source.content
    bay = LabResources(
        entry, fit.workloads[:1], incumbent=entry.incumbent, folder=tmp_path, settings=QUICK
    )
    try:
        examiner = Examiner(bay)
        changed = source.model_copy(update={"content": wrong})
        variant, checks = examiner.admit(good.model_copy(update={"sources": (changed,)}))
        assert variant is not None, checks
        assert [check for check in examiner.correct(variant) if check.reason is not None]
    finally:
        bay.close()


def test_launches_of_a_fitted_source_are_held_to_what_it_was_validated_with(fit: Lifted) -> None:
    entry = entry_of(fit.own, Language.TRITON)
    for structure, point in points(entry):
        said = launch_data_of(fit.own, entry.solution(structure, point))
        rule = parse_rule(said["intercept"])
        assert not rule.live
        assert fit.own.lifted is not None
        assert rule.ints.keys() == fit.own.lifted.ints.keys()
        assert rule.numels.keys() == fit.own.lifted.dtypes.keys()
        assert said["entry"] == "fitted_to_a_launch"
    assert launch_data_of(fit.own, entry.incumbent)["intercept"]["code"] == "live"
    stranger = entry.solution(*next(points(entry)))
    (source,) = stranger.sources
    other = stranger.model_copy(
        update={"sources": (source.model_copy(update={"content": source.content + "\n"}),)}
    )
    assert launch_data_of(fit.own, other) == {}, "source that nobody fitted takes no launch over"


def test_every_fitted_source_is_handed_tensors_and_real_numbers_so_that_a_lab_can_compile_it(
    fit: Lifted,
) -> None:
    entry = entry_of(fit.own, Language.TRITON)
    for structure, point in points(entry):
        solution = entry.solution(structure, point)
        said = launch_data_of(fit.own, solution)
        arguments = served_arguments(solution, entry=said["entry"], intercept=said["intercept"])
        assert arguments is not None
        kinds = {kind for _, how, kind in arguments if how == "handed"}
        assert kinds == {"float", *said["intercept"]["dtypes"].values()}
        assert ("BLOCK", "fixed", point["BLOCK"]) in arguments


def test_what_was_fitted_crosses_to_the_lab_by_content(fit: Lifted) -> None:
    again = OwnDefinition.model_validate_json(fit.own.model_dump_json())
    assert again == fit.own
    assert json.loads(fit.own.model_dump_json())["variants"][1]["trust"] == "L"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("server"))
    yield found
    found.close()


@pytest.mark.parametrize("structure", ["rows", "blocks"])
def test_a_fitted_structure_takes_over_the_servers_launches_and_every_check_agrees(
    server: Server, tmp_path: Path, structure: str
) -> None:
    every = lift_all(server.said["records"]).lifted
    (plain,) = [e for e in every if e.own.definition.op_type == "lifted_rms_norm_forward"]
    one = with_structures(plain)
    entry = entry_of(one.own, Language.TRITON)
    candidate = entry.solution(structure, dict(points(entry))[structure])
    lab = LocalLab(tmp_path, subjects=lambda _: entry, solutions=lambda _: None, generators={})
    ordered = {
        "definition": one.own.name,
        "digest": candidate.digest,
        "folder": str(lab.build(candidate)),
        "every": 1,
        "more": 6,
    }
    said = server.ask(ordered)
    (sample,) = [each for each in said["samples"] if each["definition"] == one.own.name]
    assert sample["swapped_launches"] > 0, sample
    assert sample["shadow_checks"] > 0, sample
    assert (sample["shadow_mismatches"], sample["errors"], sample["tripped"]) == (0, 0, ""), sample


def test_a_kernel_without_a_reading_is_not_fitted_to_anything(norm: Lifted) -> None:
    found = next(iter(assignments(norm.own)))
    assert fitted(norm, found).own.variants[0] == norm.own.variants[0]
