"""``retuned audit``: figures of objects and candidates, exit codes, one JSON object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.expect import raises_code, raises_naming
from tests.hostile.triton_kernels import HEAD, LINEAR, ROW, SOFTMAX, linear
from tests.lab.audit.crafted import ALLOC, NOBITS, WRITE, Name, Part, code_object, cubin
from typer.testing import CliRunner

from retuned.cli.audit import audit
from retuned.errors import UnreadableInput, UsageError

app = typer.Typer(pretty_exceptions_enable=False)
app.command("audit")(audit)
runner = CliRunner()

CANDIDATE = f"""# ---
# definition: {SOFTMAX}
# params: {{BLOCK: 32}}
# grid: [M]
# ---
{ROW}"""


def asked(*words: object) -> Any:
    done = runner.invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture
def object_file(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.hsaco"
    path.write_bytes(code_object())
    return path


def test_an_object_is_audited_without_a_device(object_file: Path) -> None:
    done = asked(object_file, "--arch", "gfx942", "--json")
    assert done.exit_code == 0, done.output
    body = json.loads(done.stdout)
    assert body["passed"] is True
    assert body["refusal"] is None
    (kernel,) = body["kernels"]
    assert (kernel["kernel"], kernel["arch"], kernel["registers"]) == ("kernel", "gfx942", 32)
    assert kernel["occupancy"]["waves"] == 32
    assert kernel["problems"] == []


def test_people_read_the_same(object_file: Path) -> None:
    done = asked(object_file, "--threads", "128")
    assert done.exit_code == 0
    for words in (
        "kernel for gfx942, 128 threads",
        "1024 of 65536 bytes",
        "32 of 32 waves",
        "passed",
    ):
        assert words in done.stdout, done.stdout


def test_what_is_refused_ends_with_one(tmp_path: Path) -> None:
    path = tmp_path / "kernel.cubin"
    state = Part(name=".nv.global", kind=NOBITS, flags=ALLOC | WRITE, size=8)
    path.write_bytes(cubin(parts=[state], names=[Name(name="\x1b[2Jkept", section=4, size=8)]))
    done = asked(path, "--json")
    assert done.exit_code == 1
    body = json.loads(done.stdout)
    assert body["refusal"]["reason"] == "binary-audit-failed"
    assert body["kernels"][0]["problems"][0]["code"] == "writable-global"
    shown = asked(path)
    assert shown.exit_code == 1
    assert "\x1b" not in shown.stdout
    assert "writable-global" in shown.stdout


def test_limits_and_what_a_launch_adds_are_given_by_flags(object_file: Path) -> None:
    assert asked(object_file, "--shared-bytes", 64_512).exit_code == 0
    over = asked(object_file, "--shared-bytes", 64_513, "--json")
    assert over.exit_code == 1
    assert json.loads(over.stdout)["refusal"]["reason"] == "over-limit"
    assert asked(object_file, "--max-scratch-bytes", 0, "--max-spilled-registers", 0).exit_code == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["nothing.hsaco"], UnreadableInput),
        (["--arch", "../x"], UsageError),
        (["--arch", "9000"], UsageError),
    ],
)
def test_wrong_words_and_files_have_their_errors(
    words: list[str], error: type[Exception], object_file: Path
) -> None:
    given = words if words[0].endswith("hsaco") else [str(object_file), *words]
    with pytest.raises(error):
        asked(*given)


def test_what_is_no_object_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "kernel.hsaco"
    path.write_bytes(b"#!/bin/sh\n")
    with raises_code(UnreadableInput, "bad-object", "kernel.hsaco", "ELF"):
        asked(path)


def test_a_candidate_is_compiled_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    path = tmp_path / "candidate.py"
    path.write_text(CANDIDATE)
    done = asked(path, "--arch", "gfx950", "--json")
    assert done.exit_code == 0, done.output
    (kernel,) = json.loads(done.stdout)["kernels"]
    assert kernel["arch"] == "gfx950"
    assert kernel["shared_limit_bytes"] == 163_840


def test_a_candidate_outside_the_contract_is_refused_unexecuted(tmp_path: Path) -> None:
    path = tmp_path / "candidate.py"
    path.write_text(CANDIDATE.replace(HEAD, f"{HEAD}\nopen({str(tmp_path / 'mark')!r}, 'w')\n"))
    done = asked(path, "--arch", "gfx942", "--json")
    assert done.exit_code == 1
    body = json.loads(done.stdout)
    assert body["refusal"]["reason"] == "contract-violated"
    assert body["kernels"] == []
    assert not (tmp_path / "mark").exists()


def test_a_candidate_needs_a_gpu_to_be_named(tmp_path: Path) -> None:
    path = tmp_path / "candidate.py"
    path.write_text(CANDIDATE)
    with raises_naming(UsageError, "--arch"):
        asked(path)


def test_a_solution_that_is_too_large_for_one_gpu_fits_another(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    path = tmp_path / "solution.json"
    big = linear(params={"BM": 128, "BN": 16, "BK": 256})
    assert big.definition == LINEAR
    path.write_text(big.model_dump_json())
    small = asked(path, "--arch", "gfx942", "--json")
    assert small.exit_code == 1
    assert json.loads(small.stdout)["refusal"]["reason"] == "over-limit"
