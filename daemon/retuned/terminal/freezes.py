"""How a freeze is told to people: for what it stands, and until when."""

from __future__ import annotations

from retuned.stages.gate import FreezeScope, TuningFreeze, utc_minute


def scope_words(scope: FreezeScope) -> str:
    """Say what a freeze is for.

    Examples
    --------
    >>> scope_words(FreezeScope())
    'for everything'
    >>> scope_words(FreezeScope(targets=("prod-*",), kernels=("linear*", "rmsnorm")))
    "for targets 'prod-*', kernels 'linear*' 'rmsnorm'"
    """
    parts = [
        f"{name} {' '.join(repr(glob) for glob in globs)}"
        for name, globs in (("targets", scope.targets), ("kernels", scope.kernels))
        if globs
    ]
    return f"for {', '.join(parts)}" if parts else "for everything"


def end_words(freeze: TuningFreeze) -> str:
    """Say when a freeze ends; one without an end stands until somebody lifts it."""
    if freeze.until is None:
        return "until thawed"
    return f"until {utc_minute(freeze.until)}"


def freeze_line(freeze: TuningFreeze) -> str:
    """Say all of a freeze that stands, in one line."""
    reason = f": {freeze.reason}" if freeze.reason.strip() else ""
    words = f"{scope_words(freeze.scope)}, {end_words(freeze)}{reason}"
    return f"FROZEN by {freeze.user} {words} ({freeze.id})"
