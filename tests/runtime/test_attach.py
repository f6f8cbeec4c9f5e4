from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.expect import raises_naming

from retuned.runtime import Slot, attach


def ask(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(120)
        connection.connect(str(path))
        connection.sendall(json.dumps(request).encode() + b"\n")
        answer: dict[str, Any] = json.loads(connection.makefile().readline())
        return answer


def test_each_process_has_its_own_socket_that_says_who_it_is(tmp_path: Path) -> None:
    runtime = attach(server="demo", socket_dir=tmp_path / "sockets")
    path = tmp_path / "sockets" / f"{os.getpid()}.sock"
    assert runtime.socket == path
    hello = ask(path, {"op": "hello"})
    assert (hello["ok"], hello["pid"], hello["server"]) == (True, os.getpid(), "demo")
    assert hello["environment"]["torch"] == version("torch")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    runtime.close()
    assert not path.exists()


@pytest.mark.parametrize("value", ["off", "OFF", "0", "false"])
def test_the_kill_switch_leaves_the_server_as_it_was(
    value: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    linear_test_kit: Any,
) -> None:
    monkeypatch.setenv("RETUNED_RUNTIME", value)
    threads = set(threading.enumerate())
    runtime = attach(server="demo", socket_dir=tmp_path)
    slot = runtime.slot(linear_test_kit.definition(), original=linear_test_kit.original)
    assert isinstance(slot, Slot)
    assert type(slot).__call__ is linear_test_kit.original, "nothing in between"
    assert runtime.socket is None
    assert list(tmp_path.iterdir()) == []
    assert set(threading.enumerate()) <= threads
    runtime.close()


@pytest.mark.parametrize("definition", [None, {}, [], {"name": "x"}, {"axes": 1}])
def test_a_definition_that_cannot_be_used_leaves_the_original(definition: Any) -> None:
    runtime = attach(server="demo")
    slot = runtime.slot(definition, original=lambda *inputs: inputs)
    assert slot(1, 2) == (1, 2)
    runtime.close()


def test_a_second_slot_of_one_name_leaves_the_original(linear_test_kit: Any) -> None:
    runtime = attach(server="demo")
    runtime.slot(linear_test_kit.definition(), original=linear_test_kit.original)
    second = runtime.slot(linear_test_kit.definition(), original=lambda *_: "mine")
    assert second(torch.zeros(1, 32), None, None) == "mine"
    runtime.close()


def test_a_socket_that_cannot_be_bound_does_not_stop_the_server(
    tmp_path: Path, linear_test_kit: Any
) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / ("x" * 200)):
        runtime = attach(server="demo", socket_dir=place)
        assert runtime.socket is None
        slot = runtime.slot(linear_test_kit.definition(), original=lambda *_: "served")
        assert slot(torch.zeros(1, 32), None, None) == "served"
        runtime.close()


def test_operators_show_shapes_in_the_profiler_and_choose_the_slot_by_size(
    linear_test_kit: Any,
) -> None:
    runtime = attach(server="demo")
    original = linear_test_kit.original
    small = runtime.slot(linear_test_kit.definition(), original=original)
    large = runtime.slot(linear_test_kit.definition("large", n=64, k=8), original=original)
    operator = runtime.register_torch_op("linear_test", [small])
    assert runtime.register_op(large) is operator
    sizes = [(4, 16, 32), (5, 64, 8), (6, 3, 7)]
    with (
        torch.inference_mode(),
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
        ) as profile,
    ):
        for m, n, k in sizes:
            inputs = torch.randn(m, k), torch.ones(n, k, dtype=torch.int8), torch.ones(n)
            answer = torch.ops.retuned.linear_test(*inputs)
            assert torch.equal(answer, original(*inputs))
    events = profile.events() or []
    shapes = [event.input_shapes for event in events if event.name == "retuned::linear_test"]
    assert shapes == [[[m, k], [n, k], [n]] for m, n, k in sizes]
    assert small.launches() == {(4,): 1}
    assert large.launches() == {(5,): 1}
    assert operator(*(torch.empty(s, device="meta") for s in [(9, 32), (16, 32), (16,)])).shape == (
        9,
        16,
    )
    runtime.close()
    assert not hasattr(torch.ops.retuned, "linear_test")


def test_sizes_without_a_slot_are_refused_only_if_there_is_no_one_original(
    linear_test_kit: Any,
) -> None:
    runtime = attach(server="demo")
    one = runtime.slot(linear_test_kit.definition(), original=linear_test_kit.original)
    two = runtime.slot(linear_test_kit.definition("two", n=64), original=lambda *_: torch.ones(1))
    operator = runtime.register_torch_op("linear_other", [one, two])
    with raises_naming(ValueError, "[3, 7]"):
        operator(torch.ones(2, 7), torch.ones(3, 7, dtype=torch.int8), torch.ones(3))
    runtime.close()


def test_swaps_reach_the_operator_with_the_very_weights_of_the_model(
    linear_test_kit: Any, layer: Any, build: Any, tmp_path: Path
) -> None:
    """The dispatcher hands on the same tensor objects, so packed weights are found."""
    runtime = attach(server="demo", socket_dir=tmp_path / "s")
    slot = runtime.slot(linear_test_kit.definition(), original=linear_test_kit.original)
    operator = runtime.register_op(slot)
    with torch.inference_mode():
        x = torch.randn(4, 32)
        expected = operator(x, layer.wq, layer.scale)
        assert runtime.socket is not None
        built = build(panel=8)
        order = linear_test_kit.order(built.digest)
        request = {"op": "prepare", "order": order, "artifact_dir": str(built.folder)}
        assert ask(runtime.socket, request)["ok"] is True
        assert ask(runtime.socket, {"op": "commit", "order": order})["ok"] is True
        for _ in range(3):
            answer = operator(x, layer.wq, layer.scale)
            torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-3)
    (sample,) = ask(runtime.socket, {"op": "samples"})["samples"]
    assert sample["swapped_launches"] == 3
    assert sample["ineligible_launches"] == {}
    runtime.close()
    with torch.inference_mode():
        assert torch.equal(slot(x, layer.wq, layer.scale), expected)


def test_detach_returns_a_swapped_kernel_to_the_original_and_ends_the_runtime(
    linear_test_kit: Any, layer: Any, build: Any, tmp_path: Path
) -> None:
    runtime = attach(server="demo", socket_dir=tmp_path / "s")
    slot = runtime.slot(linear_test_kit.definition(), original=linear_test_kit.original)
    with torch.inference_mode():
        x = torch.randn(4, 32)
        expected = slot(x, layer.wq, layer.scale)
        built = build(panel=8)
        order = linear_test_kit.order(built.digest)
        request = {"op": "prepare", "order": order, "artifact_dir": str(built.folder)}
        path = runtime.socket
        assert path is not None
        assert ask(path, request)["ok"] is True
        assert ask(path, {"op": "commit", "order": order})["ok"] is True
        slot(x, layer.wq, layer.scale)
        answer = ask(path, {"op": "detach"})
        assert [each["active"] for each in answer["slots"]] == [None]
        assert torch.equal(slot(x, layer.wq, layer.scale), expected)
    until_s = time.monotonic() + 30.0
    while path.exists():
        assert time.monotonic() < until_s
        time.sleep(0.02)
    assert (runtime.enabled, runtime.socket) == (False, None)
    assert runtime.tune_tables() == {}


FORK = """
import os, sys, pathlib
from retuned.runtime import attach
folder = pathlib.Path(sys.argv[1])
runtime = attach(server="demo", socket_dir=folder)
parent = runtime.socket
child = os.fork()
if child == 0:
    right = runtime.socket is None and len(list(folder.iterdir())) == 1  # nothing to swap yet
    runtime.listen()
    right &= runtime.socket == folder / f"{os.getpid()}.sock" and runtime.socket.exists()
    runtime.close()
    os._exit(0 if right and parent.exists() else 7)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
from retuned.runtime.core.control_socket import ControlSocket
import json, socket
with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(120)
    connection.connect(str(parent))
    connection.sendall(b'{"op":"hello"}\\n')
    alive = json.loads(connection.makefile().readline())["pid"] == os.getpid()
sys.exit(code if alive else 8)
"""


def test_a_forked_worker_has_its_own_socket_and_the_parents_stays(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(tmp_path)], capture_output=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
