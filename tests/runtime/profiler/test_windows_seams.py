"""The server's own profiler comes first: over a module that stands for PyTorch's."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

from retuned.runtime.profiler import ownership
from retuned.runtime.profiler.ownership import ProfilerOwnership

NAMES = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")


@pytest.fixture
def module() -> Any:
    found = types.ModuleType("profiler")
    for name in NAMES:
        setattr(found, name, lambda *args, name=name: (name, args))
    return found


def elsewhere(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(120.0)
    assert not thread.is_alive()


def test_calls_of_the_server_pass_through_and_removal_gives_its_functions_back(module: Any) -> None:
    before, turns = [getattr(module, name) for name in NAMES], ProfilerOwnership()
    assert ownership.install(module, turns)
    assert module._prepare_profiler(1, 2) == ("_prepare_profiler", (1, 2))
    assert ownership.install(module, turns), "twice is once"
    ownership.remove(module, turns)
    assert [getattr(module, name) for name in NAMES] == before


def test_no_window_begins_from_the_moment_the_servers_profiler_prepares_itself(
    module: Any,
) -> None:
    turns = ProfilerOwnership()
    ownership.install(module, turns)
    found = []

    def server() -> None:
        module._prepare_profiler()
        elsewhere(lambda: found.append(turns.begin()))
        module._enable_profiler()
        elsewhere(lambda: found.append(turns.begin()))

    elsewhere(server)
    assert found == [False, False]
    module._disable_profiler()  # by another thread than began it
    assert turns.begin()


def test_the_end_of_one_of_two_of_the_servers_profilers_is_not_the_end_of_the_other(
    module: Any,
) -> None:
    turns, done = ProfilerOwnership(), threading.Event()
    ownership.install(module, turns)

    def other() -> None:
        module._enable_profiler()
        done.wait(120.0)

    thread = threading.Thread(target=other)
    thread.start()
    elsewhere(lambda: (module._enable_profiler(), module._disable_profiler()))
    assert not turns.begin()
    done.set()
    thread.join(120.0)


def test_the_servers_profiler_waits_until_an_open_window_is_closed(module: Any) -> None:
    turns, order = ProfilerOwnership(), []
    ownership.install(module, turns)
    opened = threading.Event()

    def window() -> None:
        assert turns.begin()
        opened.set()
        assert turns.wanted.wait(120.0)
        order.append("closed")
        turns.end()

    thread = threading.Thread(target=window)
    thread.start()
    assert opened.wait(120.0)
    module._prepare_profiler()
    order.append("server")
    thread.join(120.0)
    assert order == ["closed", "server"]


def test_our_own_recording_does_not_wait_for_itself(module: Any) -> None:
    turns = ProfilerOwnership()
    ownership.install(module, turns)
    assert turns.begin()
    assert module._enable_profiler() == ("_enable_profiler", ())
    module._disable_profiler()
    assert turns.give_way(0.0)
    turns.end()
    assert turns.begin(), "ours was not taken for the server's"


def test_a_module_without_the_three_functions_is_left_alone(module: Any) -> None:
    del module._enable_profiler
    before = module._prepare_profiler
    assert not ownership.install(module, ProfilerOwnership())
    assert module._prepare_profiler is before


def test_a_profiler_that_is_on_already_is_the_servers(module: Any) -> None:
    module._is_profiler_enabled = True
    turns = ProfilerOwnership()
    assert ownership.install(module, turns)
    assert not turns.begin()
