"""How evidence looks: a page for people, and one line for `retuned show`."""

from __future__ import annotations

from collections.abc import Iterator

from retuned.stages.verdict import Doubt, EvidenceDocument, Interval, Timing
from retuned.terminal.layout import print_fields

_UNBOUNDED = 1e9
"""Above it a bound says that too few blocks are in."""


def print_page(document: EvidenceDocument, *, digest: str, key: str, doubt: Doubt | None) -> None:
    """Print everything that a person needs to believe it, or not."""
    signed = f"signed by {key}, whole" if doubt is None else f"NOT VERIFIED: {doubt.detail}"
    print_fields([("evidence", digest), ("signature", signed), *_rows(document)])


def gates_line(document: EvidenceDocument) -> str:
    """Name the gates that answered, such as ``G0 G1 G2 passed, G3 failed``."""
    passed = [gate for gate, good in document.gates() if good]
    failed = [gate for gate, good in document.gates() if not good]
    parts = [f"{' '.join(passed)} passed"] if passed else []
    parts += [f"{' '.join(failed)} failed"] if failed else []
    return ", ".join(parts) or "no gate answered"


def _rows(document: EvidenceDocument) -> Iterator[tuple[str, str]]:
    verdict, freeze = document.verdict, document.freeze
    yield "verdict", f"{verdict.status}: {verdict.reason} at gate {verdict.gate}"
    yield "", verdict.detail
    yield "kernel", document.definition
    yield "candidate", document.candidate
    yield "incumbent", document.incumbent
    made = f" from {', '.join(freeze.parents)}" if freeze.parents else ""
    asked = f", prompt {freeze.prompt}" if freeze.prompt else ""
    origin = f"class {freeze.trust}, {freeze.structure}, by {freeze.author or 'nobody named'}"
    yield "frozen", f"{freeze.frozen_at.isoformat(timespec='seconds')}, {origin}{made}{asked}"
    yield "tried", f"{document.tried} candidates of experiment {document.plan} so far"
    for check in document.evidence.checks:
        answer = "passed" if check.reason is None else f"FAILED: {check.reason}"
        ratio = f", error {check.error_ratio:.3g} of the incumbent's" if check.error_ratio else ""
        yield check.gate, f"{answer}{ratio}  {check.detail}"
    if document.evidence.search is not None:
        yield "search", _interval(document.evidence.search)
    if document.evidence.timing is not None:
        yield from _timing(document.evidence.timing)
    environment = document.environment
    facts = (environment.arch, environment.driver, environment.runtime, environment.compiler)
    torch = f"torch {environment.torch}" if environment.torch else ""
    switches = [f"{name}={value}" for name, value in sorted(environment.numerics.items())]
    yield "environment", "; ".join(filter(None, (*facts, torch, *switches)))
    isolation = document.isolation
    walls = {
        "system calls filtered": isolation.system_calls_filtered,
        "no network": isolation.network_cut,
        "no files": isolation.files_denied,
        isolation.memory_check: True,
    }
    yield "isolation", "; ".join(name for name, stands in walls.items() if stands)
    if isolation.reference_confined_by:
        yield "  reference", f"confined by {' and '.join(isolation.reference_confined_by)}"
    for sentence in isolation.missing:
        yield "  missing", sentence
    for seed in document.seeds:
        when = "after" if seed.after_freeze else "before"
        yield f"seed {seed.purpose}", f"{seed.commitment}, drawn {when} the candidate was frozen"


def _timing(timing: Timing) -> Iterator[tuple[str, str]]:
    yield (
        "final",
        f"{timing.pairs} pairs in {timing.blocks} blocks of {timing.processes} processes at least, "
        f"{timing.looks} looks; identical clones differ by up to {timing.noise_floor_ratio:.4f}x",
    )
    for shape in timing.shapes:
        axes = ", ".join(f"{name}={length}" for name, length in shape.axes.items())
        floor = f", physics {shape.floor_us:.3g} us" if shape.floor_us else ""
        yield (
            f"  {axes}",
            f"{shape.incumbent_us:.4g} us -> {shape.candidate_us:.4g} us, "
            f"{_interval(shape.speedup)}{floor}",
        )
    for group in timing.groups:
        names = " and ".join(
            ",".join(str(length) for length in timing.shapes[index].axes.values())
            for index in group.members
        )
        yield f"  {names} together", f"{_interval(group.speedup)}, adjusted p {group.p_value:.2g}"


def _interval(interval: Interval) -> str:
    upper = f"{interval.upper:.3f}" if interval.upper < _UNBOUNDED else "no bound"
    return (
        f"{interval.point:.3f}x [{interval.lower:.3f}, {upper}], each bound at "
        f"{interval.confidence:.0%}"
    )
