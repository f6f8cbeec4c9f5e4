"""What gate G7 measures: the same requests again and again, with a swap on and off in turn. Pure.

A block is all requests once. The first is served by the original and timed by nobody: its answers
are what later ones are compared with. Blocks are kept as counts and times, not as answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Annotated, Literal

from pydantic import Field

from retuned.contract import Record

State = Literal["off", "on"]
Positive = Annotated[float, Field(gt=0.0, lt=1e9)]


class ServerResponse(Record):
    """What the server said to one request."""

    tokens: tuple[str, ...] = ()
    """Its tokens, or pieces of text where it does not tell tokens."""
    logprobs: tuple[float, ...] = ()
    """Log-probability of each; empty where the server does not tell."""
    ttft_s: Positive | None = None
    """Time to the first token, seconds; None where none came."""
    tpot_s: Positive | None = None
    """Mean time of each further token, seconds; None where there was none."""
    failed: bool = False
    """Whether it ended in an error or without its end."""


class Served(Record):
    """One pass over all requests."""

    answers: tuple[ServerResponse, ...] = Field(min_length=1)
    """In the order of the requests."""
    wall_s: Positive
    """From the first byte sent to the last one read, seconds."""


class Block(Record):
    """One pass, summed up."""

    state: State
    """Whether the swap was on."""
    requests: int = Field(ge=1)
    """Sent."""
    failed: int = Field(ge=0)
    """Of those, without a whole answer."""
    tokens: int = Field(ge=0)
    """Generated."""
    wall_s: Positive
    """Time of the pass, seconds."""
    ttft_s: Positive | None = None
    """Median time to the first token, seconds."""
    tpot_s: Positive | None = None
    """Median time of each further token, seconds."""
    compared: int = Field(ge=0)
    """Tokens that had the same text before them as in the first pass."""
    diverged: int = Field(ge=0)
    """Of those, tokens that were not the same: at most one a request."""
    shift: float | None = Field(default=None, ge=0.0)
    """Mean absolute difference of log-probabilities; None where the server does not tell."""

    @property
    def tokens_per_s(self) -> float:
        """Throughput of the pass."""
        return self.tokens / self.wall_s


def order_of(pair: int) -> tuple[State, State]:
    """Return the order of a pair: off on, on off, and so on; what drifts weighs on both alike.

    Examples
    --------
    >>> order_of(0), order_of(1)
    (('off', 'on'), ('on', 'off'))
    """
    return ("off", "on") if pair % 2 == 0 else ("on", "off")


def compare_answers(
    first: Sequence[ServerResponse], later: Sequence[ServerResponse]
) -> tuple[int, int]:
    """Return how many tokens had the same text before them, and how many of those differ.

    Behind the first token that differs two answers are about different texts, and say nothing more:
    so that one rounding is counted once, however long the answer is.

    Examples
    --------
    >>> one, other = Answer(tokens=("a", "b", "c")), Answer(tokens=("a", "x", "c"))
    >>> compare_answers([one], [one]), compare_answers([one], [other])
    ((3, 0), (2, 1))
    """
    compared = diverged = 0
    for one, other in zip(first, later, strict=True):
        if one.failed or other.failed:
            continue
        same = _common(one.tokens, other.tokens)
        differs = (same < len(one.tokens)) or (same < len(other.tokens))
        compared += same + differs
        diverged += differs
    return compared, diverged


def summarise(state: State, first: Sequence[ServerResponse], served: Served) -> Block:
    """Sum up a pass beside the first one.

    Raises
    ------
    ValueError
        If the two are not of the same requests.
    """
    answers = served.answers
    compared, diverged = compare_answers(first, answers)
    ttft = [answer.ttft_s for answer in answers if answer.ttft_s is not None]
    tpot = [answer.tpot_s for answer in answers if answer.tpot_s is not None]
    return Block(
        state=state,
        requests=len(answers),
        failed=sum(answer.failed for answer in answers),
        tokens=sum(len(answer.tokens) for answer in answers),
        wall_s=served.wall_s,
        ttft_s=median(ttft) if ttft else None,
        tpot_s=median(tpot) if tpot else None,
        compared=compared,
        diverged=diverged,
        shift=_shift(first, answers),
    )


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))


def _shift(first: Sequence[ServerResponse], later: Sequence[ServerResponse]) -> float | None:
    found: list[float] = []
    for one, other in zip(first, later, strict=True):
        same = min(_common(one.tokens, other.tokens), len(one.logprobs), len(other.logprobs))
        pairs = zip(one.logprobs[:same], other.logprobs[:same], strict=True)
        found += [abs(left - right) for left, right in pairs]
    return sum(found) / len(found) if found else None
