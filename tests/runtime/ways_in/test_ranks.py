"""Which rank a process is: told by launchers, by PyTorch, by servers; believed in that order."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from retuned.runtime import attach
from retuned.runtime.plugins.ranks import ranks

LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start from a process that nobody has launched as a rank."""
    for prefix in LAUNCHERS:
        monkeypatch.delenv(prefix, raising=False)
    monkeypatch.setitem(sys.modules, "torch.distributed", ModuleType("torch.distributed"))


def module(name: str, monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    made = ModuleType(name)
    vars(made).update(functions)
    monkeypatch.setitem(sys.modules, name, made)


def test_a_process_of_its_own_has_no_rank() -> None:
    assert ranks() == {}


def test_the_launchers_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    assert ranks() == {"rank": 3, "local_rank": 1, "world_size": 8}


@pytest.mark.parametrize("value", ["", "-1", "one", "1e3", "9" * 30, "\u0663", " 1"])
def test_a_variable_that_is_no_number_says_nothing(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", value)
    assert ranks() == {}


def test_pytorchs_process_group_is_believed_before_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "3")
    module(
        "torch.distributed",
        monkeypatch,
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 5,
        get_world_size=lambda: 16,
    )
    assert ranks() == {"rank": 5, "world_size": 16}


@pytest.mark.parametrize("server", ["vllm", "sglang.srt"])
def test_a_servers_groups_are_read_once_they_are_made(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Group:
        rank_in_group = 2
        world_size = 4

    def not_made() -> Group:
        raise AssertionError("tensor model parallel group is not initialized")

    name = f"{server}.distributed.parallel_state"
    module(name, monkeypatch, get_tp_group=not_made)
    assert ranks() == {}
    module(name, monkeypatch, get_tp_group=Group, get_pp_group=not_made)
    assert ranks() == {"tp_rank": 2, "tp_size": 4}


@pytest.mark.parametrize("rank", [None, "0", -1, True, 1 << 40, object()])
def test_what_is_no_rank_is_left_out(rank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Group:
        rank_in_group = rank
        world_size = 4

    module("vllm.distributed.parallel_state", monkeypatch, get_tp_group=Group)
    assert ranks() == {"tp_size": 4}


def test_the_daemon_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    runtime = attach(server="demo")
    assert runtime._host.answer({"op": "hello"})["ranks"] == {"rank": 1}
    runtime.close()
