"""Triton variants on a real GPU: right, compiled before they serve, swapped in and taken back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retuned import catalog
from retuned.catalog.entry import KernelEntry
from retuned.contract import Language, Solution
from retuned.runtime.core.attach import Runtime, attach
from retuned.runtime.schema import Refused
from retuned.runtime.shadow.sampler import fingerprint

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

pytestmark = pytest.mark.gpu

from retuned.demo.batches import Chunk  # noqa: E402
from retuned.demo.kernels import TritonIncumbent, slotted_operators  # noqa: E402
from retuned.demo.model import DecoderModel  # noqa: E402
from retuned.demo.operators import plain_operators  # noqa: E402
from retuned.demo.shapes import SHAPES  # noqa: E402
from retuned.lab.languages.triton_contract import load, manifest_of  # noqa: E402
from retuned.runtime.triton.launch import TritonSteps  # noqa: E402

DEFINITIONS = {
    "linear_w8_n6144_k2048": [{"M": 1}, {"M": 17}, {"M": 256}],
    "linear_w8_n2048_k5632": [{"M": 3}],
    "linear_w8_n96_k80": [{"M": 5}],
    "rmsnorm_h2048": [{"M": 1}, {"M": 300}],
    "rmsnorm_h80": [{"M": 9}],
    "silu_mul_i5632": [{"M": 1}, {"M": 300}],
    "softmax_n8192": [{"M": 1}, {"M": 64}],
    "softmax": [{"M": 3, "N": 70}, {"M": 2, "N": 5000}],
    "attention_h16_d128": [{"T": 1, "S": 1}, {"T": 1, "S": 300}, {"T": 130, "S": 333}],
    "attention_h2_d48": [{"T": 18, "S": 21}],
}
NEAR = 3e-5
"""Allowed difference in root mean squares; exp2 of the hardware moves a logit of 60 by 1e-6."""
NEAR_ON_MATRIX_UNITS = 1.5e-4
"""The same where products are added by matrix units, which cut low bits of what they add: 8e-5 was
seen on an H100 at K = 5632. Whether a variant with such an error may be promoted the judge says."""


@pytest.fixture(scope="module", autouse=True)
def device() -> Any:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    return torch.device("cuda", 0)


def kernel(entry: KernelEntry, solution: Solution) -> TritonSteps:
    return load(solution, entry.definition)


def solutions(entry: KernelEntry, axes: dict[str, int]) -> Iterator[Solution]:
    """Yield the incumbent, and every start of every structure."""
    yield entry.incumbent
    for space in entry.spaces:
        for params in space.starts(axes):
            yield entry.solution(space.name, params)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_start_computes_what_the_reference_does(name: str, device: Any) -> None:
    entry = catalog.get(name, language=Language.TRITON)
    definition = entry.definition
    wrong = []
    for axes in DEFINITIONS[name]:
        lengths = list(definition.lengths(axes).values())
        cases = []
        for family in entry.families:
            inputs = entry.inputs(axes, seed=3, family=family)
            (expected,) = entry.reference(inputs, axes).values()
            tensors = [torch.from_numpy(inputs[n]).to(device) for n in definition.inputs]
            cases.append((family, tensors, expected))
        for solution in solutions(entry, axes):
            ready = kernel(entry, solution)
            for family, tensors, expected in cases:
                output = torch.full(expected.shape, 777.0, device=device)
                before = fingerprint(tensors)
                ready.launch([*tensors, output], lengths)
                near = NEAR_ON_MATRIX_UNITS if solution.structure == "split" else NEAR
                difference = differs(output.double().cpu().numpy(), expected, near=near)
                if difference or fingerprint(tensors) != before:
                    wrong.append((solution.name, axes, family, difference))
    assert not wrong, wrong


def differs(ours: Any, theirs: Any, *, near: float) -> str:
    finite = np.isfinite(theirs)
    if not np.isfinite(ours[finite]).all():
        return "not finite where the reference is"
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
        return "NaN or Inf in other places"
    rms = float(np.sqrt(np.mean(theirs[finite] ** 2))) if finite.any() else 0.0
    worst = float(np.max(np.abs(ours[finite] - theirs[finite]), initial=0.0))
    return "" if worst <= near * rms else f"{worst:.3g} where the rms is {rms:.3g}"


def test_other_lengths_use_the_code_that_is_there(device: Any) -> None:
    entry = catalog.get("rmsnorm_h2048", language=Language.TRITON)
    ready = kernel(entry, entry.incumbent)
    ready.prepare([1, 2048], dtypes=["float32"] * 3, device=device)
    for rows in (1, 2, 16, 33, 70_000):
        assert ready.is_prepared([rows, 2048], device=device)
        x, weight = torch.randn(rows, 2048, device=device), torch.rand(2048, device=device)
        out = torch.empty_like(x)
        ready.launch([x, weight, out], [rows, 2048])
        torch.testing.assert_close(out, plain_operators().rmsnorm(x, weight), atol=1e-4, rtol=1e-4)
    assert len(ready.kernels[0]._compiled) == 1


def test_a_launch_is_on_the_stream_that_is_current(device: Any) -> None:
    entry = catalog.get("silu_mul_i5632", language=Language.TRITON)
    ready = kernel(entry, entry.incumbent)
    x, out = torch.randn(64, 11264, device=device), torch.zeros(64, 5632, device=device)
    lengths = [64, 5632, 11264]
    ready.launch([x, out], lengths)
    expected = out.clone()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.add_(0.0)
        out.zero_()
        ready.launch([x, out], lengths)
    assert not side.query(), "the launch did not wait for the stream"
    side.synchronize()
    assert torch.equal(out, expected)


def test_what_the_device_cannot_hold_is_refused_before_it_serves(device: Any) -> None:
    entry = catalog.get("linear_w8_n6144_k2048", language=Language.TRITON)
    params = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 256, "num_warps": 4, "num_stages": 8}
    fitting = entry.solution("split", entry.space("split").starts({"M": 64})[0])
    large = fitting.model_copy(update={"params": params})
    ready = kernel(entry, large)
    with pytest.raises(Refused) as refused:
        ready.prepare(
            [64, 6144, 2048], dtypes=["float32", "int8", "float32", "float32"], device=device
        )
    assert refused.value.reason in ("out-of-resources", "compile-failed")


# --- in a slot ------------------------------------------------------------------------------------

NAME = "linear_w8_n6144_k2048"


class Server:
    """The incumbent of one linear behind a slot."""

    def __init__(self, folder: Path, device: Any) -> None:
        self.folder = folder
        self.entry = catalog.get(NAME, language=Language.TRITON)
        self.incumbent = TritonIncumbent(
            self.entry.definition, self.entry.incumbent, device=str(device)
        )
        self.runtime: Runtime = attach(server="gpu-test")
        body = self.entry.definition.model_dump(mode="json")
        self.slot = self.runtime.slot(body, original=self.incumbent)
        generator = torch.Generator(device).manual_seed(1)
        self.wq = torch.randint(
            -127, 128, (6144, 2048), dtype=torch.int8, device=device, generator=generator
        )
        self.scale = torch.rand(6144, device=device, generator=generator) * 1e-3
        self.device = device

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return self.runtime._host.answer({"op": op, **fields})

    def deliver(self, solution: Solution, text: Callable[[str], str] = str) -> dict[str, Any]:
        """Write an artifact as the daemon does; return the order's and the folder's part."""
        binary = text(solution.sources[0].content).encode()
        digest = "sha256:" + hashlib.sha256(binary + solution.digest.encode()).hexdigest()
        digest = solution.digest if solution.steps else digest
        folder = self.folder / digest[7:]
        folder.mkdir()
        (folder / "kernel.py").write_bytes(binary)
        manifest = {
            "digest": digest,
            "definition": self.entry.definition.model_dump(mode="json"),
            "language": "triton",
            "entry": solution.entry,
            "params": dict(solution.params),
            "grid": list(solution.grid),
            "binary": "kernel.py",
            "binary_sha256": hashlib.sha256(binary).hexdigest(),
            **manifest_of(solution),
        }
        (folder / "artifact.json").write_text(json.dumps(manifest))
        return {"order": self.order(digest), "artifact_dir": str(folder)}

    def order(self, digest: str | None, epoch: int = 1) -> dict[str, Any]:
        return {
            "id": f"order-{epoch}",
            "kind": "swap" if digest else "rollback",
            "proposal": "proposal",
            "target": "server",
            "definition": NAME,
            "artifact": digest,
            "previous": None,
            "guard": {"bounds": {"M": [2, 512]}},
            "epoch": epoch,
            "shadow_every": 10,
            "shadow_tolerance": 1e-3,
        }

    def launch(self, rows: int) -> Any:
        with torch.inference_mode():
            x = torch.randn(rows, 2048, device=self.device)
            answer = self.slot(x, self.wq, self.scale)
            expected = plain_operators().linear_w8(x, self.wq, self.scale)
            torch.testing.assert_close(answer, expected, atol=2e-4, rtol=1e-3)
        return answer

    def sample(self) -> dict[str, Any]:
        (sample,) = self.ask("samples")["samples"]
        return dict(sample)


@pytest.fixture
def server(tmp_path: Path, device: Any) -> Iterator[Server]:
    made = Server(tmp_path, device)
    precise = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    made.launch(64)
    yield made
    torch.backends.cuda.matmul.allow_tf32 = precise
    made.runtime.close()


@pytest.mark.parametrize("structure", ["tiles", "split"])
def test_a_variant_is_swapped_in_checked_and_taken_back(server: Server, structure: str) -> None:
    entry = server.entry
    solution = entry.solution(structure, entry.space(structure).starts({"M": 64})[0])
    request = server.deliver(solution)
    assert server.ask("prepare", **request)["shapes"] == 1
    server.ask("commit", order=request["order"])
    for rows in (1, 2, 33, 64, 512, 513):
        for _ in range(12):
            server.launch(rows)
    sample = server.sample()
    assert sample["swapped_launches"] == 48
    assert sample["fallback_launches"] == 24
    assert sample["shadow_checks"] >= 4
    assert sample["shadow_mismatches"] == 0
    assert sample["errors"] == 0
    assert sample["ineligible_launches"] == {}
    server.ask("commit", order=server.order(None, epoch=2))
    server.launch(64)
    assert server.sample()["swapped_launches"] == 0


def test_a_variant_of_two_launches_serves_on_every_stream_from_its_own_scratch(
    server: Server,
) -> None:
    entry = server.entry
    request = server.deliver(entry.solution("split-k", entry.space("split-k").starts({"M": 64})[0]))
    server.ask("prepare", **request)
    server.ask("commit", order=request["order"])
    for rows in (64, 2, 33, 64):
        server.launch(rows)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        server.launch(64)
    assert server.sample()["ineligible_launches"] == {"no-scratch": 1}
    server.runtime._host.housekeeping()
    with torch.cuda.stream(side):
        server.launch(64)
    server.launch(512)  # more than was prepared
    server.runtime._host.housekeeping()
    server.launch(512)
    sample = server.sample()
    assert sample["swapped_launches"] == 6
    assert sample["ineligible_launches"] == {"no-scratch": 2}
    assert sample["errors"] == 0
    assert sample["shadow_mismatches"] == 0


def test_a_wrong_variant_does_not_pass_the_self_check(server: Server) -> None:
    entry = server.entry
    solution = entry.solution("tiles", entry.space("tiles").starts({"M": 64})[0])
    request = server.deliver(solution, lambda text: text.replace("total * gain", "total + gain"))
    with pytest.raises(Refused) as refused:
        server.ask("prepare", **request)
    assert refused.value.reason == "self-check-failed"
    server.launch(64)


def test_tensors_of_the_host_go_to_the_original(server: Server) -> None:
    entry = server.entry
    request = server.deliver(entry.solution("tiles", entry.space("tiles").starts({"M": 64})[0]))
    server.ask("prepare", **request)
    server.ask("commit", order=request["order"])
    server.slot.original = lambda *_: "original"
    server.slot.commit(server.slot.table.in_force)  # type: ignore[arg-type]
    x = torch.randn(64, 2048)
    assert server.slot(x, server.wq.cpu(), server.scale.cpu()) == "original"
    assert server.sample()["ineligible_launches"] == {"tensor-kind": 1}


def test_code_for_new_lengths_is_compiled_off_the_request_path(server: Server) -> None:
    entry = server.entry
    solution = entry.solution("tiles", entry.space("tiles").starts({"M": 64})[0])
    request = server.deliver(
        solution, lambda text: text.replace("    M,\n", "    M: tl.constexpr,\n")
    )
    server.ask("prepare", **request)
    server.ask("commit", order=request["order"])
    server.launch(64)
    server.launch(48)
    assert server.sample()["ineligible_launches"] == {"not-compiled": 1}
    server.runtime._host.housekeeping()
    server.launch(48)
    assert server.sample()["swapped_launches"] == 2


# --- the demo's server ----------------------------------------------------------------------------


def test_the_demo_model_says_the_same_on_triton_kernels(tmp_path: Path, device: Any) -> None:
    shape = replace(SHAPES["gpu"], layers=2)
    runtime = attach(server="gpu-demo")
    try:
        made = slotted_operators(shape, runtime, cache_dir=tmp_path, device="cuda")
        tokens = []
        for operators in (made.operators, plain_operators()):
            model = DecoderModel(shape, operators, max_sequences=2, seed=5, device="cuda")
            first, second = model.new_cache(), model.new_cache()
            said = model.forward([Chunk(list(range(100)), first, True), Chunk([7], second, True)])
            said += model.forward([Chunk([said[0]], first, True), Chunk([said[1]], second, True)])
            tokens.append(said)
        assert tokens[0] == tokens[1]
    finally:
        runtime.close()


def test_a_profile_of_the_gpu_binds_to_definitions(tmp_path: Path, device: Any) -> None:
    from torch.profiler import ProfilerActivity, profile

    from retuned.traces import read_trace

    shape = replace(SHAPES["gpu"], layers=1)
    runtime = attach(server="gpu-demo")
    try:
        made = slotted_operators(shape, runtime, cache_dir=tmp_path, device="cuda")
        model = DecoderModel(shape, made.operators, max_sequences=1, seed=5, device="cuda")
        cache = model.new_cache()
        model.forward([Chunk([1, 2, 3], cache, True)])
        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=activities, record_shapes=True, acc_events=True) as profiler:
            model.forward([Chunk([4], cache, True)])
            torch.cuda.synchronize()
        path = tmp_path / "window.pt.trace.json"
        profiler.export_chrome_trace(str(path))
    finally:
        runtime.close()
    launches = read_trace(path).launches
    own = [one for one in launches if one.op.startswith("retuned::")]
    bound = [catalog.recognise(one.kernel, one.dims, one.dtypes) for one in own]
    assert {one.definition for one in bound if one} == {
        "linear_w8_n6144_k2048",
        "linear_w8_n2048_k2048",
        "linear_w8_n11264_k2048",
        "linear_w8_n2048_k5632",
        "linear_w8_n8192_k2048",
        "rmsnorm_h2048",
        "silu_mul_i5632",
        "attention_h16_d128",
        "softmax_n8192",
    }, [(one.kernel, one.op, one.dims) for one in launches]
    assert None not in bound
    assert all(one.shape_confidence >= 0.9 for one in own)
    assert sum(one.duration_ns for one in own) > 0.5 * sum(one.duration_ns for one in launches)
