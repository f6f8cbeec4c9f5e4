"""Features of a server that switch tuning off or change what a configuration is looked up by.

A feature is listed whether or not it is on: where a server reports nothing about it, its state is
``unknown``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from retuned.contract import Record
from retuned.report.profiles import Json, amount, records, section
from retuned.text import clean, finite, short

_OFF = frozenset(("", "0", "false", "no", "off", "none"))
_REPORTED = ("VLLM_", "TRITON_", "CUDA_")
"""Beginnings of the variables that a server reports; of others nothing is known."""
_PROCESSES = 256
_STEPS = 64
_LEAST_STEPS = 8
"""Steps that must agree before their sizes are evidence."""
_MOST_SPECULATED = 32


class Feature(Record):
    """One feature with its state in this server."""

    code: str
    """Stable reason code."""
    feature: str
    """Name for people."""
    state: Literal["on", "off", "suspected", "refused", "unknown"]
    """``refused``: the server names it as its reason; ``suspected``: steps look like it."""
    evidence: str
    """Where the state comes from."""
    effect: str
    """Effect on tuning."""
    families: tuple[str, ...]
    """Families of tunables that it concerns; empty means all."""


class AdapterState(Record):
    """One part of the runtime in one process: whether it found what it needs in the server."""

    process: str
    """The process."""
    part: str
    """A family, ``steps`` (safe points) or ``runtime`` (all of it)."""
    state: str
    """``on``, or the code why not; an unknown version of a server is named here."""
    failures: int = 0
    """Launches at which the runtime's own code failed and the server's own launch ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    code: str
    feature: str
    variables: tuple[str, ...]
    """Variables that switch it on; empty where only the command line does."""
    effect: str
    families: tuple[str, ...] = ()


_RULES = (
    _Rule(
        code="batch-invariant",
        feature="batch-invariant or deterministic mode",
        variables=("VLLM_BATCH_INVARIANT", "SGLANG_ENABLE_DETERMINISTIC_INFERENCE"),
        effect="tables are ignored, and another configuration would change answers: not tuned",
        families=("attention", "moe"),
    ),
    _Rule(
        code="speculative-decoding",
        feature="speculative decoding",
        variables=(),
        effect="a decode step has several rows for each sequence, so keys are multiples of the "
        "number of sequences, and attention counts as prefill",
    ),
    _Rule(
        code="prefix-caching",
        feature="prefix caching",
        variables=(),
        effect="prompts bring fewer rows at the same length, so the axes rows and longest part; "
        "recorded steps have both",
        families=("attention",),
    ),
    _Rule(
        code="lora-live",
        feature="LoRA adapters loaded live",
        variables=("VLLM_ALLOW_RUNTIME_LORA_UPDATING",),
        effect="the number and rank of adapters are part of the key of LoRA tables; a new adapter "
        "brings keys that were never measured",
        families=("lora", "moe"),
    ),
    _Rule(
        code="sleep-mode",
        feature="sleep mode",
        variables=(),
        effect="sleep frees memory; a second set of graphs is captured again after the wake-up",
    ),
    _Rule(
        code="compile-forbidden",
        feature="Triton's interpreter",
        variables=("TRITON_INTERPRET",),
        effect="kernels run in Python: times mean nothing, and nothing is tuned",
    ),
    _Rule(
        code="autotune-cached",
        feature="autotuners read results from disk",
        variables=("TRITON_CACHE_AUTOTUNING",),
        effect="a restart repeats the stored choice instead of a new draw",
        families=("autotune",),
    ),
    _Rule(
        code="graphs-shared",
        feature="one executable graph for several sizes",
        variables=("SGLANG_ENABLE_CUDA_GRAPH_DEDUP",),
        effect="an exchanged graph is undone at the next size: no change inside graphs",
    ),
    _Rule(
        code="library-experts",
        feature="AITER's kernels instead of Triton's",
        variables=("VLLM_ROCM_USE_AITER",),
        effect="experts and products leave Triton; AITER's tables are read at start",
        families=("moe",),
    ),
    _Rule(
        code="tuned-folder",
        feature="folder of tuned files",
        variables=("VLLM_TUNED_CONFIG_FOLDER", "SGLANG_MOE_CONFIG_DIR", "SGLANG_LORA_CONFIG_DIR"),
        effect="files here go before those of the package; without a folder, a table does not "
        "survive a restart as a file",
        families=("moe", "lora"),
    ),
)
FEATURE_CODES = tuple(rule.code for rule in _RULES)
"""Codes of all features, in the order of the survey."""


def features_of(answers: Mapping[str, Json]) -> tuple[Feature, ...]:
    """Return every feature with its state; nothing without a living server."""
    if not answers:
        return ()
    read = list(answers.values())[:_PROCESSES]
    variables: dict[str, str] = {}
    reports_variables = False
    for answer in read:
        environment = section(answer, "environment")
        found = section(environment, "variables")
        reports_variables |= isinstance(environment.get("variables"), Mapping)
        variables |= {str(name): str(value) for name, value in list(found.items())[:512]}
    refused = {
        str(report.get("refused")) for answer in read for report in records(answer, "tunables")
    }
    return tuple(
        _feature(rule, variables, refused, read, known=reports_variables) for rule in _RULES
    )


def _feature(
    rule: _Rule,
    variables: Mapping[str, str],
    refused: set[str],
    answers: list[Json],
    *,
    known: bool,
) -> Feature:
    state, evidence = _state(rule, variables, answers, known=known)
    if rule.code in refused:
        state, evidence = "refused", "the server refuses a tunable with this code"
    return Feature(
        code=rule.code,
        feature=rule.feature,
        state=state,
        evidence=evidence,
        effect=rule.effect,
        families=rule.families,
    )


_State = Literal["on", "off", "suspected", "refused", "unknown"]


def _state(
    rule: _Rule, variables: Mapping[str, str], answers: list[Json], *, known: bool
) -> tuple[_State, str]:
    for name in rule.variables:
        if name in variables:
            value = clean(variables[name])[:60]
            on = value.strip().lower() not in _OFF
            return ("on" if on else "off"), f"{name}={value}"
    if rule.code == "speculative-decoding":
        rows = _rows_of_decode(answers)
        if rows:
            return "suspected", f"sampled steps have {rows} rows for each of several sequences"
    reported = [name for name in rule.variables if name.startswith(_REPORTED)]
    if reported and known:
        return "off", f"{reported[0]} is not set"
    return "unknown", "the server reports nothing about it"


def _rows_of_decode(answers: list[Json]) -> int:
    """Return the rows a sequence that several steps with several sequences agree on; 0 if none."""
    counts: dict[int, int] = {}
    for answer in answers:
        for step in records(section(answer, "steps"), "recent")[:_STEPS]:
            queries = step.get("queries")
            if not isinstance(queries, list) or not 2 <= len(queries) <= 65_536:
                continue
            rows = {finite(each) for each in queries}
            one = rows.pop() if len(rows) == 1 else None
            if one is not None and 2 <= one <= _MOST_SPECULATED and one.is_integer():
                counts[int(one)] = counts.get(int(one), 0) + 1
    found = [rows for rows, steps in counts.items() if steps >= _LEAST_STEPS]
    return max(found, key=lambda rows: counts[rows], default=0)


def adapters_of(answers: Mapping[str, Json]) -> Iterator[AdapterState]:
    """Yield which parts of the runtime work in each process."""
    for process, answer in answers.items():
        on = answer.get("on") is True
        failures = int(amount(answer, "failures"))
        parts: dict[str, object] = {"runtime": "on" if on else "tunables-off"}
        if answer.get("steps"):
            parts["steps"] = section(answer, "steps").get("hook")
        parts |= dict(list(section(answer, "families").items())[:16])
        for part, state in parts.items():
            yield AdapterState(
                process=short(process, 400),
                part=short(part, 64),
                state=short(state, 64) if isinstance(state, str) else "unknown",
                failures=failures if part == "runtime" else 0,
            )
