"""Documents of FlashInfer-Bench: untrusted JSON in, and a finding of the lab as their traces."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from retuned.contract import Environment, Trace, TraceStatus, Workload
from retuned.errors import Refused, UnreadableInput
from retuned.ports import Finding
from retuned.stages.verdict import Reason
from retuned.strict_yaml import read_text

MAX_BYTES = 32 * 2**20
"""Largest file."""
MAX_DOCUMENTS = 100_000
"""Most lines of a JSONL file."""
_MAX_DEPTH = 24
_M = TypeVar("_M", bound=BaseModel)
NAMESPACE = "retuned"
"""Marks what their schema has no field for."""


class DocumentType(StrEnum):
    """What a document is."""

    DEFINITION = "definition"
    SOLUTION = "solution"
    TRACE = "trace"


class NotExportable(Refused):
    """A record that their schema cannot express."""

    code = "not-exportable"


def read_documents(path: Path) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Read a ``.json`` file with one document, or a ``.jsonl`` file with one a line.

    Returns pairs of (place for messages, document).

    Raises
    ------
    UnreadableInput
        If it is absent, too large, no JSON, too deep, says a key twice or holds no object.
    """
    text = read_text(path, max_bytes=MAX_BYTES)
    if path.suffix != ".jsonl":
        return ((str(path), parse_object(text, where=str(path))),)
    lines = [(f"{path}:{n}", line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(lines) > MAX_DOCUMENTS:
        raise UnreadableInput(
            "too-large", where=str(path), message=f"has more than {MAX_DOCUMENTS} lines; split it"
        )
    return tuple((where, parse_object(line, where=where)) for where, line in lines)


def parse_object(text: str, *, where: str) -> dict[str, Any]:
    """Read one JSON object.

    Raises
    ------
    UnreadableInput
        As `read_documents`.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise _unreadable("twice", where, f"says {twice[:60]!r} twice")
        return made

    def no_constant(word: str) -> NoReturn:
        raise _unreadable("no-json", where, f"holds {word}, which JSON has not")

    try:
        found = json.loads(text, object_pairs_hook=once, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise _unreadable("no-json", where, f"is not JSON: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise _unreadable("no-object", where, "holds no JSON object")
    _check_depth(found, where)
    return found


def kind_of(body: Mapping[str, Any], *, where: str) -> DocumentType:
    """Tell what a document is by the fields that only one kind has.

    Raises
    ------
    UnreadableInput
        If it is none of them.
    """
    for key, kind in (
        ("reference", DocumentType.DEFINITION),
        ("spec", DocumentType.SOLUTION),
        ("workload", DocumentType.TRACE),
    ):
        if key in body:
            return kind
    raise _unreadable(
        "unknown-document",
        where,
        "is not a definition (`reference`), solution (`spec`) or trace (`workload`)",
    )


def validated(model: type[_M], body: Mapping[str, Any], *, where: str, code: str) -> _M:
    """Check a document against a model.

    Raises
    ------
    UnreadableInput
        With the place of the first problem.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise unreadable(error, where=where, code=code) from None


def unreadable(error: ValidationError, *, where: str, code: str) -> UnreadableInput:
    """Turn pydantic's first complaint into an error."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the document"
    return _unreadable(code, where, f"{place}: {first['msg']}")


def _check_depth(found: object, where: str) -> None:
    level: Sequence[object] = [found]
    for _ in range(_MAX_DEPTH):
        level = [
            part
            for each in level
            if isinstance(each, (dict, list))
            for part in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise _unreadable("too-deep", where, f"is nested deeper than {_MAX_DEPTH}")


def _unreadable(code: str, where: str, message: str) -> UnreadableInput:
    return UnreadableInput(code, where=where, message=message)


_WRONG = TraceStatus.INCORRECT_NUMERICAL
_BROKEN = TraceStatus.RUNTIME_ERROR
_UNBUILT = TraceStatus.COMPILE_ERROR
STATUS: Mapping[str, TraceStatus] = {
    Reason.FASTER: TraceStatus.PASSED,
    Reason.SLOWER: TraceStatus.PASSED,
    Reason.NOT_FASTER_ENOUGH: TraceStatus.PASSED,
    Reason.WITHIN_NOISE: TraceStatus.PASSED,
    Reason.TOO_FEW_SAMPLES: TraceStatus.PASSED,
    Reason.LOST_SEARCH: TraceStatus.PASSED,
    Reason.CONTRACT: _UNBUILT,
    Reason.COMPILE_FAILED: _UNBUILT,
    Reason.BINARY_AUDIT: _UNBUILT,
    Reason.OVER_LIMIT: _UNBUILT,
    Reason.CRASHED: _BROKEN,
    Reason.OUT_OF_MEMORY: _BROKEN,
    Reason.OUT_OF_BOUNDS: _BROKEN,
    Reason.INPUT_MODIFIED: _BROKEN,
    Reason.IMPOSSIBLY_FAST: _BROKEN,
    Reason.CLOCKS_DISAGREE: _BROKEN,
    Reason.TIMED_OUT: TraceStatus.TIMEOUT,
    Reason.OUTPUT_NOT_WRITTEN: _WRONG,
    Reason.NONDETERMINISTIC: _WRONG,
    Reason.WRONG_OUTPUT: _WRONG,
    Reason.NAN_MISMATCH: _WRONG,
    Reason.TIMED_OUTPUT_WRONG: _WRONG,
    "row-dependent": _WRONG,
}
"""A reason that is not here says nothing about the solution: no trace is made of it."""


def traces_of(
    finding: Finding,
    workloads: Sequence[Workload],
    *,
    environment: Environment,
    measured_at: datetime,
) -> tuple[Trace, ...]:
    """Return the outcome at each shape.

    A solution that passed has a trace where it was measured against the incumbent in fresh
    processes. One that lost the search has none, because it was not measured in fresh processes.

    Parameters
    ----------
    finding
        What the lab found.
    workloads
        Shapes of the experiment.
    environment
        Where it was measured.
    measured_at
        When, with a zone.
    """
    verdict = finding.verdict
    status = STATUS.get(verdict.reason)
    if status is None:
        return ()
    shared = {
        "definition": finding.solution.definition,
        "solution": finding.solution.name,
        "candidate": verdict.candidate,
        "incumbent": verdict.incumbent,
        "status": status,
        "reason": str(verdict.reason),
        "gate": verdict.gate,
        "detail": verdict.detail[:4000],
        "error_ratio": verdict.error_ratio,
        "environment": environment,
        "timestamp": measured_at.isoformat(),
    }
    if status is not TraceStatus.PASSED:
        return tuple(Trace.model_validate({**shared, "workload": each}) for each in workloads)
    return tuple(
        Trace.model_validate(
            {
                **shared,
                "workload": Workload(
                    definition=finding.solution.definition, axes=shape.axes, weight=shape.weight
                ),
                "latency_us": shape.candidate_us,
                "reference_latency_us": shape.incumbent_us,
                "speedup_factor": shape.speedup.point,
                "speedup_bounds": (shape.speedup.lower, shape.speedup.upper),
                "confidence": shape.speedup.confidence,
            }
        )
        for shape in verdict.shapes
    )
