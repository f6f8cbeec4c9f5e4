"""Survey of tunables: which configurations a server uses, and what a change could gain.

Pure judgement over reports of processes, profiles of traces, and past experiments; it runs no
experiment. Reports and names are untrusted: every list is bounded, every text is cut.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from retuned.report import survey_roof as roofs
from retuned.report.profiles import Json, amount, geometry, records, section
from retuned.report.survey_conclusion import conclude
from retuned.report.survey_features import adapters_of, features_of
from retuned.report.survey_files import SurveyedTable
from retuned.report.survey_records import (
    ChangeWay,
    Conclusion,
    FixedFamily,
    Gain,
    RankDifference,
    Roof,
    Survey,
    SurveyedKey,
    SurveyedTunable,
)
from retuned.report.tunable_families import (
    REASONS,
    WAYS,
    KernelFamily,
    Prior,
    family_of,
    prior_of,
)
from retuned.text import clean, finite, short

MOST_ROWS = 200
"""Tunables and families that a survey lists."""
MOST_KEYS = 64
"""Keys of a tunable that a survey lists."""
_PROCESSES, _REPORTS, _ASKED = 256, 1024, 256
"""Processes, tunables of a process and keys of a tunable that are read."""
_LONGEST = 400
"""Characters of an untrusted text."""
_MOST_COUNT, _MOST_US = 2**53, 1e15
"""Largest count and time that are accepted; larger ones count as these."""
_ATTENTION, _REDUCTION = "kernel_unified_attention", "reduce_segments"
_HOW = ("frozen", "exact", "nearest", "default", "literal", "table")


@dataclass(frozen=True, slots=True, kw_only=True)
class PastResult:
    """What an earlier experiment found for a tunable."""

    promoted: bool
    """Whether a table won."""
    low: float
    """Lower bound of the speedup; 1 if nothing won."""
    high: float
    """Upper bound."""
    expected: float
    """The speedup."""
    reason: str
    """The verdict's reason code."""


def survey_of(
    *,
    reports: Mapping[str, Json] | None = None,
    profile: Json | None = None,
    tables: Sequence[SurveyedTable] = (),
    past: Mapping[str, PastResult] | None = None,
    before: Json | None = None,
    card: str = "",
) -> Survey:
    """Judge what was read; every part may be absent.

    Parameters
    ----------
    reports
        Answers to ``tunables`` by process.
    profile
        A profile as ``retuned analyze --json`` prints it.
    tables
        Judged tuned files.
    past
        Results of earlier experiments by tunable.
    before
        JSON of an earlier survey, for choices that another start of the server made differently.
    card
        Name of the card of the traces; empty if unknown.
    """
    answers = dict(list((reports or {}).items())[:_PROCESSES])
    profile = profile or {}
    known = past or {}
    traced = _Traced.of(profile, card=cut(card))
    rows = _of_servers(answers, traced, known)
    card = cut(roofs.card_of(list(answers.values()))) if rows else traced.card
    rows = [_since(row, before) for row in rows] if before else rows
    if not rows:
        rows = _of_traces(traced)
    rows.sort(key=lambda row: (-(row.saving or 0.0), -(row.gain.expected), row.kernel))
    fixed = _fixed(traced, {row.kernel for row in rows})
    shares = [row.share for row in rows if row.share is not None]
    savings = [row.saving for row in rows if row.saving is not None]
    environment = section(next(iter(answers.values()), {}), "environment")
    found = Survey(
        processes=tuple(cut(name) for name in answers),
        launches=int(amount(profile, "launches")),
        kernel_time_ns=int(traced.total_ns),
        versions=_texts(section(environment, "versions")),
        card=card,
        tunables=tuple(rows[:MOST_ROWS]),
        fixed=tuple(fixed[:MOST_ROWS]),
        adapters=tuple(adapters_of(answers)),
        features=features_of(answers),
        tables=tuple(tables),
        changeable_share=min(sum(shares), 1.0) if shares else None,
        expected_saving=min(sum(savings), 1.0) if savings else None,
        conclusion=Conclusion(code="nothing-observed", sentence="-"),
    )
    return found.model_copy(update={"conclusion": conclude(found)})


# --- what a living server reports -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _KeyCount:
    """One key in one process."""

    process: str
    axes: Mapping[str, int]
    launches: int
    captured: int
    timed: int
    timed_us: float
    idle: int
    how: str
    config: str
    detail: str

    @property
    def time_us(self) -> float | None:
        """All launches, from the mean of the timed ones; None if none was timed."""
        return self.timed_us / self.timed * self.launches if self.timed else None


@dataclass(frozen=True, slots=True)
class _Server:
    """What concerns all tunables of a survey."""

    busy_us: Mapping[str, float]
    """By process."""
    able: int
    """Processes that report tunables."""
    facts: roofs.Facts


def _of_servers(
    answers: Mapping[str, Json], traced: _Traced, past: Mapping[str, PastResult]
) -> list[SurveyedTunable]:
    by_id: dict[str, dict[str, Json]] = defaultdict(dict)
    busy_us: dict[str, float] = {}
    for process, answer in answers.items():
        busy_us[process] = amount(section(answer, "steps"), "busy_s") * 1e6
        for report in records(answer, "tunables")[:_REPORTS]:
            by_id[cut(report.get("id"))][process] = report
    able = sum(bool(records(answer, "tunables")) for answer in answers.values())
    server = _Server(busy_us, able, roofs.facts_of(list(answers.values())))
    return [_tunable(id, reports, server, traced, past.get(id)) for id, reports in by_id.items()]


def _tunable(
    id: str,
    reports: Mapping[str, Json],
    server: _Server,
    traced: _Traced,
    past: PastResult | None,
) -> SurveyedTunable:
    first = next(iter(reports.values()))
    family, kernel = cut(first.get("family")), cut(first.get("kernel"))
    asked = [each for process, report in reports.items() for each in _asked(process, report)]
    keys = _keys(asked, first, past, server)
    part, source, remarks = _share(kernel, asked, server.busy_us, traced)
    differences = _differences(asked)
    if differences:
        remarks.append("ranks-differ")
    if len(reports) < server.able:
        remarks.append("not-in-all-processes")
    gain = _whole(keys, past)
    refused = next((cut(r.get("refused")) for r in reports.values() if r.get("refused")), "")
    tables = [section(report, "table") for report in reports.values() if report.get("table")]
    return SurveyedTunable(
        id=id,
        family=family,
        kernel=kernel,
        processes=tuple(cut(process) for process in reports),
        share=part,
        share_source=source,
        resolved=_resolved(keys),
        asked=tuple(keys[:MOST_KEYS]),
        hidden=max(0, len(keys) - MOST_KEYS),
        differences=tuple(differences[:MOST_KEYS]),
        gain=gain,
        roof=roofs.whole([(key.weight, key.roof) for key in keys]),
        saving=None if part is None or refused else _saving(part, gain),
        ways=_server_ways(reports.values(), sizes=sum(bool(key.captured) for key in keys)),
        refused=refused,
        table=_worst(cut(table.get("state")) for table in tables),
        remarks=tuple(sorted({*remarks, *_roof_remarks(keys)})),
    )


def _asked(process: str, report: Json) -> list[_KeyCount]:
    found = []
    for each in records(report, "asked")[:_ASKED]:
        how = str(each.get("how"))
        found.append(
            _KeyCount(
                process=cut(process),
                axes=_whole_numbers(section(each, "axes")),
                launches=_count(each, "launches"),
                captured=_count(each, "captured"),
                timed=_count(each, "timed"),
                timed_us=min(amount(each, "timed_us"), _MOST_US),
                idle=_count(each, "idle"),
                how=how if how in _HOW else "unknown",
                config=_config(each.get("config")),
                detail=cut(each.get("detail") or ""),
            )
        )
    return found


def _keys(
    asked: Sequence[_KeyCount], report: Json, past: PastResult | None, server: _Server
) -> list[SurveyedKey]:
    """Return keys over all processes; ranks that agree are one row."""
    groups: dict[str, list[_KeyCount]] = defaultdict(list)
    for each in asked:
        groups[json.dumps([sorted(each.axes.items()), each.how, each.config])].append(each)
    timed = any(each.time_us for each in asked)

    def weight(each: _KeyCount) -> float:
        return (each.time_us or 0.0) if timed else float(each.launches)

    total = sum(weight(each) for each in asked) or 1.0
    family, kernel = str(report.get("family")), str(report.get("kernel"))
    block = bool(section(report, "geometry").get("block_shape"))
    keys = []
    for group in groups.values():
        one = group[0]
        prior = prior_of(family, kernel, how=one.how, axes=one.axes, block=block)
        gain = _from_past(past) if past and one.how != "table" else gain_of(prior)
        captured = sum(each.captured for each in group)
        roof = roofs.key_roof(
            report,
            one.axes,
            facts=server.facts,
            each_us=_mean_us(group),
            captured=captured > 0,
        )
        keys.append(
            SurveyedKey(
                axes=dict(one.axes),
                launches=sum(each.launches for each in group),
                captured=captured,
                weight=sum(weight(each) for each in group) / total,
                how=one.how,
                config=one.config,
                detail=one.detail,
                gain=gain,
                roof=roof,
                remarks=("gain-beyond-roof",) if roofs.beyond(roof, gain) else (),
            )
        )
    return sorted(keys, key=lambda key: (-key.weight, -key.launches, str(key.axes)))


def _mean_us(group: Sequence[_KeyCount]) -> float | None:
    """Return the mean time of the timed launches; None if none was timed."""
    timed = sum(each.timed for each in group)
    return sum(each.timed_us for each in group) / timed if timed else None


def _roof_remarks(keys: Sequence[SurveyedKey]) -> list[str]:
    found = [code for key in keys for code in key.remarks]
    partial = roofs.partial([(key.weight, key.roof) for key in keys])
    return [*found, "roof-partial"] if partial else found


def _share(
    kernel: str, asked: Sequence[_KeyCount], busy_us: Mapping[str, float], traced: _Traced
) -> tuple[float | None, Literal["trace", "server", "none"], list[str]]:
    """Return the part of time, its source and remarks; a trace counts replays, a server not."""
    if kernel in traced.time_ns:
        return traced.time_ns[kernel] / (traced.total_ns or 1.0), "trace", []
    remarks = []
    if any(each.captured for each in asked):
        remarks.append("graphs-not-counted")
    if any(each.time_us is None and each.launches for each in asked):
        remarks.append("share-partial")
    if any(each.idle and not each.timed for each in asked):
        remarks.append("stream-idle")
    parts = []
    for process in {each.process for each in asked}:
        spent = [e.time_us for e in asked if e.process == process and e.time_us is not None]
        if spent and busy_us.get(process):
            parts.append(min(sum(spent) / busy_us[process], 1.0))
    if not parts:
        return None, "none", [each for each in remarks if each != "share-partial"]
    return sum(parts) / len(parts), "server", remarks


def _differences(asked: Sequence[_KeyCount]) -> list[RankDifference]:
    """Return the keys that processes resolved to different configurations."""
    by_axes: dict[tuple[tuple[str, int], ...], dict[str, str]] = defaultdict(dict)
    for each in asked:
        by_axes[tuple(sorted(each.axes.items()))].setdefault(
            each.process, f"{each.how}: {each.config}"
        )
    return [
        RankDifference(axes=dict(axes), configs=dict(list(configs.items())[:MOST_KEYS]))
        for axes, configs in sorted(by_axes.items())
        if len({text.partition(": ")[2] for text in configs.values()}) > 1
    ]


def _resolved(keys: Iterable[SurveyedKey]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for key in keys:
        found[key.how] += key.launches + key.captured
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _server_ways(reports: Iterable[Json], *, sizes: int) -> tuple[ChangeWay, ...]:
    """Return the ways that every process leaves open; of several codes the first counts."""
    states: dict[str, str] = {}
    for report in reports:
        for way, state in list(section(report, "ways").items())[:8]:
            name, code = cut(way), cut(state)
            if states.get(name, "on") == "on":
                states[name] = code
    return tuple(_way(name, code, sizes=sizes) for name, code in states.items())


def _way(name: str, state: str, *, sizes: int = 0) -> ChangeWay:
    cost_s, cost = WAYS.get(name, (None, "not measured"))
    if name == "recapture" and cost_s is not None:
        cost_s *= max(sizes, 1)
    return ChangeWay(way=name, state=state, cost_s=cost_s, cost=cost)


def _worst(states: Iterable[str]) -> str:
    found = set(states)
    return "lost" if "lost" in found else next(iter(sorted(found)), "")


def _since(row: SurveyedTunable, before: Json) -> SurveyedTunable:
    """Add the keys that an earlier survey found with other configurations, tables left out."""
    earlier: dict[str, set[str]] = defaultdict(set)
    for each in records(before, "tunables")[:_REPORTS]:
        if each.get("id") == row.id:
            for key in records(each, "asked")[:_ASKED]:
                if key.get("how") != "table":
                    axes = _whole_numbers(section(key, "axes"))
                    earlier[str(sorted(axes.items()))].add(cut(key.get("config")))
    found = [
        RankDifference(axes=key.axes, configs={"before": "; ".join(sorted(old)), "now": key.config})
        for key in row.asked
        if key.how != "table"
        and (old := earlier.get(str(sorted(key.axes.items()))))
        and key.config not in old
    ]
    if not found:
        return row
    remarks = tuple(sorted({*row.remarks, "start-differs"}))
    return row.model_copy(update={"differences": (*row.differences, *found), "remarks": remarks})


# --- what a trace shows ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traced:
    """Kernels of a profile."""

    total_ns: float
    time_ns: Mapping[str, float]
    signatures: Mapping[str, Sequence[Json]]
    card: str

    @classmethod
    def of(cls, profile: Json, *, card: str) -> _Traced:
        """Sum signatures to kernels."""
        time_ns: dict[str, float] = defaultdict(float)
        signatures: dict[str, list[Json]] = defaultdict(list)
        for each in records(profile, "signatures"):
            name = cut(each.get("kernel"), limit=4096)
            time_ns[name] += amount(each, "gpu_time_ns")
            signatures[name].append(each)
        return cls(
            total_ns=sum(time_ns.values()),
            time_ns=dict(time_ns),
            signatures=signatures,
            card=card,
        )

    def family(self, kernel: str) -> KernelFamily:
        """Return a kernel's family; a reduction belongs to the attention kernel of its trace."""
        if kernel == _REDUCTION and _ATTENTION not in self.time_ns:
            return family_of(f"{_ATTENTION}_")
        return family_of(kernel)


def _of_traces(traced: _Traced) -> list[SurveyedTunable]:
    """Return the kernels of a trace that belong to families with an adapter."""
    return [
        _traced_tunable(kernel, family, traced)
        for kernel in traced.time_ns
        if (family := traced.family(kernel)).live
    ]


def _traced_tunable(kernel: str, family: KernelFamily, traced: _Traced) -> SurveyedTunable:
    part = traced.time_ns[kernel] / (traced.total_ns or 1.0)
    gain = gain_of(family.prior)
    how = "literal" if family.name == "attention" else "unknown"
    whole = traced.time_ns[kernel] or 1.0
    keys = [
        SurveyedKey(
            shape=short(geometry(each), _LONGEST),
            launches=int(amount(each, "launches")),
            weight=amount(each, "gpu_time_ns") / whole,
            how=how,
            gain=gain,
            roof=roof,
            remarks=("gain-beyond-roof",) if roofs.beyond(roof, gain) else (),
        )
        for each in traced.signatures[kernel]
        for roof in [_traced_roof(family, each, card=traced.card)]
    ]
    keys.sort(key=lambda key: (-key.weight, key.shape))
    return SurveyedTunable(
        id="",
        family=family.name,
        kernel=short(kernel, _LONGEST),
        share=part,
        share_source="trace",
        resolved=_resolved(keys),
        asked=tuple(keys[:MOST_KEYS]),
        hidden=max(0, len(keys) - MOST_KEYS),
        gain=gain,
        roof=roofs.whole([(key.weight, key.roof) for key in keys]),
        saving=_saving(part, gain),
        ways=tuple(_way(way, "needs-server") for way in family.reach),
        remarks=tuple(sorted(set(_roof_remarks(keys)))),
    )


def _traced_roof(family: KernelFamily, signature: Json, *, card: str) -> Roof:
    launches = amount(signature, "launches")
    each_us = amount(signature, "gpu_time_ns") / 1e3 / launches if launches >= 1 else None
    account = roofs.traced_account(family.name, signature)
    return roofs.roof_of(account, card=card, each_us=each_us)


def _fixed(traced: _Traced, changeable: set[str]) -> list[FixedFamily]:
    groups: dict[str, list[str]] = defaultdict(list)
    families: dict[str, KernelFamily] = {}
    for kernel in traced.time_ns:
        family = traced.family(kernel)
        if not family.live and kernel not in changeable:
            families[family.name] = family
            groups[family.name].append(kernel)
    found = []
    for name, kernels in groups.items():
        family = families[name]
        spent = {kernel: traced.time_ns[kernel] for kernel in kernels}
        counted = (amount(s, "launches") for k in kernels for s in traced.signatures[k])
        found.append(
            FixedFamily(
                family=name,
                title=family.title,
                kernels=len(kernels),
                largest=short(max(spent, key=lambda each: (spent[each], each)), 120),
                launches=int(sum(counted)),
                share=sum(spent.values()) / (traced.total_ns or 1.0),
                reason=family.reason,
                why=REASONS[family.reason],
                ways=tuple(_way(way, "on") for way in family.reach),
                gain=gain_of(family.prior) if family.prior else None,
            )
        )
    return sorted(found, key=lambda each: (-each.share, each.family))


# --- gains ----------------------------------------------------------------------------------------


def gain_of(prior: Prior | None) -> Gain:
    """Return the gain that measurements on another machine let expect."""
    if prior is None:
        return Gain(low=1.0, high=1.0, expected=1.0, source="none", note="not measured")
    return Gain(
        low=prior.low, high=prior.high, expected=prior.expected, source="prior", note=prior.note
    )


def _from_past(past: PastResult) -> Gain:
    return Gain(
        low=past.low,
        high=past.high,
        expected=past.expected if past.promoted else 1.0,
        source="experiment",
        note=past.reason,
    )


def _whole(keys: Sequence[SurveyedKey], past: PastResult | None) -> Gain:
    """Return the gain over all keys: times add up, so ratios are averaged as savings."""
    total = sum(key.weight for key in keys)
    if not keys or not total:
        return _from_past(past) if past else gain_of(None)

    def over(ratios: Iterable[float]) -> float:
        left = sum(k.weight / max(r, 1e-3) for k, r in zip(keys, ratios, strict=True)) / total
        return round(1.0 / left, 4)

    sources = {key.gain.source for key in keys}
    source = next(each for each in ("experiment", "prior", "none") if each in sources)
    heaviest = max(keys, key=lambda key: key.weight * (key.gain.expected - 1.0))
    return Gain(
        low=over(key.gain.low for key in keys),
        high=over(key.gain.high for key in keys),
        expected=over(key.gain.expected for key in keys),
        source=source,
        note=heaviest.gain.note,
    )


def _saving(part: float, gain: Gain) -> float:
    return part * max(0.0, 1.0 - 1.0 / max(gain.expected, 1e-3))


# --- untrusted values -----------------------------------------------------------------------------


def cut(value: object, *, limit: int = _LONGEST) -> str:
    """Return untrusted text without control characters, of bounded length."""
    return short(clean(value[: 4 * limit]), limit) if isinstance(value, str) else ""


def _count(data: Json, key: str) -> int:
    return int(min(amount(data, key), _MOST_COUNT))


def _texts(data: Json) -> dict[str, str]:
    pairs = ((cut(str(name), limit=64), value) for name, value in list(data.items())[:32])
    return {name: cut(str(value), limit=100) for name, value in pairs}


def _whole_numbers(data: Json) -> dict[str, int]:
    pairs = list(data.items())[:16]
    return {cut(str(name), limit=64): int(amount(data, name)) for name, _ in pairs}


def _config(value: object) -> str:
    """Return a configuration as text that compares equal for equal configurations."""
    if not isinstance(value, Mapping):
        return ""
    flat: dict[str, object] = {}
    for name, each in list(value.items())[:64]:
        if isinstance(each, Mapping):
            flat |= {str(inner): v for inner, v in list(each.items())[:64]}
        elif each is not None:
            flat[str(name)] = each
    parts = (
        f"{name}={each if isinstance(each, (bool, str)) or finite(each) is not None else '?'}"
        for name, each in sorted(flat.items())
    )
    return cut(", ".join(parts), limit=_LONGEST)
