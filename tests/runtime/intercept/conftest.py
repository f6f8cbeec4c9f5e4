"""Interception that is on for one test, in the interpreter or on a device that launches nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
triton = pytest.importorskip("triton")

_EXPECTED = os.environ.get("RETUNED_EXPECTED_TRITON", triton.__version__)
assert triton.__version__ == _EXPECTED, f"another Triton, {triton.__version__}, was imported"


@pytest.fixture(scope="session")
def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, and so compute something."""
    return bool(triton.knobs.runtime.interpret)


@pytest.fixture(scope="session")
def device(interpreted: bool) -> Any:
    """A device that launches nothing; None where the interpreter runs."""
    if interpreted:
        return None
    if triton.runtime.driver._active is None and _has_device():
        pytest.skip("a real device is here; these tests are for one that launches nothing")
    from tests.runtime.intercept.fake_driver import FakeDriver

    fake = FakeDriver()
    triton.runtime.driver.set_active(fake)
    return fake


def _has_device() -> bool:
    import torch

    return bool(torch.cuda.is_available())


@pytest.fixture
def hook(device: Any) -> Iterator[Any]:
    """An interceptor of this test's own, installed."""
    from retuned.runtime.intercept.hook import Interceptor

    if device is not None:
        device.launches.clear()
    interceptor = Interceptor()
    place = "interpreter" if device is None else "jit"
    states = interceptor.install()
    if device is None and states[place] != "on":  # loaded with the first interpreted kernel
        import tests.runtime.intercept.strangers  # noqa: F401 - its import is what is wanted

        states = interceptor.install()
    assert states[place] == "on", states
    yield interceptor
    interceptor.uninstall()
