"""Messages between the daemon and its lab: one format, written and parsed here.

One object goes in, one JSON line comes out per finding, and a last line reports the end:
``{"finding": {...}}``, ``{"done": true}`` or ``{"failed": {"code", "message"}}``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from retuned.api.agent import Gpus
from retuned.contract import Digest, Record, Solution, Workload
from retuned.errors import HarnessError, MissingDependency
from retuned.experiment.tunable_task import TunableInputs
from retuned.lab.generators.evolve import EvolveConfig
from retuned.lab.generators.priors import Priors
from retuned.lab.generators.transfer import Earlier
from retuned.ports import Finding
from retuned.stages.drift import gpu_words
from retuned.stages.experiment import ExperimentPlan, Turn
from retuned.stages.proposal import is_tunable
from retuned.stages.verdict import Verdict

MAX_TURNS = 256
"""Turns in the last line."""


class FindingRecord(Record):
    """A finding as a message and as a stored record."""

    solution: Solution
    verdict: Verdict
    seconds: float = Field(ge=0.0, allow_inf_nan=False)
    definition: Digest | None = None
    """Digest of the definition it was tried against; None if it was not recorded."""

    @classmethod
    def of(cls, finding: Finding) -> FindingRecord:
        return cls(
            solution=finding.solution,
            verdict=finding.verdict,
            seconds=finding.seconds,
            definition=finding.definition,
        )

    @classmethod
    def stored(cls, body: Mapping[str, Any]) -> FindingRecord:
        """Parse a stored finding, which has additional fields.

        Raises
        ------
        ValidationError
            If it is not a finding.
        """
        return cls.model_validate({name: body.get(name) for name in cls.model_fields})

    def unwrap(self) -> Finding:
        return Finding(
            solution=self.solution,
            verdict=self.verdict,
            seconds=self.seconds,
            definition=self.definition,
        )


class DeviceStates(Record):
    """States of the accelerators during a pod's measurement; empty if unknown."""

    begin: Gpus = ()
    end: Gpus = ()

    @property
    def words(self) -> str:
        """Return possible disturbances of the measurement as text; may be empty.

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
    """A finding of an earlier experiment, as a message."""

    environment: Digest
    arch: str = ""
    """Architecture of that environment; empty if unknown."""
    workloads: tuple[Workload, ...] = ()

    @classmethod
    def wrap(cls, each: Earlier) -> EarlierRecord:
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
        return Earlier(
            finding=self.unwrap(),
            environment=self.environment,
            arch=self.arch,
            workloads=self.workloads,
        )


class LabTask(Record):
    """A task of the lab, without users' own definitions, which the catalog parses."""

    plan: ExperimentPlan
    root: str
    """Private folder for compiled objects, artifacts and raw numbers."""
    cores: tuple[int, ...] = ()
    """Cores that candidates may use; empty means all."""
    known: tuple[FindingRecord, ...] = ()
    solutions: tuple[Solution, ...] = ()
    earlier: tuple[EarlierRecord, ...] = ()
    priors: Priors | None = None
    evolve: EvolveConfig | None = None
    unconfined_references: bool = False
    """Whether users' references run where neither seccomp nor Landlock confines them."""
    arch: str = Field(default="", max_length=256)
    """The servers' architecture, as an `Environment` names it; for pods that compile without the
    device. Empty if unknown.
    """
    written: tuple[Solution, ...] = ()
    """Variants that a model wrote in another pod; untrusted like any candidate."""
    refused: tuple[FindingRecord, ...] = ()
    tunable: TunableInputs | None = None
    """What an experiment on a tunable needs from the server; None for kernels."""

    @model_validator(mode="after")
    def _tunable_of_plan(self) -> Self:
        name = self.plan.definition
        if is_tunable(name) != (self.tunable is not None):
            raise ValueError(f"tunable: only a plan about a tunable has it, this is about {name}")
        if self.tunable is not None and self.tunable.report.id != name:
            raise ValueError(f"tunable.report.id is {self.tunable.report.id}, the plan's is {name}")
        return self


def finding_line(finding: Finding) -> dict[str, Any]:
    return {"finding": FindingRecord.of(finding).model_dump(mode="json")}


def done_line(stood: DeviceStates | None = None, *, turns: Sequence[Turn] = ()) -> dict[str, Any]:
    body: dict[str, Any] = {"done": True}
    if stood is not None and stood != DeviceStates():
        body["gpus"] = stood.model_dump(mode="json")
    if turns:
        body["turns"] = [each.model_dump(mode="json") for each in turns[:MAX_TURNS]]
    return body


def turns_of(line: bytes) -> tuple[Turn, ...]:
    """Return the turns in the last line; none if there are none that can be read."""
    try:
        found = json.loads(line).get("turns", [])
        return tuple(Turn.model_validate(each) for each in found[:MAX_TURNS])
    except (AttributeError, RecursionError, TypeError, ValueError):
        return ()


def stood_of(line: bytes) -> DeviceStates:
    try:
        message = json.loads(line)
        return DeviceStates.model_validate(message.get("gpus", {}))
    except (AttributeError, RecursionError, ValueError):  # the last is also pydantic's and JSON's
        return DeviceStates()


def failed_line(code: str, message: str) -> dict[str, Any]:
    return {"failed": {"code": code, "message": message}}


def read_line(line: bytes) -> Finding | None:
    """Return the finding in a line; None if the line reports the end.

    Raises
    ------
    HarnessError
        If it reports a failure of the lab, or is unknown.
    MissingDependency
        If it reports a missing dependency.
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
