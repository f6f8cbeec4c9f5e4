"""From the JSON of a profile or a drift report to rows that pages and tables share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from retuned.report.plots import Bar, Pair
from retuned.stages.trace import ShapeSource
from retuned.text import (
    NOTHING,
    clean,
    count,
    duration,
    finite,
    kernel,
    label,
    percent,
    plural,
    shape,
    share,
    short,
)

Json = Mapping[str, Any]
_PLOTTED = 52
WHOLE = "(whole workload)"
"""Name in reasons that concern no single kernel."""


def records(data: object, key: str) -> list[Json]:
    """Return the list of objects under `key`; absent, null or foreign entries are left out."""
    found = data.get(key) if isinstance(data, Mapping) else None
    if not isinstance(found, Sequence) or isinstance(found, str):
        return []
    return [entry for entry in found if isinstance(entry, Mapping)]


def section(data: object, key: str) -> Json:
    """Return the object under `key`, empty where absent."""
    found = data.get(key) if isinstance(data, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def amount(data: Json, key: str) -> float:
    """Return a number that is finite and not negative, else 0."""
    return max(finite(data.get(key)) or 0.0, 0.0)


def named(data: Json, key: str = "kernel", *, limit: int = 0) -> str:
    """Return the text under `key`, safe to show; a `limit` shortens it as a kernel's name.

    Whole by default: it is also the key that launches are added up under.
    """
    found = data.get(key)
    text = clean(found) if isinstance(found, str) and found else "(unnamed)"
    return kernel(text, limit) if limit else text


def about(reason: Json, *, limit: int = 0) -> str:
    """Return what a reason is about: kernel and shape, or all of it where it names no kernel."""
    if not reason.get("kernel"):
        return WHOLE
    shape = reason.get("shape")
    where = short(shape, limit or 400) if shape else ""
    return f"{named(reason, limit=limit)} {where}".strip()


def geometry(signature: Json) -> str:
    """Dims where known, else what was launched."""
    dims = shape(signature.get("dims") or ())
    if dims:
        return dims
    parts = [
        f"{word} {shape(signature[key])}"
        for word, key in (("blocks", "blocks"), ("threads", "threads"))
        if signature.get(key) and any(signature[key])
    ]
    mode = finite(signature.get("mode"))
    return ", ".join([*parts, f"mode {mode:.0f}"] if mode else parts)


def types(signature: Json) -> str:
    """Element types, repeated ones once, and the layout."""
    found = signature.get("dtypes")
    known = [label(t) for t in found] if isinstance(found, Sequence) else []
    parts = [", ".join(dict.fromkeys(known)), label(signature.get("layout") or "")]
    return ", ".join(part for part in parts if part and part != NOTHING) or NOTHING


def mean_duration(signature: Json) -> str:
    """Kernel time of one launch."""
    launches = amount(signature, "launches")
    return duration(amount(signature, "gpu_time_ns") / launches) if launches else NOTHING


def sure(signature: Json) -> str:
    """Confidence in the dims; empty without dims."""
    return percent(signature.get("shape_confidence")) if signature.get("dims") else NOTHING


def skipped(value: object) -> str:
    """Rows that were not counted, by reason."""
    if not isinstance(value, Mapping) or not value:
        return "nothing skipped"
    return ", ".join(f"{count(n)} {clean(str(reason))}" for reason, n in value.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShare:
    """One kernel over all its signatures."""

    kernel: str
    """Name, safe to show."""
    launches: float
    """Launches."""
    gpu_time_ns: float
    """Sum of durations."""
    share: float
    """Of the profile's kernel time."""
    cumulative: float
    """Share of this and all larger kernels."""


def by_kernel(profile: Json) -> tuple[KernelShare, ...]:
    """Sum signatures to kernels, by falling kernel time."""
    time: dict[str, float] = {}
    launches: dict[str, float] = {}
    for signature in records(profile, "signatures"):
        name = named(signature)
        time[name] = time.get(name, 0.0) + amount(signature, "gpu_time_ns")
        launches[name] = launches.get(name, 0.0) + amount(signature, "launches")
    total = sum(time.values()) or 1.0
    ordered = sorted(time, key=lambda name: (-time[name], name))
    running = accumulate(time[name] / total for name in ordered)
    return tuple(
        KernelShare(
            kernel=name,
            launches=launches[name],
            gpu_time_ns=time[name],
            share=time[name] / total,
            cumulative=min(reached, 1.0),
        )
        for name, reached in zip(ordered, running, strict=True)
    )


def profile_sentence(kernels: Sequence[KernelShare]) -> str:
    """Return how concentrated the kernel time is, in one sentence."""
    if not kernels or not kernels[0].gpu_time_ns:
        return "No kernel launches were found."
    most = next(rank for rank, k in enumerate(kernels, start=1) if k.cumulative >= 0.8 - 1e-9)
    first = kernels[0]
    if len(kernels) == 1:
        return f"One kernel takes all kernel time: {kernel(first.kernel, 48)}."
    if most == 1:
        return (
            f"One of {count(len(kernels))} kernels takes {share(first.share)} of kernel time:"
            f" {kernel(first.kernel, 48)}."
        )
    return (
        f"{most} of {count(len(kernels))} kernels take {share(kernels[most - 1].cumulative)} of"
        f" kernel time; the largest is {kernel(first.kernel, 48)} with {share(first.share)}."
    )


def source_bars(profile: Json) -> list[Bar]:
    """Share of kernel time by where shapes come from, best source first; absent ones left out."""
    time: dict[str, float] = {}
    for signature in records(profile, "signatures"):
        source = label(signature.get("shape_source") or "none")
        time[source] = time.get(source, 0.0) + amount(signature, "gpu_time_ns")
    total = sum(time.values()) or 1.0
    best = {source.value: rank for rank, source in enumerate(ShapeSource)}
    ordered = sorted(time, key=lambda source: (best.get(source, len(best)), source))
    return [Bar(label=source, value=time[source] / total) for source in ordered]


def share_bars(kernels: Sequence[KernelShare], *, top: int) -> list[Bar]:
    """Return the `top` kernels and one bar for the rest."""
    rows = [
        Bar(label=kernel(k.kernel, _PLOTTED), value=k.share, note=plural(k.launches, "launch"))
        for k in kernels[:top]
    ]
    rest = kernels[top:]
    if rest:
        rows.append(
            Bar(
                label=plural(len(rest), "smaller kernel"),
                value=sum(k.share for k in rest),
                note=plural(sum(k.launches for k in rest), "launch"),
            )
        )
    return rows


def pairs(before: Json, after: Json, *, top: int) -> list[Pair]:
    """Return kernels of two profiles, the largest change of share first."""
    old = {k.kernel: k.share for k in by_kernel(before)}
    new = {k.kernel: k.share for k in by_kernel(after)}
    rows = [
        Pair(label=kernel(name, _PLOTTED), before=old.get(name, 0.0), after=new.get(name, 0.0))
        for name in dict.fromkeys((*old, *new))
    ]
    return sorted(rows, key=lambda row: (-abs(row.after - row.before), row.label))[:top]


def _key(signature: Json) -> tuple[str, str, str]:
    return (named(signature), geometry(signature), label(signature.get("dtypes")))


def only_in(one: Json, other: Json) -> list[Json]:
    """Return signatures of `one` that `other` has not, by falling share."""
    known = {_key(signature) for signature in records(other, "signatures")}
    found = [s for s in records(one, "signatures") if _key(s) not in known]
    return sorted(found, key=lambda s: -amount(s, "share"))


def drift_pairs(drift: Json, *, top: int) -> list[Pair]:
    """Return shares before and after: the report's own lists if any, else its reasons."""
    rows: dict[str, Pair] = {}
    listed = [*records(drift, "after"), *records(drift, "before")] or records(drift, "reasons")
    for entry in listed:
        where = label(entry.get("shape")) if entry.get("shape") else ""
        name = f"{named(entry, limit=_PLOTTED)} {where}".strip()
        row = Pair(
            label=name, before=amount(entry, "share_before"), after=amount(entry, "share_after")
        )
        if row.before or row.after:
            rows.setdefault(name, row)
    ordered = sorted(rows.values(), key=lambda row: (-abs(row.after - row.before), row.label))
    return ordered[:top]


def verdict_words(drift: Json) -> str:
    """Return what the detector made of it, as a headline."""
    said = {
        "adopt": "Drift, but covered by what is already tuned",
        "retune": "Drift, worth a retune",
        "alarm": "The same work at another speed: an alarm about the machine",
    }
    found = said.get(str(drift.get("action")))
    return found or ("Drift found" if drift.get("detected") else "No drift found")


def files_of(names: object) -> tuple[str, str]:
    """Return what to call two profiles: their file names, whole paths where those are the same."""
    if not isinstance(names, Sequence) or isinstance(names, str) or len(names) != 2:
        return ("before", "after")
    whole = (label(names[0]), label(names[1]))
    last = (whole[0].rsplit("/", 1)[-1], whole[1].rsplit("/", 1)[-1])
    chosen = last if last[0] != last[1] and all(last) else whole
    return (short(chosen[0], 80), short(chosen[1], 80))


def sentence(drift: Json) -> str:
    """Return the report's own sentence, or whether anything was found."""
    said = drift.get("sentence")
    if isinstance(said, str) and said:
        return clean(said)
    return "The workload drifted." if drift.get("detected") else "No drift was found."
