"""Stage 5, experiment: the plan of what is tried, against which incumbent, within which budget.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from pydantic import Field

from retuned.contract import Digest, Name, Record, Workload, digest_of
from retuned.stages.hypothesis import Hypothesis
from retuned.stages.profile import ProfileSettings


class Budget(Record):
    """Limits of one experiment; the first one reached ends it."""

    max_candidates: int = Field(default=32, ge=1)
    max_seconds: float = Field(default=120.0, gt=0.0)
    finalists: int = Field(default=3, ge=1, le=3)
    """Most variants re-measured from zero on held-out seeds."""


class ExperimentPlan(Record):
    """Everything a lab needs; runs the same in a child process and in a pod."""

    id: str
    """Digest of the plan. A plan with the same id is the same experiment and is not run twice."""
    hypothesis: str
    definition: Name
    workloads: tuple[Workload, ...] = Field(min_length=1)
    incumbent: Digest
    """Digest of the incumbent for these shapes."""
    generators: tuple[Name, ...] = ("search",)
    """Generators that propose variants; a bandit chooses the next one."""
    structures: tuple[Name, ...] = ()
    """Restrict the search to these structures; empty means all."""
    budget: Budget = Budget()
    environment: Digest
    """Digest of the required environment; evidence from another one does not count."""
    buckets: ProfileSettings = ProfileSettings()
    """How the profile rounded lengths: each workload stands for its whole bucket."""
    batch_invariant: bool = True
    """Refuse variants whose rows change with the batch's size, where the incumbent's do not."""


class TurnOutcome(StrEnum):
    """Result of one request to a generator."""

    OPEN = "open"
    """It proposed, and its candidates are being tried."""
    TRIED = "tried"
    """Its candidates were tried, as far as the budget went."""
    EXHAUSTED = "exhausted"
    """It had nothing new; it gets no further turn."""
    RESTING = "resting"
    """It cannot answer now; the experiment retries it later, a few times."""
    WAITING = "waiting"
    """It needs the results of other generators; it gets a turn once there are some."""
    FAILED = "failed"
    """It failed; it gets no further turn, and the other generators continue."""


class Turn(Record):
    """One request for candidates to a generator, and its result."""

    number: int = Field(ge=1)
    """Place in the experiment, over all generators."""
    generator: Name
    because: str
    """Why it was this generator's turn, one sentence with the numbers."""
    outcome: TurnOutcome
    proposed: tuple[Digest, ...] = ()
    """Digests of its proposals that were new."""
    detail: str = ""
    """Shortened message of a generator that failed or rests; untrusted."""
    asked_s: float = Field(default=0.0, ge=0.0)
    """Time that the generator itself took, seconds."""
    tried: int = Field(default=0, ge=0)
    """Candidates that went through the gates."""
    correct: int = Field(default=0, ge=0)
    """Those that computed the right thing and were timed."""
    gain_ratio: float = Field(default=1.0, ge=1.0)
    """Best lower bound of a speedup after the turn, over the best before it; the incumbent is 1."""
    seconds: float = Field(default=0.0, ge=0.0)
    """Total cost: the request, and the trials of its candidates."""


def turns_sentence(turns: Sequence[Turn]) -> str:
    """Summarise in one sentence how many turns each generator had, and the result.

    Examples
    --------
    >>> turns_sentence([
    ...     Turn(number=1, generator="search", because="first", outcome="tried", tried=4,
    ...          gain_ratio=1.2, seconds=8.0),
    ...     Turn(number=2, generator="recipes", because="first", outcome="exhausted"),
    ... ])
    'search: 1 turn, 4 candidates, 1.20x in 8 s; recipes: 1 turn, 0 candidates, 1.00x in 0 s'
    """
    parts = []
    for name in dict.fromkeys(turn.generator for turn in turns):
        own = [turn for turn in turns if turn.generator == name]
        many = "turn" if len(own) == 1 else "turns"
        failed = next((turn for turn in own if turn.outcome is TurnOutcome.FAILED), None)
        parts.append(
            f"{name}: {len(own)} {many}, {sum(turn.tried for turn in own)} candidates, "
            f"{math.prod(turn.gain_ratio for turn in own):.2f}x in "
            f"{sum(turn.seconds for turn in own):.0f} s"
            + (f", then it failed ({failed.detail[:80]})" if failed else "")
        )
    return "; ".join(parts)


def plan(
    hypothesis: Hypothesis,
    *,
    incumbent: Digest,
    environment: Digest,
    budget: Budget | None = None,
    generators: tuple[Name, ...] = ("search",),
    buckets: ProfileSettings | None = None,
    batch_invariant: bool = True,
) -> ExperimentPlan:
    """Make the experiment for a hypothesis; equal arguments give an equal plan.

    Examples
    --------
    >>> belief = Hypothesis(
    ...     id="h", definition="d", workloads=(Workload(definition="d", axes={"M": 1}),),
    ...     share=0.5, expected_gain_ratio=2.0, expected_saving=0.25, because="a test",
    ... )
    >>> digests = {"incumbent": "sha256:" + "a" * 64, "environment": "sha256:" + "b" * 64}
    >>> plan(belief, **digests).id == plan(belief, **digests).id
    True
    """
    body = {
        "hypothesis": hypothesis.id,
        "definition": hypothesis.definition,
        "workloads": tuple(
            sorted(hypothesis.workloads, key=lambda each: sorted(each.axes.items()))
        ),
        "incumbent": incumbent,
        "generators": generators,
        "structures": hypothesis.structures,
        "budget": budget or Budget(),
        "environment": environment,
        "buckets": buckets or ProfileSettings(),
        "batch_invariant": batch_invariant,
    }
    # The id is taken over everything else, so a replayed plan is recognised before it is paid for.
    unnamed = ExperimentPlan.model_validate({"id": "", **body})
    # A field that plans of earlier versions lack is part of the id only if it is set.
    silent = {"id"} | ({"batch_invariant"} if batch_invariant else set())
    return unnamed.model_copy(
        update={"id": digest_of(unnamed.model_dump(mode="json", exclude=silent))}
    )
