"""Reads the configuration of the evolution from the settings."""

from __future__ import annotations

import os
from collections.abc import Mapping

from retuned.errors import UsageError
from retuned.lab.generators.evolve import EvolveConfig, EvolveRules
from retuned.lab.llm.http import check_url
from retuned.settings import Settings


def config_of(
    settings: Settings, *, environment: Mapping[str, str] | None = None
) -> EvolveConfig | None:
    """Return what the settings say about evolution; None where it is off.

    Raises
    ------
    UsageError
        If it is on and something that it needs is not set: model, prices, or the key.
    """
    if not settings.evolve_url:
        return None
    given = os.environ if environment is None else environment
    variable = settings.evolve_key_variable
    if not settings.evolve_model:
        raise UsageError("evolve_url is set and evolve_model is not: name the model")
    prices = (settings.evolve_prompt_usd_per_mtok, settings.evolve_completion_usd_per_mtok)
    if prices[0] is None or prices[1] is None:
        raise UsageError(
            "evolve_url is set and a price is not: set evolve_prompt_usd_per_mtok and "
            "evolve_completion_usd_per_mtok, 0 for a server of your own"
        )
    if variable and not given.get(variable):
        raise UsageError(f"evolve_key_variable names {variable}, which is not in the environment")
    check_url(settings.evolve_url, key=bool(variable))
    return EvolveConfig(
        url=settings.evolve_url,
        model=settings.evolve_model,
        key_variable=variable,
        prompt_usd_per_mtok=prices[0],
        completion_usd_per_mtok=prices[1],
        max_tokens=settings.evolve_max_tokens,
        max_usd=settings.evolve_max_usd,
        max_usd_per_day=settings.evolve_max_usd_per_day,
        temperature=settings.evolve_temperature,
        tokens_field=settings.evolve_tokens_field,
        transcripts=str(settings.state_dir / "transcripts"),
        hints=str(settings.evolve_hint_dir) if settings.evolve_hint_dir is not None else "",
        rules=EvolveRules(answer_tokens=settings.evolve_answer_tokens),
    )
