"""Retuned's own cost in a cluster: which pods measure it, and what the others follow. Pure.

In each environment of a target one pod measures at a time, and the others count launches in the
share of the time that its measurement leads to. The status names the pod, so that a restarted
operator asks the same one. A pod that is gone, or can no longer be measured, is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from retuned.api.agent import OverheadOrder
from retuned.api.target import OwnOverheadState
from retuned.stages.watch.own_overhead import judged
from retuned.stages.watch.proof import ProofReport

_MOST = 16
"""Environments in a status."""
_SENTENCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadFact:
    """What a pod reports of Retuned's own cost."""

    name: str
    uid: str
    ready: bool
    """Whether it serves."""
    environment: str | None = None
    """Digest of what its server runs on; empty if its processes differ, None if unknown."""
    unavailable: str = ""
    """Why its steps can never be timed, stable code; empty if they can, or if that is unknown."""
    reported: datetime | None = None
    """End of its last measurement, by its clock; None without one."""
    report: ProofReport | None = None
    """Verdict that follows from the pairs of that measurement; None without one."""
    engine: str = ""


def observed(
    entries: Iterable[OwnOverheadState], pods: Iterable[OverheadFact], *, now: datetime
) -> tuple[OwnOverheadState, ...]:
    """Return the entries of a status with what the pods that measure have reported since.

    Parameters
    ----------
    entries
        As stored.
    pods
        Every pod of the target.
    now
        Moment, with a zone.
    """
    facts = {pod.uid: pod for pod in pods}
    return tuple(_observed(each, facts.get(each.uid), now=now) for each in entries)


def asked(
    entries: Iterable[OwnOverheadState], pods: Sequence[OverheadFact], *, allowed: bool
) -> tuple[OwnOverheadState, ...]:
    """Return the entries with one pod of each environment that measures, or none.

    An environment without pods is left out once the environments of all pods are known.

    Parameters
    ----------
    entries
        As `observed` returns them.
    pods
        Every pod of the target.
    allowed
        Whether the policies of the target let pods measure.
    """
    known = {each.environment: each for each in entries}
    all_known = all(pod.environment is not None for pod in pods)
    present = sorted({pod.environment for pod in pods if pod.environment is not None})
    found = []
    for environment in dict.fromkeys((*known, *present)):
        one = known.get(environment)
        if one is not None and all_known and environment not in present:
            continue
        able = [pod for pod in pods if pod.environment == environment and _is_able(pod)]
        stays = one is not None and any(_is_the_one(pod, one) for pod in pods)
        if not stays and able:
            one, stays = _begun(one, min(able, key=lambda pod: (pod.name, pod.uid))), True
        if one is not None:
            found.append(one.model_copy(update={"measures": allowed and stays}))
    return tuple(found)[-_MOST:]


def overhead_order(uid: str, entries: Iterable[OwnOverheadState]) -> OverheadOrder | None:
    """Return what a pod is to do about Retuned's own cost; None for nothing."""
    entries = tuple(entries)
    mine = next((each for each in entries if each.uid == uid), None)
    order = OverheadOrder(
        measure=mine is not None and mine.measures,
        heard=mine.reported if mine is not None else None,
        shares={each.environment: each.share for each in entries if each.share < 1.0},
    )
    return None if order == OverheadOrder() else order


def _observed(
    entry: OwnOverheadState, pod: OverheadFact | None, *, now: datetime
) -> OwnOverheadState:
    if pod is None or pod.report is None or pod.reported in (None, entry.reported):
        return entry
    assert pod.reported is not None, "compared above"
    found = judged(pod.report, share_before=entry.share, at=pod.reported, engine=pod.engine)
    return entry.model_copy(
        update={
            "reported": pod.reported,
            "at": now,
            "outcome": str(found.outcome),
            "share": found.share,
            "sentence": found.sentence[:_SENTENCE],
            "engine": pod.engine,
            "effect": pod.report.effect,
            "low": pod.report.low,
            "high": pod.report.high,
            "pairs": pod.report.pairs,
        }
    )


def _is_able(pod: OverheadFact) -> bool:
    return pod.ready and not pod.unavailable


def _is_the_one(pod: OverheadFact, entry: OwnOverheadState) -> bool:
    """Whether a pod is the one of an entry, and goes on; one that is unready may come back."""
    same = pod.environment in (None, entry.environment)
    return pod.uid == entry.uid and same and not pod.unavailable


def _begun(entry: OwnOverheadState | None, pod: OverheadFact) -> OwnOverheadState:
    """Return an entry that another pod measures for; what was measured before stays."""
    if entry is None:
        environment = pod.environment or ""
        return OwnOverheadState(environment=environment, name=pod.name, uid=pod.uid)
    return entry.model_copy(update={"name": pod.name, "uid": pod.uid, "reported": None})
