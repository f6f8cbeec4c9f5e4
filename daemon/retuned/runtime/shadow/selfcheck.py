"""Self-check before a variant may serve: it runs beside the original, on this server's shapes.

The lab has validated the variant elsewhere. The self-check verifies that the delivered artifact is
that variant and works on this machine: outputs agree, every element is written, nothing before or
after the outputs is, and the inputs are unchanged. Activations are synthetic, and follow the rules
of the definition where their numbers have a meaning. Weights are the server's if launches have used
them.
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
MAX_CHECK_BYTES = 256 << 20
"""Maximum bytes of activations and outputs of a checked shape.

For larger shapes the pool they read from is made smaller. Shapes that are still too large are only
covered by the shadow checks.
"""
_PAD = 64
"""Elements before and after an output; a multiple keeps every alignment."""
_FREE_LENGTHS = (1, 33)
"""Lengths tried on an axis without a bound and without observed launches."""

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
        ``self-check-failed`` with what differed, or ``self-check-no-shape`` if the guard leaves no
        shape that can be tried here.
    """
    torch = loaded_torch()
    generator = torch.Generator().manual_seed(0x5EED)  # the server's own generator is not used
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
            detail="no launch within the guard was observed and its corners cannot be tried; "
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
    except Exception as error:  # untrusted kernel: any exception is its failure
        raise _failed(key, f"it raised {error!r:.200}") from error
    if isinstance(output, Ineligible):
        raise _failed(key, f"it does not accept the server's tensors: {output.reason}")
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
    """Allocates outputs between fences and detects writes to a fence."""

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
        """Whether every fence still contains zeros, bit by bit."""
        for flat, count in self._flat:
            for fence in (flat[:_PAD], flat[_PAD + count :]):
                if fence.contiguous().view(self._torch.uint8).any():
                    return False
        return True


def _shapes(slot: Slot, bounds: Bounds) -> Iterator[Key]:
    """Yield shapes of observed launches within the guard, most frequent first; else its corners."""
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

    A cache fills most of a device, so memory for another is missing. The computation of a launch
    does not grow with an axis that no output has; that axis is halved until the shape fits. The
    guard is for timed shapes; a variant that cannot run with a smaller pool is refused.
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
    """Yield all lowest and all highest lengths together: relations such as T <= S are true there.

    Several axes, one of them without a bound, may have unknown relations; then nothing is yielded.
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
    """Return how each input is generated: by the server's definition, else by the artifact's.

    A server of an older version has no rules; they are not part of what is launched.
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
        detail=f"'{spec.name}' has numbers with a meaning ({spec.dtype}) but no rule for them",
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
