"""Is an answer right? Pure: what the numbers say, wherever they come from.

Under continuous batching a request may run in batches of other sizes than in the control, and a
matrix product of another size rounds otherwise in bfloat16: two logits that nearly tie may change
places, and everything after them differs although nothing is wrong. So two questions are asked.

- With the *same batches* (requests that wait while the server is held), are all tokens the same?
- With *any* batches: the control reads prompt and answer as given and says for every token how far
  its logit is below the largest one. What the control's own answers show under the same traffic is
  rounding; twice the largest of them is allowed. A token beyond that is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.live.traffic import Answered

_ALLOWANCE = 2.0
_LEAST_ALLOWED = 1e-3
"""Of a control that shows no rounding at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What became of a set of answers."""

    requests: int
    """Sent."""
    failed: int
    """Without a whole answer."""
    wrong: int
    """With a token beyond what is allowed."""
    tokens: int
    """Looked at."""
    not_first: int
    """Tokens that are not the control's own choice: near ties, or wrong."""
    worst_gap: float
    """Largest distance to the control's largest logit."""
    allowed_gap: float
    """What rounding explains."""


def allowed_gap(control: Sequence[Sequence[float]]) -> float:
    """Return what rounding explains, from the control's own answers.

    Raises
    ------
    ValueError
        If there are none: then nothing is known of rounding.
    """
    gaps = [gap for answer in control for gap in answer]
    if not gaps:
        raise ValueError("no answers of the control: what rounding does is not known")
    return max(_ALLOWANCE * max(gaps), _LEAST_ALLOWED)


def check(
    answers: Sequence[Answered], gaps: Sequence[Sequence[float] | None], *, allowed: float
) -> Checked:
    """Judge answers by their gaps; one that failed has none.

    Raises
    ------
    ValueError
        If an answer that did not fail has no gaps: an unchecked answer does not count as right.
    """
    wrong = tokens = not_first = 0
    worst = 0.0
    for answer, found in zip(answers, gaps, strict=True):
        if answer.failure is not None:
            continue
        if found is None or len(found) != len(answer.tokens):
            raise ValueError("an answer was not checked")
        finite = [gap if gap == gap else float("inf") for gap in found]
        wrong += any(gap > allowed for gap in finite)
        tokens += len(finite)
        not_first += sum(gap > 0.0 for gap in finite)
        worst = max(worst, *finite)
    return Checked(
        requests=len(answers),
        failed=sum(answer.failure is not None for answer in answers),
        wrong=wrong,
        tokens=tokens,
        not_first=not_first,
        worst_gap=worst,
        allowed_gap=allowed,
    )


def same(one: Sequence[Answered], other: Sequence[Answered]) -> dict[str, Any]:
    """Compare answers to the same requests in the same batches, token by token.

    Raises
    ------
    ValueError
        If they are not answers to the same requests.
    """
    if [a.asked for a in one] != [a.asked for a in other]:
        raise ValueError("answers to other requests cannot be compared")
    pairs = list(zip(one, other, strict=True))
    equal = sum(a.failure is None and b.failure is None and a.tokens == b.tokens for a, b in pairs)
    return {
        "requests": len(pairs),
        "identical": equal,
        "failed": sum(a.failure is not None or b.failure is not None for a, b in pairs),
        "tokens": sum(len(a.tokens) for a, _ in pairs),
        "first_difference": [_first(a.tokens, b.tokens) for a, b in pairs if a.tokens != b.tokens],
    }


def _first(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the place of the first token that differs."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))
