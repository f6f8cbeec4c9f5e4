"""Captured production inputs: checked first, then a family that finds what no other one does."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.expect import raises_code, raises_naming

from retuned import catalog
from retuned.catalog.entry import KernelEntry
from retuned.contract import DType, Solution, TensorSpec, ValueLike, ValueRule, Workload
from retuned.errors import UnreadableInput
from retuned.lab.captured_checks import leave_out_unanswered
from retuned.lab.captured_files import Captured, is_valid, read_captured, write_captured
from retuned.lab.captured_inputs import WithCaptured, with_captured
from retuned.lab.cleanup import sweep
from retuned.lab.examiner import Examiner
from retuned.lab.harness.cases import cells_for
from retuned.lab.resources import LabResources
from retuned.lab.subject import make_inputs
from retuned.ports import CapturedInputs, CapturedTensor
from retuned.stages.verdict import Reason

ENTRY = catalog.get("linear_w8_n32_k64")
WORKLOADS = (Workload(definition=ENTRY.definition.name, axes={"M": 3}),)


def sample(m: int = 3, *, seed: int = 0, **changes: Any) -> CapturedInputs:
    x = np.random.default_rng(seed).standard_normal((m, 64)).astype(np.float32)
    tensor = CapturedTensor(dtype="float32", shape=x.shape, data=x.tobytes())
    return CapturedInputs(**{"axes": {"M": m}, "tensors": {"x": tensor}, **changes})


def kept(folder: Path, *samples: CapturedInputs) -> tuple[Captured, ...]:
    write_captured(folder, ENTRY.definition.name, samples)
    return read_captured(folder, ENTRY.definition)


def test_samples_come_back_as_they_were_and_only_their_owner_may_read_them(tmp_path: Path) -> None:
    folder = tmp_path / "captured" / "plan"
    first, second = kept(folder, sample(seed=1), sample(seed=2))
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    np.testing.assert_array_equal(first.tensors["x"], x)
    assert first.digest != second.digest
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (again,) = kept(folder, sample(seed=2))
    assert again.digest == second.digest, "what lay there is replaced"


def bad_samples() -> dict[str, CapturedInputs]:
    tensor = sample().tensors["x"]
    return {
        "too-short": sample(tensors={"x": replace(tensor, data=tensor.data[:-4])}),
        "too-long": sample(tensors={"x": replace(tensor, data=tensor.data + b"0000")}),
        "another-tensor": sample(tensors={"y": tensor}),
        "a-weight": sample(tensors={"x": tensor, "scale": tensor}),
        "another-axis": sample(axes={"N": 3}),
        "another-length": sample(axes={"M": 4}),
        "absurd": sample(axes={"M": 2**39}),
    }


@pytest.mark.parametrize("name", bad_samples())
def test_a_sample_that_does_not_fit_the_definition_is_left_out(tmp_path: Path, name: str) -> None:
    assert kept(tmp_path / "c", bad_samples()[name]) == ()
    assert len(kept(tmp_path / "c", bad_samples()[name], sample())) == 1


def test_files_that_changed_are_refused_and_the_experiment_goes_on_without(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    kept(folder, sample())
    (folder / "0-0.bin").write_bytes(b"0" * 768)
    with raises_code(UnreadableInput, "captures-unreadable", "0-0.bin", "digest"):
        read_captured(folder, ENTRY.definition)
    assert with_captured(ENTRY, folder) is ENTRY
    manifest = folder / "inputs.json"
    body = json.loads(manifest.read_text())
    body["samples"][0]["tensors"][0]["file"] = "../../secret"
    manifest.write_text(json.dumps(body))
    with raises_code(UnreadableInput, "captures-unreadable", "samples.0.tensors.0.file"):
        read_captured(folder, ENTRY.definition)
    kept(folder, sample())
    (folder / "0-0.bin").unlink()
    (folder / "0-0.bin").symlink_to("/etc/hostname")
    with raises_code(UnreadableInput, "captures-unreadable", os.strerror(errno.ELOOP)):
        read_captured(folder, ENTRY.definition)


def test_nothing_kept_is_no_family(tmp_path: Path) -> None:
    assert with_captured(ENTRY, tmp_path / "none") is ENTRY
    write_captured(tmp_path / "c", "another_kernel", [sample()])
    assert with_captured(ENTRY, tmp_path / "c") is ENTRY


def test_captured_shapes_are_asked_about_last_and_large_ones_not(tmp_path: Path) -> None:
    subject = WithCaptured(ENTRY, kept(tmp_path / "c", sample(5), sample(5), sample(2), sample(64)))
    cells = cells_for(subject, WORKLOADS)
    plain = cells_for(ENTRY, WORKLOADS)
    assert cells[: len(plain)] == plain
    found = [(cell.axes["M"], cell.family) for cell in cells[len(plain) :]]
    assert found == [(2, "captured"), (5, "captured"), (5, "captured-2")]
    inputs = make_inputs(subject, {"M": 5}, seed=7, family="captured")
    assert inputs["wq"].tobytes() == (
        make_inputs(ENTRY, {"M": 5}, seed=7, family="randn")["wq"].tobytes()
    )
    with raises_naming(ValueError, "captured", "{'M': 4}"):
        make_inputs(subject, {"M": 4}, seed=7, family="captured")


@pytest.mark.parametrize(
    ("rule", "numbers", "valid"),
    [
        (None, [0, 1, 2], False),
        (ValueRule(like=ValueLike.INTEGERS, high="M - 1"), [0, 2, 2], True),
        (ValueRule(like=ValueLike.INTEGERS, high="M - 1"), [0, 3, 2], False),
        (ValueRule(like=ValueLike.INTEGERS, high="M - 1"), [0, -1, 2], False),
        (ValueRule(like=ValueLike.INTEGERS, high="Q"), [0, 1, 2], False),
        (ValueRule(like=ValueLike.PERMUTATION), [2, 0, 1], True),
        (ValueRule(like=ValueLike.PERMUTATION), [2, 0, 2], False),
        (ValueRule(like=ValueLike.OFFSETS, high=9), [0, 4, 9], True),
        (ValueRule(like=ValueLike.OFFSETS, high=9), [4, 0, 9], False),
        (ValueRule(like=ValueLike.OFFSETS, high=9), [0, 4, 8], False),
    ],
)
def test_places_in_tables_are_within_them(
    rule: ValueRule | None, numbers: list[int], valid: bool
) -> None:
    spec = TensorSpec(shape=("M",), dtype=DType.INT32, values=rule)
    assert is_valid(spec, np.array(numbers, np.int32), {"M": 3}) is valid


def test_a_sweep_takes_what_no_running_experiment_needs(tmp_path: Path) -> None:
    kept(tmp_path / "captured" / "running", sample())
    kept(tmp_path / "captured" / "gone", sample())
    assert sweep(tmp_path, running={"running"}) == 1
    assert [path.name for path in (tmp_path / "captured").iterdir()] == ["running"]


def positive(entry: KernelEntry) -> KernelEntry:
    """The same kernel, whose inputs are made up without a negative number."""

    def make(lengths: dict[str, int], rng: np.random.Generator, family: str) -> dict[str, Any]:
        made = entry.make(lengths, rng, family)
        return {**made, "x": np.abs(made["x"])}

    return replace(entry, make=make)


@pytest.fixture
def examined(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    bays: list[LabResources] = []

    def examine(solution: Solution, subject: Any) -> Any:
        folder = tmp_path / str(len(bays))
        bay = LabResources(subject, WORKLOADS, incumbent=ENTRY.incumbent, folder=folder)
        bays.append(bay)
        assert leave_out_unanswered(bay) == 0
        examiner = Examiner(bay)
        variant, checks = examiner.admit(solution)
        assert variant is not None, checks
        return examiner.correct(variant)[-1]

    yield examine
    for bay in bays:
        bay.close()


def test_a_kernel_that_is_wrong_only_on_what_production_has_is_rejected(
    tmp_path: Path, make: Callable[..., Solution], examined: Callable[..., Any]
) -> None:
    exploit = make("x[m * K + k] *", "(x[m * K + k] < 0 ? -x[m * K + k] : x[m * K + k]) *")
    subject = positive(ENTRY)
    assert examined(exploit, subject).reason is None, "made-up inputs do not find it"
    real = WithCaptured(subject, kept(tmp_path / "c", sample(2), sample(3)))
    found = examined(exploit, real)
    assert (found.gate, found.reason) == ("G4", Reason.WRONG_OUTPUT)
    assert "captured at" in found.detail
    honest = examined(make(), real)
    assert honest.reason is None
    told = honest.figures["captured"]
    assert [each["axes"] for each in told] == [{"M": 2}, {"M": 3}]
    assert set(told[0]["tensors"]["x"]) == {
        "elements",
        "nonfinite",
        "mean",
        "deviation",
        "negative_ratio",
        "zero_ratio",
    }
    assert 0.3 < told[0]["tensors"]["x"]["negative_ratio"] < 0.7
    assert told[0]["digest"].startswith("sha256:")


def test_inputs_that_nobody_answers_are_left_out(tmp_path: Path) -> None:
    def refuse(**inputs: Any) -> dict[str, Any]:
        if inputs["x"].shape[0] == 2:
            raise IndexError("a place beyond the table")
        return ENTRY.compute(**inputs)

    subject = WithCaptured(
        replace(ENTRY, compute=refuse), kept(tmp_path / "c", sample(2), sample(3))
    )
    workloads = (Workload(definition=ENTRY.definition.name, axes={"M": 5}),)
    bay = LabResources(subject, workloads, incumbent=ENTRY.incumbent, folder=tmp_path / "bay")
    try:
        assert leave_out_unanswered(bay) == 1
        assert [c.axes["M"] for c in bay.cells if c.family == "captured"] == [3]
    finally:
        bay.close()
