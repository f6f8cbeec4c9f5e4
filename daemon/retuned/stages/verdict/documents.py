"""The evidence document: what one candidate was, what was done to it, and what that showed.

One per candidate, rejected ones included. It holds everything the judge read, the thresholds and
the answer, so that anybody can judge again; `doubt_of` does, and compares the document with what is
claimed from it. Signing is an adapter's; what is signed is `EvidenceDocument` as JSON, byte for
byte. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, JsonValue, model_validator

from retuned.contract import (
    Digest,
    Environment,
    Guard,
    Name,
    Record,
    Solution,
    TrustClass,
    digest_of,
)
from retuned.stages.verdict.judge import judge
from retuned.stages.verdict.records import Evidence, Interval, JudgeSettings, Status, Verdict

KeyId = Annotated[str, Field(pattern=r"^[a-z0-9]{1,16}:[0-9a-f]{32}$")]


class EvidenceFault(StrEnum):
    """Stable codes: why evidence does not carry a claim."""

    MISSING = "missing-evidence"
    """Nothing is named, or what is named is not there."""
    UNREADABLE = "evidence-unreadable"
    """It is no evidence document of a version that is known here."""
    ALTERED = "evidence-altered"
    """Its bytes do not match their digest or their signature."""
    UNKNOWN_KEY = "evidence-key-unknown"
    """It was signed by a key that this installation never had."""
    REVOKED_KEY = "evidence-key-revoked"
    """It was signed by a key that is believed no more."""
    OTHER_CANDIDATE = "evidence-of-another-candidate"
    OTHER_INCUMBENT = "evidence-of-another-incumbent"
    OTHER_PLAN = "evidence-of-another-plan"
    OTHER_ENVIRONMENT = "evidence-of-another-environment"
    CONTRADICTED = "evidence-contradicted"
    """Judged again it gives another answer, or other numbers than those claimed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Why a claim is not believed."""

    fault: EvidenceFault
    """Stable code."""
    detail: str
    """One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What somebody says that evidence shows."""

    candidate: Digest
    """The artifact."""
    incumbent: Digest
    """What it is faster than."""
    plan: str
    """Id of the experiment."""
    environment: Digest | None
    """Where it was measured; None where nobody knows, which no evidence fits."""
    guard: Guard
    """Shapes it is for."""
    speedup: Interval | None
    """How much faster; None where nothing was timed, which no promotion is."""
    trust: TrustClass
    """Class of its author."""


class Freeze(Record):
    """Gate G0: what a candidate is and where it comes from, written before anything tries it."""

    candidate: Digest
    """Content digest of the solution."""
    definition: Name
    """What it computes."""
    structure: Name
    """Which algorithm."""
    trust: TrustClass
    """Class of its author; decides which gates and which people it needs."""
    author: str = Field(default="", max_length=200)
    """Generator or person that proposed it."""
    parents: tuple[Digest, ...] = ()
    """Candidates it was made from."""
    prompt: Digest | None = None
    """Digest of the prompt that a model answered with it; None where no model was asked."""
    plan: str
    """Id of the experiment."""
    frozen_at: AwareDatetime
    """When."""


def freeze_of(solution: Solution, *, plan: str, frozen_at: AwareDatetime) -> Freeze:
    """Return what is written of a candidate before it is tried."""
    return Freeze(
        candidate=solution.digest,
        definition=solution.definition,
        structure=solution.structure,
        trust=solution.trust,
        author=solution.author[:200],
        parents=solution.parents,
        prompt=solution.prompt,
        plan=plan,
        frozen_at=frozen_at,
    )


class SeedCommitment(Record):
    """A secret that inputs and orders were drawn from, named without being told."""

    purpose: str
    """``search``, one for all candidates of a run; or ``hold-out``, drawn for this one alone."""
    commitment: Digest
    """Digest of the secret."""
    after_freeze: bool
    """Whether it was drawn after the candidate was frozen."""


class Isolation(Record):
    """What stood between the candidate and the machine."""

    system_calls_filtered: bool
    """Whether seccomp was in force in its processes."""
    network_cut: bool = False
    """Whether its processes had a network of their own, with nothing in it."""
    files_denied: bool = False
    """Whether they gave up opening files, by Landlock."""
    reference_confined_by: tuple[Annotated[str, Field(max_length=64)], ...] = ()
    """What confined the process of the definition's own reference, by the kernel's account; empty
    where the reference is the catalog's, or nothing did (then `missing` says so)."""
    memory_check: str
    """How accesses outside its tensors were found."""
    missing: tuple[str, ...] = ()
    """What this machine lacks, in sentences."""


class RawSamples(Record):
    """Times of one comparison at one shape, as the lab's clock gave them."""

    axes: dict[Name, Annotated[int, Field(ge=0)]]
    """Lengths of the variable axes."""
    weight: float = Field(ge=0.0, allow_inf_nan=False)
    """Launches per second in the profile."""
    incumbent_us: tuple[Annotated[float, Field(gt=0.0, lt=1e12)], ...] = Field(min_length=1)
    """Per pair, microseconds a launch."""
    candidate_us: tuple[Annotated[float, Field(gt=0.0, lt=1e12)], ...]
    """Per pair, microseconds a launch."""
    block: tuple[int, ...]
    """Which block each pair belongs to."""
    process: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """In which process each block was timed, in order of the blocks; empty where one process was
    asked, and in documents that are older than this."""

    @model_validator(mode="after")
    def _one_row_a_pair(self) -> RawSamples:
        if not len(self.incumbent_us) == len(self.candidate_us) == len(self.block):
            raise ValueError("every pair has two times and a block")
        if self.process and len(self.process) != len(set(self.block)):
            raise ValueError("every block has a process, or none has")
        return self


class RawTiming(Record):
    """Every pair that was timed for one decision."""

    candidate: tuple[RawSamples, ...]
    """Candidate beside the incumbent."""
    clone: tuple[RawSamples, ...] = ()
    """The incumbent's clone beside the incumbent: the noise floor."""

    @model_validator(mode="after")
    def _same_shapes(self) -> RawTiming:
        names = {tuple(sorted(rows.axes)) for rows in (*self.candidate, *self.clone)}
        if len(names) > 1:
            raise ValueError("shapes have different axes")
        if self.clone and [c.axes for c in self.clone] != [c.axes for c in self.candidate]:
            raise ValueError("the clone was timed at other shapes than the candidate")
        return self


def raw_digest(search: RawTiming | None, final: RawTiming | None) -> Digest:
    """Name raw numbers by their content, as `Evidence.raw` does inside a document."""
    return digest_of([None if each is None else _plain(each) for each in (search, final)])


def _plain(raw: RawTiming) -> dict[str, JsonValue]:
    body = raw.model_dump(mode="json")
    for rows in (*body["candidate"], *body["clone"]):
        if not rows["process"]:
            del rows["process"]  # the name that older documents have
    return body


class EvidenceDocument(Record):
    """Everything known of one candidate of one experiment."""

    version: Literal[1] = 1
    """Of this layout."""
    plan: str
    """Id of the experiment, a digest of its plan."""
    definition: Name
    """What is computed."""
    candidate: Digest
    """Digest of the solution."""
    incumbent: Digest
    """What it was compared with."""
    environment: Environment
    """Where; evidence expires with it."""
    freeze: Freeze
    """Gate G0."""
    isolation: Isolation
    """What stood between the candidate and the machine."""
    seeds: tuple[SeedCommitment, ...] = ()
    """Secrets that were drawn."""
    tried: int = Field(ge=1)
    """Candidates of the experiment so far: the winner of many is luckier than one of few."""
    finalists: int = Field(default=1, ge=1)
    """Re-measurements that its p-values were adjusted over, those of interrupted runs included."""
    settings: JudgeSettings
    """Thresholds."""
    evidence: Evidence
    """What the judge read: every gate's answer with its numbers."""
    verdict: Verdict
    """What it said."""
    search: RawTiming | None = None
    """Raw numbers of gate G5."""
    final: RawTiming | None = None
    """Raw numbers of gate G6."""
    written_at: AwareDatetime
    """When."""

    def gates(self) -> tuple[tuple[str, bool], ...]:
        """Return each gate that answered, in order, and whether it passed."""
        passed: dict[str, bool] = {}
        for check in self.evidence.checks:
            passed[check.gate] = passed.get(check.gate, True) and check.reason is None
        return tuple(sorted(passed.items()))


class SignedEvidence(Record):
    """A document with the signature of the installation that measured it."""

    payload: str
    """`EvidenceDocument` as JSON; the signature is over exactly this text."""
    key: KeyId
    """Which key signed."""
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{2,1024}$")]
    """Hexadecimal."""


def doubt_of(document: EvidenceDocument, claim: Claim) -> Doubt | None:
    """Compare a document with what is claimed from it; None if it carries the claim.

    The document is judged again: what it says of itself counts only as far as its numbers do.
    """
    for fault, said, claimed in (
        (EvidenceFault.OTHER_CANDIDATE, document.candidate, claim.candidate),
        (EvidenceFault.OTHER_INCUMBENT, document.incumbent, claim.incumbent),
        (EvidenceFault.OTHER_PLAN, document.plan, claim.plan),
        (EvidenceFault.OTHER_ENVIRONMENT, document.environment.digest, claim.environment),
    ):
        if said != claimed:
            return Doubt(fault=fault, detail=f"it is about {said}, claimed is {claimed}")
    contradiction = _contradiction(document)
    if contradiction is None and document.verdict.status is not Status.PROMOTE:
        contradiction = f"its verdict is {document.verdict.status} ({document.verdict.reason})"
    if contradiction is None and document.verdict.guard != claim.guard:
        contradiction = f"it is for {document.verdict.guard}, claimed is {claim.guard}"
    if contradiction is None and document.verdict.speedup != claim.speedup:
        contradiction = "its speedup is another than the one claimed"
    if contradiction is None and document.freeze.trust is not claim.trust:
        contradiction = f"it is of class {document.freeze.trust}, claimed is class {claim.trust}"
    return _contradicted(contradiction)


def _contradiction(document: EvidenceDocument) -> str | None:
    """Say where a document disagrees with itself."""
    evidence, freeze = document.evidence, document.freeze
    about = (document.candidate, document.incumbent)
    if (evidence.candidate, evidence.incumbent) != about or freeze.candidate != about[0]:
        return "its parts are about different candidates"
    if freeze.plan != document.plan:
        return "it was frozen for another experiment"
    again = judge(evidence, document.settings)
    if _numbers(again) != _numbers(document.verdict):
        return f"judged again it is {again.status} ({again.reason})"
    return None


def _numbers(verdict: Verdict) -> Verdict:
    """Leave out words, which change between versions, and names of where numbers lie."""
    return verdict.model_copy(update={"detail": "", "evidence": None})


def contradiction_in(document: EvidenceDocument) -> Doubt | None:
    """Judge a document again, whatever its verdict; None if it says the same."""
    return _contradicted(_contradiction(document))


def _contradicted(detail: str | None) -> Doubt | None:
    return Doubt(fault=EvidenceFault.CONTRADICTED, detail=detail) if detail is not None else None
