"""Hypotheses about tunables in a cluster: what pods posted, through stage 4. Pure.

The operator has the same reasons as one machine, see ``docs/tunables.md``. The place of an
experiment is its own pod, on another accelerator of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from retuned.api.agent import TunablePost
from retuned.api.experiment import KernelExperiment
from retuned.contract import Digest, digest_of
from retuned.report.tunable_families import prior_of
from retuned.stages.hypothesis import (
    Hypothesis,
    HypothesisSettings,
    NotTried,
    Untried,
    UsedClass,
    believe_in_table,
    together,
)
from retuned_operator.controllers.ports import POST_FRESH, PodPost
from retuned_operator.schema import ExperimentPhase

_FIRST_WAIT, _LONGEST_WAIT = timedelta(minutes=10), timedelta(days=1)
"""How long after a failed experiment the next one waits; it doubles with each failure."""
_SEARCHED = (ExperimentPhase.SUCCEEDED, ExperimentPhase.NO_IMPROVEMENT, ExperimentPhase.ABORTED)
"""Phases that end a search: one that a person ended is not begun again."""
UNMADE = frozenset({"gpu-model-unknown", "gpu-resource-unknown", "task-too-large"})
"""Reasons of a refusal that say nothing of the idea; the administrator's change repeats it."""
Key = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TunableFacts:
    """All that a hypothesis about one tunable of a target is made from."""

    name: str
    posts: Sequence[TunablePost]
    """Fresh posts of the target's pods."""
    earlier: Sequence[KernelExperiment]
    """Experiments of the target on this tunable, ended ones too."""
    proposals: bool
    """Whether a proposal about it is under way."""
    baseline: Digest | None
    """What ought to run now: a table, or the server's own choice."""
    incumbent: Digest | None
    """The server's own choice."""
    environment: Digest | None
    """Common environment of the target's pods; None while they differ."""


def believed(
    facts: TunableFacts, *, now: datetime, settings: HypothesisSettings | None = None
) -> Hypothesis | Untried:
    """Return a hypothesis about a tunable, or the reason against one."""
    refused = _refused(facts, now)
    if refused is not None:
        return refused
    every = [each for post in facts.posts for each in _used(post)]
    observed_s = max(post.observed_s for post in facts.posts)
    in_force = {each.key for each in every if each.how == "table"}
    return believe_in_table(
        facts.name,
        together(every),
        busy_us=sum(post.busy_us for post in facts.posts) or 1e6 * observed_s * len(facts.posts),
        observed_s=observed_s,
        tried=_tried(facts),
        in_force=in_force,
        # What searched nothing is repeated as another experiment, however long ago it ended.
        world=digest_of([facts.baseline, facts.environment, _searched_nothing(facts)]),
        settings=settings,
    )


def _refused(facts: TunableFacts, now: datetime) -> Untried | None:
    """Return why nothing can be tried whatever the traffic is; None if something can."""
    if not facts.posts or facts.environment is None:
        return Untried(reason=NotTried.NO_TRAFFIC, detail="no pod has posted it lately")
    refused = next((post.refused for post in facts.posts if post.refused), "")
    if refused:
        return Untried(reason=NotTried.SERVER_REFUSES, detail=refused)
    sources = {post.source for post in facts.posts}
    if len(sources) > 1 or any(post.differs for post in facts.posts):
        detail = f"{len(facts.posts)} pods have {len(sources)} sources, or processes differ"
        return Untried(reason=NotTried.PROCESSES_DIFFER, detail=detail)
    if facts.baseline is None:
        return Untried(reason=NotTried.NO_TRAFFIC, detail="what runs is not known yet")
    if facts.proposals or any(not each.status.phase.is_terminal for each in facts.earlier):
        return Untried(reason=NotTried.UNDER_WAY, detail="see `kubectl retuned history`")
    unmade = next((each for each in facts.earlier if _is_unmade(facts, each)), None)
    if unmade is not None:
        detail = f"{unmade.status.reason}: {unmade.status.detail}"
        return Untried(reason=NotTried.FAILED, detail=detail)
    failed = [each for each in _failed(facts) if each > now - _LONGEST_WAIT][-16:]
    if failed:
        until = failed[-1] + min(_LONGEST_WAIT, _FIRST_WAIT * float(2 ** (len(failed) - 1)))
        if now < until:
            last = max(filter(_failed_itself, facts.earlier), key=_ended_at).status
            why = f"{last.reason} {last.detail}".strip()
            detail = f"{len(failed)} failed; the next may begin at {until:%H:%M} UTC: {why}"
            return Untried(reason=NotTried.FAILED, detail=detail)
    return None


def _is_unmade(facts: TunableFacts, experiment: KernelExperiment) -> bool:
    """Whether no pod can be made for an experiment until an administrator changes something."""
    spec, status = experiment.spec, experiment.status
    same = (spec.environment, spec.baseline.digest) == (facts.environment, facts.baseline)
    return same and status.phase is ExperimentPhase.REFUSED and status.reason in UNMADE


def _ended_at(experiment: KernelExperiment) -> datetime:
    return experiment.status.finished_at or datetime.min.replace(tzinfo=UTC)


def _failed(facts: TunableFacts) -> list[datetime]:
    """Return when experiments failed, oldest first."""
    return sorted(_ended_at(each) for each in facts.earlier if _failed_itself(each))


def _searched_nothing(facts: TunableFacts) -> int:
    """Return how many experiments ended without a search, though a pod could be made."""
    ended = [each for each in facts.earlier if each.status.phase.is_terminal]
    return sum(each.status.phase not in _SEARCHED and not _is_unmade(facts, each) for each in ended)


def _failed_itself(experiment: KernelExperiment) -> bool:
    """Whether an experiment failed, or was refused for what the servers are."""
    status = experiment.status
    refused = status.phase is ExperimentPhase.REFUSED and status.reason not in UNMADE
    return status.phase is ExperimentPhase.FAILED or refused


def _tried(facts: TunableFacts) -> set[Key]:
    """Return the size classes that experiments have searched against what runs now."""
    against = {facts.baseline, facts.incumbent}
    return {
        tuple(sorted(shape.axes.items()))
        for each in facts.earlier
        if each.status.phase in _SEARCHED
        and each.spec.environment == facts.environment
        and each.spec.baseline.digest in against
        for shape in each.spec.kernel.shapes
    }


def _used(post: TunablePost) -> list[UsedClass]:
    found = []
    for each in post.used:
        prior = prior_of(post.family, post.kernel, how=each.how, axes=each.axes, block=post.block)
        found.append(
            UsedClass(
                axes=each.axes,
                launches=each.launches,
                time_us=each.time_us,
                gain_ratio=prior.expected if prior is not None else 1.0,
                ready=each.ready,
                how=each.how,
            )
        )
    return found


def fresh(posts: Mapping[str, Sequence[PodPost]], *, now: datetime) -> dict[str, list[TunablePost]]:
    """Return the posts that count now, by tunable; a tunable without one stays, empty."""
    return {
        name: [each.post for each in every if now - each.at <= POST_FRESH]
        for name, every in posts.items()
    }
