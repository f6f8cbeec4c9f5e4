"""Lessons of live proofs: what did not hold in a server is not proposed to it again. Pure.

A lesson is in force for the server that it was learned from. It ends when that server changes, or
when a person lifts it; never by time alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pydantic import AwareDatetime, Field

from retuned.contract import Digest, Guard, Name, Record
from retuned.stages.proposal.propose import Refusal, RefusalReason
from retuned.stages.proposal.tables import is_tunable

BUSY_BORDERS = (0.50, 0.85)
"""Shares of busy time between the classes of servers: the host sets the pace, both, the GPU."""
_NEAR = 0.10
"""Shares that differ by less are of one class: one server measured twice is the same server."""
_MORE = 2.0
"""A claim of so many times the failed one is another claim."""


class ServerKey(Record):
    """What a lesson depends on; an unknown part equals every other."""

    environment: Digest
    engine: str = Field(default="", max_length=200)
    """Name and version, such as ``vllm 0.33.0``; empty while unknown."""
    graphs: bool | None = None
    """Whether most steps run in captured graphs; None while unknown."""
    busy_ratio: float | None = Field(default=None, ge=0.0, le=1.0)
    """Share of a step in which the GPU works; None while unknown."""

    def is_as(self, other: ServerKey) -> bool:
        """Whether both are the same server, as far as is known.

        Examples
        --------
        >>> key = ServerKey(environment="sha256:" + "0" * 64, engine="vllm 0.33.0", busy_ratio=0.3)
        >>> key.is_as(key.model_copy(update={"busy_ratio": 0.9}))
        False
        >>> key.is_as(key.model_copy(update={"engine": "", "busy_ratio": 0.35}))
        True
        """
        return (
            self.environment == other.environment
            and (not self.engine or not other.engine or self.engine == other.engine)
            and (None in (self.graphs, other.graphs) or self.graphs is other.graphs)
            and _same_pace(self.busy_ratio, other.busy_ratio)
        )


def _same_pace(one: float | None, other: float | None) -> bool:
    if one is None or other is None or abs(one - other) < _NEAR:
        return True
    return _busy_class(one) == _busy_class(other)


def _busy_class(busy_ratio: float) -> int:
    return sum(busy_ratio > border for border in BUSY_BORDERS)


class LessonKind(StrEnum):
    """What was shown."""

    HARMS = "harms"
    NO_MEASURABLE_EFFECT = "no-measurable-effect"


class Lesson(Record):
    """A claim that a live proof did not confirm."""

    proposal: str
    experiment: str
    definition: Name
    guard: Guard
    """Shapes that the swap was for."""
    artifacts: tuple[Digest, ...]
    """What was swapped, and the variant that it was made from."""
    key: ServerKey
    kind: LessonKind
    reason: str = Field(max_length=64)
    """Reason code of the proof."""
    sentence: str = Field(max_length=1000)
    """The proof in one sentence."""
    claimed_saving: float = Field(ge=0.0, le=1.0)
    """Share of kernel time that the experiment claimed to save."""
    claimed_speedup: float = Field(gt=0.0)
    effect: float | None = None
    """Log ratio of step time that was measured; None without one."""
    low: float | None = None
    high: float | None = None
    pairs: int = Field(default=0, ge=0)
    at: AwareDatetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapClaim:
    """What an experiment claims now."""

    definition: str
    guard: Guard
    artifact: Digest
    saving: float
    """Share of kernel time."""
    key: ServerKey
    """The server that it would be swapped into."""


def holds_against(lesson: Lesson, claim: SwapClaim) -> bool:
    """Whether a lesson refuses a claim.

    `harms` refuses the artifact in its environment. Both kinds refuse, in the same server, the
    artifact and any other variant of the same definition and guard whose claim is less than twice
    the failed one. Of a tunable, any rules are the same.
    """
    same_artifact = claim.artifact in lesson.artifacts
    if (
        lesson.kind is LessonKind.HARMS
        and same_artifact
        and lesson.key.environment == claim.key.environment
    ):
        return True
    if not lesson.key.is_as(claim.key):
        return False
    same_subject = lesson.definition == claim.definition and (
        is_tunable(claim.definition) or lesson.guard == claim.guard
    )
    return same_artifact or (same_subject and claim.saving < _MORE * lesson.claimed_saving)


def lesson_against(lessons: Iterable[Lesson], claim: SwapClaim) -> Refusal | None:
    """Return the refusal of a claim by the newest lesson that holds against it; None if none."""
    found = [lesson for lesson in lessons if holds_against(lesson, claim)]
    if not found:
        return None
    newest = max(found, key=lambda lesson: lesson.at)
    which = "it" if claim.artifact in newest.artifacts else "a variant with a like claim"
    return Refusal(
        reason=RefusalReason.LIVE_LESSON,
        detail=(
            f"{which} was proven on live traffic on {newest.at:%Y-%m-%d}: {newest.sentence}; "
            f"it claimed to save {newest.claimed_saving:.2%} of kernel time, this claims "
            f"{claim.saving:.2%}"
        ),
    )
