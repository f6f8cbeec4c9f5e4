"""What launches are led through stays right while slots open and probes end at the same time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.runtime.intercept.strangers import launch_affine
from tests.runtime.intercept.test_intercept_counting import kernel_of

from retuned.runtime.intercept.hook import Interceptor
from retuned.runtime.intercept.registry import Kernel

LAUNCHES = 300


class NoProbe:
    """Times nothing."""

    def begin(self, kernel: Kernel) -> None:
        kernel.disarm()

    def end(self, begun: Any, cell: Any) -> None:
        raise AssertionError("nothing was begun")


def _function(x: Any) -> None:
    """Stand for a kernel."""


@pytest.fixture
def hasty() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


_SLOT: Any = vars(Kernel)["_slot"]


class _Slow(Kernel):
    """Lets another thread act between what `disarm` reads and what it says."""

    __slots__ = ("between",)
    between: Callable[[], None] | None

    @property
    def _slot(self) -> Any:
        found = _SLOT.__get__(self)
        act, self.between = getattr(self, "between", None), None
        if act is not None:
            act()
        return found

    @_slot.setter
    def _slot(self, slot: Any) -> None:
        _SLOT.__set__(self, slot)


def test_a_slot_that_opens_while_a_launch_disarms_is_led_through() -> None:
    kernel, slot = _Slow(_function, _function, constexprs=[], interpreted=False), object()
    kernel.arm(NoProbe())

    def opens() -> None:
        kernel.slot = slot

    kernel.between = opens
    kernel.disarm()
    assert kernel.led is slot


def test_a_slot_that_closes_while_a_kernel_is_armed_is_not_led_through() -> None:
    kernel, probe = _Slow(_function, _function, constexprs=[], interpreted=False), NoProbe()
    kernel.slot = object()

    def closes() -> None:
        kernel.slot = None

    kernel.between = closes
    kernel.arm(probe)
    assert kernel.led is probe


@pytest.mark.usefixtures("hasty")
def test_launches_arming_and_slots_at_once_lose_no_launch(
    hook: Interceptor, interpreted: bool
) -> None:
    if interpreted:
        pytest.skip("the interpreter arms no kernel; the suite runs on a device in its other lane")
    launch_affine(40)
    kernel = kernel_of(hook, "affine")
    before, done, failed = kernel.total(), threading.Event(), list[BaseException]()

    class Passing:
        table = SimpleNamespace(repeats={})

        def __call__(self, call: Any) -> None:
            call.stock()

    def launches() -> None:
        try:
            for _ in range(LAUNCHES):
                launch_affine(40)
        except BaseException as error:  # for the assertion below
            failed.append(error)

    def disturbs() -> None:
        slot = Passing()
        while not done.is_set():
            kernel.arm(NoProbe())
            kernel.slot = slot
            kernel.disarm()
            kernel.slot = None

    threads = [threading.Thread(target=launches) for _ in range(3)]
    other = threading.Thread(target=disturbs)
    other.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    other.join()
    assert failed == []
    assert kernel.total() - before == 3 * LAUNCHES
    assert kernel.slot is None
    kernel.disarm()
    assert kernel.led is None
