"""Where the demo serves: what is asked for, what is here, and what is said about it."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.expect import raises_naming

from retuned.cli import demo
from retuned.demo import server
from retuned.errors import MissingDependency

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
ARGUMENTS = ["--socket-dir", "s", "--cache-dir", "c"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    properties = SimpleNamespace(name="AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)


def test_a_gpu_is_taken_where_there_is_one(gpu: Any) -> None:
    pytest.importorskip("triton")
    where, said = demo.choose_device(demo.Device.AUTO)
    assert where is demo.Device.CUDA
    assert "MI300X, gfx942)" in said
    assert demo.choose_device(demo.Device.CPU)[0] is demo.Device.CPU


@pytest.mark.parametrize("missing", ["device", "triton"])
def test_without_one_or_without_triton_the_cpu_serves_and_the_reason_is_said(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "device":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    else:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    where, said = demo.choose_device(demo.Device.AUTO)
    assert where is demo.Device.CPU
    assert ("no GPU" if missing == "device" else "Triton is missing") in said
    with raises_naming(MissingDependency, "--device cpu"):
        demo.choose_device(demo.Device.CUDA)


def test_a_gpu_gets_a_larger_model_and_larger_steps() -> None:
    cpu = server.parse(ARGUMENTS)
    assert (cpu.device, cpu.model, cpu.token_budget) == ("cpu", "demo", 256)
    found = server.parse([*ARGUMENTS, "--device", "cuda"])
    assert (found.device, found.model, found.token_budget) == ("cuda", "gpu", 512)
    assert (cpu.swapped_cost, server.parse([*ARGUMENTS, "--swapped-cost", "4"]).swapped_cost) == (
        1,
        4,
    )
    chosen = server.parse([*ARGUMENTS, "--device", "cpu", "--model", "tiny"])
    assert (chosen.device, chosen.model) == ("cpu", "tiny")


@pytest.mark.parametrize("cost", ["0.5", "nan", "1000"])
def test_a_cost_of_swapped_launches_that_is_none_is_refused(
    capsys: pytest.CaptureFixture[str], cost: str
) -> None:
    with pytest.raises(SystemExit):
        server.parse([*ARGUMENTS, "--swapped-cost", cost])
    assert "--swapped-cost is 1 to 100" in capsys.readouterr().err


def test_a_wheel_has_the_policy_of_the_demo() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    (place,) = (target for source, target in included.items() if ROOT / source == demo._SOURCE)
    assert ROOT / "daemon" / place == demo._PACKAGED
    assert demo._SOURCE.is_file()
