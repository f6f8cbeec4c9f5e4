"""Users' own kernels: one file defines the computation, its inputs and its variants.

A file is data (strict YAML) with two kinds of code. Device code meets the same static contract as
every candidate. The float64 reference is checked against an allow-list for formulas and runs in a
child process without files, network or much memory.
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
