"""Users' own kernels: one file says what a kernel computes, how to make inputs, what to try.

A file is data (strict YAML) with two kinds of code in it: device code, which meets the same static
contract as every candidate, and a float64 reference, which is checked against a short list of what
a formula needs and runs in a child process without files, network or much memory.
"""

from retuned.catalog.user.entries import entry_of
from retuned.catalog.user.file import (
    DefinitionInvalid,
    definition_files,
    load_definition,
    load_definitions,
)
from retuned.catalog.user.records import (
    Distribution,
    InputRecipe,
    LiftedFrom,
    OwnDefinition,
    OwnTraces,
    OwnVariant,
)
from retuned.catalog.user.validation import Fault, faults

__all__ = [
    "DefinitionInvalid",
    "Distribution",
    "Fault",
    "InputRecipe",
    "LiftedFrom",
    "OwnDefinition",
    "OwnTraces",
    "OwnVariant",
    "definition_files",
    "entry_of",
    "faults",
    "load_definition",
    "load_definitions",
]
