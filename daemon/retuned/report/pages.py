"""Whole pages: one HTML file each, with its style sheet and plots inside, and no script at all.

Templates escape every value; a content security policy that names only the style sheet's own hash
would stop what slipped through.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import ChainableUndefined, ChoiceLoader, Environment, PackageLoader, Undefined
from markupsafe import Markup

from retuned import text as words
from retuned.report import figures, profiles, story, survey_text
from retuned.report.profiles import Json, amount, records, section
from retuned.report.survey_files import FINDINGS
from retuned.report.survey_records import REMARKS

_LISTED = 100
_BARS = 12  # rows of before and after


def analyze_page(data: Json) -> str:
    """Return the page of ``retuned analyze``: share by kernel, shapes with source, files.

    Parameters
    ----------
    data
        The command's JSON object.
    """
    profile = section(data, "profile")
    kernels = profiles.by_kernel(profile)
    rows = sorted(records(profile, "signatures"), key=lambda s: -amount(s, "gpu_time_ns"))
    total = sum(amount(s, "gpu_time_ns") for s in rows) or 1.0
    rest = sum(amount(s, "gpu_time_ns") for s in rows[_LISTED:])
    known = sum(amount(s, "gpu_time_ns") for s in rows if s.get("dims"))
    return _render(
        "analyze.html",
        profile=profile,
        files=records(data, "files"),
        kernels=kernels,
        rows=rows,
        rest=rest / total,
        known=known / total if rows else None,
        headline=profiles.profile_sentence(kernels),
        bars=figures.shares(kernels),
        curve=figures.cumulative(kernels),
        sources=figures.sources(profile),
    )


def diff_page(data: Json) -> str:
    """Return the page of ``retuned diff``: shares before and after, what is new, what is gone.

    Parameters
    ----------
    data
        ``drift`` as the command prints it, ``before`` and ``after`` profiles, ``names`` of both.
    """
    drift, before, after = (section(data, key) for key in ("drift", "before", "after"))
    names = profiles.files_of(data.get("names"))
    rows = profiles.pairs(before, after, top=_BARS) or profiles.drift_pairs(drift, top=_BARS)
    new, gone = profiles.only_in(after, before), profiles.only_in(before, after)
    return _render(
        "diff.html",
        drift=drift,
        before=before,
        after=after,
        names=names,
        verdict=profiles.verdict_words(drift),
        sentence=profiles.sentence(drift),
        warnings=records(data, "warnings"),
        new=new,
        new_count=words.plural(len(new), "signature"),
        gone_count=words.plural(len(gone), "signature"),
        gone=gone,
        new_share=sum(amount(s, "share") for s in new),
        gone_share=sum(amount(s, "share") for s in gone),
        pairs=figures.before_after(rows, names),
    )


def survey_page(data: Json) -> str:
    """Return the page of ``retuned survey``: tunables, keys, what cannot change, tables.

    Parameters
    ----------
    data
        The command's JSON object.
    """
    rows = records(data, "tunables")
    return _render(
        "survey.html",
        data=data,
        conclusion=section(data, "conclusion"),
        rows=rows,
        fixed=records(data, "fixed"),
        features=records(data, "features"),
        tables=[each for each in records(data, "tables") if records(each, "findings")],
        table_count=len(records(data, "tables")),
        counts=survey_text.table_counts(data),
        remarks=sorted({str(code) for row in rows for code in row.get("remarks") or ()}),
        meanings=REMARKS,
        roof_reasons=survey_text.roof_reasons(rows),
        codes=FINDINGS,
    )


def demo_page(data: Json) -> str:
    """Return the story of ``retuned demo`` on one page, in the order it happened.

    Parameters
    ----------
    data
        The command's JSON object; every key may be absent, its part then says so.
    """
    drift = section(data, "drift")
    pairs = profiles.drift_pairs(drift, top=_BARS)
    failed = words.finite(section(data, "requests").get("failed"))
    return _render(
        "demo.html",
        data=data,
        headline=story.headline(data),
        lead=story.lead(data),
        throughput=story.throughput(data),
        sentence=profiles.sentence(drift),
        pairs=figures.before_after(pairs, ("before drift", "after drift"), what="kernel time"),
        distance=figures.drift(data, "distance"),
        cusum=figures.drift(data, "cusum") if story.windows(data, "cusum") else None,
        experiments=[_experiment(entry) for entry in records(data, "experiments")],
        timeline=figures.timeline(data),
        proofs=story.proofs(data),
        live=figures.live(data),
        rollback=section(data, "rollback"),
        requests=story.requests_sentence(data),
        lost=bool(failed),
        machine=story.machine_sentence(data),
    )


def _experiment(entry: Json) -> dict[str, Any]:
    findings = story.ranked(entry)
    return {
        "body": entry,
        "verdicts": story.verdicts(entry),
        "findings": findings[:_LISTED],
        "hidden": max(0, len(findings) - _LISTED),
        "plot": figures.intervals_of(entry),
    }


def _finalize(value: object) -> object:
    return words.clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def environment(*packages: str, undefined: type[Undefined] = ChainableUndefined) -> Environment:
    """Return how templates of these packages are rendered: every value cleaned and escaped.

    Parameters
    ----------
    packages
        Packages whose folders ``templates`` are searched, in this order.
    undefined
        Value of an undefined name; data of commands may be incomplete.
    """
    # autoescape for every name, not by suffix: a template added later must not be the exception
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in packages]),
        autoescape=True,
        undefined=undefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        about=profiles.about,
        allowed=survey_text.allowed_words,
        adapters=survey_text.adapter_lines,
        axes=survey_text.axes_words,
        belief=words.belief,
        count=words.count,
        counted=words.counted,
        differences=survey_text.difference_lines,
        digest=words.digest,
        duration=words.duration,
        finding=survey_text.finding_words,
        gain=survey_text.gain_words,
        geometry=profiles.geometry,
        guard=words.guard,
        kernel=words.kernel,
        label=_label,
        launches=_launches,
        mean=profiles.mean_duration,
        micros=words.micros,
        made_of=story.made_of,
        named=profiles.named,
        percent=words.percent,
        resolved=survey_text.resolved_words,
        roof=survey_text.roof_words,
        seconds=words.seconds,
        share=words.share,
        significant=words.significant,
        skipped=profiles.skipped,
        sure=profiles.sure,
        speedup=story.speedup,
        times=words.times,
        types=profiles.types,
        records=records,
        ways=survey_text.ways_words,
    )
    return made


def _launches(value: object) -> str:
    number = words.finite(value)
    return words.NOTHING if number is None else words.plural(number, "launch")


def _label(value: object) -> str:
    return words.NOTHING if isinstance(value, ChainableUndefined) else words.short(value, 400)


@cache
def style_sheet() -> str:
    """Return the style sheet of pages and plots."""
    return files("retuned.report").joinpath("templates", "style.css").read_text(encoding="utf-8")


@cache
def _style() -> tuple[Markup, str]:
    """Style sheet and the policy that allows it and nothing else."""
    text = style_sheet()
    hashed = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    allowed = (
        f"default-src 'none'; style-src 'sha256-{hashed}'; base-uri 'none'; form-action 'none'"
    )
    return Markup(text), allowed


def _render(name: str, **values: object) -> str:
    style, policy = _style()
    template = environment("retuned.report").get_template(name)
    return template.render(style=style, policy=policy, limit=_LISTED, **values)
