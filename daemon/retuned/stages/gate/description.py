"""A policy in words: its fields with value and meaning, and the effects of a live proof. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

from retuned.stages.gate.limits import (
    CANARY_MOST_PAIRS,
    CANARY_SHAM_PAIRS,
    LiveProof,
    LiveProofMode,
    NotSwitchable,
    OwnOverhead,
    Unproven,
)
from retuned.stages.gate.policy import KernelTuningPolicy
from retuned.stages.gate.records import GateDecision
from retuned.stages.gate.values import PolicyModel


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyField:
    """One field of a policy."""

    path: str
    """As in YAML, such as ``spec.liveProof.mode``."""
    value: str
    given: bool
    """Whether the file has it; else the value is the default."""
    meaning: str
    """First sentence of its documentation."""


_NOT_SWITCHABLE = {
    NotSwitchable.REFUSE: "Where steps cannot be timed, or a swap cannot be switched off and on, "
    "nothing is swapped (live-proof-unavailable).",
    NotSwitchable.CANARY: "What cannot be switched off and on is proven by boots of canary "
    "replicas before a serving pod has it: {sham} A/A pairs, then at most {most} pairs, each "
    "measured for {window} after {left_out}, with {pods} additional pods at one time. Where no "
    "replica can be made, as on one machine, it is not swapped (canary-replicas-unavailable). "
    "Where steps cannot be timed for another reason nothing is swapped (live-proof-unavailable).",
    NotSwitchable.KEEP: "What cannot be switched off and on is swapped and kept without a "
    "measurement. Where steps cannot be timed for another reason nothing is swapped "
    "(live-proof-unavailable).",
}


def explain_policy(policy: KernelTuningPolicy) -> tuple[PolicyField, ...]:
    """Return every field below ``spec`` in the order of the schema."""
    return tuple(_fields(policy.spec, "spec"))


def _fields(model: PolicyModel, path: str) -> Iterator[PolicyField]:
    body = model.model_dump(mode="json", by_alias=True)
    for name, field in type(model).model_fields.items():
        key = field.serialization_alias or field.alias or name
        value, place = getattr(model, name), f"{path}.{key}"
        if isinstance(value, PolicyModel):
            yield from _fields(value, place)
        elif isinstance(value, tuple) and value and isinstance(value[0], PolicyModel):
            for number, part in enumerate(value):
                yield from _fields(part, f"{place}[{number}]")
        else:
            yield PolicyField(
                path=place,
                value=_shown(body[key]),
                given=name in model.model_fields_set,
                meaning=(field.description or "").split("\n\n")[0].replace("\n", " "),
            )


def _shown(value: Any) -> str:  # noqa: ANN401 - JSON
    if isinstance(value, Enum):
        return str(value.value)
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={_shown(part)}" for key, part in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def live_proof_words(rule: LiveProof) -> tuple[str, ...]:
    """Return what a live proof under this rule leads to, a sentence for each verdict.

    Examples
    --------
    >>> live_proof_words(LiveProof(mode=LiveProofMode.OFF))
    ('No swap is measured on live traffic.',)
    """
    if rule.mode is LiveProofMode.OFF:
        return ("No swap is measured on live traffic.",)
    measured = (
        f"Each swap is switched off and on in random order for at most "
        f"{_minutes(rule.max_duration)}; differences of step time under {rule.min_effect:.2%} do "
        "not count."
        if rule.switching
        else "No swap is switched off and on in a serving server (switching: false)."
    )
    bounds = _slo_words(rule)
    if rule.windows:
        bounds = (
            "A swap starts only while the windows of swaps and those of live proofs are open.",
            *bounds,
        )
    if rule.mode is LiveProofMode.OBSERVE:
        return (measured, *bounds, "The verdict is reported, and the swap is kept whatever it is.")
    confirmed = f", once {rule.long_blocks} pairs of 10 s confirm it" if rule.long_blocks else ""
    no_effect = "rolls back"
    if rule.on_no_effect is Unproven.KEEP:
        no_effect = "is kept if GPU time is proven to be less, else it rolls back"
    little = "is kept" if rule.on_too_little_traffic is Unproven.KEEP else "rolls back"
    return (
        measured,
        *bounds,
        _NOT_SWITCHABLE[rule.when_not_switchable].format(
            sham=CANARY_SHAM_PAIRS,
            most=CANARY_MOST_PAIRS,
            window=_minutes(rule.canary_window),
            left_out=_minutes(rule.canary_leave_out),
            pods=2 * rule.canary_pairs,
        ),
        "Where the host sets the pace nothing is swapped (host-bound).",
        f"helps: the swap is kept{confirmed}.",
        f"harms: it rolls back and is quarantined; six pairs in a row over {rule.max_harm:.1%} "
        "end the proof immediately.",
        f"no-measurable-effect: it {no_effect}.",
        f"too-little-traffic: it {little}.",
        "not-concluded: it rolls back without blame.",
    )


def _minutes(duration: timedelta) -> str:
    return f"{duration.total_seconds() / 60.0:.3g} minutes"


def own_overhead_words(rule: LiveProof) -> str:
    """Return what a policy says about measurements of Retuned's own cost, as one sentence.

    Examples
    --------
    >>> own_overhead_words(LiveProof(own_overhead=OwnOverhead.OFF))
    'What Retuned itself adds to a step is not measured.'
    """
    if rule.own_overhead is OwnOverhead.OFF or rule.mode is LiveProofMode.OFF:
        return "What Retuned itself adds to a step is not measured."
    return (
        "What Retuned itself adds to a step is measured once a day while no swap is in force; "
        "above 1 % launches are counted in a share of the time."
    )


def plan_words(gate: GateDecision | None) -> tuple[str, ...]:
    """Return what a live proof of a proposal will do; nothing where no policy has decided."""
    rule = None if gate is None else gate.live_proof
    return () if rule is None else live_proof_words(rule)


def _slo_words(rule: LiveProof) -> tuple[str, ...]:
    slo = rule.slo
    bounds = (
        ("p99 of the first token", slo.ttft_p99_ms, " ms"),
        ("p99 from token to token", slo.itl_p99_ms, " ms"),
        ("waiting requests", slo.max_queue, ""),
    )
    words = ", ".join(f"{name} at most {n}{unit}" for name, n, unit in bounds if n is not None)
    if not words:
        return ()
    return (
        f"On one machine: while a bound is exceeded ({words}), or cannot be read, the swap is off "
        "and the proof pauses; the third pause ends it (slo-pressure).",
    )
