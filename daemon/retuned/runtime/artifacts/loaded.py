"""Loaded variants: what variants in all languages have in common.

Everything that a native kernel assumes is checked at every launch, because a kernel with the wrong
memory does not raise: types, element types, whole shapes, contiguity, device. The incumbent serves
a launch that is not eligible. This module also provides outputs and packed weights; a language adds
how to launch, and where.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from retuned.runtime.artifacts.artifact import Artifact
from retuned.runtime.core.active_order import Ineligible, Launch
from retuned.runtime.native.weights import PackedWeights
from retuned.runtime.schema import DTYPES, Key, Refused, Tensor
from retuned.runtime.shadow.sampler import fingerprint

EMPTY = Ineligible("empty")
BUSY = Ineligible("busy")
NOT_COMPILED = Ineligible("not-compiled")
_SHAPE = Ineligible("shape")
_KIND = Ineligible("tensor-kind")
_AUTOGRAD = Ineligible("autograd")
_UNPACKED = Ineligible("weight-not-packed")

Allocate = Callable[..., Tensor]
"""(shape, dtype=...) -> new tensor on the variant's device."""

Runner = Callable[[Sequence[Tensor]], Ineligible | None]
"""Launches once on inputs then outputs, or returns why not."""


class LoadedVariant(ABC):
    """One artifact, ready to launch.

    Parameters
    ----------
    artifact
        Verified.

    Raises
    ------
    Refused
        ``torch-missing`` or ``dtype-unsupported``.
    """

    def __init__(self, artifact: Artifact, packed: PackedWeights) -> None:
        self._torch = loaded_torch()
        self.spec = artifact.spec
        self.packed = packed
        self.repacked = [
            (index, artifact.layouts[spec.name])
            for index, spec in enumerate(self.spec.inputs)
            if spec.name in artifact.layouts
        ]
        self.into: Allocate | None = None
        """Provides the outputs of served launches, if they need a certain memory.

        None allocates.
        """
        self._plain = (self._torch.Tensor, self._torch.nn.Parameter)
        self._dtypes = [_dtype(self._torch, spec.dtype) for spec in self.spec.inputs]
        self._output_dtypes = [_dtype(self._torch, spec.dtype) for spec in self.spec.outputs]

    # --- implemented by a language ----------------------------------------------------------------

    @property
    @abstractmethod
    def device(self) -> Any:  # noqa: ANN401 - torch.device
        """Where it runs; tensors elsewhere are not eligible."""

    @abstractmethod
    def is_here(self) -> Callable[[Tensor], bool]:
        """Return a function that checks whether a tensor is in memory that the variant can use."""

    @abstractmethod
    def allocate(self) -> Allocate:
        """Return a function that allocates an output."""

    @abstractmethod
    def runner(self, values: tuple[int, ...]) -> Runner:
        """Return a function that launches at these lengths of all axes.

        Never raises, never compiles.
        """

    def checked_runner(self, values: tuple[int, ...]) -> Runner:
        """Return the same for a launch that is compared: scratch, if any, is poisoned."""
        return self.runner(values)

    def prepare(self, key: Key) -> None:  # noqa: B027 - nothing to compile is the usual case
        """Compile what launches of these lengths need; off the request path.

        Raises
        ------
        Refused
            ``compile-failed`` or ``out-of-resources``.
        """

    def prepare_shipped(self) -> int:
        """Load delivered compiled code; return for how many lengths."""
        return 0

    def counts(self) -> dict[str, int]:
        """Return where its code came from: ``shipped``, ``compiled_here``, ``cached``."""
        return {"shipped": 1, "compiled_here": 0, "cached": 0}  # the binary is the code

    def capturing(self) -> Callable[[], bool] | None:
        """Return a function that checks whether launches are captured into a graph; None if never.

        A graph replays without its slot: its launches are neither counted nor checked, and no
        rollback reaches them. Also, a check inside a capture would end the capture.
        """
        return None

    @property
    def pending(self) -> int:
        return 0

    def prepare_pending(self) -> int:
        return 0

    # --- common to all languages ------------------------------------------------------------------

    def launcher(self, key: Key) -> Launch:
        return self.launcher_into(key, self.into or self.allocate())

    def checked_launcher(self, key: Key) -> Launch:
        allocate = self.into or self.allocate()

        def poisoned(shape: tuple[int, ...], *, dtype: Any) -> Tensor:  # noqa: ANN401 - torch.dtype
            tensor = allocate(shape, dtype=dtype)
            poison(tensor)
            return tensor

        return self.launcher_into(key, poisoned, checked=True)

    def launcher_into(self, key: Key, allocate: Allocate, *, checked: bool = False) -> Launch:
        """Return a function that launches at these lengths, with outputs from `allocate`."""
        lengths = self.spec.lengths(key)
        values = tuple(lengths.values())
        if 0 in values:
            return lambda _: EMPTY
        eligible = self._eligibility(lengths)
        run = self.checked_runner(values) if checked else self.runner(values)
        shapes = [tuple(lengths[a] for a in spec.shape) for spec in self.spec.outputs]
        outputs = list(zip(shapes, self._output_dtypes, strict=True))
        repacked, find, single = self.repacked, self.packed.find, len(outputs) == 1

        def launch(inputs: tuple[Tensor, ...]) -> Any:  # noqa: ANN401 - tensor, tuple or Ineligible
            problem = eligible(inputs)
            if problem is not None:
                return problem
            used = list(inputs)
            for index, layout in repacked:
                used[index] = find(inputs[index], layout)
                if used[index] is None:
                    return _UNPACKED
            made = [allocate(shape, dtype=dtype) for shape, dtype in outputs]
            problem = run([*used, *made])
            if problem is not None:
                return problem
            return made[0] if single else tuple(made)

        return launch

    def refuses(self, key: Key, inputs: tuple[Tensor, ...]) -> Ineligible | None:
        """Return why the incumbent must serve a launch; None if the variant may."""
        lengths = self.spec.lengths(key)
        values = tuple(lengths.values())
        if 0 in values:
            return EMPTY
        problem = self._eligibility(lengths)(inputs)
        if problem is not None:
            return problem
        for index, layout in self.repacked:
            if self.packed.find(inputs[index], layout) is None:
                return _UNPACKED
        return self.hindrance(values)

    def hindrance(self, values: tuple[int, ...]) -> Ineligible | None:
        """Return why nothing can be launched at these lengths of all axes now; None if it can."""
        return None

    def fingerprint(self, inputs: tuple[Tensor, ...]) -> int:
        """Return a checksum of the inputs; 0 if the launch is not eligible."""
        plain, here = self._plain, self.is_here()
        for value in inputs:
            if type(value) not in plain or not value.is_contiguous() or not here(value):
                return 0
        return fingerprint(inputs)

    def _eligibility(
        self, lengths: dict[str, int]
    ) -> Callable[[tuple[Tensor, ...]], Ineligible | None]:
        shapes = [tuple(lengths[axis] for axis in spec.shape) for spec in self.spec.inputs]
        expected = list(zip(shapes, self._dtypes, strict=True))
        count, plain, grad_enabled = len(expected), self._plain, self._torch.is_grad_enabled
        here = self.is_here()

        def eligible(inputs: tuple[Tensor, ...]) -> Ineligible | None:
            if len(inputs) != count:
                return _SHAPE
            gradients = grad_enabled()
            for value, (shape, dtype) in zip(inputs, expected, strict=True):
                if type(value) not in plain:
                    return _KIND
                if value.shape != shape:
                    return _SHAPE
                if value.dtype is not dtype or not value.is_contiguous() or not here(value):
                    return _KIND
                if gradients and value.requires_grad:
                    return _AUTOGRAD
            return None

        return eligible


_FLOAT8_NAN = {"torch.float8_e4m3fn": 0x7F, "torch.float8_e4m3fnuz": 0x80}


def poison(tensor: Tensor) -> None:
    """Fill with values that no correct kernel writes: NaN, or an odd number in integers."""
    bits = _FLOAT8_NAN.get(str(tensor.dtype))
    if bits is not None:  # not every PyTorch fills 8-bit floats
        tensor.view(sys.modules["torch"].uint8).fill_(bits)
    elif tensor.is_floating_point():
        tensor.fill_(float("nan"))
    elif not tensor.dtype.is_complex:
        tensor.fill_(1 if str(tensor.dtype) == "torch.bool" else 113)


def loaded_torch() -> Any:  # noqa: ANN401 - the module
    """Return PyTorch if the server has loaded it; the runtime never loads it.

    Raises
    ------
    Refused
        ``torch-missing``.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        raise Refused("torch-missing", detail="this server has not imported PyTorch")
    return torch


def _dtype(torch: Any, name: str) -> Any:  # noqa: ANN401 - a torch.dtype
    if name not in DTYPES or not hasattr(torch, name):
        raise Refused("dtype-unsupported", detail=f"{name} cannot be launched here")
    return getattr(torch, name)
