"""How it is said what a stranger's kernel may turn out to compute.

A pattern says roles: tensors with symbolic shapes, and real arguments. It is matched by shapes and
element types alone; whether a kernel really computes it is decided by what it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Wide = npt.NDArray[np.float64]
Arrays = Mapping[str, Wide]
Numbers = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One source structure for a pattern, one program per row or per part of a row."""

    structure: str
    """Name, as the catalog's."""
    function: str
    """Of the source."""
    grid: str
    """Programs, over ``{M}``, the lengths by symbol, and BLOCK."""
    whole: bool
    """Whether BLOCK has to cover a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """What a kernel may compute."""

    name: str
    """Operator of the catalog."""
    inputs: Mapping[str, tuple[str, ...]]
    """Role -> symbols of its shape; M is the variable one. ``2*I`` is twice the length of I."""
    outputs: Mapping[str, tuple[str, ...]]
    """The same; the first has the element type of the first input."""
    optional: frozenset[str]
    """Outputs that a kernel need not have: it has all of them, or none."""
    numbers: Mapping[str, float | None]
    """Role of a real argument -> what holds without one; None where a kernel must have it."""
    compute: Callable[[Arrays, Numbers], dict[str, Wide]]
    """In float64."""
    reference: str
    """The same as the text of a definition's reference: ``{role}`` for names and numbers."""
    returns: Mapping[str, str]
    """Output role -> expression of the reference."""
    source: str
    """File of the catalog."""
    arguments: tuple[str, ...]
    """Of every function of the source but BLOCK: roles, symbols, or expressions over them."""
    row: str
    """Symbol of a row's length, which BLOCK is about."""
    shapes: tuple[Shape, ...]
    """Structures."""
    alike: tuple[str, ...] = ()
    """Inputs that may change places without anything else changing; one order is looked at."""
