"""A user's own kernel is tuned as the catalog's are: known, recognised, searched and judged."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.expect import raises_code, raises_naming

from retuned import catalog
from retuned.catalog.user import load_definition, registry
from retuned.contract import Language, Workload
from retuned.errors import HarnessError, UsageError
from retuned.experiment.__main__ import open_lab, read_task, run
from retuned.experiment.messages import FindingRecord
from retuned.lab.generators.fixed import GivenGenerator
from retuned.lab.generators.search import SearchGenerator
from retuned.lab.generators.spaces import Grid
from retuned.lab.languages.cpu_cpp import cpu_environment
from retuned.lab.resources import LabSettings
from retuned.lab.subject import UntrustedReference, make_inputs
from retuned.stages.experiment import Budget, ExperimentPlan
from retuned.stages.verdict import Reason
from retuned.standalone.kernels import KnownKernels

NAME = "scale_bias_h1024"
OP = "retuned::scale_bias"
DIMS = ((7, 1024), (7, 1024), (1024,), (1024,))
QUICK = LabSettings(search_s=0.1, search_blocks=2, final_s=0.4, final_blocks=10, final_units=2)


def plan(entry: catalog.KernelEntry, **changes: object) -> ExperimentPlan:
    body = {
        "id": "own",
        "hypothesis": "h",
        "definition": NAME,
        "workloads": (Workload(definition=NAME, axes={"M": 5}),),
        "incumbent": entry.incumbent.digest,
        "budget": Budget(max_candidates=3, max_seconds=1_000.0, finalists=1),
        "environment": cpu_environment().digest,
    }
    return ExperimentPlan.model_validate({**body, **changes})


def test_what_is_learned_is_found_and_recognised_until_it_is_forgotten(file: Path) -> None:
    with raises_naming(UsageError, NAME, "retuned kernels list"):
        catalog.get(NAME)
    assert catalog.recognise(OP, DIMS, ("float32",) * 4) is None
    catalog.learn([load_definition(file)])
    assert catalog.get(NAME).definition.name == NAME
    assert catalog.languages(NAME) == (Language.CPU_CPP, Language.TRITON)
    assert catalog.get(NAME, language=Language.TRITON).incumbent.language is Language.TRITON
    binding = catalog.recognise(OP, DIMS, ("float32",) * 4)
    assert binding == catalog.Binding(definition=NAME, axes={"M": 7})
    catalog.forget()
    assert catalog.own_definitions() == ()
    with raises_naming(UsageError, NAME, "retuned kernels list"):
        catalog.get(NAME)


def test_whether_references_run_unconfined_is_said_once_and_forgotten_with_the_rest(
    file: Path,
) -> None:
    own = load_definition(file)
    catalog.learn([own])
    assert not registry.unconfined_allowed()
    catalog.learn([own], unconfined_references=True)
    catalog.learn([own])  # a command that learns one more file does not say it again
    assert registry.unconfined_allowed()
    catalog.forget()
    assert not registry.unconfined_allowed()


def test_an_entry_says_what_confined_its_reference_and_the_catalogs_own_need_nothing(
    file: Path,
) -> None:
    catalog.learn([load_definition(file)])
    entry = catalog.get(NAME)
    assert isinstance(entry, UntrustedReference)
    assert entry.reference_confined_by() is None, "nothing ran yet"
    inputs = make_inputs(entry, {"M": 2}, seed=1, family="randn")
    entry.reference(inputs, {"M": 2})
    assert entry.reference_confined_by()
    assert catalog.get("softmax_n64").reference_confined_by() is None


@pytest.mark.parametrize(
    ("op", "dims", "dtypes"),
    [
        ("retuned::scale", DIMS, ()),
        (OP, DIMS[:3], ()),
        (OP, ((7, 1024), (8, 1024), (1024,), (1024,)), ()),
        (OP, ((7, 512), (7, 512), (512,), (512,)), ()),
        (OP, ((0, 1024), (0, 1024), (1024,), (1024,)), ()),
        (OP, DIMS, ("float32", "float32", "float32", "int8")),
    ],
)
def test_other_launches_are_not_taken_for_it(
    file: Path, op: str, dims: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
) -> None:
    catalog.learn([load_definition(file)])
    assert catalog.recognise(op, dims, dtypes) is None


def test_names_and_operators_of_the_catalog_are_refused(
    changed: Callable[[str, str], Path],
) -> None:
    file = changed("name: scale_bias_h1024", "name: rmsnorm_h1024")
    with raises_naming(UsageError, "'rmsnorm_h1024'"):
        catalog.learn([load_definition(file)])
    changed("name: rmsnorm_h1024", "name: scale_bias_h1024")
    file = changed("op: retuned::scale_bias", "op: retuned::rmsnorm")
    with raises_naming(UsageError, "'retuned::rmsnorm'", "op_type"):
        catalog.learn([load_definition(file)])
    assert catalog.own_definitions() == ()


def test_two_definitions_of_one_name_are_refused_and_the_same_one_twice_is_once(
    file: Path, changed: Callable[[str, str], Path]
) -> None:
    own = load_definition(file)
    catalog.learn([own, own])
    catalog.learn([own])
    assert catalog.own_definitions() == (own,)
    other = load_definition(changed("flops: 3 * M * H", "flops: 4 * M * H"))
    with raises_naming(UsageError, "two", NAME):
        catalog.learn([other])


def test_a_record_from_outside_with_a_fault_is_refused(file: Path) -> None:
    own = load_definition(file)
    reference = "import os\ndef run(x, residual, scale, bias): return x"
    broken = own.model_copy(
        update={"definition": own.definition.model_copy(update={"reference": reference})}
    )
    with raises_naming(UsageError, "definition.reference: line 1", "'os'"):
        catalog.learn([broken])


def test_the_reference_is_the_oracle_in_float64(file: Path) -> None:
    catalog.learn([load_definition(file)])
    entry = catalog.get(NAME)
    inputs = make_inputs(entry, {"M": 3}, seed=1, family="randn")
    found = entry.reference(inputs, {"M": 3})["y"]
    wide = {name: array.astype(np.float64) for name, array in inputs.items()}
    assert found.dtype == np.float64
    expected = wide["x"] + wide["residual"] * wide["scale"] + wide["bias"]
    np.testing.assert_array_equal(found, expected)


def test_its_cost_and_its_spaces_are_what_the_file_says(file: Path) -> None:
    catalog.learn([load_definition(file)])
    entry = catalog.get(NAME)
    cost = entry.cost({"M": 2, "H": 1024})
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (6144.0, 24576.0, 8192.0)
    assert entry.incumbent.params == {"THREADS": 1}
    assert entry.incumbent.author == "definition file"
    grid = Grid(entry, cores=2)
    assert {point.structure for point in grid.points} == {"plain", "rows"}
    assert len(grid.points) == 2 + 6
    gpu = Grid(catalog.get(NAME, language=Language.TRITON), cores=2)
    flat = [gpu.params(point) for point in gpu.points if point.structure == "flat"]
    assert all(int(p["BLOCK"]) >= 32 * int(p["num_warps"]) for p in flat)
    assert {gpu.params(p)["BLOCK"] for p in gpu.points if p.structure == "rows"} == {1024}


def test_the_loop_knows_it_as_it_knows_the_catalogs(file: Path) -> None:
    catalog.learn([load_definition(file)])
    known = KnownKernels(gflops=100.0, gbytes_per_s=20.0)
    found = known.recognise(OP, DIMS, ("float32",) * 4)
    assert found is not None
    assert found == (NAME, {"M": 7})
    assert known.family(NAME) == "scale_bias"
    assert known.audited(NAME) == ("plain",)
    assert set(known.structures(NAME)) == {"plain", "rows"}
    assert known.floor_ns(NAME, {"M": 64}) > 0


def test_an_experiment_gets_it_by_content_and_judges_its_variants(
    file: Path, tmp_path: Path
) -> None:
    own = load_definition(file)
    catalog.learn([own])
    body = {
        "plan": plan(catalog.get(NAME)).model_dump(mode="json"),
        "root": str(tmp_path / "lab"),
        "definitions": [own.model_dump(mode="json")],
    }
    catalog.forget()  # as in a process that has just started
    out = io.StringIO()
    assert run(read_task(json.dumps(body), where="test"), out) == 0
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines[-1] == {"done": True}
    found = [FindingRecord.model_validate(line["finding"]).unwrap() for line in lines[:-1]]
    assert len(found) == 3
    wrong = [each.verdict.reason for each in found if each.verdict.gate in ("G1", "G2", "G3", "G4")]
    assert not wrong


def test_a_wrong_variant_of_it_is_found_out(file: Path, tmp_path: Path) -> None:
    catalog.learn([load_definition(file)])
    entry = catalog.get(NAME)
    (source,) = entry.incumbent.sources
    wrong = entry.incumbent.model_copy(
        update={
            "sources": (
                source.model_copy(update={"content": source.content.replace("+ bias[h]", "")}),
            )
        }
    )
    lab = open_lab(tmp_path, generators={"given": lambda _: GivenGenerator([wrong])}, lab=QUICK)
    (found,) = lab.run(plan(entry, generators=("given",)), known={})
    assert found.verdict.reason is Reason.WRONG_OUTPUT


def test_a_reference_that_fails_ends_the_experiment_and_blames_no_candidate(
    changed: Callable[[str, str], Path], tmp_path: Path
) -> None:
    file = changed("x + residual * scale + bias}", "x + residual * scale + bias[:-1]}")
    catalog.learn([load_definition(file)])
    entry = catalog.get(NAME)
    lab = open_lab(
        tmp_path,
        generators={"search": lambda _: SearchGenerator(entry, cores=1, seed=1)},
        lab=QUICK,
    )
    with raises_code(HarnessError, "reference-failed", NAME, "line 2"):
        list(lab.run(plan(entry), known={}))
