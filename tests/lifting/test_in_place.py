"""Kernels that write over their inputs: the lab repeats a launch and never sees its own traces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.expect import raises_code, raises_invalid
from tests.lifting import live

from retuned.catalog import KernelEntry
from retuned.catalog.user import entry_of
from retuned.contract import Definition, Language, Solution
from retuned.errors import HarnessError
from retuned.lab.examiner import Examiner
from retuned.lab.harness.sanity import require_meaning
from retuned.lab.harness.timing import units_for
from retuned.lab.physics import floor_us
from retuned.lab.resources import LabResources, LabSettings
from retuned.lifting.lift import Lifted, lift_all
from retuned.runtime.core.slots import Slot
from retuned.runtime.intercept.rules import parse_rule
from retuned.runtime.schema import Refused
from retuned.stages.verdict import Reason
from retuned_bench.flashinfer.definitions import export_definition
from retuned_bench.flashinfer.schema import NotExportable

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")


def found() -> Lifted:
    (one,) = lift_all([live.growing(count) for count in (70, 7, 130)]).lifted
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
        settings=LabSettings(search_s=0.1, search_blocks=3, launch_timeout_s=60.0),
    )
    yield opened, entry
    opened.close()


def other(entry: KernelEntry, **params: int) -> Solution:
    return entry.solution("lifted", {**entry.incumbent.params, **params})


def test_the_oracle_gives_what_one_launch_leaves_behind() -> None:
    entry = entry_of(found().own, Language.TRITON)
    inputs = entry.inputs({"n_elements": 70}, seed=1, family="randn")
    before = inputs["x_ptr"].copy()
    answer = entry.reference(inputs, {"n_elements": 70})
    wanted = before.astype("float64") ** 2 * 1e4 + 3.0
    assert np.allclose(answer["x_ptr_out"], wanted, rtol=1e-5)
    assert (inputs["x_ptr"] == before).all()


def test_other_parameters_pass_and_are_timed_on_values_that_do_not_grow(
    bay: tuple[LabResources, KernelEntry],
) -> None:
    opened, entry = bay
    examiner = Examiner(opened)
    variant, checks = examiner.admit(other(entry, BLOCK=128))
    assert variant is not None, checks
    checks = (*checks, *examiner.correct(variant))
    assert [check for check in checks if check.reason is not None] == []
    axes = dict(opened.workloads[0].axes)
    with opened.duel([opened.incumbent, variant]) as duel:
        own_us = duel.prepare(axes, opened.sets(0, opened.seeds), seed=3)
        for _ in range(3):
            pairs = duel.block(units_for(4, 0))
            assert len(pairs) == 8
            assert duel.check_outputs(gate="G5").reason is None
        clocks = duel.check_clocks(candidate_us=own_us, incumbent_us=own_us, gate="G6")
        assert clocks.reason is None, clocks


def test_a_candidate_whose_part_is_slow_is_still_found_beside_the_putting_back(
    bay: tuple[LabResources, KernelEntry],
) -> None:
    opened, entry = bay
    variant, _ = Examiner(opened).admit(other(entry, BLOCK=16))
    assert variant is not None
    axes = dict(opened.workloads[0].axes)
    with opened.duel([opened.incumbent, variant]) as duel:
        own_us = duel.prepare(axes, opened.sets(0, opened.seeds), seed=3)
        clocks = duel.check_clocks(candidate_us=own_us / 20, incumbent_us=own_us, gate="G6")
    assert clocks.reason is Reason.CLOCKS_DISAGREE


@pytest.mark.parametrize(
    ("grid", "gates"),
    [(("cdiv(n_elements, BLOCK * 2)",), {"G3", "G4"})],
)
def test_a_launch_that_leaves_elements_as_they_were_is_found(
    bay: tuple[LabResources, KernelEntry], grid: tuple[str, ...], gates: set[str]
) -> None:
    opened, entry = bay
    examiner = Examiner(opened)
    variant, checks = examiner.admit(other(entry).model_copy(update={"grid": grid}))
    if variant is not None:
        checks = (*checks, *examiner.correct(variant))
    assert checks[-1].gate in gates
    assert checks[-1].reason is not None


def test_a_launch_that_applies_itself_twice_is_found(bay: tuple[LabResources, KernelEntry]) -> None:
    opened, entry = bay
    (source,) = entry.incumbent.sources
    text = source.content.replace("    growing_kernel(", "    growing_kernel(", 1)
    call = text.rstrip("\n").rpartition("\n")[2]
    doubled = source.model_copy(update={"content": text + call + "\n"})
    twice = other(entry).model_copy(update={"sources": (doubled,)})
    variant = opened.compiled(twice)
    checks = Examiner(opened).correct(variant)
    assert checks[-1].reason is not None
    assert "x_ptr_out" in checks[-1].detail


def test_a_kernel_that_changes_nothing_in_place_proves_nothing() -> None:
    launches = [live.growing(count) for count in (70, 7, 130)]
    for launch in launches:
        launch["source"] = launch["source"].replace("x * x * 1e4 + 3.0", "x")
    (one,) = lift_all(launches).lifted
    entry = entry_of(one.own, Language.TRITON)
    with raises_code(HarnessError, "definition-proves-nothing", entry.definition.name, "in place"):
        require_meaning(entry, {"n_elements": 70}, seed=1)


def test_nothing_is_certain_to_be_moved_of_what_is_updated() -> None:
    definition = found().own.definition
    assert floor_us(definition, {"n_elements": 10**6}, parts=1) == 0.0


def test_an_artifact_says_that_what_it_stores_to_is_read_too() -> None:
    entry = entry_of(found().own, Language.TRITON)
    rule = parse_rule(entry.launch_data(other(entry))["intercept"])
    assert rule.stores == {"x_ptr": "update"}


@pytest.mark.parametrize(
    ("side", "changed", "names"),
    [
        ("outputs", {"shape": ["M"], "dtype": "float16", "updates": "x"}, ("'y'", "'x'")),
        ("outputs", {"shape": ["M"], "dtype": "float32", "updates": "z"}, ("'y'", "'z'")),
        ("outputs", {"shape": ["M"], "dtype": "float32", "updates": "w"}, ("'w'", "constant")),
        ("inputs", {"shape": ["M"], "dtype": "float32", "updates": "w"}, ("['x']", "outputs")),
    ],
)
def test_an_update_of_what_cannot_be_updated_is_refused(
    side: str, changed: dict[str, object], names: tuple[str, ...]
) -> None:
    body: dict[str, Any] = {
        "name": "d",
        "op_type": "d",
        "axes": {"M": {"type": "var"}},
        "inputs": {
            "x": {"shape": ["M"], "dtype": "float32"},
            "w": {"shape": ["M"], "dtype": "float32", "constant": True},
        },
        "outputs": {"y": {"shape": ["M"], "dtype": "float32", "updates": "x"}},
        "reference": "",
    }
    assert Definition.model_validate(body).updated == {"y": "x"}
    body[side][{"inputs": "x", "outputs": "y"}[side]] = changed
    with raises_invalid(names=names):
        Definition.model_validate(body)


def test_two_outputs_do_not_update_one_input() -> None:
    definition = found().own.definition
    body = definition.model_dump(mode="json")
    body["outputs"]["again"] = body["outputs"]["x_ptr_out"]
    with raises_invalid(names=("two outputs",)):
        Definition.model_validate(body)


def test_definitions_without_updates_look_as_they_always_did() -> None:
    (plain,) = lift_all([live.rope(rows) for rows in (1, 7)]).lifted
    assert "updates" not in str(plain.own.definition.model_dump(mode="json"))


def test_a_slot_in_front_of_a_function_takes_no_definition_that_changes_its_inputs() -> None:
    body = found().own.definition.model_dump(mode="json")
    with raises_code(Refused, "definition-invalid", body["name"], "inputs"):
        Slot(body, lambda x: x)


def test_a_format_that_cannot_say_it_gets_no_definition_that_changes_its_inputs() -> None:
    with raises_code(NotExportable, "not-exportable", "x_ptr"):
        export_definition(found().own.definition)
