"""The launches of one Triton variant: one or several, with the scratch that they share.

Every step is a launch of its own, in order, on the current stream: what one has written the next
may read. The lab and the server use this same code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retuned.runtime.precompiled_triton import Shipped
from retuned.runtime.spec import Tensor
from retuned.runtime.triton_launch import Launch, TritonKernel
from retuned.runtime.triton_plan import Declared, plan_launches

_KEPT = 256
"""Lengths whose launches are kept ready; more start over."""


class TritonSteps:
    """One checked and imported variant: all of its launches.

    Parameters are those of `plan_launches`, and the compiled code that was delivered.

    Raises
    ------
    Refused
        As `plan_launches`, or ``triton-missing``.
    """

    def __init__(
        self,
        source: str,
        *,
        entry: str,
        params: Mapping[str, int | str],
        grid: Sequence[str],
        tensors: Sequence[str],
        axes: Sequence[str],
        scratch_bytes: int = 0,
        steps: Declared = (),
        scratch: Declared = (),
        shipped: Shipped | None = None,
    ) -> None:
        self.plan = plan_launches(
            source,
            entry=entry,
            params=params,
            grid=grid,
            tensors=tensors,
            axes=axes,
            scratch_bytes=scratch_bytes,
            steps=steps,
            scratch=scratch,
        )
        names = [*tensors, *(each.name for each in self.plan.scratch)]
        self.kernels = tuple(
            TritonKernel(
                source,
                entry=step.entry,
                params=step.params,
                grid=step.grid,
                tensors=names,
                axes=axes,
                scratch_bytes=scratch_bytes,
                shipped=shipped,
            )
            for step in self.plan.steps
        )
        self._tensors = len(tensors)
        self._torch = __import__("torch")  # TritonKernel has said so if it is missing
        self._ready: dict[tuple[int, ...], Launch] = {}

    @property
    def interpreted(self) -> bool:
        """Whether launches run in Python."""
        return self.kernels[0].interpreted

    def is_prepared(self, lengths: Sequence[int], *, device: Any) -> bool:  # noqa: ANN401 - torch.device
        """Whether launches at these lengths would run without compiling."""
        return all(kernel.is_prepared(lengths, device=device) for kernel in self.kernels)

    def prepare(self, lengths: Sequence[int], *, dtypes: Sequence[str], device: Any) -> None:  # noqa: ANN401 - torch.device
        """Compile and load every step; nothing is launched.

        Parameters
        ----------
        lengths
            Length of every axis.
        dtypes
            Element types of inputs, then outputs.
        device
            Where it will run.

        Raises
        ------
        Refused
            As `TritonKernel.prepare`, ``scratch-invalid`` or ``scratch-too-large``.
        """
        self.plan.check_at(lengths)
        every = [*dtypes, *(each.dtype for each in self.plan.scratch)]
        for kernel in self.kernels:
            kernel.prepare(lengths, dtypes=every, device=device)

    def compile_at(self, lengths: Sequence[int], *, dtypes: Sequence[str]) -> list[Any]:
        """Compile every step as `prepare` would, and load none; see `TritonKernel.compile_at`."""
        every = [*dtypes, *(each.dtype for each in self.plan.scratch)]
        return [kernel.compile_at(lengths, dtypes=every) for kernel in self.kernels]

    def cross_compile(
        self,
        target: Any,  # noqa: ANN401 - triton.backends.compiler.GPUTarget
        lengths: Sequence[int],
        *,
        dtypes: Sequence[str],
    ) -> list[Any]:
        """Compile every step for a device that need not be here; see `TritonKernel`."""
        every = [*dtypes, *(each.dtype for each in self.plan.scratch)]
        return [kernel.cross_compile(target, lengths, dtypes=every) for kernel in self.kernels]

    def at(self, lengths: Sequence[int], *, device: Any) -> Launch:  # noqa: ANN401 - torch.device
        """Return what launches every step; tensors are inputs, outputs, then scratch.

        Raises
        ------
        Refused
            ``not-prepared``, or as `Plan.check_at`.
        """
        self.plan.check_at(lengths)
        launches = [kernel.at(lengths, device=device) for kernel in self.kernels]
        zeroed = [
            self._tensors + index for index, each in enumerate(self.plan.scratch) if each.zeroed
        ]
        if len(launches) == 1 and not zeroed:
            return launches[0]
        byte = self._torch.uint8  # not every PyTorch fills 8-bit floats

        def launch(tensors: Sequence[Tensor]) -> None:
            for index in zeroed:
                tensors[index].view(byte).zero_()
            for each in launches:
                each(tensors)

        return launch

    def launch(self, tensors: Sequence[Tensor], lengths: Sequence[int]) -> None:
        """Run all steps once; compiles where `prepare` has not, and makes scratch not handed in.

        Raises
        ------
        Refused
            As `prepare`, or ``tensor-unaligned``.
        """
        device = tensors[0].device
        ready = self._ready.get(tuple(lengths))
        if ready is None:
            given = tensors[: self._tensors] if self.plan.scratch else tensors
            dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in given]
            self.prepare(lengths, dtypes=dtypes, device=device)
            ready = self.at(lengths, device=device)
            if len(self._ready) >= _KEPT:
                self._ready.clear()
            self._ready[tuple(lengths)] = ready
        if self.plan.scratch and len(tensors) == self._tensors:
            tensors = [*tensors, *self.spaces(lengths, device=device)]
        ready(tensors)

    def spaces(self, lengths: Sequence[int], *, device: Any) -> list[Tensor]:  # noqa: ANN401 - torch.device
        """Return fresh scratch, with whatever its memory held."""
        torch = self._torch
        return [
            torch.empty(size // each.item_bytes, dtype=getattr(torch, each.dtype), device=device)
            for size, each in zip(self.plan.sizes_at(lengths), self.plan.scratch, strict=True)
        ]
