"""Variants of several launches: bound, sized, launched in order, and served from kept memory."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_code

from retuned.runtime.native.memory import MAX_SCRATCH_BYTES, parse_workspaces, sizes_at
from retuned.runtime.schema import Refused

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from retuned.contract import (  # noqa: E402
    Definition,
    DType,
    Language,
    Scratch,
    Solution,
    SourceFile,
    Step,
)
from retuned.lab.languages.triton_contract import load, manifest_of  # noqa: E402
from retuned.runtime.artifacts.artifact import read_artifact  # noqa: E402
from retuned.runtime.core.attach import attach  # noqa: E402
from retuned.runtime.native.memory import MAX_STREAMS, Blocks  # noqa: E402
from retuned.runtime.triton.launch import TritonSteps  # noqa: E402

SOURCE = '''"""An int8 linear whose depth is split among programs."""

import triton
import triton.language as tl


@triton.jit
def parts(x, wq, partial, M, N: tl.constexpr, K: tl.constexpr, SPLITS: tl.constexpr):
    row, column, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = split * (K // SPLITS) + tl.arange(0, K // SPLITS)
    weights = tl.load(wq + column * K + at).to(tl.float32)
    total = tl.sum(tl.load(x + row * K + at) * weights, axis=0)
    tl.store(partial + (split * M + row) * N + column, total)


@triton.jit
def summed(
    partial, scale, y, M, N: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
    GAIN: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < M * N
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in range(0, SPLITS):
        total += tl.load(partial + split * M * N + at, mask=inside, other=0.0)
    gain = tl.load(scale + at % N, mask=inside, other=0.0)
    tl.store(y + at, total * gain * GAIN / 100, mask=inside)
'''
PARTIAL: dict[str, Any] = {"name": "partial", "dtype": "float32", "shape": ["SPLITS", "M", "N"]}
STEPS: list[dict[str, Any]] = [
    {"entry": "parts", "grid": ["M", "N", "SPLITS"]},
    {
        "entry": "summed",
        "grid": ["cdiv(M * N, BLOCK)"],
        "params": {"BLOCK": 16, "num_warps": 1},
    },
]
SHAPE = [3, 16, 32]


@pytest.fixture(autouse=True)
def interpreter() -> None:
    import triton

    if not triton.knobs.runtime.interpret:
        pytest.skip("runs in Triton's interpreter; tests/gpu has the same on a device")


def steps(**changes: Any) -> TritonSteps:
    made: dict[str, Any] = {
        "entry": "parts",
        "params": {"SPLITS": 4, "GAIN": 100, "num_warps": 2},
        "grid": (),
        "tensors": ("x", "wq", "scale", "y"),
        "axes": ("M", "N", "K"),
        "steps": STEPS,
        "scratch": [PARTIAL],
    }
    made.update(changes)
    return TritonSteps(made.pop("source", SOURCE), **made)


def tensors(rows: int = 3) -> list[Any]:
    torch.manual_seed(rows)
    wq = torch.randint(-128, 128, (16, 32), dtype=torch.int8)
    return [torch.randn(rows, 32), wq, torch.rand(16), torch.full((rows, 16), float("nan"))]


def expected(given: list[Any]) -> Any:
    return (given[0] @ given[1].float().T) * given[2]


def test_steps_run_in_order_and_hand_on_through_scratch() -> None:
    made, given = steps(), tensors()
    made.launch(given, SHAPE)
    torch.testing.assert_close(given[3], expected(given), rtol=1e-5, atol=1e-3)
    assert made.plan.sizes_at(SHAPE) == [4 * 3 * 16 * 4]


def test_each_step_takes_what_it_names_and_its_own_goes_first() -> None:
    first, second = steps().plan.steps
    assert first.params == {"SPLITS": 4, "num_warps": 2}
    assert second.params == {"SPLITS": 4, "GAIN": 100, "BLOCK": 16, "num_warps": 1}


def test_scratch_from_outside_is_used_where_it_is_handed_in() -> None:
    made, given = steps(), tensors()
    partial = torch.full((4 * 3 * 16,), float("nan"))
    made.launch([*given, partial], SHAPE)
    torch.testing.assert_close(given[3], expected(given), rtol=1e-5, atol=1e-3)
    assert not partial.isnan().any()


def test_zeroed_scratch_is_zeroed_by_every_launch() -> None:
    adds = SOURCE.replace(
        "tl.store(partial + (split * M + row) * N + column, total)",
        "tl.atomic_add(partial + row * N + column, total)",
    )
    zeroed = {"name": "partial", "dtype": "float32", "shape": ["M", "N"], "zeroed": True}
    second = {**STEPS[1], "params": {"BLOCK": 16, "SPLITS": 1}}
    made, given = steps(source=adds, scratch=[zeroed], steps=[STEPS[0], second]), tensors()
    partial = torch.full((3 * 16,), float("nan"))
    for _ in range(2):
        made.launch([*given, partial], SHAPE)
        torch.testing.assert_close(given[3], expected(given), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"params": {"SPLITS": 4, "GAIN": 100, "EXTRA": 1}}, "EXTRA"),
        ({"params": {"SPLITS": 4}}, "GAIN"),
        ({"steps": [STEPS[0], {**STEPS[1], "params": {"BLOCK": 16, "OWN": 1}}]}, "OWN"),
        ({"steps": [STEPS[0], {**STEPS[1], "params": [1]}]}, "not an object"),
        ({"steps": [STEPS[0], {**STEPS[1], "params": {"BLOCK": 1.5}}]}, "whole numbers"),
        ({"steps": [STEPS[0], {**STEPS[1], "more": 1}]}, "entry and grid"),
        ({"steps": [STEPS[0], {"entry": "summed", "grid": "M"}]}, "list"),
        ({"steps": [STEPS[0], {"entry": "summed", "grid": []}]}, "one to three"),
        ({"steps": [STEPS[0], {"entry": "none", "grid": ["M"]}]}, "none"),
        ({"steps": STEPS[::-1]}, "that of the first"),
        ({"grid": ("M",)}, "that of the first"),
        ({"steps": STEPS * 9}, "at most 16"),
        ({"scratch_bytes": 64}, "no scratch_bytes"),
        ({"scratch": []}, "'partial' is not a tensor"),
        ({"scratch": [PARTIAL, {**PARTIAL, "name": "idle"}]}, "idle"),
        ({"scratch": [PARTIAL, PARTIAL]}, "two things"),
        ({"scratch": [{**PARTIAL, "name": "y"}]}, "two things"),
        ({"scratch": [{**PARTIAL, "name": "scratch"}]}, "two things"),
        ({"scratch": [{**PARTIAL, "name": "a b"}]}, "not a plain name"),
        ({"scratch": [{**PARTIAL, "dtype": "float31"}]}, "float31"),
        ({"scratch": [{**PARTIAL, "shape": ["M.x"]}]}, "Attribute"),
        ({"scratch": [{**PARTIAL, "shape": ["Q"]}]}, "'Q'"),
        ({"scratch": [{**PARTIAL, "shape": []}]}, "dimensions"),
        ({"scratch": [{**PARTIAL, "zeroed": 1}]}, "true or false"),
        ({"scratch": [{"name": "partial"}]}, "needs name"),
        ({"scratch": "partial"}, "not a list"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        steps(**changes)


def test_scratch_beyond_the_limit_is_refused_at_the_lengths_that_need_it() -> None:
    made = steps()
    rows = MAX_SCRATCH_BYTES // (4 * 4 * 16)
    assert made.plan.sizes_at([rows, 16, 32]) == [MAX_SCRATCH_BYTES]
    with raises_code(Refused, "scratch-too-large") as refused:
        made.prepare([rows + 1, 16, 32], dtypes=["float32"] * 4, device=torch.device("cpu"))
    assert refused.value.reason == "scratch-too-large"


@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    dtype=st.sampled_from(["float64", "float32", "bfloat16", "int8", "bool"]),
)
def test_scratch_is_as_large_as_its_shape_and_type_say(shape: list[int], dtype: str) -> None:
    axes = {f"A{n}": length for n, length in enumerate(shape)}
    declared = [{"name": "s", "dtype": dtype, "shape": list(axes)}]
    (found,) = parse_workspaces(declared, params={}, axes=list(axes))
    item = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    assert sizes_at([found], axes) == [math.prod(shape) * item]


# --- memory in a server ---------------------------------------------------------------------------


def blocks(**fields: Any) -> Blocks:
    return Blocks(torch, torch.device("cpu"), **fields)


def test_a_stream_gets_the_block_that_was_made_and_keeps_it() -> None:
    made = blocks()
    made.reserve(100)
    lane = made.take(7, 100)
    assert lane is not None
    assert made.take(7, 100) is None, "another thread is between its steps"
    block = lane.block
    lane.lock.release()
    again = made.take(7, 50)
    assert again is lane
    assert lane.block is block
    assert made.serve() == 0


def test_a_launch_that_takes_the_spare_meanwhile_does_not_move_the_limit() -> None:
    def empty(size: int, **more: Any) -> Any:
        if made is not None:
            assert made.take(1, 60) is not None, "a launch, while a larger block is made"
        return torch.empty(size, **more)

    made: Blocks | None = None
    server = SimpleNamespace(empty=empty, uint8=torch.uint8)
    blocks = Blocks(server, torch.device("cpu"), limit_bytes=150)
    blocks.reserve(60)
    made = blocks
    with raises_code(Refused, "scratch-memory", "150 bytes"):
        made.reserve(100)


def test_another_stream_waits_for_a_block_of_its_own() -> None:
    made = blocks()
    made.reserve(100)
    first = made.take(1, 100)
    assert made.take(2, 100) is None
    assert made.serve() == 1
    second = made.take(2, 100)
    assert first is not None
    assert second is not None
    assert first.block is not None
    assert second.block is not None
    assert first.block.data_ptr() != second.block.data_ptr()


def test_a_block_that_is_too_small_is_replaced_off_the_request_path() -> None:
    made = blocks()
    made.reserve(100)
    lane = made.take(1, 100)
    assert lane is not None
    lane.views["old"] = []
    lane.lock.release()
    assert made.take(1, 300) is None
    assert made.serve() == 1
    grown = made.take(1, 300)
    assert grown is lane
    assert lane.views == {}


def test_blocks_stay_within_their_limit_and_do_not_try_again() -> None:
    made = blocks(limit_bytes=250)
    made.reserve(100)
    assert made.take(1, 100) is not None
    assert made.take(2, 100) is None
    assert made.serve() == 1
    assert made.take(2, 100) is not None
    assert made.take(3, 100) is None
    with raises_code(Refused, "scratch-memory", "250 bytes"):
        made.serve()
    assert made.take(3, 100) is None
    assert made.serve() == 0
    with raises_code(Refused, "scratch-memory"):
        made.reserve(1000)


def test_a_server_that_makes_streams_without_end_gets_few_blocks() -> None:
    made = blocks()
    made.reserve(8)
    for stream in range(3 * MAX_STREAMS):
        made.take(stream, 8)
        made.serve()
    assert len(made._lanes) == MAX_STREAMS


# --- in a slot ------------------------------------------------------------------------------------


class Server:
    """One slot of a small linear, and artifacts as the daemon writes them."""

    def __init__(self, kit: Any, layer: Any, folder: Path) -> None:
        self.kit, self.layer, self.folder = kit, layer, folder
        self.runtime = attach(server="test")
        self.slot = self.runtime.slot(kit.definition(), kit.original)

    def solution(self, **changes: Any) -> Solution:
        body: dict[str, Any] = {
            "name": "split",
            "definition": self.kit.definition()["name"],
            "language": Language.TRITON,
            "entry": "parts",
            "sources": (SourceFile(path="split.py", content=SOURCE),),
            "structure": "split-k",
            "params": {"SPLITS": 4, "GAIN": 100},
            "steps": tuple(Step.model_validate(each) for each in STEPS),
            "scratch": (Scratch.model_validate(PARTIAL),),
        }
        return Solution.model_validate({**body, **changes})

    def deliver(self, solution: Solution, **altered: Any) -> tuple[str, str]:
        from retuned.store.artifact_folder import manifest_of as common

        target = self.folder / solution.digest[7:]
        target.mkdir(exist_ok=True)
        (target / "kernel.py").write_text(SOURCE)
        import hashlib

        sha256 = hashlib.sha256(SOURCE.encode()).hexdigest()
        body = common(solution, self.kit.definition(), sha256, file_name="kernel.py")
        body |= {"grid": list(solution.grid), **manifest_of(solution), **altered}
        (target / "artifact.json").write_text(json.dumps(body))
        return solution.digest, str(target)

    def swap(self, artifact: tuple[str, str]) -> None:
        digest, folder = artifact
        order = self.kit.order(digest, shadow_every=10**9)
        self.runtime._host.answer({"op": "prepare", "order": order, "artifact_dir": folder})
        self.runtime._host.answer({"op": "commit", "order": order})

    def launch(self, rows: int) -> None:
        with torch.inference_mode():
            inputs = (torch.randn(rows, 32), self.layer.wq, self.layer.scale)
            torch.testing.assert_close(
                self.slot(*inputs), self.kit.original(*inputs), rtol=1e-4, atol=1e-3
            )

    def sample(self) -> dict[str, Any]:
        (sample,) = self.runtime._host.answer({"op": "samples"})["samples"]
        return dict(sample)


@pytest.fixture
def server(linear_test_kit: Any, layer: Any, tmp_path: Path) -> Iterator[Server]:
    server = Server(linear_test_kit, layer, tmp_path)
    server.launch(4)
    yield server
    server.runtime.close()


def test_a_variant_of_two_launches_serves_and_grows_its_scratch_off_the_request_path(
    server: Server,
) -> None:
    server.swap(server.deliver(server.solution()))
    for rows in (4, 2, 4):
        server.launch(rows)
    assert server.sample()["swapped_launches"] == 3
    server.launch(64)  # more scratch than was prepared
    assert server.sample()["ineligible_launches"] == {"no-scratch": 1}
    server.runtime._host.housekeeping()
    server.launch(64)
    sample = server.sample()
    assert sample["ineligible_launches"] == {"no-scratch": 1}
    assert sample["swapped_launches"] == 4
    assert sample["errors"] == 0


def test_a_thread_between_the_steps_of_another_is_served_by_the_original(server: Server) -> None:
    server.swap(server.deliver(server.solution()))
    server.launch(4)
    (seat,) = server.runtime._host._seating.seats.values()
    variant: Any
    (variant,) = seat.resident.values()
    lane = variant._blocks.take(0, 1)
    assert lane is not None
    thread = threading.Thread(target=server.launch, args=(4,))
    thread.start()
    thread.join()
    lane.lock.release()
    assert server.sample()["ineligible_launches"] == {"no-scratch": 1}


@pytest.mark.parametrize(
    "altered",
    [
        {"steps": [STEPS[0], {**STEPS[1], "grid": ["1"]}]},
        {"scratch": [{**PARTIAL, "shape": ["1"]}]},
        {"params": {"SPLITS": 2, "GAIN": 100}},
        {"source_path": "other.py"},
        {"source_path": None},
        {"steps": {}},
        {"scratch": [1]},
        {"steps": [{}] * 17},
    ],
)
def test_a_manifest_that_says_something_else_than_was_judged_is_refused(
    server: Server, altered: dict[str, Any]
) -> None:
    digest, folder = server.deliver(server.solution(), **altered)
    with pytest.raises(Refused) as refused:
        read_artifact(Path(folder), digest=digest)
    assert refused.value.reason in {"digest-mismatch", "artifact-invalid"}


def test_what_the_daemon_writes_is_what_the_server_reads(server: Server) -> None:
    solution = server.solution()
    digest, folder = server.deliver(solution)
    artifact = read_artifact(Path(folder), digest=digest)
    assert [dict(step) for step in artifact.steps] == [
        step.model_dump(mode="json") for step in solution.steps
    ]
    assert artifact.scratch[0]["shape"] == ["SPLITS", "M", "N"]


# --- the record -----------------------------------------------------------------------------------


def test_steps_are_in_the_digest_and_single_launches_keep_theirs(server: Server) -> None:
    plain = Solution(
        name="a",
        definition="d",
        language=Language.TRITON,
        entry="kernel",
        sources=(SourceFile(path="a.py", content=""),),
        structure="s",
        grid=("M",),
    )
    assert plain.digest == (
        "sha256:66e27c15123ad08c4ef098792b1ceaeb9fc990baa01aa3c3399e920640867764"
    )
    several = server.solution()
    other = several.model_copy(update={"scratch": (several.scratch[0].model_copy(
        update={"zeroed": True}
    ),)})  # fmt: skip
    assert len({plain.digest, several.digest, other.digest}) == 3
    assert Solution.model_validate_json(several.model_dump_json()).digest == several.digest


@pytest.mark.parametrize(
    "changes",
    [
        {"grid": ("M",)},
        {"entry": "summed"},
        {"scratch_bytes": 64},
        {"language": Language.CPU_CPP},
    ],
)
def test_a_record_whose_steps_do_not_fit_is_refused(
    server: Server, changes: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"steps|scratch"):
        server.solution(**changes)


def test_a_definition_is_loaded_with_all_of_its_launches(server: Server) -> None:
    definition = Definition.model_validate({**server.kit.definition(), "reference": ""})
    made = load(server.solution(), definition)
    assert [step.entry for step in made.plan.steps] == ["parts", "summed"]
    assert DType(made.plan.scratch[0].dtype) is DType.FLOAT32
