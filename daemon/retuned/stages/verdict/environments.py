"""Environments compared: whether a server matches the place of a measurement. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from retuned.contract import Environment

_CPU = "cpu:"
_INTERPRETER = "interpreter"
"""What the lab and a server report as Triton's device without a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEnvironment:
    """What one process of a server reports about itself; empty fields are unknown."""

    process: str
    cpu: str = ""
    """Processor, in the format of `Environment.arch`."""
    device: str = ""
    """Architecture of its GPU, such as ``sm_90``; known after its first use."""
    device_name: str = ""
    """The vendor's name: two devices of one architecture differ in speed."""
    driver: str = ""
    """Kernel driver of the GPU."""
    runtime: str = ""
    """CUDA or ROCm version of PyTorch."""
    torch: str = ""
    triton: str = ""
    numerics: Mapping[str, str] = field(default_factory=dict)
    """Variables that change what Triton compiles."""


def server_side(facts: ServerEnvironment) -> Environment:
    """Return the environment of a server's process, which its experiments share.

    Examples
    --------
    >>> server_side(ServerEnvironment(process="1", cpu="cpu:a", triton="3.6.0")).arch
    'cpu:a'
    """
    numerics = dict(facts.numerics)
    if facts.device_name:
        numerics["GPU_NAME"] = facts.device_name
    return Environment(
        arch=facts.device or facts.cpu,
        driver=facts.driver,
        runtime=facts.runtime,
        torch=facts.torch,
        triton=facts.triton,
        numerics=numerics,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference between a server and the environment of the evidence."""

    what: str
    """Name of the property, such as ``arch``."""
    measured: str
    """Value in the evidence."""
    serving: str
    """Value of the server; empty if unknown."""
    decides: bool
    """Whether other code would run, or the same code elsewhere; if not, it is only logged."""

    def __str__(self) -> str:
        return (
            f"{self.what} is {self.serving or 'unknown'}, but the measurement had {self.measured}"
        )


def differences(measured: Environment, serving: ServerEnvironment) -> tuple[Difference, ...]:
    """Compare what the variant's language depends on; deciding differences come first.

    A C++ variant arrives compiled, so that only the processor counts. The server compiles a Triton
    variant: device, Triton and its switches decide. Versions of PyTorch and the driver can change
    times but not the code that runs. An unknown deciding property counts as different.

    Examples
    --------
    >>> here = ServerEnvironment(process="1", cpu="cpu:a", device="sm_90", triton="3.9.0")
    >>> [str(d) for d in differences(Environment(arch="sm_90", triton="3.8.0"), here)]
    ['triton is 3.9.0, but the measurement had 3.8.0']
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
    """Compare the switches that either side names, including the device's name."""
    here = dict(serving.numerics)
    if serving.device_name:
        here["GPU_NAME"] = serving.device_name
    if "GPU_NAME" not in measured.numerics:
        here.pop("GPU_NAME", None)
    names = sorted({*measured.numerics, *here})
    return [(name, measured.numerics.get(name, ""), here.get(name, ""), True) for name in names]
