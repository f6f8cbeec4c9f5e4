"""A GPU C++ artifact in a slot: prepare, swap, launch, trip, go back; the device is a played one.

What a real device adds is in tests/gpu.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.lab.gpu_cpp.emulator import build_driver, emulate
from tests.runtime.test_gpu_driver import image_of, solution

torch = pytest.importorskip("torch")

from retuned.runtime.artifacts.loaded import loaded_torch  # noqa: E402
from retuned.runtime.core.attach import attach  # noqa: E402
from retuned.runtime.native import gpu_variant  # noqa: E402
from retuned.runtime.native.gpu_driver import driver_of  # noqa: E402
from retuned.runtime.schema import Refused  # noqa: E402

SOURCE = """#include "retuned_device.h"
extern "C" __global__ void __launch_bounds__(BLOCK_X)
linear(const float* x, const i8* wq, const float* scale, float* y, index_t M, index_t N,
       index_t K) {
  const index_t at = block_x() * BLOCK_X + thread_x();
  if (at >= M * N) return;
  float total = 0.0f;
  for (index_t k = 0; k < K; k++) total += x[at / N * K + k] * wq[at % N * K + k];
  y[at] = total * scale[at % N] * GAIN / 100;
}
"""
PARAMS = {"BLOCK_X": 64, "GAIN": 100}
SCRATCH = SOURCE.replace("float* y,", "float* y, float* scratch,").replace(
    "  y[at] = total", "  scratch[at] = total;\n  y[at] = scratch[at]"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = build_driver(tmp_path_factory.mktemp("driver"))
    for text in (SCRATCH, *(SOURCE.replace("GAIN", str(gain)) for gain in (100, 150))):
        emulate(solution(text, "linear", **PARAMS), image_of(text), driver=path)
    return path


@pytest.fixture(autouse=True)
def device(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyTorch's CPU tensors be what the played device takes."""

    def here(vendor: str, *, device: int) -> Any:
        return driver_of(vendor, device=device, library=str(library))

    cuda = loaded_torch().cuda
    stream = SimpleNamespace(synchronize=lambda: None, cuda_stream=0)
    monkeypatch.setattr(gpu_variant, "driver_of", here)
    monkeypatch.setattr(gpu_variant.GpuVariant, "_find_gpu", lambda *_: torch.device("cpu"))
    monkeypatch.setattr(gpu_variant.GpuVariant, "_stream_of", lambda _: lambda: 0)
    monkeypatch.setattr(gpu_variant.GpuVariant, "capturing", lambda _: None)
    monkeypatch.setattr(cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(cuda, "device_count", lambda: 1)


@pytest.fixture
def deliver(tmp_path: Path, linear_test_kit: Any) -> Callable[..., tuple[str, str]]:
    def made(gain: int = 100, *, image: bytes | None = None, **fields: Any) -> tuple[str, str]:
        binary = image or image_of(SOURCE.replace("GAIN", str(gain)))
        about = json.dumps([gain, binary.hex(), fields], sort_keys=True).encode()
        digest = "sha256:" + hashlib.sha256(about).hexdigest()
        folder = tmp_path / digest[7:]
        folder.mkdir(exist_ok=True)
        (folder / "kernel.cubin").write_bytes(binary)
        manifest = {
            "digest": digest,
            "definition": linear_test_kit.definition(),
            "language": "gpu_cpp",
            "entry": "linear",
            "params": PARAMS,
            "grid": ["cdiv(M * N, BLOCK_X)"],
            "binary": "kernel.cubin",
            "binary_sha256": hashlib.sha256(binary).hexdigest(),
        }
        (folder / "artifact.json").write_text(json.dumps(manifest | fields))
        return digest, str(folder)

    return made


class Server:
    """One slot of a small linear."""

    def __init__(self, kit: Any, layer: Any) -> None:
        self.kit, self.layer = kit, layer
        self.runtime = attach(server="test")
        self.slot = self.runtime.slot(kit.definition(), kit.original)

    def swap(self, artifact: tuple[str, str], **fields: Any) -> None:
        order = self.kit.order(artifact[0], **fields)
        self.runtime._host.answer({"op": "prepare", "order": order, "artifact_dir": artifact[1]})
        self.runtime._host.answer({"op": "commit", "order": order})

    def launch(self, rows: int) -> None:
        """Launch, and check the answer against the original."""
        with torch.inference_mode():
            inputs = (torch.randn(rows, 32), self.layer.wq, self.layer.scale)
            expected = self.kit.original(*inputs)
            torch.testing.assert_close(self.slot(*inputs), expected, rtol=1e-4, atol=1e-3)

    @property
    def sample(self) -> dict[str, Any]:
        (sample,) = self.runtime._host.answer({"op": "samples"})["samples"]
        return dict(sample)


@pytest.fixture
def server(linear_test_kit: Any, layer: Any) -> Iterator[Server]:
    started = Server(linear_test_kit, layer)
    started.launch(4)
    yield started
    started.runtime.close()


Deliver = Callable[..., tuple[str, str]]


def refusal(server: Server, artifact: tuple[str, str]) -> str:
    with pytest.raises(Refused) as found:
        server.swap(artifact)
    return found.value.reason


def test_a_variant_serves_within_its_guard_and_goes_back(server: Server, deliver: Deliver) -> None:
    server.swap(deliver(), guard={"bounds": {"M": [2, 40]}})
    for rows in (1, 2, 17, 41):
        server.launch(rows)
    sample = server.sample
    assert (sample["swapped_launches"], sample["fallback_launches"]) == (2, 2), sample
    assert sample["errors"] == 0
    server.runtime._host.answer({"op": "commit", "order": server.kit.order(None, epoch=2)})
    server.launch(17)
    assert server.sample["swapped_launches"] == 0


def test_scratch_is_given_to_every_launch(server: Server, deliver: Deliver) -> None:
    image = image_of(SCRATCH)
    server.swap(deliver(image=image, scratch_bytes=1 << 12))
    server.launch(4)
    assert server.sample["swapped_launches"] == 1


def test_its_binary_is_the_code_and_nothing_is_compiled(
    server: Server, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETUNED_COMPILE", "never")
    digest, folder = deliver()
    order = server.kit.order(digest)
    said = server.runtime._host.answer({"op": "prepare", "order": order, "artifact_dir": folder})
    assert (said["shipped"], said["compiled_here"]) == (1, 0)


def test_a_wrong_variant_fails_the_self_check(server: Server, deliver: Deliver) -> None:
    assert refusal(server, deliver(150)) == "self-check-failed"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"image": image_of("for another device")}, "wrong-arch"),
        ({"image": b"nothing that a device runs" * 4}, "load-failed"),
        ({"entry": "other"}, "entry-missing"),
        ({"params": {}}, "contract-violated"),
        ({"grid": ["M *"]}, "grid-invalid"),
        ({"grid": []}, "grid-invalid"),
        ({"grid": ["M - 4"]}, "self-check-failed"),
    ],
)
def test_what_cannot_be_loaded_is_refused_and_the_original_serves(
    fields: dict[str, Any], reason: str, server: Server, deliver: Deliver
) -> None:
    assert refusal(server, deliver(**fields)) == reason
    server.launch(4)


def test_lengths_without_a_grid_are_the_originals(server: Server, deliver: Deliver) -> None:
    server.swap(deliver(grid=["cdiv(M * N, BLOCK_X) * min(1, max(0, M - 3))"]))
    for rows in (3, 4, 5):
        server.launch(rows)
    sample = server.sample
    assert sample["swapped_launches"] == 2, sample
    assert sample["ineligible_launches"] == {"grid-invalid": 1}


def test_a_machine_without_a_gpu_refuses_objects(
    server: Server, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert refusal(server, deliver()) == "gpu-missing"
