"""From a server that runs strangers' kernels, and back into it: seen, lifted, swapped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retuned.adapters.local_lab import LocalLab
from retuned.catalog.own import entry_of
from retuned.contract import Language, Workload
from retuned.lifting.lift import Outcome, lift_all

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("serving.py")


class Server:
    """The program on the other side of two pipes."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.said: dict[str, Any] = self.read()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(body) + "\n")
        self.process.stdin.flush()
        return self.read()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("server"))
    yield found
    found.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def outcome(server: Server) -> Outcome:
    return lift_all(server.said["records"])


def test_what_the_runtime_shows_is_lifted(outcome: Outcome) -> None:
    assert outcome.kept == []
    grids = {each.own.definition.op_type: each.own.variants[0].grid for each in outcome.lifted}
    assert grids == {
        "lifted_scale_kernel": ("cdiv(n_elements, BLOCK)",),
        "lifted_growing_kernel": ("cdiv(n_elements, BLOCK)",),
        "lifted_rms_norm_forward": ("rows",),
    }
    assert {w.weight for w in _workloads(outcome, "scale") if w.axes == {"n_elements": 200}} == {3}


def _workloads(outcome: Outcome, name: str) -> list[Workload]:
    found = [each for each in outcome.lifted if name in each.own.definition.op_type]
    return [workload for each in found for workload in each.workloads]


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
    (one,) = [each for each in outcome.lifted if each.own.definition.op_type == op_type]
    entry = entry_of(one.own, Language.TRITON)
    candidate = entry.solution("lifted", {**entry.incumbent.params, **params})
    lab = LocalLab(tmp_path, subjects=lambda _: entry, solutions=lambda _: None, generators={})
    folder = lab.build(candidate)
    said = server.ask(
        {"definition": one.own.name, "digest": candidate.digest, "folder": str(folder)}
    )
    assert said["same"], "the variant gives the server what it gave before"
    (sample,) = [each for each in said["samples"] if each["definition"] == one.own.name]
    assert (sample["swapped_launches"], sample["fallback_launches"]) == (1, 0), sample


def test_checks_of_what_is_written_over_run_on_copies_taken_before(
    server: Server, outcome: Outcome, tmp_path: Path
) -> None:
    (one,) = [e for e in outcome.lifted if e.own.definition.op_type == "lifted_growing_kernel"]
    entry = entry_of(one.own, Language.TRITON)
    candidate = entry.solution("lifted", {**entry.incumbent.params, "BLOCK": 32})
    lab = LocalLab(tmp_path, subjects=lambda _: entry, solutions=lambda _: None, generators={})
    folder = lab.build(candidate)
    ordered = {"definition": one.own.name, "digest": candidate.digest, "folder": str(folder)}
    said = server.ask({**ordered, "every": 1, "more": 9})
    assert said["same"], "each launch was applied once, checked or not"
    (sample,) = [each for each in said["samples"] if each["definition"] == one.own.name]
    assert sample["shadow_checks"] == 10, sample
    assert sample["shadow_mismatches"] == sample["shadow_nonfinite"] == 0, sample
