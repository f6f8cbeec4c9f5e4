"""The evidence document: what one candidate was, its tests and their results.

There is one per candidate, rejected ones included. It contains the judge's whole input, the
thresholds and the verdict, so that anyone can judge again. `doubt_of` does so, and compares the
document with a claim. The store signs `EvidenceDocument` as JSON, byte for byte. Pure.
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
    """Why evidence does not support a claim; stable codes."""

    MISSING = "missing-evidence"
    """No evidence is named, or the named evidence does not exist."""
    UNREADABLE = "evidence-unreadable"
    """It is not an evidence document of a supported version."""
    ALTERED = "evidence-altered"
    """Its bytes do not match their digest or their signature."""
    UNKNOWN_KEY = "evidence-key-unknown"
    """It was signed by a key that this installation never had."""
    REVOKED_KEY = "evidence-key-revoked"
    """It was signed by a revoked key."""
    OTHER_CANDIDATE = "evidence-of-another-candidate"
    OTHER_INCUMBENT = "evidence-of-another-incumbent"
    OTHER_PLAN = "evidence-of-another-plan"
    OTHER_ENVIRONMENT = "evidence-of-another-environment"
    CONTRADICTED = "evidence-contradicted"
    """Judged again it gives another verdict, or other numbers than those claimed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Why a claim is refused."""

    fault: EvidenceFault
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What evidence is claimed to show."""

    candidate: Digest
    incumbent: Digest
    """Digest of the slower variant."""
    plan: str
    environment: Digest | None
    """Where it was measured; None means unknown, which no evidence matches."""
    guard: Guard
    speedup: Interval | None
    """None if nothing was timed; a promotion needs one."""
    trust: TrustClass
    """Class of its author."""


class Freeze(Record):
    """Gate G0: what a candidate is and where it comes from, recorded before any test."""

    candidate: Digest
    """Content digest of the solution."""
    definition: Name
    structure: Name
    trust: TrustClass
    """Class of its author; decides the required gates and approvals."""
    author: str = Field(default="", max_length=200)
    """Generator or person that proposed it."""
    parents: tuple[Digest, ...] = ()
    """Candidates it was derived from."""
    prompt: Digest | None = None
    """Digest of the prompt to the model that wrote it; None without a model."""
    plan: str
    frozen_at: AwareDatetime


def freeze_of(solution: Solution, *, plan: str, frozen_at: AwareDatetime) -> Freeze:
    """Return the record of a candidate before it is tested."""
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
    """A commitment to a secret that inputs and orders were drawn from, without the secret."""

    purpose: str
    """``search``, one for all candidates of a run; or ``hold-out``, for this candidate alone."""
    commitment: Digest
    """Digest of the secret."""
    after_freeze: bool
    """Whether it was drawn after the candidate was frozen."""


class Isolation(Record):
    """What separated the candidate from the machine."""

    system_calls_filtered: bool
    """Whether seccomp was in force in its processes."""
    network_cut: bool = False
    """Whether its processes had a separate, empty network namespace."""
    files_denied: bool = False
    """Whether Landlock kept them from opening files."""
    reference_confined_by: tuple[Annotated[str, Field(max_length=64)], ...] = ()
    """What confined the process of the definition's own reference, as the kernel reported it.

    Empty if the reference is the catalog's, or if nothing confined it (then `missing` lists that).
    """
    memory_check: str
    """How accesses outside its tensors were detected."""
    missing: tuple[str, ...] = ()
    """What this machine lacks, in sentences."""


class RawSamples(Record):
    """Times of one comparison at one shape, from the lab's clock."""

    axes: dict[Name, Annotated[int, Field(ge=0)]]
    weight: float = Field(ge=0.0, allow_inf_nan=False)
    """Launches per second in the profile."""
    incumbent_us: tuple[Annotated[float, Field(gt=0.0, lt=1e12)], ...] = Field(min_length=1)
    """Per pair, microseconds a launch."""
    candidate_us: tuple[Annotated[float, Field(gt=0.0, lt=1e12)], ...]
    """Per pair, microseconds a launch."""
    block: tuple[int, ...]
    """Which block each pair belongs to."""
    process: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Process in which each block was timed, in order of the blocks.

    Empty if one process timed all, and in older documents."""

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
    """Candidate against the incumbent."""
    clone: tuple[RawSamples, ...] = ()
    """The incumbent's clone against the incumbent: the noise floor."""

    @model_validator(mode="after")
    def _same_shapes(self) -> RawTiming:
        names = {tuple(sorted(rows.axes)) for rows in (*self.candidate, *self.clone)}
        if len(names) > 1:
            raise ValueError("shapes have different axes")
        if self.clone and [c.axes for c in self.clone] != [c.axes for c in self.candidate]:
            raise ValueError("the clone was timed at other shapes than the candidate")
        return self


def raw_digest(search: RawTiming | None, final: RawTiming | None) -> Digest:
    """Return the digest of raw numbers, as `Evidence.raw` has it inside a document."""
    return digest_of([None if each is None else _plain(each) for each in (search, final)])


def _plain(raw: RawTiming) -> dict[str, JsonValue]:
    body = raw.model_dump(mode="json")
    for rows in (*body["candidate"], *body["clone"]):
        if not rows["process"]:
            del rows["process"]  # the name in older documents
    return body


class EvidenceDocument(Record):
    """All facts about one candidate of one experiment."""

    version: Literal[1] = 1
    """Of this layout."""
    plan: str
    """Id of the experiment, a digest of its plan."""
    definition: Name
    candidate: Digest
    """Digest of the solution."""
    incumbent: Digest
    """Digest of the variant it was compared with."""
    environment: Environment
    """Where it was measured; the evidence expires with it."""
    freeze: Freeze
    isolation: Isolation
    seeds: tuple[SeedCommitment, ...] = ()
    """Commitments to the secrets that were drawn."""
    tried: int = Field(ge=1)
    """Candidates of the experiment so far: the best of many is partly a lucky one."""
    finalists: int = Field(default=1, ge=1)
    """Re-measurements that its p-values were adjusted over, those of interrupted runs included."""
    settings: JudgeSettings
    evidence: Evidence
    """The judge's input: every gate's result with its numbers."""
    verdict: Verdict
    """The judge's verdict."""
    search: RawTiming | None = None
    """Raw numbers of gate G5."""
    final: RawTiming | None = None
    """Raw numbers of gate G6."""
    written_at: AwareDatetime

    def gates(self) -> tuple[tuple[str, bool], ...]:
        """Return each gate with a result, in order, and whether it passed."""
        passed: dict[str, bool] = {}
        for check in self.evidence.checks:
            passed[check.gate] = passed.get(check.gate, True) and check.reason is None
        return tuple(sorted(passed.items()))


class SignedEvidence(Record):
    """A document with the signature of the installation that measured it."""

    payload: str
    """`EvidenceDocument` as JSON; the signature covers exactly this text."""
    key: KeyId
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{2,1024}$")]
    """Hexadecimal."""


def doubt_of(document: EvidenceDocument, claim: Claim) -> Doubt | None:
    """Compare a document with a claim; None if it supports the claim.

    The document is judged again: only its numbers count, not the verdict that it states.
    """
    for fault, said, claimed in (
        (EvidenceFault.OTHER_CANDIDATE, document.candidate, claim.candidate),
        (EvidenceFault.OTHER_INCUMBENT, document.incumbent, claim.incumbent),
        (EvidenceFault.OTHER_PLAN, document.plan, claim.plan),
        (EvidenceFault.OTHER_ENVIRONMENT, document.environment.digest, claim.environment),
    ):
        if said != claimed:
            return Doubt(
                fault=fault, detail=f"it is about {said}, but the claim is about {claimed}"
            )
    contradiction = _contradiction(document)
    if contradiction is None and document.verdict.status is not Status.PROMOTE:
        contradiction = f"its verdict is {document.verdict.status} ({document.verdict.reason})"
    if contradiction is None and document.verdict.guard != claim.guard:
        contradiction = f"it is for {document.verdict.guard}, but the claim is for {claim.guard}"
    if contradiction is None and document.verdict.speedup != claim.speedup:
        contradiction = "its speedup differs from the claimed one"
    if contradiction is None and document.freeze.trust is not claim.trust:
        contradiction = (
            f"it is of class {document.freeze.trust}, but the claim is of class {claim.trust}"
        )
    return _contradicted(contradiction)


def _contradiction(document: EvidenceDocument) -> str | None:
    """Return where a document contradicts itself."""
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
    """Leave out texts, which change between versions, and digests of stored numbers."""
    return verdict.model_copy(update={"detail": "", "evidence": None})


def contradiction_in(document: EvidenceDocument) -> Doubt | None:
    """Judge a document again, whatever its verdict; None if the verdict is the same."""
    return _contradicted(_contradiction(document))


def _contradicted(detail: str | None) -> Doubt | None:
    return Doubt(fault=EvidenceFault.CONTRADICTED, detail=detail) if detail is not None else None
