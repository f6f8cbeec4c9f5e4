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

from retuned.report.profiles import Json, amount, geometry, records, section
from retuned.report.survey_features import adapters_of, features_of
from retuned.report.survey_files import SurveyedTable
from retuned.report.survey_records import (
    ChangeWay,
    Conclusion,
    FixedFamily,
    Gain,
    RankDifference,
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
from retuned.text import clean, finite, plural, share, short, significant

MOST_ROWS = 200
"""Tunables and families that a survey lists."""
MOST_KEYS = 64
"""Keys of a tunable that a survey lists."""
_PROCESSES, _REPORTS, _ASKED = 256, 1024, 256
"""Processes, tunables of a process and keys of a tunable that are read."""
_LONGEST = 400
"""Characters of an untrusted text."""
WORTH_SHARE = 0.01
"""Part of kernel time below which an expected saving counts as nothing."""
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
    """
    answers = dict(list((reports or {}).items())[:_PROCESSES])
    profile = profile or {}
    known = past or {}
    traced = _Traced.of(profile)
    rows = _of_servers(answers, traced, known)
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
    time_us: float | None
    how: str
    config: str
    detail: str


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
    return [
        _tunable(id, reports, busy_us, traced, past.get(id), able=able)
        for id, reports in by_id.items()
    ]


def _tunable(
    id: str,
    reports: Mapping[str, Json],
    busy_us: Mapping[str, float],
    traced: _Traced,
    past: PastResult | None,
    *,
    able: int,
) -> SurveyedTunable:
    first = next(iter(reports.values()))
    family, kernel = cut(first.get("family")), cut(first.get("kernel"))
    asked = [each for process, report in reports.items() for each in _asked(process, report)]
    keys = _keys(asked, first, past)
    part, source, remarks = _share(kernel, asked, busy_us, traced)
    differences = _differences(asked)
    if differences:
        remarks.append("ranks-differ")
    if len(reports) < able:
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
        saving=None if part is None or refused else _saving(part, gain),
        ways=_server_ways(reports.values(), sizes=sum(bool(key.captured) for key in keys)),
        refused=refused,
        table=_worst(cut(table.get("state")) for table in tables),
        remarks=tuple(sorted(set(remarks))),
    )


def _asked(process: str, report: Json) -> list[_KeyCount]:
    found = []
    for each in records(report, "asked")[:_ASKED]:
        launches, timed = int(amount(each, "launches")), amount(each, "timed")
        how = str(each.get("how"))
        found.append(
            _KeyCount(
                process=cut(process),
                axes=_whole_numbers(section(each, "axes")),
                launches=launches,
                captured=int(amount(each, "captured")),
                time_us=amount(each, "timed_us") / timed * launches if timed else None,
                how=how if how in _HOW else "unknown",
                config=_config(each.get("config")),
                detail=cut(each.get("detail") or ""),
            )
        )
    return found


def _keys(asked: Sequence[_KeyCount], report: Json, past: PastResult | None) -> list[SurveyedKey]:
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
        keys.append(
            SurveyedKey(
                axes=dict(one.axes),
                launches=sum(each.launches for each in group),
                captured=sum(each.captured for each in group),
                weight=sum(weight(each) for each in group) / total,
                how=one.how,
                config=one.config,
                detail=one.detail,
                gain=_from_past(past) if past and one.how != "table" else gain_of(prior),
            )
        )
    return sorted(keys, key=lambda key: (-key.weight, -key.launches, str(key.axes)))


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

    @classmethod
    def of(cls, profile: Json) -> _Traced:
        """Sum signatures to kernels."""
        time_ns: dict[str, float] = defaultdict(float)
        signatures: dict[str, list[Json]] = defaultdict(list)
        for each in records(profile, "signatures"):
            name = cut(each.get("kernel"), limit=4096)
            time_ns[name] += amount(each, "gpu_time_ns")
            signatures[name].append(each)
        return cls(total_ns=sum(time_ns.values()), time_ns=dict(time_ns), signatures=signatures)

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
    keys = sorted(
        (
            SurveyedKey(
                shape=short(geometry(each), _LONGEST),
                launches=int(amount(each, "launches")),
                weight=amount(each, "gpu_time_ns") / whole,
                how=how,
                gain=gain,
            )
            for each in traced.signatures[kernel]
        ),
        key=lambda key: (-key.weight, key.shape),
    )
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
        saving=_saving(part, gain),
        ways=tuple(_way(way, "needs-server") for way in family.reach),
    )


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


# --- gains and the last sentence ------------------------------------------------------------------


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


def conclude(found: Survey) -> Conclusion:
    """Return the last sentence; it claims no more than the parts show."""
    faults = sum(len(table.findings) for table in found.tables)
    observed = bool(found.tunables or found.fixed)
    if not observed and found.tables:
        if not faults:
            line = f"Nothing to gain here: {plural(len(found.tables), 'table')} without a fault."
            return Conclusion(code="nothing-to-gain", sentence=line)
        line = (
            f"{plural(faults, 'finding')} in {plural(len(found.tables), 'table')}; their cost "
            "depends on the sizes that traffic asks for: add a server or a trace."
        )
        return Conclusion(code="tables-faulty", sentence=line)
    if not observed and _looked_in_vain(found):
        line = "Nothing to gain here: the server ran steps, and none of its kernels can be changed."
        return Conclusion(code="nothing-to-gain", sentence=line)
    if not observed:
        line = "Nothing was observed: no launch in a trace, no tunable in a server."
        return Conclusion(code="nothing-observed", sentence=line)
    saving = found.expected_saving
    if saving is not None and saving >= WORTH_SHARE:
        return _expected(found, saving)
    unmeasured = [r for r in found.tunables if r.share is None and r.gain.expected > 1.02]
    if unmeasured and not all(row.refused for row in unmeasured):
        line = (
            f"A gain is possible in {plural(len(unmeasured), 'tunable')}, but their share of "
            "kernel time was not measured; add a trace of this server."
        )
        return Conclusion(code="gain-unknown", sentence=line)
    return _none(found)


def _looked_in_vain(found: Survey) -> bool:
    """Whether a server ran steps, and every adapter that its modules need was in place."""
    states = {each.part: each.state for each in found.adapters}
    in_place = states.get("steps") == states.get("autotune") == "on"
    return in_place and not any(each.state.endswith("-unknown") for each in found.adapters)


def _expected(found: Survey, saving: float) -> Conclusion:
    first = found.tunables[0]
    basis = {
        "experiment": "from experiments of this installation",
        "prior": "by measurements on another machine",
    }.get(first.gain.source, "not measured")
    line = (
        f"Expected saving {share(saving)} of kernel time, {basis}; the largest part is "
        f"{short(first.kernel, 60)} with {share(first.share)} of kernel time, whose best "
        f"configuration is expected to be {significant(first.gain.expected)} times as fast."
    )
    return Conclusion(code="gain-expected", sentence=line)


def _none(found: Survey) -> Conclusion:
    beyond = [
        each
        for each in found.fixed
        if each.gain and each.share * (1 - 1 / each.gain.expected) >= WORTH_SHARE
    ]
    unmeasured = [
        each
        for each in found.fixed
        if each.reason == "adapter-missing" and not each.gain and each.share >= WORTH_SHARE
    ]
    can = f"Retuned can change {share(found.changeable_share or 0.0)} of kernel time"
    saving = share(found.expected_saving or 0.0)
    parts = []
    if beyond:
        parts.append(f"possible gains are in families without live change: {_titles(beyond)}")
    if unmeasured:
        parts.append(f"gains were never measured for {_titles(unmeasured)}")
    if parts:
        line = f"Nothing to gain here with this version: {can} in the running server; "
        return Conclusion(code="gain-out-of-reach", sentence=line + "; ".join(parts) + ".")
    line = (
        f"Nothing to gain here: {can} in the running server, with an expected saving of {saving}."
    )
    return Conclusion(code="nothing-to-gain", sentence=line)


def _titles(families: Sequence[FixedFamily]) -> str:
    return ", ".join(f"{each.title} ({share(each.share)})" for each in families[:3])


# --- untrusted values -----------------------------------------------------------------------------


def cut(value: object, *, limit: int = _LONGEST) -> str:
    """Return untrusted text without control characters, of bounded length."""
    return short(clean(value[: 4 * limit]), limit) if isinstance(value, str) else ""


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
