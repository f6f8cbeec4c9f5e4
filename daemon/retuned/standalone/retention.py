"""What of ended experiments may go, and when. Pure: records and ages in, names out.

Whatever is in force, was ordered and may be carried out, is the way back of either, or waits for
people, stays however old it is. All else goes by age: what can be made again from the records
(compiled variants, raw samples, whose signed documents are kept apart) after `Retention.things`,
signed evidence after `Retention.evidence`. The records themselves stay: verdicts and sources are
what priors and data sets are made of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from itertools import pairwise

from retuned.contract import Digest
from retuned.stages.proposal import Proposal
from retuned.stages.swap import SwapOrder


class LabArtifactType(StrEnum):
    """What is kept in the lab's folder; the names of its parts."""

    ARTIFACT = "artifacts"
    """Folder of a compiled variant, as a server loads it."""
    RAW = "evidence"
    """Raw numbers of one candidate, before they were signed."""
    COMPILED = "compiled"
    """Output of a compiler, kept so that nothing is compiled twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long what nobody needs is kept."""

    things: timedelta = timedelta(days=30)
    """Compiled variants and raw samples."""
    evidence: timedelta = timedelta(days=365)
    """Signed documents."""
    windows: timedelta = timedelta(days=7)
    """Windows in which nothing asked for anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabFile:
    """A file or folder of the lab."""

    sort: LabArtifactType
    """What it is."""
    name: str
    """Its name in its folder; of artifacts and raw numbers the digest's digits."""
    age: timedelta
    """How long ago it was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedIds:
    """What stays whatever its age."""

    digests: frozenset[Digest]
    """Variants and evidence."""

    def holds(self, name: str) -> bool:
        """Whether something of this name is needed; names are digests with or without prefix."""
        digits = name.partition(".")[0].removeprefix("sha256:")
        return f"sha256:{digits}" in self.digests


def pins_of(
    orders: Iterable[SwapOrder], proposals: Iterable[Proposal], *, incumbents: Iterable[Digest] = ()
) -> RetainedIds:
    """Return what must stay.

    Parameters
    ----------
    orders
        Orders that are in force or may be carried out.
    proposals
        Proposals that wait, are in force, or that one of the orders carries out.
    incumbents
        What experiments that have not ended compare with.
    """
    found: set[Digest] = set(incumbents)
    for order in orders:
        found |= {each for each in (order.artifact, order.previous) if each is not None}
    for proposal in proposals:
        found |= {proposal.artifact, proposal.baseline}
        if proposal.evidence is not None:
            found.add(proposal.evidence)
    return RetainedIds(digests=frozenset(found))


def expendable(
    things: Sequence[LabFile], *, pins: RetainedIds, retention: Retention
) -> list[LabFile]:
    """Return what may go, oldest first.

    Examples
    --------
    >>> old = LabFile(sort=LabArtifactType.ARTIFACT, name="ab" * 32, age=timedelta(days=40))
    >>> unused = RetainedIds(digests=frozenset())
    >>> [each.name[:4] for each in expendable([old], pins=unused, retention=Retention())]
    ['abab']
    >>> used = RetainedIds(digests=frozenset({"sha256:" + "ab" * 32}))
    >>> expendable([old], pins=used, retention=Retention())
    []
    """
    old = [each for each in things if each.age > retention.things and not pins.holds(each.name)]
    return sorted(old, key=lambda each: (-each.age, each.sort, each.name))


def expendable_evidence(
    named: Collection[Digest], *, age: timedelta, pins: RetainedIds, retention: Retention
) -> list[Digest]:
    """Return the signed documents of one ended experiment that may go.

    Parameters
    ----------
    named
        Documents that its findings name.
    age
        How long ago it began.
    pins
        What stays.
    retention
        How long the rest is kept; documents at least as long as raw samples.
    """
    if age <= max(retention.evidence, retention.things):
        return []
    return sorted(each for each in named if not pins.holds(each))


def windows_of(drifts: Collection[str], *, windows: Sequence[str]) -> set[str]:
    """Return the windows that drift was found in, and of each the one before it.

    Parameters
    ----------
    drifts
        Ids of the reports; a report has its window's.
    windows
        Ids of all windows, oldest first.

    Examples
    --------
    >>> sorted(windows_of({"w3"}, windows=["w1", "w2", "w3", "w4"]))
    ['w2', 'w3']
    """
    before = {earlier for earlier, later in pairwise(windows) if later in drifts}
    return before | set(drifts)
