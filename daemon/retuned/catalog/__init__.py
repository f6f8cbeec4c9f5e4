"""Kernel definitions that ship with Retuned: reference, inputs, incumbent and search spaces.

Sources are C++ for the CPU backend and Triton for GPUs (``sources/``); definitions carry their
float64 reference (``references/``).
"""

from retuned.catalog.entry import Cost, KernelEntry, Space
from retuned.catalog.family import Family
from retuned.catalog.registry import (
    Binding,
    families,
    forget,
    get,
    languages,
    learn,
    own_definition,
    own_definitions,
    recognise,
)

__all__ = [
    "Binding",
    "Cost",
    "Family",
    "KernelEntry",
    "Space",
    "families",
    "forget",
    "get",
    "languages",
    "learn",
    "own_definition",
    "own_definitions",
    "recognise",
]
