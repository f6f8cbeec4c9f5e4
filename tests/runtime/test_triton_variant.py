"""A Triton artifact in a slot: prepare, launch, compile off the request path, trip, go back.

The kernels run in Triton's interpreter; what a real device adds is in tests/gpu.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from retuned.runtime.artifacts.loaded import LoadedVariant  # noqa: E402
from retuned.runtime.core.attach import attach  # noqa: E402
from retuned.runtime.schema import Refused  # noqa: E402
from retuned.runtime.shadow.input_copies import KEEPER  # noqa: E402
from retuned.runtime.shadow.sampler import fingerprint  # noqa: E402
from retuned.runtime.triton.launch import TritonKernel  # noqa: E402

SOURCE = '''"""An int8 linear, one output a program."""

import triton
import triton.language as tl


@triton.jit
def linear(x, wq, scale, y, M, N: tl.constexpr, K: tl.constexpr, GAIN: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1)
    at = tl.arange(0, K)
    weights = tl.load(wq + column * K + at).to(tl.float32)
    total = tl.sum(tl.load(x + row * K + at) * weights, axis=0)
    tl.store(y + row * N + column, total * tl.load(scale + column) * GAIN / 100)
'''
TRANSPOSED = SOURCE.replace("column * K + at", "at * N + column", 1)
BY_ROWS = SOURCE.replace("y, M,", "y, M: tl.constexpr,")


@pytest.fixture(autouse=True)
def interpreter() -> None:
    import triton

    if not triton.knobs.runtime.interpret:
        pytest.skip("runs in Triton's interpreter; tests/gpu has the same on a device")


@pytest.fixture
def deliver(tmp_path: Path, linear_test_kit: Any) -> Callable[..., Any]:
    def make(source: str = SOURCE, **fields: Any) -> tuple[str, str]:
        binary = source.encode()
        about = json.dumps([source, fields], sort_keys=True).encode()
        digest = "sha256:" + hashlib.sha256(about).hexdigest()
        folder = tmp_path / digest[7:]
        folder.mkdir(exist_ok=True)
        (folder / "kernel.py").write_bytes(binary)
        manifest = {
            "digest": digest,
            "definition": linear_test_kit.definition(),
            "language": "triton",
            "entry": "linear",
            "params": {"GAIN": 100, "num_warps": 1},
            "grid": ["M", "N"],
            "binary": "kernel.py",
            "binary_sha256": hashlib.sha256(binary).hexdigest(),
        }
        (folder / "artifact.json").write_text(json.dumps(manifest | fields))
        return digest, str(folder)

    return make


class Server:
    """One slot of a small linear."""

    def __init__(self, kit: Any, layer: Any) -> None:
        self.kit, self.layer = kit, layer
        self.runtime = attach(server="test")
        self.slot = self.runtime.slot(kit.definition(), kit.original)

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return self.runtime._host.answer({"op": op, **fields})

    def prepare(self, artifact: tuple[str, str], **fields: Any) -> None:
        digest, folder = artifact
        self.ask("prepare", order=self.kit.order(digest, **fields), artifact_dir=folder)

    def swap(self, artifact: tuple[str, str], **fields: Any) -> None:
        self.prepare(artifact, **fields)
        self.ask("commit", order=self.kit.order(artifact[0], **fields))

    def launch(self, rows: int, x: Any = None) -> None:
        """Launch, and check the answer against the original."""
        x = torch.randn(rows, 32) if x is None else x
        with torch.inference_mode():
            inputs = (x, self.layer.wq, self.layer.scale)
            answer = self.slot(*inputs)
            torch.testing.assert_close(answer, self.kit.original(*inputs), rtol=1e-4, atol=1e-3)

    def sample(self) -> dict[str, Any]:
        (sample,) = self.ask("samples")["samples"]
        return dict(sample)


@pytest.fixture
def server(linear_test_kit: Any, layer: Any) -> Iterator[Server]:
    server = Server(linear_test_kit, layer)
    server.launch(4)
    yield server
    server.runtime.close()


def refusal(server: Server, artifact: tuple[str, str]) -> str:
    with pytest.raises(Refused) as found:
        server.prepare(artifact)
    return found.value.reason


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        (SOURCE, {}),
        (BY_ROWS, {}),
        (TRANSPOSED, {"layouts": {"wq": "transposed"}}),
    ],
)
def test_a_swapped_kernel_serves_within_its_guard(
    server: Server, deliver: Any, source: str, fields: dict[str, Any]
) -> None:
    server.swap(deliver(source, **fields), guard={"bounds": {"M": [2, 8]}}, shadow_every=10**9)
    for rows in (1, 2, 3, 9):
        server.launch(rows)
    sample = server.sample()
    assert sample["swapped_launches"] == 2
    assert sample["fallback_launches"] == 2
    assert sample["errors"] == 0
    assert sample["ineligible_launches"] == {}


def test_a_rollback_returns_to_the_original(server: Server, deliver: Any) -> None:
    server.swap(deliver())
    server.launch(4)
    ran = server.sample()["swapped_launches"]
    assert ran == 1
    server.ask("commit", order=server.kit.order(None, epoch=2))
    server.launch(4)
    assert server.sample()["swapped_launches"] == 0


def test_a_wrong_kernel_fails_the_self_check(server: Server, deliver: Any) -> None:
    assert refusal(server, deliver(params={"GAIN": 150})) == "self-check-failed"


@pytest.mark.parametrize(
    ("source", "fields", "reason"),
    [
        (SOURCE + "import os\n", {}, "contract-violated"),
        ("\xff" + SOURCE, {}, "contract-violated"),
        (SOURCE, {"params": {}}, "contract-violated"),
        (SOURCE, {"grid": ["M", "Q"]}, "grid-invalid"),
        (SOURCE, {"grid": []}, "grid-invalid"),
        (SOURCE, {"grid": ["M - 100"]}, "self-check-failed"),
        (SOURCE, {"grid": "M"}, "artifact-invalid"),
        (SOURCE, {"grid": ["1"] * 4}, "artifact-invalid"),
        (SOURCE, {"params": [1]}, "artifact-invalid"),
        (SOURCE, {"params": {"GAIN": 1.5}}, "artifact-invalid"),
        (SOURCE, {"params": {"GAIN": True}}, "artifact-invalid"),
        (SOURCE, {"params": {"a b": 1}}, "artifact-invalid"),
        (SOURCE, {"entry": "main"}, "contract-violated"),
    ],
)
def test_what_cannot_be_loaded_is_refused(
    server: Server, deliver: Any, source: str, fields: dict[str, Any], reason: str
) -> None:
    if reason == "self-check-failed":
        reason = "grid-invalid"  # preparing for the seen shape computes its grid
    assert refusal(server, deliver(source, **fields)) == reason
    server.launch(4)


def test_bytes_that_are_no_text_are_refused(server: Server, deliver: Any) -> None:
    digest, folder = deliver()
    binary = b"\xff\xfe" + SOURCE.encode()
    (Path(folder) / "kernel.py").write_bytes(binary)
    manifest = Path(folder) / "artifact.json"
    body = json.loads(manifest.read_text())
    body["binary_sha256"] = hashlib.sha256(binary).hexdigest()
    manifest.write_text(json.dumps(body))
    assert refusal(server, (digest, folder)) == "contract-violated"


def test_tensors_the_code_was_not_compiled_for_go_to_the_original(
    server: Server, deliver: Any
) -> None:
    server.swap(deliver())
    server.launch(4, x=torch.randn(4 * 32 + 1)[1:].view(4, 32))
    server.launch(4, x=torch.randn(32, 4).T)
    assert server.sample()["ineligible_launches"] == {"tensor-kind": 2}


def test_a_launch_whose_code_is_missing_goes_to_the_original_and_is_compiled_later(
    server: Server, deliver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter compiles nothing, so that a record of lengths stands in for the compiler."""
    compiled: set[tuple[int, ...]] = set()

    def prepare(self: TritonKernel, lengths: Any, **_: Any) -> None:
        if lengths[0] == 7:
            raise Refused("compile-failed", detail="no code for 7 rows")
        compiled.add(tuple(lengths))

    def is_prepared(self: TritonKernel, lengths: Any, **_: Any) -> bool:
        return tuple(lengths) in compiled

    monkeypatch.setattr(TritonKernel, "prepare", prepare)
    monkeypatch.setattr(TritonKernel, "is_prepared", is_prepared)
    server.swap(deliver(BY_ROWS))
    for rows in (4, 5, 5, 7):
        server.launch(rows)
    assert server.sample()["ineligible_launches"] == {"not-compiled": 3}
    server.runtime._host.housekeeping()
    for rows in (5, 7):
        server.launch(rows)
    sample = server.sample()
    assert sample["swapped_launches"] == 2
    assert sample["ineligible_launches"] == {"not-compiled": 4}
    server.runtime._host.housekeeping()
    (seat,) = server.runtime._host._seating.seats.values()
    (variant,) = seat.resident.values()
    assert isinstance(variant, LoadedVariant)
    assert variant.prepare_pending() == 0, "what failed is not tried again"


def test_launches_that_wait_for_their_code_are_not_copied_for_the_check_that_is_due(
    server: Server, deliver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.swap(deliver(BY_ROWS))
    copied: list[object] = []
    keep = KEEPER.keep

    def noted(inputs: Any, **rest: Any) -> Any:
        copied.append(inputs)
        return keep(inputs, **rest)

    monkeypatch.setattr(KEEPER, "keep", noted)
    monkeypatch.setattr(TritonKernel, "is_prepared", lambda *_, **__: False)
    for _ in range(3):
        server.launch(20)
    assert copied == []
    assert server.sample()["ineligible_launches"] == {"not-compiled": 3}
    monkeypatch.undo()
    server.launch(20)
    assert server.sample()["shadow_checks"] == 1


def test_a_kernel_that_cannot_be_launched_trips_and_the_original_serves(
    server: Server, deliver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.swap(deliver())

    def broken(_: Any) -> None:
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(TritonKernel, "at", lambda *_, **__: broken)
    for rows in (3, 3, 3, 3):
        server.launch(rows)
    sample = server.sample()
    assert sample["tripped"] == "launch-errors"
    assert sample["errors"] == 3


def test_a_machine_without_a_gpu_refuses_compiled_kernels(
    server: Server, deliver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = TritonKernel.__init__

    def compiled(self: TritonKernel, *args: Any, **fields: Any) -> None:
        made(self, *args, **fields)
        self.interpreted = False

    monkeypatch.setattr(TritonKernel, "__init__", compiled)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert refusal(server, deliver()) == "gpu-missing"


class Elsewhere:
    """A CPU tensor that says it is on a device, to run the device's checksum."""

    is_cpu = False

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)


@pytest.mark.parametrize("count", [1, 100, 3 << 20])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float32])
def test_the_checksum_on_a_device_notices_a_changed_byte(count: int, dtype: Any) -> None:
    values = torch.arange(count).to(dtype)
    before = fingerprint([Elsewhere(values)])
    assert before == fingerprint([Elsewhere(values.clone())])
    for place in (0, count - 1):
        changed = values.clone()
        changed[place] = changed[place] + 1
        assert fingerprint([Elsewhere(changed)]) != before
    if count > 1:
        swapped = values.clone()
        swapped[0], swapped[1] = values[1], values[0]
        assert fingerprint([Elsewhere(swapped)]) != before
    assert fingerprint([Elsewhere(torch.empty(0))]) == fingerprint([Elsewhere(torch.empty(0))])
