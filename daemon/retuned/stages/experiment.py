"""Stage 5, experiment: the plan of what is tried, against what, within which budget. Pure."""

from __future__ import annotations

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
    """Which generators propose variants, in order."""
    structures: tuple[Name, ...] = ()
    """Restrict the search to these structures; empty means all."""
    budget: Budget = Budget()
    """Limits."""
    environment: Digest
    """Where it must run: evidence from elsewhere does not count."""
    buckets: ProfileSettings = ProfileSettings()
    """How the profile rounded lengths: each workload stands for its whole bucket."""


def plan(
    hypothesis: Hypothesis,
    *,
    incumbent: Digest,
    environment: Digest,
    budget: Budget | None = None,
    generators: tuple[Name, ...] = ("search",),
    buckets: ProfileSettings | None = None,
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
        Who proposes variants, in order.
    buckets
        How the profile rounded lengths; the usual ladder where None.

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
    }
    # The id is taken over everything else, so a replayed plan is recognised before it is paid for.
    unnamed = ExperimentPlan.model_validate({"id": "", **body})
    return unnamed.model_copy(
        update={"id": digest_of(unnamed.model_dump(mode="json", exclude={"id"}))}
    )
