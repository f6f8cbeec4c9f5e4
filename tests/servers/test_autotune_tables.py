# mypy: disable-error-code="untyped-decorator"
"""Tables on the autotuners of several Tritons, and on the server's second cache."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import triton
import triton.language as tl
from tests.servers.autotuners import KEY, MODULE, autotuner, kept, launched, tuned
from tests.servers.sources import file_of, running
from tests.servers.tables import only, put
from tests.servers.wheels import Wheel, unpacked, versions

from retuned.runtime.schema import Refused
from retuned.runtime.tunables.autotune import AutotunerHook, words_of
from retuned.runtime.tunables.state import Registry

pytestmark = pytest.mark.index
TRITON = pytest.mark.parametrize("wheel", versions("triton"))
HELPERS = "vllm.model_executor.layers.mamba.ops.triton_helpers"


@contextmanager
def hooked(module: ModuleType) -> Iterator[Registry]:
    """Follow the autotuners of one version in the place of the installed ones."""
    registry, installed = Registry(), sys.modules[MODULE]
    sys.modules[MODULE] = module
    hook = AutotunerHook(registry)
    try:
        assert hook.install() == "on"
        yield registry
    finally:
        hook.uninstall()
        sys.modules[MODULE] = installed


def frozen(module: ModuleType) -> Any:
    """Return an autotuner whose choice was made before."""
    tuner = tuned(module, 2, 4, 8)
    tuner.cache[KEY] = tuner.configs[1]
    return tuner


@TRITON
def test_a_frozen_choice_is_seen_and_a_table_changes_it(wheel: Wheel) -> None:
    with autotuner(wheel) as module, hooked(module) as registry:
        tuner = frozen(module)
        assert launched(tuner) == 4
        (asked,) = only(registry).asked()
        assert (asked["axes"], asked["how"]) == ({"elements": 8, "programs": 4}, "frozen")
        assert asked["config"] == words_of(tuner.configs[1])
        put(only(registry), words_of(tuner.configs[2]))
        assert launched(tuner) == 8
        only(registry).table = None
        assert launched(tuner) == 4
        assert not registry.failures
    assert tuner.cache == {KEY: tuner.configs[1]}


@TRITON
def test_what_the_adapter_calls_the_key_is_the_autotuners(wheel: Wheel) -> None:
    with autotuner(wheel) as module, hooked(module) as registry:
        launched(frozen(module))
        assert only(registry).geometry == {"key": [str(each) for each in KEY]}


@TRITON
def test_uninstalling_leaves_the_class_as_it_was(wheel: Wheel) -> None:
    with autotuner(wheel) as module:
        before = module.Autotuner.__dict__["run"]
        with hooked(module):
            assert module.Autotuner.__dict__["run"] is not before
        assert module.Autotuner.__dict__["run"] is before


@TRITON
@pytest.mark.parametrize("name", ["arg_names", "cache", "configs", "keys"])
def test_an_unknown_autotuner_is_refused_and_left_alone(
    wheel: Wheel, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = ast.parse(file_of(unpacked(wheel), MODULE).read_text("utf-8"))
    for each in ast.walk(tree):
        if isinstance(each, ast.Attribute) and each.attr == name:
            each.attr = f"{name}_2"
    with autotuner(wheel, tree) as module:
        before = module.Autotuner.__dict__["run"]
        monkeypatch.setitem(sys.modules, MODULE, module)
        assert AutotunerHook(Registry()).install() == "autotuner-unknown"
        assert module.Autotuner.__dict__["run"] is before


@TRITON
def test_a_configuration_that_the_kernel_does_not_declare_is_refused(wheel: Wheel) -> None:
    with autotuner(wheel) as module, hooked(module) as registry:
        launched(frozen(module))
        with pytest.raises(Refused) as refused:
            only(registry).check({"kwargs": {"BLOCK": 16}, "num_warps": 4, "num_stages": 1})
    assert refused.value.reason == "config-unknown"


@TRITON
def test_a_declared_configuration_keeps_its_hook_before_the_launch(wheel: Wheel) -> None:
    """Such hooks clear outputs and set descriptors: without them the answer is wrong."""
    hooks: list[int] = []
    with autotuner(wheel) as module, hooked(module) as registry:
        tuner = frozen(module)
        for config in tuner.configs:
            config.pre_hook = lambda named: hooks.append(named["BLOCK"])
        launched(tuner)
        put(only(registry), words_of(tuner.configs[2]))
        launched(tuner)
    assert hooks == [4, 8]


@pytest.fixture(params=[each for each in versions("vllm") if each.id != "vllm-0.26.0"])
def helpers(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    names: dict[str, dict[str, Any]] = {"vllm.triton_utils": {"tl": tl, "triton": triton}}
    with running(unpacked(request.param), [HELPERS], names) as modules:
        yield modules[HELPERS]


def test_launches_past_the_autotuner_are_counted(helpers: ModuleType) -> None:
    with hooked(sys.modules[MODULE]) as registry:
        tuner = frozen(sys.modules[MODULE])
        for _ in range(3):
            kept(helpers, tuner)
        assert only(registry).asked()[0]["launches"] == 3


def test_a_table_changes_launches_past_the_autotuner(helpers: ModuleType) -> None:
    with hooked(sys.modules[MODULE]) as registry:
        tuner = frozen(sys.modules[MODULE])
        assert kept(helpers, tuner) == 4
        put(only(registry), words_of(tuner.configs[2]))
        assert kept(helpers, tuner) == 8
        only(registry).table = None
        assert kept(helpers, tuner) == 4


def test_a_first_launch_under_a_table_does_not_fail_the_server(helpers: ModuleType) -> None:
    """The second cache reads ``best_config`` after its first launch of a key."""
    with hooked(sys.modules[MODULE]) as registry:
        launched(frozen(sys.modules[MODULE]))
        put(only(registry), words_of(tuned(sys.modules[MODULE], 8, 2).configs[0]))
        again = frozen(sys.modules[MODULE])
        assert kept(helpers, again) == 8
