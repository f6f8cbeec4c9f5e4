"""Requests as two real services receive them, scaled to what a CPU serves.

The lengths and gaps are drawn from quantiles of Azure's 2023 traces (`data/azure_2023.json`, made
by `retuned.demo.make_traffic`). Every draw is independent: the traces' order and the correlation
between prompt and output are not kept, their marginal distributions are.
"""

from __future__ import annotations

import json
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from itertools import pairwise

from pydantic import model_validator

from retuned.contract import Record

TABLE_NAME = "azure_2023.json"


class Phase(StrEnum):
    """Which service the traffic looks like."""

    CHAT = "chat"
    """Conversation: medium prompts, long answers; decoding dominates."""
    CODE = "code"
    """Completion of code: long prompts, very short answers; prefill dominates."""


class ServiceQuantiles(Record):
    """One service of the trace; every tuple has one value per probability of the table."""

    source: str
    """File of the data set."""
    source_sha256: str
    """Of the gzip file the quantiles were computed from."""
    requests: int
    """Rows in that file."""
    prompt_tokens: tuple[int, ...]
    """Tokens of the prompt."""
    output_tokens: tuple[int, ...]
    """Tokens generated."""
    gap_s: tuple[float, ...]
    """Seconds between one arrival and the next."""


class QuantileTable(Record):
    """The committed table."""

    citation: str
    """Authors to cite, and the licence."""
    made_by: str
    """Command that computes this file again."""
    probabilities: tuple[float, ...]
    """Ascending, from 0 to 1."""
    services: dict[Phase, ServiceQuantiles]
    """Quantiles per service."""

    @model_validator(mode="after")
    def _inverse_distribution(self) -> QuantileTable:
        grid = self.probabilities
        if len(grid) < 2 or grid[0] != 0.0 or grid[-1] != 1.0 or not _ascends(grid, strictly=True):
            raise ValueError("probabilities must ascend from 0 to 1")
        for phase, service in self.services.items():
            for name in ("prompt_tokens", "output_tokens", "gap_s"):
                values = getattr(service, name)
                if len(values) != len(grid) or not _ascends(values, strictly=False):
                    raise ValueError(f"{phase}.{name} must ascend, one value per probability")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How a data centre's traffic becomes a laptop's; the shape of the distributions stays."""

    prompt_divisor: float = 16.0
    """Prompt tokens are divided by this: medians 1020 and 1469 become 64 and 92. On a GPU a token
    of a prompt costs some thirty times less than a token that is decoded alone; on one core it
    costs about the same, so that this comes nearer to the balance of prefill and decoding that a
    GPU server sees than the full lengths do."""
    output_divisor: float = 1.0
    """Output tokens are divided by this: medians 129 and 13 stay."""
    gap_divisor: float = 32.0
    """Gaps are divided by this, so that arrivals outrun a CPU and the cap on requests in flight
    decides the load: the server is always saturated, and throughput is what it can do."""
    prompt_cap: int = 224
    """Longest prompt."""
    output_cap: int = 256
    """Longest answer."""
    gap_cap_s: float = 0.05
    """Longest pause: the code trace has one of 217 s, which would be an idle phase, not traffic."""


SCALES = {
    "cpu": Scale(),
    "gpu": Scale(prompt_divisor=1.0, prompt_cap=1536),
}
"""By what serves: on a GPU prompts keep their lengths, so that prefill keeps it busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request to send."""

    prompt_tokens: int
    """Length of the prompt, at least 1."""
    output_tokens: int
    """Tokens to ask for, at least 1."""
    gap_s: float
    """Pause before the next request, seconds."""


class Traffic:
    """Draws requests of one service.

    Parameters
    ----------
    phase
        Which service.
    table
        Quantiles; the committed ones when None.
    scale
        How lengths and gaps shrink.
    """

    def __init__(
        self, phase: Phase, *, table: QuantileTable | None = None, scale: Scale | None = None
    ) -> None:
        table = table or load_table()
        self.phase = phase
        self._grid = table.probabilities
        self._service = table.services[phase]
        self._scale = scale or Scale()

    def draw(self, rng: random.Random) -> Request:
        """Return one request by inverse quantiles, each length from its own uniform number."""
        scale, service = self._scale, self._service
        prompt = inverse(self._grid, service.prompt_tokens, rng.random()) / scale.prompt_divisor
        output = inverse(self._grid, service.output_tokens, rng.random()) / scale.output_divisor
        gap_s = inverse(self._grid, service.gap_s, rng.random()) / scale.gap_divisor
        return Request(
            prompt_tokens=min(max(1, round(prompt)), scale.prompt_cap),
            output_tokens=min(max(1, round(output)), scale.output_cap),
            gap_s=min(gap_s, scale.gap_cap_s),
        )


def inverse(probabilities: Sequence[float], values: Sequence[float], at: float) -> float:
    """Return the quantile at probability `at`, linear between the points of the table.

    Raises
    ------
    ValueError
        If `at` is outside [0, 1].

    Examples
    --------
    >>> inverse([0.0, 0.5, 1.0], [0, 10, 30], 0.75)
    20.0
    """
    if not 0.0 <= at <= 1.0:
        raise ValueError(f"a probability lies in [0, 1], got {at}")
    right = min(bisect_right(probabilities, at), len(probabilities) - 1)
    low, high = probabilities[right - 1], probabilities[right]
    share = (at - low) / (high - low)
    return values[right - 1] + share * (values[right] - values[right - 1])


def load_table() -> QuantileTable:
    """Read the table that is committed with the package."""
    text = resources.files("retuned.demo").joinpath("data", TABLE_NAME).read_text("utf-8")
    return QuantileTable.model_validate(json.loads(text))


def _ascends(values: Sequence[float], *, strictly: bool) -> bool:
    return all(a < b if strictly else a <= b for a, b in pairwise(values))
