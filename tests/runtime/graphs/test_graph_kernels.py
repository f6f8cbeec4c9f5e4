"""Intercepted Triton kernels inside graphs: compiled by Triton, launched on a played device."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, name-defined"

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.graphs.played import STREAM, Played, played_torch

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from tests.runtime.intercept.fake_driver import FakeDriver  # noqa: E402
from tests.runtime.intercept.test_intercept_swapping import World  # noqa: E402

from retuned.runtime.graphs.followers import Graphs  # noqa: E402
from retuned.runtime.graphs.service import HostedGraphs  # noqa: E402
from retuned.runtime.intercept.hook import Interceptor  # noqa: E402
from retuned.runtime.intercept.variant import KernelVariant  # noqa: E402

INTERPRETED = bool(triton.knobs.runtime.interpret)

DEFINITION = {
    "name": "lifted_scale",
    "op_type": "lifted",
    "axes": {"N": {"type": "var"}},
    "inputs": {"x_ptr": {"shape": ["N"], "dtype": "float32"}},
    "outputs": {"y_ptr": {"shape": ["N"], "dtype": "float32"}},
}
OTHER = """import triton
import triton.language as tl


@triton.jit
def scale_two(out, x, n, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) * 3, mask=inside)
"""
SIZES = {"*": 8, "i32": 4, "i64": 8, "fp32": 4}


@triton.jit
def scale(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    """y = 2 x."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=inside) * 2, mask=inside)


class PlayedTriton(FakeDriver):
    """Triton's driver: compiled kernels become kernels of the played device."""

    def __init__(self, played: Played) -> None:
        super().__init__()
        self.played = played

    def _launcher(self, src: Any, metadata: Any) -> Any:
        kinds = [kind for kind in src.signature.values() if kind != "constexpr"]
        places = [i for i, kind in enumerate(src.signature.values()) if kind != "constexpr"]

        def launch(*args: Any) -> None:
            given = args[-len(src.fn.params) :]
            values = [
                _packed(kind, given[place]) for kind, place in zip(kinds, places, strict=True)
            ]
            values += [bytes(8)] * 2  # Triton's own workspaces
            room = [ctypes.create_string_buffer(value, len(value)) for value in values]
            self.played.driver.launch(
                ctypes.c_void_p(args[4]),
                grid=args[:3],
                block=(metadata.num_warps * 32, 1, 1),
                shared_bytes=0,
                stream=STREAM,
                arguments=(ctypes.c_void_p * len(room))(*map(ctypes.addressof, room)),
            )

        self.sizes = [8 if kind[0] == "*" else SIZES[kind] for kind in kinds] + [8, 8]
        return launch

    def get_current_stream(self, device: int) -> int:
        return STREAM

    def load_binary(self, name: str, *_: Any) -> tuple[int, int, int, int, int]:
        factor = "double" if name == "scale" else "turned"
        sizes = ",".join(map(str, self.sizes))
        module = self.played.driver.load(f"{name} {sizes} {factor}\n".encode())
        found = self.played.driver.kernel(module, name)
        return int(module.value or 0), int(found.value or 0), 32, 0, 1024


def _packed(kind: str, value: Any) -> bytes:
    if kind[0] == "*":
        return int(value.data_ptr()).to_bytes(8, "little")
    if kind.startswith("i"):
        return int(value).to_bytes(SIZES[kind], "little", signed=True)
    return struct.pack("<f", value)


class Server(World):
    """A server that captures launches of a Triton kernel, and a daemon that orders."""

    def __init__(self, hook: Interceptor, folder: Path, played: Played) -> None:
        super().__init__(hook, folder)
        self.torch = played_torch(played)
        self.graphs = Graphs(lambda _: played.calls, capturing=played.capturing, device=lambda: 0)
        assert self.graphs.install(self.torch)
        self.host._seating.graphs = HostedGraphs(
            self.host._interception, graphs=lambda: self.graphs
        )

    def launch(self, x: Any, y: Any, *, block: int = 64) -> None:
        n = x.numel()
        scale[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, n, BLOCK=block)

    def capture(self, *lengths: int) -> tuple[Any, list[tuple[Any, Any]]]:
        pairs = [(torch.arange(n, dtype=torch.float32), torch.zeros(n)) for n in lengths]
        graph = self.torch.cuda.CUDAGraph()
        graph.capture_begin()
        for x, y in pairs:
            self.launch(x, y)
        graph.capture_end()
        return graph, pairs

    def other(self) -> tuple[str, str]:
        """Another source, whose parameters come in another order."""
        return self.artifact(
            "scale",
            definition=DEFINITION,
            source=OTHER,
            entry="scale_two",
            params={"TILE": 128},
            grid=["cdiv(n, TILE)"],
            intercept={
                "code": "artifact",
                "axes": {"N": "n"},
                "constexprs": {"BLOCK": 64},
                "bind": {"x": "x_ptr", "out": "y_ptr"},
            },
        )

    def live(self) -> tuple[str, str]:
        """The server's own code with another block; its grid is asked anew."""
        return self.artifact(
            "scale",
            definition=DEFINITION,
            params={"BLOCK": 256, "num_warps": 2},
            intercept={"code": "live", "axes": {"N": "n"}, "grid": "kept"},
        )

    def state(self) -> dict[str, Any]:
        (slot,) = self.host.answer({"op": "slots"})["slots"]
        return dict(slot["graph"])


@pytest.fixture
def server(
    played_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    if INTERPRETED:
        pytest.skip("the interpreter launches nothing into graphs; the last test runs this again")
    played = Played("nvidia", played_library)
    recording = played.capturing
    monkeypatch.setattr(KernelVariant, "capturing", lambda _: lambda: recording() is not None)
    triton.runtime.driver.set_active(PlayedTriton(played))
    scale.device_caches.clear()
    hook = Interceptor()
    hook.install()
    made = Server(hook, tmp_path, played)
    made.launch(torch.zeros(64), torch.zeros(64))  # compiled before anything is captured
    made.launch(torch.zeros(100), torch.zeros(100))
    yield made
    made.graphs.close()
    hook.uninstall()
    scale.device_caches.clear()


def factors(graph: Any, pairs: list[tuple[Any, Any]]) -> list[float]:
    for _, y in pairs:
        y.fill_(float("nan"))
    graph.replay()
    found = [float(y[3] / 3) for _, y in pairs]
    assert all(torch.equal(y, by * x) for (x, y), by in zip(pairs, found, strict=True))
    return found


def test_a_kernel_captured_before_its_slot_was_there_is_swapped_and_taken_back(
    server: Server,
) -> None:
    graph, pairs = server.capture(64, 100)
    assert factors(graph, pairs) == [2.0, 2.0]
    server.swap(server.other(), "lifted_scale")
    assert server.state() == {"nodes": 2, "swapped": 2, "unreachable": {}, "launches": 0}
    assert factors(graph, pairs) == [-1.0, -1.0]
    sites = [site for each in server.graphs.index for site in each.sites]
    assert [site.now.params.grid for site in sites if site.now] == [(1, 1, 1), (1, 1, 1)]
    assert server.sample()["graph_launches"] == 2
    server.back("lifted_scale")
    assert factors(graph, pairs) == [2.0, 2.0]


def test_parameters_alone_are_swapped_with_the_servers_own_grid(server: Server) -> None:
    graph, pairs = server.capture(1000)
    ((_, site),) = server.graphs.index.where(lambda _: True)
    assert (site.name, site.grid, site.block) == ("scale", (16, 1, 1), (128, 1, 1))
    server.launch(torch.zeros(1000), torch.zeros(1000))
    server.swap(server.live(), "lifted_scale")
    assert site.now is not None
    assert (site.now.params.grid, site.now.params.block) == ((4, 1, 1), (64, 1, 1))
    graph.replay()
    (x, y) = pairs[0]
    assert torch.equal(y[:256], -x[:256]) or torch.equal(y[:256], 2 * x[:256])
    assert server.state()["swapped"] == 1


def test_lengths_outside_the_guard_and_graphs_captured_later(server: Server) -> None:
    server.swap(server.other(), "lifted_scale", guard={"bounds": {"N": [90, 110]}})
    graph, pairs = server.capture(64, 100)
    assert factors(graph, pairs) == [2.0, -1.0]
    assert server.state()["unreachable"] == {}


def test_a_launch_that_needs_other_code_waits_for_it(server: Server) -> None:
    server.swap(server.live(), "lifted_scale")
    graph, _ = server.capture(64, 1)  # of 1 there is other code, and it was not seen
    waiting = server.state()
    server.host.housekeeping()
    server.graphs._tried_at = float("-inf")
    server.host.housekeeping()
    assert (waiting["unreachable"], waiting["swapped"]) == ({"not-compiled": 1}, 1)
    assert (server.state()["unreachable"], server.state()["swapped"]) == ({}, 2)
    del graph


def test_a_launch_of_another_length_needs_no_other_code_of_another_source(server: Server) -> None:
    server.swap(server.other(), "lifted_scale")
    graph, pairs = server.capture(64, 101, 1, 16)
    assert factors(graph, pairs[:2]) == [-1.0, -1.0]
    assert server.state()["unreachable"] == {}
    assert server.state()["swapped"] == 4


def test_no_tensor_of_a_captured_launch_is_kept(server: Server) -> None:
    graph = server.torch.cuda.CUDAGraph()
    x, y = torch.zeros(64), torch.zeros(64)
    alive = weakref.ref(x)
    graph.capture_begin()
    server.launch(x, y)
    graph.capture_end()
    del x
    assert alive() is None
    ((_, site),) = server.graphs.index.where(lambda each: each.launch is not None)
    assert site.launch.args[0].shape == (64,)


def test_launches_go_straight_to_triton_once_nothing_is_captured(server: Server) -> None:
    from triton.runtime.jit import JITFunction

    before = JITFunction.run
    graph, _ = server.capture(64)
    noting = JITFunction.run
    server.graphs.housekeeping()
    assert noting is not before
    assert JITFunction.run is before
    assert graph is not None


@pytest.mark.skipif(not INTERPRETED, reason="this is the run without the interpreter")
def test_all_of_this_without_the_interpreter() -> None:
    metadata = str(Path(__file__).with_name("test_amd_metadata.py"))
    metadata += "::test_what_triton_compiles_for_amd_says_where_its_arguments_lie"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, metadata],
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_DEFAULT_FP_FUSION": "1"},
        cwd=Path(__file__).parents[3],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert "8 passed, 1 skipped" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]
