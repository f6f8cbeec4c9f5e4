"""Where a variant comes from, written into the variant itself, so that the history is the state."""

from __future__ import annotations

import re
from dataclasses import dataclass

from retuned.contract import Digest, Solution

_FORM = re.compile(
    r"evolve island=(\d{1,3}) step=(\d{1,6}) parent=(none|sha256:[0-9a-f]{64}) "
    r"prompt=(sha256:[0-9a-f]{64}) model=([\x21-\x7e]{1,200})"
)


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
        """Return it as `Solution.author`.

        Examples
        --------
        >>> zero = "sha256:" + "0" * 64
        >>> Lineage(island=1, step=4, parent=None, prompt=zero, model="m x").author()[:43]
        'evolve island=1 step=4 parent=none prompt=s'
        """
        model = re.sub(r"[^\x21-\x7e]", "_", self.model)[:200] or "unnamed"
        return (
            f"evolve island={self.island} step={self.step} parent={self.parent or 'none'} "
            f"prompt={self.prompt} model={model}"
        )


def lineage_of(solution: Solution) -> Lineage | None:
    """Read it back; None for variants of other generators."""
    found = _FORM.fullmatch(solution.author)
    if found is None:
        return None
    island, step, parent, prompt, model = found.groups()
    return Lineage(
        island=int(island),
        step=int(step),
        parent=None if parent == "none" else parent,
        prompt=prompt,
        model=model,
    )
