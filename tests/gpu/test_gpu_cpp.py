"""GPU C++ on a real GPU: right, timed to a verdict, swapped into a slot and taken back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retuned import catalog
from retuned.contract import Language, Solution, SourceFile, Workload
from retuned.lab.examiner import Examiner
from retuned.lab.languages.gpu import find_gpu
from retuned.lab.resources import LabResources, LabSettings
from retuned.lab.subject import make_inputs, numpy_dtype
from retuned.lab.toolchain import toolchain_for
from retuned.runtime.core.attach import attach
from retuned.runtime.native.gpu_driver import DriverFailed, driver_of
from retuned.runtime.native.gpu_launch import GpuKernel
from retuned.store.artifact_folder import keep_artifact

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_gpu() is None, reason="no GPU that PyTorch can use"),
]

SHAPES: dict[str, list[dict[str, int]]] = {
    "rmsnorm_h4096": [{"M": 1}, {"M": 300}],
    "rmsnorm_h333": [{"M": 7}],
    "rmsnorm_bf16_h4096": [{"M": 1}, {"M": 300}],
    "rmsnorm_fp16_h1000": [{"M": 17}],
    "softmax_n8192": [{"M": 1}, {"M": 64}],
    "softmax": [{"M": 3, "N": 70}, {"M": 2, "N": 50_001}],
    "softmax_bf16_n1000": [{"M": 33}],
}
NEAR = {4: 2e-6, 2: 8e-3}
"""Allowed difference relative to the largest number of the answer, by bytes of an element."""
BACK = "store_vec(to + at, held[i]);"


def on_device(array: Any) -> Any:
    """Copy an array to the GPU, whatever its format."""
    flat = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    return torch.from_numpy(flat.copy()).cuda()


def points() -> list[Any]:
    found = []
    for name in SHAPES:
        entry = catalog.get(name, language=Language.GPU_CPP)
        for space in entry.spaces:
            for number, point in enumerate(space.starts({"M": 8, "N": 70})):
                made = entry.solution(space.name, point)
                found.append(pytest.param(name, made, id=f"{name}-{space.name}-{number}"))
    return found


def kernel_of(solution: Solution, name: str, folder: Path) -> GpuKernel:
    definition = catalog.get(name, language=Language.GPU_CPP).definition
    built = toolchain_for(Language.GPU_CPP).build(solution, definition, folder=folder)
    torch.cuda.init()
    vendor = "amd" if getattr(torch.version, "hip", None) else "nvidia"
    return GpuKernel(
        built.variant.library.read_bytes(),
        entry=solution.entry,
        params=solution.params,
        grid=solution.grid,
        tensors=len(definition.inputs) + len(definition.outputs),
        axes=list(definition.axes),
        driver=driver_of(vendor),
    )


@pytest.mark.parametrize(("name", "solution"), points())
def test_every_structure_computes_its_definition(
    name: str, solution: Solution, tmp_path: Path
) -> None:
    entry = catalog.get(name, language=Language.GPU_CPP)
    kernel = kernel_of(solution, name, tmp_path)
    for axes in SHAPES[name]:
        inputs = make_inputs(entry, axes, seed=5, family="randn")
        want = entry.reference(inputs, axes)["y"]
        kind = numpy_dtype(entry.definition.outputs["y"])
        given = [on_device(array) for array in inputs.values()]
        y = torch.full((want.size * kind.itemsize,), 0xFF, dtype=torch.uint8, device="cuda")
        pointers = [tensor.data_ptr() for tensor in (*given, y)]
        stream = torch.cuda.current_stream().cuda_stream
        kernel.launch(pointers, list(entry.definition.lengths(axes).values()), stream=stream)
        torch.cuda.synchronize()
        got = y.cpu().numpy().view(kind).reshape(want.shape).astype(np.float64)
        assert np.abs(got - want).max() <= NEAR[kind.itemsize] * np.abs(want).max(), axes
    kernel.unload()


@pytest.fixture(scope="module")
def bay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabResources]:
    name = "rmsnorm_bf16_h4096"
    entry = catalog.get(name, language=Language.GPU_CPP)
    opened = LabResources(
        entry,
        [Workload(definition=name, axes={"M": 2048})],
        incumbent=entry.incumbent,
        folder=tmp_path_factory.mktemp("bay"),
        settings=LabSettings(search_s=0.5, final_s=2.0),
    )
    yield opened
    opened.close()


def test_a_better_structure_passes_every_gate_and_is_timed_as_faster(bay: LabResources) -> None:
    entry = catalog.get("rmsnorm_bf16_h4096", language=Language.GPU_CPP)
    space = entry.space("held")
    examiner = Examiner(bay)
    variant, checks = examiner.admit(entry.solution("held", space.starts({"M": 2048})[0]))
    assert variant is not None, checks
    assert all(check.reason is None for check in examiner.correct(variant))
    timed = examiner.final(variant)
    assert timed.passed, timed.checks
    (samples,) = timed.samples
    assert np.median(samples.candidate_us) < np.median(samples.incumbent_us)


def test_a_kernel_that_writes_past_its_row_is_found(bay: LabResources) -> None:
    entry = catalog.get("rmsnorm_bf16_h4096", language=Language.GPU_CPP)
    good = entry.solution("held", entry.space("held").starts({"M": 2048})[0])
    text = good.sources[0].content
    assert BACK in text
    bad = SourceFile(
        path=good.sources[0].path,
        content=text.replace(BACK, f"{BACK} store_vec(to + at + H, held[i]);"),
    )
    examiner = Examiner(bay)
    variant, checks = examiner.admit(good.model_copy(update={"sources": (bad,)}))
    assert variant is not None, checks
    assert any(check.reason is not None for check in examiner.correct(variant))


def test_an_object_for_another_architecture_is_not_loaded(tmp_path: Path) -> None:
    name, other = "rmsnorm_h4096", "sm_80"
    if getattr(torch.version, "hip", None):
        pytest.skip("NVIDIA's architectures")
    from retuned.lab.languages.gpu_cpp import build

    entry = catalog.get(name, language=Language.GPU_CPP)
    built = build(entry.incumbent, entry.definition, cache_dir=tmp_path, arch=other)
    if find_gpu() is not None and find_gpu().arch.startswith("sm_8"):  # type: ignore[union-attr]
        pytest.skip("this GPU runs it")
    torch.cuda.init()
    with pytest.raises(DriverFailed) as caught:
        driver_of("nvidia").load(built.path.read_bytes())
    assert caught.value.reason == "wrong-arch"


def test_a_variant_is_swapped_into_a_slot_and_taken_back(tmp_path: Path) -> None:
    name = "rmsnorm_bf16_h4096"
    entry = catalog.get(name, language=Language.GPU_CPP)
    solution = entry.solution("held", entry.space("held").starts({"M": 64})[0])
    built = toolchain_for(Language.GPU_CPP).build(solution, entry.definition, folder=tmp_path)
    folder = tmp_path / "artifact"
    keep_artifact(folder, built, solution=solution, definition=entry.definition)
    assert hashlib.sha256((folder / built.file_name).read_bytes()).hexdigest() == built.sha256

    def original(x: Any, weight: Any) -> Any:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return (wide * scale * weight.float()).to(x.dtype)

    definition = json.loads(entry.definition.model_dump_json())
    runtime = attach(server="test")
    try:
        slot = runtime.slot(definition, original)
        weight = torch.rand(4096, device="cuda").bfloat16()

        def launch(rows: int) -> None:
            x = torch.randn(rows, 4096, device="cuda").bfloat16()
            with torch.inference_mode():
                torch.testing.assert_close(
                    slot(x, weight), original(x, weight), rtol=2e-2, atol=2e-2
                )

        def order(artifact: str | None, epoch: int) -> dict[str, Any]:
            return {
                "id": f"order-{epoch}", "kind": "swap" if artifact else "rollback",
                "proposal": "p", "target": "server", "definition": name, "artifact": artifact,
                "previous": None, "guard": {"bounds": {}}, "epoch": epoch,
                "shadow_every": 10**9, "shadow_tolerance": 2e-2,
            }  # fmt: skip

        launch(5)
        swap = order(solution.digest, 1)
        runtime._host.answer({"op": "prepare", "order": swap, "artifact_dir": str(folder)})
        runtime._host.answer({"op": "commit", "order": swap})
        for rows in (1, 5, 300):
            launch(rows)
        (sample,) = runtime._host.answer({"op": "samples"})["samples"]
        assert sample["swapped_launches"] == 3, sample
        runtime._host.answer({"op": "commit", "order": order(None, 2)})
        launch(5)
        (sample,) = runtime._host.answer({"op": "samples"})["samples"]
        assert sample["swapped_launches"] == 0
    finally:
        runtime.close()
