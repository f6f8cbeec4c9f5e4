"""What a search package is to us: a program that asks, and stands still until it is answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from retuned.errors import Refused, TemporaryError
from retuned.ports import ChatAnswer, ChatRequest


class BackendFailed(Refused):
    """The package died, fell silent, or said what makes no sense; it is not asked again."""

    code = "backend-failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a package begins with."""

    program: str
    """The first program."""
    system: str
    """What it says to its model before each question."""
    language: str
    """As fences in answers name it."""
    suffix: str
    """Of the program's file."""
    iterations: int
    """Variants it may ask its model for."""
    islands: int
    """Populations that live apart."""
    answer_tokens: int
    """Longest answer of the model."""
    seed: int
    """For its choices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAsked:
    """The package wants an answer of its model."""

    number: int
    """Of the question, from 0."""
    request: ChatRequest
    """What it asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramAsked:
    """The package wants to know what a program is worth."""

    number: int
    """Of the question, from 0."""
    text: str
    """The program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What the lab says of a program."""

    metrics: Mapping[str, float]
    """``combined_score``, ``correct`` and ``speedup``."""
    artifacts: Mapping[str, str]
    """Sentences for the package's next prompt."""


class Package(Protocol):
    """A search package that runs, and stands still while nobody answers it."""

    name: str
    """Of the package."""

    def start(self, opening: Opening) -> None:
        """Begin.

        Raises
        ------
        BackendFailed
            If it cannot be started.
        """
        ...

    def next(self) -> ModelAsked | ProgramAsked | None:
        """Return what it wants to know; None when it has ended.

        Raises
        ------
        BackendFailed
            If it died, fell silent or said what makes no sense.
        """
        ...

    def say(self, asked: ModelAsked, answer: ChatAnswer | Refused | TemporaryError) -> None:
        """Give it the model's answer, or say that there is none."""
        ...

    def tell(self, asked: ProgramAsked, worth: Worth) -> None:
        """Give it the lab's."""
        ...

    def close(self) -> None:
        """End it, and whatever it started."""
        ...
