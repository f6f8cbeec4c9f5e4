"""Taking an operator over, and everything that must not be taken over."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.expect import raises_code

from retuned.runtime.schema import Refused
from retuned.runtime.torch_ops import override as overrides
from retuned.runtime.torch_ops.override import Override, find, owned, registrations, same_schema

NAMESPACE = "retuned_test_overrides"
Define = Callable[..., Any]


@pytest.fixture
def define() -> Iterator[Define]:
    """Register an operator that adds one; gone at the end."""
    library = torch.library.Library(NAMESPACE, "FRAGMENT")

    def make(name: str = "plus_one", *, key: str = "CPU", schema: str = "(Tensor x) -> Tensor",
             kernel: Callable[..., Any] = lambda x: x + 1) -> Any:  # fmt: skip
        library.define(name + schema)
        if key:
            library.impl(name, kernel, key)
        return find(f"{NAMESPACE}::{name}")

    yield make
    for override in owned():
        override.destroy()
    library._destroy()


def doubled(original: Any) -> Any:
    return lambda keyset, *args: 2 * original(keyset, *args)


def reason(operator: Any, key: str = "CPU") -> str:
    with pytest.raises(Refused) as caught:
        Override(operator, key, doubled)
    assert caught.value.detail
    assert not [each for each in owned() if each.name == operator._name]
    return caught.value.reason


def test_an_override_calls_the_original_and_destroying_it_brings_it_back(define: Define) -> None:
    operator = define()
    x = torch.zeros(3)
    override = Override(operator, "CPU", doubled)
    assert operator(x).tolist() == [2.0] * 3
    assert (override.active, owned()) == (True, [override])
    override.destroy()
    override.destroy()
    assert operator(x).tolist() == [1.0] * 3
    assert (override.active, owned()) == (False, [])


def test_an_operator_can_be_taken_over_again_and_again(define: Define) -> None:
    operator = define()
    for _ in range(50):
        override = Override(operator, "CPU", doubled)
        assert operator(torch.zeros(1)).item() == 2
        override.destroy()
    assert operator(torch.zeros(1)).item() == 1
    gc.collect()


def test_an_operator_that_is_not_loaded_is_said_to_be_missing() -> None:
    for name in (f"{NAMESPACE}::nothing", "no_such_space::plus", "aten::add.NoSuchOverload", "odd"):
        with raises_code(Refused, "operator-missing"):
            find(name)


def test_what_somebody_has_overridden_is_left_alone(define: Define) -> None:
    operator = define()
    theirs = torch.library.Library(NAMESPACE, "IMPL")
    theirs.impl("plus_one", lambda _, x: x + 10, "CPU", with_keyset=True)
    assert reason(operator) == "overridden"
    theirs._destroy()
    Override(operator, "CPU", doubled)
    assert reason_of_second(operator) == "overridden"


def reason_of_second(operator: Any) -> str:
    with pytest.raises(Refused) as caught:
        Override(operator, "CPU", doubled)
    return caught.value.reason


def test_who_overrides_after_us_is_noticed_and_keeps_what_is_his(define: Define) -> None:
    operator = define()
    ours = Override(operator, "CPU", doubled)
    theirs = torch.library.Library(NAMESPACE, "IMPL")
    theirs.impl("plus_one", lambda _, x: x + 10, "CPU", with_keyset=True)
    assert not ours.active
    assert operator(torch.zeros(1)).item() == 10
    ours.destroy()  # from under him
    assert operator(torch.zeros(1)).item() == 10
    theirs._destroy()
    assert operator(torch.zeros(1)).item() == 1


def test_a_kernel_that_only_python_calls_is_an_override_too(define: Define) -> None:
    operator = define()
    operator.py_impl(torch._C.DispatchKey.CPU)(lambda x: x + 10)
    assert reason(operator) == "overridden"


def test_a_key_without_a_kernel_is_refused(define: Define) -> None:
    operator = define()
    assert reason(operator, "CUDA") == "key-missing"
    assert reason(operator, "Meta") == "key-missing"
    through = define("through", kernel=torch.library.fallthrough_kernel)
    assert reason(through) == "key-missing"


def test_an_operator_made_of_others_is_refused(define: Define) -> None:
    operator = define("made_of", key="CompositeImplicitAutograd")
    assert reason(operator) == "composite-implicit"


def test_a_kernel_for_every_device_can_be_taken_over_at_one(define: Define) -> None:
    operator = define("every", key="CompositeExplicitAutograd")
    override = Override(operator, "CPU", doubled)
    assert override.active
    assert operator(torch.zeros(1)).item() == 2
    assert operator(torch.zeros(1, device="meta")).device.type == "meta"
    override.destroy()
    assert operator(torch.zeros(1)).item() == 1


def test_a_formula_for_gradients_is_refused_and_its_absence_is_not() -> None:
    def plus_one(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    made: Any = torch.library.custom_op
    without = made(f"{NAMESPACE}::without", plus_one, mutates_args=(), device_types="cpu")
    formula = made(f"{NAMESPACE}::formula", plus_one, mutates_args=(), device_types="cpu")
    formula.register_autograd(lambda _, grad: grad)
    assert reason(find(f"{NAMESPACE}::formula")) == "autograd-formula"
    override = Override(find(f"{NAMESPACE}::without"), "CPU", doubled)
    assert without(torch.zeros(1)).item() == 2
    override.destroy()
    assert without(torch.zeros(1)).item() == 1


def test_pytorchs_own_are_refused_since_inductor_would_not_call_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = "torch._inductor.compile_fx"
    monkeypatch.setitem(sys.modules, loaded, types.ModuleType("compile_fx"))
    assert reason(torch.ops.aten.mm.default) == "inductor-inlines"
    monkeypatch.delitem(sys.modules, loaded)
    assert reason(torch.ops.aten.mm.default) == "autograd-formula"


def test_without_a_way_to_the_original_nothing_is_taken_over(
    define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = define()
    with monkeypatch.context() as patch:
        patch.delattr(torch.library, "get_kernel")
        assert reason(operator) == "original-unreachable"
    with monkeypatch.context() as patch:
        patch.delattr(torch._C, "_dispatch_dump")
        assert reason(operator) == "ownership-unknown"
    with monkeypatch.context() as patch:
        patch.setattr(torch.library, "Library", fails)
        assert reason(operator) == "library-refused"
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch")
        with raises_code(Refused, "torch-missing"):
            find(f"{NAMESPACE}::plus_one")
    assert operator(torch.zeros(1)).item() == 1


def fails(*_: object) -> None:
    raise RuntimeError("no libraries here")


def test_a_library_that_is_refused_halfway_is_taken_back(
    define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, kernel = define(), torch.library.get_kernel
    asked: list[object] = []

    def once(*args: Any) -> Any:
        asked.append(args)
        return kernel(*args) if len(asked) == 1 else fails()

    monkeypatch.setattr(torch.library, "get_kernel", once)
    assert reason(operator) == "library-refused"
    assert operator(torch.zeros(1)).item() == 1


@pytest.mark.parametrize(
    ("schema", "same"),
    [
        ("(Tensor! out, Tensor x, float eps=1e-06) -> ()", True),
        ("(Tensor!  out, Tensor x, float eps=0.000001) -> ()", True),
        ("(Tensor! out, Tensor x, float eps=1e-05) -> ()", False),
        ("(Tensor! out, Tensor? x, float eps=1e-06) -> ()", False),
        ("(Tensor out, Tensor x, float eps=1e-06) -> ()", False),
        ("(Tensor! out, Tensor y, float eps=1e-06) -> ()", False),
        ("(Tensor! out, Tensor x, *, float eps=1e-06) -> ()", False),
        ("(Tensor! out, Tensor x, float eps=1e-06, int more=0) -> ()", False),
        ("nonsense", False),
    ],
)
def test_a_schema_is_the_same_or_it_is_not(define: Define, schema: str, same: bool) -> None:
    operator = define("scaled", schema="(Tensor! out, Tensor x, float eps=1e-6) -> ()")
    assert same_schema(operator, f"{NAMESPACE}::scaled{schema}") is same


def test_registrations_are_read_from_what_pytorch_says() -> None:
    said = (
        "name: a::b\nschema: a::b(Tensor x) -> Tensor\n"
        "CPU: registered at one.cpp:1 :: (none) [ boxed ]\n"
        "CPU (inactive): registered at two.cpp:2 :: (Tensor _0) -> Tensor [ boxed unboxed ]\n"
        "Autograd[alias]: fallthrough registered at three.cpp:3\n"
    )
    found = registrations(said)
    assert [line.split()[2] for line in found["CPU"]] == ["one.cpp:1", "two.cpp:2"]
    assert list(found) == ["name", "schema", "CPU", "Autograd"]
    assert registrations("") == {}


def test_launches_go_on_while_operators_are_taken_over_and_given_back(define: Define) -> None:
    operator = define()
    stop, odd = threading.Event(), list[object]()

    def serve() -> None:
        x = torch.zeros(1)
        while not stop.is_set():
            value = operator(x).item()
            if value not in (1, 2):
                odd.append(value)

    threads = [threading.Thread(target=serve) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(1000):
        Override(operator, "CPU", doubled).destroy()
    stop.set()
    for thread in threads:
        thread.join(30)
    assert odd == []
    assert overrides.owned() == []


def test_a_child_forked_while_another_thread_takes_operators_over_can_give_them_back() -> None:
    code = """
import os, threading
from retuned.runtime.torch_ops import override
from retuned.runtime.core.attach import attach

runtime = attach(at_once=False)
held, done = threading.Event(), threading.Event()

def hold():
    with override._LOCK, runtime._operators._lock:
        held.set()
        done.wait(30)

threading.Thread(target=hold).start()
held.wait(30)
child = os.fork()
if child == 0:
    runtime.close()
    free = override._LOCK.acquire(timeout=5)
    os._exit(0 if free else 1)
done.set()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.strip() == "0", ran.stderr


def test_the_page_about_running_names_every_reason() -> None:
    folder = Path(overrides.__file__).parent
    said = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    codes = set(re.findall(r'(?:Refused\(\s*|_pass\()"([a-z-]+)"', said)) | {"slot-exists"}
    page = (folder.parents[3] / "docs" / "running.md").read_text(encoding="utf-8")
    assert len(codes) > 10
    assert {code for code in codes if f"`{code}`" not in page} == set()
