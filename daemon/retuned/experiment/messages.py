"""What crosses the pipe between the daemon and its lab: one format, written and read here.

One object goes in, one JSON line comes out per finding, and a last line says how it ended:
``{"finding": {...}}``, ``{"done": true}`` or ``{"failed": {"code", "message"}}``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from retuned.api.agent import Gpus
from retuned.contract import Digest, Record, Solution, Workload
from retuned.errors import HarnessError, MissingDependency
from retuned.lab.generators.evolve import EvolveConfig
from retuned.lab.generators.priors import Priors
from retuned.lab.generators.transfer import Earlier
from retuned.ports import Finding
from retuned.stages.drift import gpu_words
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.verdict import Verdict


class FindingRecord(Record):
    """A finding as it crosses the process, and as the store keeps it."""

    solution: Solution
    """What was tried."""
    verdict: Verdict
    """What the judge said."""
    seconds: float = Field(ge=0.0, allow_inf_nan=False)
    """Wall time it cost."""
    definition: Digest | None = None
    """Content of the definition that it was tried against; None where nobody wrote it down."""

    @classmethod
    def of(cls, finding: Finding) -> FindingRecord:
        """Wrap a finding."""
        return cls(
            solution=finding.solution,
            verdict=finding.verdict,
            seconds=finding.seconds,
            definition=finding.definition,
        )

    @classmethod
    def stored(cls, body: Mapping[str, Any]) -> FindingRecord:
        """Read what the store keeps of a finding, beside which it keeps other things.

        Raises
        ------
        ValidationError
            If it is no finding.
        """
        return cls.model_validate({name: body.get(name) for name in cls.model_fields})

    def unwrap(self) -> Finding:
        """Return the finding."""
        return Finding(
            solution=self.solution,
            verdict=self.verdict,
            seconds=self.seconds,
            definition=self.definition,
        )


class DeviceStates(Record):
    """How accelerators stood while a pod measured; empty where nobody could say."""

    begin: Gpus = ()
    """Before anything ran; whoever is on them is a stranger."""
    end: Gpus = ()
    """When all was done."""

    @property
    def words(self) -> str:
        """What may have changed what was measured; empty where nothing is to be said.

        Examples
        --------
        >>> from retuned.stages.drift import GpuObservation, Throttle
        >>> hot = GpuObservation(gpu="amd-0", throttled=(Throttle.THERMAL,))
        >>> DeviceStates(begin=(hot,), end=(hot,)).words
        'as it began, amd-0 is throttled (thermal); as it ended, amd-0 is throttled (thermal)'
        """
        said = (("as it began", gpu_words(self.begin)), ("as it ended", gpu_words(self.end)))
        return "; ".join(f"{when}, {words}" for when, words in said if words)


class EarlierRecord(FindingRecord):
    """A finding of an earlier experiment as it crosses the process."""

    environment: Digest
    """Digest of the environment it was found in."""
    arch: str = ""
    """Architecture of that environment; empty where it is not known."""
    workloads: tuple[Workload, ...] = ()
    """Shapes it was measured at."""

    @classmethod
    def wrap(cls, each: Earlier) -> EarlierRecord:
        """Wrap a finding with where it comes from."""
        return cls(
            solution=each.finding.solution,
            verdict=each.finding.verdict,
            seconds=each.finding.seconds,
            definition=each.finding.definition,
            environment=each.environment,
            arch=each.arch,
            workloads=tuple(each.workloads),
        )

    def restore(self) -> Earlier:
        """Return the finding with where it comes from."""
        return Earlier(
            finding=self.unwrap(),
            environment=self.environment,
            arch=self.arch,
            workloads=self.workloads,
        )


class LabTask(Record):
    """What the lab is asked to do, without users' own definitions, which the catalog reads."""

    plan: ExperimentPlan
    """The plan."""
    root: str
    """Private folder for compiled objects, artifacts and raw numbers."""
    cores: tuple[int, ...] = ()
    """Cores that candidates may use; empty means all."""
    known: tuple[FindingRecord, ...] = ()
    """Findings of an earlier, interrupted run."""
    solutions: tuple[Solution, ...] = ()
    """Variants that the catalog does not have."""
    earlier: tuple[EarlierRecord, ...] = ()
    """What other experiments found on the same operator."""
    priors: Priors | None = None
    """What is believed of the operator's kernels before anything is tried; it only orders."""
    evolve: EvolveConfig | None = None
    """How a language model is asked for variants; None where it is not."""
    unconfined_references: bool = False
    """Whether a user's reference runs where neither seccomp nor Landlock confines it."""
    arch: str = Field(default="", max_length=256)
    """What servers run on, as an `Environment` names it; for pods that compile without it. Empty
    where nobody knows."""
    written: tuple[Solution, ...] = ()
    """Variants that a pod has had written by a model; strangers' code like any candidate."""
    refused: tuple[FindingRecord, ...] = ()
    """What a pod that compiled could not: a search need not try it."""


def finding_line(finding: Finding) -> dict[str, Any]:
    """Return the line that says that a finding is final."""
    return {"finding": FindingRecord.of(finding).model_dump(mode="json")}


def done_line(stood: DeviceStates | None = None) -> dict[str, Any]:
    """Return the last line of a lab that ended normally."""
    if stood is None or stood == DeviceStates():
        return {"done": True}
    return {"done": True, "gpus": stood.model_dump(mode="json")}


def stood_of(line: bytes) -> DeviceStates:
    """Return how accelerators stood, as a last line says; nothing where it says nothing fit."""
    try:
        message = json.loads(line)
        return DeviceStates.model_validate(message.get("gpus", {}))
    except (AttributeError, RecursionError, ValueError):  # the last is also pydantic's and JSON's
        return DeviceStates()


def failed_line(code: str, message: str) -> dict[str, Any]:
    """Return the last line of a lab that did not."""
    return {"failed": {"code": code, "message": message}}


def read_line(line: bytes) -> Finding | None:
    """Return the finding that a line says is final; None where it says that all is done.

    Raises
    ------
    HarnessError
        If it says that the lab failed, or says nothing that is known.
    MissingDependency
        If it says that this machine lacks something.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise HarnessError(f"the lab's process wrote {line[:80]!r}") from error
    if not isinstance(message, dict):
        raise HarnessError(f"the lab's process wrote {line[:80]!r}")
    if "done" in message:
        return None
    if "failed" in message:
        raise _failure(message["failed"])
    try:
        return FindingRecord.model_validate(message["finding"]).unwrap()
    except (KeyError, ValidationError) as error:
        raise HarnessError(f"the lab's process wrote no finding: {error}") from error


def _failure(body: object) -> HarnessError | MissingDependency:
    said = body if isinstance(body, dict) else {}
    kind = MissingDependency if said.get("code") == MissingDependency.code else HarnessError
    return kind(str(said.get("message", "the lab failed")))
