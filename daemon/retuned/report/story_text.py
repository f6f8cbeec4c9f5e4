"""The demo's story on one terminal page: at most `PAGE_LINES` lines, whatever the record holds.

Every line and every table row is cut to the width and never wraps, so lines can be counted; what is
left of the page goes to the candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from retuned import text as words
from retuned.report import profiles, story
from retuned.report.profiles import Json, named, records, section

PAGE_LINES = 60
_SPARKS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_OUTCOMES = {
    "promote": "\u25c6 promoted",
    "ambiguous": "\u25cb ambiguous",
    "reject": "\u00b7 rejected",
}
_EXPERIMENTS = 4
_SWAPS = 4


def demo_text(data: Json, *, width: int) -> list[RenderableType]:
    """Return the story of ``retuned demo`` on one terminal page.

    Parameters
    ----------
    data
        JSON object of the command; every key may be absent.
    width
        Columns of the terminal; lines are cut to it.
    """
    width = max(width, 20)
    head = _wrapped(story.headline(data), width, style="bold") + _wrapped(story.lead(data), width)
    drift = _drift(data, width)
    tail = [
        *_swaps(data, width),
        *_proofs(data, width),
        *_throughput(data, width),
        *_ending(data, width),
    ]
    experiments = records(data, "experiments")
    shown = experiments[-_EXPERIMENTS:]
    room = PAGE_LINES - sum(_height(part) for part in (*head, *drift, *tail)) - 3
    each = max(1, room // max(1, len(shown)) - 2)
    title = "Tried" if shown else "Nothing was tried"
    tried: list[RenderableType] = [Text(""), _title(title)]
    if len(experiments) > len(shown):
        earlier = words.plural(len(experiments) - len(shown), "earlier experiment")
        tried.append(_line(f"{earlier} not shown", width, style="dim"))
    for entry in shown:
        tried += _experiment(entry, width, top=min(each, 9))
    return [*head, *drift, *tried, *tail]


def sparkline(values: Sequence[float], *, width: int) -> str:
    """Return block characters, one per bucket, from zero to the largest mean.

    Examples
    --------
    >>> sparkline([0.0, 4.0, 8.0], width=3)[-1] == chr(0x2588)
    True
    """
    if not values or width < 1:
        return ""
    size = -(-len(values) // width)
    parts = [values[start : start + size] for start in range(0, len(values), size)]
    means = [sum(max(value, 0.0) / len(part) for value in part) for part in parts]
    top = max(means)
    return "".join(_SPARKS[round(mean / top * 8)] for mean in means) if top > 0 else ""


def _height(part: RenderableType) -> int:
    return part.row_count + 1 if isinstance(part, Table) else 1


def _line(text: str, width: int, *, style: str = "") -> Text:
    made = Text(words.clean(text), style=style, no_wrap=True, overflow="ellipsis")
    made.truncate(width, overflow="ellipsis")
    return made


def _title(text: str) -> Text:
    return Text(text, style="bold")


def _wrapped(text: str, width: int, *, style: str = "", most: int = 3) -> list[RenderableType]:
    """Break between words into at most so many lines."""
    lines: list[str] = []
    for word in words.clean(text).split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    if len(lines) > most:
        lines = [*lines[: most - 1], " ".join(lines[most - 1 :])]
    return [_line(line, width, style=style) for line in lines]


def _grid(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, flexible: int
) -> Table:
    """Return a table whose rows take one line each; ``>`` before a name aligns right.

    Only column `flexible` is cut where the width does not hold all.
    """
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    names = [column.removeprefix(">") for column in columns]
    cells = [[words.clean(cell) for cell in row] for row in rows]
    widest = [max(len(line[i]) for line in [names, *cells]) for i in range(len(names))]
    room = max(8, width - sum(widest) + widest[flexible] - 2 * len(names))
    for column, name in zip(columns, names, strict=True):
        right = column.startswith(">")
        made.add_column(
            Text(name),
            justify="right" if right else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in cells:
        texts = [Text(cell) for cell in row]
        texts[flexible].truncate(room, overflow="ellipsis")
        made.add_row(*texts)
    return made


def _drift(data: Json, width: int) -> list[RenderableType]:
    drift = section(data, "drift")
    found: list[RenderableType] = [
        Text(""),
        _title("Drift"),
        _line(profiles.sentence(drift), width),
    ]
    pairs = profiles.drift_pairs(drift, top=5)
    if pairs:
        rows = [(p.label, words.share(p.before), words.share(p.after)) for p in pairs]
        columns = ("Kernel and shape", ">Before", ">After")
        found.append(_grid(columns, rows, width=width, flexible=0))
    distances = [value for _, value in story.windows(data, "distance")]
    if distances:
        said = ", ".join(mark.name for mark in story.alarms(data)) or "no action"
        spark = sparkline(distances, width=width // 3)
        found.append(
            _line(f"distance {spark} up to {words.significant(max(distances))}; {said}", width)
        )
    return found


def _experiment(entry: Json, width: int, *, top: int) -> list[RenderableType]:
    counts = ", ".join(f"{words.count(n)} {reason}" for reason, n in story.verdicts(entry))
    floor = words.times(entry.get("noise_floor_ratio"))
    head = f"{named(entry, limit=48)}: {words.counted(entry.get('candidates'), 'candidate')}"
    head += f", noise floor {floor}" if floor != words.NOTHING else ""
    findings = story.ranked(entry)
    if not findings:
        return [_line(f"{head}; {counts}" if counts else head, width)]
    columns = ("  Candidate", "Outcome", ">Speedup", ">Bounds", "Why")
    rows = [_finding(finding, width) for finding in findings[:top]]
    table = _grid(columns, rows, width=width, flexible=4)
    more = len(findings) - top
    head += f", best {top} shown" if more > 0 else ""
    return [_line(f"{head}; {counts}" if counts else head, width), table]


def _finding(finding: Json, width: int) -> tuple[str, ...]:
    gain = story.speedup(finding)
    status = finding.get("status")
    return (
        f"  {words.short(story.candidate(finding), width * 3 // 10)}",
        _OUTCOMES.get(str(status), words.label(status)),
        words.times(gain.point) if gain else words.NOTHING,
        _bounds(gain),
        _why(finding),
    )


def _bounds(gain: story.Speedup | None) -> str:
    if gain is None:
        return words.NOTHING
    return f"{words.significant(gain.lower)} to {words.significant(gain.upper)}"


def _why(finding: Json) -> str:
    reason, detail = words.label(finding.get("reason")), finding.get("detail")
    return f"{reason}: {words.short(detail, 120)}" if detail else reason


def _swaps(data: Json, width: int) -> list[RenderableType]:
    found: list[RenderableType] = [Text(""), _title("Decided and swapped")]
    for proposal in records(data, "proposals")[-_SWAPS:]:
        parts = (
            f"{words.digest(proposal.get('id'))} {named(proposal, limit=48)}",
            f"risk {words.label(proposal.get('risk'))}",
            f"policy {words.label(proposal.get('gate'))}",
            f"decided by {words.label(proposal.get('decided_by'))}",
        )
        found.append(_line("; ".join(parts), width))
    swaps = records(data, "swaps")
    if not swaps:
        return [*found, _line("Nothing was swapped; the incumbent stayed.", width)]
    rows = []
    for swap in swaps[-_SWAPS:]:
        gain = story.speedup(swap)
        rows.append(
            (
                named(swap, limit=48),
                words.short(words.guard(swap.get("guard")), 28),
                words.digest(swap.get("digest")),
                words.times(gain.point) if gain else words.NOTHING,
                _bounds(gain),
                words.micros(swap.get("swap_us") or None),
            )
        )
    columns = ("Kernel", "For shapes", "Artifact", ">Speedup", ">Bounds", ">Flip")
    return [*found, _grid(columns, rows, width=width, flexible=0)]


def _throughput(data: Json, width: int) -> list[RenderableType]:
    steps = story.throughput(data)
    columns = ("Tokens/s", *(f">{name}" for name, _ in steps))
    rows = [("served", *(words.significant(rate) for _, rate in steps))]
    found: list[RenderableType] = [Text(""), _grid(columns, rows, width=width, flexible=0)]
    rates = [value for _, value in story.timeline(data)]
    if rates:
        found.append(_line(sparkline(rates, width=width - 2), width))
    return found


def _proofs(data: Json, width: int) -> list[RenderableType]:
    proofs = story.proofs(data)
    if not proofs:
        return []
    found: list[RenderableType] = [Text(""), _title("Proven in the server")]
    for proof in proofs[-_SWAPS:]:
        claim = f", claimed {words.times(proof.claimed.point)}" if proof.claimed else ""
        found.append(_line(f"{proof.kernel}{claim}, {proof.fate}", width))
        found.append(_line(f"  {proof.sentence}", width))
    return found


def _ending(data: Json, width: int) -> list[RenderableType]:
    rollback = section(data, "rollback")
    found: list[RenderableType] = [Text("")]
    if rollback:
        back = "reverted" if rollback.get("reverted") else "NOT reverted"
        found.append(
            _line(
                f"Fault in {words.label(rollback.get('kernel'))}: alarm after"
                f" {words.seconds(rollback.get('detected_after_s'))}"
                f" ({words.label(rollback.get('reason'))}), {back}"
                f" {words.seconds(rollback.get('alarm_to_revert_s'))} later",
                width,
            )
        )
    said = story.requests_sentence(data)
    found += [_line(said, width)] if said else []
    took = words.seconds(data.get("duration_s"))
    found.append(_line(f"{story.machine_sentence(data)} Took {took}.", width, style="dim"))
    return found
