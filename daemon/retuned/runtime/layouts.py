"""Repack constant inputs (weights) to the layout a variant asked for.

Works on NumPy arrays and PyTorch tensors alike, so that the lab and the server share it.
"""

from __future__ import annotations

from typing import Any


def repack(weight: Any, layout: str) -> Any:  # noqa: ANN401 - ndarray or Tensor, neither may be imported here
    """Return `weight` of shape (N, K) in `layout`, contiguous.

    ``as-is``: unchanged. ``transposed``: (K, N). ``panels-P``: (N / P, K, P), so that P outputs of
    one k lie side by side.

    Raises
    ------
    ValueError
        If the layout is unknown or N is no multiple of P.
    """
    if layout == "as-is":
        return weight
    if layout == "transposed":
        return _contiguous(weight.swapaxes(0, 1))
    prefix, _, digits = layout.partition("-")
    if prefix != "panels" or not digits.isdigit() or int(digits) < 1:
        raise ValueError(f"unknown weight layout '{layout}'")
    panel = int(digits)
    rows, depth = weight.shape
    if rows % panel:
        raise ValueError(f"layout '{layout}' needs rows divisible by {panel}, got {rows}")
    return _contiguous(weight.reshape(rows // panel, panel, depth).swapaxes(1, 2))


def _contiguous(value: Any) -> Any:  # noqa: ANN401 - see repack
    return value.contiguous() if hasattr(value, "contiguous") else value.copy()
