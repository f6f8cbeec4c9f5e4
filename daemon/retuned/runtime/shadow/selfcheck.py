"""Before a variant may serve: run it beside the original, on this server's shapes and weights.

The lab has proved the variant elsewhere. This proves that what was delivered is that variant and
that it works on this machine: outputs agree, everything is written, nothing before or after the
outputs is, and the inputs stay as they were. Activations are synthetic, and as the definition says
where their numbers mean something; weights are the server's where launches have shown them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from retuned.runtime.artifacts.loaded import LoadedVariant, loaded_torch, poison
from retuned.runtime.core.active_order import Ineligible
from retuned.runtime.core.sample_inputs import make
from retuned.runtime.core.slots import Slot
from retuned.runtime.schema import Key, Refused, Spec, Tensor, TensorSpec, ValueRule, allows
from retuned.runtime.shadow.sampler import Compare, as_outputs, fingerprint

MAX_SHAPES = 6
"""Shapes checked at most, the most frequent first."""
MAX_CHECK_BYTES = 256 << 20
"""Activations and outputs of a checked shape; of larger ones the pool they read from is made
smaller, and what is too large even so is left to the shadow checks."""
_PAD = 64
"""Elements before and after an output; a multiple keeps every alignment."""
_FREE_LENGTHS = (1, 33)
"""Lengths tried on an axis that no guard bounds and no launch has shown."""

Bounds = tuple[tuple[int, int, int], ...]


def self_check(
    variant: LoadedVariant,
    slot: Slot,
    *,
    bounds: Bounds,
    tolerance: float,
    compare: Compare,
) -> int:
    """Compare variant and original; return how many shapes were compared.

    Raises
    ------
    Refused
        ``self-check-failed`` with what differed, or ``self-check-no-shape`` if the guard leaves
        nothing that can be tried here.
    """
    torch = loaded_torch()
    generator = torch.Generator().manual_seed(0x5EED)  # the server's own generator stays untouched
    constants = slot.constants()
    checked = 0
    for number, key in enumerate(_shapes(slot, bounds)):
        chosen = constants[number % len(constants)] if constants else None
        with torch.inference_mode():
            made = _inputs(
                torch,
                slot.spec,
                key,
                constants=chosen,
                rules=_rules(slot.spec, variant.spec),
                generator=generator,
            )
            inputs = tuple(tensor.to(variant.device) for tensor in made)
            _check_one(torch, variant, slot, key, inputs, tolerance=tolerance, compare=compare)
        checked += 1
    if checked == 0:
        raise Refused(
            "self-check-no-shape",
            detail="no launch within the guard was seen and its corners cannot be tried; "
            "order again when there is traffic",
        )
    return checked


def _check_one(
    torch: Any,  # noqa: ANN401 - the module
    variant: LoadedVariant,
    slot: Slot,
    key: Key,
    inputs: tuple[Tensor, ...],
    *,
    tolerance: float,
    compare: Compare,
) -> None:
    variant.prepare(key)
    fenced = _Fenced(torch, variant.device)
    for index, layout in variant.repacked:
        variant.packed.pack(inputs[index], layout)
    before = fingerprint(inputs)
    try:
        output = variant.launcher_into(key, fenced.allocate)(inputs)
    except Exception as error:  # a stranger's kernel: whatever it raises is its failure
        raise _failed(key, f"it raised {error!r:.200}") from error
    if isinstance(output, Ineligible):
        raise _failed(key, f"it does not take the server's tensors: {output.reason}")
    if fingerprint(inputs) != before:
        raise _failed(key, "it changed its inputs")
    if not fenced.intact():
        raise _failed(key, "it wrote outside its outputs")
    try:
        comparison = compare(as_outputs(output), as_outputs(slot.original(*inputs)), tolerance)
    except Exception as error:  # the original refuses the shape, or outputs do not compare
        raise _failed(key, f"outputs cannot be compared: {error!r:.200}") from error
    if comparison.nonfinite or comparison.ratio > 1.0:
        what = "NaN or Inf differ" if comparison.nonfinite else f"ratio {comparison.ratio:.3g}"
        raise _failed(key, f"it disagrees with the original: {what}")


_SIZES = {
    **dict.fromkeys(("bool", "int8", "uint8", "float8_e4m3fn", "float8_e4m3fnuz"), 1),
    **dict.fromkeys(("float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "float32"), 4),
}
"""Bytes per element; any other type counts as the largest."""


class _Fenced:
    """Allocates outputs between fences and knows whether a fence was written to."""

    def __init__(self, torch: Any, device: Any) -> None:  # noqa: ANN401 - module, torch.device
        self._torch = torch
        self._device = device
        self._flat: list[tuple[Tensor, int]] = []

    def allocate(self, shape: tuple[int, ...], *, dtype: Any) -> Tensor:  # noqa: ANN401
        count = 1
        for length in shape:
            count *= length
        flat = self._torch.empty(count + 2 * _PAD, dtype=dtype, device=self._device)
        flat.view(self._torch.uint8).zero_()
        self._flat.append((flat, count))
        inner = flat[_PAD : _PAD + count].view(shape)
        poison(inner)
        return inner

    def intact(self) -> bool:
        """Whether every fence still holds zeros, bit by bit."""
        for flat, count in self._flat:
            for fence in (flat[:_PAD], flat[_PAD + count :]):
                if fence.contiguous().view(self._torch.uint8).any():
                    return False
        return True


def _shapes(slot: Slot, bounds: Bounds) -> Iterator[Key]:
    """Shapes that launches have shown, within the guard, most frequent first; else its corners."""
    counts = slot.launches()
    seen = [key for key in sorted(counts, key=lambda k: -counts[k]) if allows(bounds, key)]
    fitting = [key for key in seen if 0 not in key and _bytes(slot.spec, key) <= MAX_CHECK_BYTES]
    if fitting:
        yield from fitting[:MAX_SHAPES]
        return
    shrunk = [_shrunk(slot.spec, key) for key in seen if 0 not in key]
    found = list(dict.fromkeys(key for key in shrunk if key is not None))
    if found:
        yield from found[:MAX_SHAPES]
        return
    for key in dict.fromkeys(_corners(bounds, len(slot.spec.variable_axes))):
        if 0 not in key and _bytes(slot.spec, key) <= MAX_CHECK_BYTES:
            yield key


def _shrunk(spec: Spec, key: Key) -> Key | None:
    """Return a key with a smaller pool to read from, such as a cache of pages; None without one.

    A cache takes most of a device, and there is no room for another. What a launch computes does
    not grow with an axis that no output has: half of it, and half of that, until it fits. The guard
    is about what was timed; a variant that cannot do with a smaller pool is refused.
    """
    given = {axis for output in spec.outputs for axis in output.shape}
    free = [i for i, axis in enumerate(spec.variable_axes) if axis not in given]
    lengths = list(key)
    while _bytes(spec, tuple(lengths)) > MAX_CHECK_BYTES:
        largest = max(free, key=lambda i: lengths[i], default=None)
        if largest is None or lengths[largest] == 1:
            return None
        lengths[largest] = -(-lengths[largest] // 2)
    return tuple(lengths)


def _corners(bounds: Bounds, axes: int) -> Iterator[Key]:
    """All lowest and all highest lengths together: relations such as T <= S hold there.

    Several axes of which one is not bounded may be related in ways nobody can guess; then nothing.
    """
    limits = {axis: (low, high) for axis, low, high in bounds}
    if axes == 0:
        yield ()
    elif len(limits) == axes:
        yield tuple(limits[axis][0] for axis in range(axes))
        yield tuple(limits[axis][1] for axis in range(axes))
    elif axes == 1:
        for length in _FREE_LENGTHS:
            yield (length,)


def _rules(mine: Spec, theirs: Spec) -> tuple[ValueRule | None, ...]:
    """Return how each input is made up: as the server's definition says, else the artifact's.

    A server of an older version knows no rules; they are no part of what is launched.
    """
    pairs = zip(mine.inputs, theirs.inputs, strict=True)
    return tuple(own.values or delivered.values for own, delivered in pairs)


def _inputs(
    torch: Any,  # noqa: ANN401 - the module
    spec: Spec,
    key: Key,
    *,
    constants: tuple[Tensor, ...] | None,
    rules: tuple[ValueRule | None, ...],
    generator: Any,  # noqa: ANN401 - torch.Generator
) -> tuple[Tensor, ...]:
    lengths = spec.lengths(key)
    values: list[Tensor] = []
    given = iter(constants or ())
    for tensor, rule in zip(spec.inputs, rules, strict=True):
        if tensor.constant and constants is not None:
            values.append(next(given))
            continue
        if rule is not None:
            values.append(make(torch, tensor, rule, lengths, generator=generator))
            continue
        shape = tuple(lengths[axis] for axis in tensor.shape)
        values.append(_synthetic(torch, tensor, shape, generator=generator))
    return tuple(values)


def _synthetic(torch: Any, spec: TensorSpec, shape: tuple[int, ...], *, generator: Any) -> Tensor:  # noqa: ANN401
    dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point:
        if spec.constant:  # scales and norm weights: away from zero
            return torch.rand(shape, generator=generator).add_(0.5).to(dtype)
        return torch.randn(shape, generator=generator).to(dtype)
    if spec.constant and spec.dtype == "int8":
        return torch.randint(-127, 128, shape, generator=generator, dtype=dtype)
    raise Refused(
        "self-check-no-shape",
        detail=f"'{spec.name}' holds numbers with a meaning ({spec.dtype}); none can be made up",
    )


def _bytes(spec: Spec, key: Key) -> int:
    lengths = spec.lengths(key)
    total = 0
    for tensor in (*spec.inputs, *spec.outputs):
        if not tensor.constant:
            count = _SIZES.get(tensor.dtype, 8)
            for axis in tensor.shape:
                count *= lengths[axis]
            total += count
    return total


def _failed(key: Key, detail: str) -> Refused:
    return Refused("self-check-failed", detail=f"at {key}: {detail}")
