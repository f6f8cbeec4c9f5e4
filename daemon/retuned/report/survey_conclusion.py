"""The last sentence of a survey, which claims no more than its parts show."""

from __future__ import annotations

from collections.abc import Sequence

from retuned.report.survey_records import Conclusion, FixedFamily, Survey
from retuned.text import plural, share, short, significant

WORTH_SHARE = 0.01
"""Part of kernel time below which an expected saving counts as nothing."""


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
        why = "their share of kernel time was not measured; add a trace of this server"
        seen = [set(row.remarks) for row in unmeasured]
        if all("stream-idle" in each and "graphs-not-counted" not in each for each in seen):
            why = (
                "the device waited for the host at their launches: the host sets the pace, and "
                "faster kernels do not change that"
            )
        line = f"A gain is possible in {plural(len(unmeasured), 'tunable')}, but {why}."
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
