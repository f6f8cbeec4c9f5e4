"""Distance of tunables to the roof: the time that physics allows over the time that was measured.

Pure. The work of a launch is counted from its key and what is fixed about the tunable. A key holds
upper ends of size classes, so the account is a range. Reports are untrusted: a number that is
missing, negative, huge or of another type makes the roof unknown.

The work is counted from below: every tensor once, matrix products alone. So the roof of the least
work is a lower bound of the time, and the distance to it an upper bound of what a better kernel can
save.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retuned.lab.physics import CARD_PEAKS, Peak, Work, roof_us
from retuned.report.profiles import Json, records, section
from retuned.report.survey_records import Gain, Roof
from retuned.runtime.tunables.records import bucket as size_class
from retuned.stages.verdict import JudgeSettings

SLACK = JudgeSettings().physics_slack
"""A time below this part of the roof contradicts it; clocks can run above the data sheet's."""
_MOST_SIZE = 2**31
"""Largest number that is accepted as a length of a tensor."""
_MOST_STEPS, _MOST_SEQUENCES = 64, 256
"""Sampled steps of a process and of a size class, and sequences of a step, that are read."""
_MOST_LAUNCHED = 2**53
"""Largest number that is accepted as an axis of a launch."""
_BYTES: Mapping[str, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "int8": 1,
}
"""Element types of a server's report; packed ones (``uint8``) are left out."""
_TRACED: Mapping[str, str] = {
    "float": "float32",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz",
    "signed char": "int8",
}
"""Element types of a PyTorch trace."""
_EXPERTS: Mapping[object, tuple[int, int, int]] = {
    # None: bfloat16 and float16, and products of int8 and emulated formats, which have no name.
    None: (1, 2, 2),
    "fp8_w8a8": (1, 1, 2),
    "fp8_w8a16": (1, 1, 2),
    "int8_w8a16": (1, 1, 2),
    "float32": (4, 4, 4),
}
"""Bytes of a weight (least, most) and of an activation, by vLLM's name of the type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Work of one launch."""

    least: Work
    """If all that the key leaves open is favourable."""
    most: Work
    """If all of it is unfavourable."""
    sampled: tuple[Work, ...] = ()
    """Of steps of this size whose lengths the server sampled."""


@dataclass(frozen=True, slots=True)
class Step:
    """Lengths of one sampled step."""

    queries: tuple[int, ...]
    """New rows of each sequence."""
    keys: tuple[int, ...]
    """Keys of each sequence after the step."""


Steps = Mapping[tuple[int, ...], Sequence[Step]]
"""Sampled steps by size class: rows, sequences, decode, longest."""


@dataclass(frozen=True, slots=True)
class _Range:
    low: int
    high: int


# --- accounts by family ---------------------------------------------------------------------------


def account_of(
    report: Json, axes: Mapping[str, int], *, alone: bool, steps: Steps | None = None
) -> Account | None:
    """Return the work of one launch with a key of a server's tunable; None if it does not follow.

    An autotuned kernel has no account: its key holds the elements of its largest tensor, and
    neither that all of them are read nor what its other tensors are.

    Parameters
    ----------
    report
        What the server reports about the tunable.
    axes
        Upper ends of the size classes.
    alone
        Whether one process reports tunables. With several, experts may be spread over them, and
        none of a token's experts is certain to be in this one.
    steps
        Sampled steps, for attention.
    """
    family, geometry = report.get("family"), section(report, "geometry")
    if family == "attention":
        return _attention(geometry, axes, steps or {})
    if family == "moe":
        return _experts(geometry, axes, alone=alone)
    return None


def _attention(geometry: Json, axes: Mapping[str, int], steps: Steps) -> Account | None:
    """Account for attention over a paged cache, causal, with or without a window.

    Least: sequences but the longest are as short as their rows allow, and their keys may be the
    longest's (a shared prefix). Keys that the step itself wrote, queries and outputs are in the
    cache, so only earlier keys and values come from memory. Most: all sequences are the longest.
    Masks that the key does not hold (chunks, prefixes that see ahead) are not in the account.
    """
    names = ("query_heads", "kv_heads", "head_size")
    heads, kv_heads, size = (_length(geometry.get(name)) for name in names)
    item, kv_item = (_bytes_of(geometry.get(name)) for name in ("dtype", "kv_dtype"))
    rows, sequences, longest = (_class(axes.get(n)) for n in ("rows", "sequences", "longest"))
    window, decode = _window(geometry.get("window")), axes.get("decode")
    if not (heads and kv_heads and size and item and kv_item):
        return None
    if not (rows and sequences and longest) or window is None or decode not in (0, 1):
        return None
    if decode:
        rows = sequences
    if rows.low > sequences.high * longest.high:
        return None
    most_sequences = min(sequences.high, rows.high)
    earlier = min(longest.low, window) - 1 if decode else 0
    keys = most_sequences * longest.high
    keys = min(keys, rows.high + most_sequences * (window - 1))
    key_bytes = 2 * kv_heads * size * kv_item
    operations = 4 * heads * size
    row_bytes = 2 * heads * size * item
    alike = steps.get(tuple(axes[n] for n in ("rows", "sequences", "decode", "longest")), ())
    return Account(
        least=Work(
            moved_bytes=earlier * key_bytes,
            operations=operations * _least_pairs(rows, sequences, longest, window, decode),
            operand_bytes=item,
        ),
        most=Work(
            moved_bytes=keys * key_bytes + rows.high * row_bytes,
            operations=operations
            * _pairs(rows.high, sequences=most_sequences, longest=longest.high, window=window),
            operand_bytes=item,
        ),
        sampled=tuple(
            Work(
                moved_bytes=_touched(step, window) * key_bytes + sum(step.queries) * row_bytes,
                operations=_exact_pairs(step, window) * operations,
                operand_bytes=item,
            )
            for step in alike
        ),
    )


def _touched(step: Step, window: int) -> int:
    """Return the keys that the rows of a step see, each once."""
    lengths = zip(step.queries, step.keys, strict=True)
    return sum(min(keys, rows + window - 1) for rows, keys in lengths)


def _exact_pairs(step: Step, window: int) -> int:
    """Return the pairs of a row and a key that it sees, of a step with known lengths."""
    lengths = zip(step.queries, step.keys, strict=True)
    return sum(_seen(keys, window) - _seen(keys - rows, window) for rows, keys in lengths)


def _least_pairs(rows: _Range, sequences: _Range, longest: _Range, window: int, decode: int) -> int:
    """Return the fewest pairs of a row and a key that it sees."""
    seen = min(longest.low, window)
    if decode:
        return seen + sequences.low - 1
    if sequences.high == 1:
        return _pairs(rows.low, sequences=1, longest=longest.low, window=window)
    # a row sees the rows before it; the last row of the longest sequence sees its window
    even, more = divmod(rows.low, min(sequences.high, rows.low))
    own = (min(sequences.high, rows.low) - more) * _seen(even, window)
    return max(own + more * _seen(even + 1, window), seen + rows.low - 1)


def _pairs(rows: int, *, sequences: int, longest: int, window: int) -> int:
    """Return the pairs if all sequences are the longest and have as many rows."""
    rows = min(rows, sequences * longest)
    even, more = divmod(rows, sequences)
    whole = _seen(longest, window)
    return (sequences - more) * (whole - _seen(longest - even, window)) + more * (
        whole - _seen(max(longest - even - 1, 0), window)
    )


def _seen(keys: int, window: int) -> int:
    """Return the pairs of a sequence whose rows are all new: each row sees those up to itself."""
    full = min(keys, window)
    return full * (full + 1) // 2 + (keys - full) * window


def _experts(geometry: Json, axes: Mapping[str, int], *, alone: bool) -> Account | None:
    """Account for one layer of experts: both products, from the look-up of the row on.

    Least: all tokens choose the same experts, the first product has no gate (N rows), and
    activations are in the cache. Most: tokens choose as many experts as there are, with a gate
    (2 N rows), and activations come from memory and go there.
    """
    if "dtype" not in geometry or not isinstance(geometry["dtype"], (str, type(None))):
        return None
    types, tokens = _EXPERTS.get(geometry["dtype"]), _class(axes.get("tokens"))
    experts, width, hidden, top_k = (_length(geometry.get(n)) for n in ("E", "N", "K", "top_k"))
    if not (experts and width and hidden and top_k) or types is None or tokens is None:
        return None
    low, high, activation = types
    product = width * hidden
    eight = str(geometry["dtype"]).endswith("w8a8")
    return Account(
        least=Work(
            moved_bytes=min(experts, top_k) * 2 * product * low if alone else 0,
            operations=2 * tokens.low * top_k * 2 * product if alone else 0,
            operand_bytes=1 if geometry["dtype"] is None or eight else activation,
        ),
        most=Work(
            moved_bytes=min(experts, tokens.high * top_k) * 3 * product * high
            + 2 * tokens.high * hidden * activation,
            operations=2 * tokens.high * top_k * 3 * product,
            operand_bytes=1 if eight else activation,
        ),
    )


def traced_account(family: str, signature: Json) -> Account | None:
    """Return the work of one launch of a trace; None if its shapes do not give it.

    Shapes are known for experts under vLLM's operator ``fused_experts``: tokens, both weights, and
    the choice of experts. The operator launches the kernel twice, so a launch has half of the
    work. How many of the chosen experts this process has, is not in the shapes: the least is 0.
    Attention's operator does not have the lengths of sequences.
    """
    dims, names = signature.get("dims"), signature.get("dtypes")
    if family != "moe" or not isinstance(dims, Sequence) or not isinstance(names, Sequence):
        return None
    shapes = [[_length(n) for n in each] for each in dims[:5] if isinstance(each, Sequence)]
    if [len(each) for each in shapes] != [2, 3, 3, 2, 2] or len(names) < len(shapes):
        return None
    (tokens, hidden), first, second, weights, chosen = shapes
    activation, item = (_bytes_of(_TRACED.get(str(names[at]))) for at in (0, 1))
    fits = first[2] == second[1] == hidden and first[0] == second[0]
    if not fits or weights != chosen or chosen[0] != tokens:
        return None
    experts, into, out, top_k = first[0], first[1], second[2], chosen[1]
    if not (tokens and hidden and experts and into and out and top_k and activation and item):
        return None
    product = hidden * (into + out)
    return Account(
        least=Work(moved_bytes=0, operations=0, operand_bytes=item),
        most=Work(
            moved_bytes=min(experts, tokens * top_k) * product * item // 2
            + tokens * hidden * activation,
            operations=tokens * top_k * product,
            operand_bytes=activation,
        ),
    )


# --- numbers of a report --------------------------------------------------------------------------


def _length(value: object) -> int | None:
    """Return a length of a tensor; None for anything else."""
    return value if type(value) is int and 0 < value <= _MOST_SIZE else None


def _class(value: object) -> _Range | None:
    """Return the ends of a size class by its upper end, a power of two in a server's report."""
    if type(value) is not int or not 0 < value <= _MOST_LAUNCHED:
        return None
    return _Range(value // 2 + 1 if value > 1 else 1, value)


def _window(value: object) -> int | None:
    """Return how many keys a row sees at most; None if the report does not give it."""
    first = value[0] if isinstance(value, Sequence) and not isinstance(value, str) and value else ()
    if type(first) is not int or first > _MOST_SIZE:
        return None
    return first + 1 if first >= 0 else _MOST_LAUNCHED


def _bytes_of(name: object) -> int | None:
    return _BYTES.get(name) if isinstance(name, str) else None


def card_of(answers: Sequence[Json]) -> str:
    """Return the name of the card of the processes that report tunables; empty if they differ."""
    names = {
        str(section(section(answer, "environment"), "device").get("name") or "")
        for answer in answers
        if records(answer, "tunables")
    }
    return names.pop() if len(names) == 1 else ""


def sampled_steps(answers: Sequence[Json]) -> Steps:
    """Return the steps whose lengths servers sampled, by size class; others are left out."""
    found: dict[tuple[int, ...], list[Step]] = {}
    for answer in answers:
        for body in records(section(answer, "steps"), "recent")[:_MOST_STEPS]:
            queries, keys = (_lengths(body.get(name)) for name in ("queries", "keys"))
            if not queries or len(queries) != len(keys) or body.get("sequences") != len(queries):
                continue
            if any(row > key for row, key in zip(queries, keys, strict=True)):
                continue
            sizes = (sum(queries), len(queries), int(max(queries) == 1), max(keys))
            alike = found.setdefault(tuple(size_class(each) for each in sizes), [])
            if len(alike) < _MOST_STEPS:
                alike.append(Step(queries, keys))
    return found


def _lengths(value: object) -> tuple[int, ...]:
    """Return the lengths of sequences; nothing if one of them is not a length."""
    if not isinstance(value, list) or len(value) > _MOST_SEQUENCES:
        return ()
    found = [_length(each) for each in value]
    return tuple(each for each in found if each) if all(found) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What concerns the roofs of all tunables of a server."""

    card: str
    """Name of the card; empty if processes differ."""
    alone: bool
    """Whether one process reports tunables."""
    steps: Steps
    """Sampled steps of all processes."""


def facts_of(answers: Sequence[Json]) -> Facts:
    """Return the facts of the answers of a server's processes."""
    able = sum(bool(records(answer, "tunables")) for answer in answers)
    return Facts(card=card_of(answers), alone=able == 1, steps=sampled_steps(answers))


# --- the distance ---------------------------------------------------------------------------------


def key_roof(
    report: Json, axes: Mapping[str, int], *, facts: Facts, each_us: float | None, captured: bool
) -> Roof:
    """Return the distance of one key of a server's tunable.

    Attention that was launched during a capture has none: the capture and its warm-up, which is
    timed, name the longest sequence that the server allows and work on short ones.
    """
    account = account_of(report, axes, alone=facts.alone, steps=facts.steps)
    if captured and account and report.get("family") == "attention":
        note = "lengths of a capture's warm-up are not in the key"
        return Roof(each_us=_micros(each_us), reason="roof-unknown", note=note)
    return roof_of(account, card=facts.card, each_us=each_us)


def roof_of(account: Account | None, *, card: str, each_us: float | None) -> Roof:
    """Return the distance of one key.

    Parameters
    ----------
    account
        Work of one launch; None if it does not follow from the key.
    card
        Name of the card.
    each_us
        Measured time of one launch; None or 0 if none was timed.
    """
    peak: Peak | None = CARD_PEAKS.get(card)
    if account is None or peak is None:
        why = "no peak rates for this card" if account else "the key does not give the work"
        return Roof(each_us=_micros(each_us), reason="roof-unknown", note=why)
    low_us, high_us = roof_us(account.least, peak), roof_us(account.most, peak)
    found = Roof(low_us=_micros(low_us), high_us=_micros(high_us), each_us=_micros(each_us))
    if not each_us or not math.isfinite(each_us) or each_us < 0:
        return found.model_copy(update={"reason": "time-unknown", "each_us": None})
    if each_us < SLACK * low_us:
        return found.model_copy(update={"reason": "impossibly-fast"})
    low, high = (round(min(us / each_us, 1.0), 4) for us in (low_us, high_us))
    sampled = [roof_us(work, peak) for work in account.sampled]
    mean = round(min(sum(sampled) / len(sampled) / each_us, 1.0), 4) if sampled else None
    return found.model_copy(update={"low": low, "high": high, "sampled": mean})


def _micros(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 3)


def beyond(roof: Roof, gain: Gain) -> bool:
    """Whether the expected gain needs less time than physics allows, whatever the key leaves open.

    The least time counts, so the true one may contradict a gain that this lets pass.
    """
    if roof.low is None or roof.low_us is None or not roof.each_us or gain.expected <= 1.0:
        return False
    return roof.each_us / gain.expected < SLACK * roof.low_us


def whole(keys: Sequence[tuple[float, Roof]]) -> Roof:
    """Return the distance over keys, each with its part of the time: times add up.

    Keys without a distance are left out; without any, the reason is that of the first key.
    """
    known = [(weight, each) for weight, each in keys if each.low is not None and weight > 0]
    total = sum(weight for weight, _ in known)
    if not known or not math.isfinite(total):
        first = next((each for _, each in keys if each.reason), None)
        if first is not None:
            return Roof(reason=first.reason, note=first.note)
        return Roof(reason="time-unknown" if keys else "roof-unknown")
    low = sum(weight * (each.low or 0.0) for weight, each in known) / total
    high = sum(weight * (each.high or 0.0) for weight, each in known) / total
    return Roof(low=round(low, 4), high=round(max(low, high), 4))


def partial(keys: Sequence[tuple[float, Roof]]) -> bool:
    """Whether some of the time has a distance and some has none."""
    states = {each.low is not None for weight, each in keys if weight > 0}
    return len(states) > 1
