"""What an experiment teaches: about its own belief, and about others of the family."""

from __future__ import annotations

from collections.abc import Sequence

from retuned.contract import Workload
from retuned.stages.hypothesis.records import Attempt, Hypothesis, HypothesisSettings, named


def refine(
    hypothesis: Hypothesis,
    attempt: Attempt,
    *,
    structures: Sequence[str] = (),
    shapes: Sequence[Workload] = (),
    settings: HypothesisSettings | None = None,
) -> Hypothesis | None:
    """Believe less and look elsewhere after a failed attempt; None where trying again does not pay.

    Parameters
    ----------
    hypothesis
        What was believed.
    attempt
        What the experiment taught.
    structures
        Source structures of the definition; those named in the hypothesis are dropped, because they
        were tried. Empty, or nothing left: all are tried again with other parameters, once.
    shapes
        Keep only these shapes, where some were found hopeless; empty keeps all.
    settings
        When to stop.
    """
    settings = settings or HypothesisSettings()
    attempts = (*hypothesis.attempts, attempt)
    if len(attempts) >= settings.max_attempts:
        return None
    gain = hypothesis.expected_gain_ratio**settings.discount
    saving = hypothesis.share * (1.0 - 1.0 / gain)
    if saving < settings.min_saving:
        return None
    left = tuple(name for name in structures if name not in hypothesis.structures)
    body = {
        "definition": hypothesis.definition,
        "workloads": tuple(shapes) or hypothesis.workloads,
        "share": hypothesis.share,
        "expected_gain_ratio": gain,
        "expected_saving": saving,
        "because": f"attempt {len(attempts)} ended with {attempt.reason}; {_next_try(left)} "
        f"may still save {saving:.1%} of GPU time",
        "structures": left if hypothesis.structures else (),
        "attempts": attempts,
        "world": hypothesis.world,
    }
    return named(body)


def learn_from(hypothesis: Hypothesis, *, structure: str, gain: float, source: str) -> Hypothesis:
    """Believe of a kernel what was proven of another of its family, and start there.

    Parameters
    ----------
    hypothesis
        Untested belief.
    structure
        Source structure that won.
    gain
        Lower bound of the winner's speedup, above 1.
    source
        Definition on which it won.
    """
    saving = hypothesis.share * (1.0 - 1.0 / max(gain, 1.0))
    return named(
        {
            **hypothesis.model_dump(exclude={"id"}),
            "expected_gain_ratio": max(gain, 1.0),
            "expected_saving": saving,
            "because": f"{hypothesis.definition} takes {hypothesis.share:.1%} of GPU time; "
            f"{structure} won {gain:.2f}x on {source} and may save {saving:.1%} here",
            "structures": (structure,),
        }
    )


def look_elsewhere(hypothesis: Hypothesis, *, structures: Sequence[str], source: str) -> Hypothesis:
    """Start a belief where another kernel of its family, on which the same try failed, looks next.

    Parameters
    ----------
    hypothesis
        Untested belief.
    structures
        Source structures that are left.
    source
        Definition on which the try failed.
    """
    return named(
        {
            **hypothesis.model_dump(exclude={"id"}),
            "because": f"{hypothesis.definition} takes {hypothesis.share:.1%} of GPU time; "
            f"{', '.join(hypothesis.structures)} brought nothing on {source}, "
            f"{', '.join(structures)} may still save {hypothesis.expected_saving:.1%}",
            "structures": tuple(structures),
        }
    )


def _next_try(structures: Sequence[str]) -> str:
    return f"structures {', '.join(structures)}" if structures else "other parameters"
