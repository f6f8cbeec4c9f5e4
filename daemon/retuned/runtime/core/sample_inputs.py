"""Sample inputs with valid meaning: table indices, lengths, routes, positive scales.

A self-check needs inputs. An index beyond its table would make the server's own code read invalid
memory. The definition gives the rules; they are checked before a number is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from retuned.runtime.core.grid import parse_expression
from retuned.runtime.schema import Refused, Tensor, TensorSpec, ValueRule

_WHOLE = {
    "int64": 2**63 - 1,
    "int32": 2**31 - 1,
    "int8": 2**7 - 1,
    "uint8": 2**8 - 1,
    "bool": 1,
}
_EXACT = 2**24
"""Whole numbers up to here are exact in float32."""


def make(
    torch: Any,  # noqa: ANN401 - the module
    spec: TensorSpec,
    rule: ValueRule,
    lengths: Mapping[str, int],
    *,
    generator: Any,  # noqa: ANN401 - torch.Generator
) -> Tensor:
    """Generate an input on the CPU according to its rule.

    Raises
    ------
    Refused
        ``values-invalid`` if the rule is invalid at these lengths or for this type.
    """
    shape = tuple(lengths[axis] for axis in spec.shape)
    dtype = getattr(torch, spec.dtype)
    if rule.like == "uniform":
        low, high = (_real(spec, bound) for bound in (rule.low, rule.high))
        if not dtype.is_floating_point or low > high:
            raise _invalid(spec, f"real numbers from {low:g} to {high:g} as {spec.dtype}")
        drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
        return (drawn * (high - low) + low).to(dtype)
    return _whole(torch, spec, rule, shape, lengths, generator=generator).to(dtype)


def _whole(
    torch: Any,  # noqa: ANN401 - the module
    spec: TensorSpec,
    rule: ValueRule,
    shape: tuple[int, ...],
    lengths: Mapping[str, int],
    *,
    generator: Any,  # noqa: ANN401 - torch.Generator
) -> Tensor:
    """Draw whole numbers in 64 bits; the bounds must fit the element type."""
    count = math.prod(shape)
    last = shape[-1] if shape else 1
    if rule.like in ("permutation", "rows-permuted"):
        length = count if rule.like == "permutation" else last
        _check_bounds(spec, 0, max(0, length - 1))
        keys = torch.rand((count // max(length, 1), length), generator=generator)
        return keys.argsort(dim=1).reshape(shape)
    low, high = (_integer(spec, bound, lengths) for bound in (rule.low, rule.high))
    _check_bounds(spec, low, high)
    drawn = torch.randint(low, high + 1, shape, generator=generator, dtype=torch.int64)
    if rule.like == "offsets" and count:
        drawn = drawn.sort(dim=-1).values if shape else drawn
        drawn[..., -1] = high
    return drawn


def _check_bounds(spec: TensorSpec, low: int, high: int) -> None:
    largest = _WHOLE.get(spec.dtype, _EXACT)
    least = 0 if spec.dtype in ("bool", "uint8") else -largest - 1
    if not least <= low <= high <= min(largest, 2**62):
        raise _invalid(spec, f"whole numbers from {low} to {high} as {spec.dtype}")


def _real(spec: TensorSpec, bound: float | str) -> float:
    if isinstance(bound, str) or not math.isfinite(bound):
        raise _invalid(spec, f"the bound {bound!r:.80} is not a real number")
    return float(bound)


def _integer(spec: TensorSpec, bound: float | str, lengths: Mapping[str, int]) -> int:
    if not isinstance(bound, str):
        if not math.isfinite(bound) or bound != int(bound):
            raise _invalid(spec, f"the bound {bound} is not a whole number")
        return int(bound)
    try:
        return parse_expression(bound, lengths)(lengths)
    except Refused as error:
        raise _invalid(spec, error.detail) from error


def _invalid(spec: TensorSpec, problem: str) -> Refused:
    return Refused("values-invalid", detail=f"'{spec.name}' cannot be generated: {problem}")
