"""Story of the demo as sentences and plot rows; the page and the terminal share it.

Every sentence is built only from what the record holds: a missing number drops its clause. A
bad outcome is reported as plainly as a good one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from retuned.report.plots import Band, Mark, Ratio
from retuned.report.profiles import Json, amount, named, records, section
from retuned.text import (
    clean,
    count,
    finite,
    label,
    percent,
    plural,
    seconds,
    short,
    times,
)

STEPS = (
    ("before_drift", "before drift"),
    ("after_drift", "after drift"),
    ("after_swap", "after swap"),
    ("after_rollback", "after rollback"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """An interval that was really measured."""

    lower: float
    """Lower bound."""
    point: float
    """Estimate."""
    upper: float
    """Upper bound."""
    confidence: float | None
    """Of each bound on its own; None where the record does not say."""

    @property
    def shown(self) -> str:
        """What the interval shows; one that holds 1 shows nothing."""
        if self.lower > 1:
            return "faster"
        return "slower" if self.upper < 1 else "no difference shown"

    def __str__(self) -> str:
        """Return estimate, bounds and confidence."""
        sure = f" at {percent(self.confidence)} confidence" if self.confidence else ""
        return f"{times(self.point)}, {times(self.lower)} to {times(self.upper)}{sure}"


def speedup(entry: Json) -> Speedup | None:
    """Return the interval of a finding, proposal or swap; None unless all of it makes sense."""
    body = section(entry, "speedup")
    low, point, high = (finite(body.get(key)) for key in ("lower", "point", "upper"))
    if low is None or point is None or high is None or not 0 < low <= point <= high:
        return None
    return Speedup(lower=low, point=point, upper=high, confidence=finite(body.get("confidence")))


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveProof:
    """What a live proof said of one swap, beside the claim of its experiment."""

    kernel: str
    """Name of the definition."""
    claimed: Speedup | None
    """The experiment's speedup of the kernel."""
    verdict: str
    """Code of the verdict; empty without one."""
    sentence: str
    """The verdict in words."""
    server: Speedup | None
    """Speed of the server's steps with the swap over that without; None if a bound is open."""
    pairs: str
    """Pairs that counted."""
    kept: bool
    """Whether the server ran it after the proof."""
    rolled_back: bool
    """Whether it was rolled back, then or later."""

    @property
    def fate(self) -> str:
        """What followed."""
        if self.kept:
            return "kept, rolled back after the fault" if self.rolled_back else "kept"
        return "rolled back" if self.rolled_back else "replaced or unfinished"


def proofs(data: Json) -> list[LiveProof]:
    """Return the live proof of each swap; a swap without one has a sentence for that."""
    found = []
    for swap in records(data, "swaps"):
        body = section(swap, "live_proof")
        report = section(body, "report")
        found.append(
            LiveProof(
                kernel=named(swap, limit=48),
                claimed=speedup(swap),
                verdict=clean(str(report.get("verdict") or "")),
                sentence=label(body.get("sentence") or "no verdict"),
                server=speedup(body),
                pairs=count(report.get("pairs")),
                kept=swap.get("kept") is True,
                rolled_back=swap.get("rolled_back") is True,
            )
        )
    return found


def live_ratios(data: Json) -> list[Ratio]:
    """Return the live proofs as rows of an interval plot."""
    return [
        Ratio(
            label=proof.kernel,
            lower=proof.server.lower,
            point=proof.server.point,
            upper=proof.server.upper,
            status="promote" if proof.verdict == "helps" else "reject",
            note=f"{proof.verdict}, {proof.fate}",
        )
        for proof in proofs(data)
        if proof.server is not None
    ]


def headline(data: Json) -> str:
    """Return what came of it, in one sentence."""
    drifted = (
        "Traffic drifted" if section(data, "drift").get("detected") else "No drift was detected"
    )
    swaps = records(data, "swaps")
    if not swaps:
        return f"{drifted}; nothing was swapped and the incumbent stayed."
    names = list(dict.fromkeys(named(swap, limit=48) for swap in swaps))
    what = (
        names[0] if len(names) == 1 else f"{names[0]} and {plural(len(names) - 1, 'more kernel')}"
    )
    gains = [speedup(swap) for swap in swaps]
    faster = all(gain is not None and gain.shown == "faster" for gain in gains)
    proven = (", each proven faster," if len(names) > 1 else ", proven faster,") if faster else ""
    were = "was" if len(names) == 1 else "were"
    return f"{drifted}, and {what}{proven} {were} swapped in while serving{_whole_server(data)}."


def _whole_server(data: Json) -> str:
    """Return what the live proofs say of the server, as the end of a sentence about the swaps."""
    found = proofs(data)
    helped = [proof for proof in found if proof.verdict == "helps"]
    harmed = [proof for proof in found if proof.verdict == "harms"]
    said = []
    if helped:
        said.append(f"live proofs showed that {_of(helped, found)} the server")
    elif found:
        said.append("no live proof showed a gain of the server")
    for back, word in ((True, "was rolled back"), (False, "was NOT rolled back")):
        some = [proof for proof in harmed if proof.rolled_back is back]
        if some:
            many = word if len(some) == 1 else word.replace("was", "were")
            said.append(f"{plural(len(some), 'swap')} that made the server slower {many}")
    return "".join(f"; {each}" for each in said)


def _of(some: Sequence[LiveProof], every: Sequence[LiveProof]) -> str:
    if len(every) == 1:
        return "it helps"
    return f"{len(some)} of {len(every)} help{'s' if len(some) == 1 else ''}"


def _gains(data: Json) -> str:
    known = [(named(swap, limit=48), speedup(swap)) for swap in records(data, "swaps")]
    said = []
    for shown, word in (("faster", "Proven"), ("no difference shown", ""), ("slower", "")):
        parts = [f"{name} {gain}" for name, gain in known if gain and gain.shown == shown][:3]
        if parts:
            said.append(f"{word or shown.capitalize()}: {'; '.join(parts)}.")
    return " ".join(said)


def _rolled_back(rollback: Json) -> str:
    if not rollback:
        return ""
    if not rollback.get("reverted"):
        return "The injected fault was NOT rolled back."
    took = finite(rollback.get("alarm_to_revert_s"))
    after = f" {seconds(took)} after the alarm" if took is not None else ""
    return f"An injected fault was caught and reverted{after}."


def requests_sentence(data: Json) -> str:
    """How many requests were sent and failed; empty where the record does not say."""
    counts = section(data, "requests")
    if finite(counts.get("sent")) is None:
        return ""
    failed = finite(counts.get("failed"))
    lost = "an unknown number" if failed is None else "none" if failed == 0 else count(failed)
    return f"{count(counts['sent'])} requests were sent, {lost} failed."


def lead(data: Json) -> str:
    """Return the numbers behind the headline: speedups, rollback, requests."""
    parts = (_gains(data), _rolled_back(section(data, "rollback")), requests_sentence(data))
    return " ".join(part for part in parts if part)


def throughput(data: Json) -> list[tuple[str, float | None]]:
    """Name and tokens per second.

    They are not compared: traffic and the machine differ from one to the next. The live proof
    compares.
    """
    rates = section(data, "tokens_per_s")
    return [(name, finite(rates.get(key))) for key, name in STEPS]


def made_of(finding: Json) -> str:
    """Structure and parameters of a candidate."""
    parts = (finding.get("structure"), section(finding, "params"))
    return short(" \N{MIDDLE DOT} ".join(label(part) for part in parts if part), 200)


def candidate(finding: Json, *, unique: bool = True) -> str:
    """Name of a candidate, with its parameters where others share the name."""
    text = named(finding, "name", limit=60)
    return text if unique else f"{text} {made_of(finding)}".strip()


def ranked(experiment: Json) -> list[Json]:
    """Return findings: promoted, then the timed by falling speedup, then those never timed."""

    def order(finding: Json) -> tuple[bool, float]:
        gain = speedup(finding)
        return (finding.get("status") != "promote", -(gain.point if gain else 0.0))

    return sorted(records(experiment, "findings"), key=order)


def ratios(experiment: Json, *, top: int) -> list[Ratio]:
    """Return the timed candidates as rows of an interval plot."""
    rows = []
    found = ranked(experiment)
    names = Counter(named(finding, "name") for finding in found)
    for finding in found:
        gain = speedup(finding)
        if gain:
            rows.append(
                Ratio(
                    label=candidate(finding, unique=names[named(finding, "name")] == 1),
                    lower=gain.lower,
                    point=gain.point,
                    upper=gain.upper,
                    status=label(finding.get("status")),
                    note=label(finding.get("reason")),
                )
            )
    return rows[:top]


def verdicts(experiment: Json) -> list[tuple[str, float]]:
    """Reasons with how often, most frequent first."""
    found = section(experiment, "verdicts")
    rows = [(clean(str(reason)), amount(found, reason)) for reason in found]
    return sorted(rows, key=lambda row: (-row[1], row[0]))


def timeline(data: Json) -> list[tuple[float, float]]:
    """Seconds and tokens per second."""
    return _points(records(data, "timeline"), "tokens_per_s")


def windows(data: Json, key: str) -> list[tuple[float, float]]:
    """Seconds and `distance` or `cusum` of the drift windows; one not judged has neither."""
    return _points([row for row in records(data, "drift_windows") if not row.get("skipped")], key)


def unjudged(data: Json) -> str:
    """Say how many windows were not judged; empty where all were."""
    count = sum(bool(row.get("skipped")) for row in records(data, "drift_windows"))
    return f"{plural(count, 'window')} not judged, and not drawn" if count else ""


def _points(rows: Sequence[Json], key: str) -> list[tuple[float, float]]:
    found = ((finite(row.get("t_s")), finite(row.get(key))) for row in rows)
    return [(t, value) for t, value in found if t is not None and value is not None]


def phases(data: Json) -> list[Band]:
    """Return phases with an end at or after their start."""
    bands = []
    for row in records(data, "phases"):
        start, end = finite(row.get("start_s")), finite(row.get("end_s"))
        if start is not None and end is not None and start <= end:
            bands.append(Band(name=named(row, "name", limit=80), start=start, end=end))
    return bands


def alarms(data: Json) -> list[Mark]:
    """Return the first window of each action that is not ``none``."""
    first: dict[str, float] = {}
    for row in records(data, "drift_windows"):
        action, at = row.get("action"), finite(row.get("t_s"))
        if isinstance(action, str) and action not in ("", "none") and at is not None:
            first.setdefault(clean(action), at)
    return [Mark(name=f"{action} at {seconds(at)}", at=at) for action, at in first.items()]


def machine_sentence(data: Json) -> str:
    """Return what the run was on, as far as the record says."""
    body = section(data, "machine")
    known = {"cpu": "{}", "cores": "{} cores", "memory_gib": "{} GiB memory", "gpu": "GPU {}"}
    parts = [
        form.format(label(body[key]))
        for key, form in known.items()
        if body.get(key) not in (None, "")
    ]
    if body and not body.get("gpu"):
        parts.append("no GPU")
    return (", ".join(parts) or "The record does not name the machine") + "."
