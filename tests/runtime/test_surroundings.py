"""A process says what it runs on, as the lab would, and starts nothing to find out."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from retuned.lab.languages.cpu_cpp import cpu_environment
from retuned.lab.languages.gpu import NUMERICS
from retuned.runtime.core import environment


def test_the_processor_is_named_as_the_lab_names_it() -> None:
    assert environment.environment()["cpu"] == cpu_environment().arch


def test_the_switches_are_those_that_evidence_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.SWITCHES == NUMERICS
    for name in NUMERICS:
        monkeypatch.delenv(name, raising=False)
    assert environment.environment()["numerics"] == {}
    monkeypatch.setenv(NUMERICS[0], "1")
    assert environment.environment()["numerics"] == {NUMERICS[0]: "1"}


def module(**cuda: Any) -> SimpleNamespace:
    return SimpleNamespace(
        __version__="9.9",
        version=SimpleNamespace(hip=None, cuda="13.0"),
        cuda=SimpleNamespace(**cuda),
    )


def device(**more: Any) -> SimpleNamespace:
    return SimpleNamespace(name="a GPU", major=9, minor=0, **more)


def test_without_pytorch_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    found = environment.environment()
    assert (found["torch"], found["device"]) == ("", "")
    assert "torch" not in sys.modules, "nothing is imported to find out"


def test_a_device_that_nobody_has_used_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object) -> None:
        raise AssertionError("the device was touched")

    torch = module(
        is_initialized=lambda: False, get_device_properties=started, current_device=started
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert environment.environment()["device"] == ""


@pytest.mark.parametrize(
    ("hip", "facts", "expected"),
    [
        (None, device(), ("sm_90", "cuda 13.0")),
        ("7.1", device(gcnArchName="gfx942:sramecc+:xnack-"), ("gfx942", "rocm 7.1")),
    ],
)
def test_a_device_in_use_is_named(
    hip: str | None, facts: Any, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = module(
        is_initialized=lambda: True,
        current_device=lambda: 0,
        get_device_properties=lambda _index: facts,
    )
    torch.version.hip = hip
    monkeypatch.setitem(sys.modules, "torch", torch)
    found = environment.environment()
    assert (found["device"], found["runtime"]) == expected
    assert found["device_name"] == "a GPU"


def test_the_version_of_pytorch_is_the_one_that_the_lab_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`__version__` of one and the same wheel adds +cu130: a warning at every swap on a GPU."""
    wheels = {"torch": "9.9"}
    monkeypatch.setattr(environment, "_version", lambda name: wheels.get(name, ""))
    torch = module(is_initialized=lambda: False)
    torch.__version__ = "9.9+cu130"
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert environment.environment()["torch"] == "9.9"
    wheels.clear()
    assert environment.environment()["torch"] == "9.9+cu130", "built from source: nobody lists it"


@pytest.mark.parametrize("error", [RuntimeError("device lost"), AttributeError("x")])
def test_a_device_that_cannot_be_asked_is_not_known(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> bool:
        raise error

    monkeypatch.setitem(sys.modules, "torch", module(is_initialized=lost))
    assert environment.environment()["device"] == ""


def test_a_stranger_s_object_called_torch_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    assert environment.environment()["device"] == ""


def test_the_engine_is_named_where_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vllm", "sglang"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    assert environment.engine() == ""
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.23"))
    assert environment.engine() == "sglang 0.5.23"
