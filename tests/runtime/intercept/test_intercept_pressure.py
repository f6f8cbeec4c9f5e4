"""Interception under threads, forks, kernels that come and go, and servers that do odd things."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import gc
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from tests.runtime.intercept import strangers
from tests.runtime.intercept.strangers import cdiv_grid, launch_affine, launch_rows
from tests.runtime.intercept.test_intercept_swapping import AFFINE, World

from retuned.runtime import intercept
from retuned.runtime.core.attach import attach
from retuned.runtime.intercept.hook import Interceptor
from retuned.runtime.intercept.observed import records, source_of


def make_kernel(addend: int) -> Any:
    """Return a kernel of its own, as libraries that specialise by closure do."""
    ADD = tl.constexpr(addend)

    @triton.jit
    def added(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # noqa: ANN001, ANN202
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=inside) + ADD, mask=inside)

    return added


def launch_made(kernel: Any, n: int = 32) -> Any:
    x, y = torch.ones(n), torch.zeros(n)
    kernel[cdiv_grid(n)](x, y, n, BLOCK=16)
    return y


@pytest.fixture
def world(hook: Interceptor, tmp_path: Path) -> World:
    return World(hook, tmp_path)


def test_eight_threads_launch_while_variants_come_and_go(world: World, device: Any) -> None:
    if device is None:
        pytest.skip("Triton's interpreter runs one launch at a time")
    launch_affine(100)
    delivered = world.live_affine()
    world.swap(delivered)
    world.back()
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            for _ in range(100):
                launch_affine(100)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=serve) for _ in range(8)]
    for thread in threads:
        thread.start()
    turns = 0
    while any(thread.is_alive() for thread in threads):
        world.swap(delivered, shadow_every=10)
        world.back()
        turns += 1
    for thread in threads:
        thread.join()
    assert failures == []
    assert turns >= 1
    (state,) = world.host.answer({"op": "slots"})["slots"]
    assert sum(count for _, count in state["launches"]) + state["other_launches"] == 800
    assert world.sample()["errors"] == 0


@pytest.fixture
def installed(device: Any) -> Iterator[Interceptor]:
    """The interceptor of this process, which is told of forks."""
    states = intercept.install()
    assert "on" in states.values()
    yield intercept.current()
    intercept.uninstall()


def test_a_forked_child_counts_from_nothing_and_the_parent_goes_on(
    installed: Interceptor,
) -> None:
    launch_rows(2, 8)
    launch_rows(2, 8)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            launch_rows(2, 8)
            totals = [kernel.total() for kernel in installed.kernels()]
            os.write(writer, repr(totals).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        assert answer.read() == "[1]"
    os.waitpid(child, 0)
    assert [kernel.total() for kernel in installed.kernels()] == [2]


def test_an_attached_server_answers_with_its_kernels_and_lets_go_at_close(
    device: Any, tmp_path: Path
) -> None:
    runtime = attach(tmp_path / "server.sock", triton=True)
    try:
        launch_rows(2, 8)
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(runtime.socket))
            peer.sendall(b'{"op": "kernels"}\n')
            answer = json.loads(peer.makefile().readline())
    finally:
        runtime.close()
    assert answer["ok"]
    (kernel,) = answer["kernels"]
    assert (kernel["launches"], kernel["liftable"]) == (1, True)
    assert not intercept.current().on


def test_the_runtime_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETUNED_RUNTIME", "off")
    assert set(intercept.install().values()) == {"runtime-off"}
    assert not intercept.current().on


def test_kernels_that_are_gone_are_forgotten(hook: Interceptor, interpreted: bool) -> None:
    if interpreted:
        pytest.skip("the interpreter itself keeps every function, and loses closures")
    alive = [make_kernel(addend) for addend in range(6)]
    for kernel in alive:
        launch_made(kernel)
    assert len(hook.kernels()) == 6
    del alive, kernel
    launch_rows(1, 4)
    gc.collect()
    names = [kernel.name.rpartition(":")[2] for kernel in hook.kernels()]
    assert names[-1] == "rows"
    assert len(names) <= 2  # newer versions know the last one of a name


def test_a_kernel_made_after_the_swap_joins_if_its_source_is_the_same(
    world: World, interpreted: bool, device: Any
) -> None:
    if interpreted:
        pytest.skip("the interpreter loses closures")
    first, other = make_kernel(1), make_kernel(2)
    launch_made(first)
    launch_made(other)
    mine, theirs = world.hook.kernels()
    assert source_of(mine).digest != source_of(theirs).digest
    assert mine.name == theirs.name
    rule = {"kernel": mine.name, "source_digest": source_of(mine).digest}
    delivered = world.artifact(
        "added",
        definition=AFFINE | {"name": "lifted_added"},
        params={"BLOCK": 32},
        intercept=rule | {"code": "live", "axes": {"N": "n"}, "grid": "kept"},
    )
    world.swap(delivered, "lifted_added")
    again = make_kernel(1)
    launch_made(again)  # it has no code yet: the server's own runs
    world.host.housekeeping()
    for kernel, block in ((again, 32), (other, 16), (first, 32)):
        launch_made(kernel)  # maybe checked
        launch_made(kernel)
        assert device.launches[-1]["args"][-1] == block
    assert [each.slot is not None for each in world.hook.kernels()] == [True, False, True]


def test_nested_calls_belong_to_the_kernel_that_was_launched(hook: Interceptor) -> None:
    launch_affine(40)
    assert [kernel.name.rpartition(":")[2] for kernel in hook.kernels()] == ["affine"]


def test_warming_up_is_no_launch(hook: Interceptor, interpreted: bool) -> None:
    if interpreted:
        pytest.skip("there is nothing to warm up")
    strangers.rows.warmup(torch.float32, torch.float32, 8, 16, grid=(1,))
    assert sum(kernel.total() for kernel in hook.kernels()) == 0


def test_strange_arguments_are_launched_as_before_and_counted(
    hook: Interceptor, interpreted: bool
) -> None:
    x = torch.ones(16)
    y = torch.zeros(16)
    strangers.rows[(True, 1, 1)](x, y, 8, 16)
    strangers.rows[(1,)](x, y, 8 if interpreted else True, 16)
    with pytest.raises(Exception, match=r".") as raised:
        strangers.rows[lambda meta: 1 // 0](x, y, 8, 16)
    assert raised.type is ZeroDivisionError
    (kernel,) = hook.kernels()
    assert kernel.total() == 2
    assert all(each["count"] == 1 for each in records(kernel))
