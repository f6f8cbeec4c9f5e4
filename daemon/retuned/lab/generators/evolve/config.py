"""Settings of evolution by a language model: the endpoint, the budget, and how it searches."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from retuned.contract import Record

VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
"""Names of variables in the environment."""


class EvolveRules(Record):
    """How the search goes; nothing here is known to the model's answers."""

    islands: int = Field(default=3, ge=1, le=16)
    """Populations that live apart, each with its own archive of variants."""
    generations: int = Field(default=8, ge=1, le=1000)
    """Variants asked for per island."""
    migrate_every: int = Field(default=3, ge=1)
    """After so many generations the best of each island is copied to the next one."""
    repairs: int = Field(default=2, ge=0, le=8)
    """Times that one failed variant is given back with what went wrong."""
    ideas_every: int = Field(default=3, ge=0)
    """Generations between two requests for directions to try; 0 never asks."""
    start: Literal["incumbent", "reference", "both"] = "incumbent"
    """Where islands begin: the variant in production, the definition's reference text alone, or the
    one on all islands but the last and the other on the last."""
    prompt_bytes: int = Field(default=60_000, ge=8_000, le=1_000_000)
    """Longest prompt; what matters least is left out first."""
    answer_tokens: int = Field(default=8_000, ge=256, le=200_000)
    """Longest answer, tokens."""


class EvolveConfig(Record):
    """Everything the lab's process needs to evolve variants; it holds no secret."""

    url: str = Field(min_length=1, max_length=2000)
    """Base of an OpenAI-compatible endpoint, such as ``https://host/v1``."""
    model: str = Field(min_length=1, max_length=200)
    """Name of the model, as the endpoint knows it."""
    key_variable: str = Field(default="", pattern=r"^$|" + VARIABLE)
    """Variable in the environment that holds the key; empty sends none."""
    prompt_usd_per_mtok: float = Field(ge=0.0)
    """Price of what is read, dollars per million tokens."""
    completion_usd_per_mtok: float = Field(ge=0.0)
    """Price of what is written, dollars per million tokens."""
    max_tokens: int = Field(default=400_000, ge=1)
    """Most tokens of one experiment, read and written."""
    max_usd: float = Field(default=2.0, ge=0.0)
    """Most money of one experiment, dollars."""
    max_usd_per_day: float = Field(default=10.0, ge=0.0)
    """Most money of all experiments within 24 hours, dollars."""
    temperature: float | None = Field(default=0.8, ge=0.0, le=2.0)
    """How freely the model chooses; None leaves it to the endpoint."""
    tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """How the endpoint calls the longest answer."""
    timeout_s: float = Field(default=180.0, gt=0.0)
    """Longest wait for one answer, seconds."""
    transcripts: str = Field(min_length=1)
    """Folder of the transcripts, one file an experiment."""
    hints: str = ""
    """Folder of hint files, one per definition or family; empty for none."""
    rules: EvolveRules = EvolveRules()
    """How the search goes."""
