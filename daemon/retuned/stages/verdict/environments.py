"""Is the server that is to run a variant like the place where it was measured? Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from retuned.contract import Environment

_CPU = "cpu:"
_INTERPRETER = "interpreter"
"""Where Triton has no device: what the lab and a server without one say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEnvironment:
    """What one process of a server says about itself; empty where it does not know."""

    process: str
    """Its name, for messages."""
    cpu: str = ""
    """Processor, written as `Environment.arch` writes one."""
    device: str = ""
    """Architecture of its GPU, such as ``sm_90``; known once it has used one."""
    device_name: str = ""
    """As the vendor calls it: two devices of one architecture differ in speed."""
    driver: str = ""
    """Kernel driver of the GPU."""
    runtime: str = ""
    """CUDA or ROCm version of PyTorch."""
    torch: str = ""
    """PyTorch, where it is loaded."""
    triton: str = ""
    """Triton, where it is installed."""
    numerics: Mapping[str, str] = field(default_factory=dict)
    """Variables that change what Triton compiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing in which a server is not what evidence was measured on."""

    what: str
    """Which, such as ``arch``."""
    measured: str
    """There."""
    serving: str
    """Here; empty where the server does not know."""
    decides: bool
    """Whether other code would run, or the same elsewhere; else it is worth a line in the log."""

    def __str__(self) -> str:
        return f"{self.what} is {self.serving or 'not known'}, measured was {self.measured}"


def differences(measured: Environment, serving: ServerEnvironment) -> tuple[Difference, ...]:
    """Compare; only what the variant's language depends on, and what decides first.

    A C++ variant arrives compiled, so that the processor is all that counts. A Triton variant is
    compiled by the server: device, Triton and its switches decide. Versions of PyTorch and the
    driver can move times, and do not change what runs. What decides and is not known differs.

    Examples
    --------
    >>> here = ServerEnvironment(process="1", cpu="cpu:a", device="sm_90", triton="3.9.0")
    >>> [str(d) for d in differences(Environment(arch="sm_90", triton="3.8.0"), here)]
    ['triton is 3.9.0, measured was 3.8.0']
    >>> differences(Environment(arch="cpu:a", compiler="g++ 12"), here)
    ()
    """
    if measured.arch.startswith(_CPU):
        rows = [("arch", measured.arch, serving.cpu, True)]
    else:
        rows = [
            ("arch", measured.arch, _device(measured, serving), True),
            ("triton", measured.triton, serving.triton, True),
            *_switches(measured, serving),
            ("driver", measured.driver, serving.driver, False),
            ("runtime", measured.runtime, serving.runtime, False),
            ("torch", measured.torch, serving.torch, False),
        ]
    return tuple(
        Difference(what=what, measured=there, serving=here, decides=decides)
        for what, there, here, decides in rows
        if there != here and (there or decides) and (here or decides)
    )


def _device(measured: Environment, serving: ServerEnvironment) -> str:
    if measured.arch == _INTERPRETER and not serving.device:
        return _INTERPRETER
    return serving.device


def _switches(
    measured: Environment, serving: ServerEnvironment
) -> list[tuple[str, str, str, bool]]:
    """Compare the switches that either side names, the device's own name among them."""
    here = dict(serving.numerics)
    if serving.device_name:
        here["GPU_NAME"] = serving.device_name
    if "GPU_NAME" not in measured.numerics:
        here.pop("GPU_NAME", None)
    names = sorted({*measured.numerics, *here})
    return [(name, measured.numerics.get(name, ""), here.get(name, ""), True) for name in names]
