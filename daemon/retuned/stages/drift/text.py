"""Text of a drift report, for people."""

from __future__ import annotations

from collections.abc import Sequence

from retuned.stages.drift.records import DriftAction, DriftCode, DriftReason, DriftReport
from retuned.stages.drift.state import Library, Reading
from retuned.stages.profile import OTHER, Signature

REASONS_MAX = 8
_NAME_CHARS = 60
_SHARE_MIN = 0.01
KNOWN = "The workload is a known one."
LEANING = "The workload may be leaving known ones; one window is not enough."


def shape_text(signature: Signature) -> str:
    """Dims, or geometry where dims are unknown.

    Examples
    --------
    >>> shape_text(Signature(kernel="gemm", dims=((16, 1024), (1024, 4096))))
    '16x1024, 1024x4096'
    >>> shape_text(Signature(kernel="gemm", blocks=(8, 1, 1), threads=(256, 1, 1), mode=1))
    'grid 8x1x1, block 256x1x1, duration mode 1'
    """
    if signature.dims:
        return ", ".join("x".join(map(str, shape)) or "scalar" for shape in signature.dims)
    if not any(signature.blocks) and not any(signature.threads):
        return f"duration mode {signature.mode}" if signature.mode else ""
    grid, block = ("x".join(map(str, side)) for side in (signature.blocks, signature.threads))
    mode = f", duration mode {signature.mode}" if signature.mode else ""
    return f"grid {grid}, block {block}{mode}"


def short(kernel: str) -> str:
    """Kernel name, cut in the middle where it is long."""
    if len(kernel) <= _NAME_CHARS:
        return kernel
    return f"{kernel[: _NAME_CHARS - 18]}...{kernel[-15:]}"


def percent(share: float) -> str:
    """Format a share with two significant digits and at most one decimal.

    Examples
    --------
    >>> percent(0.4123), percent(0.0042), percent(0.0)
    ('41 %', '0.4 %', '0 %')
    """
    if share == 0 or share >= 0.0995:
        return f"{100 * share:.0f} %"
    return f"{100 * share:.1f} %"


def rate(per_s: float) -> str:
    """Format launches per second.

    Examples
    --------
    >>> rate(16_123.4), rate(7.25)
    ('16,123', '7.25')
    """
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def share_reasons(reading: Reading, library: Library) -> list[DriftReason]:
    """Signatures whose share of kernel time differs from the nearest profile, largest change first.

    A signature counts when it is new or its share moved by a hundredth.
    """
    before = dict(zip(library.keys, library.shares[reading.nearest], strict=False))
    after: dict[Signature, float] = {}
    total = max(1, sum(stat.gpu_time_ns for stat in reading.stats))
    for stat in reading.stats:
        share = stat.gpu_time_ns / total
        after[stat.signature] = after.get(stat.signature, 0.0) + share
    reasons = []
    for key in {**before, **after}:
        was, now = float(before.get(key, 0.0)), after.get(key, 0.0)
        new = key not in library.index and key.kernel != OTHER
        if new or abs(now - was) >= _SHARE_MIN:
            reasons.append(_reason(key, was, now, new=new))
    return sorted(reasons, key=_order)


def _order(reason: DriftReason) -> tuple[float, float, str, str]:
    """Largest change first; of two equal ones the rise first, since it may need tuning."""
    change = reason.share_after - reason.share_before
    return (-round(abs(change), 3), -change, reason.kernel, reason.shape)


def _reason(key: Signature, was: float, now: float, *, new: bool) -> DriftReason:
    shape = shape_text(key)
    at = f" at {shape}" if shape else ""
    if new:
        code = DriftCode.NEW_SIGNATURE
        detail = f"{short(key.kernel)}{at} is new and takes {percent(now)} of kernel time"
    else:
        code = DriftCode.SHARE_CHANGED
        verb = "rose" if now > was else "fell"
        detail = (
            f"{short(key.kernel)}{at} {verb} from {percent(was)} to {percent(now)} of kernel time"
        )
    return DriftReason(
        code=code,
        kernel=key.kernel,
        shape=shape,
        share_before=min(1.0, max(0.0, was)),
        share_after=min(1.0, max(0.0, now)),
        detail=detail,
    )


def answer(report: DriftReport) -> str:
    """Return what a window results in, in one or two words.

    This is its action if it has one; else whether it was judged, and whether more windows are
    needed.

    Examples
    --------
    >>> def report(**body):
    ...     body = {"detected": False, "action": "none", "reasons": (), "distance": 0.0} | body
    ...     return DriftReport(window_start_ns=0, **body)
    >>> answer(report(sentence=KNOWN)), answer(report(sentence=LEANING))
    ('known', 'waiting')
    >>> answer(report(sentence="", skipped="not-counted"))
    'not judged'
    >>> answer(report(sentence="", detected=True, action="retune"))
    'retune'
    """
    if report.skipped:
        return "not judged"
    if report.action is not DriftAction.NONE:
        return str(report.action)
    if report.detected:
        return "cooling down"
    return "waiting" if report.sentence == LEANING else "known"


def sentence(
    *,
    detected: bool,
    action: DriftAction,
    reasons: Sequence[DriftReason],
    uncovered: float,
    leaning: bool = False,
    finding: str = "",
) -> str:
    """Return the whole report in one sentence: what changed, how much is uncovered, what follows.

    `leaning` means that something indicates a new mix but is not sufficient. `finding` replaces
    what follows: what was found of the cause of an alarm.

    Examples
    --------
    >>> sentence(detected=False, action=DriftAction.NONE, reasons=(), uncovered=0.0)
    'The workload is a known one.'
    """
    if not detected and leaning:
        return LEANING
    if not detected:
        return KNOWN
    told = [r.detail for r in reasons if r.code is not DriftCode.NOVEL_MIX] or [
        r.detail for r in reasons
    ]
    what = "; ".join(told[:3]) or "The mix of shapes differs from all known ones"
    more = f"; {len(told) - 3} more" if len(told) > 3 else ""
    return f"{what}{more}; {finding or _CONSEQUENCE[action].format(share=percent(uncovered))}."


_CONSEQUENCE = {
    DriftAction.NONE: "{share} of kernel time is in shapes that nothing was tuned for, and a "
    "retune must wait for its cool-down",
    DriftAction.ADOPT: "{share} of kernel time is in shapes that nothing was tuned for, too little "
    "to retune",
    DriftAction.RETUNE: "{share} of kernel time is in shapes that nothing was tuned for, worth a "
    "retune",
    DriftAction.ALARM: "the mix is a known one, so check clocks, driver and neighbours first",
}
