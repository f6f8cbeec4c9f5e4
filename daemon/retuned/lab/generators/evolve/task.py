"""What is evolved, by which rules and for which device: the same for both ways of evolving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retuned.contract import Definition, Solution, Workload
from retuned.errors import UsageError
from retuned.lab.generators.evolve.config import EvolveRules
from retuned.lab.generators.evolve.device import DeviceBrief
from retuned.lab.generators.evolve.dialects import Dialect, dialect_of
from retuned.lab.generators.evolve.knowledge import choose
from retuned.lab.generators.evolve.prompts import Brief

_KNOWLEDGE_CHARS = 6_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One kernel that variants are made of.

    Raises
    ------
    UsageError
        If variants in the incumbent's language are not evolved, or it is of another definition.
    """

    definition: Definition
    """What is computed."""
    incumbent: Solution
    """The variant in production: the start, and whose headers variants may include."""
    rules: EvolveRules
    """How the search goes, how many variants, and sizes."""
    facts: DeviceBrief
    """The device, for the prompts."""
    model: str
    """Name of the model, for the record."""
    seed: int
    """Decides choices; the same seed, history and answers give the same requests."""
    hint: str = ""
    """A person's notes on the kernel."""

    def __post_init__(self) -> None:
        """Refuse what cannot be evolved."""
        if self.incumbent.definition != self.definition.name:
            raise UsageError(f"{self.incumbent.name} is of {self.incumbent.definition}")
        dialect_of(self.incumbent.language)

    @property
    def dialect(self) -> Dialect:
        """How variants in the incumbent's language are written."""
        return dialect_of(self.incumbent.language)

    def require(self, definition: Definition) -> None:
        """Refuse another definition.

        Raises
        ------
        UsageError
            If it is one.
        """
        if definition.name != self.definition.name:
            raise UsageError(
                f"this generator evolves {self.definition.name}, not {definition.name}"
            )

    def brief(self, workloads: Sequence[Workload]) -> Brief:
        """Return what every prompt is made from."""
        return Brief(
            definition=self.definition,
            workloads=tuple(w for w in workloads if w.definition == self.definition.name),
            dialect=self.dialect,
            facts=self.facts,
            headers=self.incumbent,
            hint=self.hint,
            knowledge=choose(
                self.incumbent.language, self.definition.op_type, limit=_KNOWLEDGE_CHARS
            ),
        )
