"""Setup of the evolution generator from a configuration: budget, transcript and secrets."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
from pathlib import Path

from retuned.clock import SystemClock
from retuned.contract import Environment
from retuned.errors import MissingDependency
from retuned.lab.generators.evolve import (
    EvolveConfig,
    EvolveGenerator,
    Task,
    brief_of,
    read_hint,
    redactor,
    secrets_only,
)
from retuned.lab.generators.inputs import GeneratorInput
from retuned.lab.journal import notebook_name
from retuned.lab.llm.budget import LEDGER, ChatBudget, DayLedger, Prices, RemainingBudget
from retuned.lab.llm.client import PaidChatModel
from retuned.lab.llm.http import Endpoint, HttpWire
from retuned.lab.llm.transcript import Transcript, spent_since
from retuned.lab.toolchain import environment_of
from retuned.ports import Clock, Generator

_EVERYWHERE = frozenset({"root", "user", "admin", "ubuntu", "nobody", "localhost"})
"""Names that do not identify a machine and occur in many comments."""


def open_evolution(
    config: EvolveConfig, occasion: GeneratorInput, *, clock: Clock | None = None, arch: str = ""
) -> Generator:
    """Return the generator of one plan, which continues the plan's transcript.

    `arch` is the architecture of variants; empty means this machine's.

    Raises
    ------
    MissingDependency
        If the variable with the key is not in the environment.
    TemporaryError
        If another process uses the same conversation.
    UsageError
        If the address is invalid, or the incumbent's language cannot be evolved.
    """
    definition, incumbent = occasion.tunable.definition, occasion.incumbent
    chat = open_chat(config, occasion, clock=clock or SystemClock())
    there = Environment(arch=arch) if arch else environment_of(incumbent.language)
    facts = brief_of(incumbent.language, there, cores=occasion.cores)
    hint = read_hint(config.hints, definition.name, definition.op_type)
    task = Task(
        definition=definition,
        incumbent=incumbent,
        rules=config.rules,
        facts=facts,
        model=config.model,
        seed=occasion.seed,
        hint=hint,
    )
    return EvolveGenerator(chat, task=task)


def open_chat(config: EvolveConfig, occasion: GeneratorInput, *, clock: Clock) -> PaidChatModel:
    key = key_of(config)
    wire = HttpWire(
        Endpoint(
            url=config.url,
            model=config.model,
            key=key,
            temperature=config.temperature,
            tokens_field=config.tokens_field,
            timeout_s=config.timeout_s,
        )
    )
    folder = Path(config.transcripts)
    transcript = Transcript(transcript_path(config, occasion.plan.id))
    prices = Prices(
        prompt_usd_per_mtok=config.prompt_usd_per_mtok,
        completion_usd_per_mtok=config.completion_usd_per_mtok,
    )
    purse = RemainingBudget(
        ChatBudget(
            max_tokens=config.max_tokens,
            max_usd=config.max_usd,
            max_usd_per_day=config.max_usd_per_day,
        ),
        prices,
        spent=transcript.spent,
        spent_usd=transcript.spent_usd,
        ledger=DayLedger(
            folder / LEDGER, clock=clock, before=lambda since: spent_since(folder, since)
        ),
    )
    return PaidChatModel(
        wire,
        purse=purse,
        transcript=transcript,
        clock=clock,
        secrets_out=redactor([key], names=machine_names()),
        answers_out=secrets_only([key]),
        left_s=occasion.left_s,
    )


def transcript_path(config: EvolveConfig, plan: str) -> Path:
    return Path(config.transcripts) / f"{notebook_name(plan)}.jsonl"


def key_of(config: EvolveConfig) -> str:
    """Return the key of the endpoint; empty if none is sent.

    Raises
    ------
    MissingDependency
        If the variable is not in the environment.
    """
    if not config.key_variable:
        return ""
    key = os.environ.get(config.key_variable, "").strip()
    if not key:
        raise MissingDependency(
            f"the key of the model's endpoint: {config.key_variable} is not in the environment"
        )
    return key


def machine_names() -> list[str]:
    names = [socket.gethostname(), socket.gethostname().partition(".")[0]]
    with contextlib.suppress(KeyError, OSError):  # a container's user without a name
        names.append(getpass.getuser())
    return [name for name in names if name.lower() not in _EVERYWHERE]
