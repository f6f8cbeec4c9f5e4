"""Host code in a Triton source is refused, and nothing of it was executed to find out."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hostile.host_code import carriers, numbered, while_compiling
from tests.hostile.triton_kernels import HEAD, ROW, SOFTMAX, softmax

from retuned import catalog
from retuned.lab.languages import triton as language
from retuned.lab.languages.cpp_contract import ContractViolated
from retuned.runtime.schema import Refused
from retuned.runtime.triton.contract import check_source

SOMEWHERE = Path("canary")
Sources = Callable[[Path], dict[str, str]]
EVERY = [
    pytest.param(sources, name, id=f"{sources.__name__}-{name}")
    for sources in (numbered, carriers, while_compiling)
    for name in sources(SOMEWHERE)
]


def pretend(name: str) -> types.ModuleType:
    """Return a module with whatever is asked for, so that a source can be executed anywhere."""
    module = types.ModuleType(name)

    class Anything:
        def __getattr__(self, _: str) -> Any:
            return Anything()

        def __call__(self, *args: Any, **more: Any) -> Any:
            return args[0] if args and callable(args[0]) else Anything()

    module.__getattr__ = lambda _: Anything()  # type: ignore[method-assign]
    return module


def execute(source: str) -> None:
    """Execute a source as whoever imports it would; failures are part of it."""
    shown = pretend("triton")
    shown.language = pretend("triton.language")  # type: ignore[attr-defined]
    names = {"triton": shown, "triton.language": shown.language}

    def bring(name: str, *more: Any) -> Any:
        if name in names:
            return shown
        if name in ("builtins", "torch"):
            return types.SimpleNamespace(open=open, library=pretend("library"))
        raise ImportError(name)

    allowed = {"open": open, "print": print, "range": range, "object": object}
    body = {**allowed, "__import__": bring, "__build_class__": __build_class__}
    with contextlib.suppress(Exception):
        code = compile(source, "variant", "exec", dont_inherit=True)
        exec(code, {"__builtins__": body, "__name__": "variant"})


@pytest.mark.parametrize(("sources", "name"), EVERY)
def test_host_code_is_refused_before_anything_is_executed(
    sources: Sources, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = tmp_path / "canary"

    def no_process(*_: Any, **__: Any) -> Any:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", no_process)
    before = set(sys.modules)
    with pytest.raises(ContractViolated) as refused:
        language.build(
            softmax(sources(canary)[name]),
            catalog.get(SOFTMAX).definition,
            cache_dir=tmp_path / "compiled",
        )
    assert refused.value.reason == "contract-violated"
    assert not canary.exists()
    assert not (tmp_path / "compiled").exists()
    assert not {"torch", "triton"} & (set(sys.modules) - before)


@pytest.mark.parametrize(("sources", "name"), EVERY[: -len(while_compiling(SOMEWHERE))])
def test_the_canary_dies_where_such_a_source_is_executed(
    sources: Sources, name: str, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    execute(sources(canary)[name])
    assert canary.exists(), "this source proves nothing: executing it leaves no trace"


WORDS = st.sampled_from(
    [
        "X", "kernel", "tl", "triton", "open", "print", "eval", "__import__", "1", "'a'", "()",
        "[]", "{}", "lambda: 1", "f'{1}'", "tl.constexpr", "triton.jit", "tl.load", "not X",
    ]
)  # fmt: skip
LINES = st.recursive(
    WORDS,
    lambda inner: st.one_of(
        st.builds("({})({})".format, inner, inner),
        st.builds("({}).{}".format, inner, st.sampled_from(["a", "jit", "__class__", "core"])),
        st.builds("[{} for _ in {}]".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("({} + {})".format, inner, inner),
    ),
    max_leaves=5,
)
STATEMENTS = st.one_of(
    LINES,
    st.builds("X = {}".format, LINES),
    st.builds("Y: {} = {}".format, LINES, LINES),
    st.builds("@{}\ndef f(): pass".format, LINES),
    st.builds("@triton.jit\ndef f(a={}): pass".format, LINES),
    st.builds("@triton.jit\ndef f(a: {}): pass".format, LINES),
    st.builds("@triton.jit\ndef f() -> {}: pass".format, LINES),
    st.builds("class C({}): pass".format, LINES),
    st.builds("if {}: pass".format, LINES),
    st.builds("del X, {}".format, st.just("X")),
    st.builds("import {}".format, st.sampled_from(["os", "triton.runtime", "triton as t"])),
)


class Watched(dict[str, Any]):
    """Names of a module that tell who was looked up."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__({"__builtins__": {"__import__": lambda *_: Watcher(seen, "triton")}})
        self._seen = seen


class Watcher:
    """An object that tells what was done with it."""

    def __init__(self, seen: list[str], name: str) -> None:
        self._seen, self._name = seen, name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Watcher(self._seen, f"{self._name}.{name}")

    def __call__(self, *args: Any, **more: Any) -> Any:
        self._seen.append(self._name)
        return args[0] if args else None


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(STATEMENTS, max_size=3))
def test_what_is_accepted_calls_nothing_but_the_compiler_s_own_when_imported(
    statements: list[str],
) -> None:
    text = HEAD + "\n".join(statements) + "\n" + ROW.removeprefix(HEAD)
    try:
        check_source(text, entry="kernel")
    except Refused:
        return
    seen: list[str] = []
    exec(compile(text, "variant", "exec", dont_inherit=True), Watched(seen))
    assert set(seen) <= {"triton.jit", "triton.language.constexpr"}
