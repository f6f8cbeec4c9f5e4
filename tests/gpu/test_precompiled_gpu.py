"""Code that the lab compiled for this GPU is loaded by a server on it, and nothing is compiled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

pytestmark = pytest.mark.gpu

from tests.gpu.test_triton_gpu import Server  # noqa: E402

from retuned.contract import Solution  # noqa: E402
from retuned.lab.languages.gpu import find_gpu  # noqa: E402
from retuned.lab.languages.triton_precompile import precompile  # noqa: E402
from retuned.runtime.artifacts.precompiled import PRECOMPILED_FILE, pack  # noqa: E402
from retuned.runtime.schema import Refused  # noqa: E402


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    made = Server(tmp_path, torch.device("cuda", 0))
    precise = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    made.launch(64)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))  # empty: nothing is found
    yield made
    torch.backends.cuda.matmul.allow_tf32 = precise
    made.runtime.close()


def delivered(server: Server, structure: str) -> tuple[dict[str, Any], Solution]:
    """Write the artifact of a structure with its code; return the request and the variant."""
    entry = server.entry
    solution = entry.solution(structure, entry.space(structure).starts({"M": 64})[0])
    gpu = find_gpu()
    assert gpu is not None
    request = server.deliver(solution)
    folder = Path(request["artifact_dir"])
    body = json.loads((folder / "artifact.json").read_text())
    codes = precompile(solution, entry.definition, arch=gpu.arch)
    body["precompiled"], data = pack(codes)
    (folder / PRECOMPILED_FILE).write_bytes(data)
    (folder / "artifact.json").write_text(json.dumps(body))
    return request, solution


@pytest.mark.parametrize("structure", ["tiles", "split", "split-k"])
def test_a_variant_serves_from_the_code_that_came_along(
    server: Server, monkeypatch: pytest.MonkeyPatch, structure: str
) -> None:
    request, solution = delivered(server, structure)
    monkeypatch.setenv("RETUNED_COMPILE", "never")
    said = server.ask("prepare", **request)
    assert (said["shipped"], said["compiled_here"], said["cached"]) == (
        len(solution.launches),
        0,
        0,
    )
    server.ask("commit", order=request["order"])
    for rows in (64, 2, 33, 64):
        server.launch(rows)
    sample = server.sample()
    assert sample["swapped_launches"] == 4
    assert sample["errors"] == 0
    assert sample["shadow_mismatches"] == 0


def test_without_code_a_server_that_never_compiles_refuses(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = server.entry
    solution = entry.solution("tiles", entry.space("tiles").starts({"M": 64})[0])
    monkeypatch.setenv("RETUNED_COMPILE", "never")
    with pytest.raises(Refused) as refused:
        server.ask("prepare", **server.deliver(solution))
    assert refused.value.reason == "not-shipped"
    server.launch(64)
