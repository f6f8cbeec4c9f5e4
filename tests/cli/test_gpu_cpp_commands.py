"""GPU C++ on the command line: audited without a GPU, and an honest no where one is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.expect import raises_naming
from typer.testing import CliRunner

from retuned import catalog
from retuned.cli.audit import audit
from retuned.cli.validate import read_candidate
from retuned.contract import Language
from retuned.errors import MissingDependency
from retuned.lab.languages.gpu import find_gpu
from retuned.lab.languages.gpu_compilers import find_nvrtc
from retuned.lab.toolchain_gpu_cpp import GpuCpp

app = typer.Typer(pretty_exceptions_enable=False)
app.command("audit")(audit)
runner = CliRunner()
TEXT = (
    """// ---
// definition: rmsnorm_h64
// entry: rmsnorm_block
// params: {BLOCK_X: 64, VEC: 4, TYPE: float}
// grid: [M]
// shapes: [{M: 3}]
// ---
"""
    + catalog.get("rmsnorm_h64", language=Language.GPU_CPP).incumbent.sources[0].content
)


def written(folder: Path, text: str = TEXT, name: str = "mine.cu") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["mine.cu", "mine.hip"])
def test_a_device_source_is_a_candidate_with_its_grid_and_block(name: str, tmp_path: Path) -> None:
    solution, shapes = read_candidate(written(tmp_path, name=name), definition=None)
    assert solution.language is Language.GPU_CPP
    assert solution.grid == ("M",)
    assert solution.params["BLOCK_X"] == 64
    assert solution.sources[0].path == f"candidate{Path(name).suffix}"
    assert shapes == ({"M": 3},)


@pytest.mark.skipif(find_nvrtc() is None, reason="no libnvrtc; PyTorch for CUDA has it")
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("", "", None),
        ("  float squares", '  asm("trap;");\n  float squares', "contract-violated"),
        ("to_float(from[at]) * scale", "to_float(form[at]) * scale", "compile-failed"),
        ("room[WARPS_PER_BLOCK];", "room[WARPS_PER_BLOCK];\n  __shared__ float more[60000];\n"
         "  more[thread_x() * 7] = 1.0f; sync(); room[0] = more[thread_x()];", "compile-failed"),
    ],
    ids=["honest", "assembly", "a typing error", "too much shared memory"],
)  # fmt: skip
def test_a_device_source_is_audited_without_a_gpu(
    old: str, new: str, reason: str | None, tmp_path: Path
) -> None:
    path = written(tmp_path, TEXT.replace(old, new) if old else TEXT)
    done = runner.invoke(app, [str(path), "--arch", "sm_90", "--json"])
    body: dict[str, Any] = json.loads(done.stdout)
    if reason is None:
        assert done.exit_code == 0, body
        assert (body["kernels"][0]["kernel"], body["kernels"][0]["arch"]) == (
            "rmsnorm_block",
            "sm_90",
        )
    else:
        assert done.exit_code == 1
        assert body["refusal"]["reason"] == reason, body


@pytest.mark.skipif(find_gpu() is not None, reason="there is a GPU")
def test_running_it_says_what_is_missing_and_what_can_be_done_without() -> None:
    with raises_naming(MissingDependency, "retuned audit FILE --arch") as caught:
        GpuCpp().program.start(3)
    assert caught.value.exit_code == 4
