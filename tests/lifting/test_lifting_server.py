"""From a server that runs strangers' kernels, and back into it: seen, lifted, swapped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lifting.asking import Server

from retuned.contract import Workload
from retuned.lifting.lift import Lifted, Outcome, lift_all

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("server"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def outcome(server: Server) -> Outcome:
    return lift_all(server.said["records"])


def of_type(outcome: Outcome, op_type: str) -> Lifted:
    (one,) = [each for each in outcome.lifted if each.own.definition.op_type == op_type]
    return one


def test_what_the_runtime_shows_is_lifted(outcome: Outcome) -> None:
    assert outcome.kept == []
    grids = {each.own.definition.op_type: each.own.variants[0].grid for each in outcome.lifted}
    assert grids == {
        "lifted_scale_kernel": ("cdiv(n_elements, BLOCK)",),
        "lifted_growing_kernel": ("cdiv(n_elements, BLOCK)",),
        "lifted_rms_norm_forward": ("rows",),
    }
    scaled: tuple[Workload, ...] = of_type(outcome, "lifted_scale_kernel").workloads
    assert {each.weight for each in scaled if each.axes == {"n_elements": 200}} == {3}


@pytest.mark.parametrize(
    ("op_type", "params"),
    [
        ("lifted_scale_kernel", {"BLOCK": 128}),
        ("lifted_rms_norm_forward", {"num_warps": 8}),
        ("lifted_growing_kernel", {"BLOCK": 128}),
    ],
)
def test_a_variant_takes_over_the_servers_launches(
    server: Server, outcome: Outcome, tmp_path: Path, op_type: str, params: dict[str, int]
) -> None:
    said, sample = server.swap(of_type(outcome, op_type), tmp_path, params=params)
    assert said["same"], "the variant gives the server what it gave before"
    assert (sample["swapped_launches"], sample["fallback_launches"]) == (1, 0), sample


def test_checks_of_what_is_written_over_run_on_copies_taken_before(
    server: Server, outcome: Outcome, tmp_path: Path
) -> None:
    one = of_type(outcome, "lifted_growing_kernel")
    said, sample = server.swap(one, tmp_path, params={"BLOCK": 32}, every=1, more=9)
    assert said["same"], "each launch was applied once, checked or not"
    assert sample["shadow_checks"] == 10, sample
    assert sample["shadow_mismatches"] == sample["shadow_nonfinite"] == 0, sample
