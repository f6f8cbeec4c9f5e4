"""Where a variant comes from, written into the variant itself, so that the history is the state."""

from __future__ import annotations

import re
from dataclasses import dataclass

from retuned.contract import Digest, Solution

_FORM = re.compile(r"evolve island=(\d{1,3}) step=(\d{1,6}) model=([\x21-\x7e]{1,120})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Who proposed a variant, from what."""

    island: int
    """Population it was born on."""
    step: int
    """Number of the request for a variant, from 0, over all islands."""
    parent: Digest | None
    """Variant it was made from; None where it was made from the reference."""
    prompt: Digest
    """Digest of the request."""
    model: str
    """Name of the model."""

    def author(self) -> str:
        """Return the value of `Solution.author`; parent and prompt have separate fields.

        Examples
        --------
        >>> zero = "sha256:" + "0" * 64
        >>> Lineage(island=1, step=4, parent=None, prompt=zero, model="m x").author()
        'evolve island=1 step=4 model=m_x'
        """
        model = re.sub(r"[^\x21-\x7e]", "_", self.model)[:120] or "unnamed"
        return f"evolve island={self.island} step={self.step} model={model}"


def lineage_of(solution: Solution) -> Lineage | None:
    """Read it back; None for variants of other generators."""
    found = _FORM.fullmatch(solution.author)
    if found is None or solution.prompt is None:
        return None
    return Lineage(
        island=int(found[1]),
        step=int(found[2]),
        parent=solution.parents[0] if solution.parents else None,
        prompt=solution.prompt,
        model=found[3],
    )
