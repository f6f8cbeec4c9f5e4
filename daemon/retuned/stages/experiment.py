"""Stage 5, experiment: the plan of what is tried, against what, within which budget. Pure."""

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
    """Most variants that are compiled."""
    max_seconds: float = Field(default=120.0, gt=0.0)
    """Wall time."""
    finalists: int = Field(default=3, ge=1, le=3)
    """Most variants re-measured from zero on held-out seeds."""


class ExperimentPlan(Record):
    """Everything a lab needs; runs the same in a child process and in a pod."""

    id: str
    """Digest of the plan: replaying it is the same experiment, and is paid once."""
    hypothesis: str
    """Id of the hypothesis."""
    definition: Name
    """What is tuned."""
    workloads: tuple[Workload, ...] = Field(min_length=1)
    """Weighted shapes."""
    incumbent: Digest
    """Digest of the variant in production for these shapes."""
    generators: tuple[Name, ...] = ("search",)
    """Which generators propose variants; a bandit over them decides whose turn it is."""
    structures: tuple[Name, ...] = ()
    """Restrict the search to these structures; empty means all."""
    budget: Budget = Budget()
    """Limits."""
    environment: Digest
    """Where it must run: evidence from elsewhere does not count."""
    buckets: ProfileSettings = ProfileSettings()
    """How the profile rounded lengths: each workload stands for its whole bucket."""
    batch_invariant: bool = True
    """Refuse variants whose rows change with the batch's size, where the incumbent's do not."""


class TurnOutcome(StrEnum):
    """What came of asking a generator."""

    OPEN = "open"
    """It proposed, and its candidates are being tried."""
    TRIED = "tried"
    """Its candidates were tried, as far as the budget went."""
    EXHAUSTED = "exhausted"
    """It had nothing new: it is not asked again."""
    RESTING = "resting"
    """It cannot answer now; it is asked again later, a few times."""
    WAITING = "waiting"
    """It needs the results of others first; it is asked again once there are some."""
    FAILED = "failed"
    """It broke: it is not asked again, and the others go on."""


class Turn(Record):
    """One time that a generator was asked for candidates, and what that brought."""

    number: int = Field(ge=1)
    """Place in the experiment, over all generators."""
    generator: Name
    """Who was asked."""
    because: str
    """Why it was its turn, one sentence with the numbers."""
    outcome: TurnOutcome
    """What came of it."""
    proposed: tuple[Digest, ...] = ()
    """Digests of what it proposed that was new."""
    detail: str = ""
    """What a generator that failed or rests said, shortened; never trusted."""
    asked_s: float = Field(default=0.0, ge=0.0)
    """Time that the generator itself took, seconds."""
    tried: int = Field(default=0, ge=0)
    """Candidates that went through the gates."""
    correct: int = Field(default=0, ge=0)
    """Those that computed the right thing and were timed."""
    gain_ratio: float = Field(default=1.0, ge=1.0)
    """Best lower bound of a speedup after the turn, over the best before it; the incumbent is 1."""
    seconds: float = Field(default=0.0, ge=0.0)
    """What it cost: asking, and trying what came."""


def turns_sentence(turns: Sequence[Turn]) -> str:
    """Say in one sentence who was asked how often, and what it brought.

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
    """Write the experiment for a hypothesis; the same belief about the same world is the same plan.

    Parameters
    ----------
    hypothesis
        What is believed.
    incumbent
        Digest of the variant in production.
    environment
        Digest of the Environment the lab must have.
    budget
        Limits; the default ones where None.
    generators
        Who proposes variants.
    buckets
        How the profile rounded lengths; the usual ladder where None.
    batch_invariant
        Whether rows must keep their bits in batches of other sizes, where the incumbent's do.

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
    # What plans of earlier versions could not say is part of it only where it is said.
    silent = {"id"} | ({"batch_invariant"} if batch_invariant else set())
    return unnamed.model_copy(
        update={"id": digest_of(unnamed.model_dump(mode="json", exclude=silent))}
    )
