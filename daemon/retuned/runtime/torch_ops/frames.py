"""Frame of one running launch of an operator, and the slot that it goes through.

A frame stores the arguments, which of the operator's outputs may still be written to, and whether
the original has run on the arguments. The original runs on them at most once, and never over
outputs that a variant has written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from retuned.runtime.artifacts.loaded import Allocate, loaded_torch
from retuned.runtime.core.slots import Slot
from retuned.runtime.core.tables import Recorder, Run
from retuned.runtime.schema import Spec, Tensor
from retuned.runtime.shadow.sampler import as_outputs

Keyset = Any
"""A `torch.DispatchKeySet`: the keys that a launch still has to pass."""
Call = Callable[[Keyset, Sequence[Any]], Any]
"""(keyset, every argument) -> result of the operator."""
Target = tuple[int, tuple[int, ...]]
"""Position of an argument, and its required lengths."""


class OperatorSlot(Slot):
    """A slot whose launches come through the dispatcher.

    Parameters
    ----------
    original
        The operator's kernel, as a function of the definition's inputs.
    into
        Lets a variant write to the operator's own outputs.
    in_place
        Whether an input is also an output.
    """

    __slots__ = ("in_place", "into")

    def __init__(
        self, spec: Spec, original: Run, *, into: Callable[[Allocate], Allocate], in_place: bool
    ) -> None:
        super().__init__(spec, original)
        self.into = into
        self.in_place = in_place

    def note_captures(self, recorder: Recorder | None) -> None:
        """Record launches in graphs, except for operands that are read and written.

        A node has the addresses of its capture, so a variant in it would write where it still
        reads.
        """
        if not self.in_place:
            super().note_captures(recorder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the arguments of a launch of certain lengths become tensors of the definition."""

    inputs: tuple[Target, ...]
    outputs: tuple[Target | None, ...]
    """In the definition's order; None for results that the operator returns."""
    input_bytes: tuple[int, ...]
    """Of each input that has no gaps."""
    output_bytes: tuple[int, ...]
    """Of each output; 0 for results that the operator returns."""

    def given(self, args: Sequence[Any]) -> list[Tensor]:
        """Return the inputs of the definition.

        Raises RuntimeError if the memory layout does not allow it.
        """
        return [viewed(args[place], shape) for place, shape in self.inputs]


class Frame:
    __slots__ = (
        *("args", "done", "failure", "inputs", "keyset", "outputs", "raw"),
        *("_free", "_plan", "_untouched"),
    )

    def __init__(
        self, plan: Plan, keyset: Keyset, args: Sequence[Any], *, in_place: Sequence[bool]
    ) -> None:
        self._plan = plan
        self.args = args
        self.keyset = keyset
        self.inputs = tuple(plan.given(args))
        self.outputs: list[Tensor | None] = [
            None if target is None else viewed(args[target[0]], target[1])
            for target in plan.outputs
        ]
        """The operator's own outputs, as the definition has them.

        None for results that it returns.
        """
        self.raw: Any = None
        """Result of the operator, once it has run on the arguments."""
        self.done = False
        self.failure: BaseException | None = None
        self._free = [
            (own, size)
            for own, size, both in zip(self.outputs, plan.output_bytes, in_place, strict=True)
            if own is not None and not both
        ]
        self._untouched = True

    def takes(self, inputs: Sequence[Tensor]) -> bool:
        """Whether the original, called with these, must run on the arguments: once, and first."""
        return self._untouched and all(a is b for a, b in zip(inputs, self.inputs, strict=False))

    def serve(self, call: Call) -> None:
        self._untouched = False
        self._free.clear()
        try:
            self.raw = call(self.keyset, self.args)
        except BaseException as error:
            self.failure = error
            raise
        self.done = True

    def give(self, shape: tuple[int, ...], dtype: Any) -> Tensor | None:  # noqa: ANN401 - torch.dtype
        """Return an output that a variant may write to; None if there is none for this shape.

        The caller has checked that the inputs have no gaps.
        """
        self._untouched = False  # from now on the original runs on copies: this may be compared
        for place, (tensor, size) in enumerate(self._free):
            if tensor.shape == shape and tensor.dtype is dtype:
                del self._free[place]
                return tensor if self._is_alone(tensor, size) and _is_plain(tensor) else None
        return None

    def _is_alone(self, own: Tensor, size: int) -> bool:
        """Whether an output has no gaps and shares no memory with an input or another output."""
        if not own.is_contiguous():
            return False
        low = own.data_ptr()
        high = low + size
        for other, length in zip(self.inputs, self._plan.input_bytes, strict=True):
            begin = other.data_ptr()
            if begin < high and low < begin + length:
                return False
        for each, length in zip(self.outputs, self._plan.output_bytes, strict=True):
            if each is not None and each is not own:
                begin = each.data_ptr()
                if begin < high and low < begin + length:
                    return False
        return True

    def ready(self, result: Any) -> tuple[Tensor, ...] | None:  # noqa: ANN401 - of a slot
        """Return the outputs to be delivered; None if the original has delivered them.

        Raises
        ------
        ValueError
            If they are not what the operator would have returned.
        """
        if self.done:
            return None
        values = as_outputs(result)
        for value, own in zip(values, self.outputs, strict=True):
            if own is None or value is own:
                continue
            same = (value.shape, value.dtype, value.device) == (own.shape, own.dtype, own.device)
            if not same:
                raise ValueError(f"an output is {value.dtype} {tuple(value.shape)}")
        return values


def deliver(torch: Any, frame: Frame, outputs: Sequence[Tensor]) -> None:  # noqa: ANN401 - module
    """Copy outputs that are not yet in the memory of the operator's caller."""
    for value, own in zip(outputs, frame.outputs, strict=True):
        if own is None or value is own:
            continue
        if torch.is_inference_mode_enabled():
            own.copy_(value)
            continue
        with torch.inference_mode() if own.is_inference() else torch.no_grad():
            own.copy_(value)


def viewed(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor with other lengths.

    Raises RuntimeError if its memory layout does not allow it.
    """
    return value if value.shape == shape else value.view(shape)


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor may be written to directly, and poisoned before."""
    torch = loaded_torch()
    if tensor.is_inference():
        return bool(torch.is_inference_mode_enabled())
    return not (tensor.requires_grad and torch.is_grad_enabled())
