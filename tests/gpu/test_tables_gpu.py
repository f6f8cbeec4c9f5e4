"""On a GPU: variants that read tables are checked and swapped in; inputs are captured in time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_code

from retuned import catalog
from retuned.contract import Definition, Language, Solution
from retuned.runtime.core.attach import Runtime, attach
from retuned.runtime.schema import Refused
from retuned.store.artifact_folder import manifest_of

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

pytestmark = pytest.mark.gpu

PAGED = "paged_attention_bf16_h32_g8_d128_p16"
GROUPED = "moe_gemm_bf16_e64_t4_n768_k1024"
RULE = {"every": 1, "samples": 2, "max_bytes": 1 << 24, "sample_bytes": 1 << 22}


@pytest.fixture(autouse=True)
def device() -> None:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    torch.cuda.init()  # a server that launches kernels has done so


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    made = attach(server="test")
    yield made
    made.close()


def attend(q: Any, k: Any, v: Any, table: Any, seen: Any) -> Any:
    page, groups = k.shape[1], k.shape[2]
    out = torch.empty_like(q)
    for b in range(q.shape[0]):
        length = int(seen[b])
        pages = table[b, : -(-length // page)].long()
        key, value = (c[pages].float().flatten(0, 1)[:length] for c in (k, v))
        query = q[b].float().view(groups, -1, q.shape[2])
        weights = torch.einsum("gid,sgd->gis", query, key).div(q.shape[2] ** 0.5).softmax(-1)
        out[b] = torch.einsum("gis,sgd->gid", weights, value).flatten(0, 1).to(q.dtype)
    return out


def multiply(x: Any, w: Any, order: Any, ends: Any, weight: Any) -> Any:
    tokens, slots = order.shape
    routes, start = order.reshape(-1).long(), 0
    y = torch.zeros(tokens * slots, w.shape[1], device=x.device)
    for expert, end in enumerate(ends.tolist()):
        mine = routes[start:end]
        y[mine] = x[mine // slots].float() @ w[expert].float().T
        start = end
    return (y * weight.reshape(-1, 1)).to(x.dtype).view(tokens, slots, -1)


def paged_inputs() -> list[Any]:
    q = torch.randn(8, 32, 128).bfloat16().cuda()
    k, v = (torch.randn(512, 16, 8, 128).bfloat16().cuda() for _ in range(2))
    table = torch.randint(0, 512, (8, 64), dtype=torch.int32).cuda()
    return [q, k, v, table, torch.randint(1, 1024, (8,), dtype=torch.int32).cuda()]


def grouped_inputs() -> list[Any]:
    tokens, slots, experts = 32, 4, 64
    chosen = torch.stack([torch.randperm(experts)[:slots] for _ in range(tokens)]).reshape(-1)
    counted = torch.bincount(chosen, minlength=experts)
    return [
        torch.randn(tokens, 1024).bfloat16().cuda(),
        (torch.randn(experts, 768, 1024) / 32).bfloat16().cuda(),
        torch.argsort(chosen, stable=True).int().view(tokens, slots).cuda(),
        torch.cumsum(counted, 0).int().cuda(),
        torch.rand(tokens, slots).cuda(),
    ]


def swap(
    runtime: Runtime,
    folder: Path,
    solution: Solution,
    definition: Definition,
    bounds: Mapping[str, list[int]],
) -> int:
    source = solution.sources[0].content.encode()
    target = folder / solution.digest[7:]
    target.mkdir()
    (target / "kernel.py").write_bytes(source)
    sha256 = hashlib.sha256(source).hexdigest()
    body = manifest_of(
        solution, definition.model_dump(mode="json"), sha256, file_name="kernel.py"
    ) | {"grid": list(solution.grid)}
    (target / "artifact.json").write_text(json.dumps(body))
    order = {
        "id": solution.digest,
        "kind": "swap",
        "definition": definition.name,
        "artifact": solution.digest,
        "guard": {"bounds": bounds},
        "epoch": 1,
        "shadow_every": 1,
        # The originals here keep weights in float32; the kernels round them, as servers do.
        "shadow_tolerance": 5e-3,
    }
    host = runtime._host
    said = host.answer({"op": "prepare", "order": order, "artifact_dir": str(target)})
    host.answer({"op": "commit", "order": order})
    return int(said["shapes"])


@pytest.mark.parametrize(
    ("name", "original", "make", "bounds", "fault"),
    [
        (
            PAGED,
            attend,
            paged_inputs,
            {"B": [1, 64], "C": [1, 8192], "W": [1, 256]},
            ("keys // P", "keys // (2 * P)"),
        ),
        (
            GROUPED,
            multiply,
            grouped_inputs,
            {"M": [1, 256]},
            ("tl.load(weight + route", "2 * tl.load(weight + route"),
        ),
    ],
)
def test_a_kernel_that_follows_a_table_is_swapped_in_and_a_wrong_one_is_not(
    runtime: Runtime,
    tmp_path: Path,
    name: str,
    original: Any,
    make: Any,
    bounds: dict[str, list[int]],
    fault: tuple[str, str],
) -> None:
    entry = catalog.get(name, language=Language.TRITON)
    slot = runtime.slot(entry.definition.model_dump(mode="json"), original)
    inputs = make()
    with torch.inference_mode():
        slot(*inputs)
        source = entry.incumbent.sources[0]
        text = source.content.replace(*fault)
        assert text != source.content
        wrong = entry.incumbent.model_copy(
            update={"sources": (source.model_copy(update={"content": text}),)}
        )
        with raises_code(Refused, "self-check-failed"):
            swap(runtime, tmp_path, wrong, entry.definition, bounds)
        assert swap(runtime, tmp_path, entry.incumbent, entry.definition, bounds) == 1
        slot(*inputs)
    (sample,) = runtime._host.answer({"op": "samples"})["samples"]
    assert (sample["swapped_launches"], sample["shadow_checks"]) == (1, 1)
    assert sample["tripped"] == ""


def test_inputs_are_captured_before_the_kernel_changes_them_and_never_into_a_graph(
    runtime: Runtime,
) -> None:
    definition = {
        "name": "doubling",
        "op_type": "doubling",
        "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 4096}},
        "inputs": {"x": {"shape": ["M", "N"], "dtype": "bfloat16"}},
        "outputs": {"y": {"shape": ["M", "N"], "dtype": "bfloat16"}},
    }
    slot = runtime.slot(definition, lambda x: x.mul_(2.0))
    host = runtime._host
    host.answer({"op": "capture", "definition": "doubling", "rule": RULE})
    graph, held = torch.cuda.CUDAGraph(), torch.ones(64, 4096, device="cuda").bfloat16()
    with torch.cuda.graph(graph):
        slot(held)
    host.housekeeping()
    reservoir = host._seating.seats["doubling"].reservoir
    assert reservoir is not None
    assert reservoir.samples() == [], "a clone would be part of the graph"
    host.answer({"op": "capture", "definition": "doubling", "rule": RULE | {"samples": 1}})
    reservoir = host._seating.seats["doubling"].reservoir
    assert reservoir is not None
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.randn(64, 4096, device="cuda").bfloat16()
        before = x.clone()
        slot(x)
    side.synchronize()
    host.housekeeping()
    (sample,) = reservoir.samples()
    ((_, _, shape, data),) = sample.tensors
    taken = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(shape)
    assert torch.equal(taken, before.cpu())
