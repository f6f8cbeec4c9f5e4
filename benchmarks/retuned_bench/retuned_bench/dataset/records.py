"""What a data set's files hold; docs/datasets.md describes every field."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from retuned.contract import Digest, Record
from retuned.stages.verdict import Interval, Reason, Status
from retuned_bench.dataset.options import Format


class Split(StrEnum):
    """What a row is for."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


class Licenses(Record):
    """SPDX expression of each part; ``unknown`` where none was given."""

    definition: str
    """Of the definition and its reference."""
    incumbent: str
    """Of the incumbent's sources."""
    completion: str
    """Of the answer's sources."""


class SftRow(Record):
    """A question and a winner."""

    id: Digest
    """Digest of prompt and completion."""
    split: Split
    """What the row is for."""
    kin: str
    """Kernels that share ideas and sources: all of a kin are in one split."""
    op_type: str
    """Operator."""
    group: Digest
    """Same for variants that differ in parameters, comments and white space only."""
    prompt: str
    """JSON text: definition, shapes with their shares, device, incumbent."""
    completion: str
    """JSON text: the winner's sources, parameters and launch data."""
    speedup: Interval
    """Incumbent over winner, at the winner's guard, weighted by traffic."""
    noise_floor_ratio: float
    """What identical kernels showed in the same run."""
    licenses: Licenses
    """What may be done with it."""
    redacted: bool
    """Whether something was taken out of prompt or completion, so that they are not what ran."""
    candidate: Digest
    """Digest of the winner as it ran."""
    author: Literal["parameters", "model", "generator"]
    """Where the winner came from: parameters of a known source, a language model, other rules."""


class Attempt(Record):
    """One candidate of an experiment."""

    number: int = Field(ge=1)
    """Place in the order in which candidates were proposed."""
    candidate: Digest
    """Digest as it ran."""
    parents: tuple[Digest, ...]
    """Candidates it was made from; they need not be of this experiment."""
    generator: str
    """Who proposed it; empty where that was not kept."""
    author: Literal["parameters", "model", "generator"]
    """As in `SftRow`."""
    group: Digest
    """As in `SftRow`."""
    completion: str
    """As in `SftRow`."""
    status: Status
    """The judge's answer."""
    reason: Reason
    """Why."""
    gate: str
    """Which gate decided."""
    detail: str
    """The judge's sentence, with what names machines taken out."""
    speedup: Interval | None
    """Incumbent over candidate; None where nothing was timed or evidence is not verified."""
    reward: float | None
    """See `rewards`; None where nothing can be said for sure."""
    evidence: str
    """``verified``, or the stable code of what is wrong with it."""
    license: str
    """SPDX expression of its sources."""


class EpisodeRow(Record):
    """One experiment."""

    id: Digest
    """Digest of prompt and attempts."""
    split: Split
    """What the row is for."""
    kin: str
    """As in `SftRow`."""
    op_type: str
    """Operator."""
    prompt: str
    """As in `SftRow`."""
    attempts: tuple[Attempt, ...] = Field(min_length=1)
    """In the order in which they were proposed, failures included."""
    best_reward: float | None
    """Highest reward; None where no attempt has one."""
    definition_license: str
    """SPDX expression of the definition and its reference."""
    incumbent_license: str
    """SPDX expression of the incumbent's sources."""
    redacted: bool
    """As in `SftRow`, of any part."""


class FileEntry(Record):
    """One file of a data set."""

    name: str
    """Name in the folder."""
    split: Split
    """What its rows are for."""
    rows: int = Field(ge=0)
    """Lines."""
    bytes: int = Field(ge=0)
    """Length."""
    sha256: Digest
    """Of its bytes."""


class Manifest(Record):
    """What a data set is; written as ``manifest.json``."""

    version: Literal[1] = 1
    """Of the layout of the rows."""
    format: Format
    """What a row is."""
    digest: Digest
    """Of the files' names and digests: equal data sets have equal ones."""
    seed: str
    """Of the split."""
    files: tuple[FileEntry, ...]
    """The other files."""
    experiments: int = Field(ge=0)
    """Experiments that were read."""
    findings: int = Field(ge=0)
    """Candidates that were read."""
    left_out: dict[str, int]
    """What is not in it, by stable reason."""
    kins: dict[str, Split]
    """Split of every kin that has a row."""
    licenses: dict[str, int]
    """Answers by licence."""
    redacted_rows: int = Field(ge=0)
    """Rows from which something was taken out."""
    reward: dict[str, str]
    """How rewards are defined; empty for a format without them."""
