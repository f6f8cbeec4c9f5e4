"""What a row says: prompts and answers as JSON text, always spelled the same way. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

from retuned.contract import Definition, Digest, Environment, Guard, Solution, TrustClass, Workload
from retuned.lab.generators.devices import GPUS

Redact = Callable[[str], str]
TASK = (
    "Write a variant of the incumbent that computes the same definition and is faster at these "
    "shapes, weighted by their share of the launches, on this device."
)
_LAUNCH = {"language", "entry", "structure", "params", "grid", "layouts", "scratch_bytes"}


class RenderedText(NamedTuple):
    """A text, ready to leave."""

    text: str
    """JSON."""
    redacted: bool
    """Whether something was taken out, so that it is not what was measured."""


def prompt_of(
    definition: Definition,
    workloads: Sequence[Workload],
    *,
    environment: Environment,
    incumbent: Solution,
    redact: Redact,
) -> RenderedText:
    """Return the question; it has production's rates as shares only."""
    total = sum(workload.weight for workload in workloads)
    shapes = [
        {
            "axes": dict(workload.axes),
            "share": round(workload.weight / total if total else 1.0 / len(workloads), 6),
        }
        for workload in workloads
    ]
    body = {
        "task": TASK,
        "definition": definition.model_dump(mode="json", exclude={"tags"}),
        "shapes": shapes,
        "device": environment.model_dump(mode="json") | {"facts": _facts(environment.arch)},
        "incumbent": _launched(incumbent),
    }
    return _told(body, redact)


def completion_of(solution: Solution, *, guard: Guard, redact: Redact) -> RenderedText:
    """Return an answer: what is needed to run the variant, and the shapes it is for."""
    return _told(_launched(solution) | {"guard": guard.model_dump(mode="json")}, redact)


def author_of(solution: Solution) -> Literal["parameters", "model", "generator"]:
    """Say what kind of author a variant has; never who."""
    if solution.prompt is not None:
        return "model"
    return "parameters" if solution.trust is TrustClass.PARAMETERS else "generator"


def key_of(*parts: str) -> bytes:
    """Return what is remembered of a row to know it again: 16 bytes."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).digest()


def same_variant(solution: Solution, group: Digest) -> str:
    """Return a name that equal variants share, whatever their comments and white space."""
    body = solution.model_dump(mode="json", include=_LAUNCH - {"structure"})
    return json.dumps([group, body], sort_keys=True)


def _facts(arch: str) -> dict[str, object] | None:
    """Return what is known of every device of an architecture; None for processors and others."""
    facts = GPUS.get(arch)
    return asdict(facts) if facts is not None else None


def _launched(solution: Solution) -> dict[str, Any]:
    return solution.model_dump(mode="json", include=_LAUNCH | {"sources"})


def _told(body: object, redact: Redact) -> RenderedText:
    clean = _clean(body, redact)
    text = json.dumps(clean, ensure_ascii=False, separators=(",", ":"))
    return RenderedText(text=text, redacted=clean != body)


def _clean(body: object, redact: Redact) -> object:
    """Redact every string by itself, names of fields too: they may be a user's."""
    if isinstance(body, str):
        return redact(body)
    if isinstance(body, dict):
        return {redact(str(name)): _clean(value, redact) for name, value in body.items()}
    if isinstance(body, list | tuple):
        return [_clean(value, redact) for value in body]
    return body
