"""Sampled outputs of a lifted kernel on drawn inputs, computed in a separate child."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from retuned.catalog.user import OwnDefinition, entry_of
from retuned.contract import Language
from retuned.lab.number_formats import widened
from retuned.lab.reference.incumbent import IncumbentOracle
from retuned.lifting.lift import Lifted
from retuned.lifting.recognition import (
    FAMILIES,
    ROWS,
    SampledLaunch,
    assignments,
    fitted,
    recognise,
)

Ask = Callable[[OwnDefinition], Sequence[SampledLaunch]]


def draws_of(own: OwnDefinition) -> tuple[SampledLaunch, ...]:
    """Run the live kernel's source on every family and number of rows.

    Raises
    ------
    HarnessError
        If it cannot be run here.
    MissingDependency
        If the toolchain is missing.
    """
    entry = entry_of(own, Language.TRITON)
    (variable,) = own.definition.variable_axes
    oracle = IncumbentOracle(own.definition, entry.incumbent)
    seed = int.from_bytes(hashlib.sha256(own.name.encode()).digest()[:4], "little")
    found = []
    try:
        for number, rows in enumerate(ROWS):
            for family in FAMILIES:
                if family in own.families:
                    inputs = entry.inputs({variable: rows}, seed=seed + number, family=family)
                    outputs = oracle.compute(**inputs)
                    wide = {name: widened(array) for name, array in inputs.items()}
                    found.append(SampledLaunch(inputs=wide, outputs=outputs))
    finally:
        oracle.close()
    return tuple(found)


def with_structures(lifted: Lifted, ask: Ask = draws_of) -> Lifted:
    """Return a recognised kernel with the catalog's structures; others unchanged.

    Raises
    ------
    RetunedError
        If the live kernel cannot run here, or the structures do not fit it.
    """
    own = lifted.own
    if not own.judged_by_incumbent or next(assignments(own), None) is None:
        return lifted
    found = recognise(own, ask(own))
    return lifted if found is None else fitted(lifted, found)


__all__ = ["Ask", "draws_of", "with_structures"]
