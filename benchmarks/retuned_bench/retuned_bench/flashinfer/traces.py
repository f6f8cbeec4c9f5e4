"""Workloads and traces in FlashInfer-Bench JSON.

What their record of a trace has no field for (digests, gate, bounds, the whole environment) travels
as text under ``retuned`` among the environment's libraries; a workload's weight in its uuid. Their
errors are absolute and relative, ours is relative to the incumbent's own: an error that was not
measured is NaN, never zero, so that no filter mistakes it for a perfect result.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retuned.contract import Definition, Environment, Trace, TraceStatus, Workload, digest_of
from retuned.errors import UnreadableInput
from retuned.ports import Finding
from retuned_bench.flashinfer.schema import (
    NAMESPACE,
    parse_object,
    traces_of,
    unreadable,
    validated,
)

_UUID = re.compile(rf"{NAMESPACE}-[0-9a-f]{{32}}(?:;weight=(?P<weight>[0-9.e+-]{{1,32}}))?")
_OWN_FIELDS = (
    "candidate",
    "incumbent",
    "reason",
    "gate",
    "latency_us",
    "reference_latency_us",
    "speedup_bounds",
    "confidence",
    "error_ratio",
)
_WITH_ERRORS = frozenset({TraceStatus.PASSED, TraceStatus.INCORRECT_NUMERICAL})
Text = Annotated[str, Field(min_length=1, max_length=1000)]


class _Input(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    type: str


class _Workload(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    axes: dict[Text, Annotated[int, Field(ge=0)]] = Field(max_length=64)
    inputs: dict[Text, _Input] = Field(default_factory=dict, max_length=64)
    uuid: Text


class _Errors(BaseModel):
    model_config = ConfigDict(extra="ignore")

    max_relative_error: float = math.nan
    max_absolute_error: float = math.nan


class _Performance(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    latency_ms: float
    reference_latency_ms: float
    speedup_factor: float


class _Environment(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    hardware: Text
    libs: dict[str, str] = Field(default_factory=dict, max_length=256)


class _Evaluation(BaseModel):
    model_config = ConfigDict(extra="ignore")

    status: TraceStatus
    environment: _Environment
    timestamp: Text
    log: str = ""
    correctness: _Errors | None = None
    performance: _Performance | None = None


class _Trace(BaseModel):
    """Their record; fields that are not named here are left out."""

    model_config = ConfigDict(extra="ignore")

    definition: Text
    workload: _Workload
    solution: str | None = None
    evaluation: _Evaluation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTrace:
    """A trace, and what of it our record has no field for."""

    trace: Trace
    """The record."""
    dropped: tuple[str, ...] = ()
    """Such as ``captured inputs``, whose files are not read."""


def trace_lines(
    findings: Iterable[Finding],
    workloads: Sequence[Workload],
    *,
    definition: Definition,
    environment: Environment,
    measured_at: datetime,
) -> Iterator[str]:
    """Yield findings of the lab as lines of a JSONL file: what `retuned kernels bench` writes.

    Parameters
    ----------
    findings
        Every candidate.
    workloads
        Shapes of the experiment.
    definition
        What the candidates compute.
    environment
        Where they were measured.
    measured_at
        When, with a zone.
    """
    for found in findings:
        for trace in traces_of(found, workloads, environment=environment, measured_at=measured_at):
            yield json.dumps(export_trace(trace, definition), allow_nan=False)


def export_trace(trace: Trace, definition: Definition) -> dict[str, Any]:
    """Return a trace as their JSON; one without a solution is their workload."""
    body: dict[str, Any] = {
        "definition": trace.definition,
        "workload": {
            "axes": dict(trace.workload.axes),
            "inputs": {name: {"type": "random"} for name in definition.inputs},
            "uuid": _uuid(trace.workload),
        },
        "solution": trace.solution,
        "evaluation": None,
    }
    if trace.status is None or trace.environment is None:
        return body
    errors = None
    if trace.status in _WITH_ERRORS:
        errors = {
            "max_relative_error": _or_nan(trace.max_relative_error),
            "max_absolute_error": _or_nan(trace.max_absolute_error),
        }
    body["evaluation"] = {
        "status": str(trace.status),
        "environment": {
            "hardware": trace.environment.arch,
            "libs": _libraries(trace, trace.environment),
        },
        "timestamp": trace.timestamp,
        "log": trace.detail,
        "correctness": errors,
        "performance": _performance(trace),
    }
    return body


def import_trace(body: Mapping[str, Any], *, where: str) -> ImportedTrace:
    """Read a trace or a workload.

    Raises
    ------
    UnreadableInput
        If it is neither, or contradicts itself.
    """
    found = validated(_Trace, body, where=where, code="bad-trace")
    captured = any(each.type == "safetensors" for each in found.workload.inputs.values())
    try:
        workload = Workload(
            definition=found.definition,
            axes=found.workload.axes,
            weight=_weight(found.workload.uuid, where=where),
        )
        head: dict[str, Any] = {
            "definition": found.definition,
            "workload": workload,
            "solution": found.solution,
        }
        ran = {} if found.evaluation is None else _evaluated(found.evaluation, where=where)
        trace = Trace.model_validate({**head, **ran})
    except ValidationError as error:
        raise unreadable(error, where=where, code="bad-trace") from None
    return ImportedTrace(trace=trace, dropped=("captured inputs",) if captured else ())


def _evaluated(found: _Evaluation, *, where: str) -> dict[str, Any]:
    libraries = dict(found.environment.libs)
    own = libraries.pop(NAMESPACE, None)
    said = parse_object(own, where=f"{where}: libs.{NAMESPACE}") if own is not None else {}
    unknown = sorted(said.keys() - {*_OWN_FIELDS, "environment"})
    if unknown:
        message = f"libs.{NAMESPACE} says {unknown}, which this version does not know"
        raise UnreadableInput("bad-trace", where=where, message=message)
    environment = said.pop("environment", None) or {
        "arch": found.environment.hardware,
        "runtime": libraries.get("cuda", libraries.get("rocm", "")),
        "torch": libraries.get("torch", ""),
        "triton": libraries.get("triton", ""),
    }
    return {
        **_numbers(found),
        **said,
        "status": found.status,
        "detail": found.log[:4000],
        "environment": environment,
        "timestamp": found.timestamp,
    }


def _numbers(found: _Evaluation) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if found.performance is not None:
        made = {
            "latency_us": 1e3 * found.performance.latency_ms,
            "reference_latency_us": 1e3 * found.performance.reference_latency_ms,
            "speedup_factor": found.performance.speedup_factor,
        }
    if found.correctness is not None:
        for name in ("max_relative_error", "max_absolute_error"):
            value = getattr(found.correctness, name)
            made[name] = value if math.isfinite(value) else None
    return made


def _libraries(trace: Trace, environment: Environment) -> dict[str, str]:
    known = {
        "torch": environment.torch,
        "triton": environment.triton,
        "compiler": environment.compiler,
        "runtime": environment.runtime,
        "driver": environment.driver,
    }
    own = trace.model_dump(mode="json", include={*_OWN_FIELDS, "environment"}, exclude_none=True)
    text = json.dumps(own, separators=(",", ":"), sort_keys=True)
    return {**{name: value for name, value in known.items() if value}, NAMESPACE: text}


def _performance(trace: Trace) -> dict[str, float] | None:
    if trace.latency_us is None or trace.reference_latency_us is None:
        return None
    assert trace.speedup_factor is not None, "a trace that passed has all three"
    return {
        "latency_ms": trace.latency_us / 1e3,
        "reference_latency_ms": trace.reference_latency_us / 1e3,
        "speedup_factor": trace.speedup_factor,
    }


def _uuid(workload: Workload) -> str:
    """Return the same name for the same shape, so that traces of several solutions pair up."""
    digest = digest_of(workload.model_dump(mode="json", exclude={"weight"}))
    named = f"{NAMESPACE}-{digest.removeprefix('sha256:')[:32]}"
    return named if workload.weight == 1.0 else f"{named};weight={workload.weight!r}"


def _weight(uuid: str, *, where: str) -> float:
    match = _UUID.fullmatch(uuid)
    if match is None or match["weight"] is None:
        return 1.0
    try:
        weight = float(match["weight"])
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise UnreadableInput("bad-trace", where=where, message="the uuid's weight is not a number")
    return weight


def _or_nan(value: float | None) -> float | str:
    return "NaN" if value is None else value
