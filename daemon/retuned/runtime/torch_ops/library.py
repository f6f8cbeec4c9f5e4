"""Library of slots as PyTorch operators: one `torch.library.Library` per family, for clean removal.

``Library.impl`` with a Python body costs about 1 us a call; ``torch.library.custom_op`` costs four
times that. The operator is opaque to ``torch.compile``: graphs compiled before a swap run the new
kernel.
"""

from __future__ import annotations

import keyword
import logging
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from retuned.runtime.core.slots import Slot
from retuned.runtime.core.tables import Run
from retuned.runtime.schema import Refused, Spec, Tensor

log = logging.getLogger(__name__)

NAMESPACE = "retuned"
_DEVICES = ("CPU", "CUDA")


class _Family:
    """Slots of one operator, distinguished by the constant axes."""

    def __init__(self, first: Spec) -> None:
        self._spec = first
        self._places = _places(first)
        self._slots: dict[tuple[int, ...], Slot] = {}

    def add(self, slot: Slot) -> None:
        """Add or replace the slot of one set of constant lengths.

        Raises
        ------
        Refused
            ``op-mismatch`` if its inputs or outputs are not the family's.
        """
        spec = slot.spec
        if _signature(spec) != _signature(self._spec):
            raise Refused("op-mismatch", detail=f"{spec.name} takes other tensors than its family")
        lengths = dict(spec.axes)
        sizes = [lengths[spec.inputs[index].shape[dim]] for index, dim in self._places]
        self._slots[tuple(size for size in sizes if size is not None)] = slot

    def implementation(self) -> Run:
        """Return the dispatcher: constant lengths -> slot."""
        slots, places = self._slots, self._places
        whole = _whole_shape(self._spec, places)
        if whole is not None:
            index = whole

            def dispatch_whole(*inputs: Tensor) -> Any:  # noqa: ANN401 - output or tuple of them
                sizes = inputs[index].shape  # one read if one input has all the lengths
                slot = slots.get(sizes)
                return slot.call(*inputs) if slot is not None else self._stray(sizes)(*inputs)

            return dispatch_whole

        def dispatch(*inputs: Tensor) -> Any:  # noqa: ANN401 - output or tuple of them
            sizes = tuple([inputs[index].shape[dim] for index, dim in places])
            slot = slots.get(sizes)
            return slot.call(*inputs) if slot is not None else self._stray(sizes)(*inputs)

        return dispatch

    def _stray(self, sizes: tuple[int, ...]) -> Run:
        """Return what runs for sizes without a slot: the original, if the family has only one."""
        originals = {id(slot.original): slot.original for slot in self._slots.values()}
        if len(originals) == 1:
            return next(iter(originals.values()))
        raise ValueError(
            f"{NAMESPACE}::{self._spec.op_type} has no slot for sizes {sizes}, "
            f"only for {sorted(self._slots)}"
        )

    def meta(self, torch: Any) -> Run:  # noqa: ANN401 - the module
        """Return the shape function, for graphs that are traced without data."""
        spec = self._spec

        def shapes(*inputs: Tensor) -> Any:  # noqa: ANN401 - as dispatch
            lengths = {
                axis: size
                for value, tensor in zip(inputs, spec.inputs, strict=True)
                for axis, size in zip(tensor.shape, value.shape, strict=True)
            }
            made = [
                torch.empty(
                    [lengths[axis] for axis in tensor.shape],
                    dtype=getattr(torch, tensor.dtype),
                    device="meta",
                )
                for tensor in spec.outputs
            ]
            return made[0] if len(made) == 1 else tuple(made)

        return shapes


class TorchOps:
    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._libraries: dict[str, Any] = {}

    def register(self, op_type: str, slots: Sequence[Slot]) -> Callable[..., Any]:
        """Register a family or add to it, see `Runtime.register_torch_op`.

        Raises
        ------
        ValueError
            Without a slot: the only mistake that has no fallback.
        """
        if not slots:
            raise ValueError(f"{op_type} needs at least one slot")
        name = re.sub(r"\W", "_", op_type)
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = _Family(slots[0].spec)
        for slot in slots:
            try:
                family.add(slot)
            except Refused as error:
                log.error("%s is not added to %s: %s", slot.spec.name, name, error)
        return self._operator(name, family)

    def close(self) -> None:
        """Remove every operator; graphs that use them must be gone."""
        for library in self._libraries.values():
            library._destroy()
        self._libraries.clear()
        self._families.clear()

    def _operator(self, name: str, family: _Family) -> Callable[..., Any]:
        torch = sys.modules.get("torch")
        if torch is None:
            return family.implementation()
        try:
            if name not in self._libraries:
                self._libraries[name] = _define(torch, name, family)
            operator: Callable[..., Any] = getattr(getattr(torch.ops, NAMESPACE), name).default
        except (RuntimeError, AttributeError) as error:
            log.error("no operator %s::%s, a function replaces it: %s", NAMESPACE, name, error)
            return family.implementation()
        return operator


def _define(torch: Any, name: str, family: _Family) -> Any:  # noqa: ANN401 - modules of PyTorch
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    try:
        library.define(f"{name}{_schema(family._spec)}")
        for device in _DEVICES:
            library.impl(name, family.implementation(), device)
        library.impl(name, family.meta(torch), "Meta")
    except RuntimeError:
        library._destroy()
        raise
    return library


def _places(spec: Spec) -> list[tuple[int, int]]:
    """Return where to read the constant lengths: one input's whole shape if it has them all."""
    constant = {axis for axis in spec.constant_axes if spec.locate(axis) is not None}
    for index, tensor in enumerate(spec.inputs):
        if constant and set(tensor.shape) == constant:
            return [(index, dim) for dim in range(len(tensor.shape))]
    return [place for axis in spec.constant_axes if (place := spec.locate(axis)) is not None]


def _whole_shape(spec: Spec, places: list[tuple[int, int]]) -> int | None:
    inputs = {index for index, _ in places}
    if len(inputs) != 1:
        return None
    (index,) = inputs
    dims = [dim for _, dim in places]
    return index if dims == list(range(len(spec.inputs[index].shape))) else None


def _schema(spec: Spec) -> str:
    names = [tensor.name for tensor in spec.inputs]
    plain = [n if n.isidentifier() and not keyword.iskeyword(n) else "" for n in names]
    inputs = ", ".join(f"Tensor {name or f'input{i}'}" for i, name in enumerate(plain))
    outputs = ", ".join(["Tensor"] * len(spec.outputs))
    return f"({inputs}) -> {outputs if len(spec.outputs) == 1 else f'({outputs})'}"


def _signature(spec: Spec) -> object:
    def tensors(side: Sequence[Any]) -> list[tuple[str, tuple[str, ...], str]]:
        return [(tensor.name, tensor.shape, tensor.dtype) for tensor in side]

    kinds = [(name, length is None) for name, length in spec.axes]
    return kinds, tensors(spec.inputs), tensors(spec.outputs)
